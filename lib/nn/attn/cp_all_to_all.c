/*
 * cp_all_to_all.c - all-to-all between activations sharded by sequence and activations sharded by heads, in both
 * directions (Jacobs et al. 2023, DeepSpeed-Ulysses).
 */
#include "nn/attn/internal.h"

/*
 * Return the index, in sequence order, of chunk p of rank j among the 2h chunks of h ranks: the first chunks are in
 * rank order, the second ones in reverse order.
 */
static int64_t chunk_index(int64_t h, int64_t j, int64_t p)
{
    return p == 0 ? j : 2 * h - 1 - j;
}

/* Return vectors at p; ld_s and ld_b are strides in elements. */
static struct meg_heads vectors(enum meg_dtype t, void *p, int64_t ld_s, int64_t ld_b)
{
    return (struct meg_heads){ p, t, ld_s, ld_b, 0, 0 };
}

/* Copy s * b vectors of d elements. */
static void copy(struct meg_ctx *c, struct meg_heads dst, struct meg_heads src, int64_t s, int64_t b, int64_t d)
{
    MEG_CALL(c->op, c->stream, copy_heads, .dst = dst, .src = src, .s = s, .b = b, .g = 1, .d = d);
}

/* Exchange n elements with each rank by an all-to-all from a2a_send to a2a_recv. */
static void all_to_all(struct meg_ctx *c, const struct meg_attn *l, int64_t n, enum meg_dtype t)
{
    struct meg_comm *g = l->cp->a2a;

    meg_all_to_all(g, c->stream, l->workspace.a2a_recv, l->workspace.a2a_send, n, t);
}

/*
 * Copy blocks [h, n] to full_seq if to_full_seq is set, else full_seq to blocks.  The rows of full_seq are in sequence
 * order.  Block j has the n elements of the rows of rank j.
 */
static void reorder_rows(struct meg_ctx *c, int64_t h, enum meg_dtype t, void *full_seq, void *blocks, int64_t n,
                         bool to_full_seq)
{
    const int64_t chunk = n / 2;

    for (int64_t j = 0; j < h; j++)
        for (int64_t p = 0; p < 2; p++) {
            const struct meg_heads in_seq = vectors(t, meg_element(full_seq, chunk_index(h, j, p) * chunk, t), 0, 0);
            const struct meg_heads in_block = vectors(t, meg_element(blocks, (2 * j + p) * chunk, t), 0, 0);

            copy(c, to_full_seq ? in_seq : in_block, to_full_seq ? in_block : in_seq, 1, 1, chunk);
        }
}

/*
 * Copy blocks [h, rows, cols/h] to `rows` if to_rows is set, else `rows` to blocks.  `rows` has all heads, block j only
 * the heads of rank j.
 */
static void reorder_heads(struct meg_ctx *c, int64_t h, struct meg_mat rows, void *blocks, bool to_rows)
{
    const int64_t w = rows.cols / h;

    for (int64_t j = 0; j < h; j++) {
        const struct meg_heads in_rows = vectors(rows.dtype, meg_element(rows.p, j * w, rows.dtype), rows.ld, 0);
        const struct meg_heads block = vectors(rows.dtype, meg_element(blocks, j * rows.rows * w, rows.dtype), w, 0);

        copy(c, to_rows ? in_rows : block, to_rows ? block : in_rows, rows.rows, 1, w);
    }
}

void nn_a2a_seq_to_heads(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat rows)
{
    const int64_t h = l->cp->a2a_size, block = rows.rows * rows.cols / h;

    if (h == 1)
        return;
    reorder_heads(c, h, rows, l->workspace.a2a_send, false);
    all_to_all(c, l, block, rows.dtype);
    reorder_rows(c, h, rows.dtype, rows.p, l->workspace.a2a_recv, block, true);
}

void nn_a2a_heads_to_seq(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat rows)
{
    const int64_t h = l->cp->a2a_size, block = rows.rows * rows.cols / h;

    if (h == 1)
        return;
    reorder_rows(c, h, rows.dtype, rows.p, l->workspace.a2a_send, block, false);
    all_to_all(c, l, block, rows.dtype);
    reorder_heads(c, h, rows, l->workspace.a2a_recv, true);
}

void nn_a2a_stats(struct meg_ctx *c, const struct meg_attn *l, float *x)
{
    const int64_t h = l->cp->a2a_size, half = c->call.s / 2, b = c->call.b, a = l->a / h, block = b * a * half;
    const enum meg_dtype t = MEG_DTYPE_F32;
    float *send = l->workspace.a2a_send, *recv = l->workspace.a2a_recv;

    if (h == 1)
        return;
    for (int64_t j = 0; j < h; j++)
        for (int64_t p = 0; p < 2; p++)
            copy(c, vectors(t, send + (2 * j + p) * block, a * half, half),
                 vectors(t, x + (p * b * h + j) * a * half, h * a * half, half), b, a, half);
    all_to_all(c, l, 2 * block, t);
    for (int64_t j = 0; j < h; j++)
        for (int64_t p = 0; p < 2; p++)
            copy(c, vectors(t, x + p * h * block + (chunk_index(h, j, p) - p * h) * half, a * h * half, h * half),
                 vectors(t, recv + (2 * j + p) * block, a * half, half), b, a, half);
}

const int32_t *nn_a2a_doc_start(struct meg_ctx *c, const struct meg_attn *l)
{
    const int64_t h = l->cp->a2a_size, n = c->call.s * c->call.b;
    const struct meg_attn_workspace *w = &l->workspace;
    struct meg_comm *g = l->cp->a2a;

    if (!c->call.doc_start || h == 1)
        return c->call.doc_start;
    meg_all_gather(g, c->stream, w->a2a_send, c->call.doc_start, n, MEG_DTYPE_I32);
    reorder_rows(c, h, MEG_DTYPE_I32, w->doc_start, w->a2a_send, n, true);
    return w->doc_start;
}
