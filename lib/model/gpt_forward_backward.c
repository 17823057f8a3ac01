/* A micro-batch through the layers, forward and backward. */
#include <string.h>
#include "model/gpt_internal.h"

/* ---- a layer ------------------------------------------------------------------------------- */

static struct meg_residual_epilogue join(const struct meg_ctx *c, const struct meg_linear_weights *l, double p,
                                         int layer, enum meg_drop_site site)
{
    struct meg_residual_epilogue j = { l->bias, l->dbias, meg_ctx_drop(c, p, layer, site) };
    return j;
}

static struct meg_residual_epilogue join_attn(const struct meg_ctx *c, const struct layer *l, double p)
{
    return join(c, &l->attn.proj, p, l->attn.layer, MEG_DROP_ATTN_OUT);
}

static struct meg_residual_epilogue join_mlp(const struct meg_ctx *c, const struct layer *l, double p)
{
    return join(c, &l->mlp.fc2, p, l->attn.layer, MEG_DROP_MLP_OUT);
}

/* y = m + drop(mlp(norm(m))),  m = x + drop(attn(norm(x))) */
static void layer_fwd(struct meg_ctx *c, struct meg_mat y, struct acts *a, struct meg_mat branch, const struct layer *l,
                      double dropout)
{
    const struct meg_residual_epilogue attn = join_attn(c, l, dropout), mlp = join_mlp(c, l, dropout);

    meg_norm_fwd(c, a->n1, a->x, &a->s1, &l->norm1);
    meg_attn_fwd(c, branch, a->n1, &a->attn, &l->attn);
    meg_add_norm_fwd(c, a->m, a->n2, a->x, branch, &attn, &a->s2, &l->norm2);
    meg_mlp_fwd(c, branch, a->n2, &a->mlp, &l->mlp);
    meg_add_fwd(c, y, a->m, branch, &mlp);
}

/* dx, the gradient of x, from dy, that of y. */
static void layer_bwd(struct meg_ctx *c, struct meg_mat dx, struct meg_mat dy, struct grads *d, const struct acts *a,
                      const struct layer *l, double dropout)
{
    const struct meg_residual_epilogue attn = join_attn(c, l, dropout), mlp = join_mlp(c, l, dropout);

    meg_add_bwd(c, d->mlp_out, dy, &mlp);
    meg_mlp_bwd(c, d->n, d->mlp_out, a->n2, &a->mlp, &d->mlp, &l->mlp);
    meg_norm_bwd(c, d->x, dy, d->n, a->m, &a->s2, &l->norm2);
    meg_add_bwd(c, d->attn_out, d->x, &attn);
    meg_attn_bwd(c, d->n, d->attn_out, a->n1, &a->attn, &d->attn, &l->attn);
    meg_norm_bwd(c, dx, d->x, d->n, a->x, &a->s1, &l->norm1);
}

/* What layer_bwd left for later. */
static void layer_bwd_weight(struct meg_ctx *c, const struct grads *d, const struct acts *a, const struct layer *l)
{
    meg_mlp_bwd_weight(c, d->mlp_out, a->n2, &a->mlp, &d->mlp, &l->mlp);
    meg_attn_bwd_weight(c, d->attn_out, a->n1, &a->attn, &d->attn, &l->attn);
}

/* ---- a micro-batch in its slot -------------------------------------------------------------- */

/* Of a smaller micro-batch the rows are the first of those planned: n in all, m in the residual stream. */
static void use_rows(struct meg_gpt_state *st, struct slot *q, int64_t n, int64_t m)
{
    for (int64_t i = 0; i < st->dim.layers; i++) {
        struct acts *a = &q->acts[i];
        struct grads *d = &q->d[i];

        a->x.rows = a->n1.rows = a->m.rows = a->n2.rows = m;
        a->attn.qkv.rows = a->attn.o.rows = a->mlp.pre.rows = a->mlp.mid.rows = n;
        d->x.rows = d->n.rows = d->attn_out.rows = d->mlp_out.rows = m;
        d->attn.qkv.rows = d->attn.o.rows = d->mlp.pre.rows = d->mlp.mid.rows = n;
        q->saved[i].rows = m / st->dim.tp;
    }
    q->x.rows = st->nf.rows = st->branch.rows = st->d.x.rows = st->d.n.rows = m;
}

