/* internal.h - declarations private to lib/ckpt: the open checkpoint, remapping of tensors, files, ranges. */
#ifndef MEG_CKPT_INTERNAL_H
#define MEG_CKPT_INTERNAL_H
#include <stdio.h>
#include <string.h>
#include "base/strtab.h"
#include "ckpt/given_model.h"
#include "ckpt/safetensors.h"

/*
 * A tensor and its file.  If this rank received the metadata from rank 0 (is_received), the file is not mapped until
 * meg_st_map is called.
 */
struct ckpt_mapped_tensor {
    struct meg_st *st;
    const struct meg_st_tensor *t;
};

/*
 * The tensors in the files of one tensor-parallel rank, indexed by name.  If the tensors are unsharded, all files
 * belong to rank 0.
 */
struct ckpt_tensor_index {
    struct meg_strtab names;
    struct ckpt_mapped_tensor *v; /* [names.n] */
};

/* An open checkpoint of any format. */
struct meg_ckpt {
    char *path;     /* directory of the weights */
    char *save_dir; /* SAVE directory that contains the iteration; NULL: the user named `path` itself */
    int64_t step;   /* the iteration opened in save_dir; INT64_MAX: the release, or an unreadable tracker */
    bool is_native;
    bool is_received; /* this rank received the metadata from rank 0; a file is mapped when it is first read */
    int64_t iteration, vocab_size;
    int32_t bos;                         /* beginning-of-sequence id, or -1 */
    struct meg_ids eos_ids;              /* end-of-sequence ids, end-of-document first */
    char *options;                       /* text written by meg_opt_dump */
    const struct meg_given_model *given; /* borrowed until c is open; NULL: none */
    json_t *state;    /* state.json, its member "run" (torch_dist), or Hugging Face's config.json; NULL: none */
    json_t *manifest; /* "tensors" of manifest.json; NULL: not a native checkpoint */
    char *tok_file[MEG_NUM_TOK_FILES];      /* paths; NULL: no such file */
    char *extra_file[MEG_CKPT_EXTRA_FILES]; /* paths; NULL: no such file */
    struct meg_st **file; /* [nfiles] files of the weights; file i belongs to tensor-parallel rank i mod tp */
    int nfiles;
    struct ckpt_tensor_index *index; /* [tp]; NULL until ckpt_index_tensors */
    struct ckpt_dist *dist;          /* the directory of a torch_dist checkpoint; NULL: another format */
    /*
     * The next four members are read from Megatron's files.  In other formats, or if the files lack them, they are
     * MEG_CKPT_RELEASE, -1 and MEG_UNSET.
     */
    int64_t source_iteration;               /* iteration of the run that wrote the weights */
    int64_t consumed_samples;               /* training samples that this run had consumed */
    int64_t seq_length, decoder_seq_length; /* --seq-length and --decoder-seq-length of this run */
    int64_t tp;                             /* tensor-parallel ranks of the files; 1: unsharded */
    int64_t vocab_rows;                     /* rows of the word embedding with padding; 0: the format has no padding */
    bool lacks_head;                        /* the files have none of the parameters format->head */
    const struct ckpt_format *format;
};

/* "format" and "version" of manifest.json. */
#define CKPT_FORMAT "meg checkpoint"
enum { CKPT_VERSION = 1 };

/* Names of optimizer state in the files, as in Megatron's distributed checkpoints: optimizer.state.STATE.PARAMETER. */
#define CKPT_OPTIM_PREFIX "optimizer.state."
enum { CKPT_NAME_CHARS = 160 };
static inline const char *ckpt_optim_name(char buf[CKPT_NAME_CHARS], const char *slot, const char *param)
{
    snprintf(buf, CKPT_NAME_CHARS, CKPT_OPTIM_PREFIX "%s.%s", slot, param);
    return buf;
}

static inline bool ckpt_is_optim_name(const char *name)
{
    return strncmp(name, CKPT_OPTIM_PREFIX, sizeof CKPT_OPTIM_PREFIX - 1) == 0;
}

/* ---- lost_options.c ---- */

/* Return whether a model option affects only training. */
bool ckpt_is_for_training(const char *option);
/*
 * Compare a model with the model that a format's reader returns after the format's writer.  Return the number of
 * options that affect the model and have different values.  Unless out is NULL, append the first CKPT_MAX_LISTED of
 * them.
 */
