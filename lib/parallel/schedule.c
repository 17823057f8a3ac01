/*
 * schedule.c - construction of pipeline schedules, in three passes:
 *   1. choose the order of forward and backward steps; only this pass differs between schedules
 *   2. choose the step before which each receive starts
 *   3. write the list of actions: assign slots and buffers to the steps, and insert the transfers
 */
#include "parallel/schedule.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

enum {
    RECV_AHEAD = 1, /* number of receives per edge that start ahead of the one needed next */
    SEND_BUFS = 2   /* largest number of buffers at edge Y, and at edge DX */
};

#define GROUP "--microbatch-group-size-per-virtual-pipeline-stage"
#define CHUNKS "--num-virtual-stages-per-pipeline-rank"
#define STAGES "--pipeline-model-parallel-size"

/* ---- rules ------------------------------------------------------------------------------- */

static enum meg_pipe_schedule_type type_of(const struct meg_pipe_schedule_conf *c)
{
    return c->type != MEG_PIPE_AUTO ? c->type : c->chunks > 1 ? MEG_PIPE_INTERLEAVED : MEG_PIPE_1F1B;
}

const char *meg_pipe_schedule_name(const struct meg_pipe_schedule_conf *c)
{
    static const char *const name[] = { "1f1b", "interleaved", "zb-h1" };

    return name[type_of(c)];
}

static int64_t group_of(const struct meg_pipe_schedule_conf *c)
{
    return c->microbatch_group ? c->microbatch_group : c->stages;
}

static int check_groups(const struct meg_pipe_schedule_conf *c, struct meg_err *e)
{
    const int64_t group = group_of(c), m = c->microbatches, left = m % group;

    if (m < c->stages)
        return meg_fail(
            e, MEG_EUSAGE,
            "a step has %" PRId64
            " micro-batch%s; with %s %d, it must have at least one per pipeline stage (%s %d); use a larger "
            "batch size",
            m, m == 1 ? "" : "es", CHUNKS, c->chunks, STAGES, c->stages);
    if (group < c->stages || group > m)
        return meg_fail(e, MEG_EUSAGE,
                        "%s %" PRId64 ": must be from %d, the value of %s, to %" PRId64
                        ", the number of micro-batches per step",
                        GROUP, group, c->stages, STAGES, m);
    if (left > 0 && left < c->stages)
        return meg_fail(e, MEG_EUSAGE,
                        "%s %" PRId64 ": dividing the %" PRId64
                        " micro-batches of a step by this group size leaves a remainder of %" PRId64
                        ", which must be 0 or at least %d, the value of %s; change the group size or the batch size",
                        GROUP, group, m, left, c->stages, STAGES);
    return 0;
}

bool meg_pipe_schedule_splits_backward(const struct meg_pipe_schedule_conf *c)
{
    return type_of(c) == MEG_PIPE_ZB_H1;
}

int meg_pipe_schedule_check(const struct meg_pipe_schedule_conf *c, struct meg_err *e)
{
    if (c->stages < 1)
        return meg_fail(e, MEG_EUSAGE, "%s %d: must be at least 1", STAGES, c->stages);
    if (c->chunks < 1)
        return meg_fail(e, MEG_EUSAGE, "%s %d: must be at least 1", CHUNKS, c->chunks);
    if (c->microbatches < 1)
        return meg_fail(e, MEG_EUSAGE, "a step has %" PRId64 " micro-batches, expected at least 1", c->microbatches);
    if (type_of(c) == MEG_PIPE_INTERLEAVED) {
        if (c->chunks < 2)
            return meg_fail(e, MEG_EUSAGE, "--pipeline-schedule interleaved: requires %s of at least 2, not %d", CHUNKS,
                            c->chunks);
        if (c->stages < 2)
            return meg_fail(e, MEG_EUSAGE, "%s %d: requires %s of at least 2, not %d", CHUNKS, c->chunks, STAGES,
                            c->stages);
        return check_groups(c, e);
    }
    if (c->chunks > 1)
        return meg_fail(e, MEG_EUSAGE, "--pipeline-schedule %s: requires %s 1, not %d", meg_pipe_schedule_name(c),
                        CHUNKS, c->chunks);
    if (c->microbatch_group)
        return meg_fail(e, MEG_EUSAGE, "%s %" PRId64 ": requires %s of at least 2, not 1", GROUP, c->microbatch_group,
                        CHUNKS);
    return 0;
}

