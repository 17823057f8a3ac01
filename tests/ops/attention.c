/* attention.c - operands, reference and cases of attn_fwd. */
#include "attention.h"
#include <stdlib.h>
#include "base/mem.h"

/* ---- operands ---- */

struct attn_conf attn_complete(struct attn_conf c)
{
    c.s_k = c.s_k ? c.s_k : c.s_q;
    c.b = c.b ? c.b : 2;
    c.a = c.a ? c.a : 2;
    c.g = c.g ? c.g : c.a;
    c.d = c.d ? c.d : 64;
    c.d_v = c.d_v ? c.d_v : c.d;
    c.buckets = c.buckets ? c.buckets : 12;
    c.max_distance = c.max_distance ? c.max_distance : 32;
    return c;
}

static int64_t block_size(const struct attn_conf *c)
{
    return c->flags & ATTN_SEPARATE ? c->s_k : 16;
}

struct meg_attn_desc attn_desc_of(const struct attn_conf *c)
{
    return (struct meg_attn_desc){
        .s_q = c->s_q,
        .s_k = c->s_k,
        .b = c->b,
        .a = c->a,
        .g = c->g,
        .d = c->d,
        .d_v = c->d_v,
        .s = c->k0 + c->s_k + 3,
        .q0 = c->q0,
        .k0 = c->k0,
        .scale = 1.0f / sqrtf((float)c->d),
        .softcap = c->softcap,
        .window_left = c->left,
        .window_right = c->right,
        .doc_start = c->flags & ATTN_DOCS ? ON : NULL,
        .key_length = c->flags & ATTN_LENGTHS ? ON : NULL,
        .alibi_slope = c->flags & ATTN_ALIBI ? ON : NULL,
        .rel_bias = c->flags & ATTN_REL_BIAS ? op_mat(c->q, c->buckets, c->a, 3) : (struct meg_mat){ 0 },
        .rel_bias_max_distance = c->max_distance,
        .rel_bias_is_bidirectional = c->right != 0,
        .sink = { c->flags & ATTN_SINKS ? ON : NULL, c->q },
        .query_start = c->flags & ATTN_STARTS ? ON : NULL,
        .block_offset = c->flags & ATTN_PAGED ? ON : NULL,
        .block_size = block_size(c),
        .blocks_per_seq = (c->s_k + block_size(c) - 1) / block_size(c),
    };
}

struct meg_drop attn_drop_of(const struct attn_conf *c)
{
    return (struct meg_drop){
        .p = c->p, .seed = 1234, .layer = 5, .site = MEG_DROP_ATTN, .unit0 = 3, .b = c->b, .sample = ON
    };
}

/* Return a view of heads with n elements per group, or more in packed qkv. */
static struct meg_heads heads_of(const struct attn_conf *c, enum meg_dtype t, int64_t n, int64_t d, bool is_cache)
{
    const int64_t ld_g = c->flags & ATTN_PACKED ? (c->a / c->g + 2) * d : n, ld = c->g * ld_g + c->pad;

    return (struct meg_heads){ ON, t, is_cache ? ld : c->b * ld, ld, ld_g, d };
}

struct meg_heads attn_queries_of(const struct attn_conf *c, enum meg_dtype t)
{
    return heads_of(c, t, c->a / c->g * c->d, c->d, false);
}

struct meg_heads attn_keys_of(const struct attn_conf *c, enum meg_dtype t, int64_t d)
{
    return heads_of(c, t, d, d, c->flags & ATTN_PAGED);
}

struct meg_heads attn_outputs_of(const struct attn_conf *c, enum meg_dtype t)
{
    const int64_t r = c->a / c->g, ld = c->a * c->d_v + c->pad;

    return (struct meg_heads){ ON, t, c->b * ld, ld, r * c->d_v, c->d_v };
}

/* Of KV caches in blocks, k and v have all blocks.  Their pointers are those of the last one. */
static void cache_shape(struct op_call *c)
{
    const struct meg_attn_desc *desc = attn_of(c).desc;
    struct op_tensor *const x[] = { op_find(c, "k"), op_find(c, "v") };

    for (int i = 0; i < 2 && desc->block_offset; i++) {
        x[i]->size[0] *= desc->b * desc->blocks_per_seq;
        x[i]->numel *= desc->b * desc->blocks_per_seq;
        x[i]->origin = (x[i]->size[0] - desc->block_size) * x[i]->stride[0];
    }
}

