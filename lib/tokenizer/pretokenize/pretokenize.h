/*
 * pretokenize.h - texts cut into pieces by the split patterns that well-known vocabularies use, without a
 * regular expression.  Each pattern's alternatives are tried in order at each place, leftmost first, no
 * overlap; classes: unicode/char_class.h.  Every byte belongs to a piece.
 */
#ifndef MEG_TOKENIZER_PRETOKENIZE_PRETOKENIZE_H
#define MEG_TOKENIZER_PRETOKENIZE_PRETOKENIZE_H

#include <stdbool.h>
#include <stdint.h>

enum meg_pretok {
    MEG_PRETOK_GPT2,   /* Radford et al. 2019 */
    MEG_PRETOK_CL100K, /* tiktoken's cl100k_base, Llama 3 */
    MEG_PRETOK_QWEN2,  /* the same with each digit a piece */
    MEG_PRETOK_O200K,  /* tiktoken's o200k_base */
    MEG_PRETOK_TIK_V1, /* --tiktoken-pattern v1 */
    MEG_PRETOK_TIK_V2,
    MEG_NUM_PRETOKS
};

/* The pattern as those vocabularies' files spell it. */
extern const char *const meg_pretok_pattern[MEG_NUM_PRETOKS];
/* The split of a pattern spelled so; -1 when it is none of them. */
int meg_pretok_from_pattern(const char *pattern);

/* The mask of a text and a walk through its pieces.  Starts as { 0 }, serves one text after another,
 * ends with meg_pretokens_free. */
struct meg_pretokens {
    const char *text, *begin, *end; /* begin: the next piece */
    uint64_t *starts;               /* bit i: a piece begins at byte i, or the text ends there */
    int64_t cap, k;
    uint64_t bits; /* those of starts[k] that are still to come */
};

/* Split a text of n bytes, well-formed UTF-8 (anything else is a bug of the caller), which must stay
 * while its pieces are taken.  Linear in n. */
void meg_pretokens_split(struct meg_pretokens *p, enum meg_pretok pretok, const char *text, int64_t n);
void meg_pretokens_free(struct meg_pretokens *p);
/* The same at seams. */
struct meg_safe_split;
void meg_pretokens_safe_split(struct meg_pretokens *p, const struct meg_safe_split *splits, const char *text,
                              int64_t n);

/* The next piece, of *n >= 1 bytes; false at the end. */
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

/* The scanners: set the bits of starts, n / 64 + 1 words. */
void meg_pretok_gpt2(const char *text, int64_t n, uint64_t *starts);
void meg_pretok_cl100k(enum meg_pretok pretok, const char *text, int64_t n, uint64_t *starts);
void meg_pretok_o200k(enum meg_pretok pretok, const char *text, int64_t n, uint64_t *starts);

/* What (?i:'s|'t|'re|'ve|'m|'ll|'d) matches at s [n], which begins with a quote: how many bytes, long s (U+017F)
 * included; 0: nothing. */
int meg_pretok_contraction(const char *s, int64_t n);

#endif
