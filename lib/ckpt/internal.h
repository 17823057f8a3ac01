/* What the files of this room share. */
#ifndef MEG_CKPT_INTERNAL_H
#define MEG_CKPT_INTERNAL_H
#include <stdio.h>
#include <string.h>
#include "ckpt/ckpt.h"
#include "ckpt/safetensors.h"

struct meg_ckpt {
    char *path;     /* of the folder with the weights */
    char *save_dir; /* the folder that the iteration chosen was looked up in; NULL: path was given */
    int64_t step;
    bool is_native;
    int64_t iteration, vocab_size;
    int32_t bos;                            /* id that begins a text, or -1 */
    struct meg_ids eos_ids;                 /* ids that end a continuation, that of a document the first */
    char *options;                          /* as meg_opt_dump wrote them */
    json_t *state;                          /* state.json, or of a foreign folder its config.json */
    json_t *manifest;                       /* tensors of manifest.json; NULL: there are no checksums */
    char *tok_file[MEG_NUM_TOK_FILES];      /* NULL: not there */
    char *extra_file[MEG_CKPT_EXTRA_FILES]; /* the same */
    struct meg_st **file;                   /* of the weights; number i is of tensor-parallel rank i mod tp */
    int nfiles;
    int64_t source_iteration; /* of weights only: iteration of the run that wrote them, or RELEASE */
    int64_t consumed_samples; /* samples of that run, or -1 */
    int64_t seq_length;       /* of that run, from Megatron's args; else MEG_UNSET */
    int64_t tp;               /* 1: tensors are whole */
    int64_t vocab_rows;       /* of the word embedding as stored, padding counted; 0: there is none */
    const struct ckpt_format *format;
};

/* What manifest.json says it is. */
#define CKPT_FORMAT "meg checkpoint"
enum { CKPT_VERSION = 1 };

/* The name of optimizer state in a file, as Megatron's distributed checkpoints have it. */
#define CKPT_OPTIM_PREFIX "optimizer.state."
enum { CKPT_NAME_CHARS = 160 };
static inline const char *ckpt_optim_name(char buf[CKPT_NAME_CHARS], const char *slot, const char *param)
{
    snprintf(buf, CKPT_NAME_CHARS, CKPT_OPTIM_PREFIX "%s.%s", slot, param);
    return buf;
}

static inline bool ckpt_is_optim_name(const char *name)
{
    return !strncmp(name, CKPT_OPTIM_PREFIX, sizeof CKPT_OPTIM_PREFIX - 1);
}

/* ---- rename.c: how a format names what we call otherwise ---- */

/* How a tensor of theirs lies in ours.  In ours, qkv rows are, by group, queries, a key, a value. */
enum ckpt_remap {
    CKPT_SAME,
    CKPT_TRANSPOSED, /* [in, out] where ours is [out, in] */
    CKPT_QKV,        /* rows q of all heads, k of all, v of all */
    CKPT_QKV_TRANSPOSED,
    CKPT_QKV_INTERLEAVED, /* rows of a head: q, k, v of its first channel, then of its second */
    CKPT_Q,               /* one of the three, of all heads */
    CKPT_K,
    CKPT_V,
    CKPT_GATE, /* the upper or the lower half of ours */
    CKPT_UP,
    CKPT_GATE_UP /* both halves, and each is cut over tensor-parallel ranks */
};

/* # stands for the number of the layer in both names. */
struct ckpt_rename {
    const char *native, *foreign;
    enum ckpt_remap remap;
};

/*
 * Names not in rename are the same as ours; one of ours with several rows is made of several of
 * theirs.  Where prefix is not NULL it may be missing from all of their names.  ignored: tensors
 * that hold no weights.  Both lists end with { 0 } or NULL.
 */
struct ckpt_format {
    const char *name;
    const struct ckpt_rename *rename;
    const char *prefix;
    const char *const *ignored;
};

/* Whether row is about our name; then theirs in buf, without the prefix when drop_prefix. */
bool ckpt_foreign_name(const struct ckpt_format *f, const struct ckpt_rename *row, const char *ours, bool drop_prefix,
                       char buf[CKPT_NAME_CHARS]);
bool ckpt_is_ignored(const struct ckpt_format *f, const char *theirs);

/* ---- tensor_remap.c: how theirs lies in ours ---- */

/* A tensor of tensor-parallel rank i of n, the vocabulary padded to vocab rows. */
struct ckpt_tp_shard {
    const struct meg_gpt_conf *model;
    int64_t tp_rank, tp_size, vocab_rows;
};

/* The shape of theirs; returned: its dimensions. */
int ckpt_foreign_shape(int64_t dim[2], const struct ckpt_tp_shard *cut, const struct meg_param *row,
                       enum ckpt_remap how);

/*
 * n rows of theirs, which has [rows, cols] (transposed: [cols, rows]), and where they are in ours:
 * row src + i step of theirs is row to + i / block stride + i % block of ours, columns from col on.
 */
