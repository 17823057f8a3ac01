/*
 * Playing the lists of a pipeline in one process: each stage has a clock and walks its list until it has
 * to wait for another, and everything a list promises is looked at on the way.
 */
#include "parallel/schedule.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

/* One end of a message: when it was started, and what it carries to which part. */
struct post {
    double time;
    enum meg_edge arrives_as;
    int part;
    int64_t microbatch;
};

struct posts {
    struct post *v;
    int64_t n, cap;
};

/* Messages from one stage to another: the k-th send belongs to the k-th receive. */
struct link {
    struct posts sent, received;
};

/* A slot or buffer in use, and for whom. */
struct cell {
    enum { FREE, MOVING, FULL, HALF } state; /* HALF: a slot after BWD_INPUT */
    int chunk;
    int64_t microbatch, post;
};

struct cells {
    struct cell *v;
    int n, used, most;
};

struct stage {
    const struct meg_pipe_schedule *s;
    int64_t at;
    double clock, busy;
    struct cells slots, bufs[MEG_EDGES];
    int64_t *done[3]; /* [chunks] forward, input and weight gradients so far */
};

struct play {
    const struct meg_pipe_schedule_times *t;
    struct stage *stage;
    struct link *link; /* [from, to] */
    struct meg_err *e;
};

static const char *const kinds[] = { "FWD", "BWD", "BWD_INPUT", "BWD_WEIGHT", "START", "WAIT" };
static const char *const edges[] = { "X", "DY", "Y", "DX" };

static int wrong(const struct play *p, const struct stage *g, const char *what)
{
    const struct meg_action *a = &g->s->action[g->at];

    return meg_fail(p->e, MEG_EFAIL, "stage %d, action %" PRId64 ", %s%s%s of chunk %d, micro-batch %" PRId64 ": %s",
                    g->s->stage, g->at, kinds[a->kind], a->kind >= MEG_ACTION_START ? " " : "",
                    a->kind >= MEG_ACTION_START ? edges[a->edge] : "", a->chunk, a->microbatch, what);
}

/* ---- slots and buffers ------------------------------------------------------------------- */

static struct cell *cell_of(struct cells *c, int i)
{
    return i >= 0 && i < c->n ? &c->v[i] : NULL;
}

static bool occupy(struct cells *c, int i, int state, const struct meg_action *a)
{
    struct cell *x = cell_of(c, i);

    if (!x || x->state != FREE)
        return false;
    *x = (struct cell){ state, a->chunk, a->microbatch, 0 };
    if (++c->used > c->most)
        c->most = c->used;
    return true;
}

static bool holds(struct cells *c, int i, int state, const struct meg_action *a)
{
    const struct cell *x = cell_of(c, i);

    return x && (int)x->state == state && x->chunk == a->chunk && x->microbatch == a->microbatch;
}

static void vacate(struct cells *c, int i)
{
    if (i >= 0) {
        c->v[i].state = FREE;
        c->used--;
    }
}

/* ---- transfers --------------------------------------------------------------------------- */

static struct link *link_of(const struct play *p, const struct stage *g, const struct meg_action *a)
{
    const int stages = g->s->conf.stages, here = g->s->stage;

    return &p->link[meg_edge_arrives(a->edge) ? a->peer * stages + here : here * stages + a->peer];
}

static void post(struct posts *q, const struct stage *g, const struct meg_action *a)
{
    const int part = a->chunk * g->s->conf.stages + g->s->stage;
    const enum meg_edge as = a->edge == MEG_EDGE_X || a->edge == MEG_EDGE_Y ? MEG_EDGE_X : MEG_EDGE_DY;

    if (q->n == q->cap) {
        q->cap = 2 * q->cap + 64;
        q->v = meg_realloc_array(q->v, (size_t)q->cap, sizeof *q->v);
    }
    q->v[q->n++] =
        (struct post){ g->clock, as, part + (a->edge == MEG_EDGE_Y) - (a->edge == MEG_EDGE_DX), a->microbatch };
}

static int simulate_start(struct play *p, struct stage *g, const struct meg_action *a)
{
    struct cells *c = &g->bufs[a->edge];
    const int i = a->buf[a->edge];
    struct link *l;
    struct posts *q;

    if (a->peer < 0 || a->peer >= g->s->conf.stages || a->peer == g->s->stage)
        return wrong(p, g, "no such peer");
    if (meg_edge_arrives(a->edge)) {
        if (!occupy(c, i, MOVING, a))
            return wrong(p, g, "its buffer is not free");
    } else if (!holds(c, i, FULL, a))
        return wrong(p, g, "its buffer does not hold it");
    l = link_of(p, g, a);
    q = meg_edge_arrives(a->edge) ? &l->received : &l->sent;
    c->v[i].state = MOVING;
    c->v[i].post = q->n;
    post(q, g, a);
    return 0;
}

