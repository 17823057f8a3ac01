/* forward_backward.c - forward and backward of a micro-batch through the chunks of a model. */
#include "model/internal.h"

static bool has_layers(const struct model_segment *x)
{
    return x->begin < x->end;
}

/* Return whether a chunk has an embedding. */
static bool has_embedding(const struct model_chunk *c)
{
    return c->segment[0].has_embedding || c->segment[1].has_embedding;
}

/* Return whether a chunk uses parameters of layer group 0, except in the heads. */
static bool uses_group0(const struct meg_model *g, const struct model_chunk *c)
{
    bool is_used = has_embedding(c);

    for (int k = 0; k < g->state->desc.nstacks; k++)
        is_used |= g->state->desc.stack[k].rel_bias && has_layers(&c->segment[k]);
    return is_used;
}

/*
 * Return whether this chunk skips the stack of segment x.  Only models with two stacks skip one: in a model of one
 * stack, a chunk without layers still computes the embedding or the heads, or copies its input to its output.
 */
static bool is_empty_segment(const struct meg_model *g, const struct model_segment *x)
{
    return g->state->desc.nstacks > 1 && !has_layers(x);
}

int meg_model_boundary(const struct meg_model *g, struct meg_boundary_tensor *tensor)
{
    const struct model_dims *d = &g->state->dim;
    const int64_t rows[] = { d->most.residual, d->stack[0].residual };
    const enum meg_dtype dtype[] = { g->run.residual_dtype, g->run.dtype };
    const int n = g->state->desc.nstacks;

    for (int i = 0; i < n; i++)
        tensor[i] = (struct meg_boundary_tensor){ rows[i] * d->h, dtype[i] };
    return n;
}

void meg_model_transferred(const struct meg_model *g, unsigned *transferred)
{
    const struct meg_layout *l = &g->mesh->layout;

    for (int64_t v = 0; v < l->pp * l->vp; v++)
        transferred[v] = meg_desc_boundary(&g->state->desc, l->first_layer ? l->first_layer[v] : 0);
}

struct meg_ctx model_ctx(const struct meg_model *g, const struct meg_call *call)
{
    struct meg_ctx c = g->state->ctx;

    c.call = *call;
    return c;
}

void model_run_pass(const struct meg_model *g, struct meg_graphs *graphs, void (*run)(const void *pass),
                    const void *pass, size_t nbytes)
{
    if (g->run.uses_graphs)
        meg_graphs_run(graphs, g->device, run, pass, nbytes);
    else
        run(pass);
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
        st->layer[i].has_grads = st->layer[i].has_wgrads = st->layer[i].has_run_backward = false;
    st->embed_has_grads = st->head_has_grads = false;
    for (int k = 0; k < MEG_MAX_STACKS; k++)
        st->rel_bias_has_grads[k] = false;
}

bool model_begin_grads(const struct meg_model *g, bool *has_grads)
{
    const bool accumulates = *has_grads;

    *has_grads = !g->run.shards_grads;
    return accumulates;
}

/* Return the number of rows of the output of the encoder for the micro-batch of a slot. */
static int64_t memory_rows(const struct meg_model *g, const struct model_slot *q)
{
    return q->stack[0].s * q->b / (g->state->ctx.has_sp ? g->state->dim.tp : 1);
}

/*
 * The arguments of a pass of the embedding, and the key of its graph: a struct without padding.  x is the hidden states
 * before the first layer of a stack, or their gradient.
 */
struct embed_pass {
    struct meg_call call;
    struct meg_model *g;
    struct meg_embed_ids ids;
    const struct slot_stack *q;
    void *x;
};

/* Return a pass of the embedding of the current stack. */
static struct embed_pass embed_pass(struct meg_model *g, const struct slot_stack *q, struct meg_mat x)
{
    struct meg_model_state *st = g->state;
    const struct meg_stack *stack = &st->desc.stack[st->stack];

