/* model.c - create a rank's shard of a model, and set its initial weights. */
#include "model/model.h"
#include <stdlib.h>
#include "base/mem.h"
#include "model/internal.h"
#include "placement/placement.h"
#include "tensor/half.h"

/* Compute the rotary tables of queries or keys of a set, and upload them. */
static void fill_rope(struct meg_model *g, const struct meg_rope_conf *c, bool is_query, float *cosine, float *sine)
{
    const size_t nbytes = (size_t)(meg_rope_rows(c) * c->half) * sizeof(float);
    float *host_cosine = meg_new(nbytes), *host_sine = meg_new(nbytes);

    meg_rope_fill(c, is_query, host_cosine, host_sine);
    g->op->upload(g->state->ctx.stream, cosine, host_cosine, nbytes);
    g->op->upload(g->state->ctx.stream, sine, host_sine, nbytes);
    free(host_cosine);
    free(host_sine);
}

static void fill_ropes(struct meg_model *g)
{
    for (int k = 0; k < MEG_ROPE_SETS; k++) {
        const struct meg_rope_conf *c = &g->state->desc.rope[k];
        struct meg_rope *t = &g->state->rope[k];

        if (c->half)
            fill_rope(g, c, false, t->cos, t->sin);
        if (t->q_cos)
            fill_rope(g, c, true, t->q_cos, t->q_sin);
    }
}

/*
 * Return the slope of head j of n, as in BLOOM: with p the largest power of two that is at most n, the slopes of the
 * first p heads are 2^(-8/p), 2^(-16/p), ..., and those of the other heads are 2^(-4/p), 2^(-12/p), 2^(-20/p), ...
 */
static double alibi_slope(int64_t j, int64_t n)
{
    int64_t p = 1;

    while (2 * p <= n)
        p *= 2;
    return exp2(-4 * (double)(j < p ? 2 * (j + 1) : 2 * (j - p) + 1) / (double)p);
}

/* Compute the slopes of ALiBi of this rank's heads. */
static void fill_alibi(struct meg_model *g)
{
    struct meg_model_state *st = g->state;
    const int64_t heads = st->desc.alibi_heads, n = heads / st->dim.tp;
    float *slope = meg_new((size_t)n * sizeof *slope);

    for (int64_t j = 0; j < n; j++)
        slope[j] = (float)alibi_slope(st->dim.tp_rank * n + j, heads);
    g->op->upload(st->ctx.stream, st->alibi_slope, slope, (size_t)n * sizeof *slope);
    free(slope);
}

/* Run a step of the binder (params/binder.h) for all parts of the model on this rank. */
static int bind_all(struct meg_model *g, enum meg_bind_step step, struct meg_err *e)
{
    struct meg_model_state *st = g->state;
    struct meg_binder b = { .step = step,
                            .params = &g->params,
                            .op = g->op,
                            .n = st->dim.most.n,
                            .dtype = g->run.dtype,
                            .logits_dtype = model_logits_dtype(&g->run),
                            .grad_dtype = g->run.grad_dtype,
                            .err = e,
                            .w = g->w,
                            .g = g->g,
                            .is_w_layerwise = g->run.shards_params };
    struct meg_block_env env = {
        .tp = st->dim.tp,
        .tp_rank = st->dim.tp_rank,
        .rope = st->rope,
        .alibi_slope = st->alibi_slope,
        .norm_eps = st->desc.norm_eps,
        .recomputes_core = g->run.recompute == MEG_RECOMPUTE_SELECTIVE,
    };

    if (st->dim.has_embedding)
        model_bind_embed(&b, &st->embed, &st->desc);
    for (int k = 0; k < st->desc.nstacks; k++)
        if (st->dim.has_layers[k])
            model_bind_rel_bias(&b, &st->rel_bias[k], &st->desc, k);
    for (int64_t i = 0; i < st->dim.nlayers; i++) {
        env.layer = (int)st->layer[i].index;
        env.layer_in_stack = (int)(st->layer[i].index - st->desc.stack[st->layer[i].desc->stack].begin);
        env.rel_bias = &st->rel_bias[st->layer[i].desc->stack];
        env.cp = &st->cp[st->ncp > 1 ? st->layer[i].index : 0];
        model_bind_layer(&b, &st->layer[i], &st->desc, &env);
    }
    for (int k = 0; k < st->desc.nstacks; k++)
        if (st->dim.has_norm[k])
            model_bind_final_norm(&b, &st->final_norm[k], &st->desc, k);
    if (st->dim.has_head)
        model_bind_heads(&b, st->head, &st->desc, &env);
    return b.status;
}

