/*
 * rules.c - the placements of the outputs of operations, derived from those of the inputs.
 *
 * The rows of operations (tensor/op_row.h) give each tensor a shape in letters, as in Einstein notation.  If an input
 * is sharded along a letter, all inputs with this letter must be.  An output with this letter is sharded along it; an
 * output without it is a partial sum.  A rule states the rest: which inputs an output depends on, in which it is
 * linear, and which are added.
 */
#include "placement/internal.h"
#ifdef MEG_DEBUG
#    include <string.h>

struct rule {
    const struct meg_op_row *row;
    const char *outputs, *factors, *linear, *terms, *complete, *stacked; /* see tensor/op_row.h */
};
#    define MEG_PLACEMENT_RULE(name, out, ...) { .row = &meg_row_##name, .outputs = out, __VA_ARGS__ },
static const struct rule rules[] = {
#    include "tensor/ops_attention.h"
#    include "tensor/ops_layer.h"
#    include "tensor/ops_optim.h"
};

/* ---- rules ---- */

/* The result of the factors, over one axis. */
struct factors {
    int letter;                                         /* along which they are sharded */
    const struct meg_op_field *sharded, *partial, *any; /* the first of each; NULL: none */
    bool is_zero;                                       /* a linear factor is zero */
};

/* Return the placement of an input over one axis, which must be known. */
static int input(const struct placement_call *c, const struct meg_op_field *f, int axis)
{
    const int s = placement_value(c, f).axis[axis];

    if (s == MEG_PLACEMENT_UNKNOWN)
        PLACEMENT_FAIL(c, f, s, axis, "an operation or a declaration must set its placement");
    if (s == PLACEMENT_IN_FLIGHT)
        PLACEMENT_FAIL(c, f, s, axis, "wait for the collective first");
    if (s == MEG_PLACEMENT_FLAT && !c->n)
        PLACEMENT_FAIL(c, f, s, axis, "the shards must be gathered first");
    return s;
}

/*
 * Attention over tokens: over the axes of context parallelism, the keys may be those of other ranks, and the result is
 * complete when all chunks of keys are merged.  Over an axis of other type than these and data parallelism, the tokens
 * must not be sharded.
 */
static bool is_other_keys(const struct placement_call *c, const struct meg_op_field *f, int s, int axis)
{
    const struct meg_attn_desc *desc;

    if (strncmp(c->row->name, "attn_", 5) != 0)
        return false;
    desc = ((const struct meg_attn_fwd_args *)c->args)->desc; /* the first member of all arguments of attention */
    if (s == MEG_PLACEMENT_ROWS && placement_axis[axis].type == PLACEMENT_TP)
        PLACEMENT_FAIL(c, f, s, axis, "attention requires all tokens of a sequence; gather them first");
    if (placement_axis[axis].type != PLACEMENT_CP || s == MEG_PLACEMENT_COLUMNS || (*f->name != 'k' && *f->name != 'v'))
        return false;
    if (s == MEG_PLACEMENT_ROWS && desc->s_k == desc->s)
        PLACEMENT_FAIL(c, f, s, axis, "attention treats these keys as those of the complete sequence");
    return true;
}

/* Return whether a list of letters, or NULL, contains a letter. */
static bool has_letter(const char *list, int letter)
{
    return list && strchr(list, letter);
}

static void add_factor(const struct placement_call *c, const struct rule *r, const struct meg_op_field *f, int axis,
                       struct factors *x)
{
    int s = input(c, f, axis), letter;
    const bool is_linear = placement_contains(r->linear, f->name);

    x->any = x->any ? x->any : f;
    if (s == PLACEMENT_ZERO)
        x->is_zero |= is_linear;
    if (s == PLACEMENT_ZERO || s == MEG_PLACEMENT_REPLICATED || is_other_keys(c, f, s, axis))
        return;
    if (s == PLACEMENT_MERGING && c->row == &meg_row_attn_merge)
        s = MEG_PLACEMENT_ROWS;
    if (!placement_is_sharded(s)) {
        if (!is_linear || x->partial)
            PLACEMENT_FAIL(c, f, s, axis, "the operation is not linear in it; reduce it first");
        x->partial = f;
        return;
    }
    letter = placement_letter(f, s);
    if (!letter || has_letter(r->complete, letter))
        PLACEMENT_FAIL(c, f, s, axis, "the operation requires all of it; gather or reduce it first");
    if (x->sharded && letter != x->letter)
        PLACEMENT_FAIL(c, f, s, axis, "%s is sharded along another dimension of the operation", x->sharded->name);
    x->letter = letter;
    x->sharded = f;
}

