/*
 * foreign.h - recognise files and directories of other programs by their content, and say what to do with them.
 *
 * A message names the path, the format that was found, what was expected, and a remedy, in this order.  At most
 * MEG_FOREIGN_PREFIX bytes of a file are examined.  FIFOs and devices are never opened, so no function here blocks.
 * Symbolic links are followed.
 *
 * A reader calls these functions after it has failed to read its input.  Then a format that is recognised wrongly can
 * only change a message.  Readers to which any bytes are valid, such as readers of text, call them first.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include "base/err.h"

enum { MEG_FOREIGN_PREFIX = 4096 };

/* What a reader expects.  A format that the reader accepts is not foreign. */
enum meg_expected {
    MEG_EXPECT_FILE,     /* anything except a pointer to the file that was meant */
    MEG_EXPECT_TEXT,     /* plain text or JSON lines */
    MEG_EXPECT_SETTINGS, /* a text file with a syntax of meg, such as the file of --config */
    MEG_EXPECT_JSON_LINES,
    MEG_EXPECT_JSON,
    MEG_EXPECT_TOKENIZER, /* a file of any type of tokenizer */
    MEG_EXPECT_SAFETENSORS,
    MEG_EXPECT_TORCH,      /* a file of torch.save in a ZIP file */
    MEG_EXPECT_DATASET,    /* the .idx file of a token dataset */
    MEG_EXPECT_CHECKPOINT, /* a directory */
    MEG_NUM_EXPECTED
};

/*
 * meg_foreign_check - check that the content of a file is not in a foreign format
 *   p [n]  the first bytes of the file; at least MEG_FOREIGN_PREFIX, unless the file is shorter
 * Returns 0, or MEG_EFORMAT with a message in *e.
 */
int meg_foreign_check(const char *path, const void *p, size_t n, enum meg_expected expected, struct meg_err *e);

/*
 * meg_foreign_explain - explain a failure by the content of the file
 * If r is an error and the content is foreign, replaces the message in *e and returns MEG_EFORMAT.  Returns r
 * otherwise.
 */
int meg_foreign_explain(int r, const char *path, const void *p, size_t n, enum meg_expected expected,
                        struct meg_err *e);

/*
 * meg_foreign_check_path - call meg_foreign_check for the content of the file at path
 * A directory is foreign unless a checkpoint is expected, and with MEG_EXPECT_CHECKPOINT any file is foreign.  A path
 * that does not exist, a FIFO and a device are not foreign.
 */
int meg_foreign_check_path(const char *path, enum meg_expected expected, struct meg_err *e);

/*
 * meg_foreign_check_mode - check the type of a file by the st_mode of struct stat
 *   allows_pipe  accept any type except a directory; otherwise accept only a regular file
 * Returns 0, or MEG_EIO with a message in *e.
 */
int meg_foreign_check_mode(const char *path, mode_t mode, bool allows_pipe, struct meg_err *e);

/*
 * meg_foreign_check_folder - check that a directory is not a checkpoint of another program or in another format
 * The names of its files decide.  The directory must not contain a checkpoint that can be read, because programs may
 * store several formats in one directory.  Returns 0, or MEG_EFORMAT with a message in *e; 0 if dir is no directory.
 */
int meg_foreign_check_folder(const char *dir, struct meg_err *e);

/*
 * meg_foreign_is_distributed - return whether a directory is a distributed checkpoint: torch_dist, fsdp_dtensor, zarr
 * of Megatron, or of torch.distributed.checkpoint.  meg_foreign_check_folder refuses those without .metadata.
 */
bool meg_foreign_is_distributed(const char *dir);

/*
 * meg_foreign_hub_snapshot - find the files of a model in the cache of the Hugging Face Hub
 * If path is a directory models--OWNER--NAME or its directory snapshots, stores the path of the snapshot in *out, which
 * the caller frees: the only one, or of several the one in refs/main, which transformers reads.  Otherwise, stores
 * NULL.  Returns 0.  Returns MEG_EFORMAT with a message that lists the snapshots if no single one is identified.
 */
int meg_foreign_hub_snapshot(char **out, const char *path, struct meg_err *e);
