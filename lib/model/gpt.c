#include "model/gpt.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/head.h"
#include "nn/mlp.h"
#include "nn/norm.h"

/* Rows of a decoding step, always this many: a row's result does not depend on how many are in use. */
enum { DECODE_ROWS = 16 };

struct layer {
    struct meg_lnorm norm1, norm2;
    struct meg_attn attn;
    struct meg_mlp mlp;
};

/* What a layer keeps for its backward pass; without training all layers share one. */
struct acts {
    struct meg_mat x, n1, m, n2;             /* [n,h] */
    struct meg_lnorm_acts s1, s2;
    struct meg_attn_acts attn;
    struct meg_mlp_acts mlp;
};

/* Gradients on their way back, shared by all layers. */
struct grads {
    struct meg_mat x, n, branch;             /* [n,h] */
    struct meg_attn_grads attn;
    struct meg_mlp_acts mlp;
};

struct meg_gpt_state {
    struct meg_ctx c;
    int64_t n;                               /* rows there is room for */
    struct layer *layer;
    struct acts *acts;                       /* [L] */
    struct meg_mat x, nf;                    /* [n,h]: last layer's output, and that normed */
    struct meg_lnorm_acts sf;
    struct meg_lnorm normf;
    struct meg_embed embed;
    struct meg_rope rope;
    struct meg_head head;
    struct meg_mat branch;                   /* [n,h]: output of attention or MLP before it joins */
    struct grads d;
    int32_t *tokens, *labels, *position, *doc_start;   /* [n], device */
    float *weight, *loss;                    /* [n], device */
    int64_t *sample;                         /* [b] used, device */
    float *host_loss, *host_weight;          /* [n] */
    void *activations, *workspace;
};

/* ---- planning ---------------------------------------------------------------------------- */

/* Rows and local sizes of a run. */
struct dims {
    int64_t n, s, b, h, ad, qkv, f, fc1, v, a, g, L, half, positions;
};

static struct dims dims_of(const struct meg_gpt_conf *c, const struct meg_gpt_run *run, const struct meg_mesh *mesh)
{
    struct dims d = { 0 };

    d.s = run->s;
    d.b = run->b;
    d.n = run->s * run->b;
    if (!run->is_training && d.n < DECODE_ROWS)
        d.n = DECODE_ROWS;
    d.h = c->hidden_size;
    d.a = c->num_attention_heads / mesh->tp->size;
    d.g = c->num_query_groups / mesh->tp->size;
    d.ad = d.a * c->kv_channels;
    d.qkv = d.ad + 2 * d.g * c->kv_channels;
    d.f = c->ffn_hidden_size / mesh->tp->size;
    d.fc1 = c->swiglu ? 2 * d.f : d.f;
    d.half = meg_gpt_is_rotary(c) ? (int64_t)((double)c->kv_channels * c->rotary_percent) / 2 : 0;
    d.v = c->vocab_size / mesh->tp->size;
    d.L = c->num_layers;
    d.positions = c->max_position_embeddings;
    return d;
}

static void cut_acts(struct acts *a, struct meg_cut *cut, const struct dims *d, bool is_training)
{
    const enum meg_dtype t = MEG_DTYPE_F32;
    const size_t stats = (size_t)d->n * sizeof(float);

    a->x = meg_cut_mat(cut, t, d->n, d->h);
    a->n1 = meg_cut_mat(cut, t, d->n, d->h);
    a->s1.mean = meg_cut(cut, stats);
    a->s1.rstd = meg_cut(cut, stats);
    a->attn.qkv = meg_cut_mat(cut, t, d->n, d->qkv);
    a->attn.o = meg_cut_mat(cut, t, d->n, d->ad);
    a->attn.lse = meg_cut(cut, (size_t)(d->n * d->a) * sizeof(float));
    a->m = meg_cut_mat(cut, t, d->n, d->h);
    a->n2 = meg_cut_mat(cut, t, d->n, d->h);
    a->s2.mean = meg_cut(cut, stats);
    a->s2.rstd = meg_cut(cut, stats);
    if (is_training || d->fc1 > d->f)
        a->mlp.pre = meg_cut_mat(cut, t, d->n, d->fc1);
    a->mlp.mid = meg_cut_mat(cut, t, d->n, d->f);
}