    return (struct embed_pass){ .call = st->ctx.call,
                                .g = g,
                                .ids = { .tokens = *meg_batch_array(&st->in, stack->tokens),
                                         .position_ids = st->ctx.call.position_ids,
                                         .token_types = st->in.token_types,
                                         .layer = stack->begin },
                                .q = q,
                                .x = x.p };
}

/* Return the buffers of the norm of the word embedding; y is a workspace. */
static struct meg_embed_norm embed_norm(const struct embed_pass *p, struct meg_mat y)
{
    return (struct meg_embed_norm){ model_residual_rows(p->g, p->q->words), p->q->word_stats,
                                    model_residual_rows(p->g, y) };
}

static void embed_fwd(const void *pass)
{
    const struct embed_pass *p = pass;
    struct meg_ctx c = model_ctx(p->g, &p->call);
    struct meg_embed_norm norm = embed_norm(p, p->g->state->sublayer_out);

    meg_embed_fwd(&c, model_residual(p->g, p->x), &p->ids, &norm, &p->g->state->embed);
}

static void embed_bwd(const void *pass)
{
    const struct embed_pass *p = pass;
    struct meg_ctx c = model_ctx(p->g, &p->call);
    const struct meg_embed_norm norm = embed_norm(p, p->g->state->d_norm);

    meg_embed_bwd(&c, model_residual(p->g, p->x), &p->ids, &norm, &p->g->state->embed);
}

/* Compute x, the hidden states before the first layer of the current stack. */
static void run_embed_fwd(struct meg_model *g, struct slot_stack *q, struct meg_mat x)
{
    const struct embed_pass p = embed_pass(g, q, x);

    model_run_pass(g, &q->embed_fwd, embed_fwd, &p, sizeof p);
}

/* Compute the gradients of the embeddings from dx, the gradient of the hidden states. */
static void run_embed_bwd(struct meg_model *g, struct slot_stack *q, struct meg_mat dx, bool accumulates_grads)
{
    struct embed_pass p = embed_pass(g, q, dx);

    p.call.accumulates_grads = accumulates_grads;
    model_run_pass(g, &q->embed_bwd, embed_bwd, &p, sizeof p);
}

/*
 * Run forward of a chunk without layers: compute the embedding, pass the receive buffer to the heads as the output of
 * the stack, or copy the input of the chunk to its output.
 */
static void empty_segment_fwd(struct meg_model *g, const struct model_segment *x, struct slot_stack *q, void *const *in,
                              void *const *out)
{
    if (x->has_embedding)
        run_embed_fwd(g, q, model_residual(g, out[MEG_BOUNDARY_RESIDUAL]));
    else if (x->has_norm)
        q->last_out.p = in[MEG_BOUNDARY_RESIDUAL];
    else
        model_copy(g, out[MEG_BOUNDARY_RESIDUAL], in[MEG_BOUNDARY_RESIDUAL],
                   model_residual(g, out[MEG_BOUNDARY_RESIDUAL]));
}

/* Run forward of the current stack in a chunk, and of the norm after the encoder. */
static void segment_fwd(struct meg_model *g, const struct model_segment *x, struct model_slot *q, void *const *in,
                        void *const *out)
{
    struct meg_model_state *st = g->state;
    struct slot_stack *stack = &q->stack[st->stack];
    struct meg_mat input, y;

    if (!has_layers(x)) {
        empty_segment_fwd(g, x, stack, in, out);
        return;
    }
    if (!x->has_embedding)
        q->layer[x->begin].block[0].x.p = in[MEG_BOUNDARY_RESIDUAL];
    input = model_residual_rows(g, q->layer[x->begin].block[0].x);
    if (x->has_embedding)
        run_embed_fwd(g, stack, input);
    y = x->has_norm ? model_residual_rows(g, stack->last_out) : model_residual(g, out[MEG_BOUNDARY_RESIDUAL]);
    model_layers_fwd(g, x, q, y);
    if (x->has_norm && st->stack < model_last_stack(g))
        meg_norm_fwd(&st->ctx, model_residual_rows(g, stack->memory), y, &stack->stats, &st->final_norm[st->stack]);
}

