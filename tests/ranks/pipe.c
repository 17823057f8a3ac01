/*
 * Test the pipeline executor on the ranks of a launcher, with each schedule below whose number of stages divides the
 * number of ranks.  Several pipelines may run at once.  Messages are small, and MPI buffers them, or large, and MPI
 * does not.  The values of boundary tensors are a function of direction, part (virtual stage), micro-batch, tensor and
 * element, so that each step can check its inputs.  Steps have random durations.  Rank 0 prints TAP.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "comm/comm.h"
#include "parallel/pipeline.h"
#include "tensor/half.h"

static const struct meg_pipe_schedule_conf schedules[] = {
    { MEG_PIPE_1F1B, 1, 1, 3, 0, false },         { MEG_PIPE_1F1B, 2, 1, 5, 0, false },
    { MEG_PIPE_INTERLEAVED, 2, 2, 4, 0, false },  { MEG_PIPE_INTERLEAVED, 2, 3, 8, 5, false },
    { MEG_PIPE_ZB_H1, 2, 1, 7, 0, false },        { MEG_PIPE_INTERLEAVED, 2, 2, 6, 3, true },
    { MEG_PIPE_1F1B, 3, 1, 2, 0, false },         { MEG_PIPE_INTERLEAVED, 3, 3, 6, 0, false },
    { MEG_PIPE_ZB_H1, 3, 1, 5, 0, false },        { MEG_PIPE_1F1B, 4, 1, 9, 0, false },
    { MEG_PIPE_INTERLEAVED, 4, 2, 9, 5, false },  { MEG_PIPE_ZB_H1, 4, 1, 6, 0, false },
    { MEG_PIPE_1F1B, 4, 1, 6, 0, true },          { MEG_PIPE_1F1B, 8, 1, 12, 0, false },
    { MEG_PIPE_INTERLEAVED, 8, 2, 16, 0, false }, { MEG_PIPE_ZB_H1, 8, 1, 16, 0, false },
};

enum { TENSORS = 2, BACKWARD = 1, FORWARD = 2 };
static const struct meg_pipe_tensor sizes[][TENSORS] = {
    { { 5, MEG_DTYPE_F32 }, { 3, MEG_DTYPE_BF16 } },
    { { 70001, MEG_DTYPE_F32 }, { 7, MEG_DTYPE_BF16 } },
};

/* Masks of the tensors that are transferred at each boundary.  Tensor 1 is transferred at every second one only. */
static const unsigned transferred[] = { 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1 };

/* The state of the stage of this rank, the argument of the step functions. */
struct stage {
    const struct meg_pipe_schedule *s;
    const struct meg_pipe_tensor *tensor;
    int64_t slot_key[64]; /* key of the (chunk, micro-batch) in each slot; 0: free */
    int64_t steps, errors;
    unsigned seed;
};

static int part_of(const struct stage *g, int chunk)
{
    return chunk * g->s->conf.stages + g->s->stage;
}

/* Return a small integer, which is exact in every type. */
static float value(int direction, int part, int64_t mb, int tensor, int64_t i)
{
    return (float)((direction * 101 + part * 37 + mb * 11 + tensor * 5 + i % 997) % 251);
}

static void put(const struct stage *g, void *const *to, int direction, int part, int64_t mb)
{
    for (int t = 0; to && t < TENSORS; t++)
        for (int64_t i = 0; i < g->tensor[t].n; i++) {
            const float v = value(direction, part, mb, t, i);

            if (g->tensor[t].dtype == MEG_DTYPE_F32)
                ((float *)to[t])[i] = v;
            else
                ((uint16_t *)to[t])[i] = meg_to_bf16(v);
        }
}

static void check(struct stage *g, void *const *from, int has_tensor, int direction, int part, int64_t mb)
{
    const int boundary = direction == FORWARD ? part + 1 : part;

    g->errors += !from == !!has_tensor;
    for (int t = 0; from && t < TENSORS; t++)
        for (int64_t i = 0; i < g->tensor[t].n && transferred[boundary] & 1u << t; i++)
            g->errors += value(direction, part, mb, t, i) != (g->tensor[t].dtype == MEG_DTYPE_F32
                                                                  ? ((const float *)from[t])[i]
                                                                  : meg_from_bf16(((const uint16_t *)from[t])[i]));
}

static int64_t key(const struct stage *g, const struct meg_pipe_step *s)
{
    return s->chunk * g->s->conf.microbatches + s->microbatch + 1;
}

