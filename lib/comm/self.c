/*
 * self.c - the communicator of one rank.  Collectives copy their input to their output, or do nothing, and are complete
 * when they return.  There is no peer to send to.
 */
#include <string.h>
#include "comm/comm.h"
#include "device/device.h"

static void copy(struct meg_stream *st, void *out, const void *in, int64_t n, enum meg_dtype t)
{
    if (out != in)
        meg_device_current()->op->copy(st, out, in, (size_t)n * meg_dtype_size(t));
}

static struct meg_work *all_reduce(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                   enum meg_reduce_op op)
{
    (void)c, (void)st, (void)buf, (void)n, (void)t, (void)op;
    return NULL;
}

static struct meg_work *reduce_scatter(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                       enum meg_dtype t, enum meg_reduce_op op)
{
    (void)c, (void)op;
    copy(st, out, in, n, t);
    return NULL;
}

static struct meg_work *gather(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                               enum meg_dtype t)
{
    (void)c;
    copy(st, out, in, n, t);
    return NULL;
}

static struct meg_work *host_gather(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                    enum meg_dtype t)
{
    (void)c, (void)st;
    if (out != in)
        memcpy(out, in, (size_t)n * meg_dtype_size(t));
    return NULL;
}

static struct meg_work *broadcast(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                  int root)
{
    (void)c, (void)st, (void)buf, (void)n, (void)t, (void)root;
    return NULL;
}

static struct meg_work *barrier(struct meg_comm *c, struct meg_stream *st)
{
    (void)c, (void)st;
    return NULL;
}

static struct meg_comm *split(struct meg_comm *c, int color, const char *name)
{
    (void)color, (void)name;
    return c;
}

static void no_timeout(struct meg_comm *c, double seconds)
{
    (void)c, (void)seconds;
}

static void no_close(struct meg_comm *c)
{
    (void)c;
}

static const struct meg_comm_ops tensor_ops = {
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = gather,
    .all_to_all = gather,
    .broadcast = broadcast,
    .split = split,
    .set_timeout = no_timeout,
    .close = no_close,
};

static const struct meg_comm_ops host_ops = {
    .all_reduce = all_reduce,
    .all_gather = host_gather,
    .broadcast = broadcast,
    .barrier = barrier,
};

struct meg_comm meg_comm_self = { .op = &tensor_ops, .host = &host_ops, .name = "self", .size = 1 };
