/*
 * buffers.c - activation and workspace buffers of a model.  The same functions compute the total size of the
 * buffers for a memory estimate and sub-allocate the buffers from the arenas (tensor/suballoc.h).
 */
#include <stdlib.h>
#include "base/mem.h"
#include "model/internal.h"

static struct model_dims dims_of(const struct meg_model_conf *c, const struct meg_model_run *run,
                                 const struct meg_mesh *mesh)
{
    const struct meg_layout *l = &mesh->layout;
    const int64_t tp = l->tp;
    struct model_dims d = { 0 };
    int64_t first;

    d.tp = tp;
    d.s = run->s / l->cp;
    d.b = run->b;
    d.n = d.s * run->b;
    if (!run->is_training && d.n < DECODE_ROWS)
        d.n = DECODE_ROWS;
    d.residual_rows = l->has_sp ? d.n / tp : d.n;
    d.width = meg_model_layer_widths(c, tp);
    d.rope_half = meg_model_rope_half(c);
    d.v0 = meg_partition_begin(c->vocab_size, tp, mesh->coords.tp);
    d.v = meg_partition_begin(c->vocab_size, tp, mesh->coords.tp + 1) - d.v0;
    d.positions = c->max_position_embeddings;
    d.chunks = l->vp;
    d.layers = c->num_layers;
    if (l->pp > 1)
        meg_layout_layers(l, mesh->coords.pp, 0, &first, &d.layers);
    d.slots = run->microbatch_slots ? run->microbatch_slots : 1;
    d.has_embedding = mesh->coords.pp == 0;
    d.has_head = mesh->coords.pp == l->pp - 1;
    return d;
}

bool model_recompute_range(const struct meg_model_run *run, int64_t layers, int64_t i, int64_t *begin, int64_t *end)
{
    const int64_t n = run->recompute_num_layers;

    switch (run->recompute) {
    case MEG_RECOMPUTE_UNIFORM:
        *begin = i - i % n;
        *end = *begin + n < layers ? *begin + n : layers;
        return true;
    case MEG_RECOMPUTE_BLOCK:
        *begin = i;
        *end = i + 1;
        return i < n;
    default: return false;
    }
}

/* Return the maximum number of layers that are recomputed together. */
static int64_t max_recomputed(const struct meg_model_run *run, int64_t layers)
{
    if (run->recompute == MEG_RECOMPUTE_BLOCK)
        return 1;
    if (run->recompute == MEG_RECOMPUTE_UNIFORM)
        return run->recompute_num_layers < layers ? run->recompute_num_layers : layers;
    return 0;
}

struct meg_model_state *model_state_new(const struct meg_model_conf *c, const struct meg_model_run *run,
                                        const struct meg_ops *op, const struct meg_mesh *mesh)
{
    struct meg_model_state *st = meg_new(sizeof *st);
    struct model_dims *d = &st->dim;

    *d = dims_of(c, run, mesh);
    st->ctx.op = op;
    st->ctx.has_sp = mesh->layout.has_sp;
    st->ctx.dtype = run->dtype;
    st->ctx.grad_dtype = run->grad_dtype;
    st->ncp = mesh->layout.cp_comm_types.n ? (int)mesh->layout.cp_comm_types.n : 1;
    st->cp = meg_new((size_t)st->ncp * sizeof *st->cp);
    for (int i = 0; i < st->ncp; i++)
        meg_cp_make(&st->cp[i], meg_layout_cp_comm_type(&mesh->layout, i), mesh);
    st->layer = meg_new((size_t)(d->chunks * d->layers) * sizeof *st->layer);
    st->recomputed = meg_new((size_t)(max_recomputed(run, d->layers) + 1) * sizeof *st->recomputed);
    st->slot = meg_new((size_t)d->slots * sizeof *st->slot);
    for (int64_t i = 0; i < d->slots; i++) {
        struct model_slot *q = &st->slot[i];

        q->acts = meg_new((size_t)d->layers * sizeof *q->acts);
        q->saved = meg_new((size_t)d->layers * sizeof *q->saved);
        q->grads = meg_new((size_t)d->layers * sizeof *q->grads);
    }
    return st;
}

