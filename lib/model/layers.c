/* layers.c - forward and backward of the layers of a chunk. */
#include "model/internal.h"
#include "placement/placement.h"

static struct meg_residual_epilogue epilogue(const struct meg_model *g, const struct model_layer *l,
                                             const struct model_block *block)
{
    const struct meg_block_type *type = block->desc->type;
    struct meg_residual_epilogue r = { 0 };

    if (type->residual_bias)
        r.bias = type->residual_bias(block->weights);
    r.drop = meg_ctx_drop(&g->state->ctx, g->state->desc.hidden_dropout, (int)l->index, block->desc->site);
    return r;
}

struct meg_mat model_residual_rows(const struct meg_model *g, struct meg_mat m)
{
    const struct meg_ctx *c = &g->state->ctx;

    return meg_mat_rows(m, 0, c->s * c->b / (c->has_sp ? g->state->dim.tp : 1));
}

static struct block_acts acts_of_batch(const struct meg_model *g, const struct block_acts *acts)
{
    struct block_acts a = *acts;

    a.x = model_residual_rows(g, a.x);
    a.y = model_residual_rows(g, a.y);
    a.d_out = model_residual_rows(g, a.d_out);
    return a;
}

/*
 * The residual stream during the forward pass.  The output of the last block's mixer, in sublayer_out, is not yet added
 * to x: the next block fuses this addition with its norm, or finish_residual performs it.
 */
struct residual {
    struct meg_mat x;
    const struct model_layer *layer; /* of the last block */
    const struct model_block *block; /* the last block; NULL before the first one */
};

/* Store the residual stream in y. */
static void finish_residual(struct meg_model *g, struct residual *r, struct meg_mat y)
{
    const struct meg_residual_epilogue e = epilogue(g, r->layer, r->block);

    meg_add_fwd(&g->state->ctx, y, r->x, model_residual_rows(g, g->state->sublayer_out), &e);
    *r = (struct residual){ y, NULL, NULL };
}

/* Return the residual stream after a block. */
static struct residual after_block(const struct model_layer *l, const struct model_block *block,
                                   const struct block_acts *a)
{
    return (struct residual){ block->desc->residual_from_norm ? a->y : a->x, l, block };
}

/* Run forward of one block, from the residual stream to the output of its mixer in sublayer_out. */
static void block_fwd(struct meg_model *g, struct residual *r, const struct model_layer *l,
                      const struct model_block *block, const struct block_acts *acts)
{
    struct meg_ctx *c = &g->state->ctx;
    struct block_acts a = acts_of_batch(g, acts);
    const struct meg_mat out = model_residual_rows(g, g->state->sublayer_out);
    const struct meg_norm_weights *w = &block->norm;

    if (r->block) {
        const struct meg_residual_epilogue e = epilogue(g, r->layer, r->block);

        MEG_CALL(c->op, c->stream, add_norm_fwd, .type = w->type, .z = a.x, .y = a.y, .mean = a.stats.mean,
                 .rstd = a.stats.rstd, .x = r->x, .sublayer_out = out, .bias = e.bias.w, .drop = &e.drop, .w = w->w,
                 .b = w->b, .eps = w->eps);
    } else {
        meg_norm_fwd(c, a.y, a.x, &a.stats, w);
    }
    block->desc->type->fwd(c, out, a.y, a.acts, block->weights);
    *r = after_block(l, block, &a);
}

/* The arguments of a pass of a layer. */
struct layer_pass {
    enum model_pass type;
    struct meg_model *g;
    const struct model_layer *l;
    struct slot_layer *q;
    struct residual r;     /* forward: the residual stream before the layer */
    struct meg_mat dx, dy; /* backward: gradients of the residual stream before and after the layer */
};

static void layer_fwd(const void *pass)
{
    const struct layer_pass *p = pass;
    struct residual r = p->r;

    for (int i = 0; i < p->l->desc->n; i++)
        block_fwd(p->g, &r, p->l, &p->l->block[i], &p->q->block[i]);
}

/* Compute pass->dx and parameter gradients from pass->dy. */
static void layer_bwd(const void *pass)
{
    const struct layer_pass *p = pass;
    struct meg_model *g = p->g;
    struct meg_ctx *c = &g->state->ctx;
    const struct meg_mat d_norm = model_residual_rows(g, g->state->d_norm);
    struct meg_mat dy = p->dy;

    for (int i = p->l->desc->n - 1; i >= 0; i--) {
        const struct model_block *block = &p->l->block[i];
        const struct block_acts a = acts_of_batch(g, &p->q->block[i]);
        const struct meg_residual_epilogue e = epilogue(g, p->l, block);
        const struct meg_mat d_out = meg_add_bwd(c, a.d_out, dy, &e);
        const struct meg_mat d_residual = i > 0 ? model_residual_rows(g, g->state->d_residual) : p->dx;

        block->desc->type->bwd(c, d_norm, d_out, a.y, a.acts, a.grads, block->weights);
        if (block->desc->residual_from_norm)
            MEG_CALL(c->op, c->stream, add_fwd, .z = d_norm, .x = d_norm, .y = dy);
        meg_norm_bwd(c, d_residual, block->desc->residual_from_norm ? meg_no_mat() : dy, d_norm, a.x, &a.stats,
                     &block->norm);
        dy = d_residual;
    }
}

