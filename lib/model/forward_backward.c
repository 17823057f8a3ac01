/* forward_backward.c - forward and backward of a micro-batch through the layers. */
#include <string.h>
#include "model/internal.h"

/* ---- blocks ---- */

static struct meg_residual_epilogue epilogue(const struct meg_model *g, const struct model_layer *l,
                                             const struct model_block *block)
{
    const struct meg_linear_weights *last = block->desc->type->last_linear(block->weights);
    const struct meg_residual_epilogue r = { last->bias, last->dbias,
                                             meg_ctx_drop(&g->state->ctx, g->state->desc.hidden_dropout, (int)l->index,
                                                          block->desc->site) };

    return r;
}

/* Return the rows of the current micro-batch of m [residual_rows, h], which was allocated for the largest one. */
static struct meg_mat residual_rows(const struct meg_model *g, struct meg_mat m)
{
    const struct meg_ctx *c = &g->state->ctx;

    return meg_mat_rows(m, 0, c->s * c->b / (c->has_sp ? g->state->dim.tp : 1));
}

static struct block_acts acts_of_batch(const struct meg_model *g, const struct block_acts *acts)
{
    struct block_acts a = *acts;

    a.x = residual_rows(g, a.x);
    a.y = residual_rows(g, a.y);
    a.d_out = residual_rows(g, a.d_out);
    return a;
}

/*
 * The residual stream during the forward pass.  The output of the last block's mixer, in sublayer_out, is not yet added
 * to x: the next block fuses this addition with its norm.
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

    meg_add_fwd(&g->state->ctx, y, r->x, residual_rows(g, g->state->sublayer_out), &e);
    *r = (struct residual){ y, NULL, NULL };
}

/* Run forward of one block, from the residual stream to the output of its mixer in sublayer_out. */
static void block_fwd(struct meg_model *g, struct residual *r, const struct model_layer *l,
                      const struct model_block *block, const struct block_acts *acts)
{
    struct meg_ctx *c = &g->state->ctx;
    struct block_acts a = acts_of_batch(g, acts);
    const struct meg_mat out = residual_rows(g, g->state->sublayer_out);

    if (r->block) {
        const struct meg_residual_epilogue e = epilogue(g, r->layer, r->block);

        meg_add_norm_fwd(c, a.x, a.y, r->x, out, &e, &a.stats, &block->norm);
    } else {
        meg_norm_fwd(c, a.y, a.x, &a.stats, &block->norm);
    }
    block->desc->type->fwd(c, out, a.y, a.acts, block->weights);
    *r = (struct residual){ block->desc->is_post_norm ? a.y : a.x, l, block };
}

static void layer_fwd(struct meg_model *g, struct residual *r, const struct model_layer *l, const struct slot_layer *q)
{
    meg_device_set_layer(l->index);
    for (int i = 0; i < l->desc->n; i++)
        block_fwd(g, r, l, &l->block[i], &q->block[i]);
    meg_device_set_layer(-1);
}

/* Compute dx, the gradient of the residual stream before a layer, and the parameter gradients from dy, that after it. */
static void layer_bwd(struct meg_model *g, struct meg_mat dx, struct meg_mat dy, const struct model_layer *l,
                      const struct slot_layer *q)
{
    struct meg_ctx *c = &g->state->ctx;
    const struct meg_mat d_norm = residual_rows(g, g->state->d_norm);

    meg_device_set_layer(l->index);
    for (int i = l->desc->n - 1; i >= 0; i--) {
        const struct model_block *block = &l->block[i];
        const struct block_acts a = acts_of_batch(g, &q->block[i]);
        const struct meg_residual_epilogue e = epilogue(g, l, block);
        const struct meg_mat d_out = meg_add_bwd(c, a.d_out, dy, &e), none = { 0 };
        const struct meg_mat d_residual = i > 0 ? residual_rows(g, g->state->d_residual) : dx;

        block->desc->type->bwd(c, d_norm, d_out, a.y, a.acts, a.grads, block->weights);
        if (block->desc->is_post_norm)
            c->op->add_fwd(c->stream, d_norm, d_norm, dy, NULL, NULL);
        meg_norm_bwd(c, d_residual, block->desc->is_post_norm ? none : dy, d_norm, a.x, &a.stats, &block->norm);
        dy = d_residual;
    }
    meg_device_set_layer(-1);
}

