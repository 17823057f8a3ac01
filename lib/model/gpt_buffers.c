/* The buffers of a run: the same calls count them and cut them out of the arenas. */
#include <stdlib.h>
#include "base/mem.h"
#include "model/gpt_internal.h"

static struct gpt_dims dims_of(const struct meg_gpt_conf *c, const struct meg_gpt_run *run, const struct meg_mesh *mesh)
{
    const struct meg_layout *l = &mesh->layout;
    const int64_t tp = l->tp;
    struct gpt_dims d = { 0 };
    int64_t first;

    d.tp = tp;
    d.s = run->s / l->cp;
    d.b = run->b;
    d.n = d.s * run->b;
    if (!run->is_training && d.n < DECODE_ROWS)
        d.n = DECODE_ROWS;
    d.residual_rows = l->has_sp ? d.n / tp : d.n;
    d.h = c->hidden_size;
    d.a = c->num_attention_heads / tp;
    d.g = c->num_query_groups / tp;
    d.attn_width = d.a * c->kv_channels;
    d.qkv_width = d.attn_width + 2 * d.g * c->kv_channels;
    d.f = c->ffn_hidden_size / tp;
    d.fc1_width = c->swiglu ? 2 * d.f : d.f;
    d.rope_half = meg_gpt_is_rotary(c) ? (int64_t)((double)c->kv_channels * c->rotary_percent) / 2 : 0;
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

bool gpt_recompute_range(const struct meg_gpt_run *run, int64_t layers, int64_t i, int64_t *begin, int64_t *end)
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

/* Layers that are recomputed together at most. */
static int64_t max_recomputed(const struct meg_gpt_run *run, int64_t layers)
{
    if (run->recompute == MEG_RECOMPUTE_BLOCK)
        return 1;
    if (run->recompute == MEG_RECOMPUTE_UNIFORM)
        return run->recompute_num_layers < layers ? run->recompute_num_layers : layers;
    return 0;
}

struct meg_gpt_state *gpt_state_new(const struct meg_gpt_conf *c, const struct meg_gpt_run *run,
                                    const struct meg_mesh *mesh)
{
    struct meg_gpt_state *st = meg_new(sizeof *st);
    struct gpt_dims *d = &st->dim;

    *d = dims_of(c, run, mesh);
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
        struct gpt_slot *q = &st->slot[i];

        q->acts = meg_new((size_t)d->layers * sizeof *q->acts);
        q->saved = meg_new((size_t)d->layers * sizeof *q->saved);
        q->grads = meg_new((size_t)d->layers * sizeof *q->grads);
    }
    return st;
}

void gpt_state_free(struct meg_gpt_state *st)
{
    for (int64_t i = 0; i < st->dim.slots; i++) {
        free(st->slot[i].acts);
        free(st->slot[i].saved);
        free(st->slot[i].grads);
        free(st->slot[i].loss_mask);
    }
    free(st->slot);
    free(st->recomputed);
    free(st->layer);
    free(st->cp);
    free(st->host_loss);
    free(st->host_position_ids);
    free(st);
}

/* Rows of the residual stream in its own type, and of branches and norms. */
static struct meg_mat stream(struct meg_suballoc *cut, const struct meg_gpt_run *run, const struct gpt_dims *d)
{
    return meg_suballoc_mat(cut, run->residual_dtype, d->residual_rows, d->h);
}

static struct meg_mat branch(struct meg_suballoc *cut, const struct meg_gpt_run *run, const struct gpt_dims *d)
{
    return meg_suballoc_mat(cut, run->dtype, d->residual_rows, d->h);
}

static struct meg_norm_stats stats(struct meg_suballoc *cut, const struct gpt_dims *d)
{
    struct meg_norm_stats a;

    a.mean = meg_suballoc(cut, (size_t)d->residual_rows * sizeof(float));
    a.rstd = meg_suballoc(cut, (size_t)d->residual_rows * sizeof(float));
    return a;
}

static void cut_attn_out(struct meg_attn_acts *a, struct meg_suballoc *cut, const struct meg_gpt_run *run,
                         const struct gpt_dims *d)
{
    a->o = meg_suballoc_mat(cut, run->dtype, d->n, d->attn_width);
    a->lse = meg_suballoc(cut, (size_t)(d->n * d->a) * sizeof(float));
}

