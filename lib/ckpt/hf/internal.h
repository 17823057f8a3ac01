/* internal.h - declarations private to lib/ckpt/hf: model types, and the files of a Hugging Face directory. */
#pragma once
#include "ckpt/internal.h"

/*
 * To add a model type NAME, which transformers calls model_type: write hf_types/NAME.c, which defines ckpt_hf_NAME
 * (struct ckpt_hf_family) with a table of the members of config.json and one of the tensor names; add F(NAME) to
 * CKPT_HF_FAMILIES; and add a folder of golden/models to tests/unit/model/family_golden.c.  hf_types/rows.h has the
 * rows that many tables have, and mistral.c is an example.  Export is derived from the tables: the type that loses no option
 * of the model is written.
 */

/*
 * A member of config.json, mapped to a model option.  A table ends with { 0 }.  Members are read in order; later rows
 * may depend on earlier ones, and several rows may have the same member.  A member that is in no row must be in the
 * list of harmless members (config.c); otherwise, the model is refused.
 * key      name of the member; "A|B": either name is read, and A is written
 * option   model option with the value of the member (of a flag: its field); "!NAME": with the opposite value; NULL:
 *          the member is not written, and `def`, in JSON, is the only supported value; if that is NULL, all are
 *          supported; "=": as NULL, but `def` is written
 * def      value of the option if the member is missing or null, as in an option file, or "unset"; "X|Y": X if it is
 *          missing, and Y if it is null; NULL: the member is required; "": the option is not changed
 * convert  how the member is read and written instead, or NULL
 */
struct ckpt_hf_row {
    const char *key, *option, *def;
    const struct ckpt_hf_convert *convert;
};
/* The object to read, from the file `from`, and the model whose options are set. */
struct ckpt_hf_reader {
    struct meg_model_conf *m;
    const json_t *object;
    const char *from;
    struct meg_err *e;
};
/* A value of a member, a name or a JSON text such as true, and the model options that it sets, as in an option file. */
struct ckpt_hf_choice {
    const char *name, *options;
};
/* Functions and lists that are NULL do not change how a member is read or written. */
struct ckpt_hf_convert {
    /* Return MEG_EFORMAT if the value is not supported. */
    int (*read)(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row);
    /* Return NULL if the member cannot hold the value of the option. */
    json_t *(*write)(const struct meg_model_conf *m, const struct ckpt_hf_row *row);
    /* The member is a choice, by default `def`.  Of equal ones, `def` or the first is written.  Ends with { 0 }. */
    const struct ckpt_hf_choice *choices;
    const struct ckpt_hf_row *members; /* the member is an object with these members; ends with { 0 } */
};

