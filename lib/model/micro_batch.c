/* micro_batch.c - the micro-batches in the slots: uploads, and the current micro-batch. */
#include "model/internal.h"
#include "placement/placement.h"

/* With sequence or context parallelism, upload the global positions of the rows of the residual stream. */
static void set_global_positions(struct meg_model *g)
{
    const struct meg_layout *l = &g->mesh->layout;
    struct meg_model_state *st = g->state;
    struct meg_ctx *c = &st->ctx;
    const int64_t s = l->has_sp ? c->call.s / l->tp : c->call.s, t0 = l->has_sp ? g->mesh->coords.tp * s : 0;

    if (!l->has_sp && l->cp == 1)
        return;
    MEG_ASSERT_EQ(c->call.s, s * (l->has_sp ? l->tp : 1));
    for (int64_t i = 0; i < s; i++)
        st->host_position[i] = (int32_t)meg_layout_position(l, g->mesh->coords.cp, c->call.s * l->cp, t0 + i);
    g->op->upload(c->stream, st->position_of_row, st->host_position, (size_t)s * sizeof *st->position_of_row);
    c->call.position_of_row = st->position_of_row;
}

int model_last_stack(const struct meg_model *g)
{
    return g->state->desc.nstacks - 1;
}

/* Return the output of the encoder in a slot. */
static struct meg_memory memory_of(const struct meg_model *g, const struct model_slot *q)
{
    const struct meg_model_state *st = g->state;
    const struct slot_stack *encoder = &q->stack[0];
    const int64_t rows = encoder->s * q->b / (st->ctx.has_sp ? st->dim.tp : 1);

    return (struct meg_memory){ .y = encoder->memory.p,
                                .rows = rows,
                                .h = st->dim.h,
                                .s = encoder->s,
                                .key_length = *meg_batch_array(&g->state->in, st->desc.stack[0].key_length) };
}

void model_set_current(struct meg_model *g, struct model_slot *q, int k)
{
    const struct meg_stack *stack = &g->state->desc.stack[k];
    struct meg_batch *in = &g->state->in;

    *in = q->in->x;
    for (int f = 0; f < MEG_BATCH_NUM_FIELDS; f++)
        if (!(q->in->present & 1u << f))
            *meg_batch_array(in, f) = NULL;
    g->state->stack = k;
    g->state->ctx.call = (struct meg_call){ .s = q->stack[k].s,
                                            .b = q->b,
                                            .sample_id = in->sample_id,
                                            .position_ids = *meg_batch_array(in, stack->position_ids),
                                            .doc_start = k == model_last_stack(g) ? in->doc_start : NULL,
                                            .key_length = *meg_batch_array(in, stack->key_length),
                                            .grad_factor = q->in->factors->grad,
                                            .sum_factor = q->in->factors->sum,
                                            .loss_scale = g->loss_scale };
    if (k > 0)
        g->state->ctx.call.memory = memory_of(g, q);
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

static void upload(const struct meg_model *g, void *dev, const void *host, size_t nbytes, bool is_pinned)
{
    (is_pinned ? g->op->upload_pinned : g->op->upload)(g->device->copy, dev, host, nbytes);
}

/* Upload the arrays of a micro-batch that the bit mask `fields` selects. */
static void upload_arrays(struct meg_model *g, struct model_inputs *in, const struct meg_batch *x, unsigned fields)
{
    struct meg_batch from = *x;

    for (int f = 0; f < MEG_BATCH_NUM_FIELDS; f++) {
        const size_t nbytes = (size_t)meg_batch_numel(x, f) * meg_batch_fields[f].size;

        if (fields & 1u << f) {
            upload(g, *meg_batch_array(&in->x, f), *meg_batch_array(&from, f), nbytes, x->is_pinned);
            meg_placement_input(*meg_batch_array(&in->x, f), nbytes);
        }
    }
}

/*
 * Return the arrays of a micro-batch that this rank reads, as a bit mask.  Without heads, a rank does not read labels,
 * loss mask and sentence order.  Without dropout, it does not read sample numbers.
 */
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
    bool is_trimmed;

    MEG_ASSERT_LT(slot, st->dim.nslots);
    is_trimmed = q->b == x->b;
    q->b = x->b;
    for (int k = 0; k < st->desc.nstacks; k++) {
        const int64_t s = meg_batch_length(x, st->desc.stack[k].tokens);

        MEG_ASSERT_LE(s * x->b, st->dim.stack[k].n);
        is_trimmed &= q->stack[k].s == s;
        q->stack[k].s = s;
    }
    if (!is_trimmed)
        model_buffers_trim(st, &g->run, q);
    start_upload(g, q);
    q->in->present = fields_to_upload(g, x, has_dropout);
    upload_arrays(g, q->in, x, q->in->present);
    if (factors && (st->dim.has_head || st->desc.nlosses > st->desc.nheads))
        upload(g, q->in->factors, factors, sizeof *factors, x->is_pinned);
    finish_upload(g, q);
}
