/* isa: baseline v3 v4 */
/*
 * embedding.c - word and position embeddings.  Gradients are computed in blocks of columns; one thread sums a block
 * over the tokens, in order.
 */
#include "cpu/row.h"

enum { ROWS = 8, COLS = 128 }; /* rows per task, columns per task of gradients */

static int has_row(struct meg_mat table, int64_t r)
{
    return r >= 0 && r < table.rows;
}

void MEG_FN(embed_fwd)(struct meg_stream *st, const struct meg_embed_fwd_args *a)
{
    const float zero[COL_BLOCK] = { 0 };
    (void)st;
    MEG_ASSERT_EQ(a->word.cols, a->x.cols);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < a->x.rows; r++)
        for (int64_t c0 = 0; c0 < a->x.cols; c0 += COL_BLOCK) {
            const int64_t n = meg_min64(COL_BLOCK, a->x.cols - c0), v = a->token[r] - a->v0;
            float buf[COL_BLOCK];
            const float *row = has_row(a->word, v) ? row_read(a->word, v, c0, n, buf) : zero;
            MEG_FN(from_f32)(element(a->x, r, c0), a->x.dtype, row, n);
        }
}

static int is_among(int32_t v, const int32_t *list, int64_t n)
{
    int found = 0;
#pragma omp simd reduction(| : found)
    for (int64_t i = 0; i < n; i++)
        found |= list[i] == v;
    return found;
}

/* Set a table of gradients to zero, in parallel.  All threads of a parallel region call this function. */
static void zero_rows(struct meg_mat table)
{
#pragma omp for schedule(static)
    for (int64_t r = 0; r < table.rows; r++)
        memset(element(table, r, 0), 0, (size_t)table.cols * meg_dtype_size(table.dtype));
}

/*
 * For each row r of dx, in order, add columns [c0, c0 + n) to row index[r] - v0 of table, if the table has this row.  A
 * bf16 or f16 table is updated in blocks of 512 rows of dx: rows of a block with the same index are added in f32, and
 * the result is rounded once.
 */
static void scatter(struct meg_mat table, struct meg_mat dx, const int32_t *index, int64_t v0, int64_t c0, int64_t n)
{
    const int64_t block = table.dtype == MEG_DTYPE_F32 ? 1 : 512;
    float to[COLS], from[COLS];
    for (int64_t r0 = 0; r0 < dx.rows; r0 += block) {
        const int64_t r1 = meg_min64(dx.rows, r0 + block);
        for (int64_t r = r0; r < r1; r++) {
            const int64_t v = index[r] - v0;
            float *sum;
            if (!has_row(table, v) || is_among(index[r], index + r0, r - r0))
                continue;
            sum = row_load(table, v, c0, n, to);
            for (int64_t q = r; q < r1; q++)
                if (index[q] == index[r]) {
                    const float *g = row_read(dx, q, c0, n, from);
                    for (int64_t c = 0; c < n; c++)
                        sum[c] += g[c];
                }
            row_store(table, v, c0, n, sum);
        }
    }
}

void MEG_FN(embed_bwd)(struct meg_stream *st, const struct meg_embed_bwd_args *a)
{
    (void)st;
    MEG_ASSERT_EQ(a->dword.cols, a->dx.cols);
#pragma omp parallel
    {
        if (!a->accumulate)
            zero_rows(a->dword);
#pragma omp for schedule(dynamic)
        for (int64_t c0 = 0; c0 < a->dx.cols; c0 += COLS)
            scatter(a->dword, a->dx, a->token, a->v0, c0, meg_min64(COLS, a->dx.cols - c0));
    }
}

/* Compute row r of x = dropout(x + row v of pos).  If pos.p is NULL, add no position embedding. */
static void position_row(struct meg_mat x, int64_t r, struct meg_mat pos, int64_t v, const struct dropout *drop)
{
    struct drop_buf buf;
    float xb[DROP_BLOCK], pb[DROP_BLOCK];
    for (int64_t c0 = 0; c0 < x.cols; c0 += DROP_BLOCK) {
        const int64_t n = meg_min64(DROP_BLOCK, x.cols - c0);
        const float *p = row_read(pos, v, c0, n, pb);
        float *xr = row_load(x, r, c0, n, xb);
        for (int64_t c = 0; p && c < n; c++)
            xr[c] += p[c];
        if (drop->threshold) {
            const float *f = drop_factors_of_row(&buf, drop, r, c0, n);
            for (int64_t c = 0; c < n; c++)
                xr[c] *= f[c];
        }
        row_store(x, r, c0, n, xr);
    }
}

void MEG_FN(position_fwd)(struct meg_stream *st, const struct meg_position_fwd_args *a)
{
    const struct dropout drop = drop_begin(a->drop);
    (void)st;
    MEG_ASSERT(!a->pos.p || a->pos.cols == a->x.cols);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < a->x.rows; r++) {
        MEG_ASSERT(!a->pos.p || has_row(a->pos, a->position[r]));
        position_row(a->x, r, a->pos, a->pos.p ? a->position[r] : 0, &drop);
    }
}

void MEG_FN(position_bwd)(struct meg_stream *st, const struct meg_position_bwd_args *a)
{
    const struct dropout drop = drop_begin(a->drop);
    (void)st;
    MEG_ASSERT(!a->dpos.p || a->dpos.cols == a->dx.cols);
#pragma omp parallel
    {
        if (a->dpos.p && !a->accumulate)
            zero_rows(a->dpos);
#pragma omp for schedule(static, ROWS)
        for (int64_t r = 0; r < a->dx.rows; r++) {
            MEG_ASSERT(!a->dpos.p || has_row(a->dpos, a->position[r]));
            if (drop.threshold)
                position_row(a->dx, r, meg_no_mat(), 0, &drop);
        }
#pragma omp for schedule(dynamic)
        for (int64_t c0 = 0; c0 < (a->dpos.p ? a->dx.cols : 0); c0 += COLS)
            scatter(a->dpos, a->dx, a->position, 0, c0, meg_min64(COLS, a->dx.cols - c0));
    }
}
