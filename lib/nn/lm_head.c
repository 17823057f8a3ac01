/* lm_head.c - language-model head and cross-entropy, in chunks of rows. */
#include "nn/lm_head.h"
#include "nn/sequence_parallel.h"

/* Return the first rows of m, which was allocated for the largest micro-batch: as many as x has. */
static struct meg_mat rows_like(struct meg_mat m, struct meg_mat x)
{
    return meg_mat_rows(m, 0, x.rows);
}

struct meg_mat meg_lm_head_transform(struct meg_ctx *c, const struct meg_lm_head_weights *l, struct meg_mat x)
{
    const struct meg_mat y = rows_like(l->y, x), act = rows_like(l->act, x);
    struct meg_norm_stats stats = l->stats;

    if (l->scale == 0 && !l->is_transformed)
        return x;
    if (l->scale != 0) {
        MEG_CALL(c->op, c->stream, scale, .y = y, .x = x, .factor = l->scale);
        return y;
    }
    MEG_LINEAR(c, &l->dense, local_fwd, .y = act, .pre = rows_like(l->pre, x), .x = x, .act = l->activation);
    meg_norm_fwd(c, y, act, &stats, &l->norm);
    return y;
}

/* Compute dx, the gradient of x, and the gradients of the parameters of the transform from d_y, the gradient of x'. */
static void transform_bwd(struct meg_ctx *c, const struct meg_lm_head_weights *l, struct meg_mat dx, struct meg_mat d_y,
                          struct meg_mat x)
{
    const struct meg_mat d_pre = rows_like(l->y, x); /* x' is not needed any more */

    meg_norm_bwd(c, d_pre, meg_no_mat(), d_y, rows_like(l->act, x), &l->stats, &l->norm);
    MEG_CALL(c->op, c->stream, act_bwd, .dx = d_pre, .dy = d_pre, .pre = rows_like(l->pre, x), .act = l->activation);
    MEG_LINEAR(c, &l->dense, local_bwd, .dx = dx, .dy = d_pre, .x = x);
}

struct meg_mat meg_lm_head_logits(struct meg_ctx *c, const struct meg_lm_head_weights *l, struct meg_mat x)
{
    const struct meg_mat y = rows_like(l->logits, x);

    MEG_LINEAR(c, &l->out, local_fwd, .y = y, .x = x);
    return y;
}

/* Compute and return the logits of a chunk of rows.  Also compute the loss of each row, and l->lse for the gradient. */
static struct meg_mat chunk_logits(struct meg_ctx *c, float *loss, struct meg_mat x, const int32_t *target,
                                   const struct meg_lm_head_weights *l)
{
    const struct meg_mat y = meg_lm_head_logits(c, l, x);
    float *local_stats = l->partial_stats + 2 * x.rows * c->tp->rank;

    MEG_CALL(c->op, c->stream, xent_partial, .part = local_stats, .logits = y, .target = target, .v0 = l->v0);
    meg_all_gather(c->tp, c->stream, l->partial_stats, local_stats, 2 * x.rows, MEG_DTYPE_F32);
    MEG_CALL(c->op, c->stream, xent_combine, .loss = loss, .lse = l->lse, .part = l->partial_stats, .target = target,
             .nparts = c->tp->size, .n = x.rows);
    return y;
}

static void fwd(struct meg_ctx *c, float *loss, struct meg_mat x, const struct meg_batch *in, const void *weights)
{
    const struct meg_lm_head_weights *l = weights;
    const struct meg_mat all = meg_sp_gather(c, meg_lm_head_transform(c, l, x));
    const int64_t chunk = l->logits.rows;

    for (int64_t i = 0; i < all.rows; i += chunk) {
        const int64_t rows = chunk < all.rows - i ? chunk : all.rows - i;

        chunk_logits(c, loss + i, meg_mat_rows(all, i, rows), in->labels + i, l);
    }
}

static void fwd_bwd(struct meg_ctx *c, float *loss, struct meg_mat dx, struct meg_mat x, const struct meg_batch *in,
                    struct meg_loss_weight weight, const void *weights)
{
    const struct meg_lm_head_weights *l = weights;
    const struct meg_mat d_y = l->is_transformed ? rows_like(l->d_y, x) : dx;
    const struct meg_mat all = meg_sp_gather(c, meg_lm_head_transform(c, l, x)), partial = meg_sp_partial_sum(c, d_y);
    const int64_t chunk = l->logits.rows;

