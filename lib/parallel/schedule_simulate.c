/*
 * schedule_simulate.c - simulation of a pipeline schedule in one process.  Each stage has a clock, and executes its
 * list until it must wait for another stage.  parallel/schedule.h lists the errors that meg_pipe_schedule_simulate
 * detects.
 */
#include <inttypes.h>
#include <stdlib.h>
#include "base/mem.h"
#include "parallel/schedule.h"

/* A send or a receive.  The edge and virtual stage at the receiver, and the micro-batch, identify the tensor. */
struct message {
    double time; /* clock of the stage when it started the send or receive */
    enum meg_edge received_as;
    int vstage;
    int64_t microbatch;
};

struct messages {
    struct message *v;
    int64_t n, cap;
};

/* Messages from one stage to another.  The k-th send matches the k-th receive. */
struct link {
    struct messages sent, received;
};

/* A slot or boundary buffer, and its contents. */
struct buffer {
    enum { FREE, IN_TRANSFER, FULL, INPUT_DONE } state; /* INPUT_DONE: a slot after BWD_INPUT */
    int chunk;
    int64_t microbatch;
    int64_t message; /* index of the buffer's transfer in `sent` or `received` of its link */
};

struct buffers {
    struct buffer *v;
    int n, used, peak;
};
enum { SLOTS = MEG_EDGES, BUFFER_TYPES }; /* the buffers of each edge, and the activation slots */

struct stage {
    const struct meg_pipe_schedule *s;
    int64_t next; /* index of the next action */
    double clock, busy;
    struct buffers bufs[BUFFER_TYPES];
    int64_t *done[3]; /* [chunks] number of forward, input-gradient and weight-gradient steps executed */
};

struct simulation {
    const struct meg_pipe_schedule_times *t;
    struct stage *stage;
    struct link *link; /* [from, to] */
    struct meg_err *e;
};

static const char *const types[] = { "FWD", "BWD", "BWD_INPUT", "BWD_WEIGHT", "START", "WAIT" };
static const char *const edges[BUFFER_TYPES] = { "X", "DY", "Y", "DX", "activation slots" };

/* Fail with a message that names the next action of a stage. */
static int fail_at(const struct simulation *p, const struct stage *g, const char *what)
{
    const struct meg_action *a = &g->s->action[g->next];

    return meg_fail(p->e, MEG_EFAIL, "stage %d, action %" PRId64 ", %s%s%s of chunk %d, micro-batch %" PRId64 ": %s",
                    g->s->stage, g->next, types[a->type], a->type >= MEG_ACTION_START ? " " : "",
                    a->type >= MEG_ACTION_START ? edges[a->edge] : "", a->chunk, a->microbatch, what);
}

/* ---- slots and buffers ------------------------------------------------------------------- */

static struct buffer *buffer_of(struct buffers *c, int i)
{
    return i >= 0 && i < c->n ? &c->v[i] : NULL;
}

static bool acquire(struct buffers *c, int i, int state, const struct meg_action *a)
{
    struct buffer *x = buffer_of(c, i);

    if (!x || x->state != FREE)
        return false;
    *x = (struct buffer){ state, a->chunk, a->microbatch, 0 };
    if (++c->used > c->peak)
        c->peak = c->used;
    return true;
}

static bool holds(struct buffers *c, int i, int state, const struct meg_action *a)
{
    const struct buffer *x = buffer_of(c, i);

    return x && (int)x->state == state && x->chunk == a->chunk && x->microbatch == a->microbatch;
}

static void release(struct buffers *c, int i)
{
    if (i >= 0) {
        c->v[i].state = FREE;
        c->used--;
    }
}

/* ---- transfers --------------------------------------------------------------------------- */

static struct link *link_of(const struct simulation *p, const struct stage *g, const struct meg_action *a)
{
    const int stages = g->s->conf.stages, here = g->s->stage;

    return &p->link[meg_edge_is_received(a->edge) ? a->peer * stages + here : here * stages + a->peer];
}