enum { CKPT_MAX_LISTED = 3 };
int ckpt_list_lost_options(struct meg_str *out, const struct meg_model_conf *m, const struct meg_model_conf *back);
/* Return MEG_EUSAGE, with the names and values of the options, if options are lost.  `format` is a phrase. */
int ckpt_refuse_lost_options(const struct meg_model_conf *m, const struct meg_model_conf *back, const char *format,
                             struct meg_err *e);

/* ---- rename.c: tensor names of other formats ---- */

/*
 * These values describe how a foreign tensor maps to a native tensor.  Foreign tensors are in the format of Hugging
 * Face or Megatron.  The native qkv tensor has these rows for each query group, in this order: the queries, the key,
 * the value.  The kv tensor of cross-attention has no queries.
 */
enum ckpt_remap {
    CKPT_SAME,
    CKPT_TRANSPOSED, /* [in, out] instead of [out, in] */
    CKPT_QKV,        /* all queries, then all keys, then all values */
    CKPT_QKV_TRANSPOSED,
    CKPT_QVK_BLOCKS, /* CKPT_NUM_BLOCKS blocks: the queries, then the values, then the keys of their heads (CodeGen) */
    CKPT_QKV_INTERLEAVED, /* rows of a head: q, k, v of its first channel, q, k, v of its second channel, ... */
    CKPT_Q,               /* all queries; CKPT_K: all keys; CKPT_V: all values */
    CKPT_K,
    CKPT_V,
    CKPT_GATE, /* the first half of the native rows; CKPT_UP: the second */
    CKPT_UP,
    CKPT_REPLICATED /* the tensor-parallel ranks have replicas of a tensor that is natively sharded */
};

/*
 * A row of the rename table.  # is the layer number in both names; in the foreign name, #-1 is the number of the
 * previous layer.  If the native name does not contain #, # in the foreign name is the number of layers.
 */
struct ckpt_rename {
    const char *native, *foreign;
    enum ckpt_remap remap;
};

/*
 * The tensor names of a format.  A native tensor that is not in the rename table has the same name in the format.  If
 * several rows have the same native name, the native tensor is composed of several foreign tensors.
 */
struct ckpt_format {
    const char *name;
    const struct ckpt_rename *rename; /* list that ends with { 0 } */
    const char *prefix;               /* prefix that foreign names may lack; NULL: none */
    const char *const *ignored;       /* foreign names of tensors that are not weights; list that ends with NULL */
    const struct ckpt_rename *copies; /* foreign tensors that are equal to a native tensor; ends with { 0 }, or NULL */
    const char *advice;               /* end of the message if a tensor is missing; NULL: none */
    const char *const *head;        /* native names of the language-model head, which files may lack; ends with NULL */
    const char *const *other_heads; /* foreign names of heads to ignore if this head is missing; ends with NULL */
    /* Return whether an export writes a copy of the word embedding as the output weight; NULL: never. */
    bool (*copies_output_weight)(const struct meg_model_conf *m);
};

/* open.c: return the value of an option in a dump, malloc'ed; "unset" if the dump does not have the option. */
char *ckpt_option_value(const char *dump, const char *name);

/*
 * Match `native` with the pattern row->native.  If it matches, print the foreign name of the tensor to buf and return
 * true; num_layers is the number of layers of the model (struct ckpt_rename).  If drop_prefix is true, the foreign name
 * is printed without the prefix f->prefix.  Return false if `native` does not match, or if row->foreign has #-1 and the
 * layer number is 0.
 */
bool ckpt_foreign_name(const struct ckpt_format *f, const struct ckpt_rename *row, const char *native,
                       int64_t num_layers, bool drop_prefix, char buf[CKPT_NAME_CHARS]);
bool ckpt_is_ignored(const struct ckpt_format *f, const char *foreign);
/* Return the native name of the tensor to which `foreign` must be equal, or NULL if f->copies does not list it. */
const char *ckpt_copied_name(const struct ckpt_format *f, const char *foreign);

/* ---- tensor_remap.c: map rows of foreign tensors to rows of native tensors ---- */

/*
 * The tensor-parallel shard that a foreign tensor contains; vocab_rows is the number of rows of the unsharded word
 * embedding, with padding.
 */
struct ckpt_tp_shard {
    const struct meg_model_conf *model;
    int64_t tp_rank, tp_size, vocab_rows;
};

