/*
 * pretokenize.c - pre-tokenization: split text by the patterns of well-known vocabularies, without a regular expression
 * engine.
 */
#include "tokenizer/pretokenize/pretokenize.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "tokenizer/safe_split.h"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]"
#define OTHER " ?[^\\s\\p{L}\\p{N}]+"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

const char *const meg_pretok_pattern[MEG_NUM_PRETOKS] = {
    [MEG_PRETOK_GPT2] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" OTHER "|\\s+(?!\\S)|\\s+",
    [MEG_PRETOK_CL100K] = CONTRACTION "|" LEAD "?\\p{L}+|\\p{N}{1,3}|" OTHER "[\\r\\n]*|" SPACES,
    [MEG_PRETOK_QWEN2] = CONTRACTION "|" LEAD "?\\p{L}+|\\p{N}|" OTHER "[\\r\\n]*|" SPACES,
    [MEG_PRETOK_O200K] = LEAD "?" UPPER "*" LOWER "+" CONTRACTION "?|" LEAD "?" UPPER "+" LOWER "*" CONTRACTION
                              "?|\\p{N}{1,3}|" OTHER "[\\r\\n/]*|" SPACES,
    [MEG_PRETOK_TIK_V1] = LEAD "?+\\p{L}+|\\p{N}|" OTHER "+[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
    [MEG_PRETOK_TIK_V2] = LEAD "?" UPPER "*" LOWER "+|" LEAD "?" UPPER "+" LOWER "*|\\p{N}|" OTHER "[\\r\\n/]*|" SPACES,
};

int meg_pretok_from_pattern(const char *pattern)
{
    for (int k = 0; k < MEG_NUM_PRETOKS; k++) {
        if (strcmp(pattern, meg_pretok_pattern[k]) == 0)
            return k;
    }
    return -1;
}

int meg_pretok_contraction(const char *s, int64_t n)
{
    int a, b;

    if (n < 2)
        return 0;
    a = s[1] | 0x20;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (n < 3)
        return 0;
    if (memcmp(s + 1, "\xC5\xBF", 2) == 0)
        return 3;
    b = s[2] | 0x20;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

static uint64_t *reserve_mask(struct meg_pretokens *p, int64_t n)
{
    if (n / 64 + 1 > p->cap) {
        p->cap = n / 64 + 1;
        p->starts = meg_realloc_array(p->starts, (size_t)p->cap, sizeof *p->starts);
    }
    return p->starts;
}

static void begin(struct meg_pretokens *p, const char *text, int64_t n)
{
    p->text = p->begin = text;
    p->end = text + n;
    p->k = 0;
    p->bits = p->starts[0] & ~(uint64_t)1;
}

void meg_pretokens_split(struct meg_pretokens *p, enum meg_pretok pretok, const char *text, int64_t n)
{
    uint64_t *starts = reserve_mask(p, n);

    if (pretok == MEG_PRETOK_GPT2)
        meg_pretok_gpt2(text, n, starts);
    else if (pretok == MEG_PRETOK_O200K || pretok == MEG_PRETOK_TIK_V2)
        meg_pretok_o200k(pretok, text, n, starts);
    else
        meg_pretok_cl100k(pretok, text, n, starts);
    begin(p, text, n);
}

void meg_pretokens_safe_split(struct meg_pretokens *p, const struct meg_safe_split *splits, const char *text, int64_t n)
{
    uint64_t *starts = reserve_mask(p, n);

    if (splits) {
        meg_safe_split_find(splits, text, n, starts);
    } else {
        memset(starts, 0, (size_t)(n / 64 + 1) * sizeof *starts);
        starts[n / 64] |= (uint64_t)1 << n % 64;
    }
    begin(p, text, n);
}

void meg_pretokens_free(struct meg_pretokens *p)
{
    free(p->starts);
}
