/*
 * Communicators over MPI-3.
 *
 * A reduction sends part i of the buffer to rank i, which adds the parts up in rank order, and gathers
 * the sums again: what MPI_Allreduce moves, but with a result that does not depend on the algorithm MPI
 * picks, and with one code for every type.  Large buffers go in pieces, so that the memory for what
 * arrives is bounded.
 *
 * Waits test instead of blocking, so that a deadline can be kept; MPI makes progress meanwhile.
 */
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "comm/board.h"
#include "comm/internal.h"
#include "tensor/half.h"

enum { TAG = 1 };

struct group {
    struct meg_comm c;
    MPI_Comm mpi;
    double deadline_s;
    int64_t started;                    /* operations so far */
    void *arrived;                      /* parts to be added up */
    size_t cap;
    int *count, *first;                 /* [size] of the piece under way */
};

/* A started operation: a request, and for reductions what is to follow it. */
struct meg_work {
    struct group *g;
    const char *what;
    int64_t number;                     /* in its group: what ranks that wait for each other share */
    MPI_Request request;
    void *buf;                          /* all_reduce: the whole buffer; reduce_scatter: out */
    const void *in;
    int64_t n, at;
    enum meg_dtype t;
    enum meg_reduce how;
    bool (*then)(struct meg_work *w);   /* after the request: false when all is done; NULL: it is */
};

static struct group *group_of(struct meg_comm *c)
{
    return (struct group *)c;
}

static void check(const struct group *g, int status, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;

    if (status == MPI_SUCCESS)
        return;
    meg_board_give_up();
    MPI_Error_string(status, text, &n);
    meg_die(MEG_EPEER, "%s of group %s failed on rank %d of %d: %.*s", what, g->c.group, g->c.rank, g->c.size, n, text);
}

static MPI_Datatype type_of(enum meg_dtype t)
{
    static const MPI_Datatype by_size[] = { [2] = MPI_UINT16_T, [4] = MPI_UINT32_T, [8] = MPI_UINT64_T };

    return by_size[meg_dtype_size(t)];
}

static double nbytes_of(int64_t n, enum meg_dtype t)
{
    return (double)n * (double)meg_dtype_size(t);
}

static struct meg_work *work_new(struct meg_comm *c, const char *what)
{
    struct meg_work *w = meg_new(sizeof *w);

    w->g = group_of(c);
    w->what = what;
    w->number = ++w->g->started;
    w->request = MPI_REQUEST_NULL;
    return w;
}

/* The board, which asks the others, speaks first; what is said here is all that can be known without it. */
static void give_up(const struct meg_work *w) MEG_NORETURN;
static void give_up(const struct meg_work *w)
{
    const struct group *g = w->g;
    char host[256] = "?";

    meg_board_give_up();
    gethostname(host, sizeof host - 1);
    meg_die(MEG_EPEER,
            "rank %d of %d on %s waited %.1f s in %s of group %s; a peer is gone or stuck, see what the others say "
            "(--distributed-timeout-minutes sets how long)",
            g->c.rank, g->c.size, host, g->deadline_s, w->what, g->c.group);
}

/* Test until done; now and then look at the clock, and let others run.  Time in which we were stopped is not waited. */
static void wait_request(struct meg_work *w)
{
    const double start = meg_now_s();
    double before = 0, waited = 0;
    int done = 0;

    for (int tries = 0;; tries++) {
        double now;

        check(w->g, MPI_Test(&w->request, &done, MPI_STATUS_IGNORE), w->what);
        if (done)
            break;
        if (tries % 64 != 63)
            continue;
        sched_yield();
        now = meg_now_s();
        if (before == 0)
            meg_board_enter(w->what, w->g->c.group, w->number);
        else if (now - before < 1)
            waited += now - before;
        before = now;
        if (waited > w->g->deadline_s && !meg_board_is_patient(waited))
            give_up(w);
    }
    if (before != 0)
        meg_board_leave();
    meg_comm_add_wait(meg_now_s() - start);
}

static void wait_work(struct meg_work *w)
{
    do
        wait_request(w);
    while (w->then && w->then(w));
    free(w);
}

static bool test_work(struct meg_work *w)
{
    int done = 0;

    check(w->g, MPI_Test(&w->request, &done, MPI_STATUS_IGNORE), w->what);
    if (!done || (w->then && w->then(w)))
        return false;
    free(w);
    return true;
}

/* ---- reductions -------------------------------------------------------------------------- */

/* acc [n] = sum or maximum over size parts that lie behind each other, in order. */
#define REDUCE(name, type, wide, load, store)                                                      \
    static void name(type *acc, const type *part, int64_t n, int size, enum meg_reduce how)        \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            wide a = load(part[i]);                                                                \
                                                                                                   \
            for (int r = 1; r < size; r++) {                                                       \
                const wide b = load(part[r * n + i]);                                              \
                                                                                                   \
                a = how == MEG_SUM ? a + b : b > a || b != b ? b : a;                              \
            }                                                                                      \
            acc[i] = store(a);                                                                     \
        }                                                                                          \
    }