/* A Hugging Face model type: its config.json and its tensor names. */
struct ckpt_hf_family {
    const char *model_type;
    const char *class_name; /* of the causal language model; all classes of the type begin like it, up to "For" */
    const char *options; /* model options that all models of the type have, as in an option file, each with a newline */
    const struct ckpt_hf_row *rows;
    const char *constants; /* JSON object of the members that are written for every model; NULL: none */
    const struct ckpt_format *format;
    const struct ckpt_format *gated_format;    /* T5: the format if the MLP is gated */
    const struct ckpt_format *two_norm_format; /* Falcon: the format with --parallel-residual two-norms */
    /*
     * Adapt a model that config.json describes to the tensors in the files of c, and set c->lacks_head.  NULL:
     * config.json determines the model.
     */
    void (*fit_tensors)(struct meg_model_conf *m, struct meg_ckpt *c);
    /*
     * Change a model that the type cannot represent exactly to the nearly equal model that an export writes.  Return a
     * warning about the difference, or NULL if there is none.  A NULL function changes nothing.
     */
    const char *(*approximate)(struct meg_model_conf *m);
    const char *bos_key; /* member of config.json with the id that begins a text; NULL: bos_token_id */
    /*
     * A BERT: texts begin and end with [CLS] and [SEP] instead of bos and eos ids, vocab.txt is a WordPiece vocabulary,
     * and the norms of old files have gamma and beta.
     */
    bool is_bert;
};
/* The model types, in the order in which an export tries them. */
#define CKPT_HF_FAMILIES(F)                                                                                            \
    F(gpt2)                                                                                                            \
    F(llama)                                                                                                           \
    F(mistral)                                                                                                         \
    F(qwen2)                                                                                                           \
    F(qwen3)                                                                                                           \
    F(granite)                                                                                                         \
    F(olmo)                                                                                                            \
    F(cohere)                                                                                                          \
    F(gemma)                                                                                                           \
    F(opt)                                                                                                             \
    F(gpt_neox)                                                                                                        \
    F(falcon)                                                                                                          \
    F(hunyuan)                                                                                                         \
    F(nemotron)                                                                                                        \
    F(phi)                                                                                                             \
    F(gptj)                                                                                                            \
    F(gpt_neo)                                                                                                         \
    F(gpt_bigcode)                                                                                                     \
    F(seed_oss)                                                                                                        \
    F(ernie4_5)                                                                                                        \
    F(helium)                                                                                                          \
    F(glm)                                                                                                             \
    F(glm4)                                                                                                            \
    F(phi3)                                                                                                            \
    F(exaone)                                                                                                          \
    F(internlm2)                                                                                                       \
    F(stablelm)                                                                                                        \
    F(starcoder2)                                                                                                      \
    F(ministral)                                                                                                       \
    F(ministral3)                                                                                                      \
    F(smollm3)                                                                                                         \
    F(gemma2)                                                                                                          \
    F(gemma3_text)                                                                                                     \
    F(cohere2)                                                                                                         \
    F(olmo2)                                                                                                           \
    F(olmo3)                                                                                                           \
    F(exaone4)                                                                                                         \
    F(codegen)                                                                                                         \
    F(bloom)                                                                                                           \
    F(mpt)                                                                                                             \
    F(arcee)                                                                                                           \
    F(bert)                                                                                                            \
    F(megatron_bert)                                                                                                   \
    F(t5)
#define CKPT_HF_DECLARE(name) extern const struct ckpt_hf_family ckpt_hf_##name;
CKPT_HF_FAMILIES(CKPT_HF_DECLARE)
/* Tensor names of Llama, which many types have. */
extern const struct ckpt_format ckpt_hf_llama_format;
/* Tensor names of models with norms of outputs: Gemma 2 and 3, OLMo 2 and 3, EXAONE 4. */
extern const struct ckpt_format ckpt_hf_gemma2_format;
/* Tensor names of Llama with an MLP that is not gated, and with norms that may have biases: Nemotron and Arcee. */
extern const struct ckpt_format ckpt_hf_nemotron_format;

/* ---- model_type.c ---- */

extern const struct ckpt_hf_family *const ckpt_hf_families[]; /* ends with NULL */
/*
 * Find the family of a model by config.json, which was read from the file `from`.  If config has no model_type, as in
 * directories from before 2020, infer it from the class of the model or from other members, and set it.  Returns
 * MEG_EFORMAT if the type is unknown or not supported.
 */
int ckpt_hf_find_family(const struct ckpt_hf_family **out, json_t *config, const char *from, struct meg_err *e);

/* ---- config.c ---- */

/* Set *m to the model that config.json describes.  Return MEG_EFORMAT if a member is missing or not supported. */
int ckpt_hf_read_config(struct meg_model_conf *m, const struct ckpt_hf_family *family, const json_t *config,
                        const char *from, struct meg_err *e);
/*
 * Return config.json of a model.  If the family cannot represent the model, ckpt_hf_read_config fails or returns
 * another model.
 */
json_t *ckpt_hf_make_config(const struct ckpt_hf_family *family, const struct meg_model_conf *m);
int ckpt_hf_read_rows(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *rows);
/* Append the members of the rows that have a value to o. */
void ckpt_hf_write_rows(json_t *o, const struct meg_model_conf *m, const struct ckpt_hf_row *rows);
/*
 * Return MEG_EFORMAT, with its name, if a member of the object is neither in one of the tables, a list that ends with
 * NULL, nor, unless `parent` is given, harmless.  `parent` is the name of the object in config.json, NULL: config.json.
 */
