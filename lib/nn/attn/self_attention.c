/* self_attention.c - self-attention over complete sequences; with context parallelism, cp_attention.c computes it. */
#include <math.h>
#include "nn/attn/internal.h"

/* Rows of rotary tables, in which the position of a token is its row. */
struct tables {
    const float *cos, *sin;
};

/*
 * Return the tables of queries or keys for the sequences of a call.  In a step of decoding, positions are rows: their
 * offset depends on the length of each sequence.
 */
static struct tables tables_of(const struct meg_ctx *c, const struct meg_attn *l, bool is_query)
{
    const struct meg_rope *t = l->rope;
    const int64_t s = c->call.s * l->cp->a2a_size * l->cp->ring_size;
    const int64_t row0 = c->call.kv.b == 0 && s > t->short_positions ? t->short_positions : 0;
    const bool has_own = is_query && t->q_cos;

    if (!t->half)
        return (struct tables){ NULL, NULL };
    return (struct tables){ (has_own ? t->q_cos : t->cos) + row0 * t->half,
                            (has_own ? t->q_sin : t->sin) + row0 * t->half };
}

/* Rotate the query and key heads in the rows of qkv by their positions; sign -1 rotates back, for gradients. */
static void rotate(struct meg_ctx *c, struct meg_mat qkv, float sign, const struct meg_attn *l)
{
    const int64_t r = l->a / l->g;
    const struct meg_rope *t = l->rope;
    const struct nn_qkv h = nn_qkv_heads(qkv, c->call.b, r, l->d);
    const bool is_one_call = !t->q_cos; /* the key head of a group follows its query heads */

    for (int k = 0; t->half && k < (is_one_call ? 1 : 2); k++) {
        const struct tables tables = tables_of(c, l, k == 0);

        MEG_CALL(c->op, c->stream, rope, .x = k == 0 ? h.q : h.k, .s = qkv.rows / c->call.b, .b = c->call.b, .g = l->g,
                 .heads = is_one_call ? r + 1
                          : k == 0    ? r
                                      : 1,
                 .half = t->half, .is_interleaved = t->is_interleaved, .cos = tables.cos, .sin = tables.sin,
                 .position = c->call.position_ids, .sign = sign);
    }
}

/* The arguments of the operations qk_norm_fwd and qk_norm_bwd: the heads before the norm, and the rest. */
struct qk_norm {
    struct meg_heads x_q, x_k;
    struct meg_qk_norm q, k;
};

static struct qk_norm qk_norm_of(const struct meg_ctx *c, const struct meg_attn_acts *a, const struct meg_attn *l)
{
    const struct tables of_q = tables_of(c, l, true), of_k = tables_of(c, l, false);
    const int64_t r = l->a / l->g;
    const struct meg_qk_norm q = { a->q.rows / c->call.b,
                                   c->call.b,
                                   l->g,
                                   r,
                                   l->d,
                                   l->q_norm.eps,
                                   l->rope->half,
                                   l->rope->is_interleaved,
                                   of_q.cos,
                                   of_q.sin,
                                   c->call.position_ids };
    struct qk_norm n = { nn_output_heads(a->q, c->call.b, r, l->d), nn_output_heads(a->k, c->call.b, 1, l->d), q, q };

    n.k.heads = 1;
    n.k.cos = of_k.cos;
    n.k.sin = of_k.sin;
    return n;
}

static bool is_fused(const struct meg_attn *l)
{
    return l->has_qk_norm && nn_qk_norm_is_fused(l->q_norm.type, l->qk_norm_scope, l->qk_norm_after_rope);
}

/* Normalize and rotate the query and key heads in the rows of a->qkv.  Keep what backward needs. */
static void norm_and_rotate(struct meg_ctx *c, const struct meg_attn_acts *a, const struct meg_attn *l)
{
    const struct nn_qkv h = nn_qkv_heads(a->qkv, c->call.b, l->a / l->g, l->d);
    const struct qk_norm n = qk_norm_of(c, a, l);

    if (is_fused(l)) {
        nn_qk_norm_keep(c, a->qkv, a, l);
        MEG_CALL(c->op, c->stream, qk_norm_fwd, .q = &n.q, .y = h.q, .rstd = a->q_stats.rstd, .x = n.x_q,
                 .w = l->q_norm.w);
        MEG_CALL(c->op, c->stream, qk_norm_fwd, .q = &n.k, .y = h.k, .rstd = a->k_stats.rstd, .x = n.x_k,
                 .w = l->k_norm.w);
        return;
    }
    if (l->has_qk_norm && !l->qk_norm_after_rope)
        nn_qk_norm_fwd(c, a->qkv, a, l);
    rotate(c, a->qkv, 1, l);
    if (l->has_qk_norm && l->qk_norm_after_rope)
        nn_qk_norm_fwd(c, a->qkv, a, l);
}

