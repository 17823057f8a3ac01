/*
 * ckpt.h - checkpoints: save and load a model, its optimizer state and the state of the run.
 *
 * A checkpoint is one directory.  It is written under a temporary name and renamed when it is complete.  meg-ckpt(5)
 * describes the files:
 *
 *     SAVE/latest_checkpointed_iteration.txt      the tracker: the newest iteration, or "release"
 *     SAVE/iter_0000100/                          one checkpoint
 *         model-*.safetensors                     weights: unsharded tensors, one file per layer group
 *         optim-*.safetensors                     optimizer state, one file per layer group
 *         model.safetensors.index.json            tensor -> file, in Hugging Face's format
 *         vocab.json merges.txt tokenizer.json ...  files of the tokenizer and meg_ckpt_extra_files, if any
 *         state.json                              options, iteration, state of the run
 *         run.conf                                all options; written for reference, never read back
 *         manifest.json                           offsets and checksums of the tensors, checksums of the other files
 *                                                 except run.conf; written last
 *     SAVE/release/                               converted weights, without optimizer state
 *     SAVE/done                                   exists once the last iteration of the run is saved
 *
 * A layer group is the embedding, one layer, or the head.
 *
 * Initial weights can be loaded from two other formats:
 *
 *     a Hugging Face directory                    config.json, and weights in safetensors or .bin files
 *     SAVE/iter_0000100/mp_rank_TT[_PPP]/model_optim_rng.pt   Megatron's files
 *
 * Runs can also start from, and continue from, a third format:
 *
 *     SAVE/iter_0000100/.metadata *.distcp        Megatron's distributed checkpoints (torch_dist)
 *
 * The run may have other tensor- and pipeline-parallel sizes than Megatron's files.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "file/lock.h"
#include "model/model.h"
#include "optim/optim.h"
#include "option/opt.h"
#include "parallel/mesh.h"
#include "tokenizer/tokenizer.h"

/*
 * This rank's shard of one array in the layout of the flat parameter buffer (params/param.h): the weights, the f32 main
 * parameters, or one state of the optimizer.  Saving writes the shard to files, and loading fills it.  The ranges of a
 * shard need not end at parameter boundaries.
 */
struct meg_ckpt_shard {
    const char *name;                /* fp32_param, exp_avg, exp_avg_sq or momentum_buffer; NULL: the weights */
    void *data;                      /* the elements of the ranges, concatenated */
    const struct meg_device *device; /* device on which data is; NULL: host memory */
    enum meg_dtype dtype;            /* the weights have some parameters in f32 (meg_param_dtype) */
    /*
     * Element ranges of the flat buffer, in ascending order; NULL: the full buffer, in which each parameter is
     * replicated over the ranks of its data-parallel group.
     */
    const struct meg_elem_range *ranges;
    int nranges;
    /*
     * With `ranges`: index of this rank among the nreplicas ranks that have the same ranges.  Each of these nreplicas
     * ranks writes a part of the elements.  0 and 0: no other rank has the same ranges.
     */
    int replica, nreplicas;
};

/* Shard name of the f32 main parameters, which exist in addition to bf16 or f16 weights. */
#define MEG_CKPT_MAIN_PARAMS "fp32_param"

enum { MEG_CKPT_EXTRA_FILES = 2 };
/*
 * Names of the files that are copied unchanged from a loaded checkpoint to the checkpoints written from it:
 * generation_config.json and chat_template.jinja.
 */
extern const char *const meg_ckpt_extra_files[MEG_CKPT_EXTRA_FILES];

/* The contents of the tokenizer's files, read when a run starts, because the files may be moved before a save. */
struct meg_ckpt_tokenizer {
    struct meg_str file[MEG_NUM_TOK_FILES];          /* member s is NULL if there is no such file */
    struct meg_str extra_file[MEG_CKPT_EXTRA_FILES]; /* member s is NULL if there is no such file */
    int32_t eod;                                     /* end-of-document id, or -1 */
    int32_t bos;                                     /* beginning-of-sequence id, or -1 */
    struct meg_ids eos_ids;                          /* end-of-sequence ids; may include eod */
    /*
     * The tokenizer model is not known to be a SentencePiece BPE model.  An export to Hugging Face's format therefore
     * writes the model to meg_tokenizer.model instead of tokenizer.model.
     */
    bool is_not_spm_bpe;
};
/*
 * Read the tokenizer's files, as configured in c, into t.  The caller must initialize t with { 0 }.  Set t->eod and
 * t->bos to the ids of tok, or to -1 if tok is NULL.  Returns MEG_ENOENT or MEG_EIO if a file cannot be read.
 */