/* Where the residual stream's rows stand in the whole sequence, when they are not all of it in order. */
static void set_global_positions(struct meg_gpt *g)
{
    const struct meg_layout *l = &g->mesh->layout;
    struct meg_gpt_state *st = g->st;
    struct meg_ctx *c = &st->c;
    const int64_t s = l->has_sp ? c->s / l->tp : c->s, t0 = l->has_sp ? g->mesh->at.tp * s : 0;

    if (!l->has_sp && l->cp == 1)
        return;
    MEG_ASSERT_EQ(c->s, s * (l->has_sp ? l->tp : 1));
    for (int64_t i = 0; i < s; i++)
        st->host_position[i] = (int32_t)meg_layout_position(l, g->mesh->at.cp, c->s * l->cp, t0 + i);
    g->op->upload(c->st, st->place, st->host_position, (size_t)s * sizeof *st->place);
    c->place = st->place;
}

/* Make what is in a slot the running micro-batch. */
static void enter(struct meg_gpt *g, struct slot *q)
{
    struct meg_ctx *c = &g->st->c;

    c->s = q->s;
    c->b = q->b;
    c->position = q->position_ids;
    c->sample = q->has_dropout ? q->sample_id : NULL;
    c->doc_start = q->has_doc_start ? q->doc_start : NULL;
    use_rows(g->st, q, q->s * q->b, q->s * q->b / (c->has_sp ? g->st->dim.tp : 1));
    set_global_positions(g);
}

void gpt_load_batch(struct meg_gpt *g, int64_t slot, const struct meg_batch *x, double scale, bool has_dropout)
{
    struct meg_gpt_state *st = g->st;
    struct slot *q = &st->slot[slot];
    const int64_t n = x->s * x->b;

    MEG_ASSERT_LT(slot, st->dim.slots);
    MEG_ASSERT_LT(0, n);
    MEG_ASSERT_LE(n, st->dim.n);
    q->s = x->s;
    q->b = x->b;
    q->has_doc_start = x->doc_start;
    q->has_dropout = has_dropout && x->sample_id;
    g->op->upload(st->c.st, q->tokens, x->tokens, (size_t)n * sizeof *x->tokens);
    g->op->upload(st->c.st, q->position_ids, x->position_ids, (size_t)n * sizeof *x->position_ids);
    if (q->has_doc_start)
        g->op->upload(st->c.st, q->doc_start, x->doc_start, (size_t)n * sizeof *x->doc_start);
    if (q->has_dropout)
        g->op->upload(st->c.st, q->sample_id, x->sample_id, (size_t)x->b * sizeof *x->sample_id);
    if (x->labels && st->dim.has_head) {
        g->op->upload(st->c.st, q->labels, x->labels, (size_t)n * sizeof *x->labels);
        for (int64_t i = 0; i < n; i++) {
            q->loss_mask[i] = x->loss_mask ? x->loss_mask[i] : 1;
            st->host_loss[i] = (float)(scale * (double)q->loss_mask[i]);
        }
        g->op->upload(st->c.st, q->weight, st->host_loss, (size_t)n * sizeof *q->weight);
    }
    enter(g, q);
}

/* ---- a chunk of layers ------------------------------------------------------------------------ */

static bool has_embedding(const struct meg_gpt *g, int64_t chunk)
{
    return meg_layout_is_first(g->mesh->at.pp, chunk);
}

static bool has_head(const struct meg_gpt *g, int64_t chunk)
{
    return meg_layout_is_last(&g->mesh->layout, g->mesh->at.pp, chunk);
}

static struct layer *layers_of(const struct meg_gpt *g, int64_t chunk)
{
    return g->st->layer + chunk * g->st->dim.layers;
}

size_t meg_gpt_boundary_nbytes(const struct meg_gpt *g)
{
    return (size_t)(g->st->dim.m * g->st->dim.h) * meg_dtype_size(g->run.residual);
}

