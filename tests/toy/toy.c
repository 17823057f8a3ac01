/*
 * toy.c - a family of models for tests/toy.t that is not in the library: two stacks of gated networks, which read the
 * same tokens.  A layer computes out(norm(silu(gate(x)) * value(x) + shift(x))); in the second stack, `value` reads the
 * output of the first stack instead of x.  The word embedding is used before each stack and as the output matrix.  A
 * program that is linked with this file accepts --model toy.
 *
 * The shift and the norm are applied to each group of GROUP columns, so all tensor-parallel ranks have their weights.
 * The weights of shift and gate are two parts of one parameter, as B and z of Mamba.  The value of the second stack is
 * frozen.
 *
 * FAULT=norm: the parameter table does not state that the gradient of the norm is partial over tensor parallelism.
 * FAULT=shift: a weight of the shift is zeroed on this rank.
 * FAULT=unfrozen: all parameters are trained.
 */
#include <stdlib.h>
#include <string.h>
#include "base/philox.h"
#include "model/family.h"
#include "nn/lm_head.h"

enum { GROUP = 16 };

struct gated_conf {
    int64_t h, f; /* width of the residual stream, inner width */
    double std;
    bool reads_memory;
};

struct gated {
    struct meg_linear gate, value, out; /* gate: also shift */
    struct meg_norm_weights norm;       /* [GROUP] */
    bool reads_memory;
    struct meg_mat d_input; /* workspace: gradient of the input of `value` */
};

struct gated_acts {
    struct meg_mat pre;         /* [n, GROUP + 2f] shift, gate and value */
    struct meg_mat mid, normed; /* [n,f] inputs of the norm and of `out` */
    struct meg_norm_stats stats;
};

static const struct meg_glu silu = { .act = MEG_ACT_SILU };

/* Return the groups of columns of x as rows. */
static struct meg_mat groups(struct meg_mat x)
{
    return meg_mat(x.p, x.dtype, x.rows * x.cols / GROUP, GROUP);
}

static bool has_fault(const char *name)
{
    const char *fault = getenv("FAULT");

    return fault && strcmp(fault, name) == 0;
}

/* Return columns [first, first + n) of x. */
static struct meg_mat columns(struct meg_mat x, int64_t first, int64_t n)
{
    x.p = meg_element(x.p, first, x.dtype);
    x.cols = n;
    return x;
}

/* The columns of pre. */
static struct meg_mat shift_of(struct meg_mat pre)
{
    return columns(pre, 0, GROUP);
}

static struct meg_mat shift_and_gate(struct meg_mat pre)
{
    return columns(pre, 0, (pre.cols + GROUP) / 2);
}

static struct meg_mat value_of(struct meg_mat pre)
{
    return columns(pre, (pre.cols + GROUP) / 2, (pre.cols - GROUP) / 2);
}

static struct meg_mat gate_and_value(struct meg_mat pre)
{
    return columns(pre, GROUP, pre.cols - GROUP);
}

static struct meg_mat value_input(const struct meg_ctx *c, const struct gated *l, struct meg_mat x)
{
    return l->reads_memory ? meg_memory_mat(c, c->call.memory.y) : x;
}

static void fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, void *acts, const void *weights)
{
    const struct gated *l = weights;
    struct gated_acts *a = acts;

    if (has_fault("shift"))
        c->op->zero(c->stream, l->gate.w.p, meg_dtype_size(l->gate.w.dtype));
    MEG_LINEAR(c, &l->gate, fwd, .y = shift_and_gate(a->pre), .x = x);
    MEG_LINEAR(c, &l->value, fwd, .y = value_of(a->pre), .x = value_input(c, l, x));
    MEG_CALL(c->op, c->stream, glu_fwd, .unit = &silu, .y = a->mid, .x = gate_and_value(a->pre));
    for (int64_t i = 0; i < a->mid.cols; i += GROUP) {
        const struct meg_mat group = columns(a->mid, i, GROUP);

        MEG_CALL(c->op, c->stream, add_fwd, .z = group, .x = group, .y = shift_of(a->pre));
    }
    meg_norm_fwd(c, groups(a->normed), groups(a->mid), &a->stats, &l->norm);
    MEG_LINEAR(c, &l->out, fwd, .y = y, .x = a->normed);
}

static void bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const void *acts,
                void *grads, const void *weights)
{
    const struct gated *l = weights;
    const struct gated_acts *a = acts, *d = grads;
    const struct meg_mat sum = l->reads_memory ? meg_memory_mat(c, c->call.memory.dy) : dx,
                         d_input = meg_mat_rows(l->d_input, 0, sum.rows);

    MEG_LINEAR(c, &l->out, bwd, .dx = d->normed, .dy = dy, .x = a->normed);
    meg_norm_bwd(c, groups(d->mid), meg_no_mat(), groups(d->normed), groups(a->mid), &a->stats, &l->norm);
    for (int64_t i = GROUP; i < d->mid.cols; i += GROUP)
        MEG_CALL(c->op, c->stream, add_fwd, .z = shift_of(d->pre),
                 .x = i == GROUP ? columns(d->mid, 0, GROUP) : shift_of(d->pre), .y = columns(d->mid, i, GROUP));
    MEG_CALL(c->op, c->stream, glu_bwd, .unit = &silu, .dx = gate_and_value(d->pre), .dy = d->mid,
             .x = gate_and_value(a->pre));
    MEG_LINEAR(c, &l->gate, bwd, .dx = dx, .dy = shift_and_gate(d->pre), .x = x);
    MEG_LINEAR(c, &l->value, bwd, .dx = d_input, .dy = value_of(d->pre), .x = value_input(c, l, x));
    MEG_CALL(c->op, c->stream, add_fwd, .z = sum, .x = sum, .y = d_input);
}

