/*
 * Making schedules.  Three layers: the order of a stage's steps, which is all that schedules differ in;
 * where its receives start; and the list, in which every step finds its waits, slot and buffers.
 */
#include "parallel/schedule.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

/* A receive starts this many receives of its kind ahead; so many buffers hold what leaves. */
enum { AHEAD = 1, LEAVING = 2 };

#define GROUP "--microbatch-group-size-per-virtual-pipeline-stage"
#define CHUNKS "--num-virtual-stages-per-pipeline-rank"
#define STAGES "--pipeline-model-parallel-size"

/* ---- rules ------------------------------------------------------------------------------- */

static const char *name_of(const struct meg_pipe_schedule_conf *c)
{
    return c->name ? c->name : c->chunks > 1 ? "interleaved" : "1f1b";
}

static bool is_called(const struct meg_pipe_schedule_conf *c, const char *name)
{
    return strcmp(name_of(c), name) == 0;
}

static int64_t group_of(const struct meg_pipe_schedule_conf *c)
{
    return c->group ? c->group : c->stages;
}

static int check_groups(const struct meg_pipe_schedule_conf *c, struct meg_err *e)
{
    const int64_t group = group_of(c), m = c->microbatches, left = m % group;

    if (m < c->stages)
        return meg_fail(e, MEG_EUSAGE,
                        "--global-batch-size gives %" PRId64 " micro-batches a step: %s %d takes at least as many "
                        "as there are stages, %d",
                        m, CHUNKS, c->chunks, c->stages);
    if (group < c->stages || group > m)
        return meg_fail(e, MEG_EUSAGE, "%s %" PRId64 ": must be from %d (%s) to %" PRId64 " (micro-batches a step)",
                        GROUP, group, c->stages, STAGES, m);
    if (left > 0 && left < c->stages)
        return meg_fail(e, MEG_EUSAGE,
                        "--global-batch-size gives %" PRId64 " micro-batches a step: in groups of %" PRId64
                        " (%s) %" PRId64 " are left, which must be 0 or at least %d (%s)",
                        m, group, GROUP, left, c->stages, STAGES);
    return 0;
}

bool meg_pipe_schedule_splits_backward(const struct meg_pipe_schedule_conf *c)
{
    return is_called(c, "zb-h1");
}

int meg_pipe_schedule_check(const struct meg_pipe_schedule_conf *c, struct meg_err *e)
{
    if (c->stages < 1)
        return meg_fail(e, MEG_EUSAGE, "%s %d: must be at least 1", STAGES, c->stages);
    if (c->chunks < 1)
        return meg_fail(e, MEG_EUSAGE, "%s %d: must be at least 1", CHUNKS, c->chunks);
    if (c->microbatches < 1)
        return meg_fail(e, MEG_EUSAGE,
                        "--global-batch-size gives %" PRId64 " micro-batches a step: a pipeline "
                        "takes at least 1",
                        c->microbatches);
    if (!is_called(c, "1f1b") && !is_called(c, "interleaved") && !is_called(c, "zb-h1"))
        return meg_fail(e, MEG_EUSAGE, "--pipeline-schedule %s: is none of 1f1b, interleaved, zb-h1", c->name);
    if (is_called(c, "interleaved")) {
        if (c->chunks < 2)
            return meg_fail(e, MEG_EUSAGE, "--pipeline-schedule interleaved: takes %s of at least 2, not %d", CHUNKS,
                            c->chunks);
        if (c->stages < 2)
            return meg_fail(e, MEG_EUSAGE, "%s %d: takes %s of at least 2, not %d", CHUNKS, c->chunks, STAGES,
                            c->stages);
        return check_groups(c, e);
    }
    if (c->chunks > 1)
        return meg_fail(e, MEG_EUSAGE, "--pipeline-schedule %s: takes %s 1, not %d", name_of(c), CHUNKS, c->chunks);
    if (c->group)
        return meg_fail(e, MEG_EUSAGE, "%s %" PRId64 ": takes %s of at least 2, not 1", GROUP, c->group, CHUNKS);
    return 0;
}

/* ---- the order of steps ------------------------------------------------------------------ */

static int part_of(const struct meg_pipe_schedule_conf *c, int stage, int chunk)
{
    return chunk * c->stages + stage;
}

static int last_part(const struct meg_pipe_schedule_conf *c)
{
    return c->stages * c->chunks - 1;
}

