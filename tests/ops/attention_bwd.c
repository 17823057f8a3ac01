/* attention_bwd.c - cases of attn_bwd, attn_delta and attn_merge. */
#include <float.h>
#include <stdlib.h>
#include "attention.h"
#include "base/mem.h"

/* ---- attn_bwd ---- */

/* Set d_rel_bias and d_sink if attn_bwd adds to them. */
static void fill_params(struct op_call *c)
{
    const struct meg_attn_bwd_args *a = c->args;
    struct op_tensor *const x[] = { op_find(c, "d_rel_bias"), op_find(c, "d_sink") };

    for (int n = 0; n < 2; n++)
        for (int64_t i = 0; a->accumulate_params && x[n] && i < x[n]->numel; i++) {
            x[n]->role |= MEG_ROLE_IN;
            x[n]->v[i] = op_uniform();
        }
}

/* Set lse and o, or delta, to the results of the forward pass and, with ATTN_OTHER_KEYS, of more keys. */
static void bwd_fill(struct op_call *c)
{
    struct attn x;
    double *const o = op_in(c, "o"), *const lse = op_in(c, "lse"), *const delta = op_in(c, "delta");
    double *const d_o = op_in(c, "d_o"), *row;

    attn_fill(c);
    if (op_is_large)
        return;
    op_round(c);
    x = attn_of(c);
    row = meg_new((size_t)x.desc->d_v * sizeof *row);
    for (int64_t n = 0; n < op_size(c, "b") * op_size(c, "a") * op_size(c, "s_q"); n++) {
        const struct attn_query y = attn_query_at(&x, n);

        lse[n] = attn_output(&x, &y, row) + (c->variant & ATTN_OTHER_KEYS ? 1 + op_uniform() : 0);
        if (delta)
            delta[n] = c->variant & ATTN_OTHER_KEYS ? op_uniform() : 0;
        for (int64_t col = 0; col < x.desc->d_v; col++)
            if (o)
                o[y.o + col] = row[col] * (c->variant & ATTN_OTHER_KEYS ? op_uniform() : 1);
            else
                delta[n] += d_o[y.o + col] * row[col];
        attn_query_free(&y);
    }
    free(row);
    fill_params(c);
}

/* Add a term to element i of a gradient.  tol is the sum of the magnitudes of the terms, until the end of bwd_ref. */
static void add(struct op_tensor *d, int64_t i, double x, double magnitude)
{
    d->want[i] += x;
    d->tol[i] += magnitude;
}

/* A dot product, and the sum of the magnitudes of its terms. */
struct sum {
    double value, magnitude;
};

static struct sum dot(const double *x, const double *y, int64_t n)
{
    struct sum sum = { 0 };

    for (int64_t i = 0; i < n; i++) {
        sum.value += x[i] * y[i];
        sum.magnitude += fabs(x[i] * y[i]);
    }
    return sum;
}

/* Return delta of a query, as given or from o. */
static struct sum delta_of(struct op_call *c, const struct attn_query *y)
{
    const double *const o = op_in(c, "o"), *const delta = op_in(c, "delta");

    return o ? dot(op_in(c, "d_o") + y->o, o + y->o, op_size(c, "d_v"))
             : (struct sum){ delta[y->lse], fabs(delta[y->lse]) };
}

/* d_o, and the gradients of a call; those of parameters may be NULL. */
struct grads {
    const double *d_o;
    struct op_tensor *q, *k, *v, *rel_bias, *sink;
};

/* Add the contributions of a query and a key that it attends to. */
static void add_key(const struct attn *x, const struct grads *g, const struct attn_query *y, int64_t key,
                    struct sum delta, double lse)
{
    const int64_t d = x->desc->d, d_v = x->desc->d_v, row = attn_key_row(x, y, key);
    const double *const d_o = g->d_o + y->o, *const q = x->q + y->q, *const k = x->k + row * d;
    const double p = exp(y->score[key] - lse), keep = y->keep[key], slope = y->slope[key];
    const struct sum d_weight = dot(d_o, x->v + row * d_v, d_v);
    const double d_score = p * (keep * d_weight.value - delta.value);
    const double size = p * (keep * d_weight.magnitude + delta.magnitude);
    /* The rounding error of 1 - tanh(x)^2 in f32 is relative to 1. */
    const double flat = x->desc->softcap > 0 ? 4 * EPS * (double)x->desc->scale / (2 * attn_tolerance(x)) : 0;

