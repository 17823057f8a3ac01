/*
 * GPT-2's pattern over masks: a piece begins where the class changes, except that one blank goes with
 * what follows it, and that the last of several spaces before something else is cut off from the
 * others.  What asks for a look at single bytes is rare: contractions.
 */
#include "tokenizer/pretokenize/masks.h"
#include "tokenizer/pretokenize/pretokenize.h"

/* Length of the contraction at s, which begins with a quote; 0 when there is none. */
static int contraction(const char *s, int64_t n)
{
    if (n >= 2 && (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd'))
        return 2;
    if (n >= 3 && ((s[1] == 'r' && s[2] == 'e') || (s[1] == 'v' && s[2] == 'e') || (s[1] == 'l' && s[2] == 'l')))
        return 3;
    return 0;
}

/* Piece starts of block c, contractions left out. */
static uint64_t starts_of(const struct masks *p, const struct masks *c, const struct masks *x)
{
    uint64_t solid = nonspace_of(c);
    uint64_t changed = (c->letter & ~before(c->letter, p->letter)) | (c->number & ~before(c->number, p->number)) |
                       (c->space & ~before(c->space, p->space)) | (c->other & ~before(c->other, p->other));
    uint64_t glued = before(c->blank, p->blank) & solid;

    return (changed & ~glued) | last_spaces(c, c->space, solid, x, x->space, nonspace_of(x));
}

void meg_pretok_gpt2(const char *text, int64_t n, uint64_t *starts)
{
    struct class_masks_reader r = meg_masks_begin(text, n);
    struct masks prev, cur = { 0 }, next;
    struct contractions c = { 0 };

    meg_masks_next(&r, &next);
    for (int64_t w = 0; w < n / 64 + 1; w++) {
        uint64_t b, quotes;

        prev = cur;
        cur = next;
        meg_masks_next(&r, &next);
        b = (starts_of(&prev, &cur, &next) & ~c.clear) | c.set;
        quotes = cur.quote & ~before(cur.other, prev.other) & ~before(cur.blank, prev.blank);
        c = (struct contractions){ 0 };
        for (; quotes; quotes &= quotes - 1) {
            int i = __builtin_ctzll(quotes);
            int len = contraction(text + w * 64 + i, n - (w * 64 + i));

            if (len > 0)
                b = contract(&c, b, i, len);
        }
        starts[w] = b;
    }
    starts[n / 64] |= (uint64_t)1 << n % 64;
}
