/* check_attention.c - cases of cuda/attention. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/philox.h"
#include "check.h"
#include "cuda/internal.h"

/* Flags of a case. */
enum {
    DOCS = 1,    /* packed documents */
    LENGTHS = 2, /* key_length: complete, half, 0 */
    ALIBI = 4,
    REL_BIAS = 8,
    REL_BIAS_BOTH = 16, /* bidirectional */
    SINKS = 32,
    DROPOUT = 64,
    STARTS = 128, /* query_start */
    PAGED = 256,  /* KV caches in blocks of BLOCK_SIZE tokens */
    GIVEN_DELTA = 512,
    ACCUMULATE = 1024,
    FORWARD = 2048,  /* no backward pass */
    SEPARATE = 4096, /* with PAGED: one block per sequence */
    EQUAL = 8192,    /* q is 0, so that a query attends equally to its keys, and an additional key is not negligible */
};
enum { BUCKETS = 12 }; /* of the relative attention bias */

/* A case.  Sizes that are 0 have the defaults of complete(). */
struct conf {
    int64_t s_q, s_k, b, a, g, d, d_v, q0, k0, left, right, pad;
    float softcap;
    int flags;
    enum meg_dtype q, k, v, o, grad;
};

static struct conf complete(struct conf c)
{
    c.s_k = c.s_k ? c.s_k : c.s_q;
    c.b = c.b ? c.b : 2;
    c.a = c.a ? c.a : 2;
    c.g = c.g ? c.g : c.a;
    c.d = c.d ? c.d : 64;
    c.d_v = c.d_v ? c.d_v : c.d;
    return c;
}

/* Return c with type t for all tensors. */
static struct conf of_type(struct conf c, enum meg_dtype t)
{
    c.q = c.k = c.v = c.o = c.grad = t;
    return c;
}

/* ---- operands ---- */

/*
 * Return a view of m, of which row t*b + i has the heads of token t of sequence i, in groups of heads_per_group heads
 * of d columns.
 */
static struct meg_heads heads_of(struct meg_mat m, int64_t b, int64_t heads_per_group, int64_t d)
{
    return (struct meg_heads){ m.p, m.dtype, b * m.ld, m.ld, heads_per_group * d, d };
}

/* The operands of a case, on the host and on the device. */
struct operands {
    struct twin q, k, v, o, d_o, dq, dk, dv, lse, delta, rel_bias, d_rel_bias, sink, d_sink, slope;
    struct twin_bytes doc_start, key_length, query_start, block_offset, sample;
    struct meg_attn_desc desc[2]; /* host, device */
    struct meg_drop drop[2];
};

/* Allocate an array [n] of i32 in both memories, whose element `index` is f(c, index). */
static struct twin_bytes integers(const struct conf *c, int64_t n, int32_t (*f)(const struct conf *c, int64_t index))
{
    int32_t *x = meg_new((size_t)(n + 1) * sizeof *x);
    struct twin_bytes twin;

    for (int64_t i = 0; i < n; i++)
        x[i] = f(c, i);
    twin = twin_bytes(x, (size_t)n * sizeof *x);
    free(x);
    return twin;
}

/* Documents have 37 tokens, except at the ends of a sequence, and begin at different positions in each sequence. */
static int32_t doc_start_at(const struct conf *c, int64_t index)
{
    const int64_t position = c->q0 + index / c->b, shift = 5 * (index % c->b),
                  start = (position + shift) / 37 * 37 - shift;

    return (int32_t)(start > 0 ? start : 0);
}

static int32_t key_length_at(const struct conf *c, int64_t i)
{
    const int64_t n = i % 3 == 0 ? c->s_k : i % 3 == 1 ? (c->s_k + 1) / 2 : 0;

    return (int32_t)(c->k0 + n);
}

static int32_t query_start_at(const struct conf *c, int64_t i)
{
    return (int32_t)(key_length_at(c, i) > c->s_q ? key_length_at(c, i) - c->s_q : 0);
}

enum { BLOCK_SIZE = 16 };

static int64_t block_size(const struct conf *c)
{
    return c->flags & SEPARATE ? c->s_k : BLOCK_SIZE;
}

static int64_t blocks_per_seq(const struct conf *c)
{
    return (c->s_k + block_size(c) - 1) / block_size(c);
}

/*
 * Return the first row of block `index`.  Blocks are in reverse order.  Blocks without visible keys have an invalid
 * first row.
 */
static int64_t block_row(const struct conf *c, int64_t index)
{
    const int64_t n = blocks_per_seq(c), visible = c->flags & LENGTHS ? key_length_at(c, index / n) : c->s_k;

    return index % n * block_size(c) < visible ? (c->b * n - 1 - index) * block_size(c) : INT64_C(1) << 40;
}

