/*
 * loss_block.h - a block that only adds to a loss: the cross-entropy, with z-loss, with which a linear layer predicts
 * the positions of tokens from the block's input.  Its output is 0.
 */
#ifndef TESTS_LOSS_BLOCK_H
#define TESTS_LOSS_BLOCK_H
#include "nn/block.h"
#include "nn/sequence_parallel.h"
#include "placement/placement.h"

struct loss_conf {
    int64_t h, positions;
    double std;
    int loss; /* index of the loss in the model */
};

struct loss_block {
    struct meg_linear linear;
    int loss;
    struct meg_mat logits; /* workspace [n,positions] */
    float *value;          /* workspace [n] */
};

#define LOSS_BLOCK_Z 0.01f

static void loss_fwd(struct meg_ctx *c, struct meg_mat y, struct meg_mat x, void *acts, const void *weights)
{
    (void)x, (void)acts, (void)weights;
    c->op->zero(c->stream, y.p, (size_t)(y.rows * y.cols) * meg_dtype_size(y.dtype));
}

/* All tensor-parallel ranks compute the loss of all rows, and the gradients of their rows. */
static void loss_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct meg_mat x, const void *acts,
                     void *grads, const void *weights)
{
    const struct loss_block *l = weights;
    const struct meg_mat all = meg_sp_gather(c, x), logits = meg_mat_rows(l->logits, 0, all.rows);
    const struct meg_mat own = meg_mat_rows(logits, meg_sp_first_row(c, x), x.rows);
    (void)dy, (void)acts, (void)grads;

    MEG_LINEAR(c, &l->linear, local_fwd, .y = logits, .x = all);
    MEG_CALL(c->op, c->stream, xent_fwd_bwd, .loss = l->value, .logits = logits, .target = c->call.position_ids,
             .z_loss = LOSS_BLOCK_Z, .weight = meg_ctx_loss_weight(c, l->loss, NULL));
    meg_ctx_add_loss(c, l->loss, l->value, NULL, all.rows);
    if (c->has_sp)
        meg_placement_declare(own.p, (size_t)(own.rows * own.cols) * meg_dtype_size(own.dtype), c->tp,
                              MEG_PLACEMENT_REPLICATED, MEG_PLACEMENT_ROWS);
    MEG_LINEAR(c, &l->linear, local_bwd, .dx = dx, .dy = own, .x = x);
}

static void loss_bwd_weight(struct meg_ctx *c, struct meg_mat dy, struct meg_mat x, const void *acts, const void *grads,
                            const void *weights)
{
    (void)c, (void)dy, (void)x, (void)acts, (void)grads, (void)weights;
}

static void loss_bind(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    const struct loss_conf *c = conf;
    const struct meg_linear_shape shape = { .out = c->positions, .in = c->h, .tp_dim = -1, .nparts = 1, .std = c->std };
    struct loss_block *l = weights;
    (void)env;

    meg_bind_linear(b, &l->linear, "position", &shape);
    l->loss = c->loss;
}

static void loss_suballoc(enum meg_block_memory what, void *to, const struct meg_block_arena *a, const void *conf)
{
    const struct loss_conf *c = conf;
    struct loss_block *l = to;

    if (what == MEG_BLOCK_WORKSPACE) {
        l->logits = meg_suballoc_mat(a->mem, a->dtype, a->n, c->positions);
        l->value = meg_suballoc(a->mem, (size_t)a->n * sizeof *l->value);
    }
}

static const struct meg_block_type loss_block = {
    .weights_size = sizeof(struct loss_block),
    .bind = loss_bind,
    .suballoc = loss_suballoc,
    .fwd = loss_fwd,
    .bwd = loss_bwd,
    .bwd_weight = loss_bwd_weight,
};

#endif