/* ---- the order of steps ------------------------------------------------------------------ */

static int virtual_stage_of(const struct meg_pipe_schedule_conf *c, int stage, int chunk)
{
    return chunk * c->stages + stage;
}

static int last_virtual_stage(const struct meg_pipe_schedule_conf *c)
{
    return c->stages * c->chunks - 1;
}

/*
 * Return the k-th forward step.  Forward steps are sorted by (group of micro-batches, chunk, micro-batch).  The last
 * group may be smaller.
 */
static struct meg_action forward(const struct meg_pipe_schedule_conf *c, int64_t k)
{
    const int64_t group = group_of(c), first = k / (group * c->chunks) * group, i = k - first * c->chunks;
    const int64_t size = c->microbatches - first < group ? c->microbatches - first : group;
    struct meg_action a = { .type = MEG_ACTION_FWD,
                            .chunk = (int)(i / size),
                            .microbatch = first + i % size,
                            .slot = -1,
                            .buf = { -1, -1, -1, -1 } };

    return a;
}

/* Return the k-th backward step.  Backward steps have the order of the forward steps, with the chunks reversed. */
static struct meg_action backward(const struct meg_pipe_schedule_conf *c, int64_t k, enum meg_action_type type)
{
    struct meg_action a = forward(c, k);

    a.type = type;
    a.chunk = c->chunks - 1 - a.chunk;
    return a;
}

/* Return the number of warm-up steps: the forward steps before forward and backward steps alternate. */
static int64_t num_warmup(const struct meg_pipe_schedule_conf *c, int stage)
{
    const int64_t n = c->microbatches * c->chunks, after = c->stages - 1 - stage;
    const int64_t warmup = type_of(c) == MEG_PIPE_INTERLEAVED ? 2 * after + (c->chunks - 1) * group_of(c) : after;

    return c->is_forward_only || warmup > n ? n : warmup;
}

/* Return the number of backward steps by which weight gradients are delayed; 0: backward is not split. */
static int64_t weight_grad_delay(const struct meg_pipe_schedule_conf *c, int stage)
{
    return type_of(c) == MEG_PIPE_ZB_H1 ? stage : 0;
}

int64_t meg_pipe_schedule_in_flight(const struct meg_pipe_schedule_conf *c, int stage)
{
    const int64_t n = c->microbatches * c->chunks, peak = num_warmup(c, stage) + 1 + weight_grad_delay(c, stage);

    return c->is_forward_only ? 1 : peak < n ? peak : n;
}

/* Return the steps of a stage in order, and set *n to their number.  The caller frees the array. */
static struct meg_action *order(const struct meg_pipe_schedule_conf *c, int stage, int64_t *n)
{
    const int64_t all = c->microbatches * c->chunks, warmup = num_warmup(c, stage), delay = weight_grad_delay(c, stage);
    struct meg_action *steps = meg_realloc_array(NULL, (size_t)(3 * all), sizeof *steps), *a = steps;

    for (int64_t k = 0; k < warmup; k++)
        *a++ = forward(c, k);
    for (int64_t k = 0; k < (c->is_forward_only ? 0 : all + delay); k++) {
        if (k + warmup < all)
            *a++ = forward(c, k + warmup);
        if (k < all)
            *a++ = backward(c, k, delay ? MEG_ACTION_BWD_INPUT : MEG_ACTION_BWD);
        if (delay && k >= delay)
            *a++ = backward(c, k - delay, MEG_ACTION_BWD_WEIGHT);
    }
    *n = a - steps;
    return steps;
}

