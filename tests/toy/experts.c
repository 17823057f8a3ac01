/*
 * experts.c - a family of models for tests/experts.t that is not in the library: a layer is an MLP and a block of
 * experts.  There is no router: expert p mod EXPERTS computes the token at position p.  The ranks of the expert- and
 * expert tensor-parallel groups all-gather their tokens, each rank computes those of its experts, and the outputs are
 * reduce-scattered.  A program that is linked with this file accepts --model experts.  On a rank with the environment
 * variable FAULT, one weight of each layer's experts is 0.
 *
 * With the variable ROUTER, a layer begins with a linear layer that computes in f32, like a router, and has a state: a
 * vector in f32 that is increased in each step, like the bias that balances the load of experts.
 */
#include <stdlib.h>
#include "model/family.h"
#include "nn/lm_head.h"
#include "nn/mlp.h"
#include "placement/placement.h"

enum { EXPERTS = 4 };

struct experts_conf {
    int64_t h, f; /* width of the residual stream, inner width of an expert */
    double std;
};

struct experts {
    struct meg_linear fc1, fc2;
    int64_t n; /* experts of this rank */
    /* workspace [ep*r,h], with the rows of all ranks of the group: input, and gradient of the output */
    struct meg_mat x, dy;
    /* workspace [ep*r,h]: output, or gradient of the input; 0 in the rows of other ranks' experts */
    struct meg_mat out;
    struct meg_mat part; /* workspace [r,h]: the rows of the expert tensor-parallel ranks, gathered or summed */
};

/* Activations of this rank's experts, [r,f/etp] input and output of the activation function. */
struct experts_acts {
    struct meg_mat pre, mid;
};

/* ---- communication ---------------------------------------------------------------------------- */

/*
 * Return whether the expert tensor-parallel ranks have different tokens.  Their tokens are equal if they are the
 * tensor-parallel ranks, without sequence parallelism.
 */
static bool has_different_tokens(const struct meg_ctx *c)
{
    return c->has_sp || c->etp != c->tp;
}

/* Return the r rows of the expert tensor-parallel ranks that have different tokens. */
static struct meg_mat rows_of_etp(const struct meg_ctx *c, const struct experts *l, struct meg_mat x)
{
    return has_different_tokens(c) ? meg_mat_rows(l->part, 0, x.rows * c->etp->size) : x;
}

/* All-gather the rows of x over the ranks of the group to a buffer, and return them. */
static struct meg_mat gather(struct meg_ctx *c, const struct experts *l, struct meg_mat buffer, struct meg_mat x)
{
    const struct meg_mat rows = rows_of_etp(c, l, x), all = meg_mat_rows(buffer, 0, rows.rows * c->ep->size);

    if (has_different_tokens(c))
        meg_all_gather(c->etp, c->stream, rows.p, x.p, x.rows * x.cols, x.dtype);
    meg_all_gather(c->ep, c->stream, all.p, rows.p, rows.rows * rows.cols, rows.dtype);
    return all;
}

/* Return `rows` rows, zeroed, to which the experts of this rank write. */
static struct meg_mat zeroed_out(struct meg_ctx *c, const struct experts *l, int64_t rows)
{
    const struct meg_mat out = meg_mat_rows(l->out, 0, rows);

    c->op->zero(c->stream, out.p, (size_t)(out.rows * out.cols) * meg_dtype_size(out.dtype));
    return out;
}

/* Sum `out` over the ranks of the group, and store this rank's rows of the sum in y. */
static void reduce(struct meg_ctx *c, const struct experts *l, struct meg_mat y, struct meg_mat out)
{
    const struct meg_mat partial = rows_of_etp(c, l, y);

    /* the rows of other ranks' experts are zero, so the sum over the ranks has the rows of all experts */
    meg_placement_declare(out.p, (size_t)(out.rows * out.cols) * meg_dtype_size(out.dtype), c->ep, MEG_PLACEMENT_OUTER,
                          MEG_PLACEMENT_PARTIAL);
    meg_reduce_scatter(c->ep, c->stream, partial.p, out.p, partial.rows * partial.cols, out.dtype, MEG_REDUCE_SUM);
    if (has_different_tokens(c))
        meg_reduce_scatter(c->etp, c->stream, y.p, partial.p, y.rows * y.cols, y.dtype, MEG_REDUCE_SUM);
    else
        meg_all_reduce(c->etp, c->stream, y.p, y.rows * y.cols, y.dtype, MEG_REDUCE_SUM);
}

