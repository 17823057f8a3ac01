/* model.c - create a rank's shard of a model, and set its initial weights. */
#include "model/model.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "model/internal.h"
#include "tensor/half.h"

/*
 * Return the element offset of a parameter in the flat buffer or, if is_layerwise, in the unsharded buffers of ZeRO-2/3
 * (nn/param.h).
 */
static int64_t buffer_offset(const struct meg_params *p, const struct meg_param *row, bool is_layerwise)
{
    return is_layerwise
               ? meg_params_unsharded_offset(p, row->layer_group) + row->offset - p->layer_group[row->layer_group].begin
               : row->offset;
}

/* Find the parameter named prefix + name; set *w to its local shard and *dw to the gradient of that shard. */
static const struct meg_param *bind(const struct meg_model *g, void **w, void **dw, const char *prefix,
                                    const char *name)
{
    char full[96];
    const struct meg_param *row;

    snprintf(full, sizeof full, "%s%s", prefix, name);
    row = meg_params_find(&g->params, full);
    MEG_ASSERT(row && row->shard_numel);
    *w = meg_element(g->w, buffer_offset(&g->params, row, g->run.shards_params), g->run.dtype);
    *dw = g->g ? meg_element(g->g, buffer_offset(&g->params, row, g->run.shards_grads), g->run.grad_dtype) : NULL;
    return row;
}

static void bind_mat(const struct meg_model *g, struct meg_mat *w, struct meg_mat *dw, const char *prefix,
                     const char *name)
{
    void *p, *dp;
    const struct meg_param *row = bind(g, &p, &dp, prefix, name);

    *w = meg_mat(p, g->run.dtype, row->shard_dim[0], row->shard_dim[1]);
    *dw = meg_mat(dp, g->run.grad_dtype, row->shard_dim[0], row->shard_dim[1]);
}

static void bind_vector(const struct meg_model *g, void **w, void **dw, const char *prefix, const char *name,
                        const char *what)
{
    char full[64];

    snprintf(full, sizeof full, "%s.%s", name, what);
    bind(g, w, dw, prefix, full);
}

static void bind_norm(const struct meg_model *g, struct meg_norm_weights *l, const char *prefix, const char *name)
{
    l->eps = (float)g->conf.norm_epsilon;
    l->type = g->conf.normalization;
    bind_vector(g, &l->w, &l->dw, prefix, name, "weight");
    if (l->type == MEG_NORM_LAYER)
        bind_vector(g, &l->b, &l->db, prefix, name, "bias");
}

/* Create the plan of the linear layer whose weight is named prefix + name. */
static int create_plan(const struct meg_model *g, struct meg_linear_weights *l, const char *prefix, const char *name,
                       struct meg_err *e)
{
    const enum meg_dtype t = g->run.dtype;
    struct meg_linear_desc desc = { .n = g->state->dim.n, .x = t, .w = t, .y = t, .dw = g->run.grad_dtype };
    const struct meg_param *row;
    const char *why;
    char full[96];

    snprintf(full, sizeof full, "%s%s", prefix, name);
    row = meg_params_find(&g->params, full);
    MEG_ASSERT(row && row->shard_numel);
    desc.out = row->shard_dim[0];
    desc.in = row->shard_dim[1];
    if (!(l->plan = g->op->linear_create(&desc, &why)))
        return meg_fail(e, MEG_EUSAGE, "%s backend: %s [%" PRId64 ",%" PRId64 "] in %s with gradients in %s: %s",
                        g->op->name, full, desc.out, desc.in, meg_dtype_name(t), meg_dtype_name(desc.dw), why);
    return 0;
}

static void bind_linear(const struct meg_model *g, struct meg_linear_weights *l, const char *prefix, const char *name,
                        bool has_bias)
{
    char full[64];

    snprintf(full, sizeof full, "%s.weight", name);
    bind_mat(g, &l->w, &l->dw, prefix, full);
    if (has_bias)
        bind_vector(g, &l->bias, &l->dbias, prefix, name, "bias");
}

