/* forward_backward.c - forward and backward of a micro-batch through the layers. */
#include <string.h>
#include "model/internal.h"

/* ---- one layer ---- */

static struct meg_residual_epilogue epilogue(const struct meg_ctx *c, const struct meg_linear_weights *l, double p,
                                             int layer, enum meg_drop_site site)
{
    const struct meg_residual_epilogue r = { l->bias, l->dbias, meg_ctx_drop(c, p, layer, site) };

    return r;
}

static struct meg_residual_epilogue attn_epilogue(const struct meg_ctx *c, const struct model_layer *l, double p)
{
    return epilogue(c, &l->attn.proj, p, l->attn.layer, MEG_DROP_ATTN_OUT);
}

static struct meg_residual_epilogue mlp_epilogue(const struct meg_ctx *c, const struct model_layer *l, double p)
{
    return epilogue(c, &l->mlp.fc2, p, l->attn.layer, MEG_DROP_MLP_OUT);
}

/* Compute y = m + drop(mlp(norm(m))), where m = x + drop(attn(norm(x))). */
static void layer_fwd(struct meg_ctx *c, struct meg_mat y, struct model_acts *a, struct meg_mat sublayer_out,
                      const struct model_layer *l, double dropout)
{
    const struct meg_residual_epilogue attn = attn_epilogue(c, l, dropout), mlp = mlp_epilogue(c, l, dropout);

    meg_norm_fwd(c, a->ln1, a->x, &a->ln1_stats, &l->norm1);
    meg_attn_fwd(c, sublayer_out, a->ln1, &a->attn, &l->attn);
    meg_add_norm_fwd(c, a->residual, a->ln2, a->x, sublayer_out, &attn, &a->ln2_stats, &l->norm2);
    meg_mlp_fwd(c, sublayer_out, a->ln2, &a->mlp, &l->mlp);
    meg_add_fwd(c, y, a->residual, sublayer_out, &mlp);
}

/* Compute dx, the gradient of x, and the parameter gradients from dy, the gradient of y. */
static void layer_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct model_grads *d,
                      const struct model_acts *a, const struct model_layer *l, double dropout)
{
    const struct meg_residual_epilogue attn = attn_epilogue(c, l, dropout), mlp = mlp_epilogue(c, l, dropout);
    struct meg_mat d_out; /* gradient of a sublayer's output */

    d_out = meg_add_bwd(c, d->mlp_out, dy, &mlp);
    meg_mlp_bwd(c, d->ln, d_out, a->ln2, &a->mlp, &d->mlp, &l->mlp);
    meg_norm_bwd(c, d->x, dy, d->ln, a->residual, &a->ln2_stats, &l->norm2);
    d_out = meg_add_bwd(c, d->attn_out, d->x, &attn);
    meg_attn_bwd(c, d->ln, d_out, a->ln1, &a->attn, &d->attn, &l->attn);
    meg_norm_bwd(c, dx, d->x, d->ln, a->x, &a->ln1_stats, &l->norm1);
}

/* Compute the weight gradients that layer_bwd deferred (zero-bubble schedules). */
static void layer_bwd_weight(struct meg_ctx *c, const struct model_grads *d, const struct model_acts *a,
                             const struct model_layer *l)
{
    meg_mlp_bwd_weight(c, d->mlp_out, a->ln2, &a->mlp, &d->mlp, &l->mlp);
    meg_attn_bwd_weight(c, d->attn_out, a->ln1, &a->attn, &d->attn, &l->attn);
}

/* ---- a micro-batch in its slot ---- */

/*
 * Set the number of rows of all buffers.  A micro-batch that is smaller than the largest one uses the first rows of
 * each buffer.
 */