/* ---- transfers ----------------------------------------------------------------- */

/*
 * Return whether a step sends its output to another virtual stage.  Set *edge to the edge of the output, and *peer to
 * the stage that receives the output.
 */
static bool output_edge(const struct meg_pipe_schedule_conf *c, int stage, const struct meg_action *a,
                        enum meg_edge *edge, int *peer)
{
    const int vstage = virtual_stage_of(c, stage, a->chunk);

    *edge = a->type == MEG_ACTION_FWD ? MEG_EDGE_Y : MEG_EDGE_DX;
    *peer = (a->type == MEG_ACTION_FWD ? stage + 1 : stage + c->stages - 1) % c->stages;
    return a->type != MEG_ACTION_BWD_WEIGHT &&
           (a->type == MEG_ACTION_FWD ? vstage < last_virtual_stage(c) : vstage > 0);
}

/*
 * Return whether a step waits for an input from another virtual stage.  Set *edge to the edge of the input, and *peer
 * to the stage that sends the input.
 */
static bool input_edge(const struct meg_pipe_schedule_conf *c, int stage, const struct meg_action *a,
                       enum meg_edge *edge, int *peer)
{
    const int vstage = virtual_stage_of(c, stage, a->chunk);

    *edge = a->type == MEG_ACTION_FWD ? MEG_EDGE_X : MEG_EDGE_DY;
    *peer = (a->type == MEG_ACTION_FWD ? stage + c->stages - 1 : stage + 1) % c->stages;
    return a->type != MEG_ACTION_BWD_WEIGHT &&
           (a->type == MEG_ACTION_FWD ? vstage > 0 : vstage < last_virtual_stage(c));
}

/* A receive.  It starts before step number before_step, after all earlier receives of its queue. */
struct receive {
    struct meg_action a;
    int64_t before_step;
};

/* The receives of a stage from one peer, in the order in which the peer sends. */
struct recv_queue {
    struct receive *v;
    int64_t n, next;
};

/* Return the index of a (chunk, micro-batch) pair in arrays of all pairs. */
static int64_t index_of(const struct meg_pipe_schedule_conf *c, const struct meg_action *a)
{
    return a->chunk * c->microbatches + a->microbatch;
}

/*
 * For each edge and (chunk, micro-batch) pair, set before_step[edge][index_of] to the index of the step before which
 * the receive starts: the step that uses the tensor received RECV_AHEAD positions earlier at the same edge, or step 0
 * if there is no such tensor.  Wrap-around receives (X on the first stage, DY on the last) connect consecutive
 * chunks.  If a group has more micro-batches than there are stages, wrap-around receives start earlier: the peer
 * sends the tensor before this stage has processed the rest of the group.
 */
static void plan_recv_starts(const struct meg_pipe_schedule_conf *c, int stage, const struct meg_action *steps,
                             int64_t n, int64_t *before_step[2])
{
    const int64_t wrap_ahead = group_of(c) - c->stages + RECV_AHEAD;
    const int64_t ahead[2] = { [MEG_EDGE_X] = stage == 0 ? wrap_ahead : RECV_AHEAD,
                               [MEG_EDGE_DY] = stage == c->stages - 1 ? wrap_ahead : RECV_AHEAD };
    int64_t *needed[2], count[2] = { 0 };
    enum meg_edge edge;
    int peer;

    for (int i = 0; i < 2; i++)
        needed[i] = meg_new((size_t)(c->microbatches * c->chunks) * sizeof *needed[i]);
    for (int64_t i = 0; i < n; i++)
        if (input_edge(c, stage, &steps[i], &edge, &peer)) {
            const int64_t k = count[edge]++;

            needed[edge][k] = i;
            before_step[edge][index_of(c, &steps[i])] = k < ahead[edge] ? 0 : needed[edge][k - ahead[edge]];
        }
    for (int i = 0; i < 2; i++)
        free(needed[i]);
}

