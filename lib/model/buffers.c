/*
 * buffers.c - activation and workspace buffers of a model.  The same functions compute the total size of the buffers
 * for a memory estimate and sub-allocate the buffers from the arenas (tensor/suballoc.h).
 */
#include "base/mem.h"
#include "model/internal.h"

bool model_recompute_range(const struct meg_model_run *run, const struct model_segment *x, int64_t i, int64_t *begin,
                           int64_t *end)
{
    const int64_t n = run->recompute_num_layers, at = i - x->begin;

    switch (run->recompute) {
    case MEG_RECOMPUTE_UNIFORM:
        *begin = i - at % n;
        *end = *begin + n < x->end ? *begin + n : x->end;
        return true;
    case MEG_RECOMPUTE_BLOCK:
        *begin = i;
        *end = i + 1;
        return at < n;
    default: return false;
    }
}

/* An arena to allocate from, with the configuration and the dimensions that determine the sizes of buffers. */
struct arena {
    struct meg_suballoc *mem;
    const struct meg_model_run *run;
    const struct model_dims *d;
    struct meg_model_state *st;
    struct model_rows rows; /* rows of one stack, for its buffers; else rows of the longest stack */
};

static struct arena arena_of_stack(const struct arena *a, int k)
{
    struct arena x = *a;

    x.rows = a->d->stack[k];
    return x;
}

/*
 * Memory for several sets of buffers, of which only one is in use at a time.  Call begin_shared before the
 * buffers of each set are allocated, and end_shared after the last set.
 */
struct shared {
    struct meg_suballoc *mem;
    size_t begin, most;
};

static struct shared shared_memory(const struct arena *a)
{
    return (struct shared){ a->mem, a->mem->used, a->mem->used };
}

static void begin_shared(struct shared *s)
{
    s->most = s->mem->used > s->most ? s->mem->used : s->most;
    s->mem->used = s->begin;
}

static void end_shared(struct shared *s)
{
    begin_shared(s);
    s->mem->used = s->most;
}

/* Allocate a residual-stream tensor [residual_rows, h]. */
static struct meg_mat alloc_residual(const struct arena *a)
{
    return meg_suballoc_mat(a->mem, a->run->residual_dtype, a->rows.residual, a->d->h);
}

/* Return the shape of a residual-stream tensor in the pipeline's receive buffer, whose address is set later. */
static struct meg_mat received_residual(const struct arena *a)
{
    return meg_mat(NULL, a->run->residual_dtype, a->rows.residual, a->d->h);
}

/* Allocate the output [residual_rows, h] of a norm or of a mixer. */
static struct meg_mat alloc_sublayer_out(const struct arena *a)
{
    return meg_suballoc_mat(a->mem, a->run->dtype, a->rows.residual, a->d->h);
}

static struct meg_norm_stats alloc_stats(const struct arena *a)
{
    struct meg_norm_stats stats;

    stats.mean = meg_suballoc(a->mem, (size_t)a->rows.residual * sizeof(float));
    stats.rstd = meg_suballoc(a->mem, (size_t)a->rows.residual * sizeof(float));
    return stats;
}

/* Return the arena from which a block or a head allocates.  For a block, the caller must also set cp. */
static struct meg_block_arena block_arena(const struct arena *a)
{
    return (struct meg_block_arena){
        .mem = a->mem,
        .op = a->st->ctx.op,
        .n = a->rows.n,
        .s = a->rows.s,
        .b = a->d->b,
        .residual_rows = a->rows.residual,
        .n_memory = a->d->stack[0].n,
        .s_memory = a->d->stack[0].s,
        .residual_rows_memory = a->d->stack[0].residual,
        .tp = a->d->tp,
        .tp_rank = a->d->tp_rank,
        .ep = a->d->ep,
        .etp = a->d->etp,
        .has_sp = a->st->ctx.has_sp,
        .dtype = a->run->dtype,
        .logits_dtype = model_logits_dtype(a->run),
        .is_training = a->run->is_training,
        .defers_wgrad = a->run->defers_wgrad,
        .recomputes_core = a->run->recompute == MEG_RECOMPUTE_SELECTIVE,
    };
}

