/* internal.h - declarations private to lib/ckpt/hf: families of models, and the files of a Hugging Face directory. */
#ifndef MEG_CKPT_HF_INTERNAL_H
#define MEG_CKPT_HF_INTERNAL_H
#include "ckpt/internal.h"

MEG_BEGIN_DECLS

/* ---- gpt2.c, llama.c, bert.c, t5.c ---- */

/* A Hugging Face model family: model types with common tensor names and settings. */
struct ckpt_hf_family {
    const char *const *model_types; /* list that ends with NULL; messages print the first name */
    const struct ckpt_format *format;
    const struct ckpt_format *gated_format; /* T5: the format if the MLP is gated */
    int (*read_config)(struct meg_model_conf *m, const json_t *config, const char *from, struct meg_err *e);
    /*
     * Adapt a model that read_config returned to the tensors in the files of c, and set c->lacks_head.  NULL:
     * config.json determines the model.
     */
    void (*fit_tensors)(struct meg_model_conf *m, struct meg_ckpt *c);
    /* Return the reason why the family cannot represent a model, or NULL if it can. */
    const char *(*unsupported_reason)(const struct meg_model_conf *m);
    json_t *(*make_config)(const struct meg_model_conf *m); /* config.json without the members common to all families */
    const char *bos_key; /* member of config.json with the id that begins a text; NULL: bos_token_id */
    /*
     * A BERT: texts begin and end with [CLS] and [SEP] instead of bos and eos ids, vocab.txt is a WordPiece vocabulary,
     * and the norms of old files have gamma and beta.
     */
    bool is_bert;
};
/* A boolean member of config.json that may be missing, and otherwise must be `value`.  A list ends with { 0 }. */
struct ckpt_hf_fixed {
    const char *key;
    bool value;
};
extern const struct ckpt_hf_family ckpt_hf_gpt2, ckpt_hf_llama, ckpt_hf_bert, ckpt_hf_megatron_bert, ckpt_hf_t5;

/* ---- model_type.c ---- */

/*
 * Find the family of a model by config.json, which was read from the file `from`.  If config has no model_type, as in
 * directories from before 2020, infer it from the class of the model or from other members, and set it.  Returns
 * MEG_EFORMAT if the type is unknown or not supported.
 */
int ckpt_hf_find_family(const struct ckpt_hf_family **out, json_t *config, const char *from, struct meg_err *e);

/* ---- settings.c: members of config.json that several families have ---- */

/* Return MEG_EFORMAT if a member has an unsupported value. */
int ckpt_hf_check_fixed(const json_t *config, const struct ckpt_hf_fixed *fixed, const char *from, struct meg_err *e);
/*
 * Read the member `key`, the name of a GELU; `def` is the name if the member is missing.  Set *is_tanh to whether this
 * GELU is the tanh approximation.  Return MEG_EFORMAT for other activations.
 */
int ckpt_hf_read_gelu(bool *is_tanh, const json_t *config, const char *key, const char *def, const char *from,
                      struct meg_err *e);

/* ---- hf.c ---- */

enum { CKPT_HF_GENERATION_CONFIG }; /* index in meg_ckpt_extra_files */
/* Return the tensor names of a model of the family. */
const struct ckpt_format *ckpt_hf_format_of(const struct ckpt_hf_family *family, const struct meg_model_conf *m);
/* Return the member of config.json with the id that begins a text. */
const char *ckpt_hf_bos_key(const struct ckpt_hf_family *family);

/* ---- tokenizer_type.c ---- */

/*
 * File name of a tokenizer model that is not a SentencePiece BPE model.  Other programs expect a SentencePiece BPE
 * model in a file called tokenizer.model.
 */
#define CKPT_HF_MEG_MODEL "meg_tokenizer.model"
#define CKPT_HF_T5_MODEL "spiece.model" /* file name of the SentencePiece model of T5 */
/* Set c->options to the options of the model and those of the tokenizer, which the files of the directory determine. */
int ckpt_hf_set_options(struct meg_ckpt *c, struct meg_model_conf *m, const struct ckpt_hf_family *family,
                        struct meg_err *e);

/* ---- weights.c ---- */

#define CKPT_HF_WEIGHTS "model"
/* Write the weights to dir under the names of `format`: to one file, or to several files and their index. */
int ckpt_write_hf_weights(const char *dir, const struct ckpt_format *format, const struct meg_ckpt_save_args *s,
                          const struct meg_ckpt_hf_conf *to, struct meg_err *e);

MEG_END_DECLS
#endif
