/* count_linear.c - count the FLOPs and the time of the matrix products of linear layers. */
#include <math.h>
#include "plan/count_ops.h"

double cost_gemm_time(const struct cost_counter *c, enum meg_dtype t, double m, double k, double n)
{
    const double tile = c->hw->tile, rows = ceil(m / tile) * tile, cols = ceil(n / tile) * tile;
    const double smallest = fmin(k, fmin(rows, cols));

    return 2 * rows * cols * k /
           (cost_peak(c, t) * c->hw->gemm_efficiency * smallest / (smallest + c->hw->gemm_half_size));
}

/* Count a product [m,k] x [k,n]. */
static void gemm(struct meg_stream *st, enum meg_dtype t, int64_t m, int64_t k, int64_t n)
{
    struct cost_counter *c = cost_counter_of(st);

    c->pass->flops += 2 * (double)m * (double)k * (double)n;
    c->pass->gemm_s += cost_gemm_time(c, t, (double)m, (double)k, (double)n);
}

void cost_linear_fwd(struct meg_stream *st, const struct meg_linear_fwd_args *a)
{
    gemm(st, a->x.dtype, a->x.rows, a->x.cols, a->y.cols);
    if (a->act != MEG_ACT_NONE)
        cost_traffic(st, cost_mat_nbytes(a->pre));
}

void cost_linear_bwd_data(struct meg_stream *st, const struct meg_linear_bwd_data_args *a)
{
    gemm(st, a->dy.dtype, a->dy.rows, a->dy.cols, a->dx.cols);
    if (a->act != MEG_ACT_NONE)
        cost_traffic(st, cost_mat_nbytes(a->pre));
}

void cost_linear_bwd_weight(struct meg_stream *st, const struct meg_linear_bwd_weight_args *a)
{
    gemm(st, a->x.dtype, a->dy.cols, a->x.rows, a->x.cols);
}

/* Return a unique address as the plan.  Counting operations do not read it. */
struct meg_linear_plan *cost_linear_create(const struct meg_linear_desc *desc, const char **why)
{
    (void)desc, (void)why;
    return (struct meg_linear_plan *)cost_count_ops.alloc(0);
}

void cost_linear_destroy(struct meg_linear_plan *l)
{
    (void)l;
}
