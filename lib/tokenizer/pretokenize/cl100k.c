/*
 * cl100k.c - match the patterns of cl100k_base, Qwen2 and TikTokenizer's v1 by class masks.  v1 has no contractions.
 *   words        A word includes one preceding character that is not a letter, number or line end.  A character that
 *                belongs to another pre-token is not included.
 *   numbers      A number is split after each third digit (cl100k_base) or after each digit (Qwen2, v1).
 *   punctuation  Punctuation includes one preceding U+0020 and the line ends that follow the punctuation.
 *   spaces       A run of the remaining spaces is split after its last line end.  If text follows the run, the last
 *                space of the run begins a pre-token, unless this space is a line end.
 */
#include "tokenizer/pretokenize/class_masks.h"
#include "tokenizer/pretokenize/pretokenize.h"

/* State carried over from the previous block. */
struct prev_block {
    struct class_masks m;  /* masks of the previous block, without the line ends in absorbed_eol */
    uint64_t absorbed_eol; /* line ends that belong to the punctuation before them */
    uint64_t nonbreak;     /* spaces that are not line ends */
    /* bytes of punctuation not preceded by punctuation or U+0020; a word that follows directly includes these bytes */
    uint64_t lead;
    int64_t indent; /* offset in the text of spaces after a line end, if they reach the end of the block; -1: none */
    int ndigits;    /* position of the last digit in its group of three, 0 to 2 */
    struct pending_contractions pending;
};

/*
 * Return the runs of ones in `mask` that start at the bits of `begin`.  Adding one of these bits to `mask` clears the
 * run that starts at the bit.
 */
static uint64_t runs_from(uint64_t mask, uint64_t begin)
{
    return mask & ~(mask + (mask & begin));
}

/* Return the starts of pre-tokens in numbers: the first digit and every third digit after it. */
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

/*
 * Add a pre-token start at the spaces after a line end, unless another line end follows the spaces.  If the other line
 * end is in a later block, the start is removed when that block is processed.
 */
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
        uint64_t nonbreak, punct, lead, words, numbers;

        c = next;
        meg_masks_next(&r, &next);
        p.absorbed_eol = runs_from(c.eol, shift_in_prev(c.other, p.m.other) | p.absorbed_eol >> 63);
        c.eol &= ~p.absorbed_eol;
        c.space &= ~p.absorbed_eol;
        nonbreak = c.space & ~c.eol;
        punct = c.other & ~shift_in_prev(c.other, p.m.other) & ~shift_in_prev(c.space_char, p.m.space_char);
        lead = punct | runs_from(c.tail, shift_in_prev(punct, p.lead));
        words = c.letter & ~shift_in_prev(c.letter | nonbreak | lead, p.m.letter | p.nonbreak | p.lead);
        numbers = pretok == MEG_PRETOK_CL100K ? split_digits(&p, &c) : c.number & ~c.tail;
        starts[w] = (c.space & ~shift_in_prev(c.space, p.m.space)) | punct | words | numbers |
                    last_spaces(&c, nonbreak, nonspace_of(&c), &next, next.space & ~next.eol, nonspace_of(&next));
        if (pretok != MEG_PRETOK_TIK_V1)
            starts[w] = split_contractions(&p, c.quote & punct, text + 64 * w, n - 64 * w, starts[w]);
        split_indents(&p, &c, nonbreak, w, starts);
        p.m = c;
        p.nonbreak = nonbreak;
        p.lead = lead;
    }
    starts[n / 64] |= (uint64_t)1 << n % 64;
}
