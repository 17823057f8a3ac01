/*
 * self.c - the communicator of one rank.  Collectives copy their input to their output, or do nothing.  A call of send
 * or recv fails an assertion.
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

static struct meg_work *no_peer(void)
{
    MEG_ASSERT(!"point to point in a group of one rank");
    return NULL;
}

static struct meg_work *send(struct meg_comm *c, struct meg_stream *st, const void *buf, int64_t n, enum meg_dtype t,
                             int to)
{
    (void)c, (void)st, (void)buf, (void)n, (void)t, (void)to;
    return no_peer();
}

static struct meg_work *recv(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                             int from)
{
    (void)c, (void)st, (void)buf, (void)n, (void)t, (void)from;
    return no_peer();
}

static struct meg_work *barrier(struct meg_comm *c, struct meg_stream *st)
{
    (void)c, (void)st;
    return NULL;
}

static void no_wait(struct meg_work *w, struct meg_stream *st)
{
    (void)w, (void)st;
}

static bool is_done(struct meg_work *w)
{
    (void)w;
    return true;
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
    .send = send,
    .recv = recv,
    .barrier = barrier,
    .wait = no_wait,
    .test = is_done,
    .split = split,
    .set_timeout = no_timeout,
    .close = no_close,
};

static const struct meg_comm_ops host_ops = {
    .all_reduce = all_reduce,
    .all_gather = host_gather,
    .broadcast = broadcast,
    .barrier = barrier,
    .wait = no_wait,
    .test = is_done,
};

struct meg_comm meg_comm_self = { .op = &tensor_ops, .host = &host_ops, .name = "self", .size = 1 };
