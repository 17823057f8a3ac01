/*
 * config.h - what transformers changes in a tokenizer.json (private to lib/tokenizer/hf).  The changes depend on the
 * tokenizer class and on three files beside tokenizer.json:
 *
 *   what                 read from, in order; the first file that has it wins
 *   class                tokenizer_class in tokenizer_config.json; tokenizer_class, then model_type in config.json
 *   added_tokens_decoder tokenizer_config.json; without it, the union of added_tokens.json and of added_tokens in
 *                        tokenizer.json, which wins for an id that both have
 *   bos_token, ...       special_tokens_map.json, but only if tokenizer_config.json has no added_tokens_decoder;
 *                        tokenizer_config.json; the class
 *   additional_special_tokens  tokenizer_config.json and special_tokens_map.json (under the same condition), joined;
 *                        without them, the class
 *   add_bos_token, ...   tokenizer_config.json; the class.  They replace the post-processor for the classes with
 *                        has_template only
 *   do_lower_case, ...   tokenizer_config.json; true, null and true.  They replace the members of a BertNormalizer for
 *                        the classes with nnormalizer_members > 0 only
 *   add_prefix_space     tokenizer_config.json; false.  It replaces that of the ByteLevel pre-tokenizer
 *   split_special_tokens tokenizer_config.json
 *
 * The tokens of added_tokens_decoder are added in the order of their ids, and replace the flags of equal tokens in
 * tokenizer.json.  Special tokens follow, in the order of enum meg_hf_role.  A special token that is a string has the
 * flags that the file of added_tokens_decoder gives it.  A string that is an added token already is not added again.
 * A tokenizer.json without any of the other files is read as the tokenizers library reads it.
 *
 * Source: PreTrainedTokenizerBase._from_pretrained and PreTrainedTokenizerFast.__init__ in transformers 4.57.3.
 */
#pragma once
#include "base/decls.h"
#include "tokenizer/hf/added.h"
#include "tokenizer/hf/files.h"

/*
 * ---- Tokenizer classes (classes.c) ----
 * The table reproduces the fast classes of transformers 4.57.3
 * (src/transformers/models/NAME/tokenization_NAME_fast.py).  AutoTokenizer selects a class by tokenizer_class in
 * tokenizer_config.json or, without this member, by tokenizer_class or model_type in config.json.
 */

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
    /* how many of do_lower_case, strip_accents and tokenize_chinese_chars replace the members of a BertNormalizer */
    int nnormalizer_members;
    enum meg_hf_prefix_space prefix_space;
    bool has_legacy_prefix; /* with add_prefix_space, "legacy" determines the steps before SentencePiece's model */
    enum meg_hf_more_tokens more;
};

/* Return the class with this name, with or without the suffix Fast, or NULL if its rules are not known. */
const struct meg_hf_class *meg_hf_class_find(const char *name);
/* Return the name of the class for a model_type in config.json, or NULL if there is none. */
const char *meg_hf_class_of_model(const char *model_type);

/* ---- Files ---- */

struct meg_hf_config {
    const struct meg_hf_class *rules;             /* NULL: there are no files beside tokenizer.json */
    json_t *config, *special_map, *added, *model; /* the files; NULL: no such file */
    json_t *differences; /* strings: what the files contradict each other about, and what is used */
    const char *config_path, *special_map_path, *added_path; /* borrowed */
};

/* Read the files beside c->tokenizer_json.  The caller frees h, also after a failure. */
int meg_hf_config_read(struct meg_hf_config *h, const struct meg_tok_conf *c, struct meg_err *e);
void meg_hf_config_free(struct meg_hf_config *h);

/* Set *out to a boolean member of tokenizer_config.json; null is false, and a missing member leaves *out unchanged. */
int meg_hf_config_flag(const struct meg_hf_config *h, const char *key, bool *out, struct meg_err *e);

/*
 * Change the components of a tokenizer.json as the class does.  Set *is_normalizer_changed if the normalizer is
 * changed; added tokens are normalized by the original normalizer.
 */
int meg_hf_config_patch(const struct meg_hf_config *h, json_t *tokenizer, bool *is_normalizer_changed,
                        struct meg_err *e);

/*
 * Add the tokens that the files and the class name, and set f->special_ids, the template and the other settings.
 *   own        added_tokens of tokenizer.json, which are in f->added already
 *   tokenizer  the tokenizer.json
 */
int meg_hf_config_apply(const struct meg_hf_config *h, struct meg_hf_files *f, const struct meg_hf_token_list *own,
                        const json_t *tokenizer, struct meg_err *e);

/* ---- Contradictions (config_differences.c) ---- */

/* Append a string to h->differences. */
void meg_hf_config_note(const struct meg_hf_config *h, const char *fmt, ...) MEG_PRINTF(2, 3);
/* Note that special_tokens_map.json and tokenizer_config.json have different tokens for the role `key`. */
void meg_hf_config_note_role(const struct meg_hf_config *h, const char *key, bool is_legacy);
/*
 * Append the differences in id or flags between `added` and those tokens of the list that only one file names.
 *   named_in  the file, one of MEG_HF_IN_*
 *   file      its name in the text
 */
void meg_hf_config_note_differences(const struct meg_hf_config *h, const struct meg_hf_added *added,
                                    const struct meg_hf_token_list *list, unsigned named_in, const char *file);
