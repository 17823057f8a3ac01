/*
 * gpt2.c - match GPT-2's pattern by class masks.  A pre-token begins where the class changes, with two exceptions.  One
 * U+0020 before a nonspace belongs to the pre-token of the nonspace.  The last of several spaces before a nonspace
 * begins a pre-token.  Contractions, which are rare, are handled byte by byte.
 */
#include "tokenizer/pretokenize/class_masks.h"
#include "tokenizer/pretokenize/pretokenize.h"

/* Return the length of the contraction at s, or 0 if there is none.  s must begin with a quote. */
static int contraction(const char *s, int64_t n)
{
    if (n >= 2 && (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd'))
        return 2;
    if (n >= 3 && ((s[1] == 'r' && s[2] == 'e') || (s[1] == 'v' && s[2] == 'e') || (s[1] == 'l' && s[2] == 'l')))
        return 3;
    return 0;
}

/* Return the pre-token starts of block cur, ignoring contractions. */
static uint64_t pretoken_starts(const struct class_masks *prev, const struct class_masks *cur,
                                const struct class_masks *next)
{
    uint64_t nonspace = nonspace_of(cur);
    uint64_t changed = (cur->letter & ~shift_in_prev(cur->letter, prev->letter)) |
                       (cur->number & ~shift_in_prev(cur->number, prev->number)) |
                       (cur->space & ~shift_in_prev(cur->space, prev->space)) |
                       (cur->other & ~shift_in_prev(cur->other, prev->other));
    uint64_t glued = shift_in_prev(cur->space_char, prev->space_char) & nonspace;

    return (changed & ~glued) | last_spaces(cur, cur->space, nonspace, next, next->space, nonspace_of(next));
}

void meg_pretok_gpt2(const char *text, int64_t n, uint64_t *starts)
{
    struct class_masks_reader r = meg_masks_begin(text, n);
    struct class_masks prev, cur = { 0 }, next;
    struct pending_contractions pending = { 0 };

    meg_masks_next(&r, &next);
    for (int64_t w = 0; w < n / 64 + 1; w++) {
        uint64_t b, quotes;

        prev = cur;
        cur = next;
        meg_masks_next(&r, &next);
        b = (pretoken_starts(&prev, &cur, &next) & ~pending.clear) | pending.set;
        quotes = cur.quote & ~shift_in_prev(cur.other, prev.other) & ~shift_in_prev(cur.space_char, prev.space_char);
        pending = (struct pending_contractions){ 0 };
        for (; quotes; quotes &= quotes - 1) {
            int i = __builtin_ctzll(quotes);
            int len = contraction(text + w * 64 + i, n - (w * 64 + i));

            if (len > 0)
                b = apply_contraction(&pending, b, i, len);
        }
        starts[w] = b;
    }
    starts[n / 64] |= (uint64_t)1 << n % 64;
}