/* Point the weights and gradients of layer i to its parameters in the flat buffers. */
static void bind_layer(const struct meg_model *g, struct model_layer *l, int64_t i)
{
    const struct meg_model_conf *c = &g->conf;
    const struct model_dims *d = &g->state->dim;
    char prefix[40];

    snprintf(prefix, sizeof prefix, "decoder.layers.%" PRId64 ".", i);
    bind_norm(g, &l->norm1, prefix, "input_layernorm");
    bind_norm(g, &l->norm2, prefix, "pre_mlp_layernorm");
    bind_linear(g, &l->attn.qkv, prefix, "self_attention.linear_qkv", c->has_bias || c->add_qkv_bias);
    bind_linear(g, &l->attn.proj, prefix, "self_attention.linear_proj", c->has_bias);
    bind_linear(g, &l->mlp.fc1, prefix, "mlp.linear_fc1", c->has_bias);
    bind_linear(g, &l->mlp.fc2, prefix, "mlp.linear_fc2", c->has_bias);
    l->attn.rope = &g->state->rope;
    l->attn.a = d->width.a;
    l->attn.g = d->width.g;
    l->attn.d = d->width.d;
    l->attn.head0 = g->mesh->coords.tp * d->width.a;
    l->attn.layer = (int)i;
    l->attn.cp = &g->state->cp[g->state->ncp > 1 ? i : 0];
    l->attn.workspace = &g->state->attn_workspace;
    l->attn.dropout = c->attention_dropout;
    l->attn.recomputes_core = g->run.recompute == MEG_RECOMPUTE_SELECTIVE;
    l->mlp.is_gated = c->swiglu;
    l->mlp.glu.type = MEG_GLU_SILU;
    l->mlp.act = c->swiglu ? MEG_ACT_NONE : c->bias_gelu_fusion && c->has_bias ? MEG_ACT_GELU_TANH : MEG_ACT_GELU_ERF;
}

/*
 * Compute the rotary tables.  Column pair i of `half` is rotated by position / interpolation * base^(-i/half).  With
 * Llama 3.1's scaling, frequencies are divided by rope_scaling_factor at wavelengths above 8192 tokens, unchanged below
 * 2048, and interpolated between.
 */
static void fill_rope(struct meg_model *g)
{
    const struct model_dims *d = &g->state->dim;
    const struct meg_model_conf *c = &g->conf;
    const size_t nbytes = (size_t)(d->positions * d->rope_half) * sizeof(float);
    struct meg_rope *t = &g->state->rope;
    float *cosine = meg_new(nbytes), *sine = meg_new(nbytes);

    t->half = d->rope_half;
    t->is_interleaved = c->rotary_interleaved;
    for (int64_t i = 0; i < d->rope_half; i++) {
        const double freq = pow(c->rotary_base, -(double)i / (double)d->rope_half), wavelength = 2 * M_PI / freq;
        const double unscaled = fmin(fmax((8192 / wavelength - 1) / 3, 0), 1);
        const double scale = c->use_rope_scaling ? (1 - unscaled) / c->rope_scaling_factor + unscaled : 1;

        for (int64_t p = 0; p < d->positions; p++) {
            const double angle = (double)p / (double)c->rotary_interpolation * freq * scale;

            cosine[p * d->rope_half + i] = (float)cos(angle);
            sine[p * d->rope_half + i] = (float)sin(angle);
        }
    }
    g->op->upload(g->state->ctx.stream, t->cos, cosine, nbytes);
    g->op->upload(g->state->ctx.stream, t->sin, sine, nbytes);
    free(cosine);
    free(sine);
}

static void bind_head(struct meg_model *g)
{
    struct meg_model_state *st = g->state;
    struct meg_linear_weights *out = &st->head.out;

    bind_norm(g, &st->final_norm, "decoder.", "final_layernorm");
    if (g->conf.is_untied)
        bind_mat(g, &out->w, &out->dw, "output_layer.", "weight");
    else
        bind_mat(g, &out->w, &out->dw, "embedding.", "word_embeddings.weight");
    st->head.v0 = st->dim.v0;
}