/* Documents have 37 tokens, except at the ends of a sequence, and begin at different positions in each sequence. */
static void fill_documents(const struct meg_attn_desc *desc, double *doc_start)
{
    for (int64_t n = 0; n < desc->s_q * desc->b; n++) {
        const int64_t position = desc->q0 + n / desc->b, shift = 5 * (n % desc->b);
        const int64_t start = (position + shift) / 37 * 37 - shift;

        doc_start[n] = (double)(start > 0 ? start : 0);
    }
}

static int64_t key_length_of(const struct meg_attn_desc *desc, int64_t i)
{
    return !desc->key_length || i % 3 == 0 ? desc->s_k : i % 3 == 1 ? (desc->s_k + 1) / 2 : 0;
}

/*
 * Set the offsets of blocks, which are in reverse order, so that offsets are negative.  Blocks without visible keys
 * have an invalid offset.  Keys and values that are not visible are NaN.
 */
static void fill_cache(struct op_call *c, const struct meg_attn_desc *desc, double *offset)
{
    struct op_tensor *const k = op_find(c, "k"), *const v = op_find(c, "v");
    const int64_t size = desc->block_size, blocks = desc->blocks_per_seq, n = desc->b * blocks;

    for (int64_t at = 0; at < n; at++) {
        const int64_t left = key_length_of(desc, at / blocks) - at % blocks * size;
        const int64_t visible = left < 0 ? 0 : left < size ? left : size, first = (n - 1 - at) * size;

        offset[at] = visible ? (double)(-at * size * k->stride[0]) : 0x1p40;
        for (int64_t e = (first + visible) * desc->g; e < (first + size) * desc->g; e++) {
            for (int64_t col = 0; col < desc->d; col++)
                k->v[e * desc->d + col] = NAN;
            for (int64_t col = 0; col < desc->d_v; col++)
                v->v[e * desc->d_v + col] = NAN;
        }
    }
}

/* Queries have large elements, so that scores differ much and the running maximum of the softmax changes. */
static void fill_heads(struct op_call *c)
{
    struct op_tensor *const q = op_find(c, "q"), *const k = op_find(c, "k"), *const v = op_find(c, "v");

    for (int64_t i = 0; i < q->numel; i++)
        q->v[i] *= c->variant & ATTN_EQUAL ? 0 : 4;
    for (int64_t i = 0; c->variant & ATTN_ONES && i < v->numel; i++)
        v->v[i] = 1;
    if (c->variant & (ATTN_NAN_KEY | ATTN_INFINITE_KEY))
        k->v[k->numel / 2 + 3] = c->variant & ATTN_NAN_KEY ? NAN : INFINITY;
    if (c->variant & ATTN_NAN_VALUE)
        v->v[v->numel / 2 + 3] = NAN;
}

void attn_fill(struct op_call *c)
{
    const struct meg_attn_desc *desc = attn_of(c).desc;
    double *const doc_start = op_in(c, "desc.doc_start"), *const key_length = op_in(c, "desc.key_length");
    double *const query_start = op_in(c, "desc.query_start"), *const offset = op_in(c, "desc.block_offset");

    if (op_is_large)
        return;
    if (doc_start)
        fill_documents(desc, doc_start);
    for (int64_t i = 0; i < desc->b; i++) {
        const int64_t n = key_length_of(desc, i);

        if (key_length)
            key_length[i] = (double)(desc->k0 + n);
        if (query_start)
            query_start[i] = (double)(n > desc->s_q ? n - desc->s_q : 0);
    }
    fill_heads(c);
    if (offset)
        fill_cache(c, desc, offset);
    if (c->variant & ATTN_KNOWN_SAMPLE && op_find(c, "drop.sample"))
        *op_in(c, "drop.sample") = ATTN_SAMPLE;
}

/* ---- the reference ---- */

struct attn attn_of(struct op_call *c)
{
    const struct meg_attn_fwd_args *fwd = c->args;
    const struct meg_attn_bwd_args *bwd = c->args;
    const bool is_fwd = c->test == &op_test_attn_fwd;

    return (struct attn){ op_find(c, "k"),
                          is_fwd ? fwd->desc : bwd->desc,
                          is_fwd ? fwd->drop : bwd->drop,
                          op_in(c, "q"),
                          op_in(c, "k"),
                          op_in(c, "v"),
                          op_in(c, "desc.doc_start"),
                          op_in(c, "desc.key_length"),
                          op_in(c, "desc.alibi_slope"),
                          op_in(c, "desc.rel_bias"),
                          op_in(c, "desc.sink"),
                          op_in(c, "desc.query_start"),
                          op_in(c, "desc.block_offset"),
                          op_in(c, "drop.sample") };
}

