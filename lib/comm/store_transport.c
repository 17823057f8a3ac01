/*
 * store_transport.c - host collectives of ranks that torchrun started, through rank 0 (watchdog/store.h).  A large
 * value is exchanged in chunks, one after the other.  The store transfers no tensors (meg_comm_open_tensors).
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "comm/collectives.h"
#include "comm/internal.h"
#include "file/temporary.h"
#include "watchdog/store.h"
#include "watchdog/watchdog.h"

struct store_group {
    struct meg_comm_group g;
    uint64_t id;              /* equal on the ranks of the group, and different from other groups' */
    int64_t nsplits, nchunks; /* number of splits, and of chunks started so far */
};

struct store_work {
    struct meg_work w;
    struct meg_store_collective chunk; /* the chunk in progress */
    const char *in;
    char *out;
    void *result;           /* result of a chunk: [size * max_chunk] bytes of a gather, else [max_chunk] bytes */
    int64_t nbytes, offset; /* size of this rank's value; byte offset of the chunk in the value */
    int64_t max_chunk;      /* maximum size of a chunk in bytes */
};

static struct store_group *store_group_of(const struct meg_work *w)
{
    return (struct store_group *)w->g;
}

static void start_chunk(struct store_work *s)
{
    const int64_t left = s->nbytes - s->offset;

    s->chunk.number = ++store_group_of(&s->w)->nchunks;
    s->chunk.nbytes = (int32_t)(left < s->max_chunk ? left : s->max_chunk);
    meg_store_start(meg_comm_group_watchdog(s->w.g), &s->chunk, s->in + s->offset);
}

/* Start a collective.  is_done stores the result in x->out: [size * n] for a gather, [n] for the other collectives. */
static void start(struct meg_work *w, const struct meg_comm_call *x)
{
    struct store_work *s = (struct store_work *)w;
    const enum meg_store_op op = x->op == MEG_ALL_REDUCE  ? MEG_STORE_REDUCE
                                 : x->op == MEG_BROADCAST ? MEG_STORE_BROADCAST
                                                          : MEG_STORE_GATHER; /* a barrier gathers 0 bytes */
    const int size = w->g->c.size;

    s->chunk = (struct meg_store_collective){
        .group = store_group_of(w)->id, .op = op, .rank = w->g->c.rank, .size = size, .root = x->peer
    };
    if (op == MEG_STORE_REDUCE) {
        s->chunk.dtype = x->dtype;
        s->chunk.combine = x->reduce;
    }
    s->in = x->in ? x->in : x->out;
    s->out = x->out;
    s->nbytes = x->n * (int64_t)meg_dtype_size(x->dtype);
    s->max_chunk = MEG_STORE_MAX_NBYTES;
    if (op == MEG_STORE_GATHER) /* a multiple of 8 bytes, so that no element is split; at least 8 */
        s->max_chunk = size < MEG_STORE_MAX_NBYTES / 8 ? MEG_STORE_MAX_NBYTES / size / 8 * 8 : 8;
    s->result = meg_new((size_t)(s->max_chunk * (op == MEG_STORE_GATHER ? size : 1)));
    start_chunk(s);
}

/* Copy the result of the chunk to the output. */
static void place_result(struct store_work *s)
{
    const size_t n = (size_t)s->chunk.nbytes;

    for (int r = 0; n && r < (s->chunk.op == MEG_STORE_GATHER ? s->chunk.size : 1); r++)
        memcpy(s->out + r * s->nbytes + s->offset, (char *)s->result + (size_t)r * n, n);
}

static bool is_done(struct meg_work *w)
{
    struct store_work *s = (struct store_work *)w;

    while (meg_store_take(meg_comm_group_watchdog(w->g), &s->chunk, s->result)) {
        place_result(s);
        s->offset += s->chunk.nbytes;
        if (s->offset == s->nbytes) {
            free(s->result);
            return true;
        }
        start_chunk(s);
    }
    return false;
}

/* ---- groups ------------------------------------------------------------------------------ */

static struct meg_comm *split(struct meg_comm_group *world, int color, const char *name);

static void close_group(struct meg_comm_group *g)
{
    if (g->world == g)
        meg_on_die(NULL, NULL);
    free(g);
}

static const struct meg_transport store_transport = {
    .work_nbytes = sizeof(struct store_work),
    .start = start,
    .is_done = is_done,
    .split = split,
    .close = close_group,
};

/* Create a group; world is NULL for the world communicator itself. */
static struct store_group *group_new(uint64_t id, struct meg_comm_group *world, const char *name, int rank, int size)
{
    struct store_group *g = meg_new(sizeof *g);

    g->g.c.rank = rank;
    g->g.c.size = size;
    g->id = id;
    meg_comm_group_init(&g->g, world, &store_transport, name);
    return g;
}

static struct meg_comm *split(struct meg_comm_group *world, int color, const char *name)
{
    struct store_group *w = (struct store_group *)world;
    const uint64_t id = (uint64_t)++w->nsplits << 32 | (uint32_t)color;
    const double nbytes_sent = world->c.nbytes_sent;
    int32_t *colors = meg_new((size_t)world->c.size * sizeof *colors), own = color;
    int rank = 0, size = 0;

    meg_host_all_gather(&world->c, colors, &own, 1, MEG_DTYPE_I32);
    world->c.nbytes_sent = nbytes_sent; /* bytes of a split are not counted, as over MPI */
    for (int r = 0; r < world->c.size; r++) {
        rank += r < world->c.rank && colors[r] == color;
        size += colors[r] == color;
    }
    free(colors);
    return &group_new(id, world, name, rank, size)->g.c;
}

/* End all ranks.  meg_die calls this hook. */
static void exit_all(int status, const char *why, void *world)
{
    meg_watchdog_broadcast_exit(((struct meg_comm *)world)->watchdog, status, why);
    fflush(stdout);
    meg_temporary_exit(status);
}

struct meg_comm *meg_comm_open_store(const struct meg_torchrun *t)
{
    struct meg_comm *world = &group_new(0, NULL, "world", t->rank, t->size)->g.c;

    meg_comm_group_of(world)->is_oversubscribed = t->local_size > omp_get_num_procs();
    meg_on_die(exit_all, world);
    return world;
}
