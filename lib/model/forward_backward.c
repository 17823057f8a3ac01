/* forward_backward.c - forward and backward of a micro-batch through the chunks of a model. */
#include "model/internal.h"

bool model_has_embedding(const struct meg_model *g, int64_t chunk)
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

struct meg_mat model_boundary_rows(const struct meg_model *g, const void *p)
{
    const struct model_dims *d = &g->state->dim;

    return model_residual_rows(g, meg_mat((void *)p, g->run.residual_dtype, d->residual_rows, d->h));
}

void model_params_needed(const struct meg_model *g, int64_t layer_group, int64_t next, bool is_backward)
{
    if (g->hooks.params_needed)
        g->hooks.params_needed(g->hooks.user, (int)layer_group, (int)next, is_backward);
}

void model_grads_ready(const struct meg_model *g, int64_t layer_group)
{
    if (g->hooks.grads_ready)
        g->hooks.grads_ready(g->hooks.user, (int)layer_group);
}

void meg_model_zero_grads(struct meg_model *g)
{
    struct meg_model_state *st = g->state;

    for (int64_t i = 0; i < st->dim.nlayers; i++)
        st->layer[i].has_grads = st->layer[i].has_wgrads = false;
    st->embed_has_grads = st->head_has_grads = false;
}

void model_begin_grads(struct meg_model *g, bool *has_grads)
{
    g->state->ctx.accumulates_grads = *has_grads;
    *has_grads = !g->run.shards_grads;
}

/* Compute y, the hidden states before the first layer, from the tokens of the current micro-batch. */
static void embed_fwd(struct meg_model *g, struct meg_mat y)
{
    meg_embed_fwd(&g->state->ctx, y, &g->state->in, &g->state->embed);
}

void model_embed_fwd(struct meg_model *g, int64_t slot)
{
    const struct model_slot *q = &g->state->slot[slot];

    embed_fwd(g, model_residual_rows(g, q->layer[0].block[0].x));
}

/* Run forward of a chunk without layers.  The head reads the input of its chunk in the backward pass. */
static void empty_chunk_fwd(struct meg_model *g, int64_t chunk, struct model_slot *q, const void *in, void *out)
{
    const struct meg_mat y = model_boundary_rows(g, out);

    if (model_has_embedding(g, chunk))
        embed_fwd(g, y);
    else if (has_head(g, chunk))
        q->last_out.p = (void *)in;
    else
        model_copy(g, out, in, y);
}

void meg_model_forward(struct meg_model *g, int64_t chunk, int64_t slot, const struct meg_batch *x,
                       const struct meg_loss_factors *factors, const void *in, void *out)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];

    model_load_batch(g, slot, x, factors, true);
    if (model_has_embedding(g, chunk))
        model_params_needed(g, 0, 1, false);
    if (!has_layers(g, chunk)) {
        empty_chunk_fwd(g, chunk, q, in, out);
        return;
    }
    if (model_has_embedding(g, chunk))
        model_embed_fwd(g, slot);
    else
        q->layer[st->chunk[chunk].begin].block[0].x.p = (void *)in;
    model_layers_fwd(g, chunk, slot, out);
}

void meg_model_backward(struct meg_model *g, int64_t chunk, int64_t slot, const void *d_out, void *d_in)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];
    struct meg_mat d_residual, dx, dy;

    MEG_ASSERT(g->run.is_training);
    model_set_current_batch(g, q);
    d_residual = model_residual_rows(g, st->d_residual);
    dx = model_has_embedding(g, chunk) ? d_residual : model_boundary_rows(g, d_in);
    dy = !has_head(g, chunk) ? model_boundary_rows(g, d_out) : has_layers(g, chunk) ? d_residual : dx;
    if (has_head(g, chunk))
        model_heads_bwd(g, slot, dy);
    if (has_layers(g, chunk))
        model_layers_bwd(g, chunk, q, dx, dy);
    else if (model_has_embedding(g, chunk))
        dx = dy;
    else if (!has_head(g, chunk))
        model_copy(g, dx.p, dy.p, dx);
    if (model_has_embedding(g, chunk)) {
        model_begin_grads(g, &st->embed_has_grads);
        meg_embed_bwd(&st->ctx, dx, &st->in, &st->embed);
        model_grads_ready(g, 0);
    }
}

void meg_model_backward_weight(struct meg_model *g, int64_t chunk, int64_t slot)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];

    model_set_current_batch(g, q);
    for (int64_t i = st->chunk[chunk].end; i-- > st->chunk[chunk].begin;) {
        model_begin_grads(g, &st->layer[i].has_wgrads);
        model_layer_bwd_weight(g, &st->layer[i], &q->layer[i]);
        model_grads_ready(g, model_group_of(g, i));
    }
}

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
    model_params_needed(g, 0, 1, false);
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

void meg_model_logits(struct meg_model *g, const struct meg_batch *x, float *logits)
{
    const int64_t n = x->s * x->b, chunk = meg_model_logit_rows(g), v = model_vocab(g);

    forward_no_dropout(g, x);
    model_head_params_needed(g, false);
    model_final_norm_fwd(g, 0);
    for (int64_t i = 0; i < n; i += chunk) {
        const int64_t rows = chunk < n - i ? chunk : n - i;

        model_logits_to_host(g, i, rows, rows, logits + i * v);
    }
}
