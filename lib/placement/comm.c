/* comm.c - how collectives and messages change placements. */
#include "placement/internal.h"
#ifdef MEG_DEBUG
#    include <stdio.h>

/* A group of the mesh whose operations are checked. */
static struct group {
    struct meg_comm *c;
    const struct meg_comm_ops *op; /* the operations that are called after the checks */
    struct meg_comm_ops checked;
    unsigned mask;         /* the axes of the group */
    const char *receiving; /* output of the last receive, until the send that follows; NULL: none */
    size_t receiving_nbytes;
} group[24];
static int ngroups;

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

/* Return w after marking the output of a collective, if it must be waited for. */
static struct meg_work *start(struct meg_work *w, const void *out, size_t nbytes)
{
    if (w)
        placement_set_work(out, nbytes, w);
    return w;
}

static const struct meg_comm_ops
    *waiting; /* `wait` and `test` have no group; all groups of several ranks have one transport */

static void wait(struct meg_work *w, struct meg_stream *st)
{
    placement_complete(w);
    waiting->wait(w, st);
}

static bool test(struct meg_work *w)
{
    const bool is_done = waiting->test(w);

    if (is_done)
        placement_complete(w);
    return is_done;
}

/* ---- collectives ---- */

static void fail(const char *op, const struct group *g, const void *p, int s, int axis, const char *text)
{
    char name[100];

    snprintf(name, sizeof name, "%s in the group %s", op, g->c->name);
    placement_fail(name, "the buffer", p, s, axis, "%s", text);
}

/* The placements, one bit each, that a collective accepts over the axes of its group. */
struct collective {
    const char *op, *text; /* text: what is wrong with other placements */
    unsigned accepted;
};
static const struct collective reduction = { "all_reduce", "only a partial sum may be summed",
                                             1u << MEG_PLACEMENT_PARTIAL },
                               scatter = { "reduce_scatter", "only a partial sum may be summed",
                                           1u << MEG_PLACEMENT_PARTIAL },
                               gather = { "all_gather", "only shards may be gathered",
                                          1u << MEG_PLACEMENT_ROWS | 1u << MEG_PLACEMENT_COLUMNS |
                                              1u << MEG_PLACEMENT_FLAT },
                               exchange = { "all_to_all", "only rows or columns may be exchanged",
                                            1u << MEG_PLACEMENT_ROWS | 1u << MEG_PLACEMENT_COLUMNS };

/*
 * Return the placement of the output of a collective whose input is r: over the axes of the group, `to` or, after an
 * exchange, columns for rows and rows for columns.  Over the pipeline stages, values of one stage and gradients of tied
 * parameters are summed.  Zeros remain zeros, unless they are a gradient that is summed.
 */
static struct placement change(const struct collective *x, const struct group *g, const struct placement_range *r,
                               int to)
{
    const bool is_sum = x->accepted >> MEG_PLACEMENT_PARTIAL & 1;
    struct placement v = r->v;

    for (int i = 0; i < placement_naxes; i++) {
        const int s = v.axis[i];

        if (!(g->mask >> i & 1) || (s == PLACEMENT_ZERO && !(is_sum && r->row)))
            continue;
        if (s != PLACEMENT_ZERO && !(x->accepted >> s & 1) &&
            !(is_sum && s == MEG_PLACEMENT_OUTER && placement_axis[i].type == PLACEMENT_PP))
            fail(x->op, g, r->begin, s, i, x->text);
        v.axis[i] = (unsigned char)(x == &exchange ? MEG_PLACEMENT_ROWS + MEG_PLACEMENT_COLUMNS - s : to);
    }
    return v;
}

static struct meg_work *all_reduce(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                                   enum meg_reduce_op op)
{
    struct group *g = group_of(c);
    const size_t nbytes = (size_t)n * meg_dtype_size(t);

    for (struct placement_range r = { .end = buf }; placement_next(&r, (char *)buf + nbytes);) {
        if (op == MEG_REDUCE_SUM)
            r.v = change(&reduction, g, &r, MEG_PLACEMENT_REPLICATED);
        if (n == 1 && t == MEG_DTYPE_F64)
            r.v.reduced |= (uint16_t)g->mask;
        placement_set(r.begin, (size_t)(r.end - r.begin), r.v);
    }
    return start(g->op->all_reduce(c, st, buf, n, t, op), buf, nbytes);
}