static void add_message(struct messages *q, const struct stage *g, const struct meg_action *a)
{
    const int vstage = a->chunk * g->s->conf.stages + g->s->stage;
    const enum meg_edge as = a->edge == MEG_EDGE_X || a->edge == MEG_EDGE_Y ? MEG_EDGE_X : MEG_EDGE_DY;

    q->v = meg_grow(q->v, q->n, &q->cap, sizeof *q->v);
    q->v[q->n++] =
        (struct message){ g->clock, as, vstage + (a->edge == MEG_EDGE_Y) - (a->edge == MEG_EDGE_DX), a->microbatch };
}

static int simulate_start(struct simulation *p, struct stage *g, const struct meg_action *a)
{
    struct buffers *c = &g->bufs[a->edge];
    const int i = a->buf[a->edge];
    struct link *l;
    struct messages *q;

    if (a->peer < 0 || a->peer >= g->s->conf.stages || a->peer == g->s->stage)
        return fail_at(p, g, "the peer is not one of the other stages");
    if (meg_edge_is_received(a->edge)) {
        if (!acquire(c, i, IN_TRANSFER, a))
            return fail_at(p, g, "the destination buffer is not free");
    } else if (!holds(c, i, FULL, a))
        return fail_at(p, g, "the source buffer does not contain the tensor");
    l = link_of(p, g, a);
    q = meg_edge_is_received(a->edge) ? &l->received : &l->sent;
    c->v[i].state = IN_TRANSFER;
    c->v[i].message = q->n;
    add_message(q, g, a);
    return 0;
}

/*
 * Simulate a WAIT.  Return 0 if the transfer ends, 1 if the peer has not started it yet, or MEG_EFAIL if the action is
 * invalid.
 */
static int simulate_wait(struct simulation *p, struct stage *g, const struct meg_action *a)
{
    const bool is_received = meg_edge_is_received(a->edge);
    struct buffers *c = &g->bufs[a->edge];
    const int i = a->buf[a->edge];
    const struct message *s, *r;
    struct link *l;
    int64_t k;
    double end;

    if (!holds(c, i, IN_TRANSFER, a))
        return fail_at(p, g, "the transfer was not started");
    l = link_of(p, g, a);
    k = c->v[i].message;
    if (k >= l->sent.n || k >= l->received.n)
        return 1;
    s = &l->sent.v[k];
    r = &l->received.v[k];
    if (s->received_as != r->received_as || s->vstage != r->vstage || s->microbatch != r->microbatch)
        return fail_at(p, g, "the matching message of the peer is for a different tensor");
    end = (s->time > r->time ? s->time : r->time) + p->t->transfer;
    if (g->clock < end)
        g->clock = end;
    if (is_received)
        c->v[i].state = FULL;
    else
        release(c, i);
    return 0;
}

/* ---- steps ------------------------------------------------------------------------------- */

static double duration(const struct meg_pipe_schedule_times *t, const struct meg_action *a, int vstage)
{
    const double weight = t->weight ? t->weight[vstage] : 1;

    switch (a->type) {
    case MEG_ACTION_FWD: return weight * t->fwd;
    case MEG_ACTION_BWD: return weight * (t->bwd_input + t->bwd_weight);
    case MEG_ACTION_BWD_INPUT: return weight * t->bwd_input;
    default: return weight * t->bwd_weight;
    }
}

/* Return whether a step has the boundary buffers that its virtual stage and type require, and no others. */
static bool has_its_buffers(const struct meg_action *a, bool is_first, bool is_last)
{
    const bool is_backward = a->type != MEG_ACTION_FWD, makes_dx = a->type != MEG_ACTION_BWD_WEIGHT;

    return (a->buf[MEG_EDGE_X] >= 0) == !is_first && (a->buf[MEG_EDGE_Y] >= 0) == (!is_backward && !is_last) &&
           (a->buf[MEG_EDGE_DY] >= 0) == (is_backward && !is_last) &&
           (a->buf[MEG_EDGE_DX] >= 0) == (is_backward && makes_dx && !is_first);
}

