/*
 * Checkpoints: a model, its optimizer state and what the run knew, in a folder that is there whole
 * or not at all.  meg-ckpt(5) describes the files.
 *
 *     SAVE/latest_checkpointed_iteration.txt      iteration of the newest, or "release"
 *     SAVE/iter_0000100/                          one checkpoint
 *         model-*.safetensors                     weights, whole global tensors, a file a section
 *         optim-*.safetensors                     optimizer state, the same
 *         model.safetensors.index.json            tensor -> file, as Hugging Face's
 *         vocab.json merges.txt tokenizer.model   the tokenizer's files, where it has any
 *         state.json                              options, iteration, the run's own state
 *         manifest.json                           place and checksums of all of the above; written last
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
#include "base/opt.h"
#include "model/gpt.h"
#include "text/tokenizer.h"

MEG_BEGIN_DECLS

/* One kind of optimizer state: [params->flat] f32, laid out as the weights. */
struct meg_ckpt_slot {
    const char *name; /* exp_avg, exp_avg_sq, momentum_buffer */
    float *p;
};

/*
 * The tokenizer's files, read when a run begins: a save must not depend on files that others may
 * have moved since.  Starts as { 0 }.  MEG_ENOENT or MEG_EIO when one cannot be read.
 */
struct meg_ckpt_tokenizer {
    struct meg_str file[MEG_TOK_FILES]; /* s NULL: there is none */
    int32_t eod;                        /* id that ends a document, or -1 */
};
int meg_ckpt_tokenizer_read(struct meg_ckpt_tokenizer *t, const struct meg_tok_conf *c,
                            const struct meg_tokenizer *tok, struct meg_err *e);
void meg_ckpt_tokenizer_free(struct meg_ckpt_tokenizer *t);

/* ---- saving ------------------------------------------------------------------------------------- */

/* What is saved; all of it borrowed for the call. */
struct meg_ckpt_save {
    const char *dir;                   /* SAVE; made where missing */
    int64_t iteration;                 /* MEG_CKPT_RELEASE: weights that begin a run */
    const struct meg_optgroup *groups; /* the options; their dump is kept */
    const struct meg_gpt_conf *model;  /* checked */
    const struct meg_params *params;
    const float *w;                   /* [params->flat] f32 host memory */
    const struct meg_ckpt_slot *slot; /* nslots of them */
    int nslots;
    const struct meg_ckpt_tokenizer *tok; /* NULL: none is kept */
    const json_t *state;                  /* the run's own state, an object; NULL: none */
    int64_t keep_last;                    /* remove older checkpoints but this many; 0: keep all */
    int64_t loaded;                       /* iteration that this run began with and keeps, or -1 */
};
enum { MEG_CKPT_RELEASE = -1 };

/*
 * Write SAVE/iter_NNNNNNN and make it the latest.  Until the tracker is renamed into place a reader
 * finds the checkpoint before this one, whatever goes wrong; one of the same iteration is replaced.
 * Remains of a killed save are removed first.  The bytes of the tensor files depend on nothing but
 * the state.  MEG_EIO, and nothing under a final name, where a write fails.  A failure to remove an
 * older checkpoint is only warned of.
 */
int meg_ckpt_save(const struct meg_ckpt_save *s, struct meg_err *e);

/* SAVE/done is there from now on, or is not. */
int meg_ckpt_mark_done(const char *dir, bool is_done, struct meg_err *e);

/* Bytes of files that meg_ckpt_save writes for tensors of this model: the size of a checkpoint but
 * for a few kilobytes. */
int64_t meg_ckpt_nbytes(const struct meg_params *p, int nslots);

/* ---- loading ------------------------------------------------------------------------------------ */

struct meg_ckpt;

/* Whether dir has anything to load: a tracker, an iteration, a checkpoint, or a config.json. */
bool meg_ckpt_exists(const char *dir);

/*
 * meg_ckpt_open - a checkpoint, its small files read and checked, its weights found to fit its settings
 *   dir   a SAVE folder of ours or of Megatron's, one SAVE/iter_NNNNNNN, or a Hugging Face folder
 *   step  the iteration wanted, or MEG_UNSET: the one in the tracker; where that is missing, the
 *         newest with a manifest, which a note names
 * MEG_ENOENT when there is none, MEG_EFORMAT when a file is damaged or foreign, MEG_EUSAGE for a
 * step where there is nothing to choose from.
 */
int meg_ckpt_open(struct meg_ckpt **out, const char *dir, int64_t step, struct meg_err *e);
void meg_ckpt_close(struct meg_ckpt *c);