/* Replace the gradients of the heads that norm_and_rotate computed, in d_qkv, by those of its input. */
static void norm_and_rotate_bwd(struct meg_ctx *c, struct meg_mat d_qkv, const struct meg_attn_acts *a,
                                const struct meg_attn *l)
{
    const struct nn_qkv h = nn_qkv_heads(d_qkv, c->call.b, l->a / l->g, l->d);
    const struct qk_norm n = qk_norm_of(c, a, l);

    if (is_fused(l)) {
        MEG_CALL(c->op, c->stream, qk_norm_bwd, .q = &n.q, .dx = h.q, .dw = l->q_norm.dw, .grad = c->grad_dtype,
                 .dy = h.q, .x = n.x_q, .w = l->q_norm.w, .rstd = a->q_stats.rstd,
                 .accumulate = c->call.accumulates_grads);
        MEG_CALL(c->op, c->stream, qk_norm_bwd, .q = &n.k, .dx = h.k, .dw = l->k_norm.dw, .grad = c->grad_dtype,
                 .dy = h.k, .x = n.x_k, .w = l->k_norm.w, .rstd = a->k_stats.rstd,
                 .accumulate = c->call.accumulates_grads);
        return;
    }
    if (l->has_qk_norm && l->qk_norm_after_rope)
        nn_qk_norm_bwd(c, d_qkv, a, l);
    rotate(c, d_qkv, -1, l);
    if (l->has_qk_norm && !l->qk_norm_after_rope)
        nn_qk_norm_bwd(c, d_qkv, a, l);
}

/* Return the operands of attention in activations or gradients, for b sequences. */
static struct nn_core core_of(const struct meg_ctx *c, const struct meg_attn_acts *a, int64_t b,
                              const struct meg_attn *l)
{
    const int64_t r = l->a / l->g;
    const struct nn_qkv h = nn_qkv_heads(a->qkv, b, r, l->d);
    struct nn_core x = { .desc = nn_causal_desc(c->call.s, c->call.b, l->a, l->g, l->d),
                         .drop = meg_ctx_drop(c, l->dropout, l->layer, MEG_DROP_ATTN),
                         .o = nn_output_heads(a->o, b, r, l->d),
                         .q = h.q,
                         .k = h.k,
                         .v = h.v,
                         .lse = a->lse,
                         .d_sink = nn_sink_grad(c, l, 0) };

    nn_set_scores(&x.desc, l, 0);
    x.desc.sink = nn_sink(c, l, 0);
    x.desc.doc_start = c->call.doc_start;
    x.desc.key_length = c->call.key_length;
    x.desc.window_left = nn_window_left(l);
    x.desc.window_right = l->is_bidirectional ? -1 : 0;
    x.desc.rel_bias = l->rel_bias->w;
    x.desc.rel_bias_max_distance = l->rel_bias->max_distance;
    x.desc.rel_bias_is_bidirectional = l->rel_bias->is_bidirectional;
    x.drop.unit0 = l->head0;
    return x;
}

/* Compute a->o and a->lse.  For is_recomputed, see nn_cp_attn_fwd. */
static void core_attn_fwd(struct meg_ctx *c, const struct meg_attn_acts *a, bool is_recomputed,
                          const struct meg_attn *l)
{
    const struct nn_core x = core_of(c, a, c->call.b, l);

    nn_begin_sinks(c, l, false);
    if (meg_cp_is_on(l->cp))
        nn_cp_attn_fwd(c, l, a, is_recomputed);
    else
        nn_core_fwd(c, &x);
}

/* Compute d->qkv from d->o. */
static void core_attn_bwd(struct meg_ctx *c, const struct meg_attn_acts *d, const struct meg_attn_acts *a,
                          const struct meg_attn *l)
{
    const struct nn_core dx = core_of(c, d, c->call.b, l), x = core_of(c, a, c->call.b, l);

    nn_begin_sinks(c, l, true);
    if (meg_cp_is_on(l->cp))
        nn_cp_attn_bwd(c, l, a, d);
    else
        nn_core_bwd(c, &dx, &x, l->workspace.bwd, l->rel_bias->dw);
}