/* Allocate one class of memory of a block (enum meg_block_memory). */
static void suballoc_block(enum meg_block_memory what, void *to, const struct model_layer *l,
                           const struct model_block *block, const struct arena *a)
{
    const struct arena stack = arena_of_stack(a, l->desc->stack);
    struct meg_block_arena arena = block_arena(&stack);

    arena.cp = &a->st->cp[a->st->ncp > 1 ? l->index : 0];
    block->desc->type->suballoc(what, to, &arena, block->desc->conf);
}

/*
 * Allocate the activations of a layer, except its input.  With selective recomputation, the output and log-sum-exp of
 * attention are omitted.
 */
static void suballoc_acts(struct slot_layer *q, const struct model_layer *l, const struct arena *a)
{
    const struct arena stack = arena_of_stack(a, l->desc->stack);

    for (int i = 0; i < l->desc->n; i++) {
        struct block_acts *block = &q->block[i];
        const struct meg_block *desc = l->block[i].desc;

        if (i > 0 && !desc->is_parallel)
            block->x = alloc_residual(&stack);
        if (desc->norm || (!desc->is_parallel && a->run->residual_dtype != a->run->dtype))
            block->y = alloc_sublayer_out(&stack);
        if (desc->norm)
            block->stats = alloc_stats(&stack);
        if (desc->post_norm) {
            block->out = alloc_sublayer_out(&stack);
            block->post_stats = alloc_stats(&stack);
        }
        suballoc_block(MEG_BLOCK_ACTS, block->acts, l, &l->block[i], a);
    }
}

/*
 * Allocate the input of layer i of a segment.  The input of the first layer of a segment without embedding is the
 * pipeline's receive buffer, and only the shape of the matrix is set.  For inference, the input is always allocated,
 * because all layers use the same memory.
 */
static struct meg_mat alloc_layer_input(const struct arena *a, const struct model_segment *x, int64_t i)
{
    if (i > x->begin || x->has_embedding || !a->run->is_training)
        return alloc_residual(a);
    return received_residual(a);
}

/*
 * Allocate the output of the last layer of a stack, which ends in segment x.  If the segment has no layers, the output
 * is the pipeline's receive buffer.  For inference, it overwrites the input of a layer.
 */
static struct meg_mat alloc_last_out(const struct arena *a, const struct model_segment *x, const struct model_slot *q)
{
    if (x->begin == x->end)
        return received_residual(a);
    return a->run->is_training ? alloc_residual(a) : q->layer[x->begin].block[0].x;
}

/*
 * Allocate the tensors of layer i that a slot keeps.  For a range of layers that are recomputed together, the slot
 * keeps only the first layer's input or, with distribute_saved_activations, this rank's shard of that input.  For other
 * layers, the slot keeps the activations.
 */
static void suballoc_kept(struct model_slot *q, const struct model_segment *x, int64_t i, const struct arena *a)
{
    const struct arena stack = arena_of_stack(a, a->st->layer[i].desc->stack);
    struct slot_layer *l = &q->layer[i];
    int64_t begin, end;

    if (!model_recompute_range(a->run, x, i, &begin, &end)) {
        l->block[0].x = alloc_layer_input(&stack, x, i);
        suballoc_acts(l, &a->st->layer[i], a);
    } else if (i == begin && a->run->distribute_saved_activations) {
        l->saved = meg_suballoc_mat(a->mem, a->run->residual_dtype, stack.rows.residual / a->d->tp, a->d->h);
    } else if (i == begin) {
        l->block[0].x = alloc_layer_input(&stack, x, i);
    }
}

/*
 * With defers_wgrad, allocate the gradients of a layer that a slot keeps for meg_model_backward_weight.  Otherwise,
 * allocate nothing, and set d_out to the buffer sublayer_out.
 */
static void suballoc_deferred_grads(struct slot_layer *q, const struct model_layer *l, const struct arena *a)
{
    const struct arena stack = arena_of_stack(a, l->desc->stack);

    for (int i = 0; i < l->desc->n; i++) {
        q->block[i].d_out = a->run->defers_wgrad ? alloc_sublayer_out(&stack) : a->st->sublayer_out;
        if (a->run->defers_wgrad)
            suballoc_block(MEG_BLOCK_DEFERRED_GRADS, q->block[i].grads, l, &l->block[i], a);
    }
}