static void cut_activations(struct meg_gpt_state *g, struct meg_cut *cut, const struct dims *d, bool is_training)
{
    const size_t stats = (size_t)d->n * sizeof(float);

    for (int64_t i = 0; i < d->L; i++) {
        if (i == 0 || is_training)
            cut_acts(&g->acts[i], cut, d, is_training);
        else
            g->acts[i] = g->acts[0];
    }
    g->x = is_training ? meg_cut_mat(cut, MEG_DTYPE_F32, d->n, d->h) : g->acts[0].x;
    g->nf = meg_cut_mat(cut, MEG_DTYPE_F32, d->n, d->h);
    g->sf.mean = meg_cut(cut, stats);
    g->sf.rstd = meg_cut(cut, stats);
}

static void cut_workspace(struct meg_gpt_state *g, struct meg_cut *cut, const struct dims *d, bool is_training)
{
    const enum meg_dtype t = MEG_DTYPE_F32;
    const size_t n = (size_t)d->n;
    const int64_t chunk = meg_head_chunk(d->v, d->n), ld = (d->v + 15) / 16 * 16;

    g->branch = meg_cut_mat(cut, t, d->n, d->h);
    g->head.logits = meg_cut_mat(cut, t, chunk, ld);
    g->head.logits.cols = d->v;
    g->head.lse = meg_cut(cut, (size_t)chunk * sizeof(float));
    g->head.part = meg_cut(cut, (size_t)(2 * chunk) * sizeof(float));
    g->tokens = meg_cut(cut, n * sizeof *g->tokens);
    g->labels = meg_cut(cut, n * sizeof *g->labels);
    g->position = meg_cut(cut, n * sizeof *g->position);
    g->doc_start = meg_cut(cut, n * sizeof *g->doc_start);
    g->weight = meg_cut(cut, n * sizeof *g->weight);
    g->loss = meg_cut(cut, n * sizeof *g->loss);
    g->sample = meg_cut(cut, n * sizeof *g->sample);
    g->rope.cos = meg_cut(cut, (size_t)(d->positions * d->half) * sizeof(float));
    g->rope.sin = meg_cut(cut, (size_t)(d->positions * d->half) * sizeof(float));
    if (!is_training)
        return;
    g->d.x = meg_cut_mat(cut, t, d->n, d->h);
    g->d.n = meg_cut_mat(cut, t, d->n, d->h);
    g->d.branch = g->branch;
    g->d.mlp.pre = meg_cut_mat(cut, t, d->n, d->fc1);
    if (d->fc1 > d->f)
        g->d.mlp.mid = meg_cut_mat(cut, t, d->n, d->f);
    g->d.attn.qkv = meg_cut_mat(cut, t, d->n, d->qkv);
    g->d.attn.o = meg_cut_mat(cut, t, d->n, d->ad);
    g->d.attn.delta = meg_cut(cut, (size_t)(d->n * d->a) * sizeof(float));
}

void meg_gpt_plan(struct meg_gpt_memory *m, const struct meg_gpt_conf *c, const struct meg_gpt_run *run,
                  const struct meg_mesh *mesh)
{
    const struct dims d = dims_of(c, run, mesh);
    struct meg_gpt_state g = { 0 };
    struct meg_cut activations = { 0 }, workspace = { 0 };
    struct meg_params p;

    g.acts = meg_new((size_t)d.L * sizeof *g.acts);
    cut_activations(&g, &activations, &d, run->is_training);
    cut_workspace(&g, &workspace, &d, run->is_training);
    free(g.acts);

    meg_gpt_params(&p, c);
    m->params = (size_t)p.flat * sizeof(float);
    m->grads = run->is_training ? m->params : 0;
    m->activations = activations.used;
    m->workspace = workspace.used;
    meg_params_free(&p);
}

