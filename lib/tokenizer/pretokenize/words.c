/*
 * The patterns of cl100k_base, Qwen2 and TikTokenizer's v1 over masks.  A word takes one character
 * before it that is no letter, digit or line end, unless that belongs to a piece already; numbers are
 * cut every one or three digits; signs take a blank before them and the line ends behind them; other
 * spaces are one piece up to their last line end, and what follows that but its last one, another.
 */
#include "tokenizer/pretokenize/masks.h"
#include "tokenizer/pretokenize/pretokenize.h"

/* What the block before leaves. */
struct past {
    struct masks m;          /* line ends that signs took are no spaces there */
    uint64_t taken;          /* those line ends */
    uint64_t plain;          /* spaces that are no line ends */
    uint64_t solo;           /* bytes of signs that a word behind them takes */
    int64_t indent;          /* where the spaces behind a line end begin that reach its end; -1: none */
    int ndigits;             /* since the last cut */
    struct contractions two; /* that reach into the next block */
};

/* The runs of a mask from those of their bits on that begin has: adding a bit clears a run to its end. */
static uint64_t runs_from(uint64_t mask, uint64_t begin)
{
    return mask & ~(mask + (mask & begin));
}

/* Numbers are cut at their first digit, and at every third from there. */
static uint64_t split_digits(struct past *p, const struct masks *c)
{
    uint64_t goes_on = before(c->number, p->m.number), starts = 0;

    for (uint64_t heads = c->number & ~c->tail; heads; heads &= heads - 1) {
        int i = __builtin_ctzll(heads);

        p->ndigits = (goes_on >> i & 1) && p->ndigits < 2 ? p->ndigits + 1 : 0;
        starts |= (uint64_t)(p->ndigits == 0) << i;
    }
    return starts;
}

/* Spaces behind a line end begin a piece, unless another line end follows them: that may be blocks
 * later, and then their start is taken back. */
static void split_indents(struct past *p, const struct masks *c, uint64_t plain, int64_t w, uint64_t *starts)
{
    uint64_t begin = plain & before(c->eol, p->m.eol);
    uint64_t sum = plain + (begin | (p->indent >= 0));

    starts[w] |= begin;
    for (uint64_t ends = sum & ~plain & c->eol; ends; ends &= ends - 1) {
        uint64_t lower = begin & ((ends & -ends) - 1);
        int64_t at = lower ? w * 64 + 63 - __builtin_clzll(lower) : p->indent;

        starts[at / 64] &= ~((uint64_t)1 << at % 64);
    }
    if (sum >= plain)
        p->indent = -1;
    else if (begin)
        p->indent = w * 64 + 63 - __builtin_clzll(begin);
}

static uint64_t split_contractions(struct past *p, uint64_t quotes, const char *text, int64_t n, uint64_t starts)
{
    starts = (starts & ~p->two.clear) | p->two.set;
    p->two = (struct contractions){ 0 };
    for (; quotes; quotes &= quotes - 1) {
        int i = __builtin_ctzll(quotes), len = meg_pretok_contraction(text + i, n - i);

        if (len > 0)
            starts = contract(&p->two, starts, i, len);
    }
    return starts;
}

void meg_pretok_cl100k(enum meg_pretok split, const char *text, int64_t n, uint64_t *starts)
{
    struct class_masks_reader r = meg_masks_begin(text, n);
    struct past p = { .indent = -1 };
    struct masks c, next;

    meg_masks_next(&r, &next);
    for (int64_t w = 0; w < n / 64 + 1; w++) {
        uint64_t plain, signs, solo, words, numbers;

        c = next;
        meg_masks_next(&r, &next);
        p.taken = runs_from(c.eol, before(c.other, p.m.other) | p.taken >> 63);
        c.eol &= ~p.taken;
        c.space &= ~p.taken;
        plain = c.space & ~c.eol;
        signs = c.other & ~before(c.other, p.m.other) & ~before(c.blank, p.m.blank);
        solo = signs | runs_from(c.tail, before(signs, p.solo));
        words = c.letter & ~before(c.letter | plain | solo, p.m.letter | p.plain | p.solo);
        numbers = split == MEG_PRETOK_CL100K ? split_digits(&p, &c) : c.number & ~c.tail;
        starts[w] = (c.space & ~before(c.space, p.m.space)) | signs | words | numbers |
                    last_spaces(&c, plain, nonspace_of(&c), &next, next.space & ~next.eol, nonspace_of(&next));
        if (split != MEG_PRETOK_TIK_V1)
            starts[w] = split_contractions(&p, c.quote & signs, text + 64 * w, n - 64 * w, starts[w]);
        split_indents(&p, &c, plain, w, starts);
        p.m = c;
        p.plain = plain;
        p.solo = solo;
    }
    starts[n / 64] |= (uint64_t)1 << n % 64;
}
