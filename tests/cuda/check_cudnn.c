/* check_cudnn.c - cases of lib/cuda/cudnn/attention.c: attention by cuDNN, or by its double. */
#include "check.h"
#include <stdlib.h>
#include "cuda/cudnn/attention.h"
#ifdef MEG_HAVE_CUDNN
#    include "cuda/cudnn/lib.h"
#    include "cuda/internal.h"

/* The operands of a case. */
struct operands {
    struct meg_attn_desc desc;
    struct twin qkv, o, lse, d_o, dqkv;
    struct twin_bytes workspace;
};

/* Return operands for b sequences of s tokens, in which each group has its queries, keys and values side by side. */
static struct operands packed(enum meg_dtype t, int64_t s, int64_t b, int64_t a, int64_t g, int64_t d, int64_t pad)
{
    struct operands x = { .desc = { .s_q = s, .s_k = s, .s = s, .b = b, .a = a, .g = g, .d = d, .d_v = d } };

    x.desc.scale = 1 / sqrtf((float)d);
    x.desc.window_left = -1;
    x.qkv = twin_random(t, s * b, (a + 2 * g) * d, pad);
    x.o = twin_output(t, s * b, a * d, pad);
    x.lse = twin_output(MEG_DTYPE_F32, b * a, s, 0);
    x.d_o = twin_random(t, s * b, a * d, pad);
    x.dqkv = twin_output(t, s * b, (a + 2 * g) * d, pad);
    return x;
}

/* Return a view of the heads that begin at column `col` of each group; a group has `cols` columns. */
static struct meg_heads view(const struct operands *x, struct meg_mat m, int64_t cols, int64_t col)
{
    return (struct meg_heads){
        (char *)m.p + col * (m.dtype == MEG_DTYPE_F32 ? 4 : 2), m.dtype, x->desc.b * m.ld, m.ld, cols, x->desc.d
    };
}

static struct meg_heads output(const struct operands *x, struct meg_mat o)
{
    return view(x, o, x->desc.a / x->desc.g * x->desc.d, 0);
}

/* Return the queries (0), keys (1) or values (2) of packed qkv. */
static struct meg_heads part(const struct operands *x, struct meg_mat qkv, int i)
{
    const int64_t r = x->desc.a / x->desc.g, d = x->desc.d;

    return view(x, qkv, (r + 2) * d, i == 0 ? 0 : (r + i - 1) * d);
}

enum { SHIFT_NBYTES = 64 }; /* offset of the workspace, so that its address is a multiple of 64 only */

static struct meg_attn_bwd_args bwd_args(const struct operands *x, bool is_host)
{
    const struct meg_mat qkv = is_host ? x->qkv.host : x->qkv.dev, dqkv = is_host ? x->dqkv.host : x->dqkv.dev;

    return (struct meg_attn_bwd_args){
        .desc = &x->desc,
        .dq = part(x, dqkv, 0),
        .dk = part(x, dqkv, 1),
        .dv = part(x, dqkv, 2),
        .d_o = output(x, is_host ? x->d_o.host : x->d_o.dev),
        .o = output(x, is_host ? x->o.host : x->o.dev),
        .lse = is_host ? x->lse.host.p : x->lse.dev.p,
        .q = part(x, qkv, 0),
        .k = part(x, qkv, 1),
        .v = part(x, qkv, 2),
        .workspace = { (char *)(is_host ? x->workspace.host : x->workspace.dev) + SHIFT_NBYTES,
                       x->workspace.nbytes - SHIFT_NBYTES },
    };
}

/* Allocate a workspace that is large enough for both backends. */
static struct twin_bytes workspace(const struct operands *x)
{
    const size_t host = cpu->attn_bwd_nbytes(&x->desc, x->qkv.host.dtype, false);
    const size_t dev = meg_cudnn_attn_bwd_nbytes(&x->desc, x->qkv.host.dtype), n = host > dev ? host : dev;
    char *zeros = calloc(1, n + SHIFT_NBYTES);
    const struct twin_bytes bytes = twin_bytes(zeros, n + SHIFT_NBYTES);

    free(zeros);
    return bytes;
}

static bool forward(const struct operands *x, const struct meg_drop *drop)
{
    return meg_cudnn_attn_fwd(stream, &(struct meg_attn_fwd_args){ .desc = &x->desc,
                                                                   .o = output(x, x->o.dev),
                                                                   .lse = x->lse.dev.p,
                                                                   .q = part(x, x->qkv.dev, 0),
                                                                   .k = part(x, x->qkv.dev, 1),
                                                                   .v = part(x, x->qkv.dev, 2),
                                                                   .drop = drop });
}

/* Compare the forward and backward passes with those of the CPU. */
static void compare(struct operands *x)
{
    const double tol = x->qkv.host.dtype == MEG_DTYPE_F16 ? 2e-3 : 1e-2;
    struct meg_attn_bwd_args host, dev;

    x->workspace = workspace(x);
    host = bwd_args(x, true);
    dev = bwd_args(x, false);
    MEG_CALL(cpu, NULL, attn_fwd, .desc = &x->desc, .o = output(x, x->o.host), .lse = x->lse.host.p,
             .q = part(x, x->qkv.host, 0), .k = part(x, x->qkv.host, 1), .v = part(x, x->qkv.host, 2));
    cpu->attn_bwd(NULL, &host);
    if (!forward(x, NULL) || !meg_cudnn_attn_bwd(stream, &dev)) {
        check_fail("cuDNN does not support the case");
        return;
    }
    expect_near(&x->o, tol, "o");
    expect_near(&x->lse, 1e-5, "lse");
    expect_near(&x->dqkv, tol, "dqkv");
}

static void causal_mha(void)
{
    struct operands x = packed(MEG_DTYPE_BF16, 64, 2, 2, 2, 16, 0);

    compare(&x);
}