/* Check that the factors that have the letter along which one is sharded are all sharded, and that none is partial. */
static void check_letters(const struct placement_call *c, const struct rule *r, const struct factors *x, int axis)
{
    const struct meg_op_field *f;

    if (x->sharded && x->partial)
        PLACEMENT_FAIL(c, x->partial, MEG_PLACEMENT_PARTIAL, axis, "it is multiplied by %s, which is sharded",
                       x->sharded->name);
    for (int i = 0; x->sharded && (f = placement_nth(c, r->factors, i)); i++) {
        const int s = input(c, f, axis);

        if (s == MEG_PLACEMENT_REPLICATED && placement_sharding_along(f, x->letter) && !is_other_keys(c, f, s, axis))
            PLACEMENT_FAIL(c, f, s, axis, "%s is sharded along this dimension", x->sharded->name);
    }
}

/* Return whether the call applies a nonlinear function to the sum of the linear factors. */
static bool is_activated(const struct placement_call *c)
{
    return c->row == &meg_row_linear_fwd && ((const struct meg_linear_fwd_args *)c->args)->act != MEG_ACT_NONE;
}

/* Return the placement of an output over one axis. */
static int result_of(const struct rule *r, const struct meg_op_field *out, const struct factors *x, int axis)
{
    const int sharding = placement_sharding_along(out, x->letter);

    if (x->is_zero)
        return PLACEMENT_ZERO;
    if (x->partial)
        return MEG_PLACEMENT_PARTIAL;
    if (!x->sharded)
        return MEG_PLACEMENT_REPLICATED;
    if (x->letter == PLACEMENT_OUTER)
        return MEG_PLACEMENT_OUTER;
    if (placement_contains("dk dv", out->name) && placement_axis[axis].type == PLACEMENT_CP &&
        x->letter == PLACEMENT_TOKENS)
        return MEG_PLACEMENT_PARTIAL; /* the gradient from the queries of this rank */
    if (sharding)
        return sharding;
    return has_letter(r->stacked, x->letter) ? MEG_PLACEMENT_COLUMNS : MEG_PLACEMENT_PARTIAL;
}

/* Without factors, return the placement that the terms determine: partial, else sharded, else replicated. */
static int placement_of_terms(const struct placement_call *c, const struct rule *r, int axis, struct factors *x)
{
    const struct meg_op_field *f;
    int result = PLACEMENT_ZERO;

    for (int i = 0; (f = placement_nth(c, r->terms, i)); i++) {
        const int s = input(c, f, axis);
        const bool is_partial = s > MEG_PLACEMENT_FLAT;

        if (s == PLACEMENT_ZERO || (result > MEG_PLACEMENT_REPLICATED && !is_partial) ||
            (s == MEG_PLACEMENT_REPLICATED && result == s))
            continue;
        result = is_partial ? MEG_PLACEMENT_PARTIAL : s;
        x->any = f;
        x->letter = placement_is_sharded(s) && s != MEG_PLACEMENT_FLAT ? placement_letter(f, s) : PLACEMENT_NONE;
    }
    return result;
}

/* Check that a term can be added to a sum of placement `result`. */
static void check_term(const struct placement_call *c, const struct meg_op_field *f, const struct factors *x,
                       int result, int axis)
{
    const int s = input(c, f, axis);
    const int sharding = placement_sharding_along(f, x->letter);
    int wanted = result;

    if (result != MEG_PLACEMENT_PARTIAL && x->letter && x->letter != PLACEMENT_OUTER)
        wanted = sharding ? sharding : MEG_PLACEMENT_REPLICATED;
    if (s != wanted && s != PLACEMENT_ZERO && result != PLACEMENT_ZERO &&
        !(s == PLACEMENT_RECEIVED && result > MEG_PLACEMENT_FLAT) &&
        !(s == MEG_PLACEMENT_REPLICATED && result == MEG_PLACEMENT_OUTER))
        PLACEMENT_FAIL(c, f, s, axis, "it is added to %s, which is %s", x->any ? x->any->name : "a product",
                       placement_name(result));
}