static int64_t position_of(const struct attn *x, const struct attn_query *y)
{
    return (x->query_start ? (int64_t)x->query_start[y->i] : x->desc->q0) + y->t;
}

int64_t attn_key_row(const struct attn *x, const struct attn_query *y, int64_t key)
{
    const struct meg_attn_desc *desc = x->desc;
    const int64_t group = y->j / (desc->a / desc->g);
    int64_t row = key * desc->b + y->i;

    if (x->block_offset) {
        const double offset = x->block_offset[y->i * desc->blocks_per_seq + key / desc->block_size];

        row = (x->keys->origin + (int64_t)offset) / x->keys->stride[0] + key % desc->block_size;
    }
    return row * desc->g + group;
}

static double drop_at(const struct attn *x, const struct attn_query *y, int64_t key)
{
    const struct meg_drop *d = x->drop;
    const int64_t row = (x->desc->s + 7) / 8 * 8;

    return d && d->p > 0 ? op_drop_unit(d, (d->unit0 + y->j) * row + x->desc->k0 + key, position_of(x, y),
                                        (int64_t)x->sample[y->i])
                         : 1;
}

/*
 * Return the bucket of T5, in the terms of tensor/ops_attention.h: bucket e + m begins at the smallest distance that is
 * at least e * (max / e)^(m / (B - e)).
 */
int64_t attn_bucket(int64_t buckets, int64_t max_distance, bool is_bidirectional, int64_t relative)
{
    const int64_t n = is_bidirectional ? buckets / 2 : buckets, e = n / 2;
    const int64_t distance = is_bidirectional ? llabs(relative) : relative < 0 ? -relative : 0;
    int64_t result = distance < e ? distance : e;

    while (distance >= e && result + 1 < n &&
           (double)distance >=
               (double)e * pow((double)max_distance / (double)e, (double)(result + 1 - e) / (double)(n - e)) - 1e-9)
        result++;
    return result + (is_bidirectional && relative > 0 ? n : 0);
}

int64_t attn_bias_at(const struct attn *x, const struct attn_query *y, int64_t key)
{
    const struct meg_attn_desc *desc = x->desc;

    return attn_bucket(desc->rel_bias.rows, desc->rel_bias_max_distance, desc->rel_bias_is_bidirectional,
                       desc->k0 + key - position_of(x, y)) *
               desc->a +
           y->j;
}

/* Return whether a query attends to the key at a position. */
static bool is_visible(const struct attn *x, const struct attn_query *y, int64_t key)
{
    const struct meg_attn_desc *desc = x->desc;
    const int64_t p = position_of(x, y);

    return (desc->window_left < 0 || key >= p - desc->window_left) &&
           (desc->window_right < 0 || key <= p + desc->window_right) &&
           (!x->doc_start || key >= (int64_t)x->doc_start[y->t * desc->b + y->i]) &&
           (!x->key_length || key < (int64_t)x->key_length[y->i]);
}

struct attn_query attn_query_at(const struct attn *x, int64_t at)
{
    const struct meg_attn_desc *desc = x->desc;
    const int64_t t = at % desc->s_q, j = at / desc->s_q % desc->a, i = at / desc->s_q / desc->a;
    const int64_t head = (t * desc->b + i) * desc->a + j;
    const size_t nbytes = (size_t)desc->s_k * sizeof(double);
    struct attn_query y = {
        i, j, t, head * desc->d, head * desc->d_v, at, meg_new(nbytes), meg_new(nbytes), meg_new(nbytes)
    };

    for (int64_t key = 0; key < desc->s_k; key++) {
        const double *k;
        double s = 0, th;

        y.score[key] = -INFINITY;
        if (!is_visible(x, &y, desc->k0 + key))
            continue;
        k = x->k + attn_key_row(x, &y, key) * desc->d;
        for (int64_t col = 0; col < desc->d; col++)
            s += x->q[y.q + col] * k[col];
        s *= (double)desc->scale;
        th = desc->softcap > 0 ? tanh(s / (double)desc->softcap) : 0;
        y.keep[key] = drop_at(x, &y, key);
        y.slope[key] = (double)desc->scale * (1 - th * th);
        y.score[key] = desc->softcap > 0 ? (double)desc->softcap * th : s;
        if (x->slope)
            y.score[key] -= x->slope[j] * (double)llabs(desc->k0 + key - position_of(x, &y));
        if (x->rel_bias)
            y.score[key] += x->rel_bias[attn_bias_at(x, &y, key)];
    }
    return y;
}