static void causal_gqa(void)
{
    struct operands x = packed(MEG_DTYPE_F16, 64, 2, 4, 2, 16, 0);

    compare(&x);
}

/*
 * Rows are padded, so the distance from the last group of a sequence to the first group of the next one differs from
 * that of two groups of one sequence.
 */
static void padded_rows(void)
{
    struct operands x = packed(MEG_DTYPE_BF16, 64, 2, 2, 2, 8, 8);

    compare(&x);
}

static void one_padded_sequence(void)
{
    struct operands x = packed(MEG_DTYPE_BF16, 64, 1, 4, 2, 8, 8);

    compare(&x);
}

static void full(void)
{
    struct operands x = packed(MEG_DTYPE_F16, 64, 1, 2, 1, 24, 0);

    x.desc.window_right = -1;
    compare(&x);
}

static void window(void)
{
    struct operands x = packed(MEG_DTYPE_BF16, 128, 1, 2, 2, 8, 0);

    x.desc.window_left = 5;
    compare(&x);
}

/* A window that contains all keys, which are before the queries, has no effect. */
static void chunk_of_earlier_keys(void)
{
    struct operands x = packed(MEG_DTYPE_BF16, 64, 1, 2, 2, 8, 0);

    x.desc.q0 = 63;
    x.desc.s = 127;
    x.desc.window_left = 126;
    compare(&x);
}

/* In deterministic mode, the backward pass computes one or two groups of a sequence at a time. */
static void deterministic(void)
{
    const int64_t chunk = meg_cudnn_chunk_nbytes;

    meg_cuda_device.is_deterministic = true;
    for (int n = 1; n <= 2; n++) {
        struct operands gqa = packed(MEG_DTYPE_BF16, 64, 2, 4, 2, 8, 0);
        struct operands mha = packed(MEG_DTYPE_BF16, 64, 2, 2, 2, 16, 0);

        meg_cudnn_chunk_nbytes = n * (2 * 2 * 64 * 64 + 2 * 2 * 64 * 16);
        compare(&gqa);
        meg_cudnn_chunk_nbytes = n * 2 * 64 * 64;
        compare(&mha);
    }
    meg_cudnn_chunk_nbytes = chunk;
    meg_cuda_device.is_deterministic = false;
}

static void expect_unsupported(const struct operands *x, const struct meg_drop *drop, const char *what)
{
    if (forward(x, drop))
        check_fail("the case is not refused: %s", what);
}

static void unsupported(void)
{
    const struct operands x = packed(MEG_DTYPE_BF16, 64, 2, 4, 2, 8, 0);
    const struct operands short_rows = packed(MEG_DTYPE_BF16, 64, 2, 4, 2, 4, 0);
    const struct operands padded = packed(MEG_DTYPE_BF16, 64, 2, 4, 2, 8, 8);
    const struct operands f32 = packed(MEG_DTYPE_F32, 64, 2, 4, 2, 8, 0);
    const struct operands odd = packed(MEG_DTYPE_BF16, 63, 2, 4, 2, 8, 0);
    const struct meg_drop drop = { .p = 0.1f };
    struct operands y = x;

    expect_unsupported(&x, &drop, "dropout");
    expect_unsupported(&short_rows, NULL, "d % 8");
    expect_unsupported(&padded, NULL, "strides of groups that are not constant");
    expect_unsupported(&f32, NULL, "f32");
    expect_unsupported(&odd, NULL, "length");
    y.desc.q0 = 1;
    expect_unsupported(&y, NULL, "a shifted diagonal");
    y = x;
    y.desc.softcap = 30.0f;
    expect_unsupported(&y, NULL, "softcap");
    y = x;
    y.desc.window_right = 3;
    expect_unsupported(&y, NULL, "a window to the right");
    y = x;
    y.desc.window_left = 3;
    y.desc.window_right = -1;
    expect_unsupported(&y, NULL, "a window without causal mask");
    y = x;
    y.qkv.dev.p = (char *)y.qkv.dev.p + 2;
    expect_unsupported(&y, NULL, "alignment");
}

static void unsupported_backward(void)
{
    struct operands x = packed(MEG_DTYPE_BF16, 64, 2, 4, 2, 8, 0);
    struct meg_attn_bwd_args args;

    x.workspace = workspace(&x);
    args = bwd_args(&x, false);
    args.accumulate = 1;
    if (meg_cudnn_attn_bwd(stream, &args))
        check_fail("the case is not refused: accumulate");
    args = bwd_args(&x, false);
    args.delta = args.lse;
    if (meg_cudnn_attn_bwd(stream, &args))
        check_fail("the case is not refused: delta");
    args = bwd_args(&x, false);
    args.dq.dtype = args.dk.dtype = args.dv.dtype = MEG_DTYPE_F32;
    if (meg_cudnn_attn_bwd(stream, &args))
        check_fail("the case is not refused: f32 gradients");
}
#endif

const struct check_case cases_cudnn[] = {
#ifdef MEG_HAVE_CUDNN
    { "attn_cudnn: causal", causal_mha },
    { "attn_cudnn: causal, grouped queries", causal_gqa },
    { "attn_cudnn: two sequences with padded rows", padded_rows },
    { "attn_cudnn: one sequence with padded rows, grouped queries", one_padded_sequence },
    { "attn_cudnn: no mask, grouped queries", full },
    { "attn_cudnn: sliding window", window },
    { "attn_cudnn: a chunk of keys before the queries", chunk_of_earlier_keys },
    { "attn_cudnn: deterministic, in chunks", deterministic },
    { "attn_cudnn: other cases are refused", unsupported },
    { "attn_cudnn: other backward passes are refused", unsupported_backward },
#endif
    { NULL, NULL }
};
