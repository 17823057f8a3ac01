/* comm.c - how collectives and messages change placements. */
#include "placement/internal.h"
#ifdef MEG_DEBUG
#    include <stdio.h>
#    include <stdlib.h>
#    include <string.h>
#    include "base/mem.h"

/* A group of the mesh whose operations are checked. */
static struct group {
    struct meg_comm *c;
    const struct meg_comm_ops *op; /* the operations that are called after the checks */
    struct meg_comm_ops checked;
    unsigned mask;         /* the axes of the group */
    const void *receiving; /* output of the last receive, until the send that follows; NULL: none */
    size_t receiving_nbytes;
} group[24];
static int ngroups;

/* The outputs of collectives in flight, with their placements after the wait. */
static struct pending {
    struct meg_work *w;
    struct placement_table after;
} * pending;
static int npending, pending_cap;

static struct group *group_of(const struct meg_comm *c)
{
    for (int i = 0; i < ngroups; i++)
        if (group[i].c == c)
            return &group[i];
    return NULL;
}

unsigned placement_comm_mask(const struct meg_comm *c)
{
    const struct group *g = group_of(c);

    return g ? g->mask : 0;
}

/* ---- operations in flight ---- */

static void finish(struct placement_table *t)
{
    for (int i = 0; i < t->n; i++)
        placement_set(&placement_table, t->range[i].begin, (size_t)(t->range[i].end - t->range[i].begin), t->range[i].v,
                      NULL);
    free(t->range);
}

/* Set the placements of the outputs of a collective, now or, if it is in flight, when it is waited for. */
static struct meg_work *start(struct meg_work *w, struct placement_table after)
{
    if (!w) {
        finish(&after);
        return NULL;
    }
    for (int i = 0; i < after.n; i++)
        placement_set(&placement_table, after.range[i].begin, (size_t)(after.range[i].end - after.range[i].begin),
                      placement_all(PLACEMENT_IN_FLIGHT), NULL);
    if (npending == pending_cap)
        pending = meg_realloc_array(pending, (size_t)(pending_cap = 2 * pending_cap + 8), sizeof *pending);
    pending[npending++] = (struct pending){ w, after };
    return w;
}

static void complete(const struct meg_work *w)
{
    for (int i = 0; i < npending; i++)
        if (pending[i].w == w) {
            struct placement_table after = pending[i].after;

            pending[i] = pending[--npending];
            finish(&after);
            return;
        }
}

static const struct meg_comm_ops
    *waiting; /* `wait` and `test` have no group; all groups of several ranks have one transport */

static void wait(struct meg_work *w, struct meg_stream *st)
{
    complete(w);
    waiting->wait(w, st);
}

static bool test(struct meg_work *w)
{
    const bool is_done = waiting->test(w);

    if (is_done)
        complete(w);
    return is_done;
}

/* ---- collectives ---- */

static void fail(const char *op, const struct group *g, const void *p, int s, int axis, const char *text)
{
    char name[100];

    snprintf(name, sizeof name, "%s in the group %s", op, g->c->name);
    placement_fail(name, "the buffer", p, s, axis, "%s", text);
}

static bool has_axis(const struct group *g, int axis)
{
    return g->mask >> axis & 1;
}

/* Return the first part of [p, end) that has one placement and belongs to at most one parameter. */
static struct placement_range first_part(const char *p, const char *end)
{
    struct placement_range r = placement_first(&placement_table, p, end);
    const struct placement_range d = placement_first(&placement_declared, p, r.end);

    r.end = d.end;
    r.row = d.row;
    return r;
}

/*
 * Set the placement of a part over the axes of a group to that of a sum.  Over the pipeline stages, values of one stage
 * and gradients of tied parameters are summed.  Zeros remain zeros, unless they are a gradient.
 */
static void sum(const char *op, const struct group *g, struct placement_range *r, int placement)
{
    for (int i = 0; i < placement_naxes; i++) {
        const int s = r->v.axis[i];

        if (!has_axis(g, i) || (s == PLACEMENT_ZERO && !r->row))
            continue;
        if (s != PLACEMENT_ZERO && s != MEG_PLACEMENT_PARTIAL &&
            !(s == MEG_PLACEMENT_OUTER && placement_axis[i].type == PLACEMENT_PP))
            fail(op, g, r->begin, s, i, "only a partial sum may be summed");
        r->v.axis[i] = (unsigned char)placement;
    }
}