static struct meg_work *reduce_scatter(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                       enum meg_dtype t, enum meg_reduce_op op)
{
    struct group *g = group_of(c);
    const size_t nbytes = (size_t)n * meg_dtype_size(t);
    const char *own = (const char *)in + (size_t)c->rank * nbytes, *end = (const char *)in + (size_t)c->size * nbytes;
    const int shard = placement_param(in) ? MEG_PLACEMENT_FLAT : MEG_PLACEMENT_ROWS;

    for (struct placement_range r = { .end = in }; placement_next(&r, end);) {
        const struct placement v = change(&scatter, g, &r, shard);
        const char *from = r.begin < own ? own : r.begin;
        const char *to = r.end > own + nbytes ? own + nbytes : r.end;

        if (from < to)
            placement_set((char *)out + (from - own), (size_t)(to - from), v);
    }
    return start(g->op->reduce_scatter(c, st, out, in, n, t, op), out, nbytes);
}

/* Set the shard of another rank in a flat buffer: it keeps its placement over the axes of other groups. */
static void gather_flat(const struct group *g, const char *shard, size_t nbytes)
{
    for (struct placement_range r = { .end = shard }; placement_next(&r, shard + nbytes);) {
        for (int i = 0; i < placement_naxes; i++)
            if (g->mask >> i & 1 && r.v.axis[i] != PLACEMENT_ZERO)
                r.v.axis[i] = MEG_PLACEMENT_REPLICATED;
        placement_set(r.begin, (size_t)(r.end - r.begin), r.v);
    }
}

static struct meg_work *all_gather(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                   enum meg_dtype t)
{
    struct group *g = group_of(c);
    const size_t nbytes = (size_t)n * meg_dtype_size(t);
    const bool is_flat = placement_param(out);

    for (struct placement_range r = { .end = in }; placement_next(&r, (const char *)in + nbytes);) {
        const struct placement v = change(&gather, g, &r, MEG_PLACEMENT_REPLICATED);

        for (int k = 0; k < c->size; k++)
            if (!is_flat || k == c->rank)
                placement_set((char *)out + (size_t)k * nbytes + (r.begin - (const char *)in),
                              (size_t)(r.end - r.begin), v);
    }
    for (int k = 0; is_flat && k < c->size; k++)
        if (k != c->rank)
            gather_flat(g, (char *)out + (size_t)k * nbytes, nbytes);
    return start(g->op->all_gather(c, st, out, in, n, t), out, nbytes * (size_t)c->size);
}

static struct meg_work *all_to_all(struct meg_comm *c, struct meg_stream *st, void *out, const void *in, int64_t n,
                                   enum meg_dtype t)
{
    struct group *g = group_of(c);
    const size_t nbytes = (size_t)(c->size * n) * meg_dtype_size(t);
    int differs;
    struct placement_range r = { .begin = in, .v = placement_of(in, nbytes, &differs) };

    if (differs >= 0)
        fail(exchange.op, g, in, r.v.axis[differs], differs, exchange.text);
    placement_set(out, nbytes, change(&exchange, g, &r, 0));
    return start(g->op->all_to_all(c, st, out, in, n, t), out, nbytes);
}

/* ---- messages ---- */

/* Return the placement of what pipeline stages exchange: hidden states and their gradients. */
static struct placement boundary(void)
{
    return placement_of_tokens(placement_mesh->layout.has_sp ? MEG_PLACEMENT_ROWS : MEG_PLACEMENT_REPLICATED);
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
        if (g->mask >> i & 1 && v.axis[i] == MEG_PLACEMENT_PARTIAL) {
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
    struct placement_range r = { .end = g->receiving };
    int differs;

    if (c == placement_mesh->pp)
        check_boundary(g, buf, nbytes);
    if (g->receiving && placement_next(&r, g->receiving + g->receiving_nbytes) && r.work) {
        placement_set(g->receiving, g->receiving_nbytes, from_ring(g, placement_of(buf, nbytes, &differs)));
        placement_set_work(g->receiving, g->receiving_nbytes, r.work);
        g->receiving = NULL;
    }
    return g->op->send(c, st, buf, n, t, to);
}

static struct meg_work *recv(struct meg_comm *c, struct meg_stream *st, void *buf, int64_t n, enum meg_dtype t,
                             int from)
{
    struct group *g = group_of(c);
    const size_t nbytes = (size_t)n * meg_dtype_size(t);

    placement_set(buf, nbytes, c == placement_mesh->pp ? boundary() : placement_all(MEG_PLACEMENT_UNKNOWN));
    g->receiving = c == placement_mesh->pp ? NULL : buf;
    g->receiving_nbytes = nbytes;
    return start(g->op->recv(c, st, buf, n, t, from), buf, nbytes);
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
}
#endif