int meg_ckpt_tokenizer_read(struct meg_ckpt_tokenizer *t, const struct meg_tok_conf *c, const struct meg_tokenizer *tok,
                            struct meg_err *e);
struct meg_ckpt;
/*
 * Add the eos ids and the meg_ckpt_extra_files of checkpoint c to t.  If t->bos is -1, set t->bos to the bos id of c.
 * If t->eod is neither -1 nor an eos id of c, the tokenizers differ and t is not changed.  Returns MEG_ENOENT or
 * MEG_EIO if a file cannot be read.
 */
int meg_ckpt_tokenizer_inherit(struct meg_ckpt_tokenizer *t, const struct meg_ckpt *c, struct meg_err *e);
/*
 * Add Hugging Face's tokenizer.json, tokenizer_config.json and special_tokens_map.json to t, generated from the files
 * that c names.  Does nothing if t has no files.  If t already has the first two files, no file is changed.  Otherwise,
 * generated members replace the members of the same names in an existing tokenizer_config.json, and an existing
 * special_tokens_map.json is kept.  If tokenizer.json cannot be generated, a warning is printed, and only the other
 * files that meg_tok_export generated are added.  A value of -1 in t->eod or t->bos is replaced by the id of the
 * tokenizer, if known.
 */
void meg_ckpt_tokenizer_export(struct meg_ckpt_tokenizer *t, const struct meg_tok_conf *c);
void meg_ckpt_tokenizer_free(struct meg_ckpt_tokenizer *t);

struct meg_ckpt_reader;

/* ---- saving ------------------------------------------------------------------------------------- */

/*
 * Arguments of a save.  They are borrowed for the call.  An asynchronous save borrows `lock` and mesh->world until
 * the save ends.
 */
struct meg_ckpt_save_args {
    const char *dir; /* SAVE; created if missing */
    /* lock on dir, held by rank 0 and checked before files are replaced; NULL: none */
    const struct meg_lock *lock;
    int64_t iteration;                  /* iteration number; MEG_CKPT_RELEASE: initial weights for later runs */
    const char *options;                /* dump (meg_opt_dump) of the options that are independent of the layout */
    const char *run_conf;               /* contents of run.conf; NULL: not saved */
    const struct meg_model_conf *model; /* checked by meg_model_conf_check */
    const struct meg_mesh *mesh;
    const struct meg_params *params; /* parameter table, sharded over mesh */
    struct meg_ckpt_shard weights;
    /*
     * Read the weights from this reader while they are written, instead of from weights.data, so that memory never
     * contains all weights.  Only for synchronous saves of one rank without optimizer state (noptim is 0).  NULL: save
     * weights.data.
     */
    const struct meg_ckpt_reader *reader;
    const struct meg_ckpt_shard *optim; /* [noptim] optimizer state */
    int noptim;
    const struct meg_ckpt_tokenizer *tok; /* NULL: not saved */
    const json_t *state;                  /* state of the run, a JSON object; NULL: none */
    int64_t keep_last;                    /* number of newest checkpoints to keep; 0: keep all */
    int64_t loaded_iteration; /* iteration that the run resumed from; its checkpoint is not removed; -1: none */
};
enum { MEG_CKPT_RELEASE = -1 };

/*
 * Write SAVE/iter_NNNNNNN or SAVE/release, and set the tracker to this checkpoint.  Collective over mesh->world: each
 * rank writes its shards at their offsets in the files, and no rank gathers the model.  Leftovers of killed saves are
 * removed first.  A checkpoint of the same iteration is replaced when the new checkpoint is complete.  The bytes of all
 * files except run.conf are independent of the parallel layout.  After a save to SAVE/iter_NNNNNNN, old checkpoints are
 * removed as keep_last and loaded_iteration specify; if one cannot be removed, a warning is printed.
 *
 * If a rank fails to write or hash its part, the checkpoint is not renamed to its final name, and its temporary
 * directory is removed.  All ranks return the error of the lowest rank that failed.
 */
int meg_ckpt_save(const struct meg_ckpt_save_args *s, struct meg_err *e);