    for (int64_t i = 0; i < d_v; i++)
        add(g->v, row * d_v + i, p * keep * d_o[i], p * keep * fabs(d_o[i]));
    for (int64_t i = 0; i < d; i++) {
        add(g->q, y->q + i, d_score * slope * k[i], size * (slope + flat) * fabs(k[i]));
        add(g->k, row * d + i, d_score * slope * q[i], size * (slope + flat) * fabs(q[i]));
    }
    if (g->rel_bias)
        add(g->rel_bias, attn_bias_at(x, y, key), d_score, size);
}

static void bwd_ref(struct op_call *c)
{
    const struct meg_attn_bwd_args *a = c->args;
    const struct attn x = attn_of(c);
    const double *const all_lse = op_in(c, "lse");
    const struct grads g = { op_in(c, "d_o"),  op_find(c, "dq"),         op_find(c, "dk"),
                             op_find(c, "dv"), op_find(c, "d_rel_bias"), op_find(c, "d_sink") };
    struct op_tensor *const all[] = { g.q, g.k, g.v, g.rel_bias, g.sink };

    for (int n = 0; n < 5; n++)
        for (int64_t i = 0; all[n] && i < all[n]->numel; i++) {
            all[n]->want[i] = n > 2 && a->accumulate_params ? all[n]->v[i] : 0;
            all[n]->tol[i] = 0;
        }
    for (int64_t n = 0; n < op_find(c, "lse")->numel; n++) {
        const struct attn_query y = attn_query_at(&x, n);
        const struct sum delta = delta_of(c, &y);
        const double lse = all_lse[n], weight = g.sink ? exp(x.sink[y.j] - lse) : 0;

        for (int64_t key = 0; key < x.desc->s_k; key++)
            if (y.score[key] != -INFINITY)
                add_key(&x, &g, &y, key, delta, lse);
        if (g.sink)
            add(g.sink, y.j, -weight * delta.value, weight * delta.magnitude);
        attn_query_free(&y);
    }
    for (int n = 0; n < 5; n++)
        for (int64_t i = 0; all[n] && i < all[n]->numel; i++)
            if (c->variant & ATTN_NOT_FINITE && !isnan(all[n]->want[i]))
                all[n]->tol[i] = INFINITY;
            else
                all[n]->tol[i] = 2 * attn_tolerance(&x) * all[n]->tol[i] + (double)FLT_MIN +
                                 (n > 2 && a->accumulate_params ? 2 * EPS * fabs(all[n]->want[i]) : 0);
}

/* The gradients are the same whether attn_delta or attn_bwd computes delta. */
static void bwd_parts(const struct meg_ops *op, struct meg_stream *st, const void *args)
{
    struct meg_attn_bwd_args a = *(const struct meg_attn_bwd_args *)args;
    float *const delta = meg_new((size_t)(a.desc->b * a.desc->a * a.desc->s_q) * sizeof *delta);

    if (!a.delta) {
        MEG_CALL(op, st, attn_delta, .desc = a.desc, .delta = delta, .d_o = a.d_o, .o = a.o);
        a.delta = delta;
        a.o.p = NULL;
    }
    op->attn_bwd(st, &a);
    free(delta);
}

static int64_t bwd_work(const struct op_call *c)
{
    return op_size(c, "b") * op_size(c, "a") * op_size(c, "s_q") * op_size(c, "s_k");
}

static size_t bwd_workspace(const struct meg_ops *op, const void *args)
{
    const struct meg_attn_bwd_args *a = args;

    return op->attn_bwd_nbytes(a->desc, a->dq.dtype, a->d_rel_bias.p || a->d_sink.p);
}

/*
 * Return the condition number of the sums in d_sink: the norm of the sums of the magnitudes of their terms, divided by
 * the norm of d_sink, but at least 1.  The rounding errors of a sum in f32 are relative to the magnitudes of its terms.
 */
static double condition_of_d_sink(struct op_call c)
{
    const struct attn x = attn_of(&c);
    const struct meg_attn_desc *desc = x.desc;
    double magnitudes2 = 0, norm2 = 0;

    for (int64_t j = 0; j < desc->a; j++) {
        double sum = 0, magnitude = 0;

        for (int64_t n = 0; n < desc->b * desc->s_q; n++) {
            const int64_t i = n / desc->s_q, t = n % desc->s_q;
            const struct attn_query y = { .o = ((t * desc->b + i) * desc->a + j) * desc->d_v,
                                          .lse = (i * desc->a + j) * desc->s_q + t };
            const double term = exp(x.sink[j] - op_in(&c, "lse")[y.lse]) * delta_of(&c, &y).value;

            sum += term;
            magnitude += fabs(term);
        }
        magnitudes2 += magnitude * magnitude;
        norm2 += sum * sum;
    }
    return norm2 > 0 ? fmax(1, sqrt(magnitudes2 / norm2)) : 1;
}