struct ckpt_row_map {
    int64_t n, src_row, src_step, dst_row, dst_block, dst_stride;
    int64_t rows, cols, col, native_cols;
    bool is_transposed;
};
/* The pieces of one tensor of theirs; their number. */
int ckpt_row_maps(struct ckpt_row_map out[3], const struct ckpt_tp_shard *cut, const struct meg_param *row,
                  enum ckpt_remap how);
/* Where row i of a piece begins in ours. */
int64_t ckpt_native_row(const struct ckpt_row_map *p, int64_t i);
/* Rows [first, first + n) of a piece as f32, out [n, p->cols]; n is at most CKPT_ROWS_MAX; a transposed piece
 * has step 1. */
enum { CKPT_ROWS_MAX = 16 };
void ckpt_rows_from_foreign(float *out, const void *theirs, const char *dtype, const struct ckpt_row_map *p,
                            int64_t first, int64_t n);
void ckpt_to_foreign(float *theirs, const float *ours, const struct ckpt_row_map *p);

/* Numbers of a type that can be widened to f32 without loss: F32, BF16, F16. */
bool ckpt_is_float(const char *dtype);
void ckpt_to_f32(float *out, const void *in, const char *dtype, int64_t n);
/* And back, to nearest even. */
void ckpt_from_f32(void *out, enum meg_dtype dtype, const float *in, int64_t n);

/* ---- folder.c: names in SAVE ---- */

#define CKPT_TRACKER "latest_checkpointed_iteration.txt"

/* DIR/NAME, malloc'ed. */
char *ckpt_path(const char *dir, const char *name);
/* "iter_0000100" or "release", with suffix, into buf of 64; returned. */
const char *ckpt_folder_name(char buf[64], int64_t iteration, const char *suffix);
bool ckpt_path_exists(const char *dir, const char *name);
/* Write the file DIR/NAME, as meg_write_file does. */
int ckpt_write_text(const char *dir, const char *name, const struct meg_str *text, struct meg_err *e);
/* What the tracker says. */
int ckpt_read_tracker(const char *dir, int64_t *iteration, struct meg_err *e);
bool ckpt_has_iterations(const char *dir);
/* Iterations with a folder in dir that are older than one, in order, malloc'ed; their number. */
int ckpt_list_older(int64_t **out, const char *dir, int64_t than);
/* The newest iteration with a manifest, for a SAVE without tracker; MEG_ENOENT: none has. */
int ckpt_newest_complete(const char *dir, int64_t *iteration, struct meg_err *e);
/* The folder of an iteration in SAVE, malloc'ed; MEG_ENOENT with those that are there. */
int ckpt_find_iteration(char **path, const char *dir, int64_t iteration, struct meg_err *e);
/*
 * Complete or undo commits that a kill interrupted, and remove the temporary names of killed saves.  The
 * caller holds the lock of SAVE, so nobody is writing under them.
 */
int ckpt_recover(const char *dir, struct meg_err *e);
/* Tidy SAVE, which is created when missing, and create the folder that an iteration is written into; malloc'ed. */
int ckpt_make_folder(char **tmp, const char *dir, int64_t iteration, struct meg_err *e);
/* Give the complete folder tmp the name of its iteration, and point the tracker to it. */
int ckpt_commit(const char *dir, const char *tmp, int64_t iteration, struct meg_err *e);
/* Remove checkpoints older than iteration but the keep-1 newest of them, and never the one called loaded. */
void ckpt_keep_last(const char *dir, int64_t iteration, int64_t keep, int64_t loaded);

/* ---- shard_ranges.c: what a rank has ---- */

/* n elements of a tensor from global on, which in a slot are those from at on. */
struct ckpt_shard_range {
    int64_t tensor_offset, shard_offset, n;
};

/* A walk over what a slot holds of elements [first, first + n) of a row's tensor, in order. */
struct ckpt_range_iter {
    const struct meg_param *row;
    const struct meg_elem_range *range; /* from the one that is next */
    struct meg_elem_range full;
    int64_t nranges, skipped; /* elements of the slot before it */
    int64_t period, at, end;
};
void ckpt_range_iter_begin(struct ckpt_range_iter *w, const struct meg_params *p, const struct meg_ckpt_shard *slot,
                           const struct meg_param *row, int64_t first, int64_t n);
bool ckpt_range_iter_next(struct ckpt_range_iter *w, struct ckpt_shard_range *out);

/* The elements of a slot that this rank writes: others may have the same. */
struct meg_elem_range ckpt_write_range(const struct meg_params *p, const struct meg_mesh *mesh,
                                       const struct meg_ckpt_shard *slot);
/* Cut a stretch to them; whether anything is left. */
bool ckpt_clip_range(struct ckpt_shard_range *s, struct meg_elem_range share);

/* ---- weights.c ---- */

#define CKPT_HF_WEIGHTS "model"
int ckpt_write_hf_weights(const char *dir, const struct ckpt_format *format, const struct meg_ckpt_save_args *s,
                          const struct meg_ckpt_hf_conf *to, struct meg_err *e);

