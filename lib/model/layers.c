/* layers.c - forward and backward of the layers of a chunk. */
#include "model/internal.h"
#include "placement/placement.h"

static struct meg_residual_bias bias_of(const struct model_block *block)
{
    const struct meg_block_type *type = block->desc->type;

    return type->residual_bias ? type->residual_bias(block->weights) : (struct meg_residual_bias){ 0 };
}

/* Return the first of the parallel blocks to which a block belongs. */
static const struct model_block *first_of(const struct model_block *block)
{
    while (block->desc->is_parallel)
        block--;
    return block;
}

static struct meg_residual_epilogue epilogue(const struct meg_model *g, const struct meg_ctx *c,
                                             const struct model_layer *l, const struct model_block *block)
{
    const enum meg_drop_site site = first_of(block)->desc->site;

    return (struct meg_residual_epilogue){ bias_of(block),
                                           meg_ctx_drop(c, g->state->desc.hidden_dropout, (int)l->index, site) };
}

struct meg_mat model_residual_rows(const struct meg_model *g, struct meg_mat m)
{
    const struct meg_ctx *c = &g->state->ctx;

    return meg_mat_rows(m, 0, c->call.s * c->call.b / (c->has_sp ? g->state->dim.tp : 1));
}

struct meg_mat model_residual(const struct meg_model *g, void *p)
{
    return model_residual_rows(g, meg_mat(p, g->run.residual_dtype, 0, g->state->dim.h));
}

/*
 * The residual stream during the forward pass.  The output of the last block's mixer, in sublayer_out, is not yet added
 * to x: the next block fuses this addition with its norm, or finish_residual performs it.
 */
struct residual {
    void *x;
    const struct model_layer *layer; /* of the last block */
    const struct model_block *block; /* the last block, or the first of the last parallel ones; NULL before the first */
};

/* Return the residual stream before the addition. */
static struct meg_mat rows_of(const struct meg_model *g, const struct residual *r)
{
    struct meg_mat x = model_residual(g, r->x);

    if (r->block->desc->residual_from_norm)
        x.dtype = g->run.dtype;
    return x;
}

/* Store the residual stream in y. */
static void finish_residual(struct meg_model *g, struct residual *r, struct meg_mat y)
{
    struct meg_ctx *c = &g->state->ctx;
    const struct meg_residual_epilogue e = epilogue(g, c, r->layer, r->block);

    meg_add_fwd(c, y, rows_of(g, r), model_residual_rows(g, g->state->sublayer_out), &e);
    *r = (struct residual){ y.p, NULL, NULL };
}

/* The arguments of a pass of a layer, and the key of its graph: a struct without padding. */
struct layer_pass {
    struct meg_call call;
    struct meg_model *g;
    const struct model_layer *l;
    const struct slot_layer *q;
    void *x;           /* residual stream before the layer, input of the first block */
    struct residual r; /* forward: of the previous layer, if the addition is fused with the first norm */
    void *dx, *dy;     /* backward: gradients of the residual stream before and after the layer */
};

/* Return a pass of the current micro-batch. */
static struct layer_pass begin_pass(struct meg_model *g, const struct model_layer *l, const struct slot_layer *q)
{
    return (struct layer_pass){ .call = g->state->ctx.call, .g = g, .l = l, .q = q, .x = q->block[0].x.p };
}

static struct block_acts acts_of(const struct layer_pass *p, int i)
{
    struct block_acts a = p->q->block[i];

    if (i == 0)
        a.x = model_residual(p->g, p->x);
    if (p->l->block[i].desc->is_parallel) {
        const struct block_acts previous = acts_of(p, i - 1);

        a.x = previous.x;
        a.y = p->l->block[i].desc->norm ? a.y : previous.y;
    }
    if (a.y.cols == 0)
        a.y = a.x;
    return a;
}

/* Return the residual stream after block i. */
static struct residual after_block(const struct layer_pass *p, int i)
{
    const struct model_block *block = first_of(&p->l->block[i]);
    const struct block_acts a = acts_of(p, i);

    return (struct residual){ block->desc->residual_from_norm ? a.y.p : a.x.p, p->l, block };
}