/* Compute the weight gradients that layer_bwd deferred (zero-bubble schedules). */
static void layer_bwd_weight(struct meg_model *g, const struct model_layer *l, const struct slot_layer *q)
{
    meg_device_set_layer(l->index);
    for (int i = l->desc->n - 1; i >= 0; i--) {
        const struct block_acts a = acts_of_batch(g, &q->block[i]);

        l->block[i].desc->type->bwd_weight(&g->state->ctx, a.d_out, a.y, a.acts, a.grads, l->block[i].weights);
    }
    meg_device_set_layer(-1);
}

/* ---- a micro-batch in its slot ---- */

/* With sequence or context parallelism, upload the global positions of the rows of the residual stream. */
static void set_global_positions(struct meg_model *g)
{
    const struct meg_layout *l = &g->mesh->layout;
    struct meg_model_state *st = g->state;
    struct meg_ctx *c = &st->ctx;
    const int64_t s = l->has_sp ? c->s / l->tp : c->s, t0 = l->has_sp ? g->mesh->coords.tp * s : 0;

    if (!l->has_sp && l->cp == 1)
        return;
    MEG_ASSERT_EQ(c->s, s * (l->has_sp ? l->tp : 1));
    for (int64_t i = 0; i < s; i++)
        st->host_position[i] = (int32_t)meg_layout_position(l, g->mesh->coords.cp, c->s * l->cp, t0 + i);
    g->op->upload(c->stream, st->position_of_row, st->host_position, (size_t)s * sizeof *st->position_of_row);
    c->position_of_row = st->position_of_row;
}

/* Make the micro-batch of a slot the current one. */
static void set_current_batch(struct meg_model *g, struct model_slot *q)
{
    struct meg_ctx *c = &g->state->ctx;
    struct meg_batch *in = &g->state->in;

    *in = q->in->x;
    for (int f = 0; f < MEG_BATCH_NUM_FIELDS; f++)
        if (!(q->in->present & 1u << f))
            *meg_batch_array(in, f) = NULL;
    c->s = q->s;
    c->b = q->b;
    c->position_ids = in->position_ids;
    c->sample_id = in->sample_id;
    c->doc_start = in->doc_start;
    c->key_length = in->key_length;
    set_global_positions(g);
}

/*
 * Prepare the upload of the next micro-batch.  Record the end of the work that reads the slot's current inputs, then
 * make the slot's other inputs current.  Uploads to them wait until the work that reads their old contents is complete.
 */
static void start_upload(struct meg_model *g, struct model_slot *q)
{
    g->op->event_record(g->device->compute, q->in->unused);
    q->in = &q->inputs[q->in == &q->inputs[0]];
    g->op->event_wait(g->device->copy, q->in->unused);
}

/* Upload the arrays of a micro-batch in a bit mask of fields. */
static void upload_arrays(struct meg_model *g, struct model_inputs *in, const struct meg_batch *x, unsigned fields)
{
    struct meg_batch from = *x;

    for (int f = 0; f < MEG_BATCH_NUM_FIELDS; f++) {
        const size_t nbytes = (size_t)meg_batch_numel(x, f) * meg_batch_fields[f].size;

        if (!(fields & 1u << f))
            continue;
        if (x->is_pinned)
            g->op->upload_pinned(g->device->copy, *meg_batch_array(&in->x, f), *meg_batch_array(&from, f), nbytes);
        else
            g->op->upload(g->device->copy, *meg_batch_array(&in->x, f), *meg_batch_array(&from, f), nbytes);
    }
}