/* ---- making and closing ------------------------------------------------------------------ */

/* Element 0 of the row called prefix + name, and of its gradient. */
static float *bind(const struct meg_gpt *g, float **grad, const char *prefix, const char *name)
{
    char full[96];
    const struct meg_param *row;

    snprintf(full, sizeof full, "%s%s", prefix, name);
    row = meg_params_find(&g->params, full);
    MEG_ASSERT(row);
    *grad = g->g ? g->g + row->offset : NULL;
    return g->w + row->offset;
}

static struct meg_mat bind_mat(const struct meg_gpt *g, struct meg_mat *grad, const char *prefix, const char *name,
                               int64_t rows, int64_t cols)
{
    float *dw;
    float *w = bind(g, &dw, prefix, name);

    *grad = meg_mat(dw, MEG_DTYPE_F32, rows, cols);
    return meg_mat(w, MEG_DTYPE_F32, rows, cols);
}

static void bind_norm(const struct meg_gpt *g, struct meg_lnorm *l, const char *prefix, const char *name)
{
    char full[64];

    snprintf(full, sizeof full, "%s.weight", name);
    l->w = bind(g, &l->dw, prefix, full);
    l->eps = (float)g->conf.norm_epsilon;
    l->kind = meg_gpt_norm(&g->conf);
    if (l->kind == MEG_NORM_RMS)
        return;
    snprintf(full, sizeof full, "%s.bias", name);
    l->b = bind(g, &l->db, prefix, full);
}

static void bind_linear(const struct meg_gpt *g, struct meg_lin *l, const char *prefix, const char *name, int64_t n,
                        int64_t out, int64_t in, bool has_bias)
{
    const struct meg_linear_desc desc = { MEG_DTYPE_F32, n, in, out };
    char full[64];

    snprintf(full, sizeof full, "%s.weight", name);
    l->w = bind_mat(g, &l->dw, prefix, full, out, in);
    l->plan = g->op->linear_create(&desc);
    if (!has_bias)
        return;
    snprintf(full, sizeof full, "%s.bias", name);
    l->bias = bind(g, &l->dbias, prefix, full);
}

static void bind_layer(const struct meg_gpt *g, struct layer *l, int i, const struct dims *d,
                       const struct meg_mesh *mesh)
{
    const struct meg_gpt_conf *c = &g->conf;
    char prefix[40];

    snprintf(prefix, sizeof prefix, "decoder.layers.%d.", i);
    bind_norm(g, &l->norm1, prefix, "input_layernorm");
    bind_norm(g, &l->norm2, prefix, "pre_mlp_layernorm");
    bind_linear(g, &l->attn.qkv, prefix, "self_attention.linear_qkv", d->n, d->qkv, d->h,
                c->has_bias || c->add_qkv_bias);
    bind_linear(g, &l->attn.proj, prefix, "self_attention.linear_proj", d->n, d->h, d->ad, c->has_bias);
    bind_linear(g, &l->mlp.fc1, prefix, "mlp.linear_fc1", d->n, d->fc1, d->h, c->has_bias);
    bind_linear(g, &l->mlp.fc2, prefix, "mlp.linear_fc2", d->n, d->h, d->f, c->has_bias);
    l->attn.rope = &g->st->rope;
    l->attn.a = d->a;
    l->attn.g = d->g;
    l->attn.d = g->conf.kv_channels;
    l->attn.head0 = mesh->tp->rank * d->a;
    l->attn.layer = i;
    l->attn.dropout = g->conf.attention_dropout;
    l->mlp.is_gated = c->swiglu;
    l->mlp.act = c->swiglu                           ? MEG_ACT_NONE
                 : c->bias_gelu_fusion && c->has_bias ? MEG_ACT_GELU_TANH
                                                     : MEG_ACT_GELU_ERF;
}