const char *meg_ckpt_path(const struct meg_ckpt *c);    /* the folder that holds the weights */
bool meg_ckpt_is_native(const struct meg_ckpt *c);      /* no: it is somebody else's */
const char *meg_ckpt_format(const struct meg_ckpt *c);  /* native, hf or megatron */
int64_t meg_ckpt_iteration(const struct meg_ckpt *c);   /* MEG_CKPT_RELEASE: weights only */
const json_t *meg_ckpt_state(const struct meg_ckpt *c); /* what the run saved; NULL: nothing */
int32_t meg_ckpt_eod(const struct meg_ckpt *c);         /* id that ends a document, or -1 */
int64_t meg_ckpt_vocab_size(const struct meg_ckpt *c);  /* true rows of the word embedding */

/*
 * Of the run that made the weights, whose place in it is not taken up: the iteration, or
 * MEG_CKPT_RELEASE, and the samples it had trained on, or -1.
 */
int64_t meg_ckpt_saved_at(const struct meg_ckpt *c);
int64_t meg_ckpt_consumed(const struct meg_ckpt *c);

/* The ranks it is cut for; 1 and 1: tensors are whole. */
void meg_ckpt_cut(const struct meg_ckpt *c, int64_t *tensor, int64_t *pipeline);

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
int meg_ckpt_check_conf(const struct meg_ckpt *c, const struct meg_gpt_conf *model,
                        struct meg_err *e);

/*
 * meg_ckpt_load_params - the weights, checksums verified, f16 and bf16 widened
 *   w  [p->flat] f32 out; gaps are left as they are
 * MEG_EFORMAT with all tensors that are missing, unknown or of another shape or type in one message,
 * or with file, tensor and place of the bytes that do not match their checksum; w is then undefined.
 */
int meg_ckpt_load_params(const struct meg_ckpt *c, const struct meg_params *p, float *w,
                         struct meg_err *e);

/* The same for optimizer state; where it has none, the message says with which options to go on. */
int meg_ckpt_load_slots(const struct meg_ckpt *c, const struct meg_params *p,
                        const struct meg_ckpt_slot *slot, int nslots, struct meg_err *e);

/* ---- other formats ------------------------------------------------------------------------------ */

/*
 * Write a Hugging Face folder: config.json, model.safetensors and the tokenizer's files.  It is made
 * beside dir and renamed into place; a folder called dir is then removed with all in it.  Learned
 * positions make it a GPT-2, rotary ones a Llama or a Qwen2; MEG_EUSAGE for a model that these cannot
 * express.  Of s are used: dir, model, params, w, tok.
 */
int meg_ckpt_export_hf(const struct meg_ckpt_save *s, struct meg_err *e);

/* How Megatron spells the names of tensors. */
enum meg_ckpt_names {
    MEG_CKPT_LEGACY, /* before its core: language_model.encoder.layers.0.input_norm.weight */
    MEG_CKPT_CORE,   /* decoder.layers.0.input_layernorm.weight */
    MEG_CKPT_FUSED /* of Transformer Engine: decoder.layers.0.self_attention.linear_qkv.layer_norm_weight */
};

/* For which ranks weights are cut, and what Megatron is told of the run. */
struct meg_ckpt_ranks {
    int64_t tensor, pipeline; /* parallel sizes */
    int64_t vocab_multiple;   /* vocabulary rows per tensor rank are padded to a multiple of it */
    int64_t iteration;        /* MEG_CKPT_RELEASE: none */
    int64_t consumed;         /* samples trained on; -1: not known */
    enum meg_ckpt_names names;
};

/*
 * Write DIR/iter_NNNNNNN/mp_rank_TT[_PPP]/model_optim_rng.pt for every rank, as torch.save does and
 * Megatron loads, without optimizer state, and make it the latest; whole or not at all, as
 * meg_ckpt_save.  Rows past the vocabulary are copies of its last.  MEG_EUSAGE for sizes that do not
 * divide the model.  Of s are used: dir, model, params, w.
 */
int meg_ckpt_export_megatron(const struct meg_ckpt_save *s, const struct meg_ckpt_ranks *to,
                             struct meg_err *e);

/*
 * What meg-convert --info prints, as one JSON object: format, path, iteration, parameters, options,
 * and the tensors with shape, type, bytes and file.  The caller gives it back.
 */
int meg_ckpt_describe(json_t **out, const struct meg_ckpt *c, struct meg_err *e);

/* Read every byte that has a checksum and compare; errors as of meg_ckpt_load_params. */
int meg_ckpt_verify(const struct meg_ckpt *c, struct meg_err *e);

MEG_END_DECLS
#endif