/* ---- tokenizer.c ---- */

/* Add an id to a set; one that is negative or not below vocab_size is left out. */
void ckpt_add_id(struct meg_ids *set, int64_t id, int64_t vocab_size);
/* The same with a JSON value: an id, or a list of them. */
void ckpt_add_ids(struct meg_ids *set, const json_t *value, int64_t vocab_size);
/* One id as a number, several as a list. */
json_t *ckpt_ids_json(const struct meg_ids *set);

/* ---- consensus.c ---- */

/* Every rank gives its result: 0 where all succeeded, else the first failed rank's error on all. */
int ckpt_agree(struct meg_comm *world, int r, struct meg_err *e);

/* ---- tensors.c: the tensor files of a checkpoint, which every rank knows ---- */

struct ckpt_file {
    char name[64];
    struct meg_st_tensor *t; /* placed; without data */
    int n;
    struct meg_str header;
    int64_t nbytes; /* of the file */
};
/* Bytes of memory and their place in a file. */
struct ckpt_extent {
    int file;
    int64_t offset;
    const char *data;
    size_t nbytes;
};
/* The files in which s keeps weights and optimizer state, malloc'ed; their number. */
int ckpt_list_files(struct ckpt_file **out, const struct meg_ckpt_save_args *s);
void ckpt_free_files(struct ckpt_file *f, int n);
/* What this rank writes of them, file by file and no extent longer than CKPT_CHUNK; malloc'ed. */
int64_t ckpt_list_extents(struct ckpt_extent **out, const struct ckpt_file *f, int nfiles,
                          const struct meg_ckpt_save_args *s);

/* ---- checksum.c ---- */

/* Tensors are hashed in pieces of this many bytes. */
enum { CKPT_CHUNK = 16 << 20, CKPT_HEX = 32 };

struct ckpt_chunk {
    const struct meg_st_tensor *t;
    int64_t first, n; /* bytes of the tensor */
};
/* Append the chunks of n tensors.  A tensor without elements has one chunk, of no bytes. */
void ckpt_add_chunks(struct ckpt_chunk **chunk, int64_t *nchunks, const struct meg_st_tensor *t, int n);

/* A tensor of a file that is mapped. */
struct ckpt_mapped_tensor {
    const struct meg_st *st;
    const struct meg_st_tensor *t;
};
/*
 * Compare tensors with their checksums, those of manifest or where that is NULL of their containers: rank i
 * of ranks takes every ranks-th chunk.  MEG_EFORMAT names one that differs.
 */
int ckpt_verify_checksums(const json_t *manifest, const struct ckpt_mapped_tensor *m, int n, int rank, int ranks,
                          struct meg_err *e);

/* ---- open.c ---- */

/* Open one more safetensors file of the folder. */
int ckpt_add_file(struct meg_ckpt *c, const char *name, struct meg_err *e);
/* The tensor called name of a tensor-parallel rank and the file it is in; NULL: none. */
const struct meg_st_tensor *ckpt_find_tensor(const struct meg_ckpt *c, int64_t tp, const char *name,
                                             const struct meg_st **st);

/* Append to e the newest iteration before that of c that can be opened, and the option that takes it. */
void ckpt_suggest_older(const struct meg_ckpt *c, struct meg_err *e);

void ckpt_close_files(struct meg_ckpt *c);

/* ---- native.c, hf.c, megatron.c: what a folder holds, c->path being set ---- */

int ckpt_open_native(struct meg_ckpt *c, struct meg_err *e);
int ckpt_open_hf(struct meg_ckpt *c, struct meg_err *e);
int ckpt_open_megatron(struct meg_ckpt *c, struct meg_err *e);
/*
 * A view of c with the files of its optimizer state in place of the weights': opened when they are
 * wanted, since weights are loaded without.  Ends with ckpt_close_files, before c is closed.
 */
int ckpt_open_optim(struct meg_ckpt *out, const struct meg_ckpt *c, struct meg_err *e);
/* ---- gpt2.c, llama.c ---- */

/* A family of Hugging Face's: model types that share names and settings. */
struct ckpt_hf_family {
    const char *const *model_types; /* up to NULL; the first is written */
    const struct ckpt_format *format;
    int (*read_config)(struct meg_gpt_conf *m, const json_t *config, const char *from, struct meg_err *e);
    /* What keeps the family from expressing a model; NULL: nothing. */
    const char *(*unsupported_reason)(const struct meg_gpt_conf *m);
    json_t *(*make_config)(const struct meg_gpt_conf *m); /* but for what is the same in all families */
};
extern const struct ckpt_hf_family ckpt_hf_gpt2, ckpt_hf_llama;

/* ---- model_load.c ---- */

/* Whether the files hold the weights p of m, and no others: all that is wrong in one message. */
int ckpt_match_model(const struct meg_ckpt *c, const struct meg_gpt_conf *m, const struct meg_params *p,
                     struct meg_err *e);

#endif