/* Allocate the activations that a slot keeps.  For inference, all layers use the same memory. */
static void suballoc_chunk(struct model_slot *q, const struct model_chunk *chunk, const struct arena *a)
{
    struct shared layers = shared_memory(a);

    for (int k = 0; k < a->st->desc.nstacks; k++) {
        const struct model_segment *x = &chunk->segment[k];

        for (int64_t i = x->begin; i < x->end; i++) {
            if (!a->run->is_training)
                begin_shared(&layers);
            suballoc_kept(q, x, i, a);
            suballoc_deferred_grads(&q->layer[i], &a->st->layer[i], a);
        }
    }
    end_shared(&layers);
}

/*
 * On a rank with the norm after a stack, allocate the input of this norm: the output of the stack's last layer.  For
 * the norm after the encoder, also allocate its output and row statistics.  On other ranks, the output of the encoder
 * is in the pipeline's receive buffer.
 */
static void suballoc_outputs(struct model_slot *q, const struct arena *a)
{
    const struct model_chunk *last = &a->st->chunk[a->d->nchunks - 1];
    const int nstacks = a->st->desc.nstacks;

    for (int k = 0; k < nstacks; k++) {
        const struct arena stack = arena_of_stack(a, k);
        struct slot_stack *x = &q->stack[k];

        if (a->d->has_norm[k])
            x->last_out = alloc_last_out(&stack, &last->segment[k], q);
        if (k == nstacks - 1)
            break;
        x->memory = meg_mat(NULL, a->run->dtype, stack.rows.residual, a->d->h);
        if (!a->d->has_norm[k])
            continue;
        x->memory = alloc_sublayer_out(&stack);
        x->stats = alloc_stats(&stack);
    }
}

/* On a rank with an embedding, allocate the input of the norm of the word embedding. */
static void suballoc_words(struct model_slot *q, const struct arena *a)
{
    for (int k = 0; k < a->st->desc.nstacks && a->d->has_embedding && a->st->desc.has_embed_norm; k++) {
        const struct arena stack = arena_of_stack(a, k);

        q->stack[k].words = alloc_residual(&stack);
        q->stack[k].word_stats = alloc_stats(&stack);
    }
}

static void suballoc_inputs(struct model_inputs *in, const struct arena *a)
{
    for (int f = 0; f < MEG_BATCH_NUM_FIELDS; f++)
        if (a->st->desc.inputs & 1u << f)
            *meg_batch_array(&in->x, f) = meg_suballoc(a->mem, (size_t)a->d->most.n * meg_batch_fields[f].size);
    in->factors = meg_suballoc(a->mem, sizeof *in->factors);
}

static void suballoc_slot(struct model_slot *q, const struct arena *a)
{
    const struct model_dims *d = a->d;
    struct shared chunks = shared_memory(a);

    for (int64_t i = 0; i < d->nchunks; i++) {
        begin_shared(&chunks);
        suballoc_chunk(q, &a->st->chunk[i], a);
    }
    end_shared(&chunks);
    suballoc_outputs(q, a);
    suballoc_words(q, a);
    q->in = &q->inputs[0];
    suballoc_inputs(&q->inputs[0], a);
    q->inputs[1] = q->inputs[0];
    if (!a->st->ctx.op->is_host_memory)
        suballoc_inputs(&q->inputs[1], a);
}

enum meg_dtype model_logits_dtype(const struct meg_model_run *run)
{
    return run->is_training ? run->dtype : MEG_DTYPE_F32;
}

static void suballoc_heads(struct meg_model_state *st, const struct arena *a)
{
    const struct arena last = arena_of_stack(a, st->desc.nstacks - 1);
    const struct meg_block_arena arena = block_arena(&last);

    st->lnf = alloc_sublayer_out(&last);
    st->lnf_stats = alloc_stats(&last);
    for (int i = 0; i < st->desc.nheads; i++)
        st->desc.head[i].type->suballoc(st->head[i], &arena, st->desc.head[i].conf);
}