void model_stack_fwd(struct meg_model *g, int64_t chunk, int k, struct model_slot *q, void *const *in, void *const *out)
{
    MEG_ASSERT_LT(0, g->state->ctx.call.s * g->state->ctx.call.b);
    segment_fwd(g, &g->state->chunk[chunk].segment[k], q, in, out);
}

/*
 * Run forward of the embeddings and layers of a chunk, and of the norm after the encoder, but neither of the norm after
 * the last stack nor of the heads.  For `in` and `out`, see meg_model_forward.
 */
static void chunk_fwd(struct meg_model *g, int64_t chunk, struct model_slot *q, void *const *in, void *const *out)
{
    struct meg_model_state *st = g->state;
    const struct model_chunk *c = &st->chunk[chunk];

    if (has_embedding(c))
        model_params_needed(g, 0, 1, false);
    if (st->desc.nstacks > 1 && is_empty_segment(g, &c->segment[0]))
        q->stack[0].memory.p = in[MEG_BOUNDARY_MEMORY];
    for (int k = 0; k < st->desc.nstacks; k++)
        if (!is_empty_segment(g, &c->segment[k])) {
            model_set_current(g, q, k);
            model_stack_fwd(g, chunk, k, q, in, out);
        }
    if (st->desc.nstacks > 1 && !c->has_head && (c->segment[0].has_norm || is_empty_segment(g, &c->segment[0]))) {
        const struct meg_mat memory = q->stack[0].memory;

        model_copy(g, out[MEG_BOUNDARY_MEMORY], memory.p, meg_mat_rows(memory, 0, memory_rows(g, q)));
    }
}

void meg_model_forward(struct meg_model *g, int64_t chunk, int64_t slot, const struct meg_batch *x,
                       const struct meg_loss_factors *factors, void *const *in, void *const *out)
{
    model_load_batch(g, slot, x, factors, true);
    chunk_fwd(g, chunk, &g->state->slot[slot], in, out);
}

/*
 * Initialize the gradient of the encoder's output.  The initial value is the gradient that the next chunk has sent or,
 * in the last chunk, 0.  The cross-attention of the chunk then adds its gradients.
 */
static void begin_memory_grad(struct meg_model *g, const struct model_chunk *c, const struct model_slot *q,
                              void *const *d_out, void *const *d_in)
{
    struct meg_model_state *st = g->state;
    struct meg_mat sum = meg_mat_rows(st->d_memory, 0, memory_rows(g, q));

    if (is_empty_segment(g, &c->segment[0]))
        st->d_memory.p = sum.p = d_in[MEG_BOUNDARY_MEMORY];
    if (c->has_head)
        g->op->zero(st->ctx.stream, sum.p, (size_t)(sum.rows * sum.cols) * meg_dtype_size(sum.dtype));
    else
        model_copy(g, sum.p, d_out[MEG_BOUNDARY_MEMORY], sum);
}

/* Run backward of the norm after the encoder, the current stack.  Compute dx, the gradient of the norm's input. */
static void encoder_norm_bwd(struct meg_model *g, const struct model_segment *x, const struct model_slot *q,
                             struct meg_mat dx)
{
    struct meg_model_state *st = g->state;
    const struct slot_stack *stack = &q->stack[st->stack];
    struct meg_ctx c = st->ctx;

    model_params_needed(g, model_group_of(g, x->end - 1), -1, true);
    c.call.accumulates_grads = st->layer[x->end - 1].has_grads;
    meg_norm_bwd(&c, dx, meg_no_mat(), model_residual_rows(g, st->d_memory), model_residual_rows(g, stack->last_out),
                 &stack->stats, &st->final_norm[st->stack]);
}

