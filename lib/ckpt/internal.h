/* What the files of this room share. */
#ifndef MEG_CKPT_INTERNAL_H
#define MEG_CKPT_INTERNAL_H
#include <stdio.h>
#include <string.h>
#include "ckpt/ckpt.h"
#include "ckpt/safetensors.h"

struct meg_ckpt {
    char *path; /* of the folder with the weights */
    bool is_native;
    int64_t iteration, vocab_size;
    int32_t eod;
    char *options;                 /* as meg_opt_dump wrote them */
    json_t *state;                 /* state.json, or of a foreign folder its config.json */
    json_t *manifest;              /* tensors of manifest.json; NULL: there are no checksums */
    char *vocab_file, *merge_file; /* NULL: not there */
    struct meg_st **file;          /* of the weights */
    int nfiles;
    const struct ckpt_format *format;
};

/* What manifest.json says it is. */
#define CKPT_FORMAT "meg checkpoint"
enum { CKPT_VERSION = 1 };

/* The name of optimizer state in a file, as Megatron's distributed checkpoints have it. */
#define CKPT_SLOT_PREFIX "optimizer.state."
enum { CKPT_NAME_CHARS = 160 };
static inline const char *ckpt_slot_name(char buf[CKPT_NAME_CHARS], const char *slot,
                                         const char *param)
{
    snprintf(buf, CKPT_NAME_CHARS, CKPT_SLOT_PREFIX "%s.%s", slot, param);
    return buf;
}

static inline bool ckpt_is_slot_name(const char *name)
{
    return !strncmp(name, CKPT_SLOT_PREFIX, sizeof CKPT_SLOT_PREFIX - 1);
}

/* ---- rename.c: how a format names and lays out what we call otherwise ---- */

enum ckpt_how {
    CKPT_SAME,
    CKPT_TRANSPOSED, /* [in, out] where ours is [out, in] */
    CKPT_QKV,        /* rows q of all heads, k of all, v of all; ours: head by head */
    CKPT_QKV_TRANSPOSED
};

/* # stands for the number of the layer in both names. */
struct ckpt_rename {
    const char *ours, *theirs;
    enum ckpt_how how;
};

/*
 * Names not in rename are the same as ours.  Where prefix is not NULL it may be missing from all
 * of their names.  ignored: tensors that hold no weights.  Both lists end with { 0 } or NULL.
 */
struct ckpt_format {
    const char *name;
    const struct ckpt_rename *rename;
    const char *prefix;
    const char *const *ignored;
};
extern const struct ckpt_format ckpt_native, ckpt_hf_gpt2;

/* The row for our name, and theirs in buf of 128 characters (without prefix when drop_prefix); else NULL. */
const struct ckpt_rename *ckpt_their_name(const struct ckpt_format *f, const char *ours,
                                          bool drop_prefix, char buf[128]);
bool ckpt_is_ignored(const struct ckpt_format *f, const char *theirs);

/*
 * A matrix [rows, cols] of ours out of theirs, or theirs out of ours.
 *   heads, d  of attention; d is rows / (3 heads)
 */
void ckpt_from_theirs(float *ours, const float *theirs, int64_t rows, int64_t cols,
                      enum ckpt_how how, int64_t heads);
void ckpt_to_theirs(float *theirs, const float *ours, int64_t rows, int64_t cols, enum ckpt_how how,
                    int64_t heads);

/* Numbers of a type that can be widened to f32 without loss: F32, BF16, F16. */
bool ckpt_is_widened(const char *dtype);
void ckpt_widen(float *out, const void *in, const char *dtype, int64_t n);

/* ---- folder.c: names in SAVE ---- */

#define CKPT_TRACKER "latest_checkpointed_iteration.txt"

/* DIR/NAME, malloc'ed. */
char *ckpt_path(const char *dir, const char *name);
/* "iter_0000100" or "release", with suffix, into buf of 64; returned. */
const char *ckpt_name(char buf[64], int64_t iteration, const char *suffix);
bool ckpt_is_file(const char *dir, const char *name);
/* What the tracker says. */
int ckpt_read_tracker(const char *dir, int64_t *iteration, struct meg_err *e);
/* The folder of an iteration in SAVE, malloc'ed; MEG_ENOENT with those that are there. */
int ckpt_find(char **path, const char *dir, int64_t iteration, struct meg_err *e);
/* Remove what a killed save left; put back what it was about to replace. */
int ckpt_tidy(const char *dir, struct meg_err *e);
/* Rename the whole folder DIR/TMP to the name of its iteration and the tracker after it. */
int ckpt_commit(const char *dir, const char *tmp, int64_t iteration, struct meg_err *e);
/* Remove checkpoints older than iteration but the keep-1 newest of them, and never the one called loaded. */
void ckpt_keep_last(const char *dir, int64_t iteration, int64_t keep, int64_t loaded);

/* ---- checksum.c ---- */

/* Tensors are hashed in pieces of this many bytes. */
enum { CKPT_CHUNK = 16 << 20 };

/*
 * Write DIR/NAME: a header and the tensors it was made for (meg_st_place); their entries are added
 * to manifest.  The file is whole when this returns: written, fsynced, renamed.
 */
int ckpt_write_tensors(const char *dir, const char *name, const struct meg_st_tensor *t, int n,
                       const struct meg_str *header, json_t *manifest, struct meg_err *e);
/* Compare a tensor with its checksums in manifest. */
int ckpt_check_tensor(const json_t *manifest, const struct meg_st *st,
                      const struct meg_st_tensor *t, struct meg_err *e);

/* ---- open.c ---- */

/* Open one more safetensors file of the folder. */
int ckpt_add_file(struct meg_ckpt *c, const char *name, struct meg_err *e);
/* The tensor called name and the file it is in; NULL: none. */
const struct meg_st_tensor *ckpt_find_tensor(const struct meg_ckpt *c, const char *name,
                                             const struct meg_st **st);

void ckpt_close_files(struct meg_ckpt *c);

/* ---- native.c, hf.c, hf_gpt2.c: what a folder holds, c->path being set ---- */

int ckpt_open_native(struct meg_ckpt *c, struct meg_err *e);
int ckpt_open_hf(struct meg_ckpt *c, struct meg_err *e);
/*
 * A view of c with the files of its optimizer state in place of the weights': opened when they are
 * wanted, since weights are loaded without.  Ends with ckpt_close_files, before c is closed.
 */
int ckpt_open_optim(struct meg_ckpt *out, const struct meg_ckpt *c, struct meg_err *e);
/* Settings of a config.json, and a config.json of settings. */
int ckpt_gpt2_read_config(struct meg_gpt_conf *m, const json_t *config, const char *from,
                          struct meg_err *e);
json_t *ckpt_gpt2_config(const struct meg_gpt_conf *m, int32_t eod);

/* ---- load.c ---- */

/* Whether the files hold the weights of p, and no others: all that is wrong in one message. */
int ckpt_match(const struct meg_ckpt *c, const struct meg_params *p, struct meg_err *e);

#endif