/* Set q to the receives of a stage from a peer: the outputs of the peer's steps for this stage. */
static void plan_recvs(struct recv_queue *q, const struct meg_pipe_schedule_conf *c, int stage, int peer,
                       int64_t *const before_step[2])
{
    int64_t n;
    struct meg_action *steps = order(c, peer, &n);
    enum meg_edge edge;
    int to;

    q->v = meg_realloc_array(NULL, (size_t)n, sizeof *q->v);
    q->n = q->next = 0;
    for (int64_t i = 0; i < n; i++) {
        struct receive *r = &q->v[q->n];

        if (!output_edge(c, peer, &steps[i], &edge, &to) || to != stage)
            continue;
        r->a = steps[i];
        r->a.type = MEG_ACTION_START;
        r->a.edge = edge == MEG_EDGE_Y ? MEG_EDGE_X : MEG_EDGE_DY;
        r->a.peer = peer;
        if (edge == MEG_EDGE_Y && peer > stage) /* wrap-around: the next chunk */
            r->a.chunk++;
        if (edge == MEG_EDGE_DX && peer < stage)
            r->a.chunk--;
        r->before_step = before_step[r->a.edge][index_of(c, &r->a)];
        q->n++;
    }
    free(steps);
}

/* ---- the list ---------------------------------------------------------------------------- */

/* A pool of slots or buffers.  acquire returns the lowest free number, which keeps the pool as small as possible. */
struct pool {
    bool *is_used;
    int n;
};

static int acquire(struct pool *p)
{
    int i = 0;

    while (i < p->n && p->is_used[i])
        i++;
    if (i == p->n)
        p->is_used = meg_realloc_array(p->is_used, (size_t)++p->n, sizeof *p->is_used);
    p->is_used[i] = true;
    return i;
}

static void release(struct pool *p, int *i)
{
    if (*i >= 0)
        p->is_used[*i] = false;
    *i = -1;
}

/* A schedule under construction. */
struct builder {
    struct meg_pipe_schedule *s;
    int64_t cap;
    struct pool slots, bufs[MEG_EDGES];
    struct meg_action *in_flight; /* [index_of] slot, X buffer and DY buffer of each (chunk, micro-batch) */
    struct meg_action pending_sends[MEG_EDGES][SEND_BUFS]; /* started sends, oldest first */
    int npending[MEG_EDGES];
};

static void add(struct builder *b, const struct meg_action *a)
{
    struct meg_pipe_schedule *s = b->s;

    s->action = meg_grow(s->action, s->n, &b->cap, sizeof *s->action);
    s->action[s->n++] = *a;
}

/* Return the START or WAIT action for the transfer of buffer `buf` at an edge of step a. */
static struct meg_action transfer(enum meg_action_type type, const struct meg_action *a, enum meg_edge edge, int peer,
                                  int buf)
{
    struct meg_action t = { .type = type,
                            .edge = edge,
                            .peer = peer,
                            .chunk = a->chunk,
                            .microbatch = a->microbatch,
                            .slot = -1,
                            .buf = { -1, -1, -1, -1 } };

    t.buf[edge] = buf;
    return t;
}

static void start_receives(struct builder *b, struct recv_queue *q, int64_t step)
{
    for (; q->next < q->n && q->v[q->next].before_step <= step; q->next++) {
        struct meg_action *a = &q->v[q->next].a;
        const int buf = acquire(&b->bufs[a->edge]);
        const struct meg_action t = transfer(MEG_ACTION_START, a, a->edge, a->peer, buf);

        b->in_flight[index_of(&b->s->conf, a)].buf[a->edge] = buf;
        add(b, &t);
    }
}

static void wait_oldest_send(struct builder *b, enum meg_edge edge)
{
    struct meg_action *q = b->pending_sends[edge];

    q[0].type = MEG_ACTION_WAIT;
    add(b, &q[0]);
    release(&b->bufs[edge], &q[0].buf[edge]);
    memmove(q, q + 1, (SEND_BUFS - 1) * sizeof *q);
    b->npending[edge]--;
}