/* ---- outputs ---- */

static bool accumulates(const struct placement_call *c, const struct meg_op_field *out)
{
    if (c->row == &meg_row_weighted_sum)
        return true;
    if (is_activated(c) && strcmp(out->name, "y") == 0 && ((const struct meg_linear_fwd_args *)c->args)->pre.p)
        return false; /* the sum is in pre */
    if (c->row != &meg_row_linear_bwd_data && placement_contains("dx dy", out->name))
        return false; /* otherwise, only gradients of parameters and of attention are accumulated */
    if (c->row == &meg_row_attn_bwd && out->type != MEG_FIELD_HEADS)
        return ((const struct meg_attn_bwd_args *)c->args)->accumulate_params;
    for (const struct meg_op_field *f = c->row->field; f->name; f++)
        if (strcmp(f->name, "accumulate") == 0)
            return *(const char *)meg_op_field(f, c->args); /* a bool, or an int that is 0 or 1 */
    return false;
}

/* Return the placement of an output to which v is added. */
static struct placement added(const struct placement_call *c, const struct meg_op_field *out, struct placement v)
{
    const struct placement old = placement_value(c, out);

    for (int i = 0; i < placement_naxes; i++) {
        const int s = old.axis[i];

        if (s == PLACEMENT_ZERO)
            continue;
        if (v.axis[i] != PLACEMENT_ZERO && v.axis[i] != s)
            PLACEMENT_FAIL(c, out, s, i, "%s values are added to it", placement_name(v.axis[i]));
        v.axis[i] = (unsigned char)s;
    }
    return v;
}

/* An embedding's gradient has the rows of this rank's shard of the vocabulary. */
static void select_rows(const struct meg_embed_bwd_args *a, struct placement *v)
{
    const struct meg_param *row = placement_param(a->dword.p);
    const struct placement declared = row ? placement_of_param(row) : placement_all(MEG_PLACEMENT_UNKNOWN);

    for (int i = 0; i < placement_naxes; i++)
        if (v->axis[i] == MEG_PLACEMENT_REPLICATED && declared.axis[i] == MEG_PLACEMENT_ROWS)
            v->axis[i] = MEG_PLACEMENT_ROWS;
}

static void set_output(const struct placement_call *c, const struct meg_op_field *out, struct placement v)
{
    const struct placement_range r = placement_extent(c, out);

    placement_set(r.begin, (size_t)(r.end - r.begin), v);
}

/* Apply a rule to one output, or to the elements of it that c selects. */
static void apply_to(const struct placement_call *c, const struct rule *r, const struct meg_op_field *out)
{
    struct placement v = placement_all(MEG_PLACEMENT_REPLICATED);
    const struct meg_op_field *f;

    for (int axis = 0; axis < placement_naxes; axis++) {
        struct factors x = { 0 };
        int s;

        for (int i = 0; (f = placement_nth(c, r->factors, i)); i++)
            add_factor(c, r, f, axis, &x);
        check_letters(c, r, &x, axis);
        s = r->factors ? result_of(r, out, &x, axis) : PLACEMENT_ZERO;
        if (s == PLACEMENT_ZERO)
            s = placement_of_terms(c, r, axis, &x);
        if (s == MEG_PLACEMENT_PARTIAL && is_activated(c))
            PLACEMENT_FAIL(c, x.partial ? x.partial : x.sharded,
                           placement_value(c, x.partial ? x.partial : x.sharded).axis[axis], axis,
                           "the product is partial(sum), and the activation function is not linear");
        for (int i = 0; (f = placement_nth(c, r->terms, i)); i++)
            check_term(c, f, &x, s, axis);
        v.axis[axis] = (unsigned char)s;
    }
    for (int i = 0; (f = placement_nth(c, r->terms, i)); i++)
        v.others = (uint16_t)(v.others + placement_value(c, f).others);
    if (c->row == &meg_row_embed_bwd)
        select_rows(c->args, &v);
    set_output(c, out, accumulates(c, out) ? added(c, out, v) : v);
}