/* Complete the residual stream a->x before a block, and compute a->y, the input of its mixer. */
static void mixer_input(struct meg_ctx *c, const struct meg_model *g, const struct residual *r,
                        const struct model_block *block, struct block_acts *a)
{
    const struct meg_mat out = model_residual_rows(g, g->state->sublayer_out);
    const struct meg_norm_weights *w = &block->norm;
    const struct meg_residual_epilogue e =
        r->block ? epilogue(g, c, r->layer, r->block) : (struct meg_residual_epilogue){ 0 };

    if (r->block && block->desc->norm)
        MEG_CALL(c->op, c->stream, add_norm_fwd, .type = w->type, .z = a->x, .y = a->y, .mean = a->stats.mean,
                 .rstd = a->stats.rstd, .x = rows_of(g, r), .sublayer_out = out, .bias = e.bias.w, .drop = &e.drop,
                 .w = w->w, .b = w->b, .eps = w->eps);
    else if (r->block)
        meg_add_fwd(c, a->x, rows_of(g, r), out, &e);
    else if (block->desc->norm)
        meg_norm_fwd(c, a->y, a->x, &a->stats, w);
    if (!block->desc->norm && a->y.p != a->x.p)
        MEG_CALL(c->op, c->stream, cast, .dst = a->y.p, .dst_type = a->y.dtype, .src = a->x.p, .src_type = a->x.dtype,
                 .n = a->x.rows * a->x.cols);
}

/* Run forward of block i, from the residual stream to the output of its mixer in sublayer_out. */
static void block_fwd(struct meg_ctx *c, const struct layer_pass *p, const struct residual *r, int i)
{
    const struct model_block *block = &p->l->block[i];
    const bool is_parallel = block->desc->is_parallel;
    const struct meg_mat sum = model_residual_rows(p->g, p->g->state->sublayer_out);
    const struct meg_mat out = is_parallel ? model_residual_rows(p->g, p->g->state->parallel_out) : sum;
    const struct meg_residual_epilogue no_drop = { .bias = bias_of(block) };
    struct block_acts a = acts_of(p, i);

    if (!is_parallel)
        mixer_input(c, p->g, r, block, &a);
    else if (block->desc->norm)
        meg_norm_fwd(c, a.y, a.x, &a.stats, &block->norm);
    block->desc->type->fwd(c, block->desc->post_norm ? a.out : out, a.y, a.acts, block->weights);
    if (block->desc->post_norm)
        meg_norm_fwd(c, out, a.out, &a.post_stats, &block->post_norm);
    if (block->desc->scale != 0)
        MEG_CALL(c->op, c->stream, scale, .y = out, .x = out, .factor = block->desc->scale);
    if (is_parallel)
        meg_add_fwd(c, sum, sum, out, &no_drop);
}

static void layer_fwd(const void *pass)
{
    const struct layer_pass *p = pass;
    struct meg_ctx c = model_ctx(p->g, &p->call);

    for (int i = 0; i < p->l->desc->n; i++) {
        const struct residual r = i > 0 ? after_block(p, i - 1) : p->r;

        block_fwd(&c, p, &r, i);
    }
}

/*
 * Compute dx, the gradient of the input of the mixer of block i, and the gradients of its parameters from dy, the
 * gradient of the residual stream after the block.
 */
static void mixer_bwd(struct meg_ctx *c, const struct layer_pass *p, int i, struct meg_mat dx, struct meg_mat dy)
{
    const struct model_block *block = &p->l->block[i];
    const struct block_acts a = acts_of(p, i);
    const struct meg_residual_epilogue e = epilogue(p->g, c, p->l, block);
    const struct meg_mat buffer = block->desc->post_norm ? dx : a.d_out;
    struct meg_mat d_out = meg_add_bwd(c, buffer, dy, &e);

    if (block->desc->scale != 0) {
        MEG_CALL(c->op, c->stream, scale, .y = buffer, .x = d_out, .factor = block->desc->scale);
        d_out = buffer;
    }
    if (block->desc->post_norm) {
        meg_norm_bwd(c, a.d_out, meg_no_mat(), d_out, a.out, &a.post_stats, &block->post_norm);
        d_out = a.d_out;
    }
    block->desc->type->bwd(c, dx, d_out, a.y, a.acts, a.grads, block->weights);
}

/* Compute pass->dx and parameter gradients from pass->dy. */
static void layer_bwd(const void *pass)
{
    const struct layer_pass *p = pass;
    const struct meg_model *g = p->g;
    struct meg_ctx c = model_ctx(g, &p->call);
    const struct meg_mat d_norm = model_residual_rows(g, g->state->d_norm);
    const struct meg_mat added = model_residual_rows(g, g->state->parallel_out);
    const int n = p->l->desc->n;
    struct meg_mat dy = model_residual(g, p->dy), skip = dy; /* skip: dy, and the gradients of parallel norms */

    for (int i = n - 1; i >= 0; i--) {
        const struct model_block *block = &p->l->block[i];
        const struct meg_mat dx = model_residual(g, i > 0 ? g->state->d_residual.p : p->dx);
        const struct meg_block *next = i + 1 < n ? p->l->block[i + 1].desc : NULL;
        const bool adds = next && next->is_parallel && !next->norm;
        const struct block_acts a = acts_of(p, i);

        mixer_bwd(&c, p, i, adds ? added : d_norm, dy);
        if (adds)
            MEG_CALL(c.op, c.stream, add_fwd, .z = d_norm, .x = d_norm, .y = added);
        if (block->desc->is_parallel) {
            if (block->desc->norm) {
                const struct meg_mat sum = model_residual_rows(g, g->state->d_parallel);

                meg_norm_bwd(&c, sum, skip, d_norm, a.x, &a.stats, &block->norm);
                skip = sum;
            }
            continue;
        }
        if (block->desc->residual_from_norm)
            MEG_CALL(c.op, c.stream, add_fwd, .z = d_norm, .x = d_norm, .y = dy);
        if (block->desc->norm)
            meg_norm_bwd(&c, dx, block->desc->residual_from_norm ? meg_no_mat() : skip, d_norm, a.x, &a.stats,
                         &block->norm);
        else
            MEG_CALL(c.op, c.stream, add_fwd, .z = dx, .x = skip, .y = d_norm);
        dy = skip = dx;
    }
}

