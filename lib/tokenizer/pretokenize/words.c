/*
 * The patterns of cl100k_base, Qwen2 and TikTokenizer's v1 over masks.  A word takes one character
 * before it that is no letter, digit or line end, unless that belongs to a piece already; numbers are
 * cut every one or three digits; signs take a blank before them and the line ends behind them; other
 * spaces are one piece up to their last line end, and what follows that but its last one, another.
 */
#include "tokenizer/pretokenize/masks.h"
#include "tokenizer/pretokenize/pretokenize.h"

/* What the block before leaves. */
struct prev_block {
    struct class_masks m;                /* line ends that signs took are no spaces there */
    uint64_t absorbed_eol;               /* those line ends */
    uint64_t nonbreak;                   /* spaces that are no line ends */
    uint64_t lead;                       /* bytes of signs that a word behind them takes */
    int64_t indent;                      /* where the spaces behind a line end begin that reach its end; -1: none */
    int ndigits;                         /* since the last cut */
    struct pending_contractions pending; /* that reach into the next block */
};

/* The runs of a mask from those of their bits on that begin has: adding a bit clears a run to its end. */
static uint64_t runs_from(uint64_t mask, uint64_t begin)
{
    return mask & ~(mask + (mask & begin));
}

/* Numbers are cut at their first digit, and at every third from there. */
static uint64_t split_digits(struct prev_block *p, const struct class_masks *c)
{
    uint64_t continues = shift_in_prev(c->number, p->m.number), starts = 0;

    for (uint64_t heads = c->number & ~c->tail; heads; heads &= heads - 1) {
        int i = __builtin_ctzll(heads);

        p->ndigits = (continues >> i & 1) && p->ndigits < 2 ? p->ndigits + 1 : 0;
        starts |= (uint64_t)(p->ndigits == 0) << i;
    }
    return starts;
}

/* Spaces behind a line end begin a piece, unless another line end follows them: that may be blocks
 * later, and then their start is taken back. */
static void split_indents(struct prev_block *p, const struct class_masks *c, uint64_t nonbreak, int64_t w,
                          uint64_t *starts)
{
    uint64_t begin = nonbreak & shift_in_prev(c->eol, p->m.eol);
    uint64_t sum = nonbreak + (begin | (p->indent >= 0));

    starts[w] |= begin;
    for (uint64_t ends = sum & ~nonbreak & c->eol; ends; ends &= ends - 1) {
        uint64_t lower = begin & ((ends & -ends) - 1);
        int64_t at = lower ? w * 64 + 63 - __builtin_clzll(lower) : p->indent;

        starts[at / 64] &= ~((uint64_t)1 << at % 64);
    }
    if (sum >= nonbreak)
        p->indent = -1;
    else if (begin)
        p->indent = w * 64 + 63 - __builtin_clzll(begin);
}

static uint64_t split_contractions(struct prev_block *p, uint64_t quotes, const char *text, int64_t n, uint64_t starts)
{
    starts = (starts & ~p->pending.clear) | p->pending.set;
    p->pending = (struct pending_contractions){ 0 };
    for (; quotes; quotes &= quotes - 1) {
        int i = __builtin_ctzll(quotes), len = meg_pretok_contraction(text + i, n - i);

        if (len > 0)
            starts = apply_contraction(&p->pending, starts, i, len);
    }
    return starts;
}

void meg_pretok_cl100k(enum meg_pretok pretok, const char *text, int64_t n, uint64_t *starts)
{
    struct class_masks_reader r = meg_masks_begin(text, n);
    struct prev_block p = { .indent = -1 };
    struct class_masks c, next;

    meg_masks_next(&r, &next);
    for (int64_t w = 0; w < n / 64 + 1; w++) {
        uint64_t nonbreak, signs, lead, words, numbers;

        c = next;
        meg_masks_next(&r, &next);
        p.absorbed_eol = runs_from(c.eol, shift_in_prev(c.other, p.m.other) | p.absorbed_eol >> 63);
        c.eol &= ~p.absorbed_eol;
        c.space &= ~p.absorbed_eol;
        nonbreak = c.space & ~c.eol;
        signs = c.other & ~shift_in_prev(c.other, p.m.other) & ~shift_in_prev(c.space_char, p.m.space_char);
        lead = signs | runs_from(c.tail, shift_in_prev(signs, p.lead));
        words = c.letter & ~shift_in_prev(c.letter | nonbreak | lead, p.m.letter | p.nonbreak | p.lead);
        numbers = pretok == MEG_PRETOK_CL100K ? split_digits(&p, &c) : c.number & ~c.tail;
        starts[w] = (c.space & ~shift_in_prev(c.space, p.m.space)) | signs | words | numbers |
                    last_spaces(&c, nonbreak, nonspace_of(&c), &next, next.space & ~next.eol, nonspace_of(&next));
        if (pretok != MEG_PRETOK_TIK_V1)
            starts[w] = split_contractions(&p, c.quote & signs, text + 64 * w, n - 64 * w, starts[w]);
        split_indents(&p, &c, nonbreak, w, starts);
        p.m = c;
        p.nonbreak = nonbreak;
        p.lead = lead;
    }
    starts[n / 64] |= (uint64_t)1 << n % 64;
}
