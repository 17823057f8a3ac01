/* isa: baseline v3 v4 */
/* add.c - residual addition with bias and dropout, alone or fused with the norm that follows. */
#include "cpu/row.h"

enum { ROWS = 8 }; /* rows per task */

static int same_shape(struct meg_mat a, struct meg_mat b)
{
    return a.rows == b.rows && a.cols == b.cols;
}

void MEG_FN(add_fwd)(struct meg_stream *st, struct meg_mat z, struct meg_mat x, struct meg_mat y, const void *bias,
                     const struct meg_drop *d)
{
    const struct dropout drop = drop_begin(d);
    (void)st;
    MEG_ASSERT(same_shape(z, y) && same_shape(x, y));
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < z.rows; r++)
        add_row(z, x, y, row_vector(bias, y.dtype, y.cols), d, &drop, r);
}

void MEG_FN(add_bwd)(struct meg_stream *st, struct meg_mat dy, void *dbias, enum meg_dtype grad, struct meg_mat dz,
                     const struct meg_drop *d, bool accumulate)
{
    const struct dropout drop = drop_begin(d);
    (void)st;
    MEG_ASSERT(same_shape(dy, dz));
    if (drop.threshold || dy.p != dz.p)
#pragma omp parallel for schedule(static, ROWS)
        for (int64_t r = 0; r < dz.rows; r++)
            add_row(dy, meg_no_mat(), dz, meg_no_mat(), d, &drop, r);
    if (dbias)
        MEG_FN(column_sums)(row_vector(dbias, grad, dy.cols), dy, accumulate);
}

void MEG_FN(add_norm_fwd)(struct meg_stream *st, enum meg_norm type, struct meg_mat z, struct meg_mat y, float *mean,
                          float *rstd, struct meg_mat x, struct meg_mat sublayer_out, const void *bias,
                          const struct meg_drop *d, const void *w, const void *b, float eps)
{
    const struct dropout drop = drop_begin(d);
    (void)st;
    MEG_ASSERT(same_shape(z, x) && same_shape(y, z) && same_shape(sublayer_out, z));
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < z.rows; r++) {
        add_row(z, x, sublayer_out, row_vector(bias, sublayer_out.dtype, z.cols), d, &drop, r);
        norm_row(type, y, mean, rstd, z, row_vector(w, y.dtype, z.cols), row_vector(b, y.dtype, z.cols), eps, r);
    }
}
