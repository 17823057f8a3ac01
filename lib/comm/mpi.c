/* mpi.c - the MPI transport: nonblocking collectives and messages of MPI-3. */
#define _GNU_SOURCE /* sched_getaffinity */
#include <limits.h>
#include <mpi.h>
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/mem.h"
#include "comm/collectives.h"
#include "comm/internal.h"
#include "file/temporary.h"
#include "watchdog/watchdog.h"

enum { TAG = 1 };

struct mpi_group {
    struct meg_comm_group g;
    MPI_Comm mpi;
    int *recv_counts, *recv_displs; /* [size] receive arguments of alltoallv */
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

/* End the process if an MPI call failed.  If a rank was lost, the watchdog reports it first. */
static void check(const struct meg_comm_group *g, int status, const char *op_name)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;

    if (status == MPI_SUCCESS)
        return;
    meg_watchdog_await_report(meg_comm_group_watchdog(g));
    MPI_Error_string(status, text, &n);
    meg_die(MEG_EPEER, "%s of group %s failed on rank %d of %d: %.*s", op_name, g->c.name, g->c.rank, g->c.size, n,
            text);
}

static MPI_Datatype type_of(const struct meg_work *w)
{
    static const MPI_Datatype by_size[] = { [2] = MPI_UINT16_T, [4] = MPI_UINT32_T, [8] = MPI_UINT64_T };

    return by_size[meg_dtype_size(w->call.dtype)];
}

/* ---- transfers ------------------------------------------------------------------------------ */

int64_t meg_mpi_max_count = INT_MAX;

/* The count and type arguments of an MPI call for n consecutive elements. */
struct mpi_args {
    int count;
    MPI_Datatype type;
    bool is_derived;
};

/*
 * Return the arguments for n elements.  If n exceeds the largest count of an MPI call, the arguments describe one
 * element of a derived type, which consists of blocks of the largest count and of the elements after the last
 * complete block.
 */
static struct mpi_args args_of(const struct meg_work *w, int64_t n)
{
    const int64_t max = meg_mpi_max_count, nblocks = n / max;
    struct mpi_args a = { (int)n, type_of(w), false };
    const MPI_Aint offsets[2] = { 0, (MPI_Aint)(nblocks * max * (int64_t)meg_dtype_size(w->call.dtype)) };
    const int counts[2] = { (int)nblocks, (int)(n % max) };
    MPI_Datatype types[2] = { MPI_DATATYPE_NULL, a.type };

    if (n <= max)
        return a;
    check(w->g, MPI_Type_contiguous((int)max, a.type, &types[0]), w->op_name);
    check(w->g, MPI_Type_create_struct(counts[1] ? 2 : 1, counts, offsets, types, &a.type), w->op_name);
    check(w->g, MPI_Type_commit(&a.type), w->op_name);
    check(w->g, MPI_Type_free(&types[0]), w->op_name);
    a.count = 1;
    a.is_derived = true;
    return a;
}

static void alltoallv(struct meg_work *w, const void *from, void *to)
{
    const struct mpi_group *m = mpi_group_of(w->g);
    const int mine = w->g->counts[w->g->c.rank];

    for (int r = 0; r < w->g->c.size; r++) {
        m->recv_counts[r] = mine;
        m->recv_displs[r] = r * mine;
    }
    check(w->g,
          MPI_Ialltoallv(from, w->g->counts, w->g->displs, type_of(w), to, m->recv_counts, m->recv_displs, type_of(w),
                         m->mpi, request_of(w)),
          w->op_name);
}

static void allgatherv(struct meg_work *w, void *buf)
{
    check(w->g,
          MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buf, w->g->counts, w->g->displs, type_of(w), comm_of(w),
                          request_of(w)),
          w->op_name);
}

static void start(struct meg_work *w, const struct meg_comm_call *x)
{
    struct mpi_args a = args_of(w, x->n);
    const MPI_Comm c = comm_of(w);
    MPI_Request *q = request_of(w);
    const void *in = x->in;
    int status = MPI_ERR_OTHER;

    switch (x->op) {
    case MEG_ALL_GATHER:
        if (in == meg_element(x->out, w->g->c.rank * x->n, x->dtype))
            in = MPI_IN_PLACE;
        status = MPI_Iallgather(in, a.count, a.type, x->out, a.count, a.type, c, q);
        break;
    case MEG_ALL_TO_ALL: status = MPI_Ialltoall(in, a.count, a.type, x->out, a.count, a.type, c, q); break;
    case MEG_BROADCAST: status = MPI_Ibcast(x->out, a.count, a.type, x->peer, c, q); break;
    case MEG_SEND: status = MPI_Isend(in, a.count, a.type, x->peer, TAG, c, q); break;
    case MEG_RECV: status = MPI_Irecv(x->out, a.count, a.type, x->peer, TAG, c, q); break;
    case MEG_BARRIER: status = MPI_Ibarrier(c, q); break;
    case MEG_ALL_REDUCE:
    case MEG_REDUCE_SCATTER: MEG_ASSERT(!"reductions are in collectives.c");
    }
    check(w->g, status, w->op_name);
    if (a.is_derived) /* MPI keeps the type during the transfer */
        check(w->g, MPI_Type_free(&a.type), w->op_name);
}