/* Compute the weight gradients that layer_bwd deferred. */
static void layer_bwd_weight(const void *pass)
{
    const struct layer_pass *p = pass;
    struct meg_ctx c = model_ctx(p->g, &p->call);

    for (int i = p->l->desc->n - 1; i >= 0; i--) {
        const struct model_block *block = &p->l->block[i];
        const struct block_acts a = acts_of(p, i);

        block->desc->type->bwd_weight(&c, a.d_out, a.y, a.acts, a.grads, block->weights);
    }
}

static void run_pass(struct slot_layer *q, enum model_pass type, const struct layer_pass *p)
{
    static void (*const run[])(const void *pass) = { layer_fwd, layer_bwd, layer_bwd_weight };

    meg_device_set_layer(p->l->index);
    model_run_pass(p->g, &q->graphs[type], run[type], p, sizeof *p);
    meg_device_set_layer(-1);
}

/* Run forward of a layer, and advance the residual stream. */
static void run_fwd(struct meg_model *g, struct residual *r, const struct model_layer *l, struct slot_layer *q)
{
    struct layer_pass p = begin_pass(g, l, q);

    p.r = *r;
    run_pass(q, MODEL_FWD, &p);
    *r = after_block(&p, l->desc->n - 1);
}

void model_layer_bwd_weight(struct meg_model *g, struct model_layer *l, struct slot_layer *q)
{
    struct layer_pass p = begin_pass(g, l, q);

    p.call.accumulates_grads = model_begin_grads(g, &l->has_wgrads);
    run_pass(q, MODEL_BWD_WEIGHT, &p);
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

/*
 * Run forward of layers [begin, end) of a segment, and return the residual stream after them.  Recomputation, which
 * begins at a saved input, saves no inputs, and does not prefetch the parameters of the next layer.
 */
static struct residual layers_fwd(struct meg_model *g, const struct model_segment *x, struct model_slot *q,
                                  int64_t begin, int64_t end, bool recomputes)
{
    struct residual r = { 0 };

    if (recomputes)
        restore_input(g, x, q, begin);
    for (int64_t i = begin; i < end; i++) {
        const int64_t group = model_group_of(g, i);

        model_params_needed(g, group, recomputes && i + 1 == end ? -1 : group + 1, false);
        run_fwd(g, &r, &g->state->layer[i], &q->layer[i]);
        if (!recomputes)
            save_input(g, x, q, i);
        if (!fuses_layers(g) && i + 1 < end)
            finish_residual(g, &r, model_residual_rows(g, q->layer[i + 1].block[0].x));
    }
    return r;
}

void model_layers_fwd(struct meg_model *g, const struct model_segment *x, struct model_slot *q, struct meg_mat y)
{
    struct residual r = layers_fwd(g, x, q, x->begin, x->end, false);

    finish_residual(g, &r, y);
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

    for (int64_t i = x->end; i-- > x->begin;) {
        struct layer_pass p;
        int64_t begin, end;

        if (model_recompute_range(&g->run, x, i, &begin, &end) && i + 1 == end)
            layers_fwd(g, x, q, begin, end, true);
        model_params_needed(g, model_group_of(g, i), next_bwd_group(g, x, i), true);
        begin_rel_bias_grad(g);
        p = begin_pass(g, &st->layer[i], &q->layer[i]);
        p.call.accumulates_grads = model_begin_grads(g, &st->layer[i].has_grads);
        p.call.is_first_backward = !st->layer[i].has_run_backward;
        st->layer[i].has_run_backward = true;
        p.call.memory.dy = st->stack > 0 ? st->d_memory.p : NULL;
        p.dx = i > x->begin ? st->d_residual.p : dx.p;
        p.dy = i + 1 < x->end ? st->d_residual.p : dy.p;
        run_pass(&q->layer[i], MODEL_BWD, &p);
        if (!g->run.defers_wgrad)
            model_grads_ready(g, model_group_of(g, i));
    }
    st->rel_bias_has_grads[st->stack] = !g->run.shards_grads;
}