static int simulate_step(struct simulation *p, struct stage *g, const struct meg_action *a)
{
    const struct meg_pipe_schedule_conf *c = &g->s->conf;
    const int vstage = a->chunk * c->stages + g->s->stage;
    const bool is_last_use = a->type == MEG_ACTION_BWD || a->type == MEG_ACTION_BWD_WEIGHT || c->is_forward_only;
    const double d = duration(p->t, a, vstage);
    struct buffers *slots = &g->bufs[SLOTS];

    if (!has_its_buffers(a, vstage == 0, vstage == c->stages * c->chunks - 1))
        return fail_at(p, g, "the step does not have exactly the buffers that its model chunk requires");
    if (a->buf[MEG_EDGE_X] >= 0 && !holds(&g->bufs[MEG_EDGE_X], a->buf[MEG_EDGE_X], FULL, a))
        return fail_at(p, g, "the X buffer does not contain X");
    if (a->buf[MEG_EDGE_DY] >= 0 && !holds(&g->bufs[MEG_EDGE_DY], a->buf[MEG_EDGE_DY], FULL, a))
        return fail_at(p, g, "the DY buffer does not contain DY");
    if ((a->buf[MEG_EDGE_Y] >= 0 && !acquire(&g->bufs[MEG_EDGE_Y], a->buf[MEG_EDGE_Y], FULL, a)) ||
        (a->buf[MEG_EDGE_DX] >= 0 && !acquire(&g->bufs[MEG_EDGE_DX], a->buf[MEG_EDGE_DX], FULL, a)))
        return fail_at(p, g, "the output buffer is not free");
    if (a->type == MEG_ACTION_FWD ? !acquire(slots, a->slot, FULL, a)
                                  : !holds(slots, a->slot, a->type == MEG_ACTION_BWD_WEIGHT ? INPUT_DONE : FULL, a))
        return fail_at(p, g,
                       a->type == MEG_ACTION_FWD
                           ? "the activation slot is in use"
                           : "the activation slot does not contain the activations that this step requires");
    for (int i = 0; i < 3; i++)
        if (i == 0 ? a->type == MEG_ACTION_FWD
                   : a->type == MEG_ACTION_BWD || a->type == (i == 1 ? MEG_ACTION_BWD_INPUT : MEG_ACTION_BWD_WEIGHT))
            if (g->done[i][a->chunk]++ != a->microbatch)
                return fail_at(p, g, "the micro-batches of this step type are out of order");
    if (a->type == MEG_ACTION_BWD_INPUT)
        slots->v[a->slot].state = INPUT_DONE;
    if (is_last_use) {
        release(slots, a->slot);
        release(&g->bufs[MEG_EDGE_X], a->buf[MEG_EDGE_X]);
        release(&g->bufs[MEG_EDGE_DY], a->buf[MEG_EDGE_DY]);
    }
    g->clock += d;
    g->busy += d;
    return 0;
}

/* ---- all stages --------------------------------------------------------------------------- */

/*
 * Execute actions until the list ends or another stage must act first.  Return 1 if at least one action was executed, 0
 * if none was, or a negative code if an action is invalid.
 */
static int advance(struct simulation *p, struct stage *g)
{
    const int64_t from = g->next;
    int r = 0;

    for (; g->next < g->s->n && r == 0; g->next += r == 0) {
        const struct meg_action *a = &g->s->action[g->next];

        if (a->chunk < 0 || a->chunk >= g->s->conf.chunks)
            return fail_at(p, g, "the chunk does not exist");
        r = a->type == MEG_ACTION_START  ? simulate_start(p, g, a)
            : a->type == MEG_ACTION_WAIT ? simulate_wait(p, g, a)
                                         : simulate_step(p, g, a);
    }
    return r < 0 ? r : g->next > from;
}

static int check_end(const struct simulation *p, const struct stage *g)
{
    const struct meg_pipe_schedule_conf *c = &g->s->conf;

    for (int i = 0; i < (c->is_forward_only ? 1 : 3); i++)
        for (int chunk = 0; chunk < c->chunks; chunk++)
            if (g->done[i][chunk] != c->microbatches)
                return meg_fail(p->e, MEG_EFAIL,
                                "stage %d, chunk %d: %" PRId64 " %s steps, expected %" PRId64 ", one per micro-batch",
                                g->s->stage, chunk, g->done[i][chunk],
                                i == 0   ? "forward"
                                : i == 1 ? "input-gradient"
                                         : "weight-gradient",
                                c->microbatches);
    for (int i = 0; i < BUFFER_TYPES; i++) {
        const struct buffers *x = &g->bufs[i];

        if (x->used)
            return meg_fail(p->e, MEG_EFAIL, "stage %d: %d buffers (%s) are still in use after the last action",
                            g->s->stage, x->used, edges[i]);
        if (x->peak != x->n)
            return meg_fail(p->e, MEG_EFAIL, "stage %d: the schedule has %d buffers (%s), but uses at most %d at once",
                            g->s->stage, x->n, edges[i], x->peak);
    }
    return 0;
}