/*
 * Save asynchronously, in the stages write, hash and commit.
 *
 * meg_ckpt_save_begin copies the bytes that this rank writes into a staging buffer, and starts a background thread that
 * writes the buffer to the files.  If no thread can be created, it writes the files before it returns.  Fails as
 * meg_ckpt_save does, and with MEG_EFAIL if there is no memory for the staging buffer; *saving is then unchanged.
 *
 * meg_ckpt_save_poll starts the next stage once all ranks have finished the current stage.  If `wait` is true, the call
 * blocks until the save ends.  Returns 0 while the save is in progress, 1 once the checkpoint is committed, or an error
 * of meg_ckpt_save.  After 1 or an error, the save is freed and *saving is NULL.
 *
 * Both functions are collective over mesh->world, and must be called from the main thread.
 */
struct meg_ckpt_async_save;
int meg_ckpt_save_begin(struct meg_ckpt_async_save **saving, const struct meg_ckpt_save_args *s, struct meg_err *e);
int meg_ckpt_save_poll(struct meg_ckpt_async_save **saving, bool wait, struct meg_err *e);

/*
 * Return the number of bytes that this rank writes for n shards: the size of the staging buffer.  The shards' data may
 * be NULL.
 */
int64_t meg_ckpt_write_nbytes(const struct meg_params *p, const struct meg_mesh *mesh,
                              const struct meg_ckpt_shard *shard, int n);

/* Create the file DIR/done if is_done is true; otherwise remove it. */
int meg_ckpt_mark_done(const char *dir, bool is_done, struct meg_err *e);

/* ---- loading ------------------------------------------------------------------------------------ */

/*
 * Return whether dir contains a tracker, an iteration, the files of a native or Megatron checkpoint, or a config.json.
 * The result is also true for distributed checkpoints, of which meg_ckpt_open refuses some.
 */
bool meg_ckpt_exists(const char *dir);
/*
 * Return whether a path that contains no checkpoint is a file, or a checkpoint in an unsupported format
 * (foreign/foreign.h).  meg_ckpt_open refuses it with a message that says how to convert it.
 */
bool meg_ckpt_is_foreign(const char *path);

/* Return the highest iteration that has a directory in dir, or -1 if there is none. */
int64_t meg_ckpt_newest_iteration(const char *dir);

/*
 * meg_ckpt_open - open a checkpoint: read and check its metadata files, and check its tensors against its options
 *   dir   a SAVE directory of meg or Megatron, one SAVE/iter_NNNNNNN or SAVE/release, or a Hugging Face directory
 *   step  the iteration to open; MEG_UNSET: the iteration in the tracker
 * In a SAVE directory without a tracker, MEG_UNSET opens the newest iteration with a manifest, and logs the iteration
 * number.  Returns MEG_ENOENT if there is no checkpoint or no such iteration, or if a file that the checkpoint refers
 * to is missing.  Returns MEG_EFORMAT if a file is damaged or its format is not supported.  Returns MEG_EUSAGE if step
 * is set but dir is a single checkpoint.  The error message suggests the newest older iteration in dir that can be
 * opened, if any.
 */
int meg_ckpt_open(struct meg_ckpt **out, const char *dir, int64_t step, struct meg_err *e);
/*
 * Open a checkpoint on all ranks; collective.  Rank 0 opens the checkpoint and checks it as meg_ckpt_open does.  If the
 * format is native, the other ranks receive the metadata from rank 0, and map a tensor file only when they load or
 * verify its tensors.  In other formats, each rank then opens the checkpoint itself.  If rank 0 fails, the other ranks
 * return the same code, and only rank 0 reports the reason.  If another rank fails after rank 0 has succeeded, only
 * that rank returns an error.
 */
int meg_ckpt_open_on_all(struct meg_ckpt **out, const char *dir, int64_t step, struct meg_comm *world,
                         struct meg_err *e);
void meg_ckpt_close(struct meg_ckpt *c);

const char *meg_ckpt_path(const struct meg_ckpt *c);        /* directory of the weights */
bool meg_ckpt_is_native(const struct meg_ckpt *c);          /* false: another format */
const char *meg_ckpt_format(const struct meg_ckpt *c);      /* native, hf, megatron or torch_dist */
int64_t meg_ckpt_iteration(const struct meg_ckpt *c);       /* iteration number; MEG_CKPT_RELEASE: weights only */
const json_t *meg_ckpt_run_state(const struct meg_ckpt *c); /* state that the save stored; NULL: none */
int32_t meg_ckpt_bos(const struct meg_ckpt *c);             /* first id of a sequence (T5: of the decoder), or -1 */
int32_t meg_ckpt_eod(const struct meg_ckpt *c);             /* end-of-document id, or -1 */
const struct meg_ids *meg_ckpt_eos_ids(const struct meg_ckpt *c); /* all end-of-sequence ids, eod first */
/* Return the dtype of the weights; F32 if their dtypes differ. */
enum meg_dtype meg_ckpt_dtype(const struct meg_ckpt *c);
int64_t meg_ckpt_vocab_size(const struct meg_ckpt *c); /* rows of the word embedding without padding */

