/* count_comm.c - a communicator that counts the bytes that a rank sends, by the formulas of comm/comm.h. */
#include <math.h>
#include "plan/count_ops.h"

/* Count bytes that this rank sends. */
static struct meg_work *sent(struct meg_comm *comm, struct meg_stream *st, double nbytes)
{
    struct cost_comm *c = (struct cost_comm *)(void *)comm;
    struct cost_pass *pass = cost_counter_of(st)->pass;

    comm->nbytes_sent += nbytes;
    pass->sent[c->group] += nbytes;
    pass->comm_s += nbytes / c->bandwidth;
    return NULL;
}

static void received(struct meg_comm *comm, double nbytes)
{
    struct cost_comm *c = (struct cost_comm *)(void *)comm;

    c->recv_nbytes = fmax(c->recv_nbytes, nbytes);
}

static struct meg_work *all_reduce(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                   enum meg_reduce_op op)
{
    (void)buf, (void)op;
    received(c, meg_comm_workspace_all_reduce(c->size, (double)n, t));
    return sent(c, st, meg_comm_volume_all_reduce(c->size, cost_nbytes((double)n, t)));
}

static struct meg_work *reduce_scatter(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                       enum meg_dtype t, enum meg_reduce_op op)
{
    (void)out, (void)in, (void)op;
    received(c, meg_comm_workspace_reduce_scatter(c->size, (double)n, t));
    return sent(c, st, meg_comm_volume_sharded(c->size, cost_nbytes((double)n, t)));
}

/* Count the bytes that this rank sends in an all-gather or an all-to-all of parts of n elements. */
static struct meg_work *exchange(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                 enum meg_dtype t)
{
    (void)out, (void)in;
    return sent(c, st, meg_comm_volume_sharded(c->size, cost_nbytes((double)n, t)));
}

static struct meg_work *broadcast(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                  int root)
{
    (void)buf, (void)root;
    return sent(c, st, cost_nbytes((double)n, t));
}

static struct meg_work *send(struct meg_comm *c, struct meg_stream *st, const void *buf, int64_t n, enum meg_dtype t,
                             int to)
{
    (void)buf, (void)to;
    return sent(c, st, cost_nbytes((double)n, t));
}

static struct meg_work *recv(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                             int from)
{
    (void)c, (void)st, (void)buf, (void)n, (void)t, (void)from;
    return NULL;
}

struct cost_comm cost_comm_make(enum meg_cost_group group, const struct meg_hardware *hw, int64_t stride, int64_t size)
{
    static const struct meg_comm_ops ops = {
        .all_reduce = all_reduce,
        .reduce_scatter = reduce_scatter,
        .all_gather = exchange,
        .all_to_all = exchange,
        .broadcast = broadcast,
        .send = send,
        .recv = recv,
    };

    return (struct cost_comm){ .c = { .op = &ops, .name = meg_cost_group_name[group], .size = (int)size },
                               .group = group,
                               .bandwidth = meg_hardware_bandwidth(hw, stride, size) };
}