/* The k-th forward step: group by group, in each all chunks, in each all its micro-batches. */
static struct meg_action forward(const struct meg_pipe_schedule_conf *c, int64_t k)
{
    const int64_t group = group_of(c), first = k / (group * c->chunks) * group, at = k - first * c->chunks;
    const int64_t here = c->microbatches - first < group ? c->microbatches - first : group;
    struct meg_action a = { .kind = MEG_ACTION_FWD,
                            .chunk = (int)(at / here),
                            .microbatch = first + at % here,
                            .slot = -1,
                            .buf = { -1, -1, -1, -1 } };

    return a;
}

/* The k-th backward step: the same with the chunks in reverse. */
static struct meg_action backward(const struct meg_pipe_schedule_conf *c, int64_t k, enum meg_action_type kind)
{
    struct meg_action a = forward(c, k);

    a.kind = kind;
    a.chunk = c->chunks - 1 - a.chunk;
    return a;
}

/* Forward steps before the first that is followed by a backward step. */
static int64_t num_warmup(const struct meg_pipe_schedule_conf *c, int stage)
{
    const int64_t n = c->microbatches * c->chunks, after = c->stages - 1 - stage;
    const int64_t warm = is_called(c, "interleaved") ? 2 * after + (c->chunks - 1) * group_of(c) : after;

    return c->is_forward_only || warm > n ? n : warm;
}

/* By how many backward steps weight gradients are put off; 0: they are not split off. */
static int64_t weight_grad_delay(const struct meg_pipe_schedule_conf *c, int stage)
{
    return is_called(c, "zb-h1") ? stage : 0;
}

int64_t meg_pipe_schedule_in_flight(const struct meg_pipe_schedule_conf *c, int stage)
{
    const int64_t n = c->microbatches * c->chunks, most = num_warmup(c, stage) + 1 + weight_grad_delay(c, stage);

    return c->is_forward_only ? 1 : most < n ? most : n;
}

/* The steps of a stage in order, [*n]; the caller frees them. */
static struct meg_action *order(const struct meg_pipe_schedule_conf *c, int stage, int64_t *n)
{
    const int64_t all = c->microbatches * c->chunks, warm = num_warmup(c, stage), late = weight_grad_delay(c, stage);
    struct meg_action *steps = meg_realloc_array(NULL, (size_t)(3 * all), sizeof *steps), *a = steps;

    for (int64_t k = 0; k < warm; k++)
        *a++ = forward(c, k);
    for (int64_t k = 0; k < (c->is_forward_only ? 0 : all + late); k++) {
        if (k + warm < all)
            *a++ = forward(c, k + warm);
        if (k < all)
            *a++ = backward(c, k, late ? MEG_ACTION_BWD_INPUT : MEG_ACTION_BWD);
        if (late && k >= late)
            *a++ = backward(c, k - late, MEG_ACTION_BWD_WEIGHT);
    }
    *n = a - steps;
    return steps;
}

/* ---- where transfers are ----------------------------------------------------------------- */

/* The edge that a step of a stage fills for another part, and the stage of that; false: none. */
static bool fills(const struct meg_pipe_schedule_conf *c, int stage, const struct meg_action *a, enum meg_edge *edge,
                  int *peer)
{
    const int part = part_of(c, stage, a->chunk);

    *edge = a->kind == MEG_ACTION_FWD ? MEG_EDGE_Y : MEG_EDGE_DX;
    *peer = (a->kind == MEG_ACTION_FWD ? stage + 1 : stage + c->stages - 1) % c->stages;
    return a->kind != MEG_ACTION_BWD_WEIGHT && (a->kind == MEG_ACTION_FWD ? part < last_part(c) : part > 0);
}

/* The edge that must have arrived for a step, and the stage it comes from; false: none. */
static bool needs(const struct meg_pipe_schedule_conf *c, int stage, const struct meg_action *a, enum meg_edge *edge,
                  int *peer)
{
    const int part = part_of(c, stage, a->chunk);

    *edge = a->kind == MEG_ACTION_FWD ? MEG_EDGE_X : MEG_EDGE_DY;
    *peer = (a->kind == MEG_ACTION_FWD ? stage + c->stages - 1 : stage + 1) % c->stages;
    return a->kind != MEG_ACTION_BWD_WEIGHT && (a->kind == MEG_ACTION_FWD ? part > 0 : part < last_part(c));
}

/* A receive, and the step ahead of which it starts if those before it in its line have. */
struct receive {
    struct meg_action a;
    int64_t at;
};

/* What a stage receives from one peer, in the order in which that sends. */
struct line {
    struct receive *v;
    int64_t n, next;
};

/* The place of a chunk's micro-batch in a table of all of a stage. */
static int64_t place(const struct meg_pipe_schedule_conf *c, const struct meg_action *a)
{
    return a->chunk * c->microbatches + a->microbatch;
}

