/*
 * classes.h - what the tokenizer classes of transformers change in a tokenizer.json (private to lib/tokenizer/hf).
 *
 * The table reproduces the fast classes of transformers 4.57.3 (src/transformers/models/NAME/tokenization_NAME_fast.py).
 * AutoTokenizer selects a class by tokenizer_class in tokenizer_config.json or, without this member, by tokenizer_class
 * or model_type in config.json.
 */
#ifndef MEG_TOKENIZER_HF_CLASSES_H
#define MEG_TOKENIZER_HF_CLASSES_H
#include <stdbool.h>
#include "base/decls.h"

MEG_BEGIN_DECLS

#define MEG_HF_TRANSFORMERS "4.57.3" /* the release of transformers that is reproduced */

/* Roles of special tokens, in the order in which transformers adds the tokens. */
enum meg_hf_role {
    MEG_HF_BOS,
    MEG_HF_EOS,
    MEG_HF_UNK,
    MEG_HF_SEP,
    MEG_HF_PAD,
    MEG_HF_CLS,
    MEG_HF_MASK,
    MEG_HF_NUM_ROLES
};
extern const char *const meg_hf_role_names[MEG_HF_NUM_ROLES]; /* "bos_token", "eos_token", ... */

/* Default of add_prefix_space in tokenizer_config.json. */
enum meg_hf_prefix_space {
    MEG_HF_PREFIX_FALSE,     /* false, also if the ByteLevel pre-tokenizer of tokenizer.json says true */
    MEG_HF_PREFIX_UNCHANGED, /* the pre-tokenizer of tokenizer.json is not changed */
    MEG_HF_PREFIX_NESTED     /* false; true also changes the ByteLevel steps of a Sequence */
};

/* Special tokens that a class adds to additional_special_tokens. */
enum meg_hf_more_tokens {
    MEG_HF_MORE_NONE,
    MEG_HF_MORE_T5,         /* <extra_id_0>, ..., unless additional_special_tokens contains such a token */
    MEG_HF_MORE_CODE_LLAMA, /* prefix_token, middle_token, suffix_token and eot_token */
    MEG_HF_MORE_XGLM        /* <madeupword0> to <madeupword6> */
};

struct meg_hf_class {
    const char *name;   /* without the suffix Fast */
    const char *models; /* values of model_type in config.json that select the class, separated by spaces; or NULL */
    /* Default special tokens; "" if the default is none (null), NULL if the class has no default. */
    const char *role[MEG_HF_NUM_ROLES];
    const char *additional[3]; /* default additional_special_tokens */
    unsigned replaces; /* bits of the roles whose token, given as a string, replaces the flags of an added token */
    bool is_mask_normalized; /* normalized of such a mask_token, which has lstrip; false for other roles */
    bool has_template;       /* add_bos_token and add_eos_token replace the post-processor of tokenizer.json */
    bool adds_bos;           /* default of add_bos_token; the default of add_eos_token is false */
    /* The members of tokenizer_config.json that replace those of a BertNormalizer, or NULL; the last element is NULL. */
    const char *const *normalizer_members;
    enum meg_hf_prefix_space prefix_space;
    bool
        has_legacy_prefix; /* with add_prefix_space, "legacy" determines normalizer and pre-tokenizer of SentencePiece */
    enum meg_hf_more_tokens more;
};

/* Return the class with this name, with or without the suffix Fast, or NULL if its rules are not known. */
const struct meg_hf_class *meg_hf_class_find(const char *name);
/* Return the name of the class for a model_type in config.json, or NULL if there is none. */
const char *meg_hf_class_of_model(const char *model_type);

MEG_END_DECLS

#endif