REDUCE(reduce_f32, float, float, , )
REDUCE(reduce_f64, double, double, , )
REDUCE(reduce_bf16, uint16_t, float, meg_from_bf16, meg_to_bf16)
REDUCE(reduce_f16, uint16_t, float, meg_from_f16, meg_to_f16)
REDUCE(reduce_i32, int32_t, int32_t, , )
REDUCE(reduce_i64, int64_t, int64_t, , )

static void reduce(void *acc, const void *part, int64_t n, int size, enum meg_dtype t, enum meg_reduce how)
{
    switch (t) {
    case MEG_DTYPE_F32: reduce_f32(acc, part, n, size, how); break;
    case MEG_DTYPE_F64: reduce_f64(acc, part, n, size, how); break;
    case MEG_DTYPE_BF16: reduce_bf16(acc, part, n, size, how); break;
    case MEG_DTYPE_F16: reduce_f16(acc, part, n, size, how); break;
    case MEG_DTYPE_I32: reduce_i32(acc, part, n, size, how); break;
    case MEG_DTYPE_I64: reduce_i64(acc, part, n, size, how); break;
    case MEG_DTYPES: MEG_ASSERT(!"a type");
    }
}

/* Room for nbytes of arriving parts. */
static void *room(struct group *g, size_t nbytes)
{
    if (g->cap < nbytes) {
        free(g->arrived);
        g->arrived = meg_new(nbytes);
        g->cap = nbytes;
    }
    return g->arrived;
}

static char *element(const void *p, int64_t i, enum meg_dtype t)
{
    return (char *)p + (size_t)i * meg_dtype_size(t);
}

/* Cut the piece of an all-reduce from w->at on into a part for each rank; elements in all. */
static int64_t cut_piece(struct meg_work *w)
{
    struct group *g = w->g;
    const int64_t most = (int64_t)MEG_COMM_PIECE * g->c.size, n = w->n - w->at < most ? w->n - w->at : most;

    for (int r = 0; r < g->c.size; r++) {
        g->first[r] = (int)(n * r / g->c.size);
        g->count[r] = (int)(n * (r + 1) / g->c.size) - g->first[r];
    }
    return n;
}

static bool send_parts(struct meg_work *w);

static bool next_piece(struct meg_work *w)
{
    w->at += w->g->first[w->g->c.size - 1] + w->g->count[w->g->c.size - 1];
    return w->at < w->n && send_parts(w);
}

static bool gather_sums(struct meg_work *w)
{
    struct group *g = w->g;
    const int64_t mine = g->count[g->c.rank];

    reduce(element(w->buf, w->at + g->first[g->c.rank], w->t), g->arrived, mine, g->c.size, w->t, w->how);
    check(g,
          MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, element(w->buf, w->at, w->t), g->count, g->first,
                          type_of(w->t), g->mpi, &w->request),
          w->what);
    w->then = next_piece;
    return true;
}

static bool send_parts(struct meg_work *w)
{
    struct group *g = w->g;
    int *from_count, *from_first;

    cut_piece(w);
    from_count = g->count + g->c.size;
    from_first = g->first + g->c.size;
    for (int r = 0; r < g->c.size; r++) {
        from_count[r] = g->count[g->c.rank];
        from_first[r] = r * g->count[g->c.rank];
    }
    room(g, (size_t)g->count[g->c.rank] * (size_t)g->c.size * meg_dtype_size(w->t));
    check(g,
          MPI_Ialltoallv(element(w->buf, w->at, w->t), g->count, g->first, type_of(w->t), g->arrived, from_count,
                         from_first, type_of(w->t), g->mpi, &w->request),
          w->what);
    w->then = gather_sums;
    return true;
}

static struct meg_work *all_reduce(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, enum meg_reduce how)
{
    struct meg_work *w = work_new(c, "all-reduce");

    c->sent += meg_sent_all_reduce(c->size, nbytes_of(n, t));
    w->buf = buf;
    w->n = n;
    w->t = t;
    w->how = how;
    send_parts(w);
    return w;
}

static bool sum_part(struct meg_work *w)
{
    reduce(w->buf, w->g->arrived, w->n, w->g->c.size, w->t, w->how);
    return false;
}

static struct meg_work *reduce_scatter(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t,
                                       enum meg_reduce how)
{
    struct meg_work *w = work_new(c, "reduce-scatter");

    c->sent += meg_sent_parts(c->size, nbytes_of(n, t));
    MEG_ASSERT(n <= INT32_MAX);
    w->buf = out;
    w->n = n;
    w->t = t;
    w->how = how;
    room(w->g, (size_t)(n * c->size) * meg_dtype_size(t));
    check(w->g,
          MPI_Ialltoall(in, (int)n, type_of(t), w->g->arrived, (int)n, type_of(t), w->g->mpi, &w->request),
          w->what);
    w->then = sum_part;
    return w;
}