static void resize_rows(struct meg_model_state *st, struct model_slot *q, int64_t n, int64_t residual_rows)
{
    for (int64_t i = 0; i < st->dim.layers; i++) {
        struct model_acts *a = &q->acts[i];
        struct model_grads *d = &q->grads[i];

        a->x.rows = a->ln1.rows = a->residual.rows = a->ln2.rows = residual_rows;
        a->attn.qkv.rows = a->attn.o.rows = a->mlp.pre.rows = a->mlp.mid.rows = n;
        d->x.rows = d->ln.rows = d->attn_out.rows = d->mlp_out.rows = residual_rows;
        d->attn.qkv.rows = d->attn.o.rows = d->mlp.pre.rows = d->mlp.mid.rows = n;
        q->saved[i].rows = residual_rows / st->dim.tp;
    }
    q->last_out.rows = st->lnf.rows = st->sublayer_out.rows = st->grads.x.rows = st->grads.ln.rows = residual_rows;
}

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

    c->s = q->s;
    c->b = q->b;
    c->position_ids = q->in->position_ids;
    c->sample_id = q->has_dropout ? q->in->sample_id : NULL;
    c->doc_start = q->has_doc_start ? q->in->doc_start : NULL;
    resize_rows(g->state, q, q->s * q->b, q->s * q->b / (c->has_sp ? g->state->dim.tp : 1));
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

static void upload_array(struct meg_model *g, const struct meg_batch *x, void *to, const void *from, int64_t nbytes)
{
    if (x->is_pinned)
        g->op->upload_pinned(g->device->copy, to, from, (size_t)nbytes);
    else
        g->op->upload(g->device->copy, to, from, (size_t)nbytes);
}

/* Make the compute stream wait for the uploads. */
static void finish_upload(struct meg_model *g, struct model_slot *q)
{
    g->op->event_record(g->device->copy, q->in->uploaded);
    g->op->event_wait(g->device->compute, q->in->uploaded);
}

void model_load_batch(struct meg_model *g, int64_t slot, const struct meg_batch *x, double scale, bool has_dropout)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];
    const int64_t n = x->s * x->b;

    MEG_ASSERT_LT(slot, st->dim.slots);
    MEG_ASSERT_LT(0, n);
    MEG_ASSERT_LE(n, st->dim.n);
    q->s = x->s;
    q->b = x->b;
    q->has_doc_start = x->doc_start;
    q->has_dropout = has_dropout && x->sample_id;
    q->has_loss_mask = x->loss_mask && st->dim.has_head;
    q->scale = scale;
    start_upload(g, q);
    upload_array(g, x, q->in->tokens, x->tokens, n * (int64_t)sizeof *x->tokens);
    upload_array(g, x, q->in->position_ids, x->position_ids, n * (int64_t)sizeof *x->position_ids);
    if (q->has_doc_start)
        upload_array(g, x, q->in->doc_start, x->doc_start, n * (int64_t)sizeof *x->doc_start);
    if (q->has_dropout)
        upload_array(g, x, q->in->sample_id, x->sample_id, x->b * (int64_t)sizeof *x->sample_id);
    if (x->labels && st->dim.has_head)
        upload_array(g, x, q->in->labels, x->labels, n * (int64_t)sizeof *x->labels);
    if (q->has_loss_mask)
        upload_array(g, x, q->in->loss_mask, x->loss_mask, n * (int64_t)sizeof *x->loss_mask);
    finish_upload(g, q);
    set_current_batch(g, q);
}

/* ---- a chunk of layers ---- */

static bool has_embedding(const struct meg_model *g, int64_t chunk)
{
    return meg_layout_is_first(g->mesh->coords.pp, chunk);
}

static bool has_head(const struct meg_model *g, int64_t chunk)
{
    return meg_layout_is_last(&g->mesh->layout, g->mesh->coords.pp, chunk);
}

static struct model_layer *layers_of(const struct meg_model *g, int64_t chunk)
{
    return g->state->layer + chunk * g->state->dim.layers;
}

size_t meg_model_boundary_nbytes(const struct meg_model *g)
{
    return (size_t)(g->state->dim.residual_rows * g->state->dim.width.h) * meg_dtype_size(g->run.residual_dtype);
}

/* Return p, a send or receive buffer of the pipeline, as a matrix of the hidden states of the current micro-batch. */
static struct meg_mat boundary_rows(const struct meg_model *g, const struct model_slot *q, const void *p)
{
    return meg_mat((void *)p, g->run.residual_dtype, q->acts[0].x.rows, q->acts[0].x.cols);
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

    return i > 0 || has_embedding(g, chunk) ? q->saved[i] : none;
}