/*
 * Angles of rotary positions: position / interpolation times base^(-2i/rot), the latter stretched for long
 * wavelengths where Llama 3's scaling is on: by the factor beyond 8192 tokens, not at all below 2048, and
 * smoothly between.
 */
static void fill_rope(struct meg_gpt *g, const struct dims *d)
{
    const struct meg_gpt_conf *c = &g->conf;
    const size_t nbytes = (size_t)(d->positions * d->half) * sizeof(float);
    struct meg_rope *t = &g->st->rope;
    float *cosine = meg_new(nbytes), *sine = meg_new(nbytes);

    t->half = d->half;
    t->is_interleaved = c->rotary_interleaved;
    for (int64_t i = 0; i < d->half; i++) {
        const double freq = pow(c->rotary_base, -(double)i / (double)d->half), wavelength = 2 * M_PI / freq;
        const double part = fmin(fmax((8192 / wavelength - 1) / 3, 0), 1);
        const double scale = c->use_rope_scaling ? (1 - part) / c->rope_scaling_factor + part : 1;

        for (int64_t p = 0; p < d->positions; p++) {
            const double angle = (double)p / (double)c->rotary_interpolation * freq * scale;

            cosine[p * d->half + i] = (float)cos(angle);
            sine[p * d->half + i] = (float)sin(angle);
        }
    }
    g->op->upload(g->st->c.st, t->cos, cosine, nbytes);
    g->op->upload(g->st->c.st, t->sin, sine, nbytes);
    free(cosine);
    free(sine);
}

static void bind_all(struct meg_gpt *g, const struct dims *d, const struct meg_mesh *mesh)
{
    struct meg_gpt_state *st = g->st;
    const struct meg_linear_desc out = { MEG_DTYPE_F32, d->n, d->h, d->v };

    st->embed.word = bind_mat(g, &st->embed.dword, "embedding.", "word_embeddings.weight", d->v, d->h);
    if (!d->half)
        st->embed.pos = bind_mat(g, &st->embed.dpos, "embedding.", "position_embeddings.weight", d->positions, d->h);
    st->embed.v0 = mesh->tp->rank * d->v;
    st->embed.dropout = g->conf.hidden_dropout;
    for (int i = 0; i < d->L; i++)
        bind_layer(g, &st->layer[i], i, d, mesh);
    bind_norm(g, &st->normf, "decoder.", "final_layernorm");
    if (g->conf.is_untied)
        st->head.out.w = bind_mat(g, &st->head.out.dw, "output_layer.", "weight", d->v, d->h);
    else {
        st->head.out.w = st->embed.word;
        st->head.out.dw = st->embed.dword;
    }
    st->head.out.plan = g->op->linear_create(&out);
}

int meg_gpt_create(struct meg_gpt **out, const struct meg_gpt_conf *c, const struct meg_gpt_run *run,
                   const struct meg_ops *op, const struct meg_mesh *mesh, struct meg_err *e)
{
    const struct dims d = dims_of(c, run, mesh);
    struct meg_gpt *g = meg_new(sizeof *g);
    struct meg_cut activations = { 0 }, workspace = { 0 };
    struct meg_gpt_memory m;
    const char *why = op->supports(MEG_DTYPE_F32);
    int r = 0;

    MEG_ASSERT(c->vocab_size > 0 && run->s <= c->max_position_embeddings);
    g->conf = *c;
    g->run = *run;
    g->op = op;
    meg_gpt_params(&g->params, c);
    g->st = meg_new(sizeof *g->st);
    g->st->n = d.n;
    g->st->layer = meg_new((size_t)d.L * sizeof *g->st->layer);
    g->st->acts = meg_new((size_t)d.L * sizeof *g->st->acts);
    g->st->host_loss = meg_new((size_t)d.n * sizeof(float));
    g->st->host_weight = meg_new((size_t)d.n * sizeof(float));
    if (why) {
        r = meg_fail(e, MEG_EUSAGE, "%s: no f32: %s", op->name, why);
        goto out;
    }

    meg_gpt_plan(&m, c, run, mesh);
    if (!(g->w = op->alloc(m.params)) || (m.grads && !(g->g = op->alloc(m.grads))) ||
        !(g->st->activations = activations.base = op->alloc(m.activations)) ||
        !(g->st->workspace = workspace.base = op->alloc(m.workspace))) {
        r = meg_fail(e, MEG_EFAIL,
                     "out of memory: the model needs %.1f MiB of parameters, %.1f of gradients, %.1f of activations "
                     "and %.1f of workspace; a smaller --micro-batch-size needs less",
                     (double)m.params / 0x1p20, (double)m.grads / 0x1p20, (double)m.activations / 0x1p20,
                     (double)m.workspace / 0x1p20);
        goto out;
    }
    cut_activations(g->st, &activations, &d, run->is_training);
    cut_workspace(g->st, &workspace, &d, run->is_training);
    MEG_ASSERT(activations.used == m.activations && workspace.used == m.workspace);
    bind_all(g, &d, mesh);
    if (d.half)
        fill_rope(g, &d);
    g->st->c = (struct meg_ctx){ .op = op, .tp = mesh->tp, .dtype = MEG_DTYPE_F32, .seed = run->seed };
    *out = g;
    g = NULL;
out:
    meg_gpt_close(g);
    return r;
}