void model_state_free(struct meg_model_state *st)
{
    for (int64_t i = 0; i < st->dim.slots; i++) {
        free(st->slot[i].acts);
        free(st->slot[i].saved);
        free(st->slot[i].grads);
    }
    free(st->slot);
    free(st->recomputed);
    free(st->layer);
    free(st->cp);
    free(st->host_position);
    free(st);
}

/* An arena to allocate from, with the configuration and the dimensions that determine the sizes of buffers. */
struct arena {
    struct meg_suballoc *mem;
    const struct meg_model_run *run;
    const struct model_dims *d;
};

/* Allocate a residual-stream tensor [residual_rows, h]. */
static struct meg_mat alloc_residual(const struct arena *a)
{
    return meg_suballoc_mat(a->mem, a->run->residual_dtype, a->d->residual_rows, a->d->width.h);
}

/* Allocate the output [residual_rows, h] of a norm or a sublayer. */
static struct meg_mat alloc_sublayer_out(const struct arena *a)
{
    return meg_suballoc_mat(a->mem, a->run->dtype, a->d->residual_rows, a->d->width.h);
}

/* Allocate an activation [n, cols] inside a sublayer. */
static struct meg_mat alloc_acts(const struct arena *a, int64_t cols)
{
    return meg_suballoc_mat(a->mem, a->run->dtype, a->d->n, cols);
}

static struct meg_norm_stats alloc_stats(const struct arena *a)
{
    struct meg_norm_stats stats;

    stats.mean = meg_suballoc(a->mem, (size_t)a->d->residual_rows * sizeof(float));
    stats.rstd = meg_suballoc(a->mem, (size_t)a->d->residual_rows * sizeof(float));
    return stats;
}

static void suballoc_attn_out(struct meg_attn_acts *acts, const struct arena *a)
{
    acts->o = alloc_acts(a, a->d->width.q);
    acts->lse = meg_suballoc(a->mem, (size_t)(a->d->n * a->d->width.a) * sizeof *acts->lse);
}

/*
 * Allocate the activations of a layer except its input.  With selective recomputation, the output and log-sum-exp of
 * attention are omitted; for inference, mlp.pre is omitted unless the MLP is gated.
 */
static void suballoc_acts(struct model_acts *acts, const struct arena *a)
{
    const struct meg_model_widths *w = &a->d->width;

    acts->ln1 = alloc_sublayer_out(a);
    acts->ln1_stats = alloc_stats(a);
    acts->attn.qkv = alloc_acts(a, w->qkv);
    if (a->run->recompute != MEG_RECOMPUTE_SELECTIVE)
        suballoc_attn_out(&acts->attn, a);
    acts->residual = alloc_residual(a);
    acts->ln2 = alloc_sublayer_out(a);
    acts->ln2_stats = alloc_stats(a);
    if (a->run->is_training || w->fc1 > w->f)
        acts->mlp.pre = alloc_acts(a, w->fc1);
    acts->mlp.mid = alloc_acts(a, w->f);
}

/* Allocate the gradients of a layer that a slot keeps for meg_model_backward_weight. */
static void suballoc_deferred_grads(struct model_grads *g, const struct arena *a)
{
    g->attn_out = alloc_sublayer_out(a);
    g->mlp_out = alloc_sublayer_out(a);
    g->attn.qkv = alloc_acts(a, a->d->width.qkv);
    g->mlp.pre = alloc_acts(a, a->d->width.fc1);
}

/*
 * Allocate the input of layer i of a chunk.  On stages after the first, the input of layer 0 of a chunk is the
 * pipeline's receive buffer, and only the shape of the matrix is set.  For inference, the input is always allocated,
 * because all layers use the activations of layer 0.
 */