static void add_step(struct builder *b, struct meg_action a)
{
    const struct meg_pipe_schedule_conf *c = &b->s->conf;
    struct meg_action *held = &b->in_flight[index_of(c, &a)], t;
    const int stage = b->s->stage;
    enum meg_edge in, out;
    int from, to;
    const bool has_in = input_edge(c, stage, &a, &in, &from), has_out = output_edge(c, stage, &a, &out, &to);

    if (has_in) {
        t = transfer(MEG_ACTION_WAIT, &a, in, from, held->buf[in]);
        add(b, &t);
    }
    if (has_out) {
        if (b->npending[out] == SEND_BUFS)
            wait_oldest_send(b, out);
        a.buf[out] = acquire(&b->bufs[out]);
    }
    if (a.type == MEG_ACTION_FWD)
        held->slot = acquire(&b->slots);
    a.slot = held->slot;
    a.buf[MEG_EDGE_X] = held->buf[MEG_EDGE_X];
    if (a.type != MEG_ACTION_FWD)
        a.buf[MEG_EDGE_DY] = held->buf[MEG_EDGE_DY];
    add(b, &a);
    if (has_out) {
        t = transfer(MEG_ACTION_START, &a, out, to, a.buf[out]);
        add(b, &t);
        b->pending_sends[out][b->npending[out]++] = t;
    }
    if (a.type == MEG_ACTION_BWD || a.type == MEG_ACTION_BWD_WEIGHT || c->is_forward_only) {
        release(&b->slots, &held->slot);
        release(&b->bufs[MEG_EDGE_X], &held->buf[MEG_EDGE_X]);
        release(&b->bufs[MEG_EDGE_DY], &held->buf[MEG_EDGE_DY]);
    }
}

void meg_pipe_schedule_make(struct meg_pipe_schedule *s, const struct meg_pipe_schedule_conf *c, int stage)
{
    const size_t nentries = (size_t)(c->microbatches * c->chunks);
    int64_t n, *before_step[2] = { meg_new(nentries * sizeof(int64_t)), meg_new(nentries * sizeof(int64_t)) };
    struct meg_action *steps = order(c, stage, &n);
    struct builder b = { .s = s, .in_flight = meg_new(nentries * sizeof *b.in_flight) };
    struct recv_queue from_prev = { 0 }, from_next = { 0 };

    MEG_ASSERT_LE(0, stage);
    MEG_ASSERT_LT(stage, c->stages);
    memset(s, 0, sizeof *s);
    s->conf = *c;
    s->stage = stage;
    for (size_t i = 0; i < nentries; i++)
        b.in_flight[i] = (struct meg_action){ .slot = -1, .buf = { -1, -1, -1, -1 } };
    if (c->stages > 1) {
        plan_recv_starts(c, stage, steps, n, before_step);
        plan_recvs(&from_prev, c, stage, (stage + c->stages - 1) % c->stages, before_step);
    }
    if (c->stages > 2) /* with two stages, the previous and the next stage are the same peer */
        plan_recvs(&from_next, c, stage, (stage + 1) % c->stages, before_step);
    for (int64_t i = 0; i < n; i++) {
        start_receives(&b, &from_prev, i);
        start_receives(&b, &from_next, i);
        add_step(&b, steps[i]);
    }
    while (b.npending[MEG_EDGE_Y])
        wait_oldest_send(&b, MEG_EDGE_Y);
    while (b.npending[MEG_EDGE_DX])
        wait_oldest_send(&b, MEG_EDGE_DX);
    s->slots = b.slots.n;
    free(b.slots.is_used);
    for (int i = 0; i < MEG_EDGES; i++) {
        s->bufs[i] = b.bufs[i].n;
        free(b.bufs[i].is_used);
    }
    free(b.in_flight);
    free(from_prev.v);
    free(from_next.v);
    free(steps);
    free(before_step[0]);
    free(before_step[1]);
}

void meg_pipe_schedule_free(struct meg_pipe_schedule *s)
{
    free(s->action);
    s->action = NULL;
}