/*
 * meg_ckpt_source_iteration returns the iteration at which the weights were saved, or MEG_CKPT_RELEASE.
 * meg_ckpt_consumed_samples returns the number of training samples that the run had consumed at this iteration, or -1.
 * Megatron's files usually have both numbers, although a run cannot resume from these files.  A Hugging Face directory
 * has neither.
 */
int64_t meg_ckpt_source_iteration(const struct meg_ckpt *c);
int64_t meg_ckpt_consumed_samples(const struct meg_ckpt *c);
/* Return --seq-length or --decoder-seq-length of the run that wrote the weights, or MEG_UNSET. */
int64_t meg_ckpt_seq_length(const struct meg_ckpt *c);
int64_t meg_ckpt_decoder_seq_length(const struct meg_ckpt *c);

/* Get the tensor and pipeline parallel sizes of the files; both are 1 if the tensors are unsharded. */
void meg_ckpt_parallel_sizes(const struct meg_ckpt *c, int64_t *tensor, int64_t *pipeline);

/*
 * Set the vocabulary size to n.  In Megatron's format, embedding rows from n on are padding, and n must be from 1 to
 * the number of rows.  In other formats, n must equal the number of rows.  Otherwise returns MEG_EUSAGE.
 */
int meg_ckpt_set_vocab_size(struct meg_ckpt *c, int64_t n, struct meg_err *e);

/*
 * Return the saved options as text for meg_opt_apply.  Hugging Face's and Megatron's formats have only options of the
 * model and of the tokenizer.
 */
const char *meg_ckpt_options(const struct meg_ckpt *c);

/* Get the complete and checked configuration of the checkpoint's model.  Returns MEG_EFORMAT if it is invalid. */
int meg_ckpt_model_conf(const struct meg_ckpt *c, struct meg_model_conf *out, struct meg_err *e);

/*
 * Set tok to the checkpoint's tokenizer options and saved files.  The strings remain valid until c is closed.  If
 * tok->type or tok->name_or_path is set, tok is not changed.  Otherwise, fields of tok that are already set keep their
 * values, except tiktoken_num_special_tokens.  tok->type remains NULL if the checkpoint has no tokenizer.
 */
void meg_ckpt_tok_conf(const struct meg_ckpt *c, struct meg_tok_conf *tok);

/*
 * Check that a run with this (checked) configuration can load the weights.  The options that determine the tensors or
 * their shapes must be equal, and so must the vocabulary sizes.  For a checkpoint in Megatron's format, the run's
 * vocabulary size need only be at most the number of rows with padding.  Otherwise returns MEG_EUSAGE; the message
 * lists both values of each difference.
 */
int meg_ckpt_check_conf(const struct meg_ckpt *c, const struct meg_model_conf *model, struct meg_err *e);

/*
 * meg_ckpt_check_tokenizer - check the size of a tokenizer against a model of the checkpoint
 *   rows    vocabulary size of the model
 *   is_own  the tokenizer is that of the checkpoint, not one of the options
 * Tokens that no text contains (meg_tokenizer_num_text_ids) may have any id.  If other tokens have ids outside of the
 * model, prints a warning if is_own, because published models have such tokenizers; the caller must refuse these ids.
 * If not is_own, returns MEG_EUSAGE.
 */
int meg_ckpt_check_tokenizer(const struct meg_ckpt *c, const struct meg_tokenizer *tok, int64_t rows, bool is_own,
                             struct meg_err *e);

/*
 * Return the vocabulary size of a run that loads the checkpoint with a tokenizer of `tokens` tokens.  It is that of the
 * checkpoint, whose word embedding may have rows without a token or, as in the BERT models of Hugging Face, none for
 * the last tokens.  In Megatron's format, rows without a token are padding, which is dropped.
 */
int64_t meg_ckpt_run_vocab_size(const struct meg_ckpt *c, int64_t tokens);

/*
 * Return whether the weights lack the language-model head, as Hugging Face's BertModel and classifiers do.  Only a run
 * that trains may then load them: it initialises the parameters of the head, which meg_ckpt_load leaves unchanged.
 */