static int simulate_all(struct simulation *p, int stages)
{
    int num_ended, progressed, r;

    do {
        num_ended = progressed = 0;
        for (int i = 0; i < stages; i++) {
            if ((r = advance(p, &p->stage[i])) < 0)
                return r;
            progressed |= r;
            num_ended += p->stage[i].next == p->stage[i].s->n;
        }
    } while (num_ended < stages && progressed);
    for (int i = 0; i < stages; i++)
        if (p->stage[i].next < p->stage[i].s->n)
            return fail_at(p, &p->stage[i], "deadlock: the peer never starts the transfer");
    for (int i = 0; i < stages; i++)
        if ((r = check_end(p, &p->stage[i])) < 0)
            return r;
    return 0;
}

static void summarize(const struct simulation *p, int stages, struct meg_pipe_schedule_cost *cost)
{
    cost->makespan = cost->busy = 0;
    for (int i = 0; i < stages; i++) {
        const struct stage *g = &p->stage[i];

        cost->makespan = g->clock > cost->makespan ? g->clock : cost->makespan;
        cost->busy = g->busy > cost->busy ? g->busy : cost->busy;
    }
    cost->bubble = (cost->makespan - cost->busy) / cost->busy;
    for (int i = 0; cost->idle && i < stages; i++)
        cost->idle[i] = cost->makespan - p->stage[i].busy;
}

int meg_pipe_schedule_simulate(const struct meg_pipe_schedule *all, const struct meg_pipe_schedule_times *t,
                               struct meg_pipe_schedule_cost *cost, struct meg_err *e)
{
    const int stages = all[0].conf.stages, chunks = all[0].conf.chunks;
    struct simulation p = { t, meg_new((size_t)stages * sizeof *p.stage),
                            meg_new((size_t)stages * (size_t)stages * sizeof *p.link), e };
    int r;

    for (int i = 0; i < stages; i++) {
        struct stage *g = &p.stage[i];

        g->s = &all[i];
        for (int k = 0; k < BUFFER_TYPES; k++) {
            g->bufs[k].n = k == SLOTS ? all[i].slots : all[i].bufs[k];
            g->bufs[k].v = meg_new((size_t)g->bufs[k].n * sizeof *g->bufs[k].v);
        }
        for (int k = 0; k < 3; k++)
            g->done[k] = meg_new((size_t)chunks * sizeof *g->done[k]);
    }
    if ((r = simulate_all(&p, stages)) == 0)
        summarize(&p, stages, cost);
    for (int i = 0; i < stages; i++) {
        for (int k = 0; k < BUFFER_TYPES; k++)
            free(p.stage[i].bufs[k].v);
        for (int k = 0; k < 3; k++)
            free(p.stage[i].done[k]);
    }
    for (int i = 0; i < stages * stages; i++) {
        free(p.link[i].sent.v);
        free(p.link[i].received.v);
    }
    free(p.link);
    free(p.stage);
    return r;
}

void meg_pipe_schedule_estimate(const struct meg_pipe_schedule_conf *c, const struct meg_pipe_schedule_times *t,
                                struct meg_pipe_schedule_cost *cost)
{
    struct meg_pipe_schedule *all = meg_new((size_t)c->stages * sizeof *all);

    for (int i = 0; i < c->stages; i++)
        meg_pipe_schedule_make(&all[i], c, i);
    MEG_ASSERT(meg_pipe_schedule_simulate(all, t, cost, NULL) == 0);
    for (int i = 0; i < c->stages; i++)
        meg_pipe_schedule_free(&all[i]);
    free(all);
}