/* Return the arrays of a micro-batch that this rank reads: those that heads read only on ranks with heads. */
static unsigned fields_to_upload(const struct meg_model *g, const struct meg_batch *x, bool has_dropout)
{
    unsigned fields = meg_batch_present(x) & g->state->desc.inputs;

    if (!has_dropout)
        fields &= ~(1u << MEG_BATCH_SAMPLE_ID);
    if (!g->state->dim.has_head)
        fields &= ~(1u << MEG_BATCH_LABELS | 1u << MEG_BATCH_LOSS_MASK | 1u << MEG_BATCH_SENTENCE_ORDER);
    return fields;
}

/* Make the compute stream wait for the uploads. */
static void finish_upload(struct meg_model *g, struct model_slot *q)
{
    g->op->event_record(g->device->copy, q->in->uploaded);
    g->op->event_wait(g->device->compute, q->in->uploaded);
}

void model_load_batch(struct meg_model *g, int64_t slot, const struct meg_batch *x,
                      const struct meg_loss_factors *factors, bool has_dropout)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];
    const int64_t n = x->s * x->b;

    MEG_ASSERT_LT(slot, st->dim.nslots);
    MEG_ASSERT_LT(0, n);
    MEG_ASSERT_LE(n, st->dim.n);
    q->s = x->s;
    q->b = x->b;
    q->factors = *factors;
    start_upload(g, q);
    q->in->present = fields_to_upload(g, x, has_dropout);
    upload_arrays(g, q->in, x, q->in->present);
    finish_upload(g, q);
    set_current_batch(g, q);
}

/* ---- a chunk of layers ---- */

static bool has_embedding(const struct meg_model *g, int64_t chunk)
{
    return g->state->chunk[chunk].has_embedding;
}

static bool has_head(const struct meg_model *g, int64_t chunk)
{
    return g->state->chunk[chunk].has_head;
}

static bool has_layers(const struct meg_model *g, int64_t chunk)
{
    return g->state->chunk[chunk].begin < g->state->chunk[chunk].end;
}

size_t meg_model_boundary_nbytes(const struct meg_model *g)
{
    return (size_t)(g->state->dim.residual_rows * g->state->dim.h) * meg_dtype_size(g->run.residual_dtype);
}

/* Return p, a send or receive buffer of the pipeline, as a matrix of the hidden states of the current micro-batch. */
static struct meg_mat boundary_rows(const struct meg_model *g, const void *p)
{
    const struct model_dims *d = &g->state->dim;

    return residual_rows(g, meg_mat((void *)p, g->run.residual_dtype, d->residual_rows, d->h));
}

static void copy_device(struct meg_model *g, void *to, const void *from, struct meg_mat like)
{
    g->op->copy(g->state->ctx.stream, to, from, (size_t)(like.rows * like.cols) * meg_dtype_size(like.dtype));
}

/*
 * Return this rank's saved shard of the input of layer i (distribute_saved_activations).  The p of the returned matrix
 * is NULL if no shard is saved, for example because the input is in the pipeline's receive buffer.
 */
static struct meg_mat saved_shard(const struct meg_model *g, int64_t chunk, const struct model_slot *q, int64_t i)
{
    const struct meg_mat none = { 0 };

    if (i == g->state->chunk[chunk].begin && !has_embedding(g, chunk))
        return none;
    return meg_mat_rows(q->layer[i].saved, 0, residual_rows(g, q->layer[i].block[0].x).rows / g->state->dim.tp);
}

static void save_input(struct meg_model *g, int64_t chunk, const struct model_slot *q, int64_t i)
{
    const struct meg_mat shard = saved_shard(g, chunk, q, i), x = q->layer[i].block[0].x;

    if (shard.p)
        copy_device(g, shard.p, meg_mat_rows(x, g->mesh->coords.tp * shard.rows, shard.rows).p, shard);
}

static void restore_input(struct meg_model *g, int64_t chunk, const struct model_slot *q, int64_t i)
{
    const struct meg_mat shard = saved_shard(g, chunk, q, i);
    const struct meg_ctx *c = &g->state->ctx;

    if (shard.p)
        meg_all_gather(c->tp, c->stream, q->layer[i].block[0].x.p, shard.p, shard.rows * shard.cols, shard.dtype);
}

