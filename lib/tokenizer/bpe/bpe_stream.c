/*
 * bpe_stream.c - a long pre-token is cut at offsets that no merge crosses.  The parts between two cuts are merged
 * independently.
 *
 * Let x and y be sequences of symbols, and let x y be their concatenation.  Merged independently, x becomes u, and y
 * becomes v.  Let p be the part of x that became the last symbol of u, and q the part of y that became the first symbol
 * of v.  If p q merges to the same two symbols, x y merges to u v: the cut between x and y is safe.
 *
 * Proof: Both variants of BPE merge the adjacent pair of lowest rank first, from left to right.  As long as no merge
 * crosses the ends of a range of symbols, the range is merged as if it were alone, in the same order.  Suppose that a
 * merge crosses the cut while x y is merged, and let m be the first such merge.  Before m, p q is merged as if p q were
 * alone.  Therefore m would cross the cut in p q alone.  This contradicts the assumption.
 *
 * To find a cut, a window is merged.  The cut is between two of the resulting symbols, s and t, well before the end of
 * the window.  The next window begins at the cut.  If the first resulting symbol of the next window is t again, the cut
 * is safe, since s and t did not merge in the first window.  Otherwise the cut is checked by merging p q.  Here p is
 * the part that became s, and q is the part that became the first symbol of the next window.  If the cut is not safe,
 * the cut before s is tried.
 *
 * Let the rest be the part of the pre-token from the start of the window on.  The check requires that the window and
 * the rest merge to the same first symbol.  They do, by induction from the last window, which has no cut at its end.
 *
 * If no safe cut is found, the window is enlarged.  The first resulting symbol of the window may change, so the cut
 * before the window is checked again.  If that cut is not safe, merging fails, since the result before the cut has
 * already been output.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "tokenizer/bpe/bpe.h"

enum { MAX_CUTS_TRIED = 16 }; /* number of cuts to try in a window before enlarging it */

/* A merged window.  sym[k] was merged from the input symbols offsets[k] .. offsets[k + 1] - 1 of the window. */
struct window {
    int32_t *sym, *offsets;
    int64_t n;
};

struct stream {
    const struct meg_bpe_stream *s;
    int64_t size;     /* symbols per window */
    int32_t *pending; /* [2 * size] input symbols whose result was not output yet */
    int64_t n;        /* number of pending symbols; less than 2 * size at the end of the input */
    struct window cur, next;
    int32_t *last; /* [nlast] input symbols that were merged to the last output symbol */
    int64_t nlast;
};

static void set_size(struct stream *x, int64_t size)
{
    x->size = size;
    x->pending = meg_realloc_array(x->pending, 2 * (size_t)size, sizeof *x->pending);
    for (int k = 0; k < 2; k++) {
        struct window *w = k ? &x->next : &x->cur;

        w->sym = meg_realloc_array(w->sym, (size_t)size, sizeof *w->sym);
        w->offsets = meg_realloc_array(w->offsets, (size_t)size + 1, sizeof *w->offsets);
    }
}

static void fill(struct stream *x)
{
    x->n += x->s->read(x->s->ctx, x->pending + x->n, 2 * x->size - x->n);
}

/* Merge the window that begins at pending symbol `from`. */
static void merge(const struct stream *x, struct window *w, int64_t from)
{
    int64_t n = x->n - from < x->size ? x->n - from : x->size;

    memcpy(w->sym, x->pending + from, (size_t)n * sizeof *w->sym);
    w->n = meg_bpe_merge_offsets(x->s->bpe, x->s->is_leftmost, w->sym, n, w->offsets);
    w->offsets[w->n] = (int32_t)n;
}

/* Return whether the concatenation of left [n] and right [m] merges to two symbols, one for left and one for right. */
static bool is_safe_cut(const struct stream *x, const int32_t *left, int64_t n, const int32_t *right, int64_t m)
{
    int32_t *sym = meg_realloc_array(NULL, (size_t)(n + m), sizeof *sym);
    int32_t *begin = meg_realloc_array(NULL, (size_t)(n + m), sizeof *begin);
    bool is_safe;

    memcpy(sym, left, (size_t)n * sizeof *sym);
    memcpy(sym + n, right, (size_t)m * sizeof *sym);
    is_safe = meg_bpe_merge_offsets(x->s->bpe, x->s->is_leftmost, sym, n + m, begin) == 2 && begin[1] == n;
    free(sym);
    free(begin);
    return is_safe;
}

/*
 * Find a safe cut in the current window, and merge the next window, which begins at the cut.  Return the number of
 * resulting symbols before the cut, or 0 if no cut was found.
 */
static int64_t find_cut(struct stream *x)
{
    int64_t k = x->cur.n - 1;

    while (k > 1 && x->cur.offsets[k] > x->size / 4 * 3)
        k--;
    for (int i = 0; i < MAX_CUTS_TRIED && k > 0; i++, k--) {
        const int32_t *begin = x->cur.offsets + k;

        merge(x, &x->next, begin[0]);
        if (x->next.offsets[1] == begin[1] - begin[0] ||
            is_safe_cut(x, x->pending + begin[-1], begin[0] - begin[-1], x->pending + begin[0], x->next.offsets[1]))
            return k;
    }
    return 0;
}

/* Double the window.  Return false if the cut before the window is no longer safe. */
static bool grow_window(struct stream *x)
{
    int64_t was = x->cur.offsets[1];

    set_size(x, 2 * x->size);
    fill(x);
    merge(x, &x->cur, 0);
    return x->nlast == 0 || x->cur.offsets[1] == was ||
           is_safe_cut(x, x->last, x->nlast, x->pending, x->cur.offsets[1]);
}

static int put(struct stream *x, int64_t k, struct meg_err *e)
{
    const int64_t n = x->cur.offsets[k];
    const struct window was = x->cur;
    int r;

    if ((r = x->s->put(x->s->ctx, x->cur.sym, k, e)) < 0)
        return r;
    x->nlast = n - x->cur.offsets[k - 1];
    x->last = meg_realloc_array(x->last, (size_t)x->nlast, sizeof *x->last);
    memcpy(x->last, x->pending + n - x->nlast, (size_t)x->nlast * sizeof *x->last);
    memmove(x->pending, x->pending + n, (size_t)(x->n - n) * sizeof *x->pending);
    x->n -= n;
    fill(x);
    x->cur = x->next;
    x->next = was;
    return 0;
}

int meg_bpe_stream(const struct meg_bpe_stream *s, struct meg_err *e)
{
    struct stream x = { .s = s };
    int64_t k;
    int r = 0;

    set_size(&x, s->window);
    fill(&x);
    if (x.n > 0)
        merge(&x, &x.cur, 0);
    while (r == 0 && x.n > x.size) {
        if ((k = find_cut(&x)) > 0)
            r = put(&x, k, e);
        else if (!grow_window(&x))
            r = meg_fail(e, MEG_EFORMAT,
                         "a word of %" PRId64 " bytes is too long to encode at once, and encoding it in parts would "
                         "change its tokens; insert a space or a line break in the word",
                         s->nbytes);
    }
    if (r == 0 && x.n > 0)
        r = s->put(s->ctx, x.cur.sym, x.cur.n, e);
    free(x.pending);
    free(x.last);
    for (int i = 0; i < 2; i++) {
        free(i ? x.next.sym : x.cur.sym);
        free(i ? x.next.offsets : x.cur.offsets);
    }
    return r;
}
