/*
 * added.h - the added tokens of a tokenizer, which are matched in the text before the model encodes the rest (private
 * to lib/tokenizer/hf).
 *
 * The rules are those of Hugging Face tokenizers 0.22.2 (added_vocabulary.rs).  A token can be added several times:
 * each time, its flags replace the previous ones, but not its id.
 */
#pragma once
#include "tokenizer/hf/internal.h"
#include "tokenizer/trie.h"

/* The files that can name a token: bits of named_in. */
enum {
    MEG_HF_IN_TOKENIZER = 1,   /* tokenizer.json */
    MEG_HF_IN_CONFIG = 2,      /* tokenizer_config.json */
    MEG_HF_IN_SPECIAL_MAP = 4, /* special_tokens_map.json */
    MEG_HF_IN_ADDED = 8,       /* added_tokens.json */
    MEG_HF_IN_CLASS = 16       /* a default of the tokenizer class */
};

struct meg_hf_token_flags {
    bool single_word;    /* matched only if no neighboring character is a word character (\w) */
    bool lstrip, rstrip; /* a match includes the whitespace before it (lstrip) or after it (rstrip) */
    bool normalized;     /* true: matched in normalized text; false: matched in the original text */
    bool special;
};

/* A token to add: transformers' str or AddedToken. */
struct meg_hf_token {
    const char *s; /* content, borrowed; NULL: no token */
    size_t n;
    struct meg_hf_token_flags flags;
    bool has_normalized; /* false: flags.normalized is the negation of flags.special */
    bool is_object;      /* true: AddedToken; false: str, which has no flags */
    int64_t given_id;    /* id in the file, or -1 */
    unsigned named_in;   /* MEG_HF_IN_* */
};

struct meg_hf_token_list {
    struct meg_hf_token *v;
    int64_t n, cap;
};

void meg_hf_token_list_add(struct meg_hf_token_list *list, const struct meg_hf_token *t);
/* Return whether the flags and contents are equal, as == of AddedToken does. */
bool meg_hf_token_equals(const struct meg_hf_token *a, const struct meg_hf_token *b);
/*
 * Set *t to a token in JSON, which must outlive t: a string, or an object with "content" and flags.  Returns
 * MEG_EFORMAT for another type.
 */
int meg_hf_token_load(struct meg_hf_token *t, const json_t *value, unsigned named_in, const char *where,
                      struct meg_err *e);

/* An added token. */
struct meg_hf_added_token {
    struct meg_str content;
    int32_t id;
    struct meg_hf_token_flags flags; /* those of the last addition */
    uint32_t known_flags;            /* combinations of flags before and in the current call of meg_hf_added_add */
    bool is_special;                 /* true if some addition was special */
    unsigned named_in;               /* MEG_HF_IN_* */
};

/* A text that is searched for a token, with the flag `normalized` that the token had when the pattern was created. */
struct meg_hf_added_pattern {
    int32_t token;
    bool normalized;
};

/* A matcher that finds added tokens in text.  The trie maps each token to its index in meg_hf_added.v. */
struct meg_hf_added_matcher {
    struct meg_trie trie;
    bool is_first_byte[256];  /* true if some token begins with this byte */
    int nfirst_bytes;         /* number of true elements of is_first_byte; 0: there are no tokens */
    unsigned char first_byte; /* a byte for which is_first_byte is true */
};

/* The added tokens.  { 0 } has none. */
struct meg_hf_added {
    struct meg_hf_added_token *v;
    int64_t n;
    int32_t next_id;            /* largest id of the n tokens plus 1 */
    bool is_renumbered;         /* true if the id of some token differs from the id in the file */
    struct meg_strtab contents; /* contents of the tokens, in the order of v */
    /* A token has one pattern for the first addition that is special, and one for each earlier addition. */
    struct meg_hf_added_patterns {
        struct meg_hf_added_pattern *v;
        int64_t n, cap;
    } special, other;
    /* raw finds tokens in the original text, normalized in normalized text */
    struct meg_hf_added_matcher raw, normalized;
};

/* Return the added token s [n], or NULL. */
const struct meg_hf_added_token *meg_hf_added_find(const struct meg_hf_added *a, const char *s, size_t n);
/*
 * Add tokens [n], in this order.  Empty tokens are ignored, and so are tokens with flags that the token had before the
 * call or was given in it.  A new token has its id in `vocab`, or else the next id after all others.  `path` is the
 * name of the file in the warning that an id differs from the id in the file.
 */
void meg_hf_added_add(struct meg_hf_added *a, const struct meg_hf_token *token, int64_t n,
                      const struct meg_hf_vocab *vocab, const char *path);
/* Record that a file names an added token; ignore other tokens. */
void meg_hf_added_name(struct meg_hf_added *a, const struct meg_hf_token *token);
/*
 * Build both matchers.  norm, which may be NULL, normalizes the patterns of a->normalized.  Returns MEG_EFORMAT if a
 * pattern is empty after normalization; otherwise fails as meg_hf_normalizer_run and meg_trie_build do.
 */
int meg_hf_added_build(struct meg_hf_added *a, const struct meg_hf_steps *norm, const char *path, struct meg_err *e);
/* A match of an added token in a text. */
struct meg_hf_match {
    const char *s, *stop; /* range of the match, including the whitespace that lstrip and rstrip add */
    const char *own_stop; /* end of the token itself; the search for the next match begins here */
};

/*
 * Return the first added token of a matcher after the match *at, and set *at to its match; return NULL if there is
 * none.  If splits_special is set, special tokens are not matched.
 */
const struct meg_hf_added_token *meg_hf_added_next(const struct meg_hf_added *added,
                                                   const struct meg_hf_added_matcher *f, bool splits_special,
                                                   const char *text, const char *end, struct meg_hf_match *at);
void meg_hf_added_free(struct meg_hf_added *a);