/*
 * Return random keys or values, with one row per token.  Of a KV cache in blocks, return the rows of all blocks, of
 * which only those of visible keys are set.
 */
static struct twin keys_random(const struct conf *c, enum meg_dtype t, int64_t d)
{
    const int64_t n = blocks_per_seq(c), size = block_size(c);
    struct twin x;

    if (!(c->flags & PAGED))
        return twin_random(t, c->s_k * c->b, c->g * d, c->pad);
    x = twin_output(t, c->b * n * size, c->g * d, c->pad);
    for (int64_t i = 0; i < c->b; i++)
        for (int64_t k = 0; k < (c->flags & LENGTHS ? key_length_at(c, i) : c->s_k); k++)
            for (int64_t col = 0; col < c->g * d; col++)
                twin_set(&x, block_row(c, i * n + k / size) + k % size, col, (float)op_uniform());
    twin_upload(&x);
    return x;
}

/*
 * Return the offsets of the blocks of keys or values with rows of `ld` elements.  They are relative to the first block
 * of the first sequence, which is after all other blocks, so offsets are negative.
 */
static struct twin_bytes block_offsets(const struct conf *c, int64_t ld)
{
    const int64_t n = c->b * blocks_per_seq(c);
    int64_t *x = meg_new((size_t)(n + 1) * sizeof *x);
    struct twin_bytes twin;

    for (int64_t i = 0; i < n; i++)
        x[i] = (block_row(c, i) - block_row(c, 0)) * ld;
    twin = twin_bytes(x, (size_t)n * sizeof *x);
    free(x);
    return twin;
}

static struct meg_heads key_heads(const struct conf *c, struct meg_mat m, int64_t d)
{
    struct meg_heads x = heads_of(m, c->b, 1, d);

    if (c->flags & PAGED)
        x.ld_s = m.ld;
    return x;
}

/* Return the heads of keys or values m [s_k*b, g*d] or, in KV caches, of all blocks, as block_offset expects them. */
static struct meg_heads cached_heads(const struct conf *c, struct meg_mat m, int64_t d)
{
    return key_heads(c, c->flags & PAGED ? meg_mat_rows(m, block_row(c, 0), 1) : m, d);
}

/*
 * Return queries.  If `factor` is more than 1, their elements are large and the scores differ much, so that the running
 * maximum of the softmax changes.
 */
static struct twin queries_random(enum meg_dtype t, int64_t rows, int64_t cols, int64_t pad, float factor)
{
    struct twin x = twin_random(t, rows, cols, pad);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            twin_set(&x, r, c, factor * twin_get(&x, r, c));
    twin_upload(&x);
    return x;
}

/* Return a gradient: random values if the backward pass accumulates into it, else NaN. */
static struct twin grad_new(const struct conf *c, enum meg_dtype t, int64_t rows, int64_t cols, int64_t pad)
{
    return c->flags & ACCUMULATE ? twin_random(t, rows, cols, pad) : twin_output(t, rows, cols, pad);
}

static struct meg_array array_of(struct meg_mat m)
{
    return (struct meg_array){ m.p, m.dtype };
}

static void create(struct operands *x, const struct conf *c)
{
    static const int64_t sample[] = { 3, INT64_C(1) << 33, 7, 100 };
    const int64_t n = c->s_q * c->b;

    memset(x, 0, sizeof *x);
    x->q = queries_random(c->q, n, c->a * c->d, c->pad, c->flags & EQUAL ? 0 : 4);
    x->k = keys_random(c, c->k, c->d);
    x->v = keys_random(c, c->v, c->d_v);
    x->o = twin_output(c->o, n, c->a * c->d_v, c->pad);
    x->lse = twin_output(MEG_DTYPE_F32, c->b * c->a, c->s_q, 0);
    x->delta = twin_output(MEG_DTYPE_F32, c->b * c->a, c->s_q, 0);
    x->sample = twin_bytes(sample, sizeof sample);
    if (c->flags & DOCS)
        x->doc_start = integers(c, n, doc_start_at);
    if (c->flags & LENGTHS)
        x->key_length = integers(c, c->b, key_length_at);
    if (c->flags & STARTS)
        x->query_start = integers(c, c->b, query_start_at);
    if (c->flags & PAGED)
        x->block_offset = block_offsets(c, x->k.host.ld);
    if (c->flags & ALIBI)
        x->slope = twin_random(MEG_DTYPE_F32, 1, c->a, 0);
    if (c->flags & (REL_BIAS | REL_BIAS_BOTH))
        x->rel_bias = twin_random(c->q, BUCKETS, c->a, 3);
    if (c->flags & SINKS)
        x->sink = twin_random(c->q, 1, c->a, 0);
    for (int i = 0; i < 2; i++) {
#define OF(twin) (i ? x->twin.dev : x->twin.host)
        x->desc[i] = (struct meg_attn_desc){ .s_q = c->s_q,
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
                                             .doc_start = OF(doc_start),
                                             .key_length = OF(key_length),
                                             .alibi_slope = OF(slope).p,
                                             .rel_bias = OF(rel_bias),
                                             .rel_bias_max_distance = 32,
                                             .rel_bias_is_bidirectional = !!(c->flags & REL_BIAS_BOTH),
                                             .sink = array_of(OF(sink)),
                                             .query_start = OF(query_start),
                                             .block_offset = OF(block_offset),
                                             .block_size = block_size(c),
                                             .blocks_per_seq = blocks_per_seq(c) };
        x->drop[i] = (struct meg_drop){
            .p = 0.2f, .seed = 1234, .layer = 5, .site = MEG_DROP_ATTN, .unit0 = 3, .b = c->b, .sample = OF(sample)
        };
    }
}

