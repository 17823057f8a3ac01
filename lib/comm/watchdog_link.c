/*
 * watchdog_link.c - start and stop the watchdog of the world communicator.  The watchdog uses the collectives of that
 * communicator.
 */
#include "comm/collectives.h"
#include "watchdog/watchdog.h"

static void all_reduce_max(void *ctx, int64_t *values, int64_t n)
{
    meg_host_all_reduce((struct meg_comm *)ctx, values, n, MEG_DTYPE_I64, MEG_REDUCE_MAX);
}

static void broadcast(void *ctx, void *buf, int64_t nbytes)
{
    MEG_ASSERT(nbytes % 4 == 0);
    meg_host_broadcast((struct meg_comm *)ctx, buf, nbytes / 4, MEG_DTYPE_I32, 0);
}

static void barrier(void *ctx)
{
    meg_host_barrier((struct meg_comm *)ctx);
}

static void reduce(void *values, const struct meg_store_collective *c)
{
    const enum meg_dtype t = (enum meg_dtype)c->dtype;

    meg_reduce_local(values, values, c->nbytes / (int64_t)meg_dtype_size(t), c->size, t,
                     (enum meg_reduce_op)c->combine);
}

void meg_comm_watchdog_open(struct meg_comm_world *w, double timeout_s)
{
    const struct meg_watchdog_bootstrap b = { .rank = w->world->rank,
                                              .size = w->world->size,
                                              .timeout_s = timeout_s,
                                              .rendezvous = w->has_rendezvous ? &w->rendezvous : NULL,
                                              .ctx = w->world,
                                              .all_reduce_max = all_reduce_max,
                                              .broadcast = broadcast,
                                              .barrier = barrier,
                                              .reduce = reduce };

    meg_watchdog_open(&w->world->watchdog, &b);
}

void meg_comm_watchdog_close(struct meg_comm_world *w)
{
    meg_watchdog_close(w->world->watchdog);
    w->world->watchdog = NULL;
}
