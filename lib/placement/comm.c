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

static void all_reduce(struct group *g, const struct meg_comm_call *x)
{
    const size_t nbytes = (size_t)x->n * meg_dtype_size(x->dtype);

    for (struct placement_range r = { .end = x->out }; placement_next(&r, (char *)x->out + nbytes);) {
        if (x->reduce == MEG_REDUCE_SUM)
            r.v = change(&reduction, g, &r, MEG_PLACEMENT_REPLICATED);
        if (x->n == 1 && x->dtype == MEG_DTYPE_F64)
            r.v.reduced |= (uint16_t)g->mask;
        placement_set(r.begin, (size_t)(r.end - r.begin), r.v);
    }
}

static void reduce_scatter(struct group *g, const struct meg_comm_call *x)
{
    const size_t nbytes = (size_t)x->n * meg_dtype_size(x->dtype);
    const char *own = (const char *)x->in + (size_t)g->c->rank * nbytes,
               *end = (const char *)x->in + (size_t)g->c->size * nbytes;
    const int shard = placement_param(x->in) ? MEG_PLACEMENT_FLAT : MEG_PLACEMENT_ROWS;

    for (struct placement_range r = { .end = x->in }; placement_next(&r, end);) {
        const struct placement v = change(&scatter, g, &r, shard);
        const char *from = r.begin < own ? own : r.begin;
        const char *to = r.end > own + nbytes ? own + nbytes : r.end;

        if (from < to)
            placement_set((char *)x->out + (from - own), (size_t)(to - from), v);
    }
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

static void all_gather(struct group *g, const struct meg_comm_call *x)
{
    const size_t nbytes = (size_t)x->n * meg_dtype_size(x->dtype);
    const bool is_flat = placement_param(x->out);

    for (struct placement_range r = { .end = x->in }; placement_next(&r, (const char *)x->in + nbytes);) {
        const struct placement v = change(&gather, g, &r, MEG_PLACEMENT_REPLICATED);

        for (int k = 0; k < g->c->size; k++)
            if (!is_flat || k == g->c->rank)
                placement_set((char *)x->out + (size_t)k * nbytes + (r.begin - (const char *)x->in),
                              (size_t)(r.end - r.begin), v);
    }
    for (int k = 0; is_flat && k < g->c->size; k++)
        if (k != g->c->rank)
            gather_flat(g, (char *)x->out + (size_t)k * nbytes, nbytes);
}

static void all_to_all(struct group *g, const struct meg_comm_call *x)
{
    const size_t nbytes = (size_t)(g->c->size * x->n) * meg_dtype_size(x->dtype);
    int differs;
    struct placement_range r = { .begin = x->in, .v = placement_of(x->in, nbytes, &differs) };

    if (differs >= 0)
        fail(exchange.op, g, x->in, r.v.axis[differs], differs, exchange.text);
    placement_set(x->out, nbytes, change(&exchange, g, &r, 0));
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

static void send(struct group *g, const struct meg_comm_call *x)
{
    const size_t nbytes = (size_t)x->n * meg_dtype_size(x->dtype);
    struct placement_range r = { .end = g->receiving };
    int differs;

    if (g->c == placement_mesh->pp)
        check_boundary(g, x->in, nbytes);
    if (g->receiving && placement_next(&r, g->receiving + g->receiving_nbytes) && r.work) {
        placement_set(g->receiving, g->receiving_nbytes, from_ring(g, placement_of(x->in, nbytes, &differs)));
        placement_set_work(g->receiving, g->receiving_nbytes, r.work);
        g->receiving = NULL;
    }
}

static void recv(struct group *g, const struct meg_comm_call *x)
{
    const size_t nbytes = (size_t)x->n * meg_dtype_size(x->dtype);

    placement_set(x->out, nbytes, g->c == placement_mesh->pp ? boundary() : placement_all(MEG_PLACEMENT_UNKNOWN));
    g->receiving = g->c == placement_mesh->pp ? NULL : x->out;
    g->receiving_nbytes = nbytes;
}

static struct meg_work *start(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x)
{
    struct group *g = group_of(c);
    const int64_t numel = x->op == MEG_ALL_GATHER || x->op == MEG_ALL_TO_ALL ? c->size * x->n : x->n;
    struct meg_work *w;

    switch (x->op) {
    case MEG_ALL_REDUCE: all_reduce(g, x); break;
    case MEG_REDUCE_SCATTER: reduce_scatter(g, x); break;
    case MEG_ALL_GATHER: all_gather(g, x); break;
    case MEG_ALL_TO_ALL: all_to_all(g, x); break;
    case MEG_SEND: send(g, x); break;
    case MEG_RECV: recv(g, x); break;
    default: break;
    }
    w = g->op->start(c, st, x);
    if (w && x->op != MEG_SEND && x->op != MEG_BROADCAST)
        placement_set_work(x->out, (size_t)numel * meg_dtype_size(x->dtype), w); /* the output must be waited for */
    return w;
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
    g->checked.start = start;
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
