/* cross_attention.c - cross-attention of a decoder. */
#include "nn/attn/cross_attention.h"
#include <math.h>
#include "nn/attn/internal.h"

struct cross_attn {
    struct meg_linear q, kv, proj;
    int64_t a, d;              /* heads of this rank, head size */
    int64_t head0;             /* global index of this rank's first head */
    int layer, layer_in_stack; /* index of the layer in the model and in its stack */
    double dropout;
    float scale;
    bool recomputes_core; /* selective recomputation: layers share the buffers of o and lse; backward recomputes both */
    struct meg_workspace attn_bwd;
    struct meg_mat d_memory; /* [residual rows of the encoder, h] workspace: gradient of the encoder's output */
    struct meg_mat kv_kept;  /* workspace of cache_memory */
};

/* Activations kept for backward, or their gradients. */
struct cross_attn_acts {
    struct meg_mat q;                          /* [n, a d] */
    struct meg_mat kv;                         /* [rows of the encoder's output, 2 a d] */
    struct meg_mat o;                          /* [n, a d] */
    float *lse;                                /* log-sum-exp of the scores, [b,a,s]; no gradient */
    struct meg_mat q_kept, kv_kept, proj_kept; /* kept by the linear layers */
};

/* Return the operands of attention in activations or gradients, for b sequences. */
static struct nn_core core_of(const struct meg_ctx *c, const struct cross_attn_acts *a, int64_t b,
                              const struct cross_attn *l)
{
    struct nn_core x = { .desc = nn_causal_desc(c->call.memory.s, c->call.b, l->a, l->a, l->d),
                         .drop = meg_ctx_drop(c, l->dropout, l->layer, MEG_DROP_CROSS_ATTN),
                         .o = nn_output_heads(a->o, b, 1, l->d),
                         .q = nn_output_heads(a->q, b, 1, l->d),
                         .k = nn_heads(a->kv, b, 2, l->d, 0),
                         .v = nn_heads(a->kv, b, 2, l->d, 1),
                         .lse = a->lse };

    x.desc.s_q = c->call.s;
    x.desc.scale = l->scale;
    x.desc.key_length = c->call.memory.key_length;
    x.desc.window_right = -1;
    x.drop.unit0 = l->head0;
    return x;
}

/* Compute a->o and a->lse. */
static void core_fwd(struct meg_ctx *c, const struct cross_attn_acts *a, const struct cross_attn *l)
{
    const struct nn_core x = core_of(c, a, c->call.b, l);

    nn_core_fwd(c, &x);
}

/* Return the keys and values of the encoder's output in the KV cache of sequence 0. */
static struct meg_mat cached_kv(const struct meg_ctx *c, const struct cross_attn *l)
{
    return nn_cached_kv(c, c->call.kv.memory, l->layer_in_stack, c->call.kv.memory_len, 2 * l->a * l->d);
}

/* Compute a->o in a step of decoding. */
static void cached_core_fwd(struct meg_ctx *c, const struct cross_attn_acts *a, const struct cross_attn *l)
{
    const struct meg_kv_step *kv = &c->call.kv;
    struct nn_core x = core_of(c, a, kv->b, l);

    x.desc.key_length = kv->memory_length;
    nn_cached_attn_fwd(c, &x, cached_kv(c, l), nn_layer_offset(kv, kv->memory_offset, l->layer_in_stack));
}

static void fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, void *acts, const void *weights)
{
    const struct cross_attn *l = weights;
    const struct cross_attn_acts *a = acts;

    MEG_LINEAR(c, &l->q, fwd, .y = a->q, .x = x, .kept = a->q_kept);
    if (c->call.kv.b > 0) {
        cached_core_fwd(c, a, l);
    } else {
        MEG_LINEAR(c, &l->kv, fwd, .y = a->kv, .x = meg_memory_mat(c, c->call.memory.y), .kept = a->kv_kept);
        core_fwd(c, a, l);
    }
    MEG_LINEAR(c, &l->proj, fwd, .y = y, .x = a->o, .kept = a->proj_kept);
}

static void cache_memory(struct meg_ctx *c, const void *weights)
{
    const struct cross_attn *l = weights;

    MEG_LINEAR(c, &l->kv, fwd, .y = cached_kv(c, l), .x = meg_memory_mat(c, c->call.memory.y), .kept = l->kv_kept);
}

static void bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const void *acts,
                void *grads, const void *weights)
{
    const struct cross_attn *l = weights;
    const struct cross_attn_acts *a = acts, *d = grads;
    const struct nn_core core = core_of(c, a, c->call.b, l), d_core = core_of(c, d, c->call.b, l);
    const struct meg_mat memory = meg_memory_mat(c, c->call.memory.dy),
                         d_memory = meg_mat_rows(l->d_memory, 0, memory.rows);

    if (l->recomputes_core)
        core_fwd(c, a, l);
    MEG_LINEAR(c, &l->proj, bwd, .dx = d->o, .dy = dy, .x = a->o, .kept = a->proj_kept, .d_kept = d->proj_kept);
    nn_core_bwd(c, &d_core, &core, l->attn_bwd, meg_no_mat());
    MEG_LINEAR(c, &l->kv, bwd, .dx = d_memory, .dy = d->kv, .x = meg_memory_mat(c, c->call.memory.y),
               .kept = a->kv_kept, .d_kept = d->kv_kept);
    MEG_CALL(c->op, c->stream, add_fwd, .z = memory, .x = memory, .y = d_memory);
    MEG_LINEAR(c, &l->q, bwd, .dx = dx, .dy = d->q, .x = x, .kept = a->q_kept, .d_kept = d->q_kept);
}