/* All of a layer but its input; the output of attention where that is kept. */
static void cut_acts(struct gpt_acts *a, struct meg_suballoc *cut, const struct meg_gpt_run *run,
                     const struct gpt_dims *d)
{
    a->ln1 = branch(cut, run, d);
    a->ln1_stats = stats(cut, d);
    a->attn.qkv = meg_suballoc_mat(cut, run->dtype, d->n, d->qkv_width);
    if (run->recompute != MEG_RECOMPUTE_SELECTIVE)
        cut_attn_out(&a->attn, cut, run, d);
    a->residual = stream(cut, run, d);
    a->ln2 = branch(cut, run, d);
    a->ln2_stats = stats(cut, d);
    if (run->is_training || d->fc1_width > d->f)
        a->mlp.pre = meg_suballoc_mat(cut, run->dtype, d->n, d->fc1_width);
    a->mlp.mid = meg_suballoc_mat(cut, run->dtype, d->n, d->f);
}

/* What waits from a layer's backward for the gradients of its weights. */
static void cut_deferred(struct gpt_grads *g, struct meg_suballoc *cut, const struct meg_gpt_run *run,
                         const struct gpt_dims *d)
{
    g->attn_out = branch(cut, run, d);
    g->mlp_out = branch(cut, run, d);
    g->attn.qkv = meg_suballoc_mat(cut, run->dtype, d->n, d->qkv_width);
    g->mlp.pre = meg_suballoc_mat(cut, run->dtype, d->n, d->fc1_width);
}

/*
 * The input of layer i.  That of a chunk is received by the pipeline, but for the first of all; layers that take turns
 * in the first one's activations need it all the same, for what each gives to the next.
 */
static struct meg_mat input(struct meg_suballoc *cut, int64_t i, const struct meg_gpt_run *run,
                            const struct gpt_dims *d)
{
    if (i > 0 || d->has_embedding || !run->is_training)
        return stream(cut, run, d);
    return meg_mat(NULL, run->residual_dtype, d->residual_rows, d->h);
}

/* Layer i of a slot: kept whole, or its input only, or nothing; what is not kept is shared. */
static void cut_layer(struct meg_gpt_state *st, struct gpt_slot *q, int64_t i, const struct meg_gpt_run *run,
                      struct meg_suballoc *cut)
{
    const struct gpt_dims *d = &st->dim;
    int64_t begin, end;

    if (gpt_recompute_range(run, d->layers, i, &begin, &end)) {
        q->acts[i] = st->recomputed[i - begin];
        if (i == begin && run->distribute_saved_activations)
            q->saved[i] = meg_suballoc_mat(cut, run->residual_dtype, d->residual_rows / d->tp, d->h);
        else if (i == begin)
            q->acts[i].x = input(cut, i, run, d);
        return;
    }
    if (i > 0 && !run->is_training) {
        q->acts[i] = q->acts[0];
        return;
    }
    q->acts[i].attn = st->recomputed[0].attn; /* selective: attention's output is shared */
    q->acts[i].x = input(cut, i, run, d);
    cut_acts(&q->acts[i], cut, run, d);
}

static void cut_slot(struct meg_gpt_state *st, struct gpt_slot *q, const struct meg_gpt_run *run,
                     struct meg_suballoc *cut)
{
    const struct gpt_dims *d = &st->dim;
    const size_t n = (size_t)d->n;

    for (int64_t i = 0; i < d->layers; i++) {
        cut_layer(st, q, i, run, cut);
        q->grads[i] = st->grads;
        if (run->defers_wgrad)
            cut_deferred(&q->grads[i], cut, run, d);
    }
    q->embed_out = q->acts[0].x.p;
    if (d->has_head)
        q->last_out = run->is_training ? stream(cut, run, d) : q->acts[0].x;
    q->tokens = meg_suballoc(cut, n * sizeof *q->tokens);
    q->labels = meg_suballoc(cut, n * sizeof *q->labels);
    q->position_ids = meg_suballoc(cut, n * sizeof *q->position_ids);
    q->doc_start = meg_suballoc(cut, n * sizeof *q->doc_start);
    q->loss_weight = meg_suballoc(cut, n * sizeof *q->loss_weight);
    q->sample_id = meg_suballoc(cut, n * sizeof *q->sample_id);
}