static int after_gather(const char *op, const struct group *g, const void *p, int s, int axis)
{
    if (s == PLACEMENT_ZERO)
        return s;
    if (!placement_is_sharded(s) || s == MEG_PLACEMENT_OUTER)
        fail(op, g, p, s, axis, "only shards may be gathered");
    return MEG_PLACEMENT_REPLICATED;
}

static struct meg_work *all_reduce(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                   enum meg_reduce_op op)
{
    struct group *g = group_of(c);
    const char *end = meg_element(buf, n, t);
    struct placement_table after = { 0 };

    for (struct placement_range r = { .end = buf }; r.end < end;) {
        r = first_part(r.end, end);
        if (op == MEG_REDUCE_SUM)
            sum("all_reduce", g, &r, MEG_PLACEMENT_REPLICATED);
        placement_set(&after, r.begin, (size_t)(r.end - r.begin), r.v, NULL);
    }
    if (n == 1 && t == MEG_DTYPE_F64)
        placement_norm_reduce(buf, g->mask);
    return start(g->op->all_reduce(c, st, buf, n, t, op), after);
}

static struct meg_work *reduce_scatter(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                       enum meg_dtype t, enum meg_reduce_op op)
{
    struct group *g = group_of(c);
    const size_t nbytes = (size_t)n * meg_dtype_size(t);
    const char *own = (const char *)in + (size_t)c->rank * nbytes, *end = (const char *)in + (size_t)c->size * nbytes;
    const int shard = placement_param_name(in) ? MEG_PLACEMENT_FLAT : MEG_PLACEMENT_ROWS;
    struct placement_table after = { 0 };

    for (struct placement_range r = { .end = in }; r.end < end;) {
        const char *from, *to;

        r = first_part(r.end, end);
        sum("reduce_scatter", g, &r, shard);
        from = r.begin < own ? own : r.begin;
        to = r.end > own + nbytes ? own + nbytes : r.end;
        if (from < to)
            placement_set(&after, (char *)out + (from - own), (size_t)(to - from), r.v, NULL);
    }
    return start(g->op->reduce_scatter(c, st, out, in, n, t, op), after);
}

/* Set the shards of the other ranks in a flat buffer: each keeps its placement over the axes of other groups. */
static void gather_flat(const struct group *g, struct placement_table *after, const char *out, size_t nbytes)
{
    for (struct placement_range r = { .end = out }; r.end < out + nbytes;) {
        r = placement_first(&placement_table, r.end, out + nbytes);
        for (int i = 0; i < placement_naxes; i++)
            if (has_axis(g, i) && r.v.axis[i] != PLACEMENT_ZERO)
                r.v.axis[i] = MEG_PLACEMENT_REPLICATED;
        placement_set(after, r.begin, (size_t)(r.end - r.begin), r.v, NULL);
    }
}

static struct meg_work *all_gather(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                   enum meg_dtype t)
{
    struct group *g = group_of(c);
    const size_t nbytes = (size_t)n * meg_dtype_size(t);
    const char *end = (const char *)in + nbytes;
    struct placement_table after = { 0 };

    if (placement_param_name(out))
        gather_flat(g, &after, out, nbytes * (size_t)c->size);
    for (struct placement_range r = { .end = in }; r.end < end;) {
        r = placement_first(&placement_table, r.end, end);
        for (int i = 0; i < placement_naxes; i++)
            if (has_axis(g, i))
                r.v.axis[i] = (unsigned char)after_gather("all_gather", g, r.begin, r.v.axis[i], i);
        for (int k = 0; k < c->size; k++)
            if (!placement_param_name(out) || k == c->rank)
                placement_set(&after, (char *)out + (size_t)k * nbytes + (r.begin - (const char *)in),
                              (size_t)(r.end - r.begin), r.v, NULL);
    }
    return start(g->op->all_gather(c, st, out, in, n, t), after);
}

static struct meg_work *all_to_all(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                   enum meg_dtype t)
{
    struct group *g = group_of(c);
    const size_t nbytes = (size_t)(c->size * n) * meg_dtype_size(t);
    int differs;
    struct placement v = placement_of(in, nbytes, &differs);
    struct placement_table after = { 0 };

    for (int i = 0; i < placement_naxes; i++)
        if (has_axis(g, i) && v.axis[i] != PLACEMENT_ZERO) {
            if (differs >= 0 || (v.axis[i] != MEG_PLACEMENT_ROWS && v.axis[i] != MEG_PLACEMENT_COLUMNS))
                fail("all_to_all", g, in, v.axis[i], i, "only rows or columns may be exchanged");
            v.axis[i] = v.axis[i] == MEG_PLACEMENT_ROWS ? MEG_PLACEMENT_COLUMNS : MEG_PLACEMENT_ROWS;
        }
    placement_set(&after, out, nbytes, v, NULL);
    return start(g->op->all_to_all(c, st, out, in, n, t), after);
}

