/* isa: baseline v3 v4 */
/* Word and position embeddings; the gradient is scattered by columns, so that tokens add up in order. */
#include "cpu/dropout.h"

enum { ROWS = 8, COLS = 128 };

static const float *row_or_null(struct meg_mat table, int64_t r)
{
    return r >= 0 && r < table.rows ? f32(table) + r * table.ld : NULL;
}

void MEG_FN(embed_fwd)(struct meg_stream *st, struct meg_mat x, const int32_t *token,
                       const int32_t *position, struct meg_mat word, int64_t v0, struct meg_mat pos,
                       const struct meg_drop *d)
{
    const struct drop drop = drop_begin(d);
    (void)st;
    MEG_ASSERT(word.cols == x.cols && (!pos.p || pos.cols == x.cols));
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < x.rows; r++) {
        const float *w = row_or_null(word, token[r] - v0),
                    *p = pos.p ? row_or_null(pos, position[r]) : NULL;
        MEG_ASSERT(!pos.p || p);
        for (int64_t c0 = 0; c0 < x.cols; c0 += DROP_RUN) {
            const int64_t n = min64(DROP_RUN, x.cols - c0);
            float *xr = f32(x) + r * x.ld + c0;
            struct drop_run run;
            for (int64_t c = 0; c < n; c++)
                xr[c] = (w ? w[c0 + c] : 0.0f) + (p ? p[c0 + c] : 0.0f);
            if (drop.threshold) {
                const float *f = drop_factors(&run, &drop, d->unit0 + c0, n, drop_position(d, r),
                                              drop_sample(d, r));
                for (int64_t c = 0; c < n; c++)
                    xr[c] *= f[c];
            }
        }
    }
}

void MEG_FN(embed_bwd)(struct meg_stream *st, struct meg_mat dword, int64_t v0, struct meg_mat dpos,
                       struct meg_mat dx, const int32_t *token, const int32_t *position,
                       const struct meg_drop *d)
{
    const struct drop drop = drop_begin(d);
    (void)st;
    MEG_ASSERT(dword.cols == dx.cols && (!dpos.p || dpos.cols == dx.cols));
#pragma omp parallel for schedule(dynamic)
    for (int64_t c0 = 0; c0 < dx.cols; c0 += COLS)
        for (int64_t r = 0; r < dx.rows; r++) {
            const int64_t n = min64(COLS, dx.cols - c0), v = token[r] - v0;
            const float *g = f32(dx) + r * dx.ld + c0;
            float *dw = v >= 0 && v < dword.rows ? f32(dword) + v * dword.ld + c0 : NULL;
            float *dp = dpos.p ? f32(dpos) + position[r] * dpos.ld + c0 : NULL, kept[COLS];
            const float *f = NULL;
            struct drop_run run;
            MEG_ASSERT(!dp || (position[r] >= 0 && position[r] < dpos.rows));
            if (drop.threshold)
                f = drop_factors(&run, &drop, d->unit0 + c0, n, drop_position(d, r),
                                 drop_sample(d, r));
            for (int64_t c = 0; c < n; c++)
                kept[c] = f ? g[c] * f[c] : g[c];
            for (int64_t c = 0; dw && c < n; c++)
                dw[c] += kept[c];
            for (int64_t c = 0; dp && c < n; c++)
                dp[c] += kept[c];
        }
}