/* ---- parts: the tokens of one of this rank's experts in one sequence of the micro-batch of each rank ---- */

static int64_t num_parts(const struct meg_ctx *c, const struct experts *l)
{
    return l->n * c->call.b;
}

/* Return the number of rows of all ranks of the group. */
static int64_t num_rows(const struct meg_ctx *c)
{
    const int64_t n = c->call.s * c->call.b;

    return c->ep->size * (has_different_tokens(c) ? (c->has_sp ? n / c->tp->size : n) * c->etp->size : n);
}

/* Return the rows of a part among the rows of all expert-parallel ranks: those of every EXPERTS-th position. */
static struct meg_mat tokens_of(const struct meg_ctx *c, const struct experts *l, struct meg_mat all, int64_t part)
{
    struct meg_mat m = meg_mat_rows(all, c->ep->rank * num_parts(c, l) + part, all.rows / (EXPERTS * c->call.b));

    m.ld *= EXPERTS * c->call.b;
    return m;
}

static struct experts_acts acts_of(const struct meg_ctx *c, const void *acts, int64_t part)
{
    const struct experts_acts *a = acts;
    const int64_t n = num_rows(c) / EXPERTS / c->call.b;

    return (struct experts_acts){ meg_mat_rows(a->pre, part * n, n), meg_mat_rows(a->mid, part * n, n) };
}

/* Return the rows of a part's expert in w, the weights of this rank's experts or their gradients. */
static struct meg_mat weight_of(const struct meg_ctx *c, const struct experts *l, struct meg_mat w, int64_t part)
{
    return meg_mat_rows(w, part / c->call.b * (w.rows / l->n), w.rows / l->n);
}

/* ---- the block -------------------------------------------------------------------------------- */

static void fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, void *acts, const void *weights)
{
    const struct experts *l = weights;
    const struct meg_mat in = gather(c, l, l->x, x), out = zeroed_out(c, l, in.rows);

    if (getenv("FAULT"))
        c->op->zero(c->stream, l->fc1.w.p, meg_dtype_size(l->fc1.w.dtype));
    for (int64_t i = 0; i < num_parts(c, l); i++) {
        const struct experts_acts a = acts_of(c, acts, i);

        MEG_CALL(c->op, c->stream, linear_fwd, .plan = l->fc1.plan, .y = a.mid, .pre = a.pre,
                 .x = tokens_of(c, l, in, i), .w = weight_of(c, l, l->fc1.w, i), .act = MEG_ACT_GELU_TANH);
        MEG_CALL(c->op, c->stream, linear_fwd, .plan = l->fc2.plan, .y = tokens_of(c, l, out, i), .x = a.mid,
                 .w = weight_of(c, l, l->fc2.w, i));
    }
    reduce(c, l, y, out);
}

/* Compute the weight gradients from the gathered dy and x. */
static void weight_grads(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const void *acts, const void *grads,
                         const struct experts *l)
{
    for (int64_t i = 0; i < num_parts(c, l); i++) {
        const bool adds = c->call.accumulates_grads || i % c->call.b > 0;

        MEG_CALL(c->op, c->stream, linear_bwd_weight, .plan = l->fc2.plan, .dw = weight_of(c, l, l->fc2.dw, i),
                 .dy = tokens_of(c, l, dy, i), .x = acts_of(c, acts, i).mid, .accumulate = adds);
        MEG_CALL(c->op, c->stream, linear_bwd_weight, .plan = l->fc1.plan, .dw = weight_of(c, l, l->fc1.dw, i),
                 .dy = acts_of(c, grads, i).pre, .x = tokens_of(c, l, x, i), .accumulate = adds);
    }
}

static void bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const void *acts,
                void *grads, const void *weights)
{
    const struct experts *l = weights;
    const struct meg_mat d_out = gather(c, l, l->dy, dy), d_in = zeroed_out(c, l, d_out.rows);

    for (int64_t i = 0; i < num_parts(c, l); i++) {
        const struct meg_mat d_pre = acts_of(c, grads, i).pre;

        MEG_CALL(c->op, c->stream, linear_bwd_data, .plan = l->fc2.plan, .dx = d_pre, .dy = tokens_of(c, l, d_out, i),
                 .w = weight_of(c, l, l->fc2.w, i), .pre = acts_of(c, acts, i).pre, .act = MEG_ACT_GELU_TANH);
        MEG_CALL(c->op, c->stream, linear_bwd_data, .plan = l->fc1.plan, .dx = tokens_of(c, l, d_in, i), .dy = d_pre,
                 .w = weight_of(c, l, l->fc1.w, i));
    }
    if (!c->defers_wgrad)
        weight_grads(c, d_out, gather(c, l, l->x, x), acts, grads, l);
    reduce(c, l, dx, d_in);
}

