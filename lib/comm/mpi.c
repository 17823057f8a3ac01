/* The transport of a group: MPI-3. */
#define _GNU_SOURCE /* sched_getaffinity */
#include <mpi.h>
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/mem.h"
#include "watchdog/watchdog.h"
#include "comm/collectives.h"
#include "comm/internal.h"
#include "file/temporary.h"

enum { TAG = 1 };

struct mpi_group {
    struct meg_comm_group g;
    MPI_Comm mpi;
    int *from_count, *from_first; /* [size] of what arrives */
};

struct mpi_work {
    struct meg_work w;
    MPI_Request request;
};

static struct mpi_group *mpi_group_of(struct meg_comm_group *g)
{
    return (struct mpi_group *)g;
}

static MPI_Comm comm_of(const struct meg_work *w)
{
    return mpi_group_of(w->g)->mpi;
}

static MPI_Request *request_of(struct meg_work *w)
{
    return &((struct mpi_work *)w)->request;
}

static void check(const struct meg_comm_group *g, int status, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;

    if (status == MPI_SUCCESS)
        return;
    meg_watchdog_await_report();
    MPI_Error_string(status, text, &n);
    meg_die(MEG_EPEER, "%s of group %s failed on rank %d of %d: %.*s", what, g->c.group, g->c.rank, g->c.size, n, text);
}

static MPI_Datatype type_of(const struct meg_work *w)
{
    static const MPI_Datatype by_size[] = { [2] = MPI_UINT16_T, [4] = MPI_UINT32_T, [8] = MPI_UINT64_T };

    return by_size[meg_dtype_size(w->t)];
}

/* ---- moving ------------------------------------------------------------------------------ */

static void alltoallv(struct meg_work *w, const void *from, void *to)
{
    const struct mpi_group *m = mpi_group_of(w->g);
    const int mine = w->g->count[w->g->c.rank];

    for (int r = 0; r < w->g->c.size; r++) {
        m->from_count[r] = mine;
        m->from_first[r] = r * mine;
    }
    check(w->g,
          MPI_Ialltoallv(from, w->g->count, w->g->first, type_of(w), to, m->from_count, m->from_first, type_of(w),
                         m->mpi, request_of(w)),
          w->what);
}

static void allgatherv(struct meg_work *w, void *buf)
{
    check(w->g,
          MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buf, w->g->count, w->g->first, type_of(w), comm_of(w),
                          request_of(w)),
          w->what);
}

static void all_gather(struct meg_work *w, void *out, const void *in, int64_t n)
{
    const bool is_in_place = in == meg_element(out, w->g->c.rank * n, w->t);

    check(w->g,
          MPI_Iallgather(is_in_place ? MPI_IN_PLACE : in, (int)n, type_of(w), out, (int)n, type_of(w), comm_of(w),
                         request_of(w)),
          w->what);
}

static void all_to_all(struct meg_work *w, void *out, const void *in, int64_t n)
{
    check(w->g, MPI_Ialltoall(in, (int)n, type_of(w), out, (int)n, type_of(w), comm_of(w), request_of(w)), w->what);
}

static void broadcast(struct meg_work *w, void *buf, int64_t n, int root)
{
    check(w->g, MPI_Ibcast(buf, (int)n, type_of(w), root, comm_of(w), request_of(w)), w->what);
}

static void send(struct meg_work *w, const void *buf, int64_t n, int to)
{
    check(w->g, MPI_Isend(buf, (int)n, type_of(w), to, TAG, comm_of(w), request_of(w)), w->what);
}

static void recv(struct meg_work *w, void *buf, int64_t n, int from)
{
    check(w->g, MPI_Irecv(buf, (int)n, type_of(w), from, TAG, comm_of(w), request_of(w)), w->what);
}

static void barrier(struct meg_work *w)
{
    check(w->g, MPI_Ibarrier(comm_of(w), request_of(w)), w->what);
}

