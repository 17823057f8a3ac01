/* isa: baseline v3 v4 */
/* Word and position embeddings; the gradients are scattered by columns, so that tokens add up in order. */
#include "cpu/dropout.h"

enum { ROWS = 8, COLS = 128 };

static float *row_or_null(struct meg_mat table, int64_t r)
{
    return r >= 0 && r < table.rows ? f32(table) + r * table.ld : NULL;
}

void MEG_FN(embed_fwd)(struct meg_stream *st, struct meg_mat x, const int32_t *token,
                       struct meg_mat word, int64_t v0)
{
    (void)st;
    MEG_ASSERT(word.cols == x.cols);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < x.rows; r++) {
        const float *w = row_or_null(word, token[r] - v0);

        if (w)
            memcpy(f32(x) + r * x.ld, w, (size_t)x.cols * sizeof *w);
        else
            memset(f32(x) + r * x.ld, 0, (size_t)x.cols * sizeof *w);
    }
}

void MEG_FN(embed_bwd)(struct meg_stream *st, struct meg_mat dword, int64_t v0, struct meg_mat dx,
                       const int32_t *token)
{
    (void)st;
    MEG_ASSERT(dword.cols == dx.cols);
#pragma omp parallel for schedule(dynamic)
    for (int64_t c0 = 0; c0 < dx.cols; c0 += COLS)
        for (int64_t r = 0; r < dx.rows; r++) {
            const float *g = f32(dx) + r * dx.ld;
            float *dw = row_or_null(dword, token[r] - v0);

            for (int64_t c = c0; dw && c < min64(c0 + COLS, dx.cols); c++)
                dw[c] += g[c];
        }
}

/* x = dropout(x + p), columns [c0, c0 + n) of row r; p NULL for none. */
static void add_and_drop(float *x, const float *p, int64_t c0, int64_t n, int64_t r,
                         const struct meg_drop *d, const struct drop *drop)
{
    struct drop_run run;

    for (int64_t c = c0; p && c < c0 + n; c++)
        x[c] += p[c];
    if (drop->threshold) {
        const float *f =
            drop_factors(&run, drop, d->unit0 + c0, n, drop_position(d, r), drop_sample(d, r)) - c0;

        for (int64_t c = c0; c < c0 + n; c++)
            x[c] *= f[c];
    }
}

void MEG_FN(position_fwd)(struct meg_stream *st, struct meg_mat x, const int32_t *position,
                          struct meg_mat pos, const struct meg_drop *d)
{
    const struct drop drop = drop_begin(d);
    (void)st;
    MEG_ASSERT(!pos.p || pos.cols == x.cols);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < x.rows; r++) {
        const float *p = pos.p ? row_or_null(pos, position[r]) : NULL;

        MEG_ASSERT(!pos.p || p);
        for (int64_t c0 = 0; c0 < x.cols; c0 += DROP_RUN)
            add_and_drop(f32(x) + r * x.ld, p, c0, min64(DROP_RUN, x.cols - c0), r, d, &drop);
    }
}

void MEG_FN(position_bwd)(struct meg_stream *st, struct meg_mat dpos, struct meg_mat dx,
                          const int32_t *position, const struct meg_drop *d)
{
    const struct drop drop = drop_begin(d);
    (void)st;
    MEG_ASSERT(!dpos.p || dpos.cols == dx.cols);
#pragma omp parallel for schedule(dynamic)
    for (int64_t c0 = 0; c0 < dx.cols; c0 += COLS)
        for (int64_t r = 0; r < dx.rows; r++) {
            float *g = f32(dx) + r * dx.ld, *dp = dpos.p ? row_or_null(dpos, position[r]) : NULL;
            const int64_t n = min64(COLS, dx.cols - c0);

            MEG_ASSERT(!dpos.p || dp);
            add_and_drop(g, NULL, c0, n, r, d, &drop);
            for (int64_t c = c0; dp && c < c0 + n; c++)
                dp[c] += g[c];
        }
}