static void bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const void *acts, const void *grads,
                       const void *weights)
{
    const struct experts *l = weights;

    weight_grads(c, gather(c, l, l->dy, dy), gather(c, l, l->x, x), acts, grads, l);
}

static void bind(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    const struct experts_conf *c = conf;
    const struct meg_linear_shape fc1 = { .out = c->f, .in = c->h, .nparts = 1, .std = c->std };
    const struct meg_linear_shape fc2 = { .out = c->h, .in = c->f, .tp_dim = 1, .nparts = 1, .std = c->std };
    struct experts *l = weights;
    (void)env;

    meg_bind_experts(b, &l->fc1, "experts.linear_fc1", EXPERTS, &fc1);
    meg_bind_experts(b, &l->fc2, "experts.linear_fc2", EXPERTS, &fc2);
    l->n = l->fc2.w.rows / c->h;
}

static void suballoc(enum meg_block_memory what, void *to, const struct meg_block_arena *a, const void *conf)
{
    const struct experts_conf *c = conf;
    const bool has_grad_of_pre = what == MEG_BLOCK_DEFERRED_GRADS || (what == MEG_BLOCK_GRADS && !a->defers_wgrad);
    const bool has_different_tokens = a->has_sp || a->etp != a->tp;
    const int64_t rows = has_different_tokens ? a->residual_rows * a->etp : a->n;
    struct experts_acts *acts = to;
    struct experts *l = to;

    if (what == MEG_BLOCK_WORKSPACE) {
        l->x = meg_suballoc_mat(a->mem, a->dtype, a->ep * rows, c->h);
        l->dy = meg_suballoc_mat(a->mem, a->dtype, a->ep * rows, c->h);
        l->out = meg_suballoc_mat(a->mem, a->dtype, a->ep * rows, c->h);
    }
    if (what == MEG_BLOCK_WORKSPACE && has_different_tokens)
        l->part = meg_suballoc_mat(a->mem, a->dtype, rows, c->h);
    if (what == MEG_BLOCK_ACTS || has_grad_of_pre)
        meg_block_mat(a, &acts->pre, rows, c->f / a->etp);
    if (what == MEG_BLOCK_ACTS)
        meg_block_mat(a, &acts->mid, rows, c->f / a->etp);
}

static const struct meg_block_type experts_block = {
    .weights_size = sizeof(struct experts),
    .acts_size = sizeof(struct experts_acts),
    .grads_size = sizeof(struct experts_acts),
    .bind = bind,
    .suballoc = suballoc,
    .fwd = fwd,
    .bwd = bwd,
    .bwd_weight = bwd_weight,
};

/* ---- the router ------------------------------------------------------------------------------- */

struct router_conf {
    int64_t h;
    double std;
};

struct router {
    struct meg_linear linear;
    void *state, *rate;     /* [h] f32 */
    struct meg_mat in, out; /* workspace [rows,h] f32 */
};

/* Return x in f32. */
static void convert(struct meg_ctx *c, struct meg_mat y, struct meg_mat x)
{
    MEG_CALL(c->op, c->stream, cast, .dst = y.p, .dst_type = y.dtype, .src = x.p, .src_type = x.dtype,
             .n = x.rows * x.cols);
}

static struct meg_mat to_f32(struct meg_ctx *c, struct meg_mat buffer, struct meg_mat x)
{
    const struct meg_mat y = meg_mat_rows(buffer, 0, x.rows);

    convert(c, y, x);
    return y;
}

static void router_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, void *acts, const void *weights)
{
    const struct router *l = weights;
    const struct meg_mat out = meg_mat_rows(l->out, 0, x.rows);
    (void)acts;

    MEG_CALL(c->op, c->stream, linear_fwd, .plan = l->linear.plan, .y = out, .x = to_f32(c, l->in, x),
             .w = l->linear.w);
    convert(c, y, out);
}