static double bwd_cuda(const struct op_call *c, const struct op_tensor *t)
{
    if (!strcmp(t->name, "d_sink"))
        return fmax(attn_cuda(c, t), 1e-5 * condition_of_d_sink(*c));
    return c->variant & ATTN_TIGHT && t->dtype == MEG_DTYPE_F32 ? fmin(2e-3, attn_cuda(c, t)) : attn_cuda(c, t);
}

void attn_bwd_case(struct attn_conf conf)
{
    const struct attn_conf c = attn_complete(conf);
    const struct meg_attn_desc desc = attn_desc_of(&c);
    const struct meg_drop drop = attn_drop_of(&c);
    const bool has_delta = c.flags & ATTN_GIVEN_DELTA;
    const struct meg_heads o = attn_outputs_of(&c, c.o);

    OP_CASE(attn_bwd, c.flags, .desc = &desc, .dq = attn_queries_of(&c, c.grad), .dk = attn_keys_of(&c, c.grad, c.d),
            .dv = attn_keys_of(&c, c.grad, c.d_v), .accumulate = !!(c.flags & ATTN_ACCUMULATE),
            .d_rel_bias = desc.rel_bias.p ? op_mat(c.grad, c.buckets, c.a, 1) : (struct meg_mat){ 0 },
            .d_sink = { desc.sink.p ? ON : NULL, c.grad }, .accumulate_params = !!(c.flags & ATTN_ACCUMULATE_PARAMS),
            .d_o = attn_outputs_of(&c, c.o == MEG_DTYPE_F32 ? c.q : c.o), .o = has_delta ? (struct meg_heads){ 0 } : o,
            .delta = has_delta ? ON : NULL, .q = attn_queries_of(&c, c.q), .k = attn_keys_of(&c, c.k, c.d),
            .v = attn_keys_of(&c, c.v, c.d_v), .drop = c.p > 0 ? &drop : NULL);
}

ATTN_CASES(bwd, masks)
ATTN_CASES(bwd, sizes)
ATTN_CASES(bwd, chunks)
ATTN_CASES(bwd, scores)
ATTN_CASES(bwd, dropout)
ATTN_CASES(bwd, types)
ATTN_CASES(bwd, many_tiles)
ATTN_CASES(bwd, not_finite)
ATTN_CASES(bwd, bench)

OP_TEST(attn_bwd, .fill = bwd_fill, .ref = bwd_ref, .grad_of = &op_test_attn_fwd, .work = bwd_work, .added = "dq dk dv",
        .cuda = bwd_cuda, .bench = bwd_bench, .parts = bwd_parts, .same = "dq dk dv d_rel_bias d_sink",
        .workspace = bwd_workspace, .workspace_at = offsetof(struct meg_attn_bwd_args, workspace),
        .group = { { "windows, documents and key lengths", bwd_masks },
                   { "head sizes and groups", bwd_sizes },
                   { "chunks of queries and keys", bwd_chunks },
                   { "softcap, biases and sinks", bwd_scores },
                   { "dropout", bwd_dropout },
                   { "types", bwd_types },
                   { "many tiles", bwd_many_tiles, .is_cpu_only = true },
                   { "values that are not finite", bwd_not_finite, .is_cpu_only = true } });

/* ---- attn_delta and attn_merge ---- */

/* The sizes of outputs; kernels use vectors if d_v and pad are multiples of 8. */
static const struct attn_conf outputs[] = {
    { .s_q = 19, .s_k = 1, .b = 3, .a = 4, .g = 2, .d = 1, .d_v = 64 },
    { .s_q = 19, .s_k = 1, .b = 3, .a = 4, .g = 2, .d = 1, .d_v = 128, .pad = 8 },
    { .s_q = 19, .s_k = 1, .b = 3, .a = 4, .g = 2, .d = 1, .d_v = 5, .pad = 2 },
    { .s_q = 19, .s_k = 1, .b = 3, .a = 4, .g = 2, .d = 1, .d_v = 72, .pad = 1 },
    { .s_q = 19, .s_k = 1, .b = 3, .a = 4, .g = 2, .d = 1, .d_v = 200 },
};