/* Return the global index of layer k of this rank, where chunk 0 has layers 0 to dim.layers - 1. */
static int64_t layer_of(const struct meg_model *g, int64_t k)
{
    const int64_t layers = g->state->dim.layers;
    int64_t first = 0, n;

    if (g->mesh->layout.pp > 1)
        meg_layout_layers(&g->mesh->layout, g->mesh->coords.pp, k / layers, &first, &n);
    return first + k % layers;
}

static void bind_all(struct meg_model *g)
{
    struct meg_model_state *st = g->state;

    if (g->mesh->coords.pp == 0) {
        bind_mat(g, &st->embed.word, &st->embed.dword, "embedding.", "word_embeddings.weight");
        if (!meg_model_is_rotary(&g->conf))
            bind_mat(g, &st->embed.pos, &st->embed.dpos, "embedding.", "position_embeddings.weight");
        st->embed.v0 = st->dim.v0;
        st->embed.is_tied = !g->conf.is_untied && st->dim.has_head;
        st->embed.dropout = g->conf.hidden_dropout;
    }
    for (int64_t k = 0; k < st->dim.chunks * st->dim.layers; k++)
        bind_layer(g, &st->layer[k], layer_of(g, k));
    if (st->dim.has_head)
        bind_head(g);
}

/* Create the plans of all linear layers, before any memory is allocated. */
static int create_plans(struct meg_model *g, struct meg_err *e)
{
    struct meg_model_state *st = g->state;
    int r = 0;

    for (int64_t k = 0; r == 0 && k < st->dim.chunks * st->dim.layers; k++) {
        struct model_layer *l = &st->layer[k];
        char prefix[40];

        snprintf(prefix, sizeof prefix, "decoder.layers.%" PRId64 ".", layer_of(g, k));
        if ((r = create_plan(g, &l->attn.qkv, prefix, "self_attention.linear_qkv.weight", e)) == 0 &&
            (r = create_plan(g, &l->attn.proj, prefix, "self_attention.linear_proj.weight", e)) == 0 &&
            (r = create_plan(g, &l->mlp.fc1, prefix, "mlp.linear_fc1.weight", e)) == 0)
            r = create_plan(g, &l->mlp.fc2, prefix, "mlp.linear_fc2.weight", e);
    }
    if (r == 0 && st->dim.has_head)
        r = g->conf.is_untied ? create_plan(g, &st->head.out, "output_layer.", "weight", e)
                              : create_plan(g, &st->head.out, "embedding.", "word_embeddings.weight", e);
    return r;
}

/*
 * Return the number of bytes in use of the flat buffer, up to the end of its last bucket.  If is_layerwise, return the
 * number of bytes in use of the unsharded buffers of ZeRO-2/3.
 */
static size_t used_nbytes(const struct meg_params *p, bool is_layerwise, enum meg_dtype t)
{
    int64_t most = is_layerwise ? 0 : p->bucket[p->nbuckets - 1].end;

    for (int i = 0; i < p->nlayer_groups && is_layerwise; i++) {
        const struct meg_elem_range group = p->layer_group[i];
        const int64_t end = meg_params_unsharded_offset(p, i) + group.end - group.begin;

        most = group.end > group.begin && end > most ? end : most;
    }
    return (size_t)most * meg_dtype_size(t);
}

static void create_events(struct meg_model *g)
{
    for (int64_t i = 0; i < g->state->dim.slots; i++)
        for (int k = 0; k < 2; k++) {
            struct model_inputs *x = &g->state->slot[i].inputs[k];

            x->uploaded = g->op->event_create();
            x->unused = g->op->event_create();
        }
}

static void destroy_events(struct meg_model *g)
{
    for (int64_t i = 0; i < g->state->dim.slots; i++)
        for (int k = 0; k < 2; k++) {
            const struct model_inputs *x = &g->state->slot[i].inputs[k];

            if (!x->uploaded)
                continue;
            g->op->event_destroy(x->uploaded);
            g->op->event_destroy(x->unused);
        }
}

