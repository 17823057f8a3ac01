/* isa: baseline v3 v4 */
/* add.c - residual addition with bias and dropout, alone or fused with the norm that follows. */
#include "cpu/row.h"

enum { ROWS = 8 }; /* rows per task */

static int same_shape(struct meg_mat a, struct meg_mat b)
{
    return a.rows == b.rows && a.cols == b.cols;
}

void MEG_FN(add_fwd)(struct meg_stream *st, const struct meg_add_fwd_args *a)
{
    const struct dropout drop = drop_begin(a->drop);
    (void)st;
    MEG_ASSERT(same_shape(a->z, a->y) && same_shape(a->x, a->y));
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < a->z.rows; r++)
        add_row(a->z, a->x, a->y, row_vector(a->bias, a->y.dtype, a->y.cols), &drop, r);
}

void MEG_FN(add_bwd)(struct meg_stream *st, const struct meg_add_bwd_args *a)
{
    const struct dropout drop = drop_begin(a->drop);
    (void)st;
    MEG_ASSERT(same_shape(a->dy, a->dz));
    if (drop.threshold || a->dy.p != a->dz.p)
#pragma omp parallel for schedule(static, ROWS)
        for (int64_t r = 0; r < a->dz.rows; r++)
            add_row(a->dy, meg_no_mat(), a->dz, meg_no_mat(), &drop, r);
    if (a->dbias)
        MEG_FN(column_sums)(row_vector(a->dbias, a->grad, a->dy.cols), a->dy, a->accumulate);
}

void MEG_FN(add_norm_fwd)(struct meg_stream *st, const struct meg_add_norm_fwd_args *a)
{
    const struct dropout drop = drop_begin(a->drop);
    const struct meg_norm_fwd_args norm = {
        .type = a->type, .y = a->y, .mean = a->mean, .rstd = a->rstd, .x = a->z, .w = a->w, .b = a->b, .eps = a->eps
    };
    (void)st;
    MEG_ASSERT(same_shape(a->z, a->x) && same_shape(a->y, a->z) && same_shape(a->sublayer_out, a->z));
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t r = 0; r < a->z.rows; r++) {
        add_row(a->z, a->x, a->sublayer_out, row_vector(a->bias, a->sublayer_out.dtype, a->z.cols), &drop, r);
        norm_row(&norm, r);
    }
}