static void params_needed(const struct meg_model *g, int64_t layer_group, int64_t next, bool is_backward)
{
    if (g->hooks.params_needed)
        g->hooks.params_needed(g->hooks.user, (int)layer_group, (int)next, is_backward);
}

static void grads_ready(const struct meg_model *g, int64_t layer_group)
{
    if (g->hooks.grads_ready)
        g->hooks.grads_ready(g->hooks.user, (int)layer_group);
}

/* Return the layer group of layer i of this rank. */
static int64_t group_of(const struct meg_model *g, int64_t i)
{
    return 1 + g->state->layer[i].index;
}

static void head_params_needed(const struct meg_model *g, bool is_backward)
{
    params_needed(g, g->state->desc.nlayers + 1, g->state->desc.is_untied ? -1 : 0, is_backward);
    if (!g->state->desc.is_untied)
        params_needed(g, 0, -1, is_backward);
}

void meg_model_zero_grads(struct meg_model *g)
{
    struct meg_model_state *st = g->state;

    for (int64_t i = 0; i < st->dim.nlayers; i++)
        st->layer[i].has_grads = st->layer[i].has_wgrads = false;
    st->embed_has_grads = st->head_has_grads = false;
}

/*
 * Choose whether the following backward calls add to the gradients to which has_grads belongs, or overwrite them.  With
 * ZeRO-2/3 they always overwrite, because each pass is reduce-scattered and added to the shards (optim/zero).
 */
static void begin_grads(struct meg_model *g, bool *has_grads)
{
    g->state->ctx.accumulates_grads = *has_grads;
    *has_grads = !g->run.shards_grads;
}

/*
 * Return whether the addition at the end of a layer is fused with the norm of the next layer.  It is not if the next
 * layer overwrites what the addition reads: activations, if layers share the memory of theirs, or with ZeRO-3 the bias.
 */
static bool fuses_layers(const struct meg_model *g)
{
    return g->run.is_training && !g->run.shards_params && g->run.recompute != MEG_RECOMPUTE_UNIFORM &&
           g->run.recompute != MEG_RECOMPUTE_BLOCK;
}

void model_layers_fwd(struct meg_model *g, int64_t chunk, int64_t slot, void *out)
{
    struct meg_model_state *st = g->state;
    const struct model_chunk *layers = &st->chunk[chunk];
    struct model_slot *q = &st->slot[slot];
    const struct meg_mat y = has_head(g, chunk) ? residual_rows(g, q->last_out) : boundary_rows(g, out);
    struct residual r = { 0 };

    for (int64_t i = layers->begin; i < layers->end; i++) {
        params_needed(g, group_of(g, i), group_of(g, i) + 1, false);
        layer_fwd(g, &r, &st->layer[i], &q->layer[i]);
        save_input(g, chunk, q, i);
        if (!fuses_layers(g) && i + 1 < layers->end)
            finish_residual(g, &r, residual_rows(g, q->layer[i + 1].block[0].x));
    }
    finish_residual(g, &r, y);
}

/* Compute y, the hidden states before the first layer, from the tokens of the current micro-batch. */
static void embed_fwd(struct meg_model *g, struct meg_mat y)
{
    meg_embed_fwd(&g->state->ctx, y, &g->state->in, &g->state->embed);
}

void model_embed_fwd(struct meg_model *g, int64_t slot)
{
    const struct model_slot *q = &g->state->slot[slot];

    embed_fwd(g, residual_rows(g, q->layer[0].block[0].x));
}

/* Run forward of a chunk without layers.  The head reads the input of its chunk in the backward pass. */
static void empty_chunk_fwd(struct meg_model *g, int64_t chunk, struct model_slot *q, const void *in, void *out)
{
    const struct meg_mat y = boundary_rows(g, out);

    if (has_embedding(g, chunk))
        embed_fwd(g, y);
    else if (has_head(g, chunk))
        q->last_out.p = (void *)in;
    else
        copy_device(g, out, in, y);
}