/* Allocate the activations of a segment that a slot does not keep, because the backward pass recomputes them. */
static void suballoc_recomputed(struct model_slot *q, const struct model_segment *x, const struct arena *a)
{
    struct shared ranges = shared_memory(a);
    int64_t begin, end;

    for (int64_t i = x->begin; i < x->end; i++) {
        const struct arena stack = arena_of_stack(a, a->st->layer[i].desc->stack);

        if (!model_recompute_range(a->run, x, i, &begin, &end))
            continue;
        if (i == begin)
            begin_shared(&ranges);
        if (i > begin || a->run->distribute_saved_activations)
            q->layer[i].block[0].x = alloc_residual(&stack);
        suballoc_acts(&q->layer[i], &a->st->layer[i], a);
    }
    end_shared(&ranges);
}

/*
 * Allocate one class of memory of all blocks; q is the slot of activations and gradients.  All blocks use the same
 * memory, because only one block uses it at a time.
 */
static void suballoc_for_one_block(enum meg_block_memory what, struct model_slot *q, const struct arena *a)
{
    struct shared blocks = shared_memory(a);

    for (int64_t i = 0; i < a->d->nlayers; i++) {
        const struct model_layer *l = &a->st->layer[i];

        for (int k = 0; k < l->desc->n; k++) {
            const struct block_acts *x = q ? &q->layer[i].block[k] : NULL;

            begin_shared(&blocks);
            suballoc_block(what,
                           !x                        ? l->block[k].weights
                           : what == MEG_BLOCK_GRADS ? x->grads
                                                     : x->acts,
                           l, &l->block[k], a);
        }
    }
    end_shared(&blocks);
}

/*
 * Allocate the activations and gradients of a slot's layers that are not kept from one pass to the next.  All slots use
 * the same memory for them.
 */
static void suballoc_slot_workspace(struct model_slot *q, const struct arena *a)
{
    struct shared segments = shared_memory(a);

    for (int64_t i = 0; i < a->d->nchunks; i++)
        for (int k = 0; k < a->st->desc.nstacks; k++) {
            begin_shared(&segments);
            suballoc_recomputed(q, &a->st->chunk[i].segment[k], a);
        }
    end_shared(&segments);
    if (a->run->recompute == MEG_RECOMPUTE_SELECTIVE)
        suballoc_for_one_block(MEG_BLOCK_RECOMPUTED_ACTS, q, a);
    if (a->run->is_training)
        suballoc_for_one_block(MEG_BLOCK_GRADS, q, a);
}

/*
 * Allocate the gradient of the encoder's output on the rank with the norm after the encoder.  On other ranks, the
 * gradient is in a send buffer of the pipeline, whose address is set later.
 */
static struct meg_mat alloc_memory_grad(const struct arena *a)
{
    const struct arena encoder = arena_of_stack(a, 0);

    return a->d->has_norm[0] ? alloc_sublayer_out(&encoder)
                             : meg_mat(NULL, a->run->dtype, encoder.rows.residual, a->d->h);
}

static void suballoc_rope(struct meg_model_state *st, struct meg_suballoc *mem)
{
    for (int k = 0; k < MEG_ROPE_SETS; k++) {
        const struct meg_rope_conf *c = &st->desc.rope[k];
        const size_t nbytes = (size_t)(meg_rope_rows(c) * c->half) * sizeof(float);
        struct meg_rope *t = &st->rope[k];

        *t = (struct meg_rope){ .half = c->half,
                                .is_interleaved = c->o.is_interleaved,
                                .short_positions = meg_rope_short_positions(c) };
        t->cos = meg_suballoc(mem, nbytes);
        t->sin = meg_suballoc(mem, nbytes);
        if (meg_rope_has_temperature(c)) {
            t->q_cos = meg_suballoc(mem, nbytes);
            t->q_sin = meg_suballoc(mem, nbytes);
        }
    }
}

