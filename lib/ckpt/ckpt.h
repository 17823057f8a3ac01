/*
 * Checkpoints: a model, its optimizer state and what the run knew, in a folder that is there whole
 * or not at all.  meg-ckpt(5) describes the files.
 *
 *     SAVE/latest_checkpointed_iteration.txt      iteration of the newest, or "release"
 *     SAVE/iter_0000100/                          one checkpoint
 *         model-*.safetensors                     weights, whole global tensors, a file a section
 *         optim-*.safetensors                     optimizer state, the same
 *         model.safetensors.index.json            tensor -> file, as Hugging Face's
 *         vocab.json vocab.txt merges.txt tokenizer.model   the tokenizer's files, where it has any
 *         state.json                              options, iteration, the run's own state
 *         run.conf                                all options, those of the layout, too; only for people
 *         manifest.json                           place and checksums of all but run.conf; written last
 *     SAVE/release/                               the same without optimizer state: converted weights
 *     SAVE/done                                   the last iteration of the run is saved
 *
 * What can be loaded besides, as weights to begin with: a Hugging Face folder, config.json and its
 * safetensors or .bin files; and Megatron's SAVE/iter_0000100/mp_rank_TT[_PPP]/model_optim_rng.pt, at
 * any tensor and pipeline parallel sizes.
 */
#ifndef MEG_CKPT_CKPT_H
#define MEG_CKPT_CKPT_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "file/lock.h"
#include "model/gpt.h"
#include "optim/optim.h"
#include "option/opt.h"
#include "parallel/mesh.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

/*
 * Numbers that lie as the flat parameter buffer does (model/param.h), and which of them this rank has:
 * the weights, f32 main parameters, one kind of optimizer state.  Saving writes them and loading fills
 * them; parameter boundaries mean nothing to the spans.
 */
struct meg_ckpt_shard {
    const char *name; /* NULL: the weights; fp32_param, exp_avg, exp_avg_sq, momentum_buffer */
    void *data;       /* host memory: the elements of the spans, one span behind the other */
    enum meg_dtype dtype;
    /* Elements of the flat buffer, in order; NULL: all of it, which the ranks of mesh->dp_cp have alike. */
    const struct meg_elem_range *ranges;
    int nranges;
    /* With span: of copies ranks that have the same spans this is number copy; they share the writing. */
    int replica, nreplicas; /* 0 and 0: no other rank has them */
};

/* The slot of the f32 parameters behind weights of a narrower type. */
#define MEG_CKPT_MAIN_PARAMS "fp32_param"

/*
 * The tokenizer's files, read when a run begins: a save must not depend on files that others may
 * have moved since.  Starts as { 0 }.  MEG_ENOENT or MEG_EIO when one cannot be read.
 */
enum { MEG_CKPT_EXTRA_FILES = 3 };
extern const char
    *const meg_ckpt_extra_files[MEG_CKPT_EXTRA_FILES]; /* generation_config.json and what else is carried along */
struct meg_ckpt_tokenizer {
    struct meg_str file[MEG_NUM_TOK_FILES];          /* s NULL: there is none */
    struct meg_str extra_file[MEG_CKPT_EXTRA_FILES]; /* the same */
    int32_t eod;                                     /* id that ends a document, or -1 */
    int32_t bos;                                     /* id that begins a text, or -1 */
    struct meg_ids eos_ids;                          /* ids that end a continuation besides eod */
    bool is_not_spm_bpe;                             /* as in struct meg_tok_export_files */
};
int meg_ckpt_tokenizer_read(struct meg_ckpt_tokenizer *t, const struct meg_tok_conf *c, const struct meg_tokenizer *tok,
                            struct meg_err *e);
struct meg_ckpt;
/* Add what a checkpoint says besides: the ids that begin and end texts, and the files of meg_ckpt_extra_files.  Nothing is
 * added where its ids do not have eod among those that end a text: its tokenizer is another one. */