void meg_model_forward(struct meg_model *g, int64_t chunk, int64_t slot, const struct meg_batch *x,
                       const struct meg_loss_factors *factors, const void *in, void *out)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];

    model_load_batch(g, slot, x, factors, true);
    if (has_embedding(g, chunk))
        params_needed(g, 0, 1, false);
    if (!has_layers(g, chunk)) {
        empty_chunk_fwd(g, chunk, q, in, out);
        return;
    }
    if (has_embedding(g, chunk))
        model_embed_fwd(g, slot);
    else
        q->layer[st->chunk[chunk].begin].block[0].x.p = (void *)in;
    model_layers_fwd(g, chunk, slot, out);
}

/* Recompute the activations of layers [begin, end) from the input of layer begin. */
static void recompute_layers(struct meg_model *g, int64_t chunk, struct model_slot *q, int64_t begin, int64_t end)
{
    struct residual r = { 0 };

    restore_input(g, chunk, q, begin);
    for (int64_t i = begin; i < end; i++) {
        params_needed(g, group_of(g, i), i + 1 < end ? group_of(g, i + 1) : -1, false);
        layer_fwd(g, &r, &g->state->layer[i], &q->layer[i]);
        if (!fuses_layers(g) && i + 1 < end)
            finish_residual(g, &r, residual_rows(g, q->layer[i + 1].block[0].x));
    }
}

/*
 * Return the layer group that the backward pass reads after layer i of a chunk, or -1 if layer i is the first one.
 * Normally, return the group of layer i - 1.  If layer i - 1 ends a range of layers that are recomputed together, return
 * the group of the range's first layer.
 */
static int64_t next_bwd_group(const struct meg_model *g, const struct model_chunk *chunk, int64_t i)
{
    int64_t begin, end;

    if (i == chunk->begin)
        return -1;
    if (model_recompute_range(&g->run, chunk, i - 1, &begin, &end) && i == end)
        return group_of(g, begin);
    return group_of(g, i - 1);
}

/* Run backward through all layers of a chunk: compute dx from dy. */
static void layers_bwd(struct meg_model *g, int64_t chunk, struct model_slot *q, struct meg_mat dx, struct meg_mat dy)
{
    struct meg_model_state *st = g->state;
    const struct model_chunk *layers = &st->chunk[chunk];
    const struct meg_mat d_residual = residual_rows(g, st->d_residual);

    for (int64_t i = layers->end; i-- > layers->begin;) {
        int64_t begin, end;

        if (model_recompute_range(&g->run, layers, i, &begin, &end) && i + 1 == end)
            recompute_layers(g, chunk, q, begin, end);
        params_needed(g, group_of(g, i), next_bwd_group(g, layers, i), true);
        begin_grads(g, &st->layer[i].has_grads);
        layer_bwd(g, i > layers->begin ? d_residual : dx, dy, &st->layer[i], &q->layer[i]);
        if (!g->run.defers_wgrad)
            grads_ready(g, group_of(g, i));
        dy = d_residual;
    }
}

/* ---- heads ---- */

void model_final_norm_fwd(struct meg_model *g, int64_t slot)
{
    struct meg_model_state *st = g->state;

    meg_norm_fwd(&st->ctx, residual_rows(g, st->lnf), residual_rows(g, st->slot[slot].last_out), &st->lnf_stats,
                 &st->final_norm);
}

unsigned meg_model_inputs(const struct meg_model *g)
{
    return g->state->desc.inputs;
}

int meg_model_num_losses(const struct meg_model *g)
{
    return g->state->desc.nheads;
}

const char *meg_model_loss_name(const struct meg_model *g, int i)
{
    return g->state->desc.head[i].loss;
}

bool meg_model_loss_is_per_sequence(const struct meg_model *g, int i)
{
    return g->state->desc.head[i].type->is_per_sequence;
}

bool meg_model_averages_batches(const struct meg_model *g)
{
    return g->state->desc.averages_batches;
}

void meg_model_zero_loss(struct meg_model *g)
{
    g->op->zero(g->state->ctx.stream, g->loss_sum, MEG_MAX_LOSSES * sizeof *g->loss_sum);
}