static bool is_done(struct meg_work *w)
{
    int done = 0;

    check(w->g, MPI_Test(request_of(w), &done, MPI_STATUS_IGNORE), w->op_name);
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
    free(m->recv_counts);
    free(m->recv_displs);
    free(m);
    if (is_world) {
        meg_on_die(NULL, NULL);
        MPI_Finalize();
    }
}

static const struct meg_transport mpi_transport = {
    .work_nbytes = sizeof(struct mpi_work),
    .alltoallv = alltoallv,
    .allgatherv = allgatherv,
    .start = start,
    .is_done = is_done,
    .split = split,
    .close = close_group,
};

static struct meg_comm *group_new(MPI_Comm mpi, struct meg_comm_group *world, const char *name)
{
    struct mpi_group *m = meg_new(sizeof *m);

    m->mpi = mpi;
    MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi, &m->g.c.rank);
    MPI_Comm_size(mpi, &m->g.c.size);
    m->recv_counts = meg_new((size_t)m->g.c.size * sizeof *m->recv_counts);
    m->recv_displs = meg_new((size_t)m->g.c.size * sizeof *m->recv_displs);
    meg_comm_group_init(&m->g, world, &mpi_transport, name);
    return &m->g.c;
}

static struct meg_comm *split(struct meg_comm_group *world, int color, const char *name)
{
    MPI_Comm mpi;

    check(world, MPI_Comm_split(mpi_group_of(world)->mpi, color, world->c.rank, &mpi), "split");
    return group_new(mpi, world, name);
}

static bool is_aborting;

/*
 * Call MPI_Finalize at exit, unless it was called or the run is being aborted.  Without MPI_Finalize, launchers report
 * even a run of --help as failed.
 */
static void finalize_at_exit(void)
{
    int is_over = 0;

    if (is_aborting)
        return;
    MPI_Finalized(&is_over);
    if (!is_over)
        MPI_Finalize();
}

/* End all ranks.  meg_die calls this hook. */
static void abort_all(int status, const char *why, void *world)
{
    is_aborting = true;
    meg_watchdog_broadcast_exit(((struct meg_comm *)world)->watchdog, status, why);
    meg_temporary_unlink_all(); /* MPI_Abort runs no exit handlers */
    usleep(100000);             /* MPICH's launcher drops output that it has not read when a rank aborts */
    MPI_Abort(MPI_COMM_WORLD, status);
}

/*
 * Set the number of OpenMP threads to the number of CPUs in the affinity mask of this rank, divided by the number of
 * ranks on this machine, including this one, whose masks overlap with it; at least 1.  Waits are ten times slower if
 * threads of two ranks run on one core.  If OMP_NUM_THREADS is set or the mask cannot be read, the number of threads
 * does not change.  Return whether there are more such ranks than CPUs in the mask.  All ranks must call this function
 * in any case: it is collective.
 */
static bool limit_threads(void)
{
    MPI_Comm machine;
    cpu_set_t own, both, *all;
    int ranks, overlapping = 0;

    if (sched_getaffinity(0, sizeof own, &own) < 0)
        CPU_ZERO(&own);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_size(machine, &ranks);
    all = meg_new((size_t)ranks * sizeof *all);
    MPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, machine);
    for (int i = 0; i < ranks; i++) {
        CPU_AND(&both, &own, &all[i]);
        overlapping += CPU_COUNT(&both) > 0;
    }
    if (overlapping > 0 && !getenv("OMP_NUM_THREADS"))
        omp_set_num_threads(CPU_COUNT(&own) > overlapping ? CPU_COUNT(&own) / overlapping : 1);
    free(all);
    MPI_Comm_free(&machine);
    return overlapping > CPU_COUNT(&own);
}

int meg_comm_open_mpi(struct meg_comm **world, struct meg_err *e)
{
    bool is_oversubscribed;
    int provided;

    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return meg_fail(e, MEG_EFAIL, "MPI_Init_thread failed; check the MPI library and the launcher");
    if (provided < MPI_THREAD_FUNNELED)
        return meg_fail(e, MEG_EFAIL,
                        "the MPI library does not support MPI_THREAD_FUNNELED; use one built with thread support");
    is_oversubscribed = limit_threads();
    *world = group_new(MPI_COMM_WORLD, NULL, "world");
    meg_comm_group_of(*world)->is_oversubscribed = is_oversubscribed;
    meg_on_die(abort_all, *world);
    atexit(finalize_at_exit);
    return 0;
}