/* ---- messages ---- */

/* Return the placement of what pipeline stages exchange: hidden states and their gradients. */
static struct placement boundary(void)
{
    struct placement v = { { 0 }, 0, 0 };

    for (int i = 0; i < placement_naxes; i++)
        switch (placement_axis[i].type) {
        case PLACEMENT_TP:
            v.axis[i] = placement_mesh->layout.has_sp ? MEG_PLACEMENT_ROWS : MEG_PLACEMENT_REPLICATED;
            break;
        case PLACEMENT_PP: v.axis[i] = MEG_PLACEMENT_OUTER; break;
        default: v.axis[i] = MEG_PLACEMENT_ROWS;
        }
    return v;
}

static void check_boundary(const struct group *g, const void *buf, size_t nbytes)
{
    const struct placement wanted = boundary();
    int differs;
    const struct placement v = placement_of(buf, nbytes, &differs);

    for (int i = 0; i < placement_naxes; i++)
        if (differs >= 0 || (v.axis[i] != wanted.axis[i] && v.axis[i] != PLACEMENT_ZERO))
            fail("send", g, buf, v.axis[i], i, "it is not what the next pipeline stage expects");
}

/*
 * Return what this rank receives in a ring in which each rank sends a value of placement v: shards of another rank, or
 * the sum of all ranks that have sent, which is complete after size - 1 steps.
 */
static struct placement from_ring(const struct group *g, struct placement v)
{
    const int ranks = v.others + 1;
    bool is_sum = false;

    for (int i = 0; i < placement_naxes; i++)
        if (has_axis(g, i) && v.axis[i] == MEG_PLACEMENT_PARTIAL) {
            is_sum = true;
            v.axis[i] = ranks == g->c->size ? MEG_PLACEMENT_ROWS : PLACEMENT_RECEIVED;
        }
    v.others = (uint16_t)(is_sum && ranks < g->c->size ? ranks : 0);
    return v;
}

static struct meg_work *send(struct meg_comm *c, struct meg_stream *st, const void *buf, int64_t n, enum meg_dtype t,
                             int to)
{
    struct group *g = group_of(c);
    const size_t nbytes = (size_t)n * meg_dtype_size(t);
    int differs;

    if (c == placement_mesh->pp)
        check_boundary(g, buf, nbytes);
    for (int i = 0; i < npending && g->receiving; i++)
        if (pending[i].after.n && pending[i].after.range[0].begin == g->receiving) {
            pending[i].after.range[0].v = from_ring(g, placement_of(buf, nbytes, &differs));
            g->receiving = NULL;
        }
    return g->op->send(c, st, buf, n, t, to);
}

static struct meg_work *recv(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                             int from)
{
    struct group *g = group_of(c);
    struct placement_table after = { 0 };

    placement_set(&after, buf, (size_t)n * meg_dtype_size(t),
                  c == placement_mesh->pp ? boundary() : placement_all(MEG_PLACEMENT_UNKNOWN), NULL);
    g->receiving = c == placement_mesh->pp ? NULL : buf;
    return start(g->op->recv(c, st, buf, n, t, from), after);
}

/* ---- groups ---- */

void placement_comm_begin(struct meg_comm *c, unsigned mask)
{
    struct group *g = &group[ngroups];

    if (group_of(c))
        return;
    MEG_ASSERT_LT(ngroups, (int)(sizeof group / sizeof *group));
    ngroups++;
    *g = (struct group){ .c = c, .op = c->op, .checked = *c->op, .mask = mask };
    if (c->size > 1)
        waiting = c->op;
    g->checked.all_reduce = all_reduce;
    g->checked.reduce_scatter = reduce_scatter;
    g->checked.all_gather = all_gather;
    g->checked.all_to_all = all_to_all;
    g->checked.send = send;
    g->checked.recv = recv;
    g->checked.wait = wait;
    g->checked.test = test;
    c->op = &g->checked;
}

void placement_comm_end(void)
{
    while (ngroups > 0) {
        ngroups--;
        group[ngroups].c->op = group[ngroups].op;
    }
    for (int i = 0; i < npending; i++)
        free(pending[i].after.range);
    free(pending);
    pending = NULL;
    npending = pending_cap = 0;
}
#endif