/*
 * at[edge][place] = the step ahead of which a receive starts: the one that needs what came AHEAD receives
 * before.  What goes round from the last stage to the first is not needed at once where a group has more
 * micro-batches than there are stages, and arrives before the rest of the group has had its turn.
 */
static void plan_recv_starts(const struct meg_pipe_schedule_conf *c, int stage, const struct meg_action *steps,
                             int64_t n, int64_t *at[2])
{
    const int64_t round = group_of(c) - c->stages + AHEAD;
    const int64_t ahead[2] = {
        [MEG_EDGE_X] = stage == 0 ? round : AHEAD, [MEG_EDGE_DY] = stage == c->stages - 1 ? round : AHEAD
    };
    int64_t *needed[2], count[2] = { 0 };
    enum meg_edge edge;
    int peer;

    for (int i = 0; i < 2; i++)
        needed[i] = meg_new((size_t)(c->microbatches * c->chunks) * sizeof *needed[i]);
    for (int64_t i = 0; i < n; i++)
        if (needs(c, stage, &steps[i], &edge, &peer)) {
            const int64_t k = count[edge]++;

            needed[edge][k] = i;
            at[edge][place(c, &steps[i])] = k < ahead[edge] ? 0 : needed[edge][k - ahead[edge]];
        }
    for (int i = 0; i < 2; i++)
        free(needed[i]);
}

/* The receives of stage from peer. */
static void plan_recvs(struct line *l, const struct meg_pipe_schedule_conf *c, int stage, int peer,
                       int64_t *const at[2])
{
    int64_t n;
    struct meg_action *steps = order(c, peer, &n);
    enum meg_edge edge;
    int to;

    l->v = meg_realloc_array(NULL, (size_t)n, sizeof *l->v);
    l->n = l->next = 0;
    for (int64_t i = 0; i < n; i++) {
        struct receive *r = &l->v[l->n];

        if (!fills(c, peer, &steps[i], &edge, &to) || to != stage)
            continue;
        r->a = steps[i];
        r->a.kind = MEG_ACTION_START;
        r->a.edge = edge == MEG_EDGE_Y ? MEG_EDGE_X : MEG_EDGE_DY;
        r->a.peer = peer;
        if (edge == MEG_EDGE_Y && peer > stage) /* round: into the next chunk */
            r->a.chunk++;
        if (edge == MEG_EDGE_DX && peer < stage)
            r->a.chunk--;
        r->at = at[r->a.edge][place(c, &r->a)];
        l->n++;
    }
    free(steps);
}

/* ---- the list ---------------------------------------------------------------------------- */

/* Numbers of slots or buffers: the lowest free one is taken, so that as few as possible are used. */
struct pool {
    bool *taken;
    int n;
};

static int take(struct pool *p)
{
    int i = 0;

    while (i < p->n && p->taken[i])
        i++;
    if (i == p->n)
        p->taken = meg_realloc_array(p->taken, (size_t)++p->n, sizeof *p->taken);
    p->taken[i] = true;
    return i;
}

static void give(struct pool *p, int *i)
{
    if (*i >= 0)
        p->taken[*i] = false;
    *i = -1;
}

struct maker {
    struct meg_pipe_schedule *s;
    int64_t cap;
    struct pool slots, bufs[MEG_EDGES];
    struct meg_action *held;                       /* [place] slot, X and DY of what is in flight */
    struct meg_action leaving[MEG_EDGES][LEAVING]; /* sends not waited for, oldest first */
    int nleaving[MEG_EDGES];
};

static void add(struct maker *m, const struct meg_action *a)
{
    struct meg_pipe_schedule *s = m->s;

    if (s->n == m->cap) {
        m->cap = 2 * m->cap + 64;
        s->action = meg_realloc_array(s->action, (size_t)m->cap, sizeof *s->action);
    }
    s->action[s->n++] = *a;
}

/* A start or wait of the buffer of an edge, for the sake of step a. */
static struct meg_action transfer(enum meg_action_type kind, const struct meg_action *a, enum meg_edge edge, int peer,
                                  int buf)
{
    struct meg_action t = { .kind = kind,
                            .edge = edge,
                            .peer = peer,
                            .chunk = a->chunk,
                            .microbatch = a->microbatch,
                            .slot = -1,
                            .buf = { -1, -1, -1, -1 } };

    t.buf[edge] = buf;
    return t;
}