/* Compute the shape of a foreign tensor; return its number of dimensions. */
int ckpt_foreign_shape(int64_t dim[MEG_PARAM_MAXDIM], const struct ckpt_tp_shard *shard, const struct meg_param *row,
                       enum ckpt_remap remap);

/*
 * A mapping of n rows of a foreign tensor to rows of a native tensor with native_cols columns.  Foreign row S(i)
 * becomes the columns [col, col + cols) of native row D(i), for i in [0, n):
 *   S(i) = src_row + i * src_step
 *   D(i) = dst_row + i / dst_block * dst_stride + i % dst_block
 * The foreign tensor is stored as [rows, cols], or as [cols, rows] if is_transposed.
 */
struct ckpt_row_map {
    int64_t n, src_row, src_step, dst_row, dst_block, dst_stride;
    int64_t rows, cols, col, native_cols;
    bool is_transposed;
};
/* List the row maps of one foreign tensor in out, and return their number. */
enum { CKPT_NUM_BLOCKS = 4, CKPT_MAX_ROW_MAPS = 3 * CKPT_NUM_BLOCKS };
int ckpt_row_maps(struct ckpt_row_map out[CKPT_MAX_ROW_MAPS], const struct ckpt_tp_shard *shard,
                  const struct meg_param *row, enum ckpt_remap remap);
/* Return the element offset in the native tensor at which row i of the map begins. */
int64_t ckpt_native_row(const struct ckpt_row_map *p, int64_t i);
/* Convert rows [first, first + n) of the map to f32, out [n, p->cols]; n is at most CKPT_ROWS_MAX. */
enum { CKPT_ROWS_MAX = 16 };
void ckpt_rows_from_foreign(float *out, const void *foreign, const char *dtype, const struct ckpt_row_map *p,
                            int64_t first, int64_t n);
/* Copy the rows of the map from a native tensor to a foreign one; both f32. */
void ckpt_to_foreign(float *foreign, const float *native, const struct ckpt_row_map *p);

/* Return whether weights can have this dtype: F32, BF16 or F16. */
bool ckpt_is_float(const char *dtype);
/* Convert n elements of a dtype that ckpt_is_float accepts to f32. */
void ckpt_to_f32(float *out, const void *in, const char *dtype, int64_t n);

/* ---- folder.c: the files and directories in SAVE ---- */

#define CKPT_TRACKER "latest_checkpointed_iteration.txt"

/* Return DIR/NAME, malloc'ed. */
char *ckpt_path(const char *dir, const char *name);
bool ckpt_path_exists(const char *dir, const char *name);
/* Write text to the file DIR/NAME with meg_write_file. */
int ckpt_write_text(const char *dir, const char *name, const struct meg_str *text, struct meg_err *e);
/* Read the iteration, or MEG_CKPT_RELEASE, from the tracker.  Returns MEG_EFORMAT if the tracker has neither. */
int ckpt_read_tracker(const char *dir, int64_t *iteration, struct meg_err *e);
bool ckpt_has_iterations(const char *dir);
/*
 * List in *out, in ascending order, the iterations less than `than` that have a directory in dir.  Return their number.
 * The caller frees *out.
 */
int ckpt_list_older(int64_t **out, const char *dir, int64_t than);
/*
 * Find the newest iteration with a manifest in a SAVE directory without a tracker.  Returns MEG_ENOENT if there is
 * none.
 */
int ckpt_newest_complete(const char *dir, int64_t *iteration, struct meg_err *e);
/*
 * Find the directory of an iteration in SAVE, also if its commit was interrupted; *path is malloc'ed.  If there is no
 * such directory, returns MEG_ENOENT with a message that lists existing iterations.
 */
int ckpt_find_iteration(char **path, const char *dir, int64_t iteration, struct meg_err *e);
/*
 * Create SAVE if it is missing.  Complete or undo interrupted commits in SAVE, and remove leftovers of killed saves.
 * Create the temporary directory for an iteration; *tmp is malloc'ed.
 */
int ckpt_make_folder(char **tmp, const char *dir, int64_t iteration, struct meg_err *e);
/* Rename the complete directory tmp to the name of its iteration, and update the tracker. */
int ckpt_commit(const char *dir, const char *tmp, int64_t iteration, struct meg_err *e);
/*
 * Remove checkpoints older than `iteration`.  The checkpoint of iteration `loaded` and the `keep` - 1 newest of the
 * others remain.  A checkpoint that cannot be removed causes a warning.
 */