    for (int64_t i = 0; i < all.rows; i += chunk) {
        const int64_t rows = chunk < all.rows - i ? chunk : all.rows - i;
        const struct meg_mat xc = meg_mat_rows(all, i, rows);
        struct meg_ctx chunk_ctx = *c;
        struct meg_mat y;

        if (c->tp->size == 1) {
            y = meg_lm_head_logits(c, l, xc);
            MEG_CALL(c->op, c->stream, xent_fwd_bwd, .loss = loss + i, .logits = y, .target = in->labels + i,
                     .weight = weight);
        } else {
            y = chunk_logits(c, loss + i, xc, in->labels + i, l);
            MEG_CALL(c->op, c->stream, xent_bwd, .logits = y, .lse = l->lse, .target = in->labels + i, .v0 = l->v0,
                     .weight = weight);
        }
        chunk_ctx.call.accumulates_grads |= i > 0;
        MEG_LINEAR(&chunk_ctx, &l->out, local_bwd, .dx = meg_mat_rows(partial, i, rows), .dy = y, .x = xc);
        weight.mask = weight.mask ? weight.mask + rows : NULL;
    }
    meg_sp_reduce(c, d_y, partial);
    if (l->is_transformed)
        transform_bwd(c, l, dx, d_y, x);
    else if (l->scale != 0)
        MEG_CALL(c->op, c->stream, scale, .y = dx, .x = dx, .factor = l->scale);
}

static void bind(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    const struct meg_lm_head_conf *c = conf;
    struct meg_linear_shape out = { .out = c->v, .in = c->h, .nparts = 1, .std = c->std, .has_bias = c->has_bias };
    const struct meg_linear_shape dense = {
        .out = c->h, .in = c->h, .tp_dim = -1, .nparts = 1, .std = c->std, .has_bias = true
    };
    struct meg_lm_head_weights *l = weights;

    out.is_output = true;
    out.tied = c->tied;
    meg_bind_linear(b, &l->out, "output_layer", &out);
    l->v0 = meg_partition_begin(c->v, env->tp, env->tp_rank);
    l->scale = c->scale;
    l->is_transformed = c->is_transformed;
    l->activation = c->act;
    if (!c->is_transformed)
        return;
    meg_bind_linear(b, &l->dense, "lm_head.dense", &dense);
    l->norm.type = MEG_NORM_LAYER;
    l->norm.has_weight = l->norm.has_bias = true;
    l->norm.eps = (float)c->norm_eps;
    meg_bind_norm(b, &l->norm, "lm_head.layer_norm", c->h);
}

static void suballoc(void *weights, const struct meg_block_arena *a, const void *conf)
{
    const struct meg_lm_head_conf *c = conf;
    const int64_t v = meg_partition_begin(c->v, a->tp, a->tp_rank + 1) - meg_partition_begin(c->v, a->tp, a->tp_rank);
    const int64_t rows = a->op->logits_rows(v), least = rows < a->op->decode_rows ? a->op->decode_rows : rows;
    const int64_t chunk = least < a->n ? least : a->n, ld = (v + 15) / 16 * 16;
    struct meg_lm_head_weights *l = weights;

    l->logits = meg_suballoc_mat(a->mem, a->logits_dtype, chunk, ld);
    l->logits.cols = v;
    l->lse = meg_suballoc(a->mem, (size_t)chunk * sizeof *l->lse);
    l->partial_stats = meg_suballoc(a->mem, (size_t)(2 * chunk * a->tp) * sizeof *l->partial_stats);
    if (c->scale != 0 || c->is_transformed)
        l->y = meg_suballoc_mat(a->mem, a->dtype, a->residual_rows, c->h);
    if (!c->is_transformed)
        return;
    l->pre = meg_suballoc_mat(a->mem, a->dtype, a->residual_rows, c->h);
    l->act = meg_suballoc_mat(a->mem, a->dtype, a->residual_rows, c->h);
    l->d_y = meg_suballoc_mat(a->mem, a->dtype, a->residual_rows, c->h);
    l->stats.mean = meg_suballoc(a->mem, (size_t)a->residual_rows * sizeof *l->stats.mean);
    l->stats.rstd = meg_suballoc(a->mem, (size_t)a->residual_rows * sizeof *l->stats.rstd);
}

const struct meg_head_type meg_lm_head = {
    .weights_size = sizeof(struct meg_lm_head_weights),
    .bind = bind,
    .suballoc = suballoc,
    .fwd = fwd,
    .fwd_bwd = fwd_bwd,
};