static void save_input(struct meg_model *g, int64_t chunk, struct model_slot *q, int64_t i)
{
    const struct meg_mat shard = saved_shard(g, chunk, q, i);

    if (shard.p)
        copy_device(g, shard.p, meg_mat_rows(q->acts[i].x, g->mesh->coords.tp * shard.rows, shard.rows).p, shard);
}

static void restore_input(struct meg_model *g, int64_t chunk, struct model_slot *q, int64_t i)
{
    const struct meg_mat shard = saved_shard(g, chunk, q, i);
    const struct meg_ctx *c = &g->state->ctx;

    if (shard.p)
        meg_all_gather(c->tp, c->stream, q->acts[i].x.p, shard.p, shard.rows * shard.cols, shard.dtype);
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

/* Return the layer group of layer i of a chunk. */
static int64_t group_of(const struct meg_model *g, int64_t chunk, int64_t i)
{
    return 1 + layers_of(g, chunk)[i].attn.layer;
}

static void head_params_needed(const struct meg_model *g, bool is_backward)
{
    params_needed(g, g->conf.num_layers + 1, g->conf.is_untied ? -1 : 0, is_backward);
    if (!g->conf.is_untied)
        params_needed(g, 0, -1, is_backward);
}

void meg_model_zero_grads(struct meg_model *g)
{
    struct meg_model_state *st = g->state;

    for (int64_t i = 0; i < st->dim.chunks * st->dim.layers; i++)
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

/* Run forward of layers [begin, end) of a chunk; the last layer of the chunk writes to y. */
static void run_layers(struct meg_model *g, int64_t chunk, struct model_slot *q, int64_t begin, int64_t end,
                       struct meg_mat y)
{
    struct meg_model_state *st = g->state;

    for (int64_t i = begin; i < end; i++) {
        params_needed(g, group_of(g, chunk, i), group_of(g, chunk, i) + 1, false);
        layer_fwd(&st->ctx, i + 1 < st->dim.layers ? q->acts[i + 1].x : y, &q->acts[i], st->sublayer_out,
                  &layers_of(g, chunk)[i], g->conf.hidden_dropout);
    }
}

void model_layers_fwd(struct meg_model *g, int64_t chunk, int64_t slot, void *out)
{
    struct model_slot *q = &g->state->slot[slot];
    const struct meg_mat y = has_head(g, chunk) ? q->last_out : boundary_rows(g, q, out);

    for (int64_t i = 0; i < g->state->dim.layers; i++) {
        save_input(g, chunk, q, i);
        run_layers(g, chunk, q, i, i + 1, y);
    }
}

void meg_model_forward(struct meg_model *g, int64_t chunk, int64_t slot, const struct meg_batch *x, double scale,
                       const void *in, void *out)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];

    model_load_batch(g, slot, x, scale, true);
    q->acts[0].x.p = has_embedding(g, chunk) ? q->embed_out : (void *)in;
    if (has_embedding(g, chunk)) {
        params_needed(g, 0, 1, false);
        meg_embed_fwd(&st->ctx, q->acts[0].x, q->in->tokens, q->in->position_ids, &st->embed);
    }
    model_layers_fwd(g, chunk, slot, out);
}

/*
 * Recompute the activations of layers [begin, end) from the input of layer begin.  The output of the last layer, which
 * is not needed, is written to a scratch buffer.
 */
static void recompute_layers(struct meg_model *g, int64_t chunk, struct model_slot *q, int64_t begin, int64_t end)
{
    struct meg_model_state *st = g->state;

    restore_input(g, chunk, q, begin);
    for (int64_t i = begin; i < end; i++) {
        params_needed(g, group_of(g, chunk, i), i + 1 < end ? group_of(g, chunk, i + 1) : -1, false);
        layer_fwd(&st->ctx, i + 1 < end ? q->acts[i + 1].x : st->grads.ln, &q->acts[i], st->sublayer_out,
                  &layers_of(g, chunk)[i], g->conf.hidden_dropout);
    }
}

/*
 * Return the layer group that the backward pass reads after layer i, or -1 if i is 0.  Normally, return the group of
 * layer i - 1.  If layer i - 1 ends a range of layers that are recomputed together, return the group of the range's
 * first layer.
 */