static struct meg_mat alloc_layer_input(const struct arena *a, int64_t i)
{
    if (i > 0 || a->d->has_embedding || !a->run->is_training)
        return alloc_residual(a);
    return meg_mat(NULL, a->run->residual_dtype, a->d->residual_rows, a->d->width.h);
}

/*
 * Allocate the tensors of layer i that a slot keeps.  For a range of layers that are recomputed together, the slot
 * keeps only the first layer's input or, with distribute_saved_activations, this rank's shard of that input.  For other
 * layers, the slot keeps the activations.  For inference, all layers use the activations of layer 0.
 */
static void suballoc_layer(struct meg_model_state *st, struct model_slot *q, int64_t i, const struct arena *a)
{
    const struct model_dims *d = a->d;
    int64_t begin, end;

    if (model_recompute_range(a->run, d->layers, i, &begin, &end)) {
        q->acts[i] = st->recomputed[i - begin];
        if (i == begin && a->run->distribute_saved_activations)
            q->saved[i] = meg_suballoc_mat(a->mem, a->run->residual_dtype, d->residual_rows / d->tp, d->width.h);
        else if (i == begin)
            q->acts[i].x = alloc_layer_input(a, i);
        return;
    }
    if (i > 0 && !a->run->is_training) {
        q->acts[i] = q->acts[0];
        return;
    }
    q->acts[i].attn = st->recomputed[0].attn; /* selective recomputation: layers share the output of attention */
    q->acts[i].x = alloc_layer_input(a, i);
    suballoc_acts(&q->acts[i], a);
}

static void suballoc_inputs(struct model_inputs *x, const struct arena *a)
{
    const size_t n = (size_t)a->d->n;

    x->tokens = meg_suballoc(a->mem, n * sizeof *x->tokens);
    x->labels = meg_suballoc(a->mem, n * sizeof *x->labels);
    x->position_ids = meg_suballoc(a->mem, n * sizeof *x->position_ids);
    x->doc_start = meg_suballoc(a->mem, n * sizeof *x->doc_start);
    x->loss_mask = meg_suballoc(a->mem, n * sizeof *x->loss_mask);
    x->sample_id = meg_suballoc(a->mem, n * sizeof *x->sample_id);
}

static void suballoc_slot(struct meg_model_state *st, struct model_slot *q, const struct arena *a)
{
    const struct model_dims *d = a->d;

    for (int64_t i = 0; i < d->layers; i++) {
        suballoc_layer(st, q, i, a);
        q->grads[i] = st->grads;
        if (a->run->defers_wgrad)
            suballoc_deferred_grads(&q->grads[i], a);
    }
    q->embed_out = q->acts[0].x.p;
    if (d->has_head)
        q->last_out = a->run->is_training ? alloc_residual(a) : q->acts[0].x;
    q->in = &q->inputs[0];
    suballoc_inputs(&q->inputs[0], a);
    q->inputs[1] = q->inputs[0];
    if (!st->ctx.op->is_host_memory)
        suballoc_inputs(&q->inputs[1], a);
}

static void suballoc_head(struct meg_model_state *st, const struct arena *a)
{
    const struct model_dims *d = a->d;
    const int64_t rows = st->ctx.op->logits_rows(d->v), least = rows < DECODE_ROWS ? DECODE_ROWS : rows;
    const int64_t chunk = least < d->n ? least : d->n, ld = (d->v + 15) / 16 * 16;

    st->lnf = alloc_sublayer_out(a);
    st->lnf_stats = alloc_stats(a);
    st->head.logits = meg_suballoc_mat(a->mem, a->run->dtype, chunk, ld);
    st->head.logits.cols = d->v;
    st->head.lse = meg_suballoc(a->mem, (size_t)chunk * sizeof(float));
    st->head.partial_stats = meg_suballoc(a->mem, (size_t)(2 * chunk * d->tp) * sizeof(float));
}

/*
 * Allocate the activation gradients that all layers share.  With defers_wgrad, suballoc_deferred_grads allocates the
 * gradients of attn.qkv and mlp.pre per slot instead.
 */