bool meg_ckpt_lacks_head(const struct meg_ckpt *c);
/* Return MEG_EFORMAT if the weights lack the language-model head. */
int meg_ckpt_check_head(const struct meg_ckpt *c, struct meg_err *e);
/* Print a warning that lists the parameters of the missing head, and the tensors of other heads, which are ignored. */
void meg_ckpt_warn_missing_head(const struct meg_ckpt *c);

/* Return whether the checkpoint has the optimizer state called name. */
bool meg_ckpt_has_optim_state(const struct meg_ckpt *c, const char *name);

/*
 * meg_ckpt_load - verify checksums and fill shards, converting elements to the shard's dtype
 *   p      parameter table, sharded over mesh
 *   mesh   collective over mesh->world: each rank reads its shards and verifies a part of the checksums
 *   shard  [n] the shards to fill; gaps of the flat buffer, and a missing head (meg_ckpt_lacks_head), are left
 *          unchanged
 * If the checkpoint has no main parameters, MEG_CKPT_MAIN_PARAMS is filled from the weights.
 *
 * Returns MEG_EFORMAT if a tensor is missing, has a wrong shape, or has a dtype other than F32, BF16 and F16, or if
 * there are weights that the model does not have.  The message lists as many of these tensors as fit.  For optimizer
 * state, the message suggests options to continue without optimizer state.  Returns MEG_EFORMAT if bytes do not match
 * their checksum, with a message that names the file and the tensor.  All ranks return the error of the lowest rank
 * that failed.  After an error, the contents of the shards are undefined.
 */
int meg_ckpt_load(const struct meg_ckpt *c, const struct meg_params *p, const struct meg_mesh *mesh,
                  const struct meg_ckpt_shard *shard, int n, struct meg_err *e);

/*
 * meg_ckpt_reader_open - open the weights of c for reading in parts, so that memory never contains all weights
 *   c, p  a checkpoint, and the parameter table of its unsharded model; borrowed until the reader is closed
 * Checks names, shapes, dtypes and checksums of all tensors, and fails as meg_ckpt_load does.
 */
int meg_ckpt_reader_open(struct meg_ckpt_reader **out, const struct meg_ckpt *c, const struct meg_params *p,
                         struct meg_err *e);
void meg_ckpt_reader_close(struct meg_ckpt_reader *r);
/*
 * Convert elements [first, first + n) of the parameter `row` to dtype, and store them in out [n].  Any thread may call
 * this function.  Fails with MEG_EFAIL if memory is exhausted.
 */
int meg_ckpt_read(const struct meg_ckpt_reader *r, const struct meg_param *row, int64_t first, int64_t n,
                  enum meg_dtype dtype, void *out, struct meg_err *e);

/* ---- other formats ------------------------------------------------------------------------------ */

/*
 * Check that the directory `at`, which messages call `dir`, may be replaced.  It must be a Hugging Face directory that
 * can be opened.  Each file in it must have a name that transformers, the model hub or meg uses in such directories.
 * Otherwise returns MEG_EUSAGE.
 */
int meg_ckpt_check_replaceable(const char *at, const char *dir, struct meg_err *e);

/* Data type, file size and lock of an export to Hugging Face's format. */
struct meg_ckpt_hf_conf {
    enum meg_dtype dtype;      /* dtype of the weights: F32, BF16 or F16 */
    int64_t shard_bytes;       /* maximum tensor bytes per file; a larger tensor has a file of its own; 0: one file */
    struct meg_dir_lock *lock; /* the locks of the directory */
};
/*
 * Write a Hugging Face directory: config.json, the weights and the tokenizer's files.  The files are written to a
 * temporary directory, which is renamed to s->dir (meg_lock_commit_dir).  If s->dir exists and is not empty, it is
 * removed with all of its contents, after meg_ckpt_check_replaceable has accepted it at that time.  The model type is
 * the one whose config.json, read back, gives the same model.  Returns MEG_EUSAGE, with the names and values of the
 * options that would be lost, if no model type can represent the model.
 * Members of s that are used: dir, model, params, reader or weights (unsharded, f32), tok.
 */
int meg_ckpt_export_hf(const struct meg_ckpt_save_args *s, const struct meg_ckpt_hf_conf *to, struct meg_err *e);