static int64_t next_bwd_group(const struct meg_model *g, int64_t chunk, int64_t i)
{
    int64_t begin, end;

    if (i == 0)
        return -1;
    if (model_recompute_range(&g->run, g->state->dim.layers, i - 1, &begin, &end) && i == end)
        return group_of(g, chunk, begin);
    return group_of(g, chunk, i - 1);
}

/* Run backward through all layers of a chunk: compute dx from dy. */
static void layers_bwd(struct meg_model *g, int64_t chunk, struct model_slot *q, struct meg_mat dx, struct meg_mat dy)
{
    struct meg_model_state *st = g->state;

    for (int64_t i = st->dim.layers; i-- > 0;) {
        int64_t begin, end;

        if (model_recompute_range(&g->run, st->dim.layers, i, &begin, &end) && i + 1 == end)
            recompute_layers(g, chunk, q, begin, end);
        params_needed(g, group_of(g, chunk, i), next_bwd_group(g, chunk, i), true);
        begin_grads(g, &layers_of(g, chunk)[i].has_grads);
        layer_bwd(&st->ctx, i > 0 ? st->grads.x : dx, dy, &q->grads[i], &q->acts[i], &layers_of(g, chunk)[i],
                  g->conf.hidden_dropout);
        if (!g->run.defers_wgrad)
            grads_ready(g, group_of(g, chunk, i));
        dy = st->grads.x;
    }
}

void meg_model_zero_loss(struct meg_model *g)
{
    g->op->zero(g->state->ctx.stream, g->loss_sum, sizeof *g->loss_sum);
}

double meg_model_read_loss(struct meg_model *g)
{
    double sum;

    meg_device_read(g->device, g->state->ctx.stream, &sum, g->loss_sum, sizeof sum);
    return sum;
}

/* Add sum(loss * loss_mask) over the tokens of a slot to *loss_sum. */
static void add_to_loss_sum(struct meg_model *g, const struct model_slot *q)
{
    g->op->weighted_sum(g->state->ctx.stream, g->loss_sum, g->state->loss, q->has_loss_mask ? q->in->loss_mask : NULL,
                        q->s * q->b);
}

void meg_model_slot_loss(struct meg_model *g, int64_t slot)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];

    set_current_batch(g, q);
    head_params_needed(g, false);
    meg_norm_fwd(&st->ctx, st->lnf, q->last_out, &st->lnf_stats, &st->final_norm);
    meg_lm_head_loss(&st->ctx, st->loss, st->lnf, q->in->labels, &st->head);
    add_to_loss_sum(g, q);
}

/*
 * Compute the losses of a slot, and add sum(loss * loss_mask) to *loss_sum.  Compute the gradients of the head, and
 * d_last_out, the gradient of the output of the last layer.
 */
static void head_bwd(struct meg_model *g, const struct model_slot *q, struct meg_mat d_last_out)
{
    struct meg_model_state *st = g->state;
    struct meg_ctx *c = &st->ctx;
    const struct meg_loss_weight weight = { q->has_loss_mask ? q->in->loss_mask : NULL, q->scale, g->loss_scale };
    const struct meg_mat none = { 0 };

    head_params_needed(g, true);
    begin_grads(g, &st->head_has_grads);
    meg_norm_fwd(c, st->lnf, q->last_out, &st->lnf_stats, &st->final_norm);
    meg_lm_head_fwd_bwd(c, st->loss, st->grads.ln, st->lnf, q->in->labels, weight, &st->head);
    meg_norm_bwd(c, d_last_out, none, st->grads.ln, q->last_out, &st->lnf_stats, &st->final_norm);
    add_to_loss_sum(g, q);
    grads_ready(g, g->conf.num_layers + 1);
    if (!g->conf.is_untied && g->mesh->coords.pp > 0)
        grads_ready(g, 0); /* the last stage's replica of the tied embedding */
}

void meg_model_backward(struct meg_model *g, int64_t chunk, int64_t slot, const void *d_out, void *d_in)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];
    struct meg_mat dx;

    MEG_ASSERT(g->run.is_training);
    set_current_batch(g, q);
    dx = has_embedding(g, chunk) ? st->grads.x : boundary_rows(g, q, d_in);
    if (has_head(g, chunk))
        head_bwd(g, q, st->grads.x);
    layers_bwd(g, chunk, q, dx, has_head(g, chunk) ? st->grads.x : boundary_rows(g, q, d_out));
    if (has_embedding(g, chunk)) {
        begin_grads(g, &st->embed_has_grads);
        meg_embed_bwd(&st->ctx, dx, q->in->tokens, q->in->position_ids, &st->embed);
        grads_ready(g, 0);
    }
}