static void bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const void *acts, const void *grads,
                       const void *weights)
{
    const struct gated *l = weights;
    const struct gated_acts *a = acts, *d = grads;

    MEG_LINEAR(c, &l->out, bwd_weight, .dy = dy, .x = a->normed);
    MEG_LINEAR(c, &l->gate, bwd_weight, .dy = shift_and_gate(d->pre), .x = x);
    MEG_LINEAR(c, &l->value, bwd_weight, .dy = value_of(d->pre), .x = value_input(c, l, x));
}

/* An initialiser: uniform in (a, b]. */
static double uniform(const struct meg_param *row, uint32_t seed, uint64_t name, uint64_t i)
{
    return row->init.a + (row->init.b - row->init.a) * meg_philox_init_uniform(seed, name, i);
}

static void bind(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    const struct gated_conf *c = conf;
    const struct meg_sharding parts = { 2, { { GROUP, MEG_AXIS_NONE, { 0 } }, { c->f, MEG_AXIS_TP, { 0 } } } };
    const struct meg_linear_shape gate = { .out = GROUP + c->f, .in = c->h, .std = c->std, .parts = &parts };
    const struct meg_linear_shape value = {
        .out = c->f, .in = c->h, .nparts = 1, .std = c->std, .is_frozen = c->reads_memory && !has_fault("unfrozen")
    };
    const struct meg_linear_shape out = {
        .out = c->h, .in = c->f, .tp_dim = 1, .nparts = 1, .std = c->std, .has_bias = true
    };
    struct gated *l = weights;
    struct meg_param *norm;
    (void)env;

    l->norm.type = MEG_NORM_RMS;
    l->norm.eps = 1e-5f;
    norm = meg_bind_vector(b, &l->norm.w, &l->norm.dw, "norm.weight", GROUP, 1);
    if (norm) {
        norm->init = (struct meg_init){ uniform, 0.5, 1.5 };
        norm->grad_is_partial_over_tp = !has_fault("norm");
    }
    meg_bind_linear(b, &l->gate, "gate", &gate);
    meg_bind_linear(b, &l->value, "value", &value);
    meg_bind_linear(b, &l->out, "out", &out);
    l->reads_memory = c->reads_memory;
}

static void suballoc(enum meg_block_memory what, void *to, const struct meg_block_arena *a, const void *conf)
{
    const struct gated_conf *c = conf;
    const bool has_grad_of_pre = what == MEG_BLOCK_DEFERRED_GRADS || (what == MEG_BLOCK_GRADS && !a->defers_wgrad);
    struct gated_acts *acts = to;

    if (what == MEG_BLOCK_WORKSPACE)
        ((struct gated *)to)->d_input = meg_suballoc_mat(a->mem, a->dtype, a->residual_rows, c->h);
    if (what == MEG_BLOCK_ACTS || has_grad_of_pre)
        meg_block_mat(a, &acts->pre, a->n, GROUP + 2 * c->f / a->tp);
    if (what == MEG_BLOCK_ACTS || what == MEG_BLOCK_GRADS) {
        meg_block_mat(a, &acts->mid, a->n, c->f / a->tp);
        meg_block_mat(a, &acts->normed, a->n, c->f / a->tp);
    }
    if (what == MEG_BLOCK_ACTS)
        meg_block_f32(a, &acts->stats.rstd, a->n * c->f / a->tp / GROUP);
}

static struct meg_residual_bias residual_bias(const void *weights)
{
    const struct gated *l = weights;

    return (struct meg_residual_bias){ l->out.bias, l->out.dbias };
}

static const struct meg_block_type gated_block = { .weights_size = sizeof(struct gated),
                                                   .acts_size = sizeof(struct gated_acts),
                                                   .grads_size = sizeof(struct gated_acts),
                                                   .bind = bind,
                                                   .suballoc = suballoc,
                                                   .residual_bias = residual_bias,
                                                   .fwd = fwd,
                                                   .bwd = bwd,
                                                   .bwd_weight = bwd_weight };

static void describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    const struct meg_lm_head_conf head = { .h = d->h, .v = d->v, .tied = "embedding.word_embeddings.weight" };

    d->inputs = MEG_BATCH_GPT_FIELDS;
    for (int k = 0; k < 2; k++) {
        const struct gated_conf conf = { d->h, c->mlp.f, d->std, k == 1 };

        meg_desc_add_stack(d, k == 0 ? "first.norm" : "second.norm");
        meg_desc_add_block(d, &gated_block, &conf, sizeof conf, "input_norm", MEG_DROP_MLP_OUT);
        meg_desc_add_layers(d, &(struct meg_block_list){ k, 1 }, 1, c->num_layers, k == 0 ? "first" : "second");
    }
    meg_desc_add_head(d, &meg_lm_head, &head, sizeof head, "lm loss");
}

static const struct meg_family toy = { "toy", "toy", MEG_SAMPLES_GPT, NULL, describe, NULL };

__attribute__((constructor)) static void add_toy(void)
{
    meg_family_add(&toy);
}