/* ---- comparisons ---- */

/*
 * Return the tolerance for a result of type t.  Kernels for tensor cores round attention weights and their gradients
 * to the type of q.
 */
static double tolerance(const struct conf *c, enum meg_dtype t)
{
    return fmax(op_tolerance(t), op_tolerance(c->q));
}

static void compare_forward(const struct conf *c, struct operands *x)
{
    for (int i = 0; i < 2; i++)
        MEG_CALL((i ? gpu : cpu), i ? stream : NULL, attn_fwd, .desc = &x->desc[i],
                 .o = heads_of(OF(o), c->b, c->a / c->g, c->d_v), .lse = OF(lse).p,
                 .q = heads_of(OF(q), c->b, c->a / c->g, c->d), .k = cached_heads(c, OF(k), c->d),
                 .v = cached_heads(c, OF(v), c->d_v), .drop = c->flags & DROPOUT ? &x->drop[i] : NULL);
    expect_near(&x->o, tolerance(c, c->o), "o");
    expect_near(&x->lse, 1e-5, "lse");
}

/*
 * Return the condition number of the sums in d_sink: the norm of the sums of the magnitudes of their terms, divided by
 * the norm of d_sink, but at least 1.  The rounding errors of a sum in f32 are relative to the magnitudes of its terms.
 */
static double condition_of_d_sink(const struct conf *c, const struct operands *x)
{
    struct twin delta = twin_output(MEG_DTYPE_F32, c->b * c->a, c->s_q, 0);
    const int64_t r = c->a / c->g;
    double magnitudes2 = 0, norm2 = 0;

    MEG_CALL(cpu, NULL, attn_delta, .desc = &x->desc[0], .delta = delta.host.p,
             .d_o = heads_of(x->d_o.host, c->b, r, c->d_v), .o = heads_of(x->o.host, c->b, r, c->d_v));
    for (int64_t j = 0; j < c->a; j++) {
        double sum = 0;

        for (int64_t i = 0; i < c->b; i++)
            for (int64_t t = 0; t < c->s_q; t++)
                sum += fabs(exp(twin_get(&x->sink, 0, j) - twin_get(&x->lse, i * c->a + j, t)) *
                            twin_get(&delta, i * c->a + j, t));
        magnitudes2 += sum * sum;
        norm2 += pow(twin_get(&x->d_sink, 0, j), 2);
    }
    return norm2 > 0 ? fmax(1, sqrt(magnitudes2 / norm2)) : 1;
}