static void cut_head(struct meg_gpt_state *st, struct meg_suballoc *cut, const struct meg_gpt_run *run)
{
    const struct gpt_dims *d = &st->dim;
    const int64_t chunk = meg_lm_head_chunk_rows(d->v, d->n), ld = (d->v + 15) / 16 * 16;

    st->lnf = branch(cut, run, d);
    st->lnf_stats = stats(cut, d);
    st->head.logits = meg_suballoc_mat(cut, run->dtype, chunk, ld);
    st->head.logits.cols = d->v;
    st->head.lse = meg_suballoc(cut, (size_t)chunk * sizeof(float));
    st->head.partial_stats = meg_suballoc(cut, (size_t)(2 * chunk * d->tp) * sizeof(float));
}

static void cut_grads(struct gpt_grads *g, struct meg_suballoc *cut, const struct meg_gpt_run *run,
                      const struct gpt_dims *d)
{
    g->x = stream(cut, run, d);
    g->ln = branch(cut, run, d);
    g->attn.o = meg_suballoc_mat(cut, run->dtype, d->n, d->attn_width);
    g->attn.delta = meg_suballoc(cut, (size_t)(d->n * d->a) * sizeof(float));
    if (d->fc1_width > d->f)
        g->mlp.mid = meg_suballoc_mat(cut, run->dtype, d->n, d->f);
    if (run->defers_wgrad)
        return;
    g->attn.qkv = meg_suballoc_mat(cut, run->dtype, d->n, d->qkv_width);
    g->mlp.pre = meg_suballoc_mat(cut, run->dtype, d->n, d->fc1_width);
}

static void cut_workspace(struct meg_gpt_state *st, const struct meg_gpt_run *run, struct meg_suballoc *cut)
{
    const struct gpt_dims *d = &st->dim;
    const size_t table = (size_t)(d->positions * d->rope_half) * sizeof(float);
    const size_t wide = (size_t)(d->n * d->h) * meg_dtype_size(run->residual_dtype);
    const struct meg_attn_size attn = {
        run->dtype, d->n, d->a, d->g, d->qkv_width / (d->a + 2 * d->g), run->is_training
    };

    st->sublayer_out = branch(cut, run, d);
    for (int i = 0; i < 2 && st->ctx.has_sp; i++)
        st->ctx.sp_buffer[i] = meg_suballoc(cut, wide);
    if (d->has_head)
        cut_head(st, cut, run);
    meg_attn_workspace_suballoc(&st->attn_workspace, cut, &attn, st->cp, st->ncp);
    st->loss = meg_suballoc(cut, (size_t)d->n * sizeof *st->loss);
    st->position_of_row = meg_suballoc(cut, (size_t)d->s * sizeof *st->position_of_row);
    st->rope.cos = meg_suballoc(cut, table);
    st->rope.sin = meg_suballoc(cut, table);
    if (run->recompute == MEG_RECOMPUTE_SELECTIVE)
        cut_attn_out(&st->recomputed[0].attn, cut, run, d);
    for (int64_t i = 0; i < max_recomputed(run, d->layers); i++) {
        if (i > 0 || run->distribute_saved_activations)
            st->recomputed[i].x = stream(cut, run, d);
        cut_acts(&st->recomputed[i], cut, run, d);
    }
    if (!run->is_training)
        return;
    cut_grads(&st->grads, cut, run, d);
    if (!run->defers_wgrad)
        st->grads.attn_out = st->grads.mlp_out = st->sublayer_out;
}

void gpt_buffers_suballoc(struct meg_gpt_state *st, const struct meg_gpt_run *run, struct meg_suballoc *activations,
                          struct meg_suballoc *workspace)
{
    cut_workspace(st, run, workspace);
    for (int64_t i = 0; i < st->dim.slots; i++)
        cut_slot(st, &st->slot[i], run, activations);
}

void meg_gpt_memory_size(struct meg_gpt_memory *m, const struct meg_gpt_conf *c, const struct meg_gpt_run *run,
                         const struct meg_mesh *mesh)
{
    struct meg_gpt_state *st = gpt_state_new(c, run, mesh);
    struct meg_suballoc activations = { 0 }, workspace = { 0 };
    struct meg_params p;

    gpt_buffers_suballoc(st, run, &activations, &workspace);
    gpt_state_free(st);
    meg_gpt_params(&p, c, mesh);
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