int meg_ckpt_tokenizer_inherit(struct meg_ckpt_tokenizer *t, const struct meg_ckpt *c, struct meg_err *e);
/*
 * Add what a Hugging Face folder has besides, made from the files of c, unless tokenizer.json and
 * tokenizer_config.json are there: those two and special_tokens_map.json.  Where tokenizer.json cannot express the
 * tokenizer there is a warning, and it is not added.  eod and bos become the tokenizer's where they are -1.
 */
void meg_ckpt_tokenizer_export(struct meg_ckpt_tokenizer *t, const struct meg_tok_conf *c);
void meg_ckpt_tokenizer_free(struct meg_ckpt_tokenizer *t);

/* ---- saving ------------------------------------------------------------------------------------- */

/* What is saved; all of it borrowed for the call. */
struct meg_ckpt_save_args {
    const char *dir;                  /* SAVE; made where missing */
    const struct meg_lock *lock;      /* of dir, on rank 0, checked before anything is replaced; NULL: none */
    int64_t iteration;                /* MEG_CKPT_RELEASE: weights that begin a run */
    const char *options;              /* of meg_opt_dump, those that do not depend on the layout */
    const char *run_conf;             /* all options, for people; NULL: none are kept */
    const struct meg_gpt_conf *model; /* checked */
    const struct meg_mesh *mesh;
    const struct meg_params *params; /* placed on mesh */
    struct meg_ckpt_shard weights;
    const struct meg_ckpt_shard *optim; /* optimizer state: nslots of them */
    int noptim;
    const struct meg_ckpt_tokenizer *tok; /* NULL: none is kept */
    const json_t *state;                  /* the run's own state, an object; NULL: none */
    int64_t keep_last;                    /* remove older checkpoints but this many; 0: keep all */
    int64_t loaded_iteration;             /* iteration that this run began with and keeps, or -1 */
};
enum { MEG_CKPT_RELEASE = -1 };

/*
 * Write SAVE/iter_NNNNNNN and make it the latest.  Every rank of mesh->world calls it, and writes what it
 * has of each tensor at its place in the files; no rank gathers a model.  Until the tracker is renamed
 * into place a reader finds the checkpoint before this one, whatever goes wrong; one of the same iteration
 * is replaced.  Remains of a killed save are removed first.  The bytes of the files, run.conf left out,
 * depend on nothing but the state: not on the layout.  MEG_EIO, and nothing under a final name, where a
 * write fails on any rank: all return the first such rank's error.  A failure to remove an older
 * checkpoint is only warned of.
 */
int meg_ckpt_save(const struct meg_ckpt_save_args *s, struct meg_err *e);

/*
 * The same in the background: what this rank writes is copied, and a thread of each rank writes the copy
 * while the run goes on.  meg_ckpt_save_poll moves the save on, once all ranks are done with a stage;
 * with wait it waits for them.  It gives 1 when the checkpoint is committed, 0 while it is not, and an
 * error as meg_ckpt_save; but for 0 the save is then freed and *saving NULL.  Both are called by every
 * rank of the world, from the main thread.
 */
struct meg_ckpt_async_save;
int meg_ckpt_save_begin(struct meg_ckpt_async_save **saving, const struct meg_ckpt_save_args *s, struct meg_err *e);
int meg_ckpt_save_poll(struct meg_ckpt_async_save **saving, bool wait, struct meg_err *e);

/* Bytes this rank writes of n slots, which is what meg_ckpt_save_begin copies; p may be NULL in them. */
int64_t meg_ckpt_write_nbytes(const struct meg_params *p, const struct meg_mesh *mesh,
                              const struct meg_ckpt_shard *slot, int n);

/* SAVE/done is there from now on, or is not. */
int meg_ckpt_mark_done(const char *dir, bool is_done, struct meg_err *e);

/* ---- loading ------------------------------------------------------------------------------------ */

/* Whether dir has anything to load: a tracker, an iteration, a checkpoint, or a config.json. */
bool meg_ckpt_exists(const char *dir);