int meg_model_create(struct meg_model **out, const struct meg_model_conf *c, const struct meg_model_run *run,
                     const struct meg_device *device, const struct meg_mesh *mesh, struct meg_err *e)
{
    struct meg_model *g = meg_new(sizeof *g);
    struct meg_suballoc activations = { 0 }, workspace = { 0 };
    const struct meg_ops *op = device->op;
    struct meg_model_state *st;
    struct meg_model_memory m;
    int r = 0;

    MEG_ASSERT_LT(0, c->vocab_size);
    MEG_ASSERT_LE(run->s, c->max_position_embeddings);
    g->conf = *c;
    g->run = *run;
    g->device = device;
    g->op = op;
    g->mesh = mesh;
    meg_model_params(&g->params, c, mesh);
    g->state = st = model_state_new(c, run, op, mesh);
    st->ctx.stream = device->compute;
    st->host_position = meg_new((size_t)st->dim.s * sizeof *st->host_position);
    if ((r = create_plans(g, e)) < 0)
        goto out;

    meg_model_memory_size(&m, c, run, op, mesh);
    if (!(g->w = op->alloc(m.params)) || (m.grads && !(g->g = op->alloc(m.grads))) ||
        !(st->activations = activations.base = op->alloc(m.activations)) ||
        !(st->workspace = workspace.base = op->alloc(m.workspace))) {
        r = meg_fail(e, MEG_EFAIL,
                     "out of memory: the model requires %.1f MiB for parameters, %.1f MiB for gradients, %.1f MiB for "
                     "activations and %.1f MiB for workspace%s",
                     (double)m.params / 0x1p20, (double)m.grads / 0x1p20, (double)m.activations / 0x1p20,
                     (double)m.workspace / 0x1p20, run->is_training ? "; use a smaller --micro-batch-size" : "");
        goto out;
    }
    model_buffers_suballoc(st, run, &activations, &workspace);
    create_events(g);
    g->loss_sum = st->loss_sum;
    g->used.params = used_nbytes(&g->params, run->shards_params, run->dtype);
    g->used.grads = g->g ? used_nbytes(&g->params, run->shards_grads, run->grad_dtype) : 0;
    g->used.activations = activations.used;
    g->used.workspace = workspace.used;
    MEG_ASSERT_EQ(activations.used, m.activations);
    MEG_ASSERT_EQ(workspace.used, m.workspace);
    bind_all(g);
    if (st->dim.rope_half)
        fill_rope(g);
    st->ctx.tp = mesh->tp;
    st->ctx.seed = run->seed;
    st->ctx.defers_wgrad = run->defers_wgrad;
    *out = g;
    g = NULL;
out:
    meg_model_close(g);
    return r;
}

static void destroy_linear(const struct meg_model *g, struct meg_linear_weights *l)
{
    if (l->plan)
        g->op->linear_destroy(l->plan);
}

void meg_model_close(struct meg_model *g)
{
    struct meg_model_state *st;

    if (!g)
        return;
    st = g->state;
    for (int64_t i = 0; i < st->dim.chunks * st->dim.layers; i++) {
        struct model_layer *l = &st->layer[i];

        destroy_linear(g, &l->attn.qkv);
        destroy_linear(g, &l->attn.proj);
        destroy_linear(g, &l->mlp.fc1);
        destroy_linear(g, &l->mlp.fc2);
    }
    destroy_linear(g, &st->head.out);
    destroy_events(g);
    g->op->release(g->w);
    g->op->release(g->g);
    g->op->release(st->activations);
    g->op->release(st->workspace);
    meg_params_free(&g->params);
    model_state_free(st);
    free(g);
}

void meg_model_init(struct meg_model *g, uint32_t seed)
{
    enum { INIT_CHUNK = 1 << 20 }; /* elements per upload */
    float *host = meg_new(INIT_CHUNK * sizeof *host);

    MEG_ASSERT(!g->run.shards_params);
    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *row = &g->params.row[i];

        for (int64_t at = 0; at < row->shard_numel; at += INIT_CHUNK) {
            const int64_t n = row->shard_numel - at < INIT_CHUNK ? row->shard_numel - at : INIT_CHUNK;

            meg_param_init_shard(row, seed, at, n, host);
            meg_dtype_from_f32(host, g->run.dtype, host, n);
            g->op->upload(g->state->ctx.stream, meg_element(g->w, row->offset + at, g->run.dtype), host,
                          (size_t)n * meg_dtype_size(g->run.dtype));
        }
    }
    free(host);
}