void meg_model_read_losses(struct meg_model *g, double *sum)
{
    meg_device_read(g->device, g->state->ctx.stream, sum, g->loss_sum, MEG_MAX_LOSSES * sizeof *sum);
}

/* Add the losses of head i, which are computed, to loss_sum. */
static void add_to_loss_sum(struct meg_model *g, const struct model_slot *q, int i)
{
    const bool is_per_sequence = meg_model_loss_is_per_sequence(g, i);

    g->op->weighted_sum(g->state->ctx.stream, g->loss_sum + i, g->state->loss[i],
                        is_per_sequence ? NULL : g->state->in.loss_mask, is_per_sequence ? q->b : q->s * q->b,
                        q->factors.sum[i]);
}

void meg_model_slot_loss(struct meg_model *g, int64_t slot)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];

    set_current_batch(g, q);
    head_params_needed(g, false);
    model_final_norm_fwd(g, slot);
    for (int i = 0; i < st->desc.nheads; i++) {
        st->desc.head[i].type->fwd(&st->ctx, st->loss[i], residual_rows(g, st->lnf), &st->in, st->head[i]);
        add_to_loss_sum(g, q, i);
    }
}

/*
 * Compute the losses of a slot, and add them to loss_sum.  Compute the gradients of the heads, and d_last_out, the
 * gradient of the output of the last layer.
 */
static void heads_bwd(struct meg_model *g, int64_t slot, struct meg_mat d_last_out)
{
    struct meg_model_state *st = g->state;
    struct meg_ctx *c = &st->ctx;
    const struct model_slot *q = &st->slot[slot];
    const struct meg_mat lnf = residual_rows(g, st->lnf), d_lnf = residual_rows(g, st->d_norm), none = { 0 };

    head_params_needed(g, true);
    begin_grads(g, &st->head_has_grads);
    model_final_norm_fwd(g, slot);
    for (int i = 0; i < st->desc.nheads; i++) {
        const struct meg_head_type *type = st->desc.head[i].type;
        const struct meg_loss_weight weight = { type->is_per_sequence ? NULL : st->in.loss_mask, q->factors.grad[i],
                                                g->loss_scale };

        type->fwd_bwd(c, st->loss[i], d_lnf, lnf, &st->in, weight, st->head[i]);
        add_to_loss_sum(g, q, i);
    }
    meg_norm_bwd(c, d_last_out, none, d_lnf, residual_rows(g, q->last_out), &st->lnf_stats, &st->final_norm);
    grads_ready(g, st->desc.nlayers + 1);
    if (!st->desc.is_untied && g->mesh->coords.pp > 0)
        grads_ready(g, 0); /* the last stage's replica of the tied embedding */
}

void meg_model_backward(struct meg_model *g, int64_t chunk, int64_t slot, const void *d_out, void *d_in)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];
    struct meg_mat d_residual, dx, dy;

    MEG_ASSERT(g->run.is_training);
    set_current_batch(g, q);
    d_residual = residual_rows(g, st->d_residual);
    dx = has_embedding(g, chunk) ? d_residual : boundary_rows(g, d_in);
    dy = !has_head(g, chunk) ? boundary_rows(g, d_out) : has_layers(g, chunk) ? d_residual : dx;
    if (has_head(g, chunk))
        heads_bwd(g, slot, dy);
    if (has_layers(g, chunk))
        layers_bwd(g, chunk, q, dx, dy);
    else if (has_embedding(g, chunk))
        dx = dy;
    else if (!has_head(g, chunk))
        copy_device(g, dx.p, dy.p, dx);
    if (has_embedding(g, chunk)) {
        begin_grads(g, &st->embed_has_grads);
        meg_embed_bwd(&st->ctx, dx, &st->in, &st->embed);
        grads_ready(g, 0);
    }
}

void meg_model_backward_weight(struct meg_model *g, int64_t chunk, int64_t slot)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];

    set_current_batch(g, q);
    for (int64_t i = st->chunk[chunk].end; i-- > st->chunk[chunk].begin;) {
        begin_grads(g, &st->layer[i].has_wgrads);
        layer_bwd_weight(g, &st->layer[i], &q->layer[i]);
        grads_ready(g, group_of(g, i));
    }
}

