/*
 * launch.c - detect the launcher (mpirun, srun or torchrun) and open the communicator of all ranks.  MPI is initialized
 * only if mpirun or srun started several ranks, because the initialization takes a third of a second.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "comm/internal.h"
#include "device/device.h"

static const struct {
    const char *size_variable, *name;
} launchers[] = {
    { "OMPI_COMM_WORLD_SIZE", "mpirun (Open MPI)" },
    { "PMI_SIZE", "mpiexec or srun (PMI)" },
    { "SLURM_STEP_NUM_TASKS", "srun" },
};

/*
 * Return the number of ranks that an MPI launcher started, and set *which to the index of the launcher.  If no launcher
 * started several ranks, return 1 and leave *which unchanged.
 */
static int64_t launcher_size(size_t *which)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *text = getenv(launchers[i].size_variable);
        int64_t n;

        if (text && meg_parse_i64(text, &n) && n > 1) {
            *which = i;
            return n;
        }
    }
    return 1;
}

static int open_torchrun(struct meg_comm_world *w, struct meg_err *e)
{
    struct meg_torchrun t;
    const int r = meg_torchrun_read(&t, e);

    if (r < 0 || t.size == 1)
        return r;
    w->launcher = "torchrun";
    w->rendezvous = t.rendezvous;
    w->has_rendezvous = true;
    w->world = meg_comm_open_store(&t);
    return 0;
}

/*
 * TORCHELASTIC_RUN_ID selects torchrun, even if mpirun or srun started torchrun on each machine.  WORLD_SIZE alone
 * selects torchrun only if no MPI launcher started several ranks: other programs set WORLD_SIZE as well.
 */
int meg_comm_open(struct meg_comm_world *w, struct meg_err *e)
{
    const bool is_torchrun = getenv("TORCHELASTIC_RUN_ID");
    size_t i = 0;
    const int64_t ranks = is_torchrun ? 1 : launcher_size(&i);

    memset(w, 0, sizeof *w);
    w->world = &meg_comm_self;
    w->launcher = "none";
    if (ranks == 1)
        return is_torchrun || getenv("WORLD_SIZE") ? open_torchrun(w, e) : 0;
    w->launcher = launchers[i].name;
#ifdef MEG_HAVE_MPI
    {
        const int r = meg_comm_open_mpi(&w->world, e);

        if (r < 0)
            return r;
    }
    if (w->world->size == ranks)
        return 0;
    return meg_fail(e, MEG_EUSAGE,
                    "%s started %" PRId64
                    " ranks, but MPI reports %d; build this program with the MPI library of the launcher",
                    w->launcher, ranks, w->world->size);
#else
    return meg_fail(e, MEG_EUSAGE,
                    "%s started %" PRId64
                    " ranks, but this build has no MPI; install libopenmpi-dev and run make again",
                    w->launcher, ranks);
#endif
}

int meg_comm_open_tensors(struct meg_comm *world, const struct meg_device *d, struct meg_err *e)
{
    int32_t some[2] = { d->op->is_host_memory, !d->op->is_host_memory }; /* whether some ranks use a CPU, a GPU */

    meg_host_all_reduce(world, some, 2, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    if (some[0] && some[1])
        return meg_fail(
            e, MEG_EUSAGE,
            "rank %d computes on %s, but other ranks do not; give --device cpu, or --device cuda to learn why "
            "ranks have no GPU",
            world->rank, d->op->is_host_memory ? "the CPU" : "a GPU");
    if (world->size == 1 || (d->op->is_host_memory && world->has_host_tensors))
        return 0;
    if (d->op->is_host_memory)
        return meg_fail(e, MEG_EUSAGE,
                        "torchrun started %d ranks, but with --device %s ranks exchange tensors through MPI; start "
                        "them with mpirun or srun",
                        world->size, d->op->name);
#ifdef MEG_HAVE_NCCL
    return meg_comm_open_nccl(world, d, e);
#else
    return meg_fail(e, MEG_EUSAGE,
                    "this build has no NCCL, so it cannot run %d ranks with --device %s; install nccl.h and run make "
                    "again",
                    world->size, d->op->name);
#endif
}

struct meg_comm *meg_comm_split(struct meg_comm *world, int color, const char *name)
{
    return world->op->split(world, color, name);
}

void meg_host_broadcast_str(struct meg_comm *c, struct meg_str *text, int root)
{
    int64_t n = (int64_t)text->n;

    meg_host_broadcast(c, &n, 1, MEG_DTYPE_I64, root);
    if (c->rank == root)
        meg_str_add(text, "\0\0\0", 4); /* pad, because the broadcast transfers 32-bit integers */
    else
        *text = (struct meg_str){ .s = meg_new((size_t)n + 4) };
    meg_host_broadcast(c, text->s, n / 4 + 1, MEG_DTYPE_I32, root);
    text->n = (size_t)n;
}

const char *meg_comm_op_name(enum meg_comm_op op)
{
    static const char *const name[] = { "all-reduce", "reduce-scatter", "all-gather", "all-to-all",
                                        "broadcast",  "send",           "receive",    "barrier" };

    return name[op];
}

double meg_comm_volume(const struct meg_comm_call *x, int64_t size)
{
    const double nbytes = (double)x->n * (double)meg_dtype_size(x->dtype);

    switch (x->op) {
    case MEG_ALL_REDUCE: return meg_comm_volume_all_reduce(size, nbytes);
    case MEG_REDUCE_SCATTER:
    case MEG_ALL_GATHER:
    case MEG_ALL_TO_ALL: return meg_comm_volume_sharded(size, nbytes);
    case MEG_BROADCAST:
    case MEG_SEND: return nbytes;
    default: return 0;
    }
}

static double waited_s;

double meg_comm_waited_s(void)
{
    return waited_s;
}

void meg_comm_add_wait(double seconds)
{
    waited_s += seconds;
}

void meg_comm_set_timeout(struct meg_comm *c, double seconds)
{
    c->op->set_timeout(c, seconds);
}

void meg_comm_close(struct meg_comm *c)
{
    if (c)
        c->op->close(c);
}
