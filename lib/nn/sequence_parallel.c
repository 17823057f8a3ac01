/* sequence_parallel.c - all-gather and reduce-scatter of the rows of the residual stream. */
#include "nn/sequence_parallel.h"

static struct meg_mat full_rows(const struct meg_ctx *c, struct meg_mat x, int which)
{
    return meg_mat(c->sp_buffer[which], x.dtype, x.rows * c->tp->size, x.cols);
}

struct meg_mat meg_sp_gather(struct meg_ctx *c, struct meg_mat x)
{
    struct meg_mat all;

    if (!c->has_sp)
        return x;
    MEG_ASSERT_EQ(x.ld, x.cols);
    all = full_rows(c, x, 0);
    meg_all_gather(c->tp, c->stream, all.p, x.p, x.rows * x.cols, x.dtype);
    return all;
}

struct meg_mat meg_sp_partial_sum(struct meg_ctx *c, struct meg_mat y)
{
    return c->has_sp ? full_rows(c, y, 1) : y;
}

void meg_sp_reduce(struct meg_ctx *c, struct meg_mat y, struct meg_mat partial)
{
    MEG_ASSERT_EQ(y.ld, y.cols);
    if (c->has_sp)
        meg_reduce_scatter(c->tp, c->stream, y.p, partial.p, y.rows * y.cols, y.dtype, MEG_REDUCE_SUM);
    else
        meg_all_reduce(c->tp, c->stream, y.p, y.rows * y.cols, y.dtype, MEG_REDUCE_SUM);
}

int64_t meg_sp_first_row(const struct meg_ctx *c, struct meg_mat x)
{
    return c->has_sp ? c->tp->rank * x.rows : 0;
}