static void suballoc_workspace(struct meg_model_state *st, const struct arena *a)
{
    const struct meg_model_run *run = a->run;
    const struct model_dims *d = a->d;
    const size_t sp_nbytes = (size_t)(d->most.n * d->h) * meg_dtype_size(run->residual_dtype);
    const int last = st->desc.nstacks - 1;
    struct shared slots;

    st->sublayer_out = alloc_sublayer_out(a);
    for (int i = 0; i < st->desc.nblocks && !st->parallel_out.rows; i++)
        if (st->desc.block[i].is_parallel)
            st->parallel_out = alloc_sublayer_out(a);
    for (int i = 0; i < st->desc.nblocks && run->is_training && !st->d_parallel.rows; i++)
        if (st->desc.block[i].is_parallel && st->desc.block[i].norm)
            st->d_parallel = alloc_residual(a);
    for (int i = 0; i < 2 && st->ctx.has_sp; i++)
        st->ctx.sp_buffer[i] = meg_suballoc(a->mem, sp_nbytes);
    if (d->has_head)
        suballoc_heads(st, a);
    suballoc_for_one_block(MEG_BLOCK_WORKSPACE, NULL, a);
    for (int i = 0; i < st->desc.nheads; i++)
        st->loss[i] = meg_suballoc(a->mem, (size_t)(st->desc.head[i].type->is_per_sequence ? d->b : d->stack[last].n) *
                                               sizeof *st->loss[i]);
    st->ctx.loss_sum = meg_suballoc(a->mem, MEG_MAX_LOSSES * sizeof *st->ctx.loss_sum);
    st->position_of_row = meg_suballoc(a->mem, (size_t)d->most.s * sizeof *st->position_of_row);
    suballoc_rope(st, a->mem);
    if (st->desc.alibi_heads)
        st->alibi_slope = meg_suballoc(a->mem, (size_t)(st->desc.alibi_heads / d->tp) * sizeof *st->alibi_slope);
    if (run->is_training) {
        st->d_residual = alloc_residual(a);
        st->d_norm = alloc_sublayer_out(a);
    }
    if (run->is_training && last > 0)
        st->d_memory = alloc_memory_grad(a);
    slots = shared_memory(a);
    for (int64_t i = 0; i < d->nslots; i++) {
        begin_shared(&slots);
        suballoc_slot_workspace(&st->slot[i], a);
    }
    end_shared(&slots);
}

void model_buffers_suballoc(struct meg_model_state *st, const struct meg_model_run *run,
                            struct meg_suballoc *activations, struct meg_suballoc *workspace)
{
    const struct arena kept = { activations, run, &st->dim, st, st->dim.most };
    const struct arena shared = { workspace, run, &st->dim, st, st->dim.most };

    suballoc_workspace(st, &shared);
    for (int64_t i = 0; i < st->dim.nslots; i++)
        suballoc_slot(&st->slot[i], &kept);
}

void model_buffers_trim(struct meg_model_state *st, const struct meg_model_run *run, struct model_slot *q)
{
    struct model_dims d = st->dim;
    const struct arena a = { NULL, run, &d, st, d.most };

    d.b = q->b;
    for (int k = 0; k < st->desc.nstacks; k++) {
        d.stack[k].s = q->stack[k].s;
        d.stack[k].n = d.stack[k].s * d.b;
        d.stack[k].residual = d.stack[k].n / (st->ctx.has_sp ? d.tp : 1);
    }
    for (int64_t i = 0; i < d.nlayers; i++)
        for (int k = 0; k < st->layer[i].desc->n; k++) {
            const struct model_layer *l = &st->layer[i];
            struct block_acts *x = &q->layer[i].block[k];

            for (enum meg_block_memory what = MEG_BLOCK_ACTS; what < MEG_BLOCK_WORKSPACE; what++)
                suballoc_block(what, what < MEG_BLOCK_GRADS ? x->acts : x->grads, l, &l->block[k], &a);
            x->x.rows = x->y.rows = x->out.rows = x->d_out.rows = d.stack[l->desc->stack].residual;
        }
}

void meg_model_memory_size(struct meg_model_memory *m, const struct meg_model_conf *c, const struct meg_model_run *run,
                           const struct meg_ops *op, const struct meg_mesh *mesh)
{
    struct meg_model_state *st = model_state_new(c, run, op, mesh);
    struct meg_suballoc activations = { 0 }, workspace = { 0 };
    struct meg_params p;

    model_buffers_suballoc(st, run, &activations, &workspace);
    model_state_free(st, NULL);
    meg_model_params(&p, c, mesh);
    m->params = run->shards_params ? meg_params_unsharded_nbytes(&p, run->dtype) : meg_params_nbytes(&p, run->dtype);
    m->grads =
        (size_t)(run->shards_grads ? p.unsharded[MEG_UNSHARDED_GRADS] : p.grad_numel) * meg_dtype_size(run->grad_dtype);
    if (!run->is_training)
        m->grads = 0;
    m->activations = activations.used;
    m->workspace = workspace.used;
    meg_params_free(&p);
}