/* ---- without pipeline parallelism ---- */

/* Return factors of gradients that are `grad` for all losses, and factors of sums that are 1. */
static struct meg_loss_factors equal_factors(double grad)
{
    struct meg_loss_factors f;

    for (int i = 0; i < MEG_MAX_LOSSES; i++) {
        f.grad[i] = grad;
        f.sum[i] = 1;
    }
    return f;
}

/* Run forward of the embedding and all layers without dropout. */
static void forward_no_dropout(struct meg_model *g, const struct meg_batch *x)
{
    const struct meg_loss_factors factors = equal_factors(0);

    model_load_batch(g, 0, x, &factors, false);
    params_needed(g, 0, 1, false);
    model_embed_fwd(g, 0);
    model_layers_fwd(g, 0, 0, NULL);
}

double meg_model_loss(struct meg_model *g, const struct meg_batch *x, float *token_loss)
{
    double sum[MEG_MAX_LOSSES];

    meg_model_zero_loss(g);
    forward_no_dropout(g, x);
    meg_model_slot_loss(g, 0);
    if (token_loss)
        meg_device_read(g->device, g->state->ctx.stream, token_loss, g->state->loss[0],
                        (size_t)(x->s * x->b) * sizeof *token_loss);
    meg_model_read_losses(g, sum);
    return sum[0];
}

double meg_model_forward_backward(struct meg_model *g, const struct meg_batch *x, double scale)
{
    const struct meg_loss_factors factors = equal_factors(scale);
    double sum[MEG_MAX_LOSSES];

    meg_model_zero_loss(g);
    meg_model_forward(g, 0, 0, x, &factors, NULL, NULL);
    meg_model_backward(g, 0, 0, NULL, NULL);
    if (g->run.defers_wgrad)
        meg_model_backward_weight(g, 0, 0);
    meg_model_read_losses(g, sum);
    return sum[0];
}

/* Return the language-model head, which is the first head. */
static struct meg_lm_head_weights *lm_head(const struct meg_model *g)
{
    MEG_ASSERT(g->state->desc.head[0].type == &meg_lm_head);
    return g->state->head[0];
}

int64_t model_vocab(const struct meg_model *g)
{
    return lm_head(g)->logits.cols;
}

void model_logits_to_host(struct meg_model *g, int64_t first, int64_t rows, int64_t nkept, float *out)
{
    struct meg_model_state *st = g->state;
    const struct meg_mat x = meg_lm_head_transform(&st->ctx, lm_head(g), meg_mat_rows(st->lnf, first, rows));
    const struct meg_mat y = meg_lm_head_logits(&st->ctx, lm_head(g), x);

    MEG_ASSERT_EQ(y.dtype, MEG_DTYPE_F32);
    MEG_ASSERT_EQ(st->dim.tp, 1);
    for (int64_t i = 0; i < nkept; i++)
        meg_device_read(g->device, st->ctx.stream, out + i * y.cols, meg_mat_rows(y, i, 1).p,
                        (size_t)y.cols * sizeof *out);
}

int64_t meg_model_logit_rows(const struct meg_model *g)
{
    return lm_head(g)->logits.rows;
}

void meg_model_loss_logits(struct meg_model *g, int64_t first, int64_t rows, float *logits)
{
    MEG_ASSERT_EQ(first % meg_model_logit_rows(g), 0);
    MEG_ASSERT_LE(rows, meg_model_logit_rows(g));
    model_logits_to_host(g, first, rows, rows, logits);
}

void meg_model_logits(struct meg_model *g, const struct meg_batch *x, float *logits)
{
    const int64_t n = x->s * x->b, chunk = meg_model_logit_rows(g), v = model_vocab(g);

    forward_no_dropout(g, x);
    head_params_needed(g, false);
    model_final_norm_fwd(g, 0);
    for (int64_t i = 0; i < n; i += chunk) {
        const int64_t rows = chunk < n - i ? chunk : n - i;

        model_logits_to_host(g, i, rows, rows, logits + i * v);
    }
}