static void create_events(struct meg_model *g)
{
    for (int64_t i = 0; i < g->state->dim.nslots; i++)
        for (int k = 0; k < 2; k++) {
            struct model_inputs *x = &g->state->slot[i].inputs[k];

            x->uploaded = g->op->event_create();
            x->unused = g->op->event_create();
        }
}

static void destroy_events(struct meg_model *g)
{
    for (int64_t i = 0; i < g->state->dim.nslots; i++)
        for (int k = 0; k < 2; k++) {
            const struct model_inputs *x = &g->state->slot[i].inputs[k];

            if (!x->uploaded)
                continue;
            g->op->event_destroy(x->uploaded);
            g->op->event_destroy(x->unused);
        }
}

/*
 * Allocate the arenas of activations and workspace, and those of parameters and gradients unless they exist.  Set the
 * bases of *activations and *workspace to their arenas, for sub-allocation.
 */
static int alloc_arenas(struct meg_model *g, struct meg_suballoc *activations, struct meg_suballoc *workspace,
                        struct meg_err *e)
{
    const struct meg_ops *op = g->op;
    struct meg_model_state *st = g->state;
    struct meg_model_memory m;

    meg_model_memory_size(&m, &g->conf, &g->run, op, g->mesh);
    if ((!g->w && !(g->w = meg_mesh_alloc(g->mesh, g->device, m.params))) ||
        (m.grads && !g->g && !(g->g = meg_mesh_alloc(g->mesh, g->device, m.grads))) ||
        !(st->activations = op->alloc(m.activations)) || !(st->workspace = op->alloc(m.workspace)))
        return meg_fail(e, MEG_EFAIL,
                        "out of memory: the model requires %.1f MiB for parameters, %.1f MiB for gradients, %.1f MiB "
                        "for activations and %.1f MiB for workspace%s",
                        (double)m.params / 0x1p20, (double)m.grads / 0x1p20, (double)m.activations / 0x1p20,
                        (double)m.workspace / 0x1p20, g->run.is_training ? "; use a smaller --micro-batch-size" : "");
    meg_placement_undefined(st->activations, m.activations);
    meg_placement_undefined(st->workspace, m.workspace);
    activations->base = st->activations;
    workspace->base = st->workspace;
    g->used = m;
    return 0;
}

/* Round x to a data type. */
static float rounded(float x, enum meg_dtype t)
{
    return t == MEG_DTYPE_BF16 ? meg_from_bf16(meg_to_bf16(x)) : t == MEG_DTYPE_F16 ? meg_from_f16(meg_to_f16(x)) : x;
}

/* Create the state of the model for the dimensions in g->run, and allocate its memory.  Free it with close_state. */
static int open_state(struct meg_model *g, struct meg_err *e)
{
    struct meg_model_state *st = g->state = model_state_new(&g->conf, &g->run, g->op, g->mesh);
    struct meg_suballoc activations = { 0 }, workspace = { 0 };
    int r;

    st->ctx.stream = g->device->compute;
    st->host_position = meg_new((size_t)st->dim.most.s * sizeof *st->host_position);
    if ((r = bind_all(g, MEG_BIND_PLANS, e)) < 0 || (r = alloc_arenas(g, &activations, &workspace, e)) < 0)
        return r;
    model_buffers_suballoc(st, &g->run, &activations, &workspace);
    create_events(g);
    g->loss_sum = st->ctx.loss_sum;
    MEG_ASSERT_EQ(activations.used, g->used.activations);
    MEG_ASSERT_EQ(workspace.used, g->used.workspace);
    bind_all(g, MEG_BIND_POINTERS, e);
    st->embed.v0 = meg_partition_begin(st->desc.v, st->dim.tp, st->dim.tp_rank);
    st->embed.is_tied = !st->desc.is_untied && st->dim.has_head;
    st->embed.dropout = st->desc.hidden_dropout;
    st->embed.multiplier = (float)st->desc.embedding_multiplier;
    if (st->desc.rounds_embedding_multiplier)
        st->embed.multiplier = rounded(st->embed.multiplier, g->run.dtype);
    fill_ropes(g);
    if (st->desc.alibi_heads)
        fill_alibi(g);
    st->ctx.tp = g->mesh->tp;
    st->ctx.ep = g->mesh->ep;
    st->ctx.etp = g->mesh->etp;
    st->ctx.seed = g->run.seed;
    st->ctx.defers_wgrad = g->run.defers_wgrad;
    return 0;
}