/* Rows of the running micro-batch at p, in a chunk's boundary. */
static struct meg_mat boundary(const struct meg_gpt *g, const struct slot *q, const void *p)
{
    return meg_mat((void *)p, g->run.residual, q->acts[0].x.rows, q->acts[0].x.cols);
}

static void copy(struct meg_gpt *g, void *to, const void *from, struct meg_mat like)
{
    g->op->upload(g->st->c.st, to, from, (size_t)(like.rows * like.cols) * meg_dtype_size(like.dtype));
}

/* This rank's part of layer i's input, where ranks share what layers begin again from. */
static struct meg_mat shared_input(const struct meg_gpt *g, int64_t chunk, const struct slot *q, int64_t i)
{
    const struct meg_mat none = { 0 };

    return i > 0 || has_embedding(g, chunk) ? q->saved[i] : none;
}

static void save_input(struct meg_gpt *g, int64_t chunk, struct slot *q, int64_t i)
{
    const struct meg_mat part = shared_input(g, chunk, q, i);

    if (part.p)
        copy(g, part.p, meg_mat_rows(q->acts[i].x, g->mesh->at.tp * part.rows, part.rows).p, part);
}

static void restore_input(struct meg_gpt *g, int64_t chunk, struct slot *q, int64_t i)
{
    const struct meg_mat part = shared_input(g, chunk, q, i);
    struct meg_comm *tp = g->st->c.tp;

    if (part.p)
        meg_comm_wait(tp, tp->op->all_gather(tp, q->acts[i].x.p, part.p, part.rows * part.cols, part.dtype));
}

static void reads(const struct meg_gpt *g, int64_t section, int64_t next, bool is_backward)
{
    if (g->hooks.reads)
        g->hooks.reads(g->hooks.user, (int)section, (int)next, is_backward);
}

static void wrote(const struct meg_gpt *g, int64_t section)
{
    if (g->hooks.wrote)
        g->hooks.wrote(g->hooks.user, (int)section);
}

/* The section of layer i of a chunk. */
static int64_t section_of(const struct meg_gpt *g, int64_t chunk, int64_t i)
{
    return 1 + layers_of(g, chunk)[i].attn.layer;
}

static void head_params_needed(const struct meg_gpt *g, bool is_backward)
{
    reads(g, g->conf.num_layers + 1, g->conf.is_untied ? -1 : 0, is_backward);
    if (!g->conf.is_untied)
        reads(g, 0, -1, is_backward);
}

/* Layers [begin, end); the last layer of all writes to y. */
static void run_layers(struct meg_gpt *g, int64_t chunk, struct slot *q, int64_t begin, int64_t end, struct meg_mat y)
{
    struct meg_gpt_state *st = g->st;

    for (int64_t i = begin; i < end; i++) {
        reads(g, section_of(g, chunk, i), section_of(g, chunk, i) + 1, false);
        layer_fwd(&st->c, i + 1 < st->dim.layers ? q->acts[i + 1].x : y, &q->acts[i], st->branch,
                  &layers_of(g, chunk)[i], g->conf.hidden_dropout);
    }
}

void gpt_layers_fwd(struct meg_gpt *g, int64_t chunk, int64_t slot, void *out)
{
    struct slot *q = &g->st->slot[slot];
    const struct meg_mat y = has_head(g, chunk) ? q->x : boundary(g, q, out);

    for (int64_t i = 0; i < g->st->dim.layers; i++) {
        save_input(g, chunk, q, i);
        run_layers(g, chunk, q, i, i + 1, y);
    }
}

void meg_gpt_forward(struct meg_gpt *g, int64_t chunk, int64_t slot, const struct meg_batch *x, double scale,
                     const void *in, void *out)
{
    struct meg_gpt_state *st = g->st;
    struct slot *q = &st->slot[slot];

    gpt_load_batch(g, slot, x, scale, true);
    q->acts[0].x.p = has_embedding(g, chunk) ? q->x0 : (void *)in;
    if (has_embedding(g, chunk)) {
        reads(g, 0, 1, false);
        meg_embed_fwd(&st->c, q->acts[0].x, q->tokens, q->position_ids, &st->embed);
    }
    gpt_layers_fwd(g, chunk, slot, out);
}

