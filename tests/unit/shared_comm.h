/*
 * shared_comm.h - a communicator over shared memory, for unit tests of several ranks without a launcher.
 *
 * A test creates the communicator with shared_comm_new and forks its ranks, each of which calls shared_comm_join.  The
 * communicator supports all-reduces (sum and maximum) of int32 and int64, and broadcasts, of at most SHARED_BYTES.
 */
#ifndef SHARED_COMM_H
#define SHARED_COMM_H
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/comm.h"

enum { RANKS = 2, SHARED_BYTES = 1 << 16 };

struct shared_comm {
    struct meg_comm comm;  /* first member, because operations cast a pointer to it */
    struct shared_memory { /* mapped in all ranks */
        pthread_barrier_t barrier;
        _Alignas(16) char part[RANKS][SHARED_BYTES];
    } * memory;
};

/*
 * Publish buf and wait until all ranks have published theirs.  Return the shared memory, whose contents are valid
 * until the next barrier.
 */
static inline struct shared_memory *shared_put(struct meg_comm *c, const void *buf, size_t nbytes)
{
    struct shared_memory *m = ((struct shared_comm *)c)->memory;

    MEG_ASSERT(nbytes <= SHARED_BYTES);
    memcpy(m->part[c->rank], buf, nbytes);
    pthread_barrier_wait(&m->barrier);
    return m;
}

#define SHARED_REDUCE(type)                                                                                            \
    for (int r = 0; r < RANKS; r++)                                                                                    \
        for (int64_t i = 0; i < x->n; i++) {                                                                           \
            const type v = ((const type *)m->part[r])[i], y = ((type *)x->out)[i];                                     \
                                                                                                                       \
            ((type *)x->out)[i] = r == 0 ? v : x->reduce == MEG_REDUCE_SUM ? v + y : v > y ? v : y;                    \
        }

static inline struct meg_work *shared_start(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x)
{
    const size_t nbytes = (size_t)x->n * meg_dtype_size(x->dtype);
    struct shared_memory *m = shared_put(c, x->out, nbytes);

    (void)st;
    if (x->op == MEG_BROADCAST) {
        memcpy(x->out, m->part[x->peer], nbytes);
    } else {
        MEG_ASSERT(x->op == MEG_ALL_REDUCE && (x->dtype == MEG_DTYPE_I32 || x->dtype == MEG_DTYPE_I64));
        if (x->dtype == MEG_DTYPE_I32) {
            SHARED_REDUCE(int32_t)
        } else {
            SHARED_REDUCE(int64_t)
        }
    }
    pthread_barrier_wait(&m->barrier);
    return NULL;
}

static const struct meg_comm_ops shared_comm_ops = { .start = shared_start };

static inline struct shared_comm *shared_comm_new(void)
{
    struct shared_comm *w = calloc(1, sizeof *w);
    pthread_barrierattr_t shared;

    MEG_ASSERT(w);
    w->memory = mmap(NULL, sizeof *w->memory, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MEG_ASSERT(w->memory != MAP_FAILED);
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&w->memory->barrier, &shared, RANKS);
    return w;
}

/* Make this process rank i. */
static inline void shared_comm_join(struct shared_comm *w, int i)
{
    w->comm = (struct meg_comm){
        .op = &shared_comm_ops, .host = &shared_comm_ops, .name = "world", .rank = i, .size = RANKS
    };
}

#endif