static bool is_done(struct meg_work *w)
{
    int done = 0;

    check(w->g, MPI_Test(request_of(w), &done, MPI_STATUS_IGNORE), w->what);
    return done;
}

/* ---- groups ------------------------------------------------------------------------------ */

static struct meg_comm *split(struct meg_comm_group *world, int color, const char *name);

static void close_group(struct meg_comm_group *g)
{
    struct mpi_group *m = mpi_group_of(g);
    const bool is_world = m->mpi == MPI_COMM_WORLD;

    if (!is_world)
        MPI_Comm_free(&m->mpi);
    free(m->from_count);
    free(m->from_first);
    free(m);
    if (is_world) {
        meg_on_die(NULL);
        MPI_Finalize();
    }
}

static const struct meg_transport move = {
    .work_nbytes = sizeof(struct mpi_work),
    .alltoallv = alltoallv,
    .allgatherv = allgatherv,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .broadcast = broadcast,
    .send = send,
    .recv = recv,
    .barrier = barrier,
    .is_done = is_done,
    .split = split,
    .close = close_group,
};

static struct meg_comm *group_new(MPI_Comm mpi, const char *name, double deadline_s)
{
    struct mpi_group *m = meg_new(sizeof *m);

    m->mpi = mpi;
    MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi, &m->g.c.rank);
    MPI_Comm_size(mpi, &m->g.c.size);
    m->from_count = meg_new((size_t)m->g.c.size * sizeof *m->from_count);
    m->from_first = meg_new((size_t)m->g.c.size * sizeof *m->from_first);
    meg_comm_group_init(&m->g, &move, name, deadline_s);
    return &m->g.c;
}

static struct meg_comm *split(struct meg_comm_group *world, int color, const char *name)
{
    MPI_Comm mpi;

    check(world, MPI_Comm_split(mpi_group_of(world)->mpi, color, world->c.rank, &mpi), "split");
    return group_new(mpi, name, world->deadline_s);
}

static bool is_aborting;

/* Without MPI_Finalize a program that only printed its --help would count as failed. */
static void leave(void)
{
    int is_over = 0;

    if (is_aborting)
        return;
    MPI_Finalized(&is_over);
    if (!is_over)
        MPI_Finalize();
}

static void abort_all(int status, const char *why)
{
    is_aborting = true;
    meg_watchdog_broadcast_exit(status, why);
    meg_temporary_unlink_all(); /* MPI_Abort runs no exit handlers */
    usleep(100000);             /* MPICH's launcher drops what it has not read from us by then */
    MPI_Abort(MPI_COMM_WORLD, status);
}

/* Ranks of a machine that may use the same cores share them out; a launcher that binds each to its own leaves nothing
 * to share.  Threads of two ranks that wait for each other on one core take ten times as long.  All ranks call it, also
 * those whose number of threads the environment sets. */
static void share_cores(void)
{
    MPI_Comm machine;
    cpu_set_t mine, both, *all;
    int ranks, sharers = 0;

    if (sched_getaffinity(0, sizeof mine, &mine) < 0)
        CPU_ZERO(&mine);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_size(machine, &ranks);
    all = meg_new((size_t)ranks * sizeof *all);
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, machine);
    for (int i = 0; i < ranks; i++) {
        CPU_AND(&both, &mine, &all[i]);
        sharers += CPU_COUNT(&both) > 0;
    }
    if (sharers > 0 && !getenv("OMP_NUM_THREADS"))
        omp_set_num_threads(CPU_COUNT(&mine) > sharers ? CPU_COUNT(&mine) / sharers : 1);
    free(all);
    MPI_Comm_free(&machine);
}

int meg_comm_open_mpi(struct meg_comm **world, struct meg_err *e)
{
    int provided;

    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS || provided < MPI_THREAD_FUNNELED)
        return meg_fail(e, MEG_EFAIL, "MPI could not be started with threads (MPI_THREAD_FUNNELED)");
    share_cores();
    *world = group_new(MPI_COMM_WORLD, "world", 600);
    meg_on_die(abort_all);
    atexit(leave);
    return 0;
}