/* Compare the gradients, which both backends compute from the CPU's o and lse. */
static void compare_backward(const struct conf *c, struct operands *x)
{
    const bool has_params = c->flags & (REL_BIAS | REL_BIAS_BOTH | SINKS);
    const size_t nbytes[] = { cpu->attn_bwd_nbytes(&x->desc[0], c->grad, has_params),
                              gpu->attn_bwd_nbytes(&x->desc[1], c->grad, has_params) };
    const size_t most = nbytes[0] > nbytes[1] ? nbytes[0] : nbytes[1];
    void *const garbage = memset(meg_new(most + 1), 0xff, most);
    const struct twin_bytes workspace = twin_bytes(garbage, most);

    free(garbage);
    twin_upload(&x->o);
    twin_upload(&x->lse);
    x->d_o = twin_random(c->o == MEG_DTYPE_F32 ? c->q : c->o, c->s_q * c->b, c->a * c->d_v, c->pad);
    x->dq = grad_new(c, c->grad, c->s_q * c->b, c->a * c->d, c->pad);
    x->dk = grad_new(c, c->grad, c->s_k * c->b, c->g * c->d, c->pad);
    x->dv = grad_new(c, c->grad, c->s_k * c->b, c->g * c->d_v, c->pad);
    if (x->rel_bias.host.p)
        x->d_rel_bias = grad_new(c, c->grad, BUCKETS, c->a, 1);
    if (x->sink.host.p)
        x->d_sink = grad_new(c, c->grad, 1, c->a, 0);
    for (int i = 0; i < 2; i++) {
        const int64_t r = c->a / c->g;
        const struct meg_attn_bwd_args args = { .desc = &x->desc[i],
                                                .drop = c->flags & DROPOUT ? &x->drop[i] : NULL,
                                                .dq = heads_of(OF(dq), c->b, r, c->d),
                                                .dk = key_heads(c, OF(dk), c->d),
                                                .dv = key_heads(c, OF(dv), c->d_v),
                                                .accumulate = !!(c->flags & ACCUMULATE),
                                                .accumulate_params = !!(c->flags & ACCUMULATE),
                                                .d_rel_bias = OF(d_rel_bias),
                                                .d_sink = array_of(OF(d_sink)),
                                                .d_o = heads_of(OF(d_o), c->b, r, c->d_v),
                                                .o = heads_of(OF(o), c->b, r, c->d_v),
                                                .lse = OF(lse).p,
                                                .delta = c->flags & GIVEN_DELTA ? OF(delta).p : NULL,
                                                .q = heads_of(OF(q), c->b, r, c->d),
                                                .k = key_heads(c, OF(k), c->d),
                                                .v = key_heads(c, OF(v), c->d_v),
                                                .workspace = { i ? workspace.dev : workspace.host, nbytes[i] } };

        if (c->flags & GIVEN_DELTA)
            MEG_CALL((i ? gpu : cpu), i ? stream : NULL, attn_delta, .desc = &x->desc[i], .delta = OF(delta).p,
                     .d_o = args.d_o, .o = args.o);
        (i ? gpu : cpu)->attn_bwd(i ? stream : NULL, &args);
    }
    if (c->flags & GIVEN_DELTA)
        expect_near(&x->delta, 1e-5, "delta");
    expect_near(&x->dq, tolerance(c, c->grad), "dq");
    expect_near(&x->dk, tolerance(c, c->grad), "dk");
    expect_near(&x->dv, tolerance(c, c->grad), "dv");
    if (x->d_rel_bias.host.p)
        expect_near(&x->d_rel_bias, tolerance(c, c->grad), "d_rel_bias");
    if (x->d_sink.host.p)
        expect_near(&x->d_sink, fmax(tolerance(c, c->grad), 1e-5 * condition_of_d_sink(c, x)), "d_sink");
}
#undef OF

static void compare(struct conf c)
{
    struct operands x;

    c = complete(c);
    create(&x, &c);
    compare_forward(&c, &x);
    if (!(c.flags & FORWARD))
        compare_backward(&c, &x);
}

/* ---- cases ---- */

static const enum meg_dtype types[] = { MEG_DTYPE_F32, MEG_DTYPE_BF16, MEG_DTYPE_F16 };

static void compare_types(struct conf c)
{
    for (int i = 0; i < 3; i++)
        compare(of_type(c, types[i]));
}

static void causal(void)
{
    compare_types((struct conf){ .s_q = 150, .left = -1 });
}

static void bidirectional(void)
{
    compare_types((struct conf){ .s_q = 70, .left = -1, .right = -1, .pad = 8 });
}

static void grouped(void)
{
    compare_types((struct conf){ .s_q = 66, .b = 1, .a = 6, .g = 2, .left = -1, .flags = ACCUMULATE });
}

/* Head sizes equal to, below and above those to which the kernels pad (64, 96, 128, 256); some rows are not aligned. */
static void head_sizes(void)
{
    static const int64_t d[][2] = { { 64, 64 },   { 32, 32 },   { 80, 80 },  { 96, 96 }, { 128, 128 },
                                    { 256, 256 }, { 192, 128 }, { 40, 104 }, { 17, 5 } };

    for (size_t i = 0; i < sizeof d / sizeof *d; i++)
        compare(of_type(
            (struct conf){ .s_q = 33, .s_k = 65, .q0 = 32, .b = 1, .a = 1, .d = d[i][0], .d_v = d[i][1], .left = -1 },
            i % 2 ? MEG_DTYPE_F16 : MEG_DTYPE_BF16));
    compare(of_type((struct conf){ .s_q = 9, .b = 1, .d = 520, .d_v = 8, .left = -1 }, MEG_DTYPE_F32));
    compare(of_type((struct conf){ .s_q = 9, .b = 1, .d = 3, .d_v = 300, .left = -1, .pad = 1 }, MEG_DTYPE_F32));
}

/*
 * Use the tiles for GPUs on which a block has at most 99 KiB of shared memory, too little for the largest tiles.  Such
 * GPUs have no wgmma, and a GPU with wgmma has no kernels without it for heads of at most 128 columns.
 */