static void unplan(const struct meg_gpt *g, struct meg_lin *l)
{
    if (l->plan)
        g->op->linear_destroy(l->plan);
}

void meg_gpt_close(struct meg_gpt *g)
{
    if (!g)
        return;
    for (int64_t i = 0; i < g->conf.num_layers; i++) {
        struct layer *l = &g->st->layer[i];

        unplan(g, &l->attn.qkv);
        unplan(g, &l->attn.proj);
        unplan(g, &l->mlp.fc1);
        unplan(g, &l->mlp.fc2);
    }
    unplan(g, &g->st->head.out);
    g->op->release(g->w);
    g->op->release(g->g);
    g->op->release(g->st->activations);
    g->op->release(g->st->workspace);
    meg_params_free(&g->params);
    free(g->st->host_loss);
    free(g->st->host_weight);
    free(g->st->layer);
    free(g->st->acts);
    free(g->st);
    free(g);
}

void meg_gpt_init(struct meg_gpt *g, uint32_t seed)
{
    int64_t most = 0;
    float *host;

    for (int i = 0; i < g->params.n; i++)
        most = g->params.row[i].numel > most ? g->params.row[i].numel : most;
    host = meg_new((size_t)most * sizeof *host);
    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *row = &g->params.row[i];

        meg_param_init(row, seed, 0, row->numel, host);
        g->op->upload(g->st->c.st, g->w + row->offset, host, (size_t)row->numel * sizeof *host);
    }
    free(host);
}

/* ---- forward and backward ---------------------------------------------------------------- */

static struct meg_join join(const struct meg_ctx *c, const struct meg_lin *l, double p, int layer,
                            enum meg_drop_site site)
{
    struct meg_join j = { l->bias, l->dbias, meg_ctx_drop(c, p, layer, site) };
    return j;
}

static struct meg_join join_attn(const struct meg_ctx *c, const struct layer *l, double p)
{
    return join(c, &l->attn.proj, p, l->attn.layer, MEG_DROP_ATTN_OUT);
}

static struct meg_join join_mlp(const struct meg_ctx *c, const struct layer *l, double p)
{
    return join(c, &l->mlp.fc2, p, l->attn.layer, MEG_DROP_MLP_OUT);
}

/* y = m + drop(mlp(norm(m))),  m = x + drop(attn(norm(x))) */
static void layer_fwd(struct meg_ctx *c, struct meg_mat y, struct acts *a, struct meg_mat branch,
                      const struct layer *l, double dropout)
{
    const struct meg_join attn = join_attn(c, l, dropout), mlp = join_mlp(c, l, dropout);

    meg_norm_fwd(c, a->n1, a->x, &a->s1, &l->norm1);
    meg_attn_fwd(c, branch, a->n1, &a->attn, &l->attn);
    meg_add_norm_fwd(c, a->m, a->n2, a->x, branch, &attn, &a->s2, &l->norm2);
    meg_mlp_fwd(c, branch, a->n2, &a->mlp, &l->mlp);
    meg_add_fwd(c, y, a->m, branch, &mlp);
}