static void delta_ref(struct op_call *c)
{
    const double *const o = op_in(c, "o"), *const d_o = op_in(c, "d_o");
    const int64_t s_q = op_size(c, "s_q"), b = op_size(c, "b"), a = op_size(c, "a"), d_v = op_size(c, "d_v");
    struct op_tensor *const delta = op_find(c, "delta");

    for (int64_t n = 0; n < delta->numel; n++) {
        const int64_t at = ((n % s_q * b + n / s_q / a) * a + n / s_q % a) * d_v;

        delta->want[n] = dot(d_o + at, o + at, d_v).value;
        delta->tol[n] = (double)d_v * EPS;
    }
}

static double delta_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c, (void)t;
    return 1e-5;
}

static void delta_types(void)
{
    for (size_t i = 0; i < LEN(outputs); i++)
        for (int t = 0; t < OP_FLOATS * OP_FLOATS; t++) {
            const struct meg_attn_desc desc = attn_desc_of(&outputs[i]);

            OP_CASE(attn_delta, 0, .desc = &desc, .d_o = attn_outputs_of(&outputs[i], (enum meg_dtype)(t / OP_FLOATS)),
                    .o = attn_outputs_of(&outputs[i], (enum meg_dtype)(t % OP_FLOATS)));
        }
}

OP_TEST(attn_delta, .ref = delta_ref, .cuda = delta_cuda, .group = { { "types and shapes", delta_types } });

/*
 * FINITE: all queries have keys in both parts.  NO_KEYS: queries 3, 5 and 7 have none in the first part, the second, or
 * both.  DISTANT: the weights of the parts differ much.
 */
enum { FINITE, NO_KEYS, DISTANT };

static void merge_fill(struct op_call *c)
{
    struct op_tensor *const lse = op_find(c, "lse"), *const part = op_find(c, "lse_part");
    const int64_t s_q = op_size(c, "s_q");

    for (int64_t n = 0; n < lse->numel; n++) {
        if (c->variant == NO_KEYS && (n % s_q == 3 || n % s_q == 7))
            lse->v[n] = -INFINITY;
        if (c->variant == NO_KEYS && (n % s_q == 5 || n % s_q == 7))
            part->v[n] = -INFINITY;
        if (c->variant == DISTANT)
            lse->v[n] *= 20;
    }
}

static void merge_ref(struct op_call *c)
{
    struct op_tensor *const o = op_find(c, "o"), *const lse = op_find(c, "lse");
    const double *const o_part = op_in(c, "o_part"), *const lse_part = op_in(c, "lse_part");
    const int64_t s_q = op_size(c, "s_q"), b = op_size(c, "b"), a = op_size(c, "a"), d_v = op_size(c, "d_v");

    for (int64_t n = 0; n < lse->numel; n++) {
        const double x = lse->v[n], y = lse_part[n], most = fmax(x, y);
        const bool is_exact = x == -INFINITY || y == -INFINITY;
        const double sum = most == -INFINITY ? most : most + log(exp(x - most) + exp(y - most));
        const int64_t at = ((n % s_q * b + n / s_q / a) * a + n / s_q % a) * d_v;

        lse->want[n] = sum;
        lse->tol[n] = is_exact ? 0 : 4 * EPS * (1 + fabs(sum));
        for (int64_t i = at; i < at + d_v && sum > -INFINITY; i++) {
            o->want[i] = exp(x - sum) * o->v[i] + exp(y - sum) * o_part[i];
            o->tol[i] = is_exact ? 0 : 8 * EPS;
        }
    }
}

static double merge_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c, (void)t;
    return 1e-6;
}

static void merge_parts(void)
{
    for (size_t i = 0; i < LEN(outputs); i++)
        for (int variant = FINITE; variant <= DISTANT; variant++) {
            const struct meg_attn_desc desc = attn_desc_of(&outputs[i]);
            const struct meg_heads o = attn_outputs_of(&outputs[i], MEG_DTYPE_F32);

            OP_CASE(attn_merge, variant, .desc = &desc, .o = o, .o_part = o);
        }
}

OP_TEST(attn_merge, .fill = merge_fill, .ref = merge_ref, .cuda = merge_cuda,
        .group = { { "parts with and without keys", merge_parts } });