static void close_state(struct meg_model *g)
{
    struct meg_model_state *st = g->state;

    bind_all(g, MEG_BIND_DESTROY, NULL);
    destroy_events(g);
    g->op->release(st->activations);
    g->op->release(st->workspace);
    model_state_free(st, g->device);
    g->state = NULL;
}

int meg_model_create(struct meg_model **out, const struct meg_model_conf *c, const struct meg_model_run *run,
                     const struct meg_device *device, const struct meg_mesh *mesh, struct meg_err *e)
{
    struct meg_model *g = meg_new(sizeof *g);
    int r;

    MEG_ASSERT_LT(0, c->vocab_size);
    MEG_ASSERT_LE(run->s, c->max_position_embeddings);
    g->conf = *c;
    g->run = *run;
    g->device = device;
    g->op = device->op;
    g->mesh = mesh;
    meg_model_params(&g->params, c, mesh);
    if ((r = open_state(g, e)) == 0) {
        if (run->shards_params)
            meg_placement_undefined(g->w, g->used.params); /* until they are gathered */
        else
            meg_placement_params(&g->params, g->w, run->dtype, false);
        meg_placement_params(&g->params, g->g, run->grad_dtype, true);
        *out = g;
        g = NULL;
    }
    meg_model_close(g);
    return r;
}

int meg_model_reserve(struct meg_model *g, int64_t s, int64_t positions, struct meg_err *e)
{
    const int64_t had = g->state->desc.rope[0].positions;

    MEG_ASSERT(!g->run.is_training);
    MEG_ASSERT_LE(s, g->conf.max_position_embeddings);
    MEG_ASSERT_LE(positions, g->conf.max_position_embeddings);
    if (s <= g->run.s && positions <= had)
        return 0;
    meg_device_synchronize(g->device, g->device->copy);
    meg_device_synchronize(g->device, g->device->compute);
    close_state(g);
    g->num_moves++;
    g->run.s = s > g->run.s ? s : g->run.s;
    g->run.s_enc = g->run.s;
    g->run.positions = positions > had ? positions : had;
    return open_state(g, e);
}

void meg_model_close(struct meg_model *g)
{
    if (!g)
        return;
    close_state(g);
    meg_mesh_release(g->mesh, g->device, g->w);
    meg_mesh_release(g->mesh, g->device, g->g);
    meg_params_free(&g->params);
    free(g);
}

void meg_model_init(struct meg_model *g, uint32_t seed)
{
    enum { INIT_CHUNK = 1 << 20 }; /* elements per upload */
    float *host = meg_new(INIT_CHUNK * sizeof *host);

    MEG_ASSERT(!g->run.shards_params);
    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *row = &g->params.row[i];
        const enum meg_dtype dtype = meg_param_dtype(row, g->run.dtype);

        for (int64_t at = 0; at < row->shard_numel; at += INIT_CHUNK) {
            const int64_t n = row->shard_numel - at < INIT_CHUNK ? row->shard_numel - at : INIT_CHUNK;

            meg_param_init_shard(row, seed, at, n, host);
            meg_dtype_from_f32(host, dtype, host, n);
            g->op->upload(g->state->ctx.stream, meg_params_element(&g->params, g->w, row->offset + at, g->run.dtype),
                          host, (size_t)n * meg_dtype_size(dtype));
        }
    }
    free(host);
}