/* Forward again from the input of layer begin, which alone is there; the last layer's output is not needed. */
static void again(struct meg_gpt *g, int64_t chunk, struct slot *q, int64_t begin, int64_t end)
{
    struct meg_gpt_state *st = g->st;

    restore_input(g, chunk, q, begin);
    for (int64_t i = begin; i < end; i++) {
        reads(g, section_of(g, chunk, i), i + 1 < end ? section_of(g, chunk, i + 1) : -1, false);
        layer_fwd(&st->c, i + 1 < end ? q->acts[i + 1].x : st->d.n, &q->acts[i], st->branch, &layers_of(g, chunk)[i],
                  g->conf.hidden_dropout);
    }
}

/* The section that backward reads after that of layer i: where those before it are recomputed, their first. */
static int64_t before(const struct meg_gpt *g, int64_t chunk, int64_t i)
{
    int64_t begin, end;

    if (i == 0)
        return -1;
    if (gpt_recompute_range(&g->run, g->st->dim.layers, i - 1, &begin, &end) && i == end)
        return section_of(g, chunk, begin);
    return section_of(g, chunk, i - 1);
}

/* dx from dy through all layers. */
static void layers_bwd(struct meg_gpt *g, int64_t chunk, struct slot *q, struct meg_mat dx, struct meg_mat dy)
{
    struct meg_gpt_state *st = g->st;

    for (int64_t i = st->dim.layers; i-- > 0;) {
        int64_t begin, end;

        if (gpt_recompute_range(&g->run, st->dim.layers, i, &begin, &end) && i + 1 == end)
            again(g, chunk, q, begin, end);
        reads(g, section_of(g, chunk, i), before(g, chunk, i), true);
        layer_bwd(&st->c, i > 0 ? st->d.x : dx, dy, &q->d[i], &q->acts[i], &layers_of(g, chunk)[i],
                  g->conf.hidden_dropout);
        if (!g->run.defers_wgrad)
            wrote(g, section_of(g, chunk, i));
        dy = st->d.x;
    }
}

/* sum of loss * mask over the slot's tokens; the losses go to token_loss where that is given. */
static double sum_loss(struct meg_gpt *g, const struct slot *q, float *token_loss)
{
    const int64_t n = q->s * q->b;
    float *loss = token_loss ? token_loss : g->st->host_loss;
    double sum = 0;

    g->op->download(g->st->c.st, loss, g->st->loss, (size_t)n * sizeof *loss);
    for (int64_t i = 0; i < n; i++)
        sum += (double)loss[i] * (double)q->loss_mask[i];
    return sum;
}

double meg_gpt_slot_loss(struct meg_gpt *g, int64_t slot, float *token_loss)
{
    struct meg_gpt_state *st = g->st;
    struct slot *q = &st->slot[slot];

    enter(g, q);
    head_params_needed(g, false);
    meg_norm_fwd(&st->c, st->nf, q->x, &st->sf, &st->normf);
    meg_lm_head_loss(&st->c, st->loss, st->nf, q->labels, &st->head);
    return sum_loss(g, q, token_loss);
}

double meg_gpt_backward(struct meg_gpt *g, int64_t chunk, int64_t slot, const void *d_out, void *d_in)
{
    struct meg_gpt_state *st = g->st;
    struct meg_ctx *c = &st->c;
    struct slot *q = &st->slot[slot];
    const struct meg_mat none = { 0 };
    const struct meg_mat dx = has_embedding(g, chunk) ? st->d.x : boundary(g, q, d_in);
    double loss = 0;

    MEG_ASSERT(g->run.is_training);
    enter(g, q);
    if (has_head(g, chunk)) {
        head_params_needed(g, true);
        meg_norm_fwd(c, st->nf, q->x, &st->sf, &st->normf);
        meg_lm_head_fwd_bwd(c, st->loss, st->d.n, st->nf, q->labels, q->weight, &st->head);
        meg_norm_bwd(c, st->d.x, none, st->d.n, q->x, &st->sf, &st->normf);
        loss = sum_loss(g, q, NULL);
        wrote(g, g->conf.num_layers + 1);
        if (!g->conf.is_untied && g->mesh->at.pp > 0)
            wrote(g, 0); /* the last stage's copy */
    }
    layers_bwd(g, chunk, q, dx, has_head(g, chunk) ? st->d.x : boundary(g, q, d_out));
    if (has_embedding(g, chunk)) {
        meg_embed_bwd(c, dx, q->tokens, q->position_ids, &st->embed);
        wrote(g, 0);
    }
    return loss;
}