static void suballoc_grads(struct model_grads *g, const struct arena *a)
{
    const struct meg_model_widths *w = &a->d->width;

    g->x = alloc_residual(a);
    g->ln = alloc_sublayer_out(a);
    g->attn.o = alloc_acts(a, w->q);
    if (w->fc1 > w->f)
        g->mlp.mid = alloc_acts(a, w->f);
    if (a->run->defers_wgrad)
        return;
    g->attn.qkv = alloc_acts(a, w->qkv);
    g->mlp.pre = alloc_acts(a, w->fc1);
}

static void suballoc_workspace(struct meg_model_state *st, const struct arena *a)
{
    const struct meg_model_run *run = a->run;
    const struct model_dims *d = a->d;
    const struct meg_model_widths *w = &d->width;
    const struct meg_attn_size attn = { run->dtype, d->n, d->s, d->b, w->a, w->g, w->d, run->is_training };
    const size_t rope_nbytes = (size_t)(d->positions * d->rope_half) * sizeof(float);
    const size_t sp_nbytes = (size_t)(d->n * d->width.h) * meg_dtype_size(run->residual_dtype);

    st->sublayer_out = alloc_sublayer_out(a);
    for (int i = 0; i < 2 && st->ctx.has_sp; i++)
        st->ctx.sp_buffer[i] = meg_suballoc(a->mem, sp_nbytes);
    if (d->has_head)
        suballoc_head(st, a);
    meg_attn_workspace_suballoc(&st->attn_workspace, a->mem, st->ctx.op, &attn, st->cp, st->ncp);
    st->loss = meg_suballoc(a->mem, (size_t)d->n * sizeof *st->loss);
    st->loss_sum = meg_suballoc(a->mem, sizeof *st->loss_sum);
    st->position_of_row = meg_suballoc(a->mem, (size_t)d->s * sizeof *st->position_of_row);
    st->rope.cos = meg_suballoc(a->mem, rope_nbytes);
    st->rope.sin = meg_suballoc(a->mem, rope_nbytes);
    if (run->recompute == MEG_RECOMPUTE_SELECTIVE)
        suballoc_attn_out(&st->recomputed[0].attn, a);
    for (int64_t i = 0; i < max_recomputed(run, d->layers); i++) {
        if (i > 0 || run->distribute_saved_activations)
            st->recomputed[i].x = alloc_residual(a);
        suballoc_acts(&st->recomputed[i], a);
    }
    if (!run->is_training)
        return;
    suballoc_grads(&st->grads, a);
    if (!run->defers_wgrad)
        st->grads.attn_out = st->grads.mlp_out = st->sublayer_out;
}

void model_buffers_suballoc(struct meg_model_state *st, const struct meg_model_run *run,
                            struct meg_suballoc *activations, struct meg_suballoc *workspace)
{
    const struct arena kept = { activations, run, &st->dim }, shared = { workspace, run, &st->dim };

    suballoc_workspace(st, &shared);
    for (int64_t i = 0; i < st->dim.slots; i++)
        suballoc_slot(st, &st->slot[i], &kept);
}

void meg_model_memory_size(struct meg_model_memory *m, const struct meg_model_conf *c, const struct meg_model_run *run,
                           const struct meg_ops *op, const struct meg_mesh *mesh)
{
    struct meg_model_state *st = model_state_new(c, run, op, mesh);
    struct meg_suballoc activations = { 0 }, workspace = { 0 };
    struct meg_params p;

    model_buffers_suballoc(st, run, &activations, &workspace);
    model_state_free(st);
    meg_model_params(&p, c, mesh);
    m->params =
        (size_t)(run->shards_params ? meg_params_unsharded_numel(&p) : p.flat_numel) * meg_dtype_size(run->dtype);
    m->grads =
        (size_t)(run->shards_grads ? meg_params_unsharded_numel(&p) : p.flat_numel) * meg_dtype_size(run->grad_dtype);
    if (!run->is_training)
        m->grads = 0;
    m->activations = activations.used;
    m->workspace = workspace.used;
    meg_params_free(&p);
}
