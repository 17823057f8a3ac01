/* Rows exchanged for heads, and back (Jacobs et al. 2023). */
#include "nn/internal.h"

/*
 * Among h ranks that share two chunks of a sequence, each with a piece of either, the first pieces follow each
 * other in order of rank, the second ones in reverse: where piece p of rank j begins, in units of pieces.
 */
static int64_t place(int64_t h, int64_t j, int64_t p)
{
    return p == 0 ? j : 2 * h - 1 - j;
}

/* s times b vectors of d elements from one place to another. */
static void copy(struct meg_ctx *c, enum meg_dtype t, void *to, int64_t to_s, int64_t to_b, const void *from,
                 int64_t from_s, int64_t from_b, int64_t s, int64_t b, int64_t d)
{
    const struct meg_heads dst = { to, t, to_s, to_b, 0, 0 }, src = { (void *)from, t, from_s, from_b, 0, 0 };

    c->op->copy_heads(c->stream, dst, src, s, b, 1, d);
}

static void send_parts(const struct meg_attn *l, int64_t n, enum meg_dtype t)
{
    struct meg_comm *h = l->cp->a2a;

    meg_comm_wait(h, h->op->all_to_all(h, l->workspace->a2a_recv, l->workspace->a2a_send, n, t));
}

struct meg_mat nn_a2a_buffer(const struct meg_attn *l, struct meg_mat at)
{
    if (l->cp->a2a_size > 1)
        at.p = l->workspace->a2a_recv;
    return at;
}

/* Between rows in the order of the sequence and those that each rank has: sent or arrived, part by part of n. */
static void reorder_rows(struct meg_ctx *c, int64_t h, enum meg_dtype t, void *wide, void *parts, int64_t n,
                         bool to_wide)
{
    const int64_t piece = n / 2;

    for (int64_t j = 0; j < h; j++)
        for (int64_t p = 0; p < 2; p++) {
            char *in_order = meg_element(wide, place(h, j, p) * piece, t);
            char *of_rank = meg_element(parts, (2 * j + p) * piece, t);

            copy(c, t, to_wide ? in_order : of_rank, 0, 0, to_wide ? of_rank : in_order, 0, 0, 1, 1, piece);
        }
}

/* Between rows with all heads and the parts of them that go to each rank or came from it. */
static void reorder_heads(struct meg_ctx *c, int64_t h, struct meg_mat rows, void *parts, bool to_rows)
{
    const int64_t w = rows.cols / h;

    for (int64_t j = 0; j < h; j++) {
        char *in_rows = meg_element(rows.p, j * w, rows.dtype);
        char *part = meg_element(parts, j * rows.rows * w, rows.dtype);

        if (to_rows)
            copy(c, rows.dtype, in_rows, rows.ld, 0, part, w, 0, rows.rows, 1, w);
        else
            copy(c, rows.dtype, part, w, 0, in_rows, rows.ld, 0, rows.rows, 1, w);
    }
}

void nn_a2a_seq_to_heads(struct meg_ctx *c, const struct meg_attn *l, void *wide, struct meg_mat rows)
{
    const int64_t h = l->cp->a2a_size, part = rows.rows * rows.cols / h;

    if (h == 1)
        return;
    reorder_heads(c, h, rows, l->workspace->a2a_send, false);
    send_parts(l, part, rows.dtype);
    reorder_rows(c, h, rows.dtype, wide, l->workspace->a2a_recv, part, true);
}

void nn_a2a_heads_to_seq(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat rows, void *wide)
{
    const int64_t h = l->cp->a2a_size, part = rows.rows * rows.cols / h;

    if (h == 1)
        return;
    reorder_rows(c, h, rows.dtype, wide, l->workspace->a2a_send, part, false);
    send_parts(l, part, rows.dtype);
    reorder_heads(c, h, rows, l->workspace->a2a_recv, true);
}

void nn_a2a_stats(struct meg_ctx *c, const struct meg_attn *l, float *x)
{
    const int64_t h = l->cp->a2a_size, half = c->s / 2, b = c->b, a = l->a / h, part = b * a * half;
    const enum meg_dtype t = MEG_DTYPE_F32;
    float *sent = l->workspace->a2a_send, *here = l->workspace->a2a_recv;

    if (h == 1)
        return;
    for (int64_t j = 0; j < h; j++)
        for (int64_t p = 0; p < 2; p++)
            copy(c, t, sent + (2 * j + p) * part, a * half, half, x + (p * b * h + j) * a * half, h * a * half, half, b,
                 a, half);
    send_parts(l, 2 * part, t);
    for (int64_t j = 0; j < h; j++)
        for (int64_t p = 0; p < 2; p++)
            copy(c, t, x + p * h * part + (place(h, j, p) - p * h) * half, a * h * half, h * half,
                 here + (2 * j + p) * part, a * half, half, b, a, half);
}

const int32_t *nn_a2a_doc_start(struct meg_ctx *c, const struct meg_attn *l)
{
    const int64_t h = l->cp->a2a_size, n = c->s * c->b;
    struct meg_comm *g = l->cp->a2a;

    if (!c->doc_start || h == 1)
        return c->doc_start;
    meg_comm_wait(g, g->op->all_gather(g, l->workspace->a2a_send, c->doc_start, n, MEG_DTYPE_I32));
    reorder_rows(c, h, MEG_DTYPE_I32, l->workspace->doc_start, l->workspace->a2a_send, n, true);
    return l->workspace->doc_start;
}