void ckpt_keep_last(const char *dir, int64_t iteration, int64_t keep, int64_t loaded);

/* ---- shard_ranges.c: the elements of a tensor that a shard contains ---- */

/* A range of n elements.  It begins at tensor_offset in a tensor and at shard_offset in the data of a shard. */
struct ckpt_shard_range {
    int64_t tensor_offset, shard_offset, n;
    bool is_tp_replica; /* all tensor-parallel ranks of the parameter have these elements */
};

/*
 * Iterator over the elements [first, first + n) of a tensor: returns, in ascending order, the ranges of elements that a
 * shard contains.
 */
struct ckpt_range_iter {
    const struct meg_param *row;
    const struct meg_elem_range *range; /* [nranges] current and later ranges of the shard */
    struct meg_elem_range full;         /* all elements of the flat buffer, for a shard without ranges */
    int64_t nranges, skipped;           /* skipped: elements of the shard before the current range */
    int64_t i, num_param_ranges;        /* index and number of the ranges of this rank's shard of the parameter */
    int64_t at, end;                    /* [at, end): elements of the tensor that are not yet visited */
};
void ckpt_range_iter_begin(struct ckpt_range_iter *it, const struct meg_params *p, const struct meg_ckpt_shard *shard,
                           const struct meg_param *row, int64_t first, int64_t n);
bool ckpt_range_iter_next(struct ckpt_range_iter *it, struct ckpt_shard_range *out);

/*
 * Compute the ranges of shard offsets that this rank writes, one for the parameters of each data-parallel group.  If n
 * ranks hold the same elements, each of them writes about 1/n of the elements.
 */
void ckpt_write_ranges(struct meg_elem_range write[MEG_DP_GROUPS], const struct meg_params *p,
                       const struct meg_mesh *mesh, const struct meg_ckpt_shard *shard);
/* Restrict s to the shard offsets in `write`; return whether any elements remain. */
bool ckpt_clip_range(struct ckpt_shard_range *s, struct meg_elem_range write);

/* ---- foreign_tensor.c ---- */

/*
 * Build the foreign tensor of a parameter as f32, in the shape of ckpt_foreign_shape.  The weights are read from
 * s->reader or, if that is NULL, from s->weights, which must be unsharded and f32.  Padding rows of the vocabulary are
 * copies of the last vocabulary row; in a bias, they are 0.
 */
int ckpt_build_foreign(float *foreign, const struct meg_ckpt_save_args *s, const struct ckpt_tp_shard *shard,
                       const struct meg_param *row, enum ckpt_remap remap, struct meg_err *e);

/* ---- missing_head.c: weights without the language-model head ---- */

bool ckpt_has_tensor_with_prefix(const struct meg_ckpt *c, const char *prefix);
/* Return whether a parameter belongs to the language-model head and the files lack this head. */
bool ckpt_is_missing_head(const struct meg_ckpt *c, const char *native);
/* Return whether a tensor is ignored because it belongs to another head, in files without language-model head. */
bool ckpt_is_other_head(const struct meg_ckpt *c, const char *foreign);
/* Append the native names of the parameters of the missing head, separated by commas. */
void ckpt_list_missing_head(struct meg_str *out, const struct meg_ckpt *c);

/* ---- tokenizer_files.c ---- */

/* Add id to a set if 0 <= id < vocab_size. */
void ckpt_add_id(struct meg_ids *set, int64_t id, int64_t vocab_size);
/* Add the ids of a JSON value: an integer, or the integers of an array.  Other values are ignored. */
void ckpt_add_ids(struct meg_ids *set, const json_t *value, int64_t vocab_size);
/* Return a set of one id as a JSON integer, and any other set as an array. */
json_t *ckpt_ids_json(const struct meg_ids *set);

/* ---- consensus.c ---- */

/*
 * Combine the results r of all ranks; collective.  If no rank failed, return 0.  Otherwise return the code of the
 * lowest rank that failed, and set *e to its message.  On the other ranks, "rank N: " precedes the message.
 */
int ckpt_agree(struct meg_comm *world, int r, struct meg_err *e);

/* ---- tensors.c: the tensor files of a checkpoint (the same on every rank), and the bytes that a rank writes ---- */

/*
 * Return the dtype of a parameter in a shard, and the address of element i of a shard.  The weights have some
 * parameters in f32 (params/param.h).
 */