/* d->x comes in as the gradient of y and goes out as that of x. */
static void layer_bwd(struct meg_ctx *c, struct grads *d, const struct acts *a, const struct layer *l, double dropout)
{
    const struct meg_join attn = join_attn(c, l, dropout), mlp = join_mlp(c, l, dropout);

    meg_add_bwd(c, d->branch, d->x, &mlp);
    meg_mlp_bwd(c, d->n, d->branch, a->n2, &a->mlp, &d->mlp, &l->mlp);
    meg_norm_bwd(c, d->x, d->x, d->n, a->m, &a->s2, &l->norm2);
    meg_add_bwd(c, d->branch, d->x, &attn);
    meg_attn_bwd(c, d->n, d->branch, a->n1, &a->attn, &d->attn, &l->attn);
    meg_norm_bwd(c, d->x, d->x, d->n, a->x, &a->s1, &l->norm1);
}

/* The matrices and statistics of a smaller micro-batch are the first rows of those planned. */
static void use_rows(struct meg_gpt *g, int64_t n)
{
    struct meg_gpt_state *st = g->st;

    for (int64_t i = 0; i < g->conf.num_layers; i++) {
        struct acts *a = &st->acts[i];

        a->x.rows = a->n1.rows = a->m.rows = a->n2.rows = n;
        a->attn.qkv.rows = a->attn.o.rows = a->mlp.pre.rows = a->mlp.mid.rows = n;
    }
    st->x.rows = st->nf.rows = st->branch.rows = n;
    st->d.x.rows = st->d.n.rows = st->d.branch.rows = st->d.mlp.pre.rows = st->d.mlp.mid.rows = n;
    st->d.attn.qkv.rows = st->d.attn.o.rows = n;
}

/* Put a micro-batch on the device and make it the running one. */
static void take(struct meg_gpt *g, const struct meg_gpt_batch *x, bool has_dropout)
{
    struct meg_gpt_state *st = g->st;
    struct meg_ctx *c = &st->c;
    const int64_t n = x->s * x->b;

    MEG_ASSERT(n > 0 && n <= st->n);
    c->s = x->s;
    c->b = x->b;
    c->position = st->position;
    c->sample = NULL;
    c->doc_start = NULL;
    g->op->upload(c->st, st->tokens, x->tokens, (size_t)n * sizeof *x->tokens);
    g->op->upload(c->st, st->position, x->position, (size_t)n * sizeof *x->position);
    if (x->labels)
        g->op->upload(c->st, st->labels, x->labels, (size_t)n * sizeof *x->labels);
    if (x->doc_start) {
        g->op->upload(c->st, st->doc_start, x->doc_start, (size_t)n * sizeof *x->doc_start);
        c->doc_start = st->doc_start;
    }
    if (has_dropout && x->sample) {
        g->op->upload(c->st, st->sample, x->sample, (size_t)x->b * sizeof *x->sample);
        c->sample = st->sample;
    }
    use_rows(g, n);
}

static void forward(struct meg_gpt *g)
{
    struct meg_gpt_state *st = g->st;
    struct meg_ctx *c = &st->c;
    const int64_t L = g->conf.num_layers;

    meg_embed_fwd(c, st->acts[0].x, st->tokens, st->position, &st->embed);
    for (int64_t i = 0; i < L; i++)
        layer_fwd(c, i + 1 < L ? st->acts[i + 1].x : st->x, &st->acts[i], st->branch, &st->layer[i],
                  g->conf.hidden_dropout);
    meg_norm_fwd(c, st->nf, st->x, &st->sf, &st->normf);
}