/*
 * Append the keys and values of a step of decoding to the KV caches.  Then compute the causal attention of each query
 * over all keys in the cache of its sequence.
 */
static void cached_attn_fwd(struct meg_ctx *c, const struct meg_attn_acts *a, const struct meg_attn *l)
{
    const struct meg_kv_step *kv = &c->call.kv;
    const struct meg_mat all = nn_cached_kv(c, kv->tokens, l->layer_in_stack, kv->len, 2 * l->g * l->d);
    const struct meg_mat added = kv->added_offset ? all : meg_mat_rows(all, kv->position0, kv->s);
    struct nn_core x = core_of(c, a, kv->b, l);

    /* the value head of a group follows its key head, so one copy is enough */
    MEG_CALL(c->op, c->stream, copy_heads, .dst = nn_heads(added, 1, 2, l->d, 0),
             .dst_offset = nn_layer_offset(kv, kv->added_offset, l->layer_in_stack), .src = x.k, .s = kv->s, .b = kv->b,
             .g = l->g, .d = 2 * l->d);
    nn_begin_sinks(c, l, false);
    x.desc.q0 = kv->position0;
    x.desc.query_start = kv->position;
    nn_cached_attn_fwd(c, &x, all, nn_layer_offset(kv, kv->tokens_offset, l->layer_in_stack));
}

static void fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, void *acts, const void *weights)
{
    const struct meg_attn *l = weights;
    const struct meg_attn_acts *a = acts;

    MEG_LINEAR(c, &l->qkv, fwd, .y = l->clip > 0 ? a->unclipped : a->qkv, .x = x, .kept = a->qkv_kept);
    if (l->clip > 0)
        MEG_CALL(c->op, c->stream, clamp, .y = a->qkv, .x = a->unclipped, .limit = l->clip);
    norm_and_rotate(c, a, l);
    if (c->call.kv.b > 0)
        cached_attn_fwd(c, a, l);
    else
        core_attn_fwd(c, a, false, l);
    MEG_LINEAR(c, &l->proj, fwd, .y = y, .x = a->o, .kept = a->proj_kept);
}

static void bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const void *acts,
                void *grads, const void *weights)
{
    const struct meg_attn *l = weights;
    const struct meg_attn_acts *a = acts;
    const struct meg_attn_acts *d = grads;

    if (l->recomputes_core)
        core_attn_fwd(c, a, true, l);
    MEG_LINEAR(c, &l->proj, bwd, .dx = d->o, .dy = dy, .x = a->o, .kept = a->proj_kept, .d_kept = d->proj_kept);
    core_attn_bwd(c, d, a, l);
    norm_and_rotate_bwd(c, d->qkv, a, l);
    if (l->clip > 0)
        MEG_CALL(c->op, c->stream, clamp_bwd, .dx = d->qkv, .dy = d->qkv, .x = a->unclipped, .limit = l->clip);
    MEG_LINEAR(c, &l->qkv, bwd, .dx = dx, .dy = d->qkv, .x = x, .kept = a->qkv_kept, .d_kept = d->qkv_kept);
}

static void bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const void *acts, const void *grads,
                       const void *weights)
{
    const struct meg_attn *l = weights;
    const struct meg_attn_acts *a = acts;
    const struct meg_attn_acts *d = grads;

    MEG_LINEAR(c, &l->proj, bwd_weight, .dy = dy, .x = a->o, .kept = a->proj_kept, .d_kept = d->proj_kept);
    MEG_LINEAR(c, &l->qkv, bwd_weight, .dy = d->qkv, .x = x, .kept = a->qkv_kept, .d_kept = d->qkv_kept);
}

/* ---- the block type ---- */

/* Declare the sinks of `heads` heads. */
static void bind_sink(struct meg_binder *b, struct meg_attn *l, int64_t heads)
{
    struct meg_param *row =
        meg_bind_vector(b, &l->sink.w, &l->sink.dw, "self_attention.core_attention.softmax_offset", heads, 0);

    if (row)
        row->sharding[0] = meg_equal_parts(heads, 1, MEG_AXIS_TP);
}

