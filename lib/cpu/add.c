/* isa: baseline v3 v4 */
/* Residual addition with bias and dropout, alone and in front of a norm. */
#include "cpu/row.h"

enum { ROWS = 8 }; /* a task of a thread */

void MEG_FN(add_fwd)(struct meg_stream *st, struct meg_mat z, struct meg_mat x, struct meg_mat y,
                     const void *bias, const struct meg_drop *d)
{
    const struct drop drop = drop_begin(d);
    (void)st;
    MEG_ASSERT(z.rows == y.rows && z.cols == y.cols && x.rows == y.rows && x.cols == y.cols);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < z.rows; r++)
        add_row(f32(z) + r * z.ld, f32(x) + r * x.ld, f32(y) + r * y.ld, bias, z.cols, d, &drop, r);
}

void MEG_FN(add_bwd)(struct meg_stream *st, struct meg_mat dy, float *dbias, struct meg_mat dz,
                     const struct meg_drop *d)
{
    const struct drop drop = drop_begin(d);
    (void)st;
    MEG_ASSERT(dy.rows == dz.rows && dy.cols == dz.cols);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < dz.rows; r++)
        add_row(f32(dy) + r * dy.ld, NULL, f32(dz) + r * dz.ld, NULL, dz.cols, d, &drop, r);
    if (dbias)
        MEG_FN(add_column_sums)(dbias, dy);
}

void MEG_FN(add_norm_fwd)(struct meg_stream *st, enum meg_norm kind, struct meg_mat z,
                          struct meg_mat y, float *mean, float *rstd, struct meg_mat x,
                          struct meg_mat branch, const void *bias, const struct meg_drop *d,
                          const void *w, const void *b, float eps)
{
    const struct drop drop = drop_begin(d);
    (void)st;
    MEG_ASSERT(z.rows == x.rows && z.cols == x.cols && y.rows == z.rows && y.cols == z.cols &&
               branch.rows == z.rows && branch.cols == z.cols);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < z.rows; r++) {
        float *zr = f32(z) + r * z.ld;
        add_row(zr, f32(x) + r * x.ld, f32(branch) + r * branch.ld, bias, z.cols, d, &drop, r);
        norm_row(kind, f32(y) + r * y.ld, mean, rstd, zr, w, b, z.cols, eps, r);
    }
}