/* sum of loss * mask over the tokens of x; the losses go to token_loss where that is given. */
static double sum_loss(struct meg_gpt *g, const struct meg_gpt_batch *x, float *token_loss)
{
    const int64_t n = x->s * x->b;
    float *loss = token_loss ? token_loss : g->st->host_loss;
    double sum = 0;

    g->op->download(g->st->c.st, loss, g->st->loss, (size_t)n * sizeof *loss);
    for (int64_t i = 0; i < n; i++)
        sum += (double)loss[i] * (x->loss_mask ? (double)x->loss_mask[i] : 1);
    return sum;
}

double meg_gpt_loss(struct meg_gpt *g, const struct meg_gpt_batch *x, float *token_loss)
{
    take(g, x, false);
    forward(g);
    meg_head_loss(&g->st->c, g->st->loss, g->st->nf, g->st->labels, &g->st->head);
    return sum_loss(g, x, token_loss);
}

double meg_gpt_grad(struct meg_gpt *g, const struct meg_gpt_batch *x, double scale)
{
    struct meg_gpt_state *st = g->st;
    struct meg_ctx *c = &st->c;
    const int64_t n = x->s * x->b;

    MEG_ASSERT(g->run.is_training);
    for (int64_t i = 0; i < n; i++)
        st->host_weight[i] = (float)(scale * (x->loss_mask ? (double)x->loss_mask[i] : 1));
    take(g, x, true);
    g->op->upload(c->st, st->weight, st->host_weight, (size_t)n * sizeof *st->weight);

    forward(g);
    meg_head_grad(c, st->loss, st->d.n, st->nf, st->labels, st->weight, &st->head);
    meg_norm_bwd(c, st->d.x, (struct meg_mat){ 0 }, st->d.n, st->x, &st->sf, &st->normf);
    for (int64_t i = g->conf.num_layers; i-- > 0;)
        layer_bwd(c, &st->d, &st->acts[i], &st->layer[i], g->conf.hidden_dropout);
    meg_embed_bwd(c, st->d.x, st->tokens, st->position, &st->embed);
    return sum_loss(g, x, NULL);
}

/* Logits of rows [first, first + rows) of the final norm's output; the first kept of them to the host. */
static void logits_to(struct meg_gpt *g, int64_t first, int64_t rows, int64_t kept, float *out)
{
    struct meg_gpt_state *st = g->st;
    const struct meg_mat y = meg_mat_rows(st->head.logits, 0, rows), none = { 0 };

    meg_col_fwd(&st->c, y, none, meg_mat_rows(st->nf, first, rows), &st->head.out, MEG_ACT_NONE);
    for (int64_t i = 0; i < kept; i++)
        g->op->download(st->c.st, out + i * y.cols, meg_mat_rows(y, i, 1).p, (size_t)y.cols * sizeof *out);
}

void meg_gpt_logits(struct meg_gpt *g, const struct meg_gpt_batch *x, float *logits)
{
    const int64_t n = x->s * x->b, chunk = g->st->head.logits.rows, v = g->st->head.logits.cols;

    take(g, x, false);
    forward(g);
    for (int64_t i = 0; i < n; i += chunk) {
        const int64_t rows = chunk < n - i ? chunk : n - i;

        logits_to(g, i, rows, rows, logits + i * v);
    }
}

/* ---- decoding ---------------------------------------------------------------------------- */

struct meg_gpt_cache {
    const struct meg_ops *op;
    int64_t s, b, L;
    size_t sequence;                         /* bytes of one layer's keys and values of a slot */
    char *kv;                                /* [L, b, s, g, 2, d] */
    int64_t *len;                            /* [b] */
};