void meg_model_backward_weight(struct meg_model *g, int64_t chunk, int64_t slot)
{
    struct model_slot *q = &g->state->slot[slot];

    set_current_batch(g, q);
    for (int64_t i = g->state->dim.layers; i-- > 0;) {
        begin_grads(g, &layers_of(g, chunk)[i].has_wgrads);
        layer_bwd_weight(&g->state->ctx, &q->grads[i], &q->acts[i], &layers_of(g, chunk)[i]);
        grads_ready(g, group_of(g, chunk, i));
    }
}

/* ---- without pipeline parallelism ---- */

/* Run forward of the embedding and all layers without dropout. */
static void forward_no_dropout(struct meg_model *g, const struct meg_batch *x)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[0];

    model_load_batch(g, 0, x, 0, false);
    params_needed(g, 0, 1, false);
    meg_embed_fwd(&st->ctx, q->acts[0].x, q->in->tokens, q->in->position_ids, &st->embed);
    model_layers_fwd(g, 0, 0, NULL);
}

double meg_model_loss(struct meg_model *g, const struct meg_batch *x, float *token_loss)
{
    meg_model_zero_loss(g);
    forward_no_dropout(g, x);
    meg_model_slot_loss(g, 0);
    if (token_loss)
        meg_device_read(g->device, g->state->ctx.stream, token_loss, g->state->loss,
                        (size_t)(x->s * x->b) * sizeof *token_loss);
    return meg_model_read_loss(g);
}

double meg_model_forward_backward(struct meg_model *g, const struct meg_batch *x, double scale)
{
    meg_model_zero_loss(g);
    meg_model_forward(g, 0, 0, x, scale, NULL, NULL);
    meg_model_backward(g, 0, 0, NULL, NULL);
    if (g->run.defers_wgrad)
        meg_model_backward_weight(g, 0, 0);
    return meg_model_read_loss(g);
}

void model_logits_to_host(struct meg_model *g, int64_t first, int64_t rows, int64_t nkept, float *out)
{
    struct meg_model_state *st = g->state;
    const struct meg_mat y = meg_mat_rows(st->head.logits, 0, rows), none = { 0 };

    MEG_ASSERT_EQ(y.dtype, MEG_DTYPE_F32);
    MEG_ASSERT_EQ(st->dim.tp, 1);
    g->op->linear_fwd(st->ctx.stream, st->head.out.plan, y, none, meg_mat_rows(st->lnf, first, rows), st->head.out.w,
                      NULL, MEG_ACT_NONE);
    for (int64_t i = 0; i < nkept; i++)
        meg_device_read(g->device, st->ctx.stream, out + i * y.cols, meg_mat_rows(y, i, 1).p,
                        (size_t)y.cols * sizeof *out);
}

int64_t meg_model_logit_rows(const struct meg_model *g)
{
    return g->state->head.logits.rows;
}

void meg_model_loss_logits(struct meg_model *g, int64_t first, int64_t rows, float *logits)
{
    MEG_ASSERT_EQ(first % meg_model_logit_rows(g), 0);
    MEG_ASSERT_LE(rows, meg_model_logit_rows(g));
    model_logits_to_host(g, first, rows, rows, logits);
}

void meg_model_logits(struct meg_model *g, const struct meg_batch *x, float *logits)
{
    struct meg_model_state *st = g->state;
    const int64_t n = x->s * x->b, chunk = st->head.logits.rows, v = st->head.logits.cols;

    forward_no_dropout(g, x);
    head_params_needed(g, false);
    meg_norm_fwd(&st->ctx, st->lnf, st->slot[0].last_out, &st->lnf_stats, &st->final_norm);
    for (int64_t i = 0; i < n; i += chunk) {
        const int64_t rows = chunk < n - i ? chunk : n - i;

        model_logits_to_host(g, i, rows, rows, logits + i * v);
    }
}