static void small_shared(void)
{
    static const int64_t d[] = { 64, 96, 128, 256 };
    const struct meg_cuda_device device = meg_cuda_device;

    meg_cuda_device.cc = 89;
    for (size_t i = 0; i < sizeof d / sizeof *d; i++)
        for (int drops = 0; drops < 2 && (d[i] > 128 || !device.has_wgmma); drops++)
            compare(of_type(
                (struct conf){
                    .s_q = 33, .b = 1, .a = 1, .d = d[i], .d_v = d[i], .left = -1, .flags = drops ? DROPOUT : 0 },
                MEG_DTYPE_BF16));
    compare(of_type((struct conf){ .s_q = 40, .b = 1, .a = 1, .d = 500, .d_v = 500, .left = -1 }, MEG_DTYPE_F32));
    meg_cuda_device = device;
}

/* Strides or pointers that are not multiples of 16 bytes. */
static void unaligned(void)
{
    compare_types((struct conf){ .s_q = 20, .left = -1, .pad = 3 });
}

static void windows(void)
{
    compare_types((struct conf){ .s_q = 140, .b = 1, .left = 20 });
    compare_types((struct conf){ .s_q = 90, .b = 1, .left = 10, .right = 5 });
    compare_types((struct conf){ .s_q = 70, .b = 1, .left = -1, .right = 30 });
    /* queries attend to only the last key or all but the first key of a tile, or see one key of the next tile */
    compare_types((struct conf){ .s_q = 130, .b = 1, .a = 1, .left = 1, .right = 1 });
    compare_types((struct conf){ .s_q = 20, .s_k = 63, .b = 1, .a = 1, .left = -1, .right = -1 });
    compare_types((struct conf){ .s_q = 20, .s_k = 100, .q0 = 62, .b = 1, .a = 1, .left = -1, .flags = EQUAL });
    for (int64_t d = 64; d <= 96; d += 32)
        for (int64_t left = 62; left <= 126; left += 32)
            compare_types(
                (struct conf){ .s_q = 64, .s_k = 128, .q0 = 64, .b = 1, .a = 1, .d = d, .left = left, .flags = EQUAL });
}

static void documents(void)
{
    compare_types((struct conf){ .s_q = 140, .a = 1, .left = -1, .flags = DOCS });
}

/* A sequence without keys has o = 0. */
static void lengths(void)
{
    compare_types((struct conf){ .s_q = 70, .b = 3, .a = 1, .left = -1, .right = -1, .flags = LENGTHS });
    compare_types((struct conf){ .s_q = 70, .b = 3, .a = 1, .left = -1, .flags = LENGTHS | SINKS });
}

/* Chunks of context parallelism: keys precede, overlap or follow queries; some positions are not multiples of 8. */
static void chunks(void)
{
    compare_types(
        (struct conf){ .s_q = 40, .s_k = 70, .q0 = 133, .k0 = 63, .b = 1, .left = -1, .flags = ACCUMULATE | DROPOUT });
    compare_types((struct conf){ .s_q = 40, .s_k = 40, .q0 = 50, .k0 = 60, .b = 1, .left = -1, .flags = DROPOUT });
    compare_types((struct conf){ .s_q = 40, .s_k = 40, .q0 = 0, .k0 = 40, .b = 1, .left = -1, .flags = GIVEN_DELTA });
    /* with the keys of position 0 to 6, the tiles and words of dropout bits have one key more than a multiple of 64 */
    compare_types((struct conf){
        .s_q = 20, .s_k = 58, .q0 = 7, .k0 = 7, .b = 1, .a = 1, .left = -1, .right = -1, .flags = DROPOUT });
}

static void softcap(void)
{
    compare_types((struct conf){ .s_q = 70, .b = 1, .left = -1, .softcap = 1.5f });
}

static void alibi(void)
{
    compare_types((struct conf){ .s_q = 70, .b = 1, .left = -1, .right = -1, .flags = ALIBI });
    compare_types((struct conf){ .s_q = 40, .s_k = 70, .q0 = 133, .k0 = 63, .b = 1, .left = -1, .flags = ALIBI });
}

static void rel_bias(void)
{
    compare_types((struct conf){ .s_q = 70, .left = -1, .flags = REL_BIAS });
    compare_types((struct conf){ .s_q = 40,
                                 .s_k = 50,
                                 .b = 1,
                                 .a = 4,
                                 .g = 2,
                                 .left = -1,
                                 .right = -1,
                                 .flags = REL_BIAS_BOTH | ACCUMULATE | ALIBI });
    compare_types((struct conf){ .s_q = 40, .b = 1, .left = -1, .softcap = 3.0f, .flags = REL_BIAS });
}

