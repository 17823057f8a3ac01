/*
 * core.c - what self-attention and cross-attention have in common: views of heads, descriptors, attention over a
 * KV cache, and sums in f32.
 */
#include "nn/attn/internal.h"

struct meg_heads nn_heads(struct meg_mat m, int64_t b, int64_t heads_per_group, int64_t d, int64_t part)
{
    struct meg_heads h = { 0 };

    h.p = (char *)m.p + (size_t)(part * d) * meg_dtype_size(m.dtype);
    h.dtype = m.dtype;
    h.ld_s = b * m.ld;
    h.ld_b = m.ld;
    h.ld_g = heads_per_group * d;
    h.ld_h = d;
    return h;
}

struct nn_qkv nn_qkv_heads(struct meg_mat qkv, int64_t b, int64_t r, int64_t d)
{
    const struct nn_qkv h = { nn_heads(qkv, b, r + 2, d, 0), nn_heads(qkv, b, r + 2, d, r),
                              nn_heads(qkv, b, r + 2, d, r + 1) };

    return h;
}

struct meg_heads nn_output_heads(struct meg_mat o, int64_t b, int64_t r, int64_t d)
{
    return nn_heads(o, b, r, d, 0);
}

struct meg_mat nn_cached_kv(const struct meg_ctx *c, struct meg_kv_cache cache, int layer, int64_t len, int64_t cols)
{
    return meg_mat(cache.p + (size_t)layer * cache.layer_bytes, c->dtype, len, cols);
}

void nn_core_fwd(struct meg_ctx *c, const struct nn_core *x)
{
    MEG_CALL(c->op, c->stream, attn_fwd, .desc = &x->desc, .o = x->o, .lse = x->lse, .q = x->q, .k = x->k, .v = x->v,
             .drop = &x->drop);
}

void nn_core_bwd(struct meg_ctx *c, const struct nn_core *d, const struct nn_core *x, struct meg_workspace workspace,
                 struct meg_mat d_rel_bias)
{
    const struct meg_attn_bwd_args args = { .desc = &x->desc,
                                            .drop = &x->drop,
                                            .dq = d->q,
                                            .dk = d->k,
                                            .dv = d->v,
                                            .d_o = d->o,
                                            .o = x->o,
                                            .lse = x->lse,
                                            .q = x->q,
                                            .k = x->k,
                                            .v = x->v,
                                            .workspace = workspace,
                                            .d_rel_bias = d_rel_bias,
                                            .d_sink = d->d_sink,
                                            .accumulate_params = true };

    c->op->attn_bwd(c->stream, &args);
}

void nn_core_suballoc(const struct meg_block_arena *a, struct meg_mat *o, float **lse, int64_t heads, int64_t d)
{
    meg_block_mat(a, o, a->n, heads * d);
    meg_block_f32(a, lse, a->n * heads);
}

void nn_cached_attn_fwd(struct meg_ctx *c, const struct nn_core *x, struct meg_mat kv, const int64_t *offset)
{
    struct nn_core y = *x;

    y.desc.s_q = c->call.kv.s;
    y.desc.b = c->call.kv.b;
    y.desc.s_k = y.desc.s = y.desc.block_size = kv.rows;
    y.desc.block_offset = offset;
    y.desc.blocks_per_seq = 1;
    y.drop = (struct meg_drop){ 0 };
    y.k = nn_heads(kv, 1, 2, x->desc.d, 0);
    y.v = nn_heads(kv, 1, 2, x->desc.d, 1);
    nn_core_fwd(c, &y);
}

void nn_set_scores(struct meg_attn_desc *desc, const struct meg_attn *l, int64_t a0)
{
    desc->scale = l->scale;
    desc->softcap = l->softcap;
    desc->alibi_slope = l->alibi_slope ? l->alibi_slope + a0 : NULL;
}

/* Return elements a0, a0 + 1, ... of an array at p, which may be NULL. */
static struct meg_array array_from(void *p, enum meg_dtype t, int64_t a0)
{
    return (struct meg_array){ p ? meg_element(p, a0, t) : NULL, t };
}

struct meg_array nn_sink(const struct meg_ctx *c, const struct meg_attn *l, int64_t a0)
{
    return array_from(l->softmax_type == MEG_SOFTMAX_OFF_BY_ONE ? l->workspace.zero_sink : l->sink.w, c->dtype, a0);
}

struct meg_array nn_sink_grad(const struct meg_ctx *c, const struct meg_attn *l, int64_t a0)
{
    return array_from(l->sink.dw, c->grad_dtype, a0);
}

void nn_begin_sinks(struct meg_ctx *c, const struct meg_attn *l, bool is_backward)
{
    if (l->softmax_type == MEG_SOFTMAX_OFF_BY_ONE)
        c->op->zero(c->stream, l->workspace.zero_sink, (size_t)l->a * meg_dtype_size(c->dtype));
    if (is_backward && l->sink.dw && !c->call.accumulates_grads)
        c->op->zero(c->stream, l->sink.dw, (size_t)l->a * meg_dtype_size(c->grad_dtype));
}

struct meg_attn_desc nn_causal_desc(int64_t s, int64_t b, int64_t a, int64_t g, int64_t d)
{
    struct meg_attn_desc desc = { 0 };

    desc.s_q = desc.s_k = desc.s = s;
    desc.b = b;
    desc.a = a;
    desc.g = g;
    desc.d = desc.d_v = d;
    desc.window_left = -1;
    return desc;
}

struct meg_mat nn_f32_sum(struct meg_mat m, float *buffer)
{
    return m.dtype == MEG_DTYPE_F32 ? m : meg_mat(buffer, MEG_DTYPE_F32, m.rows, m.cols);
}

void nn_from_f32(struct meg_ctx *c, struct meg_mat m, struct meg_mat sum)
{
    if (m.p != sum.p)
        MEG_CALL(c->op, c->stream, cast, .dst = m.p, .dst_type = m.dtype, .src = sum.p, .src_type = sum.dtype,
                 .n = m.rows * m.cols);
}