static void bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const void *acts, const void *grads,
                       const void *weights)
{
    const struct cross_attn *l = weights;
    const struct cross_attn_acts *a = acts, *d = grads;

    MEG_LINEAR(c, &l->proj, bwd_weight, .dy = dy, .x = a->o, .kept = a->proj_kept, .d_kept = d->proj_kept);
    MEG_LINEAR(c, &l->kv, bwd_weight, .dy = d->kv, .x = meg_memory_mat(c, c->call.memory.y), .kept = a->kv_kept,
               .d_kept = d->kv_kept);
    MEG_LINEAR(c, &l->q, bwd_weight, .dy = d->q, .x = x, .kept = a->q_kept, .d_kept = d->q_kept);
}

/* ---- the block type ---- */

static void bind(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    const struct meg_attn_conf *c = conf;
    struct meg_linear_shape shape = {
        .out = c->a * c->d, .in = c->h, .nparts = 1, .std = c->std, .has_bias = c->has_proj_bias, .variant = c->linear
    };
    struct cross_attn *l = weights;

    meg_bind_linear(b, &l->q, "cross_attention.linear_q", &shape);
    shape.out = 2 * c->a * c->d;
    meg_bind_linear(b, &l->kv, "cross_attention.linear_kv", &shape);
    shape.out = c->h;
    shape.in = c->a * c->d;
    shape.tp_dim = 1;
    shape.std = c->std_out;
    meg_bind_linear(b, &l->proj, "cross_attention.linear_proj", &shape);
    if (b->step != MEG_BIND_POINTERS)
        return;
    l->a = c->a / env->tp;
    l->d = c->d;
    l->head0 = env->tp_rank * l->a;
    l->layer = env->layer;
    l->layer_in_stack = env->layer_in_stack;
    l->dropout = c->dropout;
    l->scale = c->scale > 0 ? (float)c->scale : 1 / sqrtf((float)c->d);
    l->recomputes_core = env->recomputes_core;
}

static void suballoc_workspace(struct cross_attn *l, const struct meg_block_arena *a, const struct meg_attn_conf *c)
{
    struct meg_attn_desc desc = nn_causal_desc(a->s_memory, a->b, c->a / a->tp, c->a / a->tp, c->d);

    meg_block_kept(a, &l->kv_kept, c->linear, a->n_memory);
    if (!a->is_training)
        return;
    desc.s_q = a->s;
    l->attn_bwd.nbytes = a->op->attn_bwd_nbytes(&desc, a->dtype, false);
    l->attn_bwd.p = meg_suballoc(a->mem, l->attn_bwd.nbytes);
    l->d_memory = meg_suballoc_mat(a->mem, a->dtype, a->residual_rows_memory, c->h);
}

static void suballoc(enum meg_block_memory what, void *to, const struct meg_block_arena *a, const void *conf)
{
    const struct meg_attn_conf *c = conf;
    const int64_t width = c->a / a->tp * c->d;
    const bool has_input_grads = what == MEG_BLOCK_DEFERRED_GRADS || (what == MEG_BLOCK_GRADS && !a->defers_wgrad);
    struct cross_attn_acts *acts = to;

    if (what == MEG_BLOCK_WORKSPACE) {
        suballoc_workspace(to, a, c);
        return;
    }
    if (what == MEG_BLOCK_ACTS || has_input_grads) {
        meg_block_mat(a, &acts->q, a->n, width);
        meg_block_mat(a, &acts->kv, a->n_memory, 2 * width);
        meg_block_kept(a, &acts->q_kept, c->linear, a->n);
        meg_block_kept(a, &acts->kv_kept, c->linear, a->n_memory);
        meg_block_kept(a, &acts->proj_kept, c->linear, a->n);
    }
    if (what == MEG_BLOCK_RECOMPUTED_ACTS || (what == MEG_BLOCK_ACTS && !a->recomputes_core))
        nn_core_suballoc(a, &acts->o, &acts->lse, c->a / a->tp, c->d);
    if (what == MEG_BLOCK_GRADS)
        meg_block_mat(a, &acts->o, a->n, width);
}

static struct meg_residual_bias residual_bias(const void *weights)
{
    const struct cross_attn *l = weights;

    return (struct meg_residual_bias){ l->proj.bias, l->proj.dbias };
}

static struct meg_block_cache cache(const void *conf, int64_t tp)
{
    const struct meg_attn_conf *c = conf;

    return (struct meg_block_cache){ .memory_token = c->a / tp * 2 * c->d };
}

const struct meg_block_type meg_cross_attn_block = {
    .weights_size = sizeof(struct cross_attn),
    .acts_size = sizeof(struct cross_attn_acts),
    .grads_size = sizeof(struct cross_attn_acts),
    .bind = bind,
    .suballoc = suballoc,
    .residual_bias = residual_bias,
    .fwd = fwd,
    .bwd = bwd,
    .bwd_weight = bwd_weight,
    .cache = cache,
    .cache_memory = cache_memory,
};