int ckpt_hf_check_keys(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *const *tables, const char *parent);
/* Remove the members of the list "a,b.c" from config.json; b.c is a member of the object b.  NULL: none. */
void ckpt_hf_remove_keys(json_t *config, const char *list);
/* Set options, given as in an option file. */
void ckpt_hf_set_options(struct meg_model_conf *m, const char *options);
/* Return the member of a row, or NULL; set *key to its name, interned, or, if it is missing, to the first name. */
json_t *ckpt_hf_member(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row, const char **key);

/* Read a bool that may be missing. */
int ckpt_hf_read_bool(const struct ckpt_hf_reader *r, const char *key, bool *out);
/*
 * Return the name of the choice whose options differ least from those of the model: the first one or, if it is one of
 * them, `preferred`, which may be NULL.
 */
const char *ckpt_hf_choice_of(const struct meg_model_conf *m, const struct ckpt_hf_choice *choices,
                              const char *preferred);
/* clang-format off */
/* The choices of an activation that is a GELU, given the options of the tanh approximation and of exact GELU. */
#define CKPT_HF_GELUS(tanh, exact) \
    { "gelu_new", tanh }, { "gelu", exact }, { "gelu_pytorch_tanh", tanh }, { "gelu_fast", tanh }, { 0 }
/* clang-format on */

/* ---- shared.c ---- */

/* Read embd_pdrop, which should equal resid_pdrop. */
extern const struct ckpt_hf_convert ckpt_hf_embd_pdrop;
/* A number whose inverse square root is --softmax-scale. */
extern const struct ckpt_hf_convert ckpt_hf_inverse_root;
/* Number of channels of a head that are rotated. */
extern const struct ckpt_hf_convert ckpt_hf_rotary_dim;
/* The activation: a GELU as --no-bias-gelu-fusion selects it, or any activation as --activation-func. */
extern const struct ckpt_hf_convert ckpt_hf_gelu, ckpt_hf_activation;

/* ---- layers.c ---- */

/*
 * ckpt_hf_window       tokens in a window; `def` is the number if the member is missing.  Without a window, null is
 *                      written if the option of the row is "=", and otherwise nothing.
 * ckpt_hf_use_window   whether there are windows; by default not
 * ckpt_hf_first_window number of layers before the first one with a window
 * ckpt_hf_layer_types  layers with a window: a list of types, letters L and G, or the period of layers without one;
 *                      `def` is the period if the member is missing; NULL: the layers remain as they are.  If the
 *                      option of the row is "no-rope-freq", layers without a window have no rotary positions; if it is
 *                      "=no-rope-freq", only if there are windows.
 * ckpt_hf_window_pattern   the same, but not written
 * ckpt_hf_attention_types  the same, in GPT-Neo's notation
 * ckpt_hf_rotates      SmolLM3's list with 0 for layers without rotary positions, which have the window, if any;
 *                      `def` is the period of these layers if the list is missing
 * The rows are in this order; the last one determines the layers.
 */
extern const struct ckpt_hf_convert ckpt_hf_window, ckpt_hf_use_window, ckpt_hf_first_window, ckpt_hf_layer_types,
    ckpt_hf_window_pattern, ckpt_hf_attention_types, ckpt_hf_rotates;

/* ---- rope.c ---- */

/* Read rope_scaling and write it; read rope_parameters, its name in transformers 5, which takes precedence. */
extern const struct ckpt_hf_convert ckpt_hf_rope, ckpt_hf_rope_of_v5;
/* rope_parameters of Ministral 3, which has YaRN and the temperature of queries in it in all versions. */
extern const struct ckpt_hf_convert ckpt_hf_rope_of_ministral3;

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
int ckpt_hf_set_ckpt_options(struct meg_ckpt *c, struct meg_model_conf *m, const struct ckpt_hf_family *family,
                             struct meg_err *e);

/* ---- weights.c ---- */

#define CKPT_HF_WEIGHTS "model"
/* Write the weights to dir under the names of `format`: to one file, or to several files and their index. */
int ckpt_write_hf_weights(const char *dir, const struct ckpt_format *format, const struct meg_ckpt_save_args *s,
                          const struct meg_ckpt_hf_conf *to, struct meg_err *e);