void meg_gpt_backward_weight(struct meg_gpt *g, int64_t chunk, int64_t slot)
{
    struct slot *q = &g->st->slot[slot];

    enter(g, q);
    for (int64_t i = g->st->dim.layers; i-- > 0;) {
        layer_bwd_weight(&g->st->c, &q->d[i], &q->acts[i], &layers_of(g, chunk)[i]);
        wrote(g, section_of(g, chunk, i));
    }
}

/* ---- one pass after the other ------------------------------------------------------------------ */

/* All layers without dropout, and the norm behind them. */
static void forward_no_dropout(struct meg_gpt *g, const struct meg_batch *x)
{
    struct meg_gpt_state *st = g->st;
    struct slot *q = &st->slot[0];

    gpt_load_batch(g, 0, x, 0, false);
    reads(g, 0, 1, false);
    meg_embed_fwd(&st->c, q->acts[0].x, q->tokens, q->position_ids, &st->embed);
    gpt_layers_fwd(g, 0, 0, NULL);
}

double meg_gpt_loss(struct meg_gpt *g, const struct meg_batch *x, float *token_loss)
{
    forward_no_dropout(g, x);
    return meg_gpt_slot_loss(g, 0, token_loss);
}

double meg_gpt_forward_backward(struct meg_gpt *g, const struct meg_batch *x, double scale)
{
    double loss;

    meg_gpt_forward(g, 0, 0, x, scale, NULL, NULL);
    loss = meg_gpt_backward(g, 0, 0, NULL, NULL);
    if (g->run.defers_wgrad)
        meg_gpt_backward_weight(g, 0, 0);
    return loss;
}

void gpt_logits_to_host(struct meg_gpt *g, int64_t first, int64_t rows, int64_t kept, float *out)
{
    struct meg_gpt_state *st = g->st;
    const struct meg_mat y = meg_mat_rows(st->head.logits, 0, rows), none = { 0 };

    MEG_ASSERT_EQ(y.dtype, MEG_DTYPE_F32);
    MEG_ASSERT_EQ(st->dim.tp, 1);
    g->op->linear_fwd(st->c.st, st->head.out.plan, y, none, meg_mat_rows(st->nf, first, rows), st->head.out.w, NULL,
                      MEG_ACT_NONE);
    for (int64_t i = 0; i < kept; i++)
        g->op->download(st->c.st, out + i * y.cols, meg_mat_rows(y, i, 1).p, (size_t)y.cols * sizeof *out);
}

int64_t meg_gpt_logit_rows(const struct meg_gpt *g)
{
    return g->st->head.logits.rows;
}

void meg_gpt_loss_logits(struct meg_gpt *g, int64_t first, int64_t rows, float *logits)
{
    MEG_ASSERT_EQ(first % meg_gpt_logit_rows(g), 0);
    MEG_ASSERT_LE(rows, meg_gpt_logit_rows(g));
    gpt_logits_to_host(g, first, rows, rows, logits);
}

void meg_gpt_logits(struct meg_gpt *g, const struct meg_batch *x, float *logits)
{
    struct meg_gpt_state *st = g->st;
    const int64_t n = x->s * x->b, chunk = st->head.logits.rows, v = st->head.logits.cols;

    forward_no_dropout(g, x);
    head_params_needed(g, false);
    meg_norm_fwd(&st->c, st->nf, st->slot[0].x, &st->sf, &st->normf);
    for (int64_t i = 0; i < n; i += chunk) {
        const int64_t rows = chunk < n - i ? chunk : n - i;

        gpt_logits_to_host(g, i, rows, rows, logits + i * v);
    }
}
