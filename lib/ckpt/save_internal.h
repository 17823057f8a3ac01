/* save_internal.h - a save in progress, and its stages (save.c). */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "ckpt/internal.h"

/* ---- metadata.c ---- */

/* A metadata file of the checkpoint. */
struct ckpt_metadata_file {
    const char *name;
    struct meg_str text;
    bool is_listed; /* has an entry in the manifest */
};
enum { CKPT_METADATA_FILES = MEG_NUM_TOK_FILES + MEG_CKPT_EXTRA_FILES + 3 };
struct ckpt_metadata {
    struct ckpt_metadata_file file[CKPT_METADATA_FILES];
    int n;
};
/* List in *m the metadata files of a checkpoint, whose tensor files are `file`.  The caller frees *m. */
void ckpt_metadata_list(struct ckpt_metadata *m, const struct meg_ckpt_save_args *s, const struct ckpt_file *file);
/* Write the files to dir, and add the entries of those that are listed to the object `files` of the manifest. */
int ckpt_metadata_write(const struct ckpt_metadata *m, const char *dir, json_t *files, struct meg_err *e);
void ckpt_metadata_free(struct ckpt_metadata *m);

/* ---- save_stages.c ---- */

struct meg_ckpt_async_save {
    struct meg_comm *world;
    int64_t iteration, keep_last, loaded_iteration;
    char *dir, *path; /* SAVE, and the temporary directory */
    const struct meg_lock *lock;
    struct ckpt_file *file;
    int nfiles;
    const struct meg_device *device;      /* device that has the data of the extents; NULL: host memory */
    const struct meg_ckpt_reader *reader; /* the extents are read when they are written; NULL: they are in memory */
    enum meg_dtype dtype;                 /* dtype of the weights */
    struct ckpt_extent *extent;           /* [nextents] byte ranges that this rank writes */
    int64_t nextents;
    char *staging;            /* copy of the extents' bytes; NULL: the save is synchronous */
    struct ckpt_chunk *chunk; /* [nchunks] chunks of all tensors */
    int64_t nchunks;
    /*
     * [nchunks] checksums as hexadecimal digits.  Checksums of chunks that other ranks hash are zero bytes at first.
     * An all-reduce (sum) before the commit collects the checksums of all ranks.
     */
    char (*hash)[CKPT_HEX];
    struct ckpt_metadata metadata;
    int threads;

    int (*stage)(struct meg_ckpt_async_save *s, struct meg_err *e); /* current stage */
    pthread_t thread;
    bool has_thread;
    atomic_bool is_done;
    int r;
    struct meg_err e;
};
/* Stage begin, on rank 0: create the temporary directory and the tensor files in it. */
int ckpt_save_create_folder(struct meg_ckpt_async_save *v, struct meg_err *e);
/* The other stages; commit runs on rank 0. */
int ckpt_save_write_stage(struct meg_ckpt_async_save *v, struct meg_err *e);
int ckpt_save_hash_stage(struct meg_ckpt_async_save *v, struct meg_err *e);
int ckpt_save_commit_stage(struct meg_ckpt_async_save *v, struct meg_err *e);