static void router_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const void *acts,
                              const void *grads, const void *weights)
{
    const struct router *l = weights;
    (void)acts, (void)grads;

    MEG_CALL(c->op, c->stream, linear_bwd_weight, .plan = l->linear.plan, .dw = l->linear.dw,
             .dy = to_f32(c, l->out, dy), .x = to_f32(c, l->in, x), .accumulate = c->call.accumulates_grads);
}

static void router_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const void *acts,
                       void *grads, const void *weights)
{
    const struct router *l = weights;
    const struct meg_mat d_in = meg_mat_rows(l->in, 0, x.rows), state = meg_mat(l->state, MEG_DTYPE_F32, 1, x.cols);

    if (!c->defers_wgrad)
        router_bwd_weight(c, dy, x, acts, grads, weights);
    MEG_CALL(c->op, c->stream, linear_bwd_data, .plan = l->linear.plan, .dx = d_in, .dy = to_f32(c, l->out, dy),
             .w = l->linear.w);
    convert(c, dx, d_in);
    if (c->call.is_first_backward)
        MEG_CALL(c->op, c->stream, add_fwd, .z = state, .x = state, .y = meg_mat(l->rate, MEG_DTYPE_F32, 1, x.cols));
}

static void bind_state(struct meg_binder *b, void **state, const char *name, int64_t n, double value)
{
    void *grad;
    struct meg_param *row = meg_bind_vector(b, state, &grad, name, n, value);

    if (row)
        row->is_frozen = row->is_f32 = true;
}

static void router_bind(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    const struct router_conf *c = conf;
    const struct meg_linear_shape shape = {
        .out = c->h, .in = c->h, .tp_dim = -1, .nparts = 1, .std = c->std, .is_f32 = true
    };
    struct router *l = weights;
    (void)env;

    meg_bind_linear(b, &l->linear, "router", &shape);
    bind_state(b, &l->state, "router.state", c->h, 0);
    bind_state(b, &l->rate, "router.rate", c->h, 0x1p-10);
}

static void router_suballoc(enum meg_block_memory what, void *to, const struct meg_block_arena *a, const void *conf)
{
    const struct router_conf *c = conf;
    struct router *l = to;

    if (what == MEG_BLOCK_WORKSPACE) {
        l->in = meg_suballoc_mat(a->mem, MEG_DTYPE_F32, a->residual_rows, c->h);
        l->out = meg_suballoc_mat(a->mem, MEG_DTYPE_F32, a->residual_rows, c->h);
    }
}

static const struct meg_block_type router_block = {
    .weights_size = sizeof(struct router),
    .bind = router_bind,
    .suballoc = router_suballoc,
    .fwd = router_fwd,
    .bwd = router_bwd,
    .bwd_weight = router_bwd_weight,
};

/* ---- the family ------------------------------------------------------------------------------- */

static void describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    const struct meg_lm_head_conf head = { .h = d->h,
                                           .v = d->v,
                                           .tied = c->is_untied ? NULL : "embedding.word_embeddings.weight" };
    const struct meg_mlp_conf mlp = {
        .h = d->h, .f = c->mlp.f, .act = MEG_ACT_GELU_TANH, .std = d->std, .std_out = d->std, .has_bias = true
    };
    const struct experts_conf experts = { d->h, c->mlp.f, d->std };
    const struct router_conf router = { d->h, d->std };
    const bool has_router = getenv("ROUTER");

    d->inputs = MEG_BATCH_GPT_FIELDS;
    meg_desc_add_stack(d, "decoder.final_norm");
    if (has_router)
        meg_desc_add_block(d, &router_block, &router, sizeof router, "router_norm", MEG_DROP_ATTN_OUT);
    meg_desc_add_block(d, &meg_mlp_block, &mlp, sizeof mlp, "mlp_norm", MEG_DROP_ATTN_OUT);
    meg_desc_add_block(d, &experts_block, &experts, sizeof experts, "experts_norm", MEG_DROP_MLP_OUT);
    meg_desc_add_layers(d, &(struct meg_block_list){ 0, has_router ? 3 : 2 }, 1, c->num_layers, "decoder");
    meg_desc_add_head(d, &meg_lm_head, &head, sizeof head, "lm loss");
}

static const struct meg_family experts = { "experts", "experts", MEG_SAMPLES_GPT, "context-parallel-size",
                                           describe,  NULL };

__attribute__((constructor)) static void add_experts(void)
{
    meg_family_add(&experts);
}
