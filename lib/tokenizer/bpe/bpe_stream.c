/*
 * A long piece is cut where its symbols are never merged across, and what lies between two cuts is
 * merged by itself.
 *
 * Let x be symbols that are merged by themselves to u, and y to v.  If the last symbol of u and the first
 * one of v, taken apart into what they were made from and merged by themselves, become those two again,
 * then x y becomes u v.  For merging is always that of the lowest rank, leftmost first: a part of the
 * symbols that nothing is merged into from outside goes through the same merges, in the same order, as it
 * does alone.  So up to the first merge across the cut, the symbols of u's last and v's first go through
 * what they do as a pair, where that merge would have been made, too.
 *
 * A window is merged, and cut well before its end between two of its symbols u and t.  The next window
 * begins there.  If it begins with t again, u and t are known to stay apart; if not, u and what it begins
 * with are tried, and if they do not, a cut before that.  That what a window begins with is what the rest
 * of the piece begins with follows in the same way from the cuts behind it, the last window being whole.
 *
 * Where no cut is found the window is made larger.  It may then begin with another symbol, which has to
 * stay apart from the one before, too; what was put out cannot be taken back.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/bpe/bpe.h"

enum { MAX_CUTS_TRIED = 16 }; /* cuts tried in a window before it is made larger */

/* Symbols of the piece merged: sym[k] from those that begin at begin[k], up to begin[k + 1]. */
struct window {
    int32_t *sym, *offsets;
    int64_t n;
};

struct stream {
    const struct meg_bpe_stream *s;
    int64_t size;   /* of a window */
    int32_t *piece; /* [2 size] symbols of the piece that are still to be put out; */
    int64_t n;      /* so many are at hand; less than 2 size: there are no more */
    struct window cur, next;
    int32_t *last; /* [nlast] what the last symbol that was put out was made from */
    int64_t nlast;
};

static void set_size(struct stream *x, int64_t size)
{
    x->size = size;
    x->piece = meg_realloc_array(x->piece, 2 * (size_t)size, sizeof *x->piece);
    for (int k = 0; k < 2; k++) {
        struct window *w = k ? &x->next : &x->cur;

        w->sym = meg_realloc_array(w->sym, (size_t)size, sizeof *w->sym);
        w->offsets = meg_realloc_array(w->offsets, (size_t)size + 1, sizeof *w->offsets);
    }
}

static void fill(struct stream *x)
{
    x->n += x->s->read(x->s->ctx, x->piece + x->n, 2 * x->size - x->n);
}

/* Merge the window of the piece that begins at `from`. */
static void merge(const struct stream *x, struct window *w, int64_t from)
{
    int64_t n = x->n - from < x->size ? x->n - from : x->size;

    memcpy(w->sym, x->piece + from, (size_t)n * sizeof *w->sym);
    w->n = meg_bpe_merge_offsets(x->s->bpe, x->s->is_leftmost, w->sym, n, w->offsets);
    w->offsets[w->n] = (int32_t)n;
}

/* Does a symbol made from left [n] stay apart from the one made from right [m]? */
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

/* Find a cut in the window and merge the next one: how many of at's symbols are before it, 0 where none
 * was found. */
static int64_t cut(struct stream *x)
{
    int64_t k = x->cur.n - 1;

    while (k > 1 && x->cur.offsets[k] > x->size / 4 * 3)
        k--;
    for (int i = 0; i < MAX_CUTS_TRIED && k > 0; i++, k--) {
        const int32_t *begin = x->cur.offsets + k;

        merge(x, &x->next, begin[0]);
        if (x->next.offsets[1] == begin[1] - begin[0] ||
            is_safe_cut(x, x->piece + begin[-1], begin[0] - begin[-1], x->piece + begin[0], x->next.offsets[1]))
            return k;
    }
    return 0;
}

/* A larger window; false where it begins with what would not have stayed apart from what is out. */
static bool grow_window(struct stream *x)
{
    int64_t was = x->cur.offsets[1];

    set_size(x, 2 * x->size);
    fill(x);
    merge(x, &x->cur, 0);
    return x->nlast == 0 || x->cur.offsets[1] == was || is_safe_cut(x, x->last, x->nlast, x->piece, x->cur.offsets[1]);
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
    memcpy(x->last, x->piece + n - x->nlast, (size_t)x->nlast * sizeof *x->last);
    memmove(x->piece, x->piece + n, (size_t)(x->n - n) * sizeof *x->piece);
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
        if ((k = cut(&x)) > 0)
            r = put(&x, k, e);
        else if (!grow_window(&x))
            r = meg_fail(e, MEG_EFORMAT,
                         "a word of %" PRId64 " bytes cannot be merged in parts with this vocabulary; break it up",
                         s->nbytes);
    }
    if (r == 0 && x.n > 0)
        r = s->put(s->ctx, x.cur.sym, x.cur.n, e);
    free(x.piece);
    free(x.last);
    for (int i = 0; i < 2; i++) {
        free(i ? x.next.sym : x.cur.sym);
        free(i ? x.next.offsets : x.cur.offsets);
    }
    return r;
}