/* Compute the weight gradients that layer_bwd deferred. */
static void layer_bwd_weight(const void *pass)
{
    const struct layer_pass *p = pass;

    for (int i = p->l->desc->n - 1; i >= 0; i--) {
        const struct model_block *block = &p->l->block[i];
        const struct block_acts a = acts_of_batch(p->g, &p->q->block[i]);

        block->desc->type->bwd_weight(&p->g->state->ctx, a.d_out, a.y, a.acts, a.grads, block->weights);
    }
}

/*
 * The key of the graph of a pass: the arguments of its operations that may differ between calls.  x is the input of the
 * first block.  `residual` and `previous` are r.x.p and r.block of struct layer_pass.
 */
struct layer_key {
    struct model_batch_key batch;
    const void *x, *residual, *previous, *dx, *dy, *memory, *d_memory;
    int64_t s_memory, accumulates_grads;
};

static struct layer_key key_of(const struct layer_pass *p)
{
    const struct meg_ctx *c = &p->g->state->ctx;

    return (struct layer_key){ .batch = p->g->state->batch_key,
                               .x = p->q->block[0].x.p,
                               .residual = p->r.x.p,
                               .previous = p->r.block,
                               .dx = p->dx.p,
                               .dy = p->dy.p,
                               .memory = c->memory.y.p,
                               .d_memory = p->type == MODEL_BWD ? c->memory.dy.p : NULL,
                               .s_memory = c->memory.s,
                               .accumulates_grads = p->type != MODEL_FWD && c->accumulates_grads };
}

static void run_pass(const struct layer_pass *p)
{
    static void (*const run[])(const void *pass) = { layer_fwd, layer_bwd, layer_bwd_weight };
    const struct layer_key key = key_of(p);

    meg_device_set_layer(p->l->index);
    model_run_pass(p->g, &p->q->graphs[p->type], &key, sizeof key, run[p->type], p);
    meg_device_set_layer(-1);
}

/* Run forward of a layer, and advance the residual stream. */
static void run_fwd(struct meg_model *g, struct residual *r, const struct model_layer *l, struct slot_layer *q)
{
    const int last = l->desc->n - 1;
    const struct block_acts a = acts_of_batch(g, &q->block[last]);

    run_pass(&(struct layer_pass){ .type = MODEL_FWD, .g = g, .l = l, .q = q, .r = *r });
    *r = after_block(l, &l->block[last], &a);
}

void model_layer_bwd_weight(struct meg_model *g, const struct model_layer *l, struct slot_layer *q)
{
    run_pass(&(struct layer_pass){ .type = MODEL_BWD_WEIGHT, .g = g, .l = l, .q = q });
}

void model_copy(struct meg_model *g, void *to, const void *from, struct meg_mat like)
{
    g->op->copy(g->state->ctx.stream, to, from, (size_t)(like.rows * like.cols) * meg_dtype_size(like.dtype));
}

/*
 * Return this rank's saved shard of the input of layer i (distribute_saved_activations).  The p of the returned matrix
 * is NULL if no shard is saved, for example because the input is in the pipeline's receive buffer.
 */
static struct meg_mat saved_shard(const struct meg_model *g, const struct model_segment *x, const struct model_slot *q,
                                  int64_t i)
{
    if (i == x->begin && !x->has_embedding)
        return meg_no_mat();
    return meg_mat_rows(q->layer[i].saved, 0, model_residual_rows(g, q->layer[i].block[0].x).rows / g->state->dim.tp);
}

static void save_input(struct meg_model *g, const struct model_segment *x, const struct model_slot *q, int64_t i)
{
    const struct meg_mat shard = saved_shard(g, x, q, i), input = q->layer[i].block[0].x;

    if (!shard.p)
        return;
    model_copy(g, shard.p, meg_mat_rows(input, g->mesh->coords.tp * shard.rows, shard.rows).p, shard);
    meg_placement_declare(shard.p, (size_t)(shard.rows * shard.cols) * meg_dtype_size(shard.dtype), g->mesh->tp,
                          MEG_PLACEMENT_REPLICATED, MEG_PLACEMENT_ROWS);
}