static inline enum meg_dtype ckpt_shard_dtype(const struct meg_ckpt_shard *shard, const struct meg_param *row)
{
    return shard->name ? shard->dtype : meg_param_dtype(row, shard->dtype);
}

static inline void *ckpt_shard_element(const struct meg_ckpt_shard *shard, const struct meg_params *p, int64_t i)
{
    const struct meg_elem_range full = { 0, p->flat_numel };

    if (shard->name)
        return meg_element(shard->data, i, shard->dtype);
    return meg_params_shard_element(p, shard->ranges ? shard->ranges : &full, shard->ranges ? shard->nranges : 1,
                                    shard->data, i, shard->dtype);
}

/* Return whether a checkpoint has the elements of a parameter in a shard.  It has no optimizer state of frozen ones. */
static inline bool ckpt_has_tensor(const struct meg_ckpt_shard *shard, const struct meg_param *row)
{
    return !shard->name || !row->is_frozen;
}

struct ckpt_file {
    char name[64];
    struct meg_st_tensor *t; /* [n] file_offset is set; data is not set */
    int n;
    struct meg_str header;
    int64_t nbytes; /* size of the file */
};
/*
 * A range of bytes to write to a file.  With a reader, data is NULL, and the bytes are those of the elements from
 * `first` on of the parameter `row`.
 */
struct ckpt_extent {
    int file;
    int64_t offset;
    const char *data;
    size_t nbytes;
    const struct meg_param *row;
    int64_t first;
};
/*
 * List the files of the weights and the optimizer state in *out, which the caller frees with ckpt_free_files.  Return
 * their number.
 */
int ckpt_list_files(struct ckpt_file **out, const struct meg_ckpt_save_args *s);
void ckpt_free_files(struct ckpt_file *f, int n);
/*
 * List in *out the byte ranges that this rank writes; the caller frees *out.  Return the number of ranges.  They are
 * ordered by file and have at most CKPT_CHUNK bytes each.
 */
int64_t ckpt_list_extents(struct ckpt_extent **out, const struct ckpt_file *f, int nfiles,
                          const struct meg_ckpt_save_args *s);

/* ---- checksum.c ---- */

/* Tensors are hashed in chunks of at most CKPT_CHUNK bytes. */
enum { CKPT_CHUNK = 16 << 20, CKPT_HEX = 32 /* digits of a checksum */ };

struct ckpt_chunk {
    const struct meg_st_tensor *t;
    int file;         /* index of the tensor's file */
    int64_t first, n; /* byte range of the tensor */
};
/* Append the chunks of n tensors of a file.  A tensor without elements has one empty chunk. */
void ckpt_add_chunks(struct ckpt_chunk **chunk, int64_t *nchunks, const struct meg_st_tensor *t, int n, int file);

/*
 * Verify n tensors.  If `manifest` is not NULL, compare each chunk with its checksum in the manifest.  Otherwise
 * compare the ZIP member of each tensor with the member's CRC-32; tensors without a stored CRC-32 are not checked.
 * Each of nranks ranks checks one range of consecutive chunks or tensors.  Files that are not mapped yet are mapped
 * only if they contain a chunk of the range.  Returns MEG_EFORMAT, with a message that names the tensor, if a checksum
 * differs or the manifest has a wrong number of checksums.
 */
int ckpt_verify_checksums(const json_t *manifest, const struct ckpt_mapped_tensor *m, int n, int rank, int nranks,
                          struct meg_err *e);

/* ---- open.c ---- */

/*
 * Open the tensor file c->path/NAME and append it to c->file, unless the file is already open.  Returns MEG_EFORMAT if
 * `name` contains a slash.  For this message, `list` is the file that refers to NAME, and `tensor` is the tensor that
 * it refers to.
 */
int ckpt_add_file(struct meg_ckpt *c, const char *name, const char *list, const char *tensor, struct meg_err *e);
/*
 * Index the tensors of all files by name, so that ckpt_find_tensor need not search each file.  Returns MEG_EFORMAT if
 * two files of one tensor-parallel rank have a tensor of the same name.
 */
int ckpt_index_tensors(struct meg_ckpt *c, struct meg_err *e);
/* Find a tensor of tensor-parallel rank tp by name and set *st to its file.  Return NULL if there is no such tensor. */
const struct meg_st_tensor *ckpt_find_tensor(const struct meg_ckpt *c, int64_t tp, const char *name,
                                             struct meg_st **st);

