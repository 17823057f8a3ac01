/*
 * files.h - the files of a Hugging Face tokenizer directory: tokenizer.json, tokenizer_config.json and
 * special_tokens_map.json (private to lib/tokenizer, which exports and tests need it for).
 *
 * The components of tokenizer.json are declared in tokenizer/hf/internal.h.
 */
#ifndef MEG_TOKENIZER_HF_FILES_H
#define MEG_TOKENIZER_HF_FILES_H

#include "base/decls.h"
#include "base/trie.h"
#include "tokenizer/bpe/byte_level.h"
#include "tokenizer/hf/internal.h"
#include "tokenizer/safe_split.h"

MEG_BEGIN_DECLS

/* An added token: matched in the text before the model sees it. */
struct meg_hf_added_token {
    struct meg_str content;
    int32_t id;
    bool single_word;    /* match only between characters that are not \w */
    bool lstrip, rstrip; /* a match includes the whitespace on this side */
    bool normalized;     /* match in normalized text */
};

/* Finds added tokens in text; values of the trie are their indices. */
struct meg_hf_added_matcher {
    struct meg_trie trie;
    bool is_first_byte[256];  /* some token begins with this byte */
    int nfirst_bytes;         /* number of true elements; 0: there are no tokens */
    unsigned char first_byte; /* one of them */
};

/* Safe split points of text before it is normalized. */
struct meg_hf_safe_split {
    struct meg_safe_split table;
    bool is_tokenless[256]; /* the byte on its own has no ids: whitespace */
    int64_t max_gap;        /* largest normalized chunk in bytes */
};

struct meg_hf_files {
    struct meg_hf_normalizer *normalizer;
    struct meg_hf_pretokenizer *pretokenizer;
    struct meg_hf_model model;
    struct meg_hf_decoder *decoder;
    bool is_byte_level; /* byte_level replaces pretokenizer and model */
    bool add_prefix_space;
    struct meg_bytebpe byte_level;
    struct meg_hf_safe_split *safe_split; /* NULL: no safe split points are known */
    struct meg_hf_added_token *added;
    int64_t nadded;
    int32_t max_added;                                           /* largest id of added, or -1 */
    bool is_renumbered;                                          /* some id of added differs from the one in the file */
    struct meg_strtab contents;                                  /* of added, in the same order */
    struct meg_hf_added_matcher raw_matcher, normalized_matcher; /* added tokens with normalized false, true */
    struct meg_ids template_before, template_after;              /* ids that the post-processor adds to a text */
    bool clean_up;                                               /* decoding removes spaces before punctuation */
    struct meg_tok_special_ids special_ids;
    int64_t vocab_size;    /* largest id + 1 */
    struct meg_str *token; /* [vocab_size] by id, borrowed from model.vocab and added; s NULL: no such id */
};

/*
 * meg_hf_files_load - read c->tokenizer_json and, unless NULL, c->tokenizer_config and c->special_tokens_map.
 * MEG_EFORMAT, with file and component in the message, for malformed files, unsupported types, ids that are out of
 * range or used twice, merges of tokens that are not in the vocabulary, regular expressions that do not compile, and
 * files of more than 64 MiB.
 */
int meg_hf_files_load(struct meg_hf_files **out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_hf_files_free(struct meg_hf_files *f); /* accepts NULL */

/*
 * Limits in bytes of text that is encoded at once: of a chunk between safe split points; between added tokens where
 * no split points are known; and of normalized text for byte-level BPE.  The first two need about 15 bytes of memory
 * per byte before, and 35 per byte after normalization.
 */
enum { MEG_HF_MAX_CHUNK = 16 << 20, MEG_HF_MAX_UNSPLIT = 6 << 20, MEG_HF_MAX_BYTE_LEVEL = 64 << 20 };

/* Return the files of a HuggingFaceTokenizer or PretrainedFromHF, which t owns. */
struct meg_hf_files *meg_hf_files_of(struct meg_tokenizer *t);

/*
 * meg_hf_safe_split_build - set f->safe_split, unless the components allow no safe split points (safe_split.c)
 * All other fields must be set.
 */
int meg_hf_safe_split_build(struct meg_hf_files *f, struct meg_err *e);

MEG_END_DECLS

#endif
