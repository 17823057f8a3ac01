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

/* Views of queries and keys before their norms, and arguments of the norms, which include the rotation. */
struct qk_norm {
    struct meg_heads x_q, x_k;
    struct meg_qk_norm q, k;
};

static struct qk_norm qk_norm_of(const struct meg_ctx *c, struct meg_mat qk, const struct meg_attn *l)
{
    const struct tables of_q = tables_of(c, l, true), of_k = tables_of(c, l, false);
    const int64_t r = l->a / l->g;
    const struct meg_qk_norm q = { qk.rows / c->call.b,
                                   c->call.b,
                                   l->g,
                                   r,
                                   l->d,
                                   l->qk_norm_eps,
                                   l->rope->half,
                                   l->rope->is_interleaved,
                                   of_q.cos,
                                   of_q.sin,
                                   c->call.position_ids };
    struct qk_norm n = { nn_heads(qk, c->call.b, r + 1, l->d, 0), nn_heads(qk, c->call.b, r + 1, l->d, r), q, q };

    n.k.heads = 1;
    n.k.cos = of_k.cos;
    n.k.sin = of_k.sin;
    return n;
}

/* Normalize and rotate the query and key heads in the rows of a->qkv.  Keep what backward needs. */
static void norm_and_rotate(struct meg_ctx *c, const struct meg_attn_acts *a, const struct meg_attn *l)
{
    const int64_t r = l->a / l->g;
    const struct nn_qkv h = nn_qkv_heads(a->qkv, c->call.b, r, l->d);
    const struct qk_norm n = qk_norm_of(c, a->qk, l);

    if (l->qk_norm_eps == 0) {
        rotate(c, a->qkv, 1, l);
        return;
    }
    /* the key head of a group follows its query heads, so one copy is enough */
    MEG_CALL(c->op, c->stream, copy_heads, .dst = n.x_q, .src = h.q, .s = n.q.s, .b = c->call.b, .g = l->g,
             .d = (r + 1) * l->d);
    MEG_CALL(c->op, c->stream, qk_norm_fwd, .q = &n.q, .y = h.q, .rstd = a->q_rstd, .x = n.x_q, .w = l->q_norm.w);
    MEG_CALL(c->op, c->stream, qk_norm_fwd, .q = &n.k, .y = h.k, .rstd = a->k_rstd, .x = n.x_k, .w = l->k_norm.w);
}

/* Replace the gradients of the heads that norm_and_rotate computed, in d_qkv, by those of its input. */
static void norm_and_rotate_bwd(struct meg_ctx *c, struct meg_mat d_qkv, const struct meg_attn_acts *a,
                                const struct meg_attn *l)
{
    const struct nn_qkv h = nn_qkv_heads(d_qkv, c->call.b, l->a / l->g, l->d);
    const struct qk_norm n = qk_norm_of(c, a->qk, l);

    if (l->qk_norm_eps == 0) {
        rotate(c, d_qkv, -1, l);
        return;
    }
    MEG_CALL(c->op, c->stream, qk_norm_bwd, .q = &n.q, .dx = h.q, .dw = l->q_norm.dw, .grad = c->grad_dtype, .dy = h.q,
             .x = n.x_q, .w = l->q_norm.w, .rstd = a->q_rstd, .accumulate = c->call.accumulates_grads);
    MEG_CALL(c->op, c->stream, qk_norm_bwd, .q = &n.k, .dx = h.k, .dw = l->k_norm.dw, .grad = c->grad_dtype, .dy = h.k,
             .x = n.x_k, .w = l->k_norm.w, .rstd = a->k_rstd, .accumulate = c->call.accumulates_grads);
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
                         .lse = a->lse };

    x.desc.scale = l->scale;
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
    x.desc.q0 = kv->position0;
    x.desc.query_start = kv->position;
    nn_cached_attn_fwd(c, &x, all, nn_layer_offset(kv, kv->tokens_offset, l->layer_in_stack));
}

static void fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, void *acts, const void *weights)
{
    const struct meg_attn *l = weights;
    const struct meg_attn_acts *a = acts;

    MEG_LINEAR(c, &l->qkv, fwd, .y = a->qkv, .x = x, .kept = a->qkv_kept);
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

/* Declare the weight of the norm of the queries or keys. */
static void bind_qk_norm(struct meg_binder *b, void **w, void **dw, const char *name, int64_t d)
{
    struct meg_param *row = meg_bind_vector(b, w, dw, name, d, 1);

    if (row)
        row->grad_is_partial_over_tp = true;
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
    if (c->qk_layernorm) {
        bind_qk_norm(b, &l->q_norm.w, &l->q_norm.dw, "self_attention.q_layernorm.weight", c->d);
        bind_qk_norm(b, &l->k_norm.w, &l->k_norm.dw, "self_attention.k_layernorm.weight", c->d);
    }
    if (b->step != MEG_BIND_POINTERS)
        return;
    l->qk_norm_eps = c->qk_layernorm ? (float)env->norm_eps : 0;
    l->rope = &env->rope[c->rope];
    l->a = c->a / env->tp;
    l->g = c->g / env->tp;
    l->d = c->d;
    l->head0 = env->tp_rank * l->a;
    l->layer = env->layer;
    l->layer_in_stack = env->layer_in_stack;
    l->dropout = c->dropout;
    l->scale = c->scale > 0 ? (float)c->scale : 1 / sqrtf((float)c->d);
    l->rel_bias = env->rel_bias;
    l->window = c->window;
    l->is_bidirectional = c->is_bidirectional;
    l->cp = env->cp;
    l->recomputes_core = env->recomputes_core;
}

static void suballoc_qk_norm(struct meg_attn_acts *acts, const struct meg_block_arena *a, int64_t heads, int64_t groups,
                             int64_t d)
{
    meg_block_mat(a, &acts->qk, a->n, (heads + groups) * d);
    meg_block_f32(a, &acts->q_rstd, a->n * heads);
    meg_block_f32(a, &acts->k_rstd, a->n * groups);
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
    const struct meg_attn_size size = { a->dtype, a->n, a->s, a->b, heads, groups, c->d, c->buckets, a->is_training };
    struct meg_attn_acts *acts = to;
    struct meg_attn *l = to;

    switch (what) {
    case MEG_BLOCK_ACTS:
        suballoc_linear(acts, a, c);
        if (c->qk_layernorm)
            suballoc_qk_norm(acts, a, heads, groups, c->d);
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
    case MEG_BLOCK_WORKSPACE: meg_attn_workspace_suballoc(&l->workspace, a->mem, a->op, &size, a->cp, 1); break;
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