/* Find the highest iteration that has a folder in dir; -1 where none has. */
int64_t meg_ckpt_newest_iteration(const char *dir);

/*
 * meg_ckpt_open - a checkpoint, its small files read and checked, its weights found to fit its settings
 *   dir   a SAVE folder of ours or of Megatron's, one SAVE/iter_NNNNNNN, or a Hugging Face folder
 *   step  the iteration wanted, or MEG_UNSET: the one in the tracker; where that is missing, the
 *         newest with a manifest, which a note names
 * MEG_ENOENT when there is none, MEG_EFORMAT when a file is damaged or foreign, MEG_EUSAGE for a
 * step where there is nothing to choose from.  A message about one of several iterations ends with the
 * newest older one that can be opened.
 */
int meg_ckpt_open(struct meg_ckpt **out, const char *dir, int64_t step, struct meg_err *e);
void meg_ckpt_close(struct meg_ckpt *c);

const char *meg_ckpt_path(const struct meg_ckpt *c);              /* the folder that holds the weights */
bool meg_ckpt_is_native(const struct meg_ckpt *c);                /* no: it is somebody else's */
const char *meg_ckpt_format(const struct meg_ckpt *c);            /* native, hf or megatron */
int64_t meg_ckpt_iteration(const struct meg_ckpt *c);             /* MEG_CKPT_RELEASE: weights only */
const json_t *meg_ckpt_run_state(const struct meg_ckpt *c);       /* what the run saved; NULL: nothing */
int32_t meg_ckpt_eod(const struct meg_ckpt *c);                   /* id that ends a document, or -1 */
const struct meg_ids *meg_ckpt_eos_ids(const struct meg_ckpt *c); /* all that end a continuation, eod the first */
/* The type that all weights have, or F32 where they differ. */
enum meg_dtype meg_ckpt_dtype(const struct meg_ckpt *c);
int64_t meg_ckpt_vocab_size(const struct meg_ckpt *c); /* true rows of the word embedding */

/*
 * Of the run that made the weights, whose place in it is not taken up: the iteration, or
 * MEG_CKPT_RELEASE, and the samples it had trained on, or -1.
 */
int64_t meg_ckpt_source_iteration(const struct meg_ckpt *c);
int64_t meg_ckpt_consumed_samples(const struct meg_ckpt *c);
/* The --seq-length of that run, or MEG_UNSET. */
int64_t meg_ckpt_seq_length(const struct meg_ckpt *c);

/* The ranks it is cut for; 1 and 1: tensors are whole. */
void meg_ckpt_parallel_sizes(const struct meg_ckpt *c, int64_t *tensor, int64_t *pipeline);

/*
 * Take the first n rows of the vocabulary for all of it: the others are padding.  MEG_EUSAGE when it
 * is none of Megatron's, whose files do not say, or has fewer.
 */
int meg_ckpt_set_vocab_size(struct meg_ckpt *c, int64_t n, struct meg_err *e);

/* The options it was saved with, as meg_opt_apply reads them; of a Hugging Face folder the model's. */
const char *meg_ckpt_options(const struct meg_ckpt *c);

/* Its model: every setting, vocabulary included, and checked. */
int meg_ckpt_gpt_conf(const struct meg_ckpt *c, struct meg_gpt_conf *out, struct meg_err *e);

/*
 * Its tokenizer, from the files it keeps; strings belong to c.  Fields that are set already stay, and
 * with a type set nothing changes.  type stays NULL where it has none.
 */
void meg_ckpt_tok_conf(const struct meg_ckpt *c, struct meg_tok_conf *tok);

/*
 * Whether a run with this (checked) configuration can take the weights: MEG_EUSAGE names every
 * option that changes a tensor's shape, or which tensors there are, with both values.
 */
int meg_ckpt_check_conf(const struct meg_ckpt *c, const struct meg_gpt_conf *model, struct meg_err *e);

/* Whether it has that kind of optimizer state. */
bool meg_ckpt_has_optim_state(const struct meg_ckpt *c, const char *name);