static void sinks(void)
{
    compare_types((struct conf){ .s_q = 70, .left = 20, .flags = SINKS });
    compare_types((struct conf){ .s_q = 40, .a = 4, .g = 2, .left = -1, .flags = SINKS | ACCUMULATE });
}

static void dropout(void)
{
    compare_types((struct conf){ .s_q = 130, .a = 1, .left = -1, .flags = DROPOUT });
    compare_types((struct conf){
        .s_q = 30, .s_k = 50, .b = 1, .a = 4, .g = 2, .left = -1, .right = -1, .flags = DROPOUT | SINKS });
    for (int i = 0; i < 8; i++) /* each kernel for tensor cores, two tiles of queries, several words of mask per row */
        compare(of_type((struct conf){ .s_q = 130,
                                       .q0 = 3,
                                       .k0 = 3,
                                       .b = 1,
                                       .a = 2,
                                       .g = 1,
                                       .d = i / 2 == 0   ? 64
                                            : i / 2 == 1 ? 96
                                            : i / 2 == 2 ? 128
                                                         : 256,
                                       .left = 90,
                                       .flags = DROPOUT | DOCS | (i % 2 ? ALIBI : 0) },
                        types[1 + i % 2]));
}

/* A weight is kept if its number is equal to the threshold: p is the number of a weight of query 0 and keys 0 to 7. */
static void dropout_threshold(void)
{
    const struct conf c =
        complete(of_type((struct conf){ .s_q = 16, .b = 1, .a = 1, .left = -1, .right = -1 }, types[0]));
    uint32_t word[4];

    for (int n = 0; n < 8; n++) {
        struct conf drops = c;
        struct operands x;
        const struct meg_drop *d = &x.drop[0];

        drops.flags = DROPOUT;
        create(&x, &drops);
        meg_philox_dropout(word, d->seed, 16 * (uint32_t)d->layer + (uint32_t)d->site,
                           (uint32_t)(d->unit0 * ((x.desc[0].s + 7) / 8)), 0, d->sample[0]);
        x.drop[0].p = x.drop[1].p = (float)(word[n / 2] >> n % 2 * 16 & 0xffff) / 65536;
        compare_forward(&drops, &x);
        compare_backward(&drops, &x);
    }
}

/* The dropout mask is computed for some of the heads at a time. */
static void dropout_chunks(void)
{
    /* in heads; they allow one group (although it exceeds the limit), two groups, one sequence, two sequences */
    static const int limit[] = { 1, 4, 7, 13 };
    const int64_t nbytes = meg_cuda_kept_nbytes, head = 128 * 2 * 8; /* bytes of a head's mask: 128 rows of two words */
    const struct conf c = { .s_q = 70, .b = 3, .a = 6, .g = 3, .left = -1, .flags = DROPOUT };

    for (int n = 0; n < 4; n++) {
        meg_cuda_kept_nbytes = limit[n] * head;
        compare(of_type(c, types[1 + n % 2]));
    }
    meg_cuda_kept_nbytes = nbytes;
}

static void f32_outputs(void)
{
    for (int i = 1; i < 3; i++) {
        struct conf c = of_type((struct conf){ .s_q = 50, .left = -1 }, types[i]);

        c.o = c.grad = MEG_DTYPE_F32;
        compare(c);
        c.o = types[i];
        c.flags = ACCUMULATE;
        compare(c);
    }
}

static void mixed_types(void)
{
    for (int i = 0; i < 3; i++) {
        struct conf c = of_type((struct conf){ .s_q = 20, .left = -1 }, types[i]);

        c.k = types[(i + 1) % 3];
        c.v = types[(i + 2) % 3];
        compare(c);
    }
}

/* Few queries, whose positions can differ between sequences (STARTS), and many keys, which are split over blocks. */
static void decoding(void)
{
    compare_types((struct conf){ .s_q = 1, .s_k = 700, .q0 = 699, .a = 4, .g = 2, .left = -1, .flags = FORWARD });
    compare_types((struct conf){
        .s_q = 1, .s_k = 530, .b = 3, .a = 4, .g = 2, .left = -1, .flags = FORWARD | LENGTHS | STARTS | SINKS });
    compare_types((struct conf){
        .s_q = 3, .s_k = 530, .b = 3, .a = 8, .g = 1, .d = 32, .left = 100, .flags = FORWARD | LENGTHS | STARTS });
    /* The tiles of the first split begin before key 0, and the number of keys is a multiple of the size of a split. */
    for (int64_t n = 1; n <= 2; n++)
        compare_types(
            (struct conf){ .s_q = n, .s_k = 256 * n, .q0 = 600, .k0 = 7, .b = 1, .left = -1, .flags = FORWARD });
}

