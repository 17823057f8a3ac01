/*
 * pretokenize.h - pre-tokenization: split text by the patterns of well-known vocabularies, without a regular expression
 * engine.  The matches of a pattern are the pre-tokens; together they cover the entire text.  The character classes are
 * defined in unicode/char_class.h.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum meg_pretok {
    MEG_PRETOK_GPT2,   /* Radford et al. 2019 */
    MEG_PRETOK_CL100K, /* tiktoken's cl100k_base, Llama 3 */
    MEG_PRETOK_QWEN2,  /* Qwen2: the pattern of cl100k_base, but each digit is a pre-token */
    MEG_PRETOK_O200K,  /* tiktoken's o200k_base */
    MEG_PRETOK_TIK_V1, /* --tiktoken-pattern v1 */
    MEG_PRETOK_TIK_V2, /* --tiktoken-pattern v2 */
    MEG_NUM_PRETOKS
};

/* The regular expressions, spelled as in the published files of the vocabularies. */
extern const char *const meg_pretok_pattern[MEG_NUM_PRETOKS];
/* Return the enum meg_pretok whose regular expression is spelled exactly like `pattern`, or -1. */
int meg_pretok_from_pattern(const char *pattern);

/*
 * The pre-tokens of a text, as a bit mask with an iterator.  The struct starts as { 0 }, can be reused for other texts,
 * and is freed by meg_pretokens_free.
 */
struct meg_pretokens {
    const char *text, *begin, *end; /* begin: start of the next pre-token */
    uint64_t *starts;               /* bit i > 0 is set if a pre-token begins at byte i or the text ends there; bit 0
                                       is ignored */
    int64_t cap, k;                 /* cap: capacity of starts; k: index of the element that `bits` belongs to */
    uint64_t bits;                  /* bits of starts[k] that the iterator has not visited */
};

/*
 * Split a text of n bytes in O(n) time.  The text must be well-formed UTF-8, and is borrowed until its last pre-token
 * is returned.
 */
void meg_pretokens_split(struct meg_pretokens *p, enum meg_pretok pretok, const char *text, int64_t n);
void meg_pretokens_free(struct meg_pretokens *p);
/*
 * Split a text into chunks at the safe split points of a vocabulary; without splits (NULL), the text is one chunk.
 * meg_pretokens_next then returns the chunks.
 */
struct meg_safe_split;
void meg_pretokens_safe_split(struct meg_pretokens *p, const struct meg_safe_split *splits, const char *text,
                              int64_t n);

/* Get the next pre-token, which has *n >= 1 bytes.  Return false at the end. */
static inline bool meg_pretokens_next(struct meg_pretokens *p, const char **s, int64_t *n)
{
    const char *stop;

    if (p->begin == p->end)
        return false;
    while (p->bits == 0)
        p->bits = p->starts[++p->k];
    stop = p->text + 64 * p->k + __builtin_ctzll(p->bits);
    p->bits &= p->bits - 1;
    *s = p->begin;
    *n = stop - p->begin;
    p->begin = stop;
    return true;
}

/*
 * Set starts [n / 64 + 1] to the bit mask of struct meg_pretokens for text [n].  meg_pretok_cl100k implements
 * MEG_PRETOK_CL100K, MEG_PRETOK_QWEN2 and MEG_PRETOK_TIK_V1; meg_pretok_o200k implements MEG_PRETOK_O200K and
 * MEG_PRETOK_TIK_V2.
 */
void meg_pretok_gpt2(const char *text, int64_t n, uint64_t *starts);
void meg_pretok_cl100k(enum meg_pretok pretok, const char *text, int64_t n, uint64_t *starts);
void meg_pretok_o200k(enum meg_pretok pretok, const char *text, int64_t n, uint64_t *starts);

/*
 * Return the length in bytes of the match of (?i:'s|'t|'re|'ve|'m|'ll|'d) at s [n], or 0 if it does not match.  The
 * first byte must be a quote.  As in Unicode case folding, U+017F matches the letter s.
 */
int meg_pretok_contraction(const char *s, int64_t n);
