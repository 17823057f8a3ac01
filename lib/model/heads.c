/* heads.c - the heads of a model: losses and logits. */
#include "model/internal.h"

void model_head_params_needed(const struct meg_model *g, bool is_backward)
{
    model_params_needed(g, g->state->desc.nlayers + 1, g->state->desc.is_untied ? -1 : 0, is_backward);
    if (!g->state->desc.is_untied)
        model_params_needed(g, 0, -1, is_backward);
}

void model_final_norm_fwd(struct meg_model *g, const struct model_slot *q)
{
    struct meg_model_state *st = g->state;

    meg_norm_fwd(&st->ctx, model_residual_rows(g, st->lnf),
                 model_residual_rows(g, q->stack[model_last_stack(g)].last_out), &st->lnf_stats,
                 &st->final_norm[model_last_stack(g)]);
}

unsigned meg_model_inputs(const struct meg_model *g)
{
    return g->state->desc.inputs;
}

int meg_model_num_losses(const struct meg_model *g)
{
    return g->state->desc.nlosses;
}

const char *meg_model_loss_name(const struct meg_model *g, int i)
{
    return g->state->desc.loss[i].name;
}

bool meg_model_loss_is_per_sequence(const struct meg_model *g, int i)
{
    return g->state->desc.loss[i].is_per_sequence;
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

/* Add the values of the loss of head i, which have been computed, to the sum of this loss. */
static void add_to_loss_sum(struct meg_ctx *c, const struct meg_model_state *st, int i)
{
    const bool is_per_sequence = st->desc.head[i].type->is_per_sequence;

    meg_ctx_add_loss(c, st->desc.head[i].loss, st->loss[i], is_per_sequence ? NULL : st->in.loss_mask,
                     is_per_sequence ? c->call.b : c->call.s * c->call.b);
}

void meg_model_slot_loss(struct meg_model *g, int64_t slot)
{
    struct meg_model_state *st = g->state;
    struct model_slot *q = &st->slot[slot];

    model_set_current(g, q, model_last_stack(g));
    model_head_params_needed(g, false);
    model_final_norm_fwd(g, q);
    for (int i = 0; i < st->desc.nheads; i++) {
        st->desc.head[i].type->fwd(&st->ctx, st->loss[i], model_residual_rows(g, st->lnf), &st->in, st->head[i]);
        add_to_loss_sum(&st->ctx, st, i);
    }
}

/* The arguments of heads_bwd, and the key of its graph: a struct without padding. */
struct heads_pass {
    struct meg_call call;
    struct meg_model *g;
    const struct model_inputs *in; /* its arrays are those of st->in that `present` has */
    int64_t present;
    void *last_out, *d_last_out;
};

/* Compute the losses of the heads and their gradients. */
static void heads_bwd(const void *pass)
{
    const struct heads_pass *p = pass;
    struct meg_model *g = p->g;
    struct meg_model_state *st = g->state;
    struct meg_ctx c = model_ctx(g, &p->call);
    const struct meg_norm_weights *norm = &st->final_norm[model_last_stack(g)];
    const struct meg_mat lnf = model_residual_rows(g, st->lnf), d_lnf = model_residual_rows(g, st->d_norm);
    const struct meg_mat x = model_residual(g, p->last_out);

    meg_norm_fwd(&c, lnf, x, &st->lnf_stats, norm);
    for (int i = 0; i < st->desc.nheads; i++) {
        const struct meg_head_type *type = st->desc.head[i].type;
        const struct meg_loss_weight weight =
            meg_ctx_loss_weight(&c, st->desc.head[i].loss, type->is_per_sequence ? NULL : st->in.loss_mask);

        type->fwd_bwd(&c, st->loss[i], d_lnf, lnf, &st->in, weight, st->head[i]);
        add_to_loss_sum(&c, st, i);
    }
    meg_norm_bwd(&c, model_residual(g, p->d_last_out), meg_no_mat(), d_lnf, x, &st->lnf_stats, norm);
}

void model_heads_bwd(struct meg_model *g, struct model_slot *q, struct meg_mat d_last_out)
{
    struct meg_model_state *st = g->state;
    struct heads_pass pass = { .call = st->ctx.call,
                               .g = g,
                               .in = q->in,
                               .present = q->in->present,
                               .last_out = q->stack[model_last_stack(g)].last_out.p,
                               .d_last_out = d_last_out.p };

    model_head_params_needed(g, true);
    pass.call.accumulates_grads = model_begin_grads(g, &st->head_has_grads);
    model_run_pass(g, &q->heads_bwd, heads_bwd, &pass, sizeof pass);
    model_grads_ready(g, st->desc.nlayers + 1);
    if (!st->desc.is_untied && !st->dim.uses_group0)
        model_grads_ready(g, 0); /* this stage's replica of the tied embedding */
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

struct meg_mat model_logits(struct meg_model *g, int64_t first, int64_t rows)
{
    struct meg_model_state *st = g->state;
    const struct meg_mat x = meg_lm_head_transform(&st->ctx, lm_head(g), meg_mat_rows(st->lnf, first, rows));
    const struct meg_mat y = meg_lm_head_logits(&st->ctx, lm_head(g), x);

    MEG_ASSERT_EQ(y.dtype, MEG_DTYPE_F32);
    MEG_ASSERT_EQ(st->dim.tp, 1);
    return y;
}

void model_read_logits(struct meg_model *g, int64_t first, int64_t rows, float *out)
{
    meg_device_read_mat(g->device, g->state->ctx.stream, out, model_logits(g, first, rows));
}

int64_t meg_model_logit_rows(const struct meg_model *g)
{
    return lm_head(g)->logits.rows;
}

void meg_model_loss_logits(struct meg_model *g, int64_t first, int64_t rows, float *logits)
{
    MEG_ASSERT_EQ(first % meg_model_logit_rows(g), 0);
    MEG_ASSERT_LE(rows, meg_model_logit_rows(g));
    model_read_logits(g, first, rows, logits);
}