/* Return whether the call only adds matrices without row padding, of which parts may have different placements. */
static bool is_flat(const struct placement_call *c, const struct rule *r, const struct meg_op_field *out)
{
    const struct meg_op_field *f;

    if (r->factors || placement_nth(c, "bias pos", 0))
        return false;
    for (int i = 0; (f = placement_nth(c, r->terms, i)); i++) {
        const struct meg_mat m = meg_op_mat(&c->sizes, c->row, f, c->args);

        if (m.ld != m.cols && m.rows > 1)
            return false;
    }
    return out->type == MEG_FIELD_MAT;
}

static void apply(struct placement_call c, const struct rule *r)
{
    const struct meg_op_field *out, *f;

    for (int k = 0; (out = placement_nth(&c, r->outputs, k)); k++) {
        const int64_t n = is_flat(&c, r, out) ? meg_op_numel(&c.sizes, out->shape) : 0;

        if (!n)
            apply_to(&c, r, out);
        for (c.begin = 0; c.begin < n; c.begin += c.n) {
            c.n = n - c.begin;
            for (int i = 0; (f = placement_nth(&c, r->terms, i)); i++) {
                const struct placement_range all = placement_extent(&c, f);
                struct placement_range part = { .end = all.begin };

                placement_next(&part, all.end);
                c.n = c.n * (part.end - all.begin) / (all.end - all.begin);
            }
            apply_to(&c, r, out);
        }
        c.begin = c.n = 0;
    }
}

/* ---- attention over chunks of keys ---- */

static uint16_t visible_chunks(const struct meg_attn_desc *d)
{
    uint16_t all = 0;

    for (int64_t k = 0; k * d->s_k < d->s && k < 16; k++)
        if (d->window_right < 0 || k * d->s_k < d->q0 + d->s_q)
            all |= (uint16_t)(1 << k);
    return all;
}

/* Over the axes of a ring, an output of attention is complete when all visible chunks of keys are merged. */
static void set_chunks(const struct placement_call *c, const char *output, uint16_t chunks,
                       const struct meg_attn_desc *d)
{
    const struct meg_op_field *f = placement_nth(c, output, 0);
    struct placement v = placement_value(c, f);
    const bool is_complete = chunks == visible_chunks(d);

    for (int i = 0; i < placement_naxes; i++)
        if (placement_axis[i].type == PLACEMENT_CP &&
            (v.axis[i] == MEG_PLACEMENT_ROWS || v.axis[i] == PLACEMENT_MERGING))
            v.axis[i] = is_complete ? MEG_PLACEMENT_ROWS : PLACEMENT_MERGING;
    v.chunks = is_complete ? 0 : chunks;
    set_output(c, f, v);
}

/* Return the chunk of the keys of attn_fwd or, for attn_merge, those of both parts, which must differ. */
static uint16_t chunks_of(const struct placement_call *c, const struct meg_attn_desc *d)
{
    uint16_t a, b;

    if (c->row == &meg_row_attn_fwd)
        return (uint16_t)(1 << (d->s_k ? d->k0 / d->s_k : 0));
    a = placement_value(c, placement_nth(c, "o", 0)).chunks;
    b = placement_value(c, placement_nth(c, "o_part", 0)).chunks;
    if (a & b)
        PLACEMENT_FAIL(c, placement_nth(c, "o_part", 0), PLACEMENT_MERGING, 0, "its keys are merged already");
    return a | b;
}

/* ---- calls ---- */

void placement_apply(const struct placement_call *c)
{
    const bool is_merged = c->row == &meg_row_attn_fwd || c->row == &meg_row_attn_merge;
    const struct meg_attn_desc *desc = is_merged ? ((const struct meg_attn_fwd_args *)c->args)->desc : NULL;
    const uint16_t chunks = is_merged ? chunks_of(c, desc) : 0;
    bool has_rule = false;

    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].row == c->row) {
            has_rule = true;
            apply(*c, &rules[i]);
        }
    for (const struct meg_op_field *f = c->row->field; !has_rule && f->name; f++)
        if (f->role & MEG_ROLE_OUT && meg_op_pointer(f, c->args))
            set_output(c, f, placement_all(MEG_PLACEMENT_UNKNOWN));
    if (is_merged) {
        set_chunks(c, "o", chunks, desc);
        set_chunks(c, "lse", chunks, desc);
    }
}
#endif