static void paged(void)
{
    for (int separate = 0; separate <= SEPARATE; separate += SEPARATE)
        compare_types((struct conf){ .s_q = 1,
                                     .s_k = 530,
                                     .b = 3,
                                     .a = 4,
                                     .g = 2,
                                     .left = -1,
                                     .flags = FORWARD | LENGTHS | STARTS | PAGED | separate });
    compare_types(
        (struct conf){ .s_q = 40, .s_k = 90, .b = 3, .left = -1, .flags = FORWARD | LENGTHS | STARTS | PAGED });
}

/* A sequence has the same output, bit for bit, alone and with longer and shorter sequences in separate caches. */
static void decoding_alone(void)
{
    for (int t = 0; t < 3; t++) {
        const struct conf c = complete(of_type((struct conf){ .s_q = 1,
                                                              .s_k = 1100,
                                                              .b = 3,
                                                              .a = 4,
                                                              .g = 2,
                                                              .left = -1,
                                                              .flags = FORWARD | LENGTHS | STARTS | PAGED | SEPARATE },
                                               types[t]));
        const int64_t r = c.a / c.g;
        struct operands x;
        struct twin alone;

        create(&x, &c);
        alone = twin_output(x.o.dev.dtype, x.o.dev.rows, x.o.dev.cols, 0);
        MEG_CALL(gpu, stream, attn_fwd, .desc = &x.desc[1], .o = heads_of(x.o.dev, c.b, r, c.d), .lse = x.lse.dev.p,
                 .q = heads_of(x.q.dev, c.b, r, c.d), .k = cached_heads(&c, x.k.dev, c.d),
                 .v = cached_heads(&c, x.v.dev, c.d));
        twin_download(&x.o);
        memcpy(alone.host.p, x.o.host.p, (size_t)(x.o.host.rows * x.o.host.cols) * meg_dtype_size(x.o.host.dtype));
        for (int64_t i = 0; i < c.b; i++) {
            const int64_t n = key_length_at(&c, i), row = n > 0 ? block_row(&c, i) : 0;
            struct meg_attn_desc desc = x.desc[1];

            desc.b = 1;
            desc.s_k = n;
            desc.q0 = query_start_at(&c, i);
            desc.query_start = desc.key_length = NULL;
            desc.block_offset = NULL;
            MEG_CALL(gpu, stream, attn_fwd, .desc = &desc, .o = heads_of(meg_mat_rows(alone.dev, i, 1), 1, r, c.d),
                     .lse = x.lse.dev.p, .q = heads_of(meg_mat_rows(x.q.dev, i, 1), 1, r, c.d),
                     .k = key_heads(&c, meg_mat_rows(x.k.dev, row, n), c.d),
                     .v = key_heads(&c, meg_mat_rows(x.v.dev, row, n), c.d));
        }
        expect_equal(&alone, "o");
    }
}

static void empty(void)
{
    compare_types((struct conf){ .s_q = 0, .s_k = 5, .left = -1, .right = -1, .q0 = 5 });
}

/*
 * Weights and the output are not rounded to the type of q more often than necessary: with values of 1, errors of
 * weights that are rounded to nearest cancel, so that outputs in f32 are more accurate than those of the other cases.
 */
static void accurate(void)
{
    for (int t = 1; t < 3; t++) {
        struct conf c = of_type(
            (struct conf){ .s_q = 64, .s_k = 512, .b = 1, .left = -1, .right = -1, .flags = FORWARD }, types[t]);
        struct operands x;

        c.o = MEG_DTYPE_F32;
        c = complete(c);
        create(&x, &c);
        for (int64_t r = 0; r < c.s_k; r++)
            for (int64_t col = 0; col < c.g * c.d_v; col++)
                twin_set(&x.v, r, col, 1);
        twin_upload(&x.v);
        compare_forward(&c, &x);
        expect_near(&x.o, 5e-4, "mean of ones");
    }
}

/* Gradients in f32 that are sums over eight tiles or more have only the errors of rounded weights, about 1.2e-3. */
static void accurate_bwd(void)
{
    struct conf c = of_type((struct conf){ .s_q = 512, .b = 1, .a = 1, .left = -1, .right = -1 }, MEG_DTYPE_BF16);
    struct operands x;

    c.o = c.grad = MEG_DTYPE_F32;
    c = complete(c);
    create(&x, &c);
    compare_forward(&c, &x);
    compare_backward(&c, &x);
    expect_near(&x.dq, 2e-3, "dq");
    expect_near(&x.dk, 2e-3, "dk");
    expect_near(&x.dv, 2e-3, "dv");
}

/* ---- merge and delta ---- */