/* 1: the other end has not started. */
static int simulate_wait(struct play *p, struct stage *g, const struct meg_action *a)
{
    const bool arrives = meg_edge_arrives(a->edge);
    struct cells *c = &g->bufs[a->edge];
    const int i = a->buf[a->edge];
    const struct post *s, *r;
    struct link *l;
    int64_t k;
    double end;

    if (!holds(c, i, MOVING, a))
        return wrong(p, g, "it was not started");
    l = link_of(p, g, a);
    k = c->v[i].post;
    if (k >= l->sent.n || k >= l->received.n)
        return 1;
    s = &l->sent.v[k];
    r = &l->received.v[k];
    if (s->arrives_as != r->arrives_as || s->part != r->part || s->microbatch != r->microbatch)
        return wrong(p, g, "the peer's message in this place is another one");
    end = (s->time > r->time ? s->time : r->time) + p->t->transfer;
    if (g->clock < end)
        g->clock = end;
    if (arrives)
        c->v[i].state = FULL;
    else
        vacate(c, i);
    return 0;
}

/* ---- steps ------------------------------------------------------------------------------- */

static double duration(const struct meg_pipe_schedule_times *t, const struct meg_action *a, int part)
{
    const double weight = t->weight ? t->weight[part] : 1;

    switch (a->kind) {
    case MEG_ACTION_FWD: return weight * t->fwd;
    case MEG_ACTION_BWD: return weight * (t->bwd_input + t->bwd_weight);
    case MEG_ACTION_BWD_INPUT: return weight * t->bwd_input;
    default: return weight * t->bwd_weight;
    }
}

/* The buffers that the step has are those that its part must have there. */
static bool has_its_buffers(const struct meg_action *a, bool is_first, bool is_last)
{
    const bool is_backward = a->kind != MEG_ACTION_FWD, leaves = a->kind != MEG_ACTION_BWD_WEIGHT;

    return (a->buf[MEG_EDGE_X] >= 0) == !is_first && (a->buf[MEG_EDGE_Y] >= 0) == (!is_backward && !is_last) &&
           (a->buf[MEG_EDGE_DY] >= 0) == (is_backward && !is_last) &&
           (a->buf[MEG_EDGE_DX] >= 0) == (is_backward && leaves && !is_first);
}

static int simulate_step(struct play *p, struct stage *g, const struct meg_action *a)
{
    const struct meg_pipe_schedule_conf *c = &g->s->conf;
    const int part = a->chunk * c->stages + g->s->stage;
    const bool is_last_use = a->kind == MEG_ACTION_BWD || a->kind == MEG_ACTION_BWD_WEIGHT || c->is_forward_only;
    const double d = duration(p->t, a, part);

    if (!has_its_buffers(a, part == 0, part == c->stages * c->chunks - 1))
        return wrong(p, g, "buffers that its part has not, or lacks");
    if (a->buf[MEG_EDGE_X] >= 0 && !holds(&g->bufs[MEG_EDGE_X], a->buf[MEG_EDGE_X], FULL, a))
        return wrong(p, g, "X is not there");
    if (a->buf[MEG_EDGE_DY] >= 0 && !holds(&g->bufs[MEG_EDGE_DY], a->buf[MEG_EDGE_DY], FULL, a))
        return wrong(p, g, "DY is not there");
    if ((a->buf[MEG_EDGE_Y] >= 0 && !occupy(&g->bufs[MEG_EDGE_Y], a->buf[MEG_EDGE_Y], FULL, a)) ||
        (a->buf[MEG_EDGE_DX] >= 0 && !occupy(&g->bufs[MEG_EDGE_DX], a->buf[MEG_EDGE_DX], FULL, a)))
        return wrong(p, g, "the buffer it writes is not free");
    if (a->kind == MEG_ACTION_FWD ? !occupy(&g->slots, a->slot, FULL, a)
                                  : !holds(&g->slots, a->slot, a->kind == MEG_ACTION_BWD_WEIGHT ? HALF : FULL, a))
        return wrong(p, g, "the slot is not its own");
    for (int i = 0; i < 3; i++)
        if (i == 0 ? a->kind == MEG_ACTION_FWD
                   : a->kind == MEG_ACTION_BWD || a->kind == (i == 1 ? MEG_ACTION_BWD_INPUT : MEG_ACTION_BWD_WEIGHT))
            if (g->done[i][a->chunk]++ != a->microbatch)
                return wrong(p, g, "out of order");
    if (a->kind == MEG_ACTION_BWD_INPUT)
        g->slots.v[a->slot].state = HALF;
    if (is_last_use) {
        vacate(&g->slots, a->slot);
        vacate(&g->bufs[MEG_EDGE_X], a->buf[MEG_EDGE_X]);
        vacate(&g->bufs[MEG_EDGE_DY], a->buf[MEG_EDGE_DY]);
    }
    g->clock += d;
    g->busy += d;
    return 0;
}

