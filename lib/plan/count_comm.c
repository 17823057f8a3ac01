/* count_comm.c - a communicator that counts the bytes that a rank sends, by the formulas of comm/comm.h. */
#include <math.h>
#include "plan/count_ops.h"

static struct meg_work *start(struct meg_comm *comm, struct meg_stream *st, const struct meg_comm_call *x)
{
    struct cost_comm *c = (struct cost_comm *)(void *)comm;
    struct cost_pass *pass = cost_counter_of(st)->pass;
    const double nbytes = meg_comm_volume(x, comm->size);

    if (x->op == MEG_ALL_REDUCE)
        c->recv_nbytes = fmax(c->recv_nbytes, meg_comm_workspace_all_reduce(comm->size, (double)x->n, x->dtype));
    if (x->op == MEG_REDUCE_SCATTER)
        c->recv_nbytes = fmax(c->recv_nbytes, meg_comm_workspace_reduce_scatter(comm->size, (double)x->n, x->dtype));
    comm->nbytes_sent += nbytes;
    pass->sent[c->group] += nbytes;
    pass->comm_s += nbytes / c->bandwidth;
    return NULL;
}

struct cost_comm cost_comm_make(enum meg_cost_group group, const struct meg_hardware *hw, int64_t stride, int64_t size)
{
    static const struct meg_comm_ops ops = { .start = start };

    return (struct cost_comm){ .c = { .op = &ops, .name = meg_cost_group_name[group], .size = (int)size },
                               .group = group,
                               .bandwidth = meg_hardware_bandwidth(hw, stride, size) };
}