void attn_query_free(const struct attn_query *y)
{
    free(y->score);
    free(y->slope);
    free(y->keep);
}

double attn_output(const struct attn *x, const struct attn_query *y, double *o)
{
    const struct meg_attn_desc *desc = x->desc;
    double most = x->sink ? x->sink[y->j] : -INFINITY, sum = 0;

    memset(o, 0, (size_t)desc->d_v * sizeof *o);
    for (int64_t key = 0; key < desc->s_k; key++)
        most = fmax(most, y->score[key]);
    if (most == -INFINITY)
        return most;
    sum = x->sink ? exp(x->sink[y->j] - most) : 0;
    for (int64_t key = 0; key < desc->s_k; key++) {
        const double p = exp(y->score[key] - most);
        const double *v;

        if (y->score[key] == -INFINITY)
            continue;
        v = x->v + attn_key_row(x, y, key) * desc->d_v;
        sum += p;
        for (int64_t col = 0; col < desc->d_v; col++)
            o[col] += p * y->keep[key] * v[col];
    }
    for (int64_t col = 0; col < desc->d_v; col++)
        o[col] /= sum;
    return most + log(sum);
}

/*
 * A score is a sum of d products and below sqrt(d).  The bias of ALiBi is up to the largest distance, and a capped
 * score up to softcap.  Rounding errors are proportional to these magnitudes.
 */
double attn_tolerance(const struct attn *x)
{
    const struct meg_attn_desc *desc = x->desc;
    const double range = (x->slope ? (double)desc->s : 0) + 4 * (double)desc->softcap;

    return (8 + sqrt((double)desc->s_k) + (double)desc->d + range) * EPS;
}

static void fwd_ref(struct op_call *c)
{
    const struct attn x = attn_of(c);
    struct op_tensor *const o = op_find(c, "o"), *const lse = op_find(c, "lse");
    const double tol = attn_tolerance(&x);

    for (int64_t n = 0; n < lse->numel; n++) {
        const struct attn_query y = attn_query_at(&x, n);

        lse->want[n] = attn_output(&x, &y, o->want + y.o);
        lse->tol[n] = isfinite(lse->want[n]) ? tol * (1 + fabs(lse->want[n])) : 0;
        for (int64_t col = 0; col < x.desc->d_v; col++)
            o->tol[y.o + col] = c->variant & ATTN_NAN_VALUE && !isnan(o->want[y.o + col]) ? INFINITY : 2 * tol;
        attn_query_free(&y);
    }
}

/* ---- attn_fwd ---- */

void attn_fwd_case(struct attn_conf conf)
{
    const struct attn_conf c = attn_complete(conf);
    const struct meg_attn_desc desc = attn_desc_of(&c);
    const struct meg_drop drop = attn_drop_of(&c);

    OP_CASE(attn_fwd, c.flags, .desc = &desc, .o = attn_outputs_of(&c, c.o), .q = attn_queries_of(&c, c.q),
            .k = attn_keys_of(&c, c.k, c.d), .v = attn_keys_of(&c, c.v, c.d_v), .drop = c.p > 0 ? &drop : NULL);
}

/* Return n elements behind a pointer of a view, which may be NULL. */
static struct meg_heads heads_from(struct meg_heads x, int64_t n)
{
    x.p = meg_element(x.p, n, x.dtype);
    return x;
}

/* Replace the view of a cache in blocks by a contiguous copy of the n keys of sequence i, which the caller frees. */
static void *copy_cache(const struct meg_attn_desc *desc, struct meg_heads *x, int64_t i, int64_t n)
{
    const int64_t row = x->ld_s, size = desc->block_size;
    const size_t nbytes = (size_t)row * meg_dtype_size(x->dtype);
    char *const copy = meg_new((size_t)n * nbytes);

    for (int64_t t = 0; t < n; t++)
        memcpy(copy + (size_t)t * nbytes,
               meg_element(x->p, desc->block_offset[i * desc->blocks_per_seq + t / size] + t % size * row, x->dtype),
               nbytes - (size_t)(row - desc->g * x->ld_g) * meg_dtype_size(x->dtype));
    x->p = copy;
    return copy;
}

/*
 * Each sequence, and each group of a model with tensor parallelism, has the same output alone as with others; keys may
 * be in caches or contiguous.
 */