int meg_gpt_cache_create(struct meg_gpt_cache **out, struct meg_gpt *g, int64_t s, int64_t b, struct meg_err *e)
{
    const struct meg_attn *l = &g->st->layer[0].attn;
    struct meg_gpt_cache *c = meg_new(sizeof *c);
    size_t nbytes;

    MEG_ASSERT(s <= g->conf.max_position_embeddings && !g->run.is_training);
    c->op = g->op;
    c->s = s;
    c->b = b;
    c->L = g->conf.num_layers;
    c->sequence = (size_t)(s * l->g * 2 * l->d) * sizeof(float);
    c->len = meg_new((size_t)b * sizeof *c->len);
    nbytes = (size_t)(c->L * b) * c->sequence;
    c->kv = g->op->alloc(nbytes);
    if (!c->kv) {
        meg_gpt_cache_close(c);
        return meg_fail(e, MEG_EFAIL, "out of memory: %lld sequences of %lld tokens need a cache of %.1f MiB",
                        (long long)b, (long long)s, (double)nbytes / 0x1p20);
    }
    *out = c;
    return 0;
}

void meg_gpt_cache_close(struct meg_gpt_cache *c)
{
    if (!c)
        return;
    c->op->release(c->kv);
    free(c->len);
    free(c);
}

void meg_gpt_cache_clear(struct meg_gpt_cache *c, int64_t slot)
{
    c->len[slot] = 0;
}

int64_t meg_gpt_cache_len(const struct meg_gpt_cache *c, int64_t slot)
{
    return c->len[slot];
}

/* rows tokens through all layers, each run of kv's rows appended to its sequence. */
static void forward_cached(struct meg_gpt *g, const struct meg_kv *kv, int64_t nkv, const int32_t *tokens,
                           const int32_t *position, int64_t rows)
{
    struct meg_gpt_state *st = g->st;
    struct meg_ctx *c = &st->c;
    const struct meg_gpt_batch x = { .s = rows, .b = 1, .tokens = tokens, .position = position };

    take(g, &x, false);
    c->kv = kv;
    c->nkv = nkv;
    forward(g);
    c->kv = NULL;
}

static struct meg_kv append(struct meg_gpt_cache *c, int64_t slot, int64_t row, int64_t rows)
{
    const struct meg_kv kv = { row, rows, c->len[slot], c->kv + (size_t)slot * c->sequence,
                               (size_t)c->b * c->sequence };

    MEG_ASSERT(slot >= 0 && slot < c->b && c->len[slot] + rows <= c->s);
    c->len[slot] += rows;
    return kv;
}

void meg_gpt_prefill(struct meg_gpt *g, struct meg_gpt_cache *c, int64_t slot, const int32_t *tokens, int64_t n,
                     float *logits)
{
    const int64_t most = g->run.s * g->run.b;
    int32_t *position = meg_new((size_t)most * sizeof *position);

    MEG_ASSERT(n > 0);
    for (int64_t i = 0, rows; i < n; i += rows) {
        struct meg_kv kv;

        rows = most < n - i ? most : n - i;
        kv = append(c, slot, 0, rows);
        for (int64_t j = 0; j < rows; j++)
            position[j] = (int32_t)(kv.first + j);
        forward_cached(g, &kv, 1, tokens + i, position, rows);
        if (i + rows == n && logits)
            logits_to(g, rows - 1, 1, 1, logits);
    }
    free(position);
}

void meg_gpt_decode(struct meg_gpt *g, struct meg_gpt_cache *c, const int64_t *slot, const int32_t *tokens, int64_t n,
                    float *logits)
{
    const int64_t v = g->st->head.logits.cols;

    for (int64_t i = 0; i < n; i += DECODE_ROWS) {
        const int64_t rows = DECODE_ROWS < n - i ? DECODE_ROWS : n - i;
        int32_t token[DECODE_ROWS] = { 0 }, position[DECODE_ROWS] = { 0 };
        struct meg_kv kv[DECODE_ROWS];

        for (int64_t j = 0; j < rows; j++) {
            kv[j] = append(c, slot[i + j], j, 1);
            token[j] = tokens[i + j];
            position[j] = (int32_t)kv[j].first;
        }
        forward_cached(g, kv, rows, token, position, DECODE_ROWS);
        logits_to(g, 0, DECODE_ROWS, rows, logits + i * v);
    }
}