static void bind(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    const struct meg_attn_conf *c = conf;
    const struct meg_linear_shape qkv = { .out = (c->a + 2 * c->g) * c->d,
                                          .in = c->h,
                                          .nparts = 1,
                                          .std = c->std,
                                          .has_bias = c->has_qkv_bias,
                                          .variant = c->linear };
    const struct meg_linear_shape proj = { .out = c->h,
                                           .in = c->a * c->d,
                                           .tp_dim = 1,
                                           .nparts = 1,
                                           .std = c->std_out,
                                           .has_bias = c->has_proj_bias,
                                           .variant = c->linear };
    struct meg_attn *l = weights;

    meg_bind_linear(b, &l->qkv, "self_attention.linear_qkv", &qkv);
    meg_bind_linear(b, &l->proj, "self_attention.linear_proj", &proj);
    nn_qk_norm_bind(b, l, c, env->norm_eps);
    if (c->softmax_type == MEG_SOFTMAX_LEARNABLE)
        bind_sink(b, l, c->a);
    if (b->step != MEG_BIND_POINTERS)
        return;
    l->rope = &env->rope[c->rope];
    l->a = c->a / env->tp;
    l->g = c->g / env->tp;
    l->d = c->d;
    l->head0 = env->tp_rank * l->a;
    l->layer = env->layer;
    l->layer_in_stack = env->layer_in_stack;
    l->dropout = c->dropout;
    l->scale = c->scale > 0 ? (float)c->scale : 1 / sqrtf((float)c->d);
    l->softcap = c->softcap > 0 ? (float)c->softcap : 0;
    l->clip = c->clip > 0 ? (float)c->clip : 0;
    l->softmax_type = c->softmax_type;
    l->alibi_slope = env->alibi_slope;
    l->rel_bias = env->rel_bias;
    l->window = c->window;
    l->is_bidirectional = c->is_bidirectional;
    l->cp = env->cp;
    l->recomputes_core = env->recomputes_core;
}

/* Allocate the activations that bwd_weight reads, or their gradients. */
static void suballoc_linear(struct meg_attn_acts *acts, const struct meg_block_arena *a, const struct meg_attn_conf *c)
{
    meg_block_mat(a, &acts->qkv, a->n, (c->a + 2 * c->g) / a->tp * c->d);
    meg_block_kept(a, &acts->qkv_kept, c->linear, a->n);
    meg_block_kept(a, &acts->proj_kept, c->linear, a->n);
}

static void suballoc(enum meg_block_memory what, void *to, const struct meg_block_arena *a, const void *conf)
{
    const struct meg_attn_conf *c = conf;
    const int64_t heads = c->a / a->tp, groups = c->g / a->tp;
    const struct meg_attn_size size = { a->dtype,      a->n,       a->s,
                                        a->b,          heads,      groups,
                                        c->d,          c->buckets, c->softmax_type != MEG_SOFTMAX_VANILLA,
                                        a->is_training };
    struct meg_attn_acts *acts = to;
    struct meg_attn *l = to;

    switch (what) {
    case MEG_BLOCK_ACTS:
        suballoc_linear(acts, a, c);
        if (c->clip > 0)
            meg_block_mat(a, &acts->unclipped, a->n, (heads + 2 * groups) * c->d);
        nn_qk_norm_suballoc_acts(acts, a, c);
        if (!a->recomputes_core)
            nn_core_suballoc(a, &acts->o, &acts->lse, heads, c->d);
        break;
    case MEG_BLOCK_RECOMPUTED_ACTS: nn_core_suballoc(a, &acts->o, &acts->lse, heads, c->d); break;
    case MEG_BLOCK_GRADS:
        meg_block_mat(a, &acts->o, a->n, heads * c->d);
        if (!a->defers_wgrad)
            suballoc_linear(acts, a, c);
        break;
    case MEG_BLOCK_DEFERRED_GRADS: suballoc_linear(acts, a, c); break;
    case MEG_BLOCK_WORKSPACE:
        meg_attn_workspace_suballoc(&l->workspace, a->mem, a->op, &size, a->cp, 1);
        nn_qk_norm_suballoc_workspace(l, a, c);
        break;
    }
}

static struct meg_residual_bias residual_bias(const void *weights)
{
    const struct meg_attn *l = weights;

    return (struct meg_residual_bias){ l->proj.bias, l->proj.dbias };
}

static struct meg_block_cache cache(const void *conf, int64_t tp)
{
    const struct meg_attn_conf *c = conf;

    return (struct meg_block_cache){ .token = c->g / tp * 2 * c->d };
}

const struct meg_block_type meg_attn_block = {
    .weights_size = sizeof(struct meg_attn),
    .acts_size = sizeof(struct meg_attn_acts),
    .grads_size = sizeof(struct meg_attn_acts),
    .bind = bind,
    .suballoc = suballoc,
    .residual_bias = residual_bias,
    .fwd = fwd,
    .bwd = bwd,
    .bwd_weight = bwd_weight,
    .cache = cache,
};