static void start_receives(struct maker *m, struct line *l, int64_t step)
{
    for (; l->next < l->n && l->v[l->next].at <= step; l->next++) {
        struct meg_action *a = &l->v[l->next].a;
        const int buf = take(&m->bufs[a->edge]);
        const struct meg_action t = transfer(MEG_ACTION_START, a, a->edge, a->peer, buf);

        m->held[place(&m->s->conf, a)].buf[a->edge] = buf;
        add(m, &t);
    }
}

static void wait_oldest_send(struct maker *m, enum meg_edge edge)
{
    struct meg_action *q = m->leaving[edge];

    q[0].kind = MEG_ACTION_WAIT;
    add(m, &q[0]);
    give(&m->bufs[edge], &q[0].buf[edge]);
    memmove(q, q + 1, (LEAVING - 1) * sizeof *q);
    m->nleaving[edge]--;
}

static void add_step(struct maker *m, struct meg_action a)
{
    const struct meg_pipe_schedule_conf *c = &m->s->conf;
    struct meg_action *held = &m->held[place(c, &a)], t;
    const int stage = m->s->stage;
    enum meg_edge in, out;
    int from, to;
    const bool has_in = needs(c, stage, &a, &in, &from), has_out = fills(c, stage, &a, &out, &to);

    if (has_in) {
        t = transfer(MEG_ACTION_WAIT, &a, in, from, held->buf[in]);
        add(m, &t);
    }
    if (has_out) {
        if (m->nleaving[out] == LEAVING)
            wait_oldest_send(m, out);
        a.buf[out] = take(&m->bufs[out]);
    }
    if (a.kind == MEG_ACTION_FWD)
        held->slot = take(&m->slots);
    a.slot = held->slot;
    a.buf[MEG_EDGE_X] = held->buf[MEG_EDGE_X];
    if (a.kind != MEG_ACTION_FWD)
        a.buf[MEG_EDGE_DY] = held->buf[MEG_EDGE_DY];
    add(m, &a);
    if (has_out) {
        t = transfer(MEG_ACTION_START, &a, out, to, a.buf[out]);
        add(m, &t);
        m->leaving[out][m->nleaving[out]++] = t;
    }
    if (a.kind == MEG_ACTION_BWD || a.kind == MEG_ACTION_BWD_WEIGHT || c->is_forward_only) {
        give(&m->slots, &held->slot);
        give(&m->bufs[MEG_EDGE_X], &held->buf[MEG_EDGE_X]);
        give(&m->bufs[MEG_EDGE_DY], &held->buf[MEG_EDGE_DY]);
    }
}

void meg_pipe_schedule_make(struct meg_pipe_schedule *s, const struct meg_pipe_schedule_conf *c, int stage)
{
    const size_t places = (size_t)(c->microbatches * c->chunks);
    int64_t n, *at[2] = { meg_new(places * sizeof(int64_t)), meg_new(places * sizeof(int64_t)) };
    struct meg_action *steps = order(c, stage, &n);
    struct maker m = { .s = s, .held = meg_new(places * sizeof *m.held) };
    struct line before = { 0 }, after = { 0 };

    MEG_ASSERT_LE(0, stage);
    MEG_ASSERT_LT(stage, c->stages);
    memset(s, 0, sizeof *s);
    s->conf = *c;
    s->stage = stage;
    for (size_t i = 0; i < places; i++)
        m.held[i] = (struct meg_action){ .slot = -1, .buf = { -1, -1, -1, -1 } };
    if (c->stages > 1) {
        plan_recv_starts(c, stage, steps, n, at);
        plan_recvs(&before, c, stage, (stage + c->stages - 1) % c->stages, at);
    }
    if (c->stages > 2) /* of two stages each is both before and after */
        plan_recvs(&after, c, stage, (stage + 1) % c->stages, at);
    for (int64_t i = 0; i < n; i++) {
        start_receives(&m, &before, i);
        start_receives(&m, &after, i);
        add_step(&m, steps[i]);
    }
    while (m.nleaving[MEG_EDGE_Y])
        wait_oldest_send(&m, MEG_EDGE_Y);
    while (m.nleaving[MEG_EDGE_DX])
        wait_oldest_send(&m, MEG_EDGE_DX);
    s->slots = m.slots.n;
    free(m.slots.taken);
    for (int i = 0; i < MEG_EDGES; i++) {
        s->bufs[i] = m.bufs[i].n;
        free(m.bufs[i].taken);
    }
    free(m.held);
    free(before.v);
    free(after.v);
    free(steps);
    free(at[0]);
    free(at[1]);
}

void meg_pipe_schedule_free(struct meg_pipe_schedule *s)
{
    free(s->action);
    s->action = NULL;
}