/*
 * meg_ckpt_load - fill slots, checksums verified, numbers widened or rounded to their types
 *   p, mesh  whose ranks all call it: each reads what it has of each tensor, and checks a share of the sums
 *   slot     n of them; gaps of the flat buffer are left as they are
 * MEG_CKPT_MAIN_PARAMS of a checkpoint that has none is its weights.  MEG_EFORMAT with all tensors that are
 * missing, unknown or of another shape or type in one message (for optimizer state that is not there it
 * says with which options to go on), or with file, tensor and place of the bytes that do not match their
 * checksum: every rank returns the first one's error, and memory is then undefined.
 */
int meg_ckpt_load(const struct meg_ckpt *c, const struct meg_params *p, const struct meg_mesh *mesh,
                  const struct meg_ckpt_shard *slot, int n, struct meg_err *e);

/* ---- other formats ------------------------------------------------------------------------------ */

/* Whether dir is a complete Hugging Face folder with nothing else in it; MEG_EUSAGE says what is not. */
int meg_ckpt_check_replaceable(const char *dir, struct meg_err *e);

/*
 * Write a Hugging Face folder: config.json, the weights and the tokenizer's files.  It is written
 * beside dir and committed as a folder (file/commit.h): an older one is replaced, and removed with all in
 * it, so check first that it may be.  Learned
 * positions make it a GPT-2, rotary ones a Llama or a Qwen2; MEG_EUSAGE for a model that these cannot
 * express.  Of s are used: dir, model, params, w, whole and f32, tok.
 */
struct meg_ckpt_hf_conf {
    enum meg_dtype dtype; /* F32, BF16 or F16, of the weights */
    int64_t shard_bytes;  /* most bytes of tensors in a file, unless one tensor alone has more; 0: one file */
};
int meg_ckpt_export_hf(const struct meg_ckpt_save_args *s, const struct meg_ckpt_hf_conf *to, struct meg_err *e);

/* How Megatron spells the names of tensors. */
enum meg_ckpt_names {
    MEG_CKPT_NAMES_LEGACY, /* before its core: language_model.encoder.layers.0.input_norm.weight */
    MEG_CKPT_NAMES_MCORE,  /* decoder.layers.0.input_layernorm.weight */
    MEG_CKPT_NAMES_TE      /* of Transformer Engine: decoder.layers.0.self_attention.linear_qkv.layer_norm_weight */
};

/* For which ranks weights are cut, and what Megatron is told of the run. */
struct meg_ckpt_megatron_conf {
    int64_t tensor, pipeline; /* parallel sizes */
    int64_t vocab_multiple;   /* vocabulary rows per tensor rank are padded to a multiple of it */
    int64_t iteration;        /* MEG_CKPT_RELEASE: none */
    int64_t consumed_samples; /* samples trained on; -1: not known */
    int64_t seq_length;       /* of the run; MEG_UNSET: as many as there are positions */
    enum meg_ckpt_names names;
};

/*
 * Write DIR/iter_NNNNNNN/mp_rank_TT[_PPP]/model_optim_rng.pt for every rank, as torch.save does and
 * Megatron loads, without optimizer state, and make it the latest; whole or not at all, as
 * meg_ckpt_save.  Rows past the vocabulary are copies of its last.  MEG_EUSAGE for sizes that do not
 * divide the model.  Of s are used: dir, model, params, w, whole and f32.
 */
int meg_ckpt_export_megatron(const struct meg_ckpt_save_args *s, const struct meg_ckpt_megatron_conf *to,
                             struct meg_err *e);

/*
 * What meg-convert --info prints, as one JSON object: format, path, iteration, parameters, options,
 * and the tensors with shape, type, bytes and file.  The caller gives it back.
 */
int meg_ckpt_describe(json_t **out, const struct meg_ckpt *c, struct meg_err *e);

/* Read every byte that has a checksum and compare; errors as of meg_ckpt_load. */
int meg_ckpt_verify(const struct meg_ckpt *c, struct meg_err *e);

MEG_END_DECLS
#endif