/* Naming schemes of tensors in Megatron's checkpoints. */
enum meg_ckpt_names {
    MEG_CKPT_NAMES_LEGACY, /* names before Megatron core: language_model.encoder.layers.0.input_norm.weight */
    MEG_CKPT_NAMES_MCORE,  /* Megatron core: decoder.layers.0.input_layernorm.weight */
    /* Megatron core with Transformer Engine: decoder.layers.0.self_attention.linear_qkv.layer_norm_weight */
    MEG_CKPT_NAMES_TE
};

/* Parallel sizes of an export to Megatron's format, and the state of the run to record in the export. */
struct meg_ckpt_megatron_conf {
    int64_t tensor, pipeline; /* parallel sizes */
    int64_t vocab_multiple;   /* vocabulary rows per tensor-parallel rank are padded to a multiple of this number */
    int64_t iteration;        /* iteration number, or MEG_CKPT_RELEASE */
    int64_t consumed_samples; /* consumed training samples; -1: unknown */
    /* --seq-length and --decoder-seq-length to record; MEG_UNSET: max_position_embeddings */
    int64_t seq_length, decoder_seq_length;
    enum meg_ckpt_names names;
};

/*
 * Write a checkpoint in the torch.save format that Megatron loads, and set the tracker to it.  Each tensor- and
 * pipeline-parallel rank has a file DIR/iter_NNNNNNN/mp_rank_TT[_PPP]/model_optim_rng.pt; without an iteration number,
 * the directory is DIR/release.  Optimizer state is not written.  The write is atomic, as in meg_ckpt_save.  Padding
 * rows of the vocabulary are copies of the last vocabulary row; in a bias, they are 0.  Returns MEG_EUSAGE if
 *   - a parallel size or vocab_multiple is out of range
 *   - an option of the model would be lost, because the version of Megatron with these names does not have it
 *   - the number of attention heads, the number of query groups or the width of the MLP is not a multiple of the
 *     tensor-parallel size
 *   - the pipeline-parallel size does not divide the number of layers, or a stage would have layers of both the encoder
 *     and the decoder of a T5
 * Members of s that are used: dir, model, params, reader or weights (unsharded, f32).
 */
int meg_ckpt_export_megatron(const struct meg_ckpt_save_args *s, const struct meg_ckpt_megatron_conf *to,
                             struct meg_err *e);

/*
 * Write the model in Megatron's distributed format (torch_dist) with f32 weights, which core 0.10 to 0.20 reads, and
 * set the tracker to it.  The files do not depend on parallel sizes; to->tensor must be 1.  Optimizer state and random
 * states are not written: load the checkpoint with --no-load-optim and --no-load-rng, or --finetune.  Padding,
 * atomicity and the members of s that are used are those of meg_ckpt_export_megatron.  Returns MEG_EUSAGE if the model
 * is not a GPT, or an option would be lost.
 */
int meg_ckpt_export_torch_dist(const struct meg_ckpt_save_args *s, const struct meg_ckpt_megatron_conf *to,
                               struct meg_err *e);

/*
 * Describe a checkpoint as the JSON object that meg-convert --info --json prints: format, path, iteration, model type,
 * number of parameters, vocabulary size, end-of-document id, options, and the tensors with name, shape, dtype, bytes
 * and file.  The caller releases *out with json_decref.  Returns the errors of meg_ckpt_open if the configuration is
 * invalid or a file of the optimizer state cannot be opened.
 */
int meg_ckpt_describe(json_t **out, const struct meg_ckpt *c, struct meg_err *e);
/* Append `about`, a description made by meg_ckpt_describe, as text: one line for each member, option and tensor. */
void meg_ckpt_format_description(struct meg_str *out, json_t *about);

/*
 * Verify the checksums of all tensors: XXH3-128 in native checkpoints, and CRC-32 in files of torch.save.
 * meg_ckpt_open has verified the checksums of the other files.  The safetensors files of a Hugging Face directory have
 * no checksums, so they are not verified.  Returns MEG_EFORMAT if bytes do not match their checksum or a file is
 * damaged.
 */
int meg_ckpt_verify(const struct meg_ckpt *c, struct meg_err *e);

/* ---- hf/presets.c ---- */

/* Append the model options of the published model `name`.  Return MEG_EUSAGE if it is not in the list. */
int meg_ckpt_preset_options(struct meg_str *out, const char *name, struct meg_err *e);
/* Print a line for each preset: its name, the number of its parameters and the size of its vocabulary. */
int meg_ckpt_print_presets(FILE *f, struct meg_err *e);
