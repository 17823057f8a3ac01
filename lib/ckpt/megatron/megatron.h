/*
 * megatron.h - Megatron's per-rank checkpoints (private to lib/ckpt).
 *
 * A checkpoint consists of the files iter_NNNNNNN/mp_rank_TT[_PPP]/model_optim_rng.pt.  Each file is a dict saved by
 * torch.save.  "args" is a Namespace of all options, and "model" contains the tensors of the rank.  With virtual
 * pipeline stages, "model0", "model1", ... contain the tensors of each virtual stage.
 */
#pragma once
#include "ckpt/internal.h"
#include "ckpt/megatron/pickle.h"
#include "ckpt/megatron/pt_write.h"

#define MEGATRON_FILE "model_optim_rng.pt"

/* Return whether dir has per-rank files. */
bool ckpt_is_megatron(const char *dir);
/*
 * Print the file name of tensor-parallel rank t and pipeline stage p to buf: "mp_rank_01/FILE", or
 * "mp_rank_01_000/FILE" if there are several stages.  Return buf.
 */
const char *ckpt_rank_file(char buf[64], int64_t t, int64_t p, int64_t stages);

/*
 * Return the name of the attribute of args for an option of the model: a constant, or a name printed to buf.  Return
 * NULL for an alias, for an ignored option, and for --model and --num-tokentypes, which args does not have.
 */
const char *ckpt_arg_name(char buf[64], const struct meg_opt *row);

/* Return the model without the options that the version of Megatron with these tensor names does not support. */
struct meg_model_conf ckpt_supported_options(const struct meg_model_conf *model, enum meg_ckpt_names names);

/*
 * Check that meg's models support the settings in `args`, an object with attributes.  Otherwise returns MEG_EFORMAT
 * with a message that lists unsupported settings and their values.  The message names the file `from`.  A setting in
 * the list `rules` of args.c is unsupported if its value changes the output of the model.  A setting that is neither in
 * `rules`, nor a model option of meg, nor known to have no effect is unsupported unless its value is off (None, False,
 * 0 or empty), a path, or an object of torch or the Python library.
 */
int ckpt_check_args(const struct meg_py *args, const char *from, struct meg_err *e);

/*
 * Set *m to the options in args, an object with attributes, of a model of the family.  Return MEG_EFORMAT, with a
 * message that begins with `from`, if an option cannot have its value.
 */
int ckpt_read_args(struct meg_model_conf *m, const struct meg_py *args, enum meg_model_family family, const char *from,
                   struct meg_err *e);

/* Set c->options to the model options in args, and those of a tokenizer to their defaults.  Errors: ckpt_read_args. */
int ckpt_set_options(struct meg_ckpt *c, const struct meg_py *args, enum meg_model_family family, const char *from,
                     struct meg_err *e);
/* Set the consumed samples, the lengths in tokens and, unless it is missing in args, the vocabulary size of c. */
void ckpt_set_run(struct meg_ckpt *c, const struct meg_py *args);
/*
 * Set vocab_rows to the number of rows of the word embedding, with padding.  Without true_vocab_size in args, set
 * vocab_size to the same number.
 */
int ckpt_find_vocab(struct meg_ckpt *c, const char *from, struct meg_err *e);

/*
 * A prefix of tensor names in Megatron's files and its native equivalent.  The prefix is compared after the name of the
 * layer stack ("decoder.", "encoder." or, in old files, "transformer.") and "layers.N." are removed from the tensor
 * name.  A table ends with { 0 }.
 */
struct ckpt_prefix_map {
    const char *foreign, *native;
};
/*
 * Append `name`, which is foreign or native, with its prefix replaced by the other one of the first row that matches.
 * If no row matches, return false and append nothing.
 */
bool ckpt_replace_prefix(struct meg_str *out, const char *name, const struct ckpt_prefix_map *table, bool is_foreign);
extern const struct ckpt_prefix_map ckpt_legacy_names[], ckpt_legacy_decoder_names[], ckpt_te_names[];
/* Prefixes for the language-model head of BERT and T5, which is not in a layer stack: compared with complete names. */
extern const struct ckpt_prefix_map ckpt_legacy_head_names[];
/* Prefixes of the copies that files of a T5 with the names of Megatron core have: compared with complete names. */
extern const struct ckpt_prefix_map ckpt_t5_copies[];

/* ---- write.c ---- */

/* An export to one of Megatron's formats. */
struct ckpt_export {
    const struct meg_ckpt_save_args *s;
    const struct meg_ckpt_megatron_conf *to;
    int64_t vocab_rows; /* ckpt_padded_vocab */
};

/* Return the number of vocabulary rows of all ranks, including padding. */
int64_t ckpt_padded_vocab(const struct meg_model_conf *m, const struct meg_ckpt_megatron_conf *to);
/* Write args, the Namespace with the options of the model. */
void ckpt_put_args(struct meg_pickle_writer *p, const struct ckpt_export *x);
/* Write args, and read it.  Return MEG_EUSAGE if the options that are read are not those of the model. */
int ckpt_check_written_args(const struct ckpt_export *x, struct meg_err *e);