/* ---- all of it --------------------------------------------------------------------------- */

/* Walk on until the list ends or another stage must come first: 1 if a step was made, 0 if none. */
static int walk(struct play *p, struct stage *g)
{
    const int64_t from = g->at;
    int r = 0;

    for (; g->at < g->s->n && r == 0; g->at += r == 0) {
        const struct meg_action *a = &g->s->action[g->at];

        if (a->chunk < 0 || a->chunk >= g->s->conf.chunks)
            return wrong(p, g, "no such chunk");
        r = a->kind == MEG_ACTION_START  ? simulate_start(p, g, a)
            : a->kind == MEG_ACTION_WAIT ? simulate_wait(p, g, a)
                                         : simulate_step(p, g, a);
    }
    return r < 0 ? r : g->at > from;
}

static int check_end(const struct play *p, const struct stage *g)
{
    const struct meg_pipe_schedule_conf *c = &g->s->conf;

    for (int i = 0; i < (c->is_forward_only ? 1 : 3); i++)
        for (int chunk = 0; chunk < c->chunks; chunk++)
            if (g->done[i][chunk] != c->microbatches)
                return meg_fail(p->e, MEG_EFAIL, "stage %d, chunk %d: %" PRId64 " %s of %" PRId64 " micro-batches",
                                g->s->stage, chunk, g->done[i][chunk], i == 0 ? "forwards" : "backwards",
                                c->microbatches);
    for (int i = -1; i < MEG_EDGES; i++) {
        const struct cells *x = i < 0 ? &g->slots : &g->bufs[i];

        if (x->used)
            return meg_fail(p->e, MEG_EFAIL, "stage %d: %d %s in use at the end", g->s->stage, x->used,
                            i < 0 ? "slots" : edges[i]);
        if (x->most != x->n)
            return meg_fail(p->e, MEG_EFAIL, "stage %d: %d %s, but at most %d are in use", g->s->stage, x->n,
                            i < 0 ? "slots" : edges[i], x->most);
    }
    return 0;
}

static int simulate_all(struct play *p, int stages)
{
    int ended, moved, r;

    do {
        ended = moved = 0;
        for (int i = 0; i < stages; i++) {
            if ((r = walk(p, &p->stage[i])) < 0)
                return r;
            moved |= r;
            ended += p->stage[i].at == p->stage[i].s->n;
        }
    } while (ended < stages && moved);
    for (int i = 0; i < stages; i++)
        if (p->stage[i].at < p->stage[i].s->n)
            return wrong(p, &p->stage[i], "deadlock: its peer never gets there");
    for (int i = 0; i < stages; i++)
        if ((r = check_end(p, &p->stage[i])) < 0)
            return r;
    return 0;
}

static void sum_up(const struct play *p, int stages, struct meg_pipe_schedule_cost *cost)
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

static void cells_init(struct cells *c, int n)
{
    c->v = meg_new((size_t)n * sizeof *c->v);
    c->n = n;
}

int meg_pipe_schedule_simulate(const struct meg_pipe_schedule *all, const struct meg_pipe_schedule_times *t,
                               struct meg_pipe_schedule_cost *cost, struct meg_err *e)
{
    const int stages = all[0].conf.stages, chunks = all[0].conf.chunks;
    struct play p = { t, meg_new((size_t)stages * sizeof *p.stage),
                      meg_new((size_t)stages * (size_t)stages * sizeof *p.link), e };
    int r;

    for (int i = 0; i < stages; i++) {
        struct stage *g = &p.stage[i];

        g->s = &all[i];
        cells_init(&g->slots, all[i].slots);
        for (int k = 0; k < MEG_EDGES; k++)
            cells_init(&g->bufs[k], all[i].bufs[k]);
        for (int k = 0; k < 3; k++)
            g->done[k] = meg_new((size_t)chunks * sizeof *g->done[k]);
    }
    if ((r = simulate_all(&p, stages)) == 0)
        sum_up(&p, stages, cost);
    for (int i = 0; i < stages; i++) {
        free(p.stage[i].slots.v);
        for (int k = 0; k < MEG_EDGES; k++)
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