static void work(struct stage *g)
{
    g->steps++;
    usleep((useconds_t)(rand_r(&g->seed) % 300));
}

static void check_in(struct stage *g, const struct meg_pipe_step *s)
{
    const int part = part_of(g, s->chunk), last = g->s->conf.stages * g->s->conf.chunks - 1;

    check(g, s->x, part > 0, FORWARD, part - 1, s->microbatch);
    if (g->slot_key[s->slot] != key(g, s))
        g->errors++;
    check(g, s->dy, part < last, BACKWARD, part + 1, s->microbatch);
}

static void fwd(void *user, const struct meg_pipe_step *s)
{
    struct stage *g = user;
    const int part = part_of(g, s->chunk);

    check(g, s->x, part > 0, FORWARD, part - 1, s->microbatch);
    g->errors += g->slot_key[s->slot] != 0;
    g->slot_key[s->slot] = g->s->conf.is_forward_only ? 0 : key(g, s);
    work(g);
    put(g, s->y, FORWARD, part, s->microbatch);
}

static void bwd_input(void *user, const struct meg_pipe_step *s)
{
    struct stage *g = user;

    check_in(g, s);
    work(g);
    put(g, s->dx, BACKWARD, part_of(g, s->chunk), s->microbatch);
}

static void bwd_weight(void *user, const struct meg_pipe_step *s)
{
    struct stage *g = user;

    check_in(g, s);
    work(g);
    g->slot_key[s->slot] = 0;
}

static void bwd(void *user, const struct meg_pipe_step *s)
{
    bwd_input(user, s);
    bwd_weight(user, s);
}

static const struct meg_pipe_ops ops = { fwd, bwd, bwd_input, bwd_weight };

/* Run a schedule twice; return the number of errors on this rank. */
static int run(struct meg_comm *pp, const struct meg_pipe_schedule_conf *c, const struct meg_pipe_tensor *tensor,
               int rank)
{
    struct meg_pipe_schedule schedule;
    struct meg_pipe pipe = {
        .schedule = &schedule, .pp = pp, .tensor = tensor, .ntensors = TENSORS, .transferred = transferred
    };
    struct stage g = { .s = &schedule, .tensor = tensor, .seed = (unsigned)rank };
    size_t nbytes;
    void *memory;

    meg_pipe_schedule_make(&schedule, c, pp->rank);
    nbytes = meg_pipe_nbytes(&schedule, tensor, TENSORS);
    memory = meg_new(nbytes);
    meg_pipe_init(&pipe, memory);
    for (int i = 0; i < 2; i++) {
        memset(memory, 0xff, nbytes);
        meg_pipe_run(&pipe, &ops, &g);
    }
    g.errors += g.steps != 2 * c->microbatches * c->chunks * (c->is_forward_only ? 1 : 3);
    meg_pipe_free(&pipe);
    free(memory);
    meg_pipe_schedule_free(&schedule);
    return (int)g.errors;
}

int main(void)
{
    struct meg_comm_world world;
    struct meg_comm *w;
    struct meg_err e;
    int tests = 0, failed = 0;

    if (meg_comm_open(&world, &e) < 0)
        meg_die_err(&e);
    w = world.world;
    meg_comm_set_timeout(w, 60);
    for (size_t k = 0; k < sizeof schedules / sizeof *schedules; k++) {
        const struct meg_pipe_schedule_conf *c = &schedules[k];
        struct meg_comm *pp;

        if (w->size % c->stages)
            continue;
        if (meg_pipe_schedule_check(c, &e) < 0)
            meg_die_err(&e);
        pp = meg_comm_split(w, w->rank / c->stages, "pp");
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int32_t bad = run(pp, c, sizes[i], w->rank);

            meg_host_all_reduce(w, &bad, 1, MEG_DTYPE_I32, MEG_REDUCE_SUM);
            tests++;
            failed += bad != 0;
            if (w->rank == 0)
                printf("%sok %d - %s%s, %d stages of %d chunks, %d micro-batches, %" PRId64 " elements\n",
                       bad ? "not " : "", tests, meg_pipe_schedule_name(c), c->is_forward_only ? " forward" : "",
                       c->stages, c->chunks, (int)c->microbatches, sizes[i][0].n);
        }
        meg_comm_close(pp);
    }
    if (w->rank == 0)
        printf("1..%d\n", tests);
    meg_comm_close(w);
    return failed != 0;
}