static void restore_input(struct meg_model *g, const struct model_segment *x, const struct model_slot *q, int64_t i)
{
    const struct meg_mat shard = saved_shard(g, x, q, i);
    const struct meg_ctx *c = &g->state->ctx;

    if (shard.p)
        meg_all_gather(c->tp, c->stream, q->layer[i].block[0].x.p, shard.p, shard.rows * shard.cols, shard.dtype);
}

int64_t model_group_of(const struct meg_model *g, int64_t i)
{
    return 1 + g->state->layer[i].index;
}

/*
 * Return whether the addition at the end of a layer is fused with the norm of the next layer.  Fusion is impossible if
 * the operands of the addition are overwritten before that norm: activations, if layers use the same memory for them
 * (inference, full recomputation), or the bias, if the parameters of later layers replace it (ZeRO-3).
 */
static bool fuses_layers(const struct meg_model *g)
{
    return g->run.is_training && !g->run.shards_params && g->run.recompute != MEG_RECOMPUTE_UNIFORM &&
           g->run.recompute != MEG_RECOMPUTE_BLOCK;
}

void model_layers_fwd(struct meg_model *g, const struct model_segment *x, struct model_slot *q, struct meg_mat y)
{
    struct residual r = { 0 };

    for (int64_t i = x->begin; i < x->end; i++) {
        model_params_needed(g, model_group_of(g, i), model_group_of(g, i) + 1, false);
        run_fwd(g, &r, &g->state->layer[i], &q->layer[i]);
        save_input(g, x, q, i);
        if (!fuses_layers(g) && i + 1 < x->end)
            finish_residual(g, &r, model_residual_rows(g, q->layer[i + 1].block[0].x));
    }
    finish_residual(g, &r, y);
}

/* Recompute the activations of layers [begin, end) of a segment from the input of layer begin. */
static void recompute_layers(struct meg_model *g, const struct model_segment *x, struct model_slot *q, int64_t begin,
                             int64_t end)
{
    struct residual r = { 0 };

    restore_input(g, x, q, begin);
    for (int64_t i = begin; i < end; i++) {
        model_params_needed(g, model_group_of(g, i), i + 1 < end ? model_group_of(g, i + 1) : -1, false);
        run_fwd(g, &r, &g->state->layer[i], &q->layer[i]);
        if (!fuses_layers(g) && i + 1 < end)
            finish_residual(g, &r, model_residual_rows(g, q->layer[i + 1].block[0].x));
    }
}

/*
 * Return the layer group that the backward pass reads after layer i of a segment, or -1 if layer i is the first one.
 * Normally, return the group of layer i - 1.  If layer i - 1 ends a range of layers that are recomputed together,
 * return the group of the range's first layer.
 */
static int64_t next_bwd_group(const struct meg_model *g, const struct model_segment *x, int64_t i)
{
    int64_t begin, end;

    if (i == x->begin)
        return -1;
    if (model_recompute_range(&g->run, x, i - 1, &begin, &end) && i == end)
        return model_group_of(g, begin);
    return model_group_of(g, i - 1);
}

/* Set the gradient of the relative bias of the current stack to 0, unless it has been written. */
static void begin_rel_bias_grad(struct meg_model *g)
{
    struct meg_model_state *st = g->state;
    const struct meg_mat dw = st->rel_bias[st->stack].dw;

    if (dw.p && !st->rel_bias_has_grads[st->stack])
        g->op->zero(st->ctx.stream, dw.p, (size_t)(dw.rows * dw.cols) * meg_dtype_size(dw.dtype));
    st->rel_bias_has_grads[st->stack] = true;
}

void model_layers_bwd(struct meg_model *g, const struct model_segment *x, struct model_slot *q, struct meg_mat dx,
                      struct meg_mat dy)
{
    struct meg_model_state *st = g->state;
    const struct meg_mat d_residual = model_residual_rows(g, st->d_residual);

    for (int64_t i = x->end; i-- > x->begin;) {
        int64_t begin, end;

        if (model_recompute_range(&g->run, x, i, &begin, &end) && i + 1 == end)
            recompute_layers(g, x, q, begin, end);
        model_params_needed(g, model_group_of(g, i), next_bwd_group(g, x, i), true);
        model_begin_grads(g, &st->layer[i].has_grads);
        begin_rel_bias_grad(g);
        run_pass(&(struct layer_pass){ .type = MODEL_BWD,
                                       .g = g,
                                       .l = &st->layer[i],
                                       .q = &q->layer[i],
                                       .dx = i > x->begin ? d_residual : dx,
                                       .dy = dy });
        if (!g->run.defers_wgrad)
            model_grads_ready(g, model_group_of(g, i));
        dy = d_residual;
    }
    st->rel_bias_has_grads[st->stack] = !g->run.shards_grads;
}