/* ---- moving ------------------------------------------------------------------------------ */

static struct meg_work *all_gather(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t)
{
    struct meg_work *w = work_new(c, "all-gather");
    const bool is_in_place = in == element(out, c->rank * n, t);

    c->sent += meg_sent_parts(c->size, nbytes_of(n, t));
    MEG_ASSERT(n <= INT32_MAX);
    check(w->g,
          MPI_Iallgather(is_in_place ? MPI_IN_PLACE : in, (int)n, type_of(t), out, (int)n, type_of(t), w->g->mpi,
                         &w->request),
          w->what);
    return w;
}

static struct meg_work *all_to_all(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t)
{
    struct meg_work *w = work_new(c, "all-to-all");

    c->sent += meg_sent_parts(c->size, nbytes_of(n, t));
    MEG_ASSERT(n <= INT32_MAX);
    check(w->g, MPI_Ialltoall(in, (int)n, type_of(t), out, (int)n, type_of(t), w->g->mpi, &w->request), w->what);
    return w;
}

static struct meg_work *broadcast(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, int root)
{
    struct meg_work *w = work_new(c, "broadcast");

    c->sent += nbytes_of(n, t);
    MEG_ASSERT(n <= INT32_MAX);
    check(w->g, MPI_Ibcast(buf, (int)n, type_of(t), root, w->g->mpi, &w->request), w->what);
    return w;
}

static struct meg_work *send(struct meg_comm *c, const void *buf, int64_t n, enum meg_dtype t, int to)
{
    struct meg_work *w = work_new(c, "send");

    c->sent += nbytes_of(n, t);
    MEG_ASSERT(n <= INT32_MAX);
    check(w->g, MPI_Isend(buf, (int)n, type_of(t), to, TAG, w->g->mpi, &w->request), w->what);
    return w;
}

static struct meg_work *recv(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype t, int from)
{
    struct meg_work *w = work_new(c, "receive");

    MEG_ASSERT(n <= INT32_MAX);
    check(w->g, MPI_Irecv(buf, (int)n, type_of(t), from, TAG, w->g->mpi, &w->request), w->what);
    return w;
}

static struct meg_work *barrier(struct meg_comm *c)
{
    struct meg_work *w = work_new(c, "barrier");

    check(w->g, MPI_Ibarrier(w->g->mpi, &w->request), w->what);
    return w;
}

/* ---- groups ------------------------------------------------------------------------------ */

static void close_group(struct meg_comm *c)
{
    struct group *g = group_of(c);
    const bool is_world = g->mpi == MPI_COMM_WORLD;

    if (!is_world)
        MPI_Comm_free(&g->mpi);
    free(g->arrived);
    free(g->count);
    free(g->first);
    free(g);
    if (is_world) {
        meg_on_die(NULL);
        MPI_Finalize();
    }
}

static void set_deadline(struct meg_comm *c, double seconds)
{
    group_of(c)->deadline_s = seconds;
}

static const struct meg_comm_ops ops = {
    .name = "mpi",
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .send = send,
    .recv = recv,
    .barrier = barrier,
    .wait = wait_work,
    .test = test_work,
    .set_deadline = set_deadline,
    .close = close_group,
};

static struct meg_comm *group_new(MPI_Comm mpi, const char *name, double deadline_s)
{
    struct group *g = meg_new(sizeof *g);

    g->c.op = &ops;
    g->c.group = name;
    g->mpi = mpi;
    g->deadline_s = deadline_s;
    MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi, &g->c.rank);
    MPI_Comm_size(mpi, &g->c.size);
    g->count = meg_new(2 * (size_t)g->c.size * sizeof *g->count);
    g->first = meg_new(2 * (size_t)g->c.size * sizeof *g->first);
    return &g->c;
}

static void abort_all(int status, const char *why)
{
    meg_board_last_words(status, why);
    usleep(100000);                     /* MPICH's launcher drops what it has not read from us by then */
    MPI_Abort(MPI_COMM_WORLD, status);
}

int meg_comm_open_mpi(struct meg_comm **world, struct meg_err *e)
{
    int provided;

    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS || provided < MPI_THREAD_FUNNELED)
        return meg_fail(e, MEG_EFAIL, "MPI could not be started with threads (MPI_THREAD_FUNNELED)");
    *world = group_new(MPI_COMM_WORLD, "world", 600);
    meg_on_die(abort_all);
    return 0;
}

struct meg_comm *meg_comm_split_mpi(struct meg_comm *world, int color, const char *name)
{
    struct group *g = group_of(world);
    MPI_Comm mpi;

    check(g, MPI_Comm_split(g->mpi, color, world->rank, &mpi), "split");
    return group_new(mpi, name, g->deadline_s);
}
