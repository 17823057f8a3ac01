/*
 * state.c - the parts of a model that a rank has: its chunks and layers, and a slot for each micro-batch in flight.
 */
#include <stdlib.h>
#include "base/int64.h"
#include "base/mem.h"
#include "model/internal.h"

/*
 * Return the numbers of positions and rows of a stack whose sequences have s positions.  For inference, there are at
 * least as many rows as in a decoding step.
 */
static struct model_rows rows_of(int64_t s, const struct meg_model_run *run, const struct meg_ops *op,
                                 const struct meg_layout *l)
{
    struct model_rows x = { .s = s / l->cp };

    x.n = x.s * run->b;
    if (!run->is_training && x.n < op->decode_rows)
        x.n = op->decode_rows;
    x.residual = l->has_sp ? x.n / l->tp : x.n;
    return x;
}

static struct model_dims dims_of(const struct meg_model_desc *desc, const struct meg_model_run *run,
                                 const struct meg_ops *op, const struct meg_mesh *mesh)
{
    const struct meg_layout *l = &mesh->layout;
    struct model_dims d = { 0 };

    d.tp = l->tp;
    d.tp_rank = mesh->coords.tp;
    d.ep = l->ep;
    d.etp = l->etp;
    d.b = run->b;
    for (int k = 0; k < desc->nstacks; k++) {
        const enum meg_batch_dim dim = meg_batch_fields[desc->stack[k].tokens].dim;
        const struct model_rows x = rows_of(dim == MEG_BATCH_PER_TOKEN ? run->s : run->s_enc, run, op, l);

        d.stack[k] = x;
        d.most.s = meg_max64(d.most.s, x.s);
        d.most.n = meg_max64(d.most.n, x.n);
        d.most.residual = meg_max64(d.most.residual, x.residual);
    }
    d.h = desc->h;
    d.nchunks = l->vp;
    d.nslots = run->microbatch_slots ? run->microbatch_slots : 1;
    return d;
}

/*
 * Append to the rank's list of layers those of a chunk that belong to stack k, and return their segment.  The chunk has
 * layers [first, first + n) of the model.
 */
static struct model_segment list_segment(struct meg_model_state *st, int k, int64_t first, int64_t n)
{
    const struct meg_stack *stack = &st->desc.stack[k];
    const int64_t begin = meg_max64(first, stack->begin), end = first + n < stack->end ? first + n : stack->end;
    struct model_segment x = { .begin = st->dim.nlayers };

    for (int64_t i = begin; i < end; i++)
        model_layer_init(&st->layer[st->dim.nlayers++], &st->desc, i);
    x.end = st->dim.nlayers;
    x.has_embedding = begin == stack->begin && begin < end;
    x.has_norm = end == stack->end && begin < end;
    return x;
}

/* List the chunks of this rank and their layers. */
static void list_layers(struct meg_model_state *st, const struct meg_mesh *mesh)
{
    struct model_dims *d = &st->dim;
    const int last = st->desc.nstacks - 1;

    st->chunk = meg_new((size_t)d->nchunks * sizeof *st->chunk);
    st->layer = meg_new((size_t)st->desc.nlayers * sizeof *st->layer);
    for (int64_t i = 0; i < d->nchunks; i++) {
        struct model_chunk *c = &st->chunk[i];
        int64_t first = 0, n = st->desc.nlayers;

        if (mesh->layout.pp > 1)
            meg_layout_layers(&mesh->layout, mesh->coords.pp, i, &first, &n);
        for (int k = 0; k < st->desc.nstacks; k++)
            c->segment[k] = list_segment(st, k, first, n);
        /* a chunk without layers may have the first embedding or the head */
        c->segment[0].has_embedding = meg_layout_is_first(mesh->coords.pp, i);
        c->segment[last].has_norm = c->has_head = meg_layout_is_last(&mesh->layout, mesh->coords.pp, i);
        for (int k = 0; k < st->desc.nstacks; k++) {
            d->has_embedding |= c->segment[k].has_embedding;
            d->has_norm[k] |= c->segment[k].has_norm;
            d->has_layers[k] |= c->segment[k].begin < c->segment[k].end;
            d->uses_group0 |= c->segment[k].has_embedding || (st->desc.stack[k].rel_bias && d->has_layers[k]);
        }
        d->has_head |= c->has_head;
    }
}

static void init_slot(struct model_slot *q, const struct meg_model_state *st)
{
    q->layer = meg_new((size_t)st->dim.nlayers * sizeof *q->layer);
    for (int64_t i = 0; i < st->dim.nlayers; i++) {
        const struct model_layer *l = &st->layer[i];

        q->layer[i].block = meg_new((size_t)l->desc->n * sizeof *q->layer[i].block);
        for (int k = 0; k < l->desc->n; k++) {
            q->layer[i].block[k].acts = meg_new(l->block[k].desc->type->acts_size);
            q->layer[i].block[k].grads = meg_new(l->block[k].desc->type->grads_size);
        }
    }
}

static void free_slot(struct model_slot *q, const struct meg_model_state *st, const struct meg_device *device)
{
    for (int64_t i = 0; i < st->dim.nlayers; i++) {
        for (int k = 0; k < st->layer[i].desc->n; k++) {
            free(q->layer[i].block[k].acts);
            free(q->layer[i].block[k].grads);
        }
        free(q->layer[i].block);
        for (int k = 0; k < MODEL_NUM_PASSES; k++)
            meg_graphs_free(&q->layer[i].graphs[k], device);
    }
    for (int k = 0; k < MEG_MAX_STACKS; k++) {
        meg_graphs_free(&q->stack[k].embed_fwd, device);
        meg_graphs_free(&q->stack[k].embed_bwd, device);
    }
    meg_graphs_free(&q->heads_bwd, device);
    free(q->layer);
}

struct meg_model_state *model_state_new(const struct meg_model_conf *c, const struct meg_model_run *run,
                                        const struct meg_ops *op, const struct meg_mesh *mesh)
{
    struct meg_model_state *st = meg_new(sizeof *st);

    meg_model_describe(&st->desc, c);
    for (int k = 0; k < MEG_ROPE_SETS && run->positions; k++)
        st->desc.rope[k].positions = run->positions;
    st->dim = dims_of(&st->desc, run, op, mesh);
    st->ctx.op = op;
    st->ctx.has_sp = mesh->layout.has_sp;
    st->ctx.dtype = run->dtype;
    st->ctx.grad_dtype = run->grad_dtype;
    st->ncp = mesh->layout.cp_comm_types.n ? (int)mesh->layout.cp_comm_types.n : 1;
    st->cp = meg_new((size_t)st->ncp * sizeof *st->cp);
    for (int i = 0; i < st->ncp; i++)
        meg_cp_make(&st->cp[i], meg_layout_cp_comm_type(&mesh->layout, i), mesh);
    list_layers(st, mesh);
    model_heads_init(st->head, &st->desc);
    st->slot = meg_new((size_t)st->dim.nslots * sizeof *st->slot);
    for (int64_t i = 0; i < st->dim.nslots; i++)
        init_slot(&st->slot[i], st);
    return st;
}

void model_state_free(struct meg_model_state *st, const struct meg_device *device)
{
    for (int64_t i = 0; i < st->dim.nslots; i++)
        free_slot(&st->slot[i], st, device);
    free(st->slot);
    for (int64_t i = 0; i < st->dim.nlayers; i++)
        model_layer_free(&st->layer[i]);
    free(st->layer);
    model_heads_free(st->head);
    free(st->chunk);
    free(st->cp);
    free(st->host_position);
    meg_model_desc_free(&st->desc);
    free(st);
}