/*
 * Run backward of the current stack in a chunk.  `has_embed_grads` states whether this pass has written gradients of
 * the embeddings, to which those of this stack are added.
 */
static void segment_bwd(struct meg_model *g, const struct model_segment *x, struct model_slot *q, bool has_embed_grads,
                        void *const *d_out, void *const *d_in)
{
    struct meg_model_state *st = g->state;
    const struct meg_mat d_residual = model_residual_rows(g, st->d_residual);
    struct meg_mat dx = x->has_embedding ? d_residual : model_residual(g, d_in[MEG_BOUNDARY_RESIDUAL]);
    const struct meg_mat dy = !x->has_norm    ? model_residual(g, d_out[MEG_BOUNDARY_RESIDUAL])
                              : has_layers(x) ? d_residual
                                              : dx;

    if (x->has_norm && st->stack == model_last_stack(g))
        model_heads_bwd(g, q, dy);
    else if (x->has_norm)
        encoder_norm_bwd(g, x, q, dy);
    if (has_layers(x))
        model_layers_bwd(g, x, q, dx, dy);
    else if (x->has_embedding)
        dx = dy;
    else if (!x->has_norm)
        model_copy(g, dx.p, dy.p, dx);
    if (x->has_embedding)
        run_embed_bwd(g, &q->stack[st->stack], dx, model_begin_grads(g, &st->embed_has_grads) || has_embed_grads);
}

void meg_model_backward(struct meg_model *g, int64_t chunk, int64_t slot, void *const *d_out, void *const *d_in)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];
    const struct model_chunk *c = &st->chunk[chunk];

    MEG_ASSERT(g->run.is_training);
    if (st->desc.nstacks > 1 && (c->segment[0].has_norm || is_empty_segment(g, &c->segment[0])))
        begin_memory_grad(g, c, q, d_out, d_in);
    for (int k = st->desc.nstacks; k-- > 0;) {
        if (is_empty_segment(g, &c->segment[k]))
            continue;
        model_set_current(g, q, k);
        segment_bwd(g, &c->segment[k], q, k == 0 && c->segment[1].has_embedding, d_out, d_in);
    }
    if (uses_group0(g, c))
        model_grads_ready(g, 0);
}

void meg_model_backward_weight(struct meg_model *g, int64_t chunk, int64_t slot)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];

    for (int k = st->desc.nstacks; k-- > 0;) {
        const struct model_segment *x = &st->chunk[chunk].segment[k];

        if (!has_layers(x))
            continue;
        model_set_current(g, q, k);
        for (int64_t i = x->end; i-- > x->begin;) {
            model_layer_bwd_weight(g, &st->layer[i], &q->layer[i]);
            model_grads_ready(g, model_group_of(g, i));
        }
    }
}

/* Return factors for all losses: `grad` in the gradients, and 1 in the sums. */
static struct meg_loss_factors equal_factors(double grad)
{
    struct meg_loss_factors f;

    for (int i = 0; i < MEG_MAX_LOSSES; i++) {
        f.grad[i] = grad;
        f.sum[i] = 1;
    }
    return f;
}

/* Run forward of the embeddings and all layers without dropout. */
static void forward_no_dropout(struct meg_model *g, const struct meg_batch *x)
{
    const struct meg_loss_factors factors = equal_factors(0);
    const struct meg_model_desc *desc = &g->state->desc;

    if (desc->rope[0].half)
        for (int k = 0; k < desc->nstacks; k++)
            MEG_ASSERT_LE(meg_batch_length(x, desc->stack[k].tokens), desc->rope[0].positions);
    model_load_batch(g, 0, x, &factors, false);
    chunk_fwd(g, 0, &g->state->slot[0], NULL, NULL);
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
    model_final_norm_fwd(g, &g->state->slot[0]);
    for (int64_t i = 0; i < n; i += chunk) {
        const int64_t rows = chunk < n - i ? chunk : n - i;

        model_read_logits(g, i, rows, logits + i * v);
    }
}