static void fwd_parts(const struct meg_ops *op, struct meg_stream *st, const void *args)
{
    const struct meg_attn_fwd_args *all = args;
    const struct meg_attn_desc *desc = all->desc;
    const int64_t r = desc->a / desc->g;

    for (int64_t n = 0; n < desc->b * desc->g; n++) {
        const int64_t i = n / desc->g, group = n % desc->g, length = desc->key_length ? desc->key_length[i] : desc->s_k;
        struct meg_attn_desc one = *desc;
        struct meg_attn_fwd_args a = *all;
        struct meg_drop drop = all->drop ? *all->drop : (struct meg_drop){ 0 };
        int32_t *doc_start = meg_new((size_t)desc->s_q * sizeof *doc_start);
        void *k = NULL, *v = NULL;

        for (int64_t t = 0; desc->doc_start && t < desc->s_q; t++)
            doc_start[t] = desc->doc_start[t * desc->b + i];
        one.b = one.g = 1;
        one.a = r;
        one.doc_start = desc->doc_start ? doc_start : NULL;
        one.key_length = desc->key_length ? desc->key_length + i : NULL;
        one.query_start = NULL;
        one.q0 = desc->query_start ? desc->query_start[i] : desc->q0;
        one.alibi_slope = desc->alibi_slope ? desc->alibi_slope + group * r : NULL;
        one.rel_bias.p = desc->rel_bias.p ? meg_element(desc->rel_bias.p, group * r, desc->rel_bias.dtype) : NULL;
        one.rel_bias.cols = r;
        one.sink.p = desc->sink.p ? meg_element(desc->sink.p, group * r, desc->sink.dtype) : NULL;
        drop.unit0 += group * r;
        drop.sample += all->drop ? i : 0;
        a.desc = &one;
        a.drop = &drop;
        a.lse += (i * desc->a + group * r) * desc->s_q;
        a.o = heads_from(a.o, i * a.o.ld_b + group * a.o.ld_g);
        a.q = heads_from(a.q, i * a.q.ld_b + group * a.q.ld_g);
        if (desc->block_offset) {
            one.block_offset = NULL;
            one.s_k = length;
            k = copy_cache(desc, &a.k, i, length);
            v = copy_cache(desc, &a.v, i, length);
        }
        a.k = heads_from(a.k, (k ? 0 : i * a.k.ld_b) + group * a.k.ld_g);
        a.v = heads_from(a.v, (v ? 0 : i * a.v.ld_b) + group * a.v.ld_g);
        op->attn_fwd(st, &a);
        free(doc_start);
        free(k);
        free(v);
    }
}

/* Kernels for tensor cores round attention weights and their gradients to the type of q. */
double attn_cuda(const struct op_call *c, const struct op_tensor *t)
{
    int q = 0;

    while (strcmp(c->tensor[q].name, "q") != 0)
        q++;
    if (!strcmp(t->name, "lse"))
        return 1e-5;
    return fmax(op_tolerance(t->dtype), op_tolerance(c->tensor[q].dtype));
}

static double fwd_cuda(const struct op_call *c, const struct op_tensor *t)
{
    return c->variant & ATTN_ONES && t->dtype == MEG_DTYPE_F32 ? fmin(5e-4, attn_cuda(c, t)) : attn_cuda(c, t);
}

ATTN_CASES(fwd, masks)
ATTN_CASES(fwd, sizes)
ATTN_CASES(fwd, chunks)
ATTN_CASES(fwd, scores)
ATTN_CASES(fwd, dropout)
ATTN_CASES(fwd, types)
ATTN_CASES(fwd, many_tiles)
ATTN_CASES(fwd, decoding)
ATTN_CASES(fwd, paged)
ATTN_CASES(fwd, not_finite)
ATTN_CASES(fwd, bench)

OP_TEST(attn_fwd, .shape = cache_shape, .fill = attn_fill, .ref = fwd_ref, .cuda = fwd_cuda, .bench = fwd_bench,
        .parts = fwd_parts, .same = "o lse",
        .group = { { "windows, documents and key lengths", fwd_masks },
                   { "head sizes and groups", fwd_sizes },
                   { "chunks of queries and keys", fwd_chunks },
                   { "softcap, biases and sinks", fwd_scores },
                   { "dropout", fwd_dropout },
                   { "types", fwd_types },
                   { "many tiles", fwd_many_tiles, .is_cpu_only = true },
                   { "decoding", fwd_decoding },
                   { "KV caches in blocks", fwd_paged },
                   { "values that are not finite", fwd_not_finite, .is_cpu_only = true } });