/* Merge partial outputs with aligned and unaligned rows; in some rows, one or both parts have no keys. */
static void merge(void)
{
    static const struct {
        int64_t d_v, pad;
    } shapes[] = { { 64, 0 }, { 128, 8 }, { 5, 2 }, { 72, 1 } };

    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) {
        const struct meg_attn_desc desc = {
            .s_q = 19, .s_k = 1, .b = 3, .a = 4, .g = 2, .d = 1, .d_v = shapes[n].d_v, .s = 19
        };
        struct twin o = twin_random(MEG_DTYPE_F32, 19 * 3, 4 * desc.d_v, shapes[n].pad);
        struct twin part = twin_random(MEG_DTYPE_F32, 19 * 3, 4 * desc.d_v, shapes[n].pad);
        struct twin lse = twin_random(MEG_DTYPE_F32, 12, 19, 0), lse_part = twin_random(MEG_DTYPE_F32, 12, 19, 0);

        for (int64_t r = 0; r < 12; r++) {
            twin_set(&lse, r, 3, -INFINITY);
            twin_set(&lse_part, r, 5, -INFINITY);
            twin_set(&lse, r, 7, -INFINITY);
            twin_set(&lse_part, r, 7, -INFINITY);
        }
        twin_upload(&lse);
        twin_upload(&lse_part);
        MEG_CALL(cpu, NULL, attn_merge, .desc = &desc, .o = heads_of(o.host, 3, 2, desc.d_v), .lse = lse.host.p,
                 .o_part = heads_of(part.host, 3, 2, desc.d_v), .lse_part = lse_part.host.p);
        MEG_CALL(gpu, stream, attn_merge, .desc = &desc, .o = heads_of(o.dev, 3, 2, desc.d_v), .lse = lse.dev.p,
                 .o_part = heads_of(part.dev, 3, 2, desc.d_v), .lse_part = lse_part.dev.p);
        expect_near(&o, 1e-6, "o");
        expect_near(&lse, 1e-6, "lse");
    }
}

static void delta(void)
{
    static const struct {
        int64_t d_v, pad;
    } shapes[] = { { 64, 0 }, { 128, 8 }, { 5, 2 }, { 200, 0 } };

    for (int t = 0; t < 9; t++) {
        const int64_t d_v = shapes[t % 4].d_v, pad = shapes[t % 4].pad;
        const struct meg_attn_desc desc = { .s_q = 19, .s_k = 1, .b = 3, .a = 4, .g = 2, .d = 1, .d_v = d_v, .s = 19 };
        const struct twin o = twin_random(types[t / 3], 19 * 3, 4 * d_v, pad);
        const struct twin d_o = twin_random(types[t % 3], 19 * 3, 4 * d_v, pad);
        const struct twin sums = twin_output(MEG_DTYPE_F32, 12, 19, 0);

        MEG_CALL(cpu, NULL, attn_delta, .desc = &desc, .delta = sums.host.p, .d_o = heads_of(d_o.host, 3, 2, d_v),
                 .o = heads_of(o.host, 3, 2, d_v));
        MEG_CALL(gpu, stream, attn_delta, .desc = &desc, .delta = sums.dev.p, .d_o = heads_of(d_o.dev, 3, 2, d_v),
                 .o = heads_of(o.dev, 3, 2, d_v));
        expect_near(&sums, 1e-5, "delta");
    }
}

const struct check_case cases_attention[] = {
    { "attn: causal", causal },
    { "attn: all keys visible, padded rows", bidirectional },
    { "attn: grouped queries, accumulated gradients", grouped },
    { "attn: head sizes", head_sizes },
    { "attn: small shared memory", small_shared },
    { "attn: rows that are not aligned", unaligned },
    { "attn: sliding windows", windows },
    { "attn: packed documents", documents },
    { "attn: key lengths, and sequences without keys", lengths },
    { "attn: chunks of queries and keys", chunks },
    { "attn: softcap", softcap },
    { "attn: ALiBi", alibi },
    { "attn: relative attention bias and its gradient", rel_bias },
    { "attn: sinks and their gradients", sinks },
    { "attn: dropout", dropout },
    { "attn: dropout, numbers equal to the threshold", dropout_threshold },
    { "attn: dropout, chunks of heads", dropout_chunks },
    { "attn: f32 outputs and gradients of bf16 and f16", f32_outputs },
    { "attn: q, k and v of different types", mixed_types },
    { "attn_fwd: decoding", decoding },
    { "attn_fwd: paged KV cache", paged },
    { "attn_fwd: decoding does not depend on other sequences", decoding_alone },
    { "attn: accuracy of the forward pass", accurate },
    { "attn: accuracy of the backward pass", accurate_bwd },
    { "attn: no queries", empty },
    { "attn_merge", merge },
    { "attn_delta", delta },
    { 0 },
};