/*
 * Append to e->msg a suggestion: the newest older iteration in c->save_dir that can be opened, and the option to select
 * it.  If there is no such iteration, e->msg is not changed.
 */
void ckpt_suggest_older(const struct meg_ckpt *c, struct meg_err *e);

void ckpt_close_files(struct meg_ckpt *c);

/* ---- native.c, hf/hf.c, megatron/megatron.c: open the directory c->path (torch_dist/open.h, too) ---- */

int ckpt_open_native(struct meg_ckpt *c, struct meg_err *e);
/*
 * Check that the opened files have the tensors of the optimizer state (is_optim) or of the weights with the dtypes,
 * shapes and offsets of manifest.json.  Returns 0 for other formats, which have no manifest.
 */
int ckpt_check_manifest(const struct meg_ckpt *c, bool is_optim, struct meg_err *e);
/* Return the metadata of a native checkpoint as a JSON object. */
json_t *ckpt_pack_native(const struct meg_ckpt *c);
/* Set c from an object of ckpt_pack_native.  The members of c must have their default values.  No file is opened. */
int ckpt_unpack_native(struct meg_ckpt *c, const json_t *packed, struct meg_err *e);
int ckpt_open_hf(struct meg_ckpt *c, struct meg_err *e);
int ckpt_open_megatron(struct meg_ckpt *c, struct meg_err *e);
/*
 * Open the optimizer state of c.  Set *out to a shallow copy of c with the optimizer's files instead of the weights'
 * files; the copy has no files if c has no optimizer state.  After success, the caller must close *out with
 * ckpt_close_files before c is closed.
 */
int ckpt_open_optim(struct meg_ckpt *out, const struct meg_ckpt *c, struct meg_err *e);
/* ---- mapped_tensor.c ---- */

/*
 * Remove the pages of a tensor's mapped file from the memory of the process (meg_mmap_drop), after the tensor was read.
 * Loops that read a tensor in order call meg_mmap_drop after every CKPT_DROP_NBYTES bytes or less.
 */
enum { CKPT_DROP_NBYTES = 1 << 20 };
void ckpt_drop_pages(const struct meg_st *st, const struct meg_st_tensor *t);
/* Return whether two tensors have the same dtype and bytes; false if memory allocation fails. */
bool ckpt_is_equal(struct ckpt_mapped_tensor a, struct ckpt_mapped_tensor b);

/* ---- match.c ---- */

/* A tensor in the files that contains a parameter or a part of a parameter; or one tile of such a tensor. */
struct ckpt_source {
    const struct meg_param *row;
    struct meg_st *st;
    const struct meg_st_tensor *t;
    const struct meg_st_tile *tile; /* NULL: all of t */
    enum ckpt_remap remap;
    struct ckpt_tp_shard tp;
};

struct ckpt_sources {
    struct ckpt_source *v;
    int n;
    int64_t cap;
};

/*
 * Find the sources of the weights, or of the optimizer state shard->name if `shard` is not NULL.  Returns MEG_EFORMAT
 * if a tensor is missing or mismatched, or if there are weights that the model does not have.  The caller frees out->v.
 * The elements of out->v refer to m.
 */
int ckpt_match_sources(struct ckpt_sources *out, const struct meg_ckpt *c, const struct meg_model_conf *m,
                       const struct meg_params *p, const struct meg_ckpt_shard *shard, struct meg_err *e);
/*
 * Check that the tensors of the files match the parameters p of model m in name, shape and dtype.  Otherwise returns
 * MEG_EFORMAT; the message lists as many of the differences as fit.
 */
int ckpt_match_model(const struct meg_ckpt *c, const struct meg_model_conf *m, const struct meg_params *p,
                     struct meg_err *e);

/* ---- load.c ---- */

/* The shard to fill. */
struct ckpt_target {
    const struct meg_params *p;
    const struct meg_ckpt_shard *shard;
};
/* Map the files of the sources that the shard requires. */
int ckpt_map_sources(const struct ckpt_target *to, const struct ckpt_sources *all, struct meg_err *e);
/* Verify this rank's part of the checksums of all tensors that the ranks read. */
int ckpt_check_sources(const struct meg_ckpt *c, const struct ckpt_sources *all, const struct meg_comm *world,
                       struct meg_err *e);
/* Copy the elements of a source, whose file is mapped, that the shard contains. */
int ckpt_copy_source(const struct ckpt_target *to, const struct ckpt_source *s, struct meg_err *e);

#endif
