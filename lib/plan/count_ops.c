/* count_ops.c - the operations that count the bytes of the matrices that they read and write (tensor/ops.h). */
#include "plan/count_ops.h"

/* Return the bytes of `rows` rows of a matrix; an absent matrix has no columns. */
static double rows_of(struct meg_mat m, int64_t rows)
{
    return cost_nbytes((double)(rows * m.cols), m.dtype);
}

/* ---- activations ------------------------------------------------------------------------------------ */

static void act_bwd(struct meg_stream *st, struct meg_mat dx, struct meg_mat dy, struct meg_mat pre, enum meg_act act)
{
    (void)act;
    cost_traffic(st, cost_mat_nbytes(dx) + cost_mat_nbytes(dy) + cost_mat_nbytes(pre));
}

static void scale(struct meg_stream *st, struct meg_mat y, struct meg_mat x, float factor)
{
    (void)factor;
    cost_traffic(st, cost_mat_nbytes(y) + cost_mat_nbytes(x));
}

static void glu_fwd(struct meg_stream *st, const struct meg_glu *unit, struct meg_mat y, struct meg_mat x)
{
    (void)unit;
    cost_traffic(st, cost_mat_nbytes(y) + cost_mat_nbytes(x));
}

static void glu_bwd(struct meg_stream *st, const struct meg_glu *unit, struct meg_mat dx, struct meg_mat dy,
                    struct meg_mat x)
{
    (void)unit;
    cost_traffic(st, cost_mat_nbytes(dx) + cost_mat_nbytes(dy) + cost_mat_nbytes(x));
}

/* ---- norms and the residual stream --------------------------------------------------------------- */

static void norm_fwd(struct meg_stream *st, enum meg_norm type, struct meg_mat y, float *mean, float *rstd,
                     struct meg_mat x, const void *w, const void *b, float eps)
{
    (void)type, (void)mean, (void)rstd, (void)w, (void)b, (void)eps;
    cost_traffic(st, cost_mat_nbytes(y) + cost_mat_nbytes(x));
}

static void norm_bwd(struct meg_stream *st, enum meg_norm type, struct meg_mat dx, void *dw, void *db,
                     enum meg_dtype grad, struct meg_mat skip, struct meg_mat dy, struct meg_mat x, const void *w,
                     const float *mean, const float *rstd, bool accumulate)
{
    (void)type, (void)dw, (void)db, (void)grad, (void)w, (void)mean, (void)rstd, (void)accumulate;
    cost_traffic(st, cost_mat_nbytes(dx) + cost_mat_nbytes(skip) + cost_mat_nbytes(dy) + cost_mat_nbytes(x));
}

static void add_fwd(struct meg_stream *st, struct meg_mat z, struct meg_mat x, struct meg_mat y, const void *bias,
                    const struct meg_drop *drop)
{
    (void)bias, (void)drop;
    cost_traffic(st, cost_mat_nbytes(z) + cost_mat_nbytes(x) + cost_mat_nbytes(y));
}

static void add_bwd(struct meg_stream *st, struct meg_mat dy, void *dbias, enum meg_dtype grad, struct meg_mat dz,
                    const struct meg_drop *drop, bool accumulate)
{
    const bool is_unchanged = dy.p == dz.p && !(drop && drop->p > 0);

    (void)dbias, (void)grad, (void)accumulate;
    cost_traffic(st, cost_mat_nbytes(dz) + (is_unchanged ? 0 : cost_mat_nbytes(dy)));
}

static void add_norm_fwd(struct meg_stream *st, enum meg_norm type, struct meg_mat z, struct meg_mat y, float *mean,
                         float *rstd, struct meg_mat x, struct meg_mat sublayer_out, const void *bias,
                         const struct meg_drop *drop, const void *w, const void *b, float eps)
{
    (void)type, (void)mean, (void)rstd, (void)bias, (void)drop, (void)w, (void)b, (void)eps;
    cost_traffic(st, cost_mat_nbytes(z) + cost_mat_nbytes(y) + cost_mat_nbytes(x) + cost_mat_nbytes(sublayer_out));
}

/* ---- embeddings ------------------------------------------------------------------------------------ */

static void embed_fwd(struct meg_stream *st, struct meg_mat x, const int32_t *token, struct meg_mat word, int64_t v0)
{
    (void)token, (void)v0;
    cost_traffic(st, cost_mat_nbytes(x) + rows_of(word, x.rows));
}

/* Count a read and a write of a row of dword per token: every micro-batch after the first one accumulates. */
static void embed_bwd(struct meg_stream *st, struct meg_mat dword, int64_t v0, struct meg_mat dx, const int32_t *token,
                      bool accumulate)
{
    (void)v0, (void)token, (void)accumulate;
    cost_traffic(st, cost_mat_nbytes(dx) + 2 * rows_of(dword, dx.rows));
}

static void position_fwd(struct meg_stream *st, struct meg_mat x, const int32_t *position, struct meg_mat pos,
                         const struct meg_drop *drop)
{
    (void)position;
    if (pos.p || drop->p > 0)
        cost_traffic(st, 2 * cost_mat_nbytes(x) + rows_of(pos, x.rows));
}

static void position_bwd(struct meg_stream *st, struct meg_mat dpos, struct meg_mat dx, const int32_t *position,
                         const struct meg_drop *drop, bool accumulate)
{
    (void)position, (void)accumulate;
    if (dpos.p || drop->p > 0)
        cost_traffic(st, cost_mat_nbytes(dx) * (drop->p > 0 ? 2 : 1) + 2 * rows_of(dpos, dx.rows));
}

/* ---- losses ------------------------------------------------------------------------------------------- */

static void xent_partial(struct meg_stream *st, float *part, struct meg_mat logits, const int32_t *target, int64_t v0)
{
    (void)part, (void)target, (void)v0;
    cost_traffic(st, cost_mat_nbytes(logits));
}

static void xent_combine(struct meg_stream *st, float *loss, float *lse, const float *part, const int32_t *target,
                         int64_t nparts, int64_t n, float z_loss)
{
    (void)st, (void)loss, (void)lse, (void)part, (void)target, (void)nparts, (void)n, (void)z_loss;
}

static void xent_bwd(struct meg_stream *st, struct meg_mat logits, const float *lse, const int32_t *target, int64_t v0,
                     float z_loss, struct meg_loss_weight weight)
{
    (void)lse, (void)target, (void)v0, (void)z_loss, (void)weight;
    cost_traffic(st, 2 * cost_mat_nbytes(logits));
}

static void xent_fwd_bwd(struct meg_stream *st, float *loss, struct meg_mat logits, const int32_t *target, float z_loss,
                         struct meg_loss_weight weight)
{
    xent_partial(st, loss, logits, target, 0);
    xent_bwd(st, logits, NULL, target, 0, z_loss, weight);
}

static void weighted_sum(struct meg_stream *st, double *out, const float *x, const float *weight, int64_t n,
                         const double *scale)
{
    (void)st, (void)out, (void)x, (void)weight, (void)n, (void)scale;
}

/* ---- memory ----------------------------------------------------------------------------------------- */

/* Return a number of rows that no micro-batch exceeds: logits are counted as one chunk, as if chunks had no cost. */
static int64_t logits_rows(int64_t v)
{
    (void)v;
    return INT64_MAX;
}

/* Return an address that no other buffer has, because operations compare the addresses of their arguments. */
static void *alloc(size_t nbytes)
{
    static uintptr_t end = 64;
    const uintptr_t begin = end;

    end += (nbytes + 127) / 64 * 64;
    return (void *)begin;
}

static void release(void *p)
{
    (void)p;
}

/*
 * Count nothing.  Only tensors at the boundaries of a stage are copied.  In a training run, a stage copies them once,
 * but count_model.c runs each layer as the only layer of a stage, so they would be counted once per layer.
 */
static void copy(struct meg_stream *st, void *dst, const void *src, size_t nbytes)
{
    (void)st, (void)dst, (void)src, (void)nbytes;
}

static void upload(struct meg_stream *st, void *dev, const void *host, size_t nbytes)
{
    (void)st, (void)dev, (void)host, (void)nbytes;
}

static void zero(struct meg_stream *st, void *dev, size_t nbytes)
{
    (void)dev;
    cost_traffic(st, (double)nbytes);
}

static void cast(struct meg_stream *st, void *dst, enum meg_dtype dst_type, const void *src, enum meg_dtype src_type,
                 int64_t n)
{
    (void)dst, (void)src;
    cost_traffic(st, cost_nbytes((double)n, dst_type) + cost_nbytes((double)n, src_type));
}

static struct meg_event *event_create(void)
{
    return NULL;
}

static void event_destroy(struct meg_event *event)
{
    (void)event;
}

static void event_record(struct meg_stream *st, struct meg_event *event)
{
    (void)st, (void)event;
}

const struct meg_ops cost_count_ops = {
    .name = "count",
    .is_host_memory = true,
    .decode_rows = 1, /* the cost model has no decoding steps */
    .logits_rows = logits_rows,
    .alloc = alloc,
    .release = release,
    .copy = copy,
    .upload = upload,
    .zero = zero,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_record,
    .linear_create = cost_linear_create,
    .linear_destroy = cost_linear_destroy,
    .linear_fwd = cost_linear_fwd,
    .linear_bwd_data = cost_linear_bwd_data,
    .linear_bwd_weight = cost_linear_bwd_weight,
    .act_bwd = act_bwd,
    .scale = scale,
    .glu_fwd = glu_fwd,
    .glu_bwd = glu_bwd,
    .rope = cost_rope,
    .qk_norm_fwd = cost_qk_norm_fwd,
    .qk_norm_bwd = cost_qk_norm_bwd,
    .norm_fwd = norm_fwd,
    .norm_bwd = norm_bwd,
    .add_fwd = add_fwd,
    .add_bwd = add_bwd,
    .add_norm_fwd = add_norm_fwd,
    .attn_fwd = cost_attn_fwd,
    .attn_merge = cost_attn_merge,
    .attn_delta = cost_attn_delta,
    .attn_bwd = cost_attn_bwd,
    .attn_bwd_nbytes = cost_attn_bwd_nbytes,
    .copy_heads = cost_copy_heads,
    .embed_fwd = embed_fwd,
    .embed_bwd = embed_bwd,
    .position_fwd = position_fwd,
    .position_bwd = position_bwd,
    .xent_partial = xent_partial,
    .xent_combine = xent_combine,
    .xent_bwd = xent_bwd,
    .xent_fwd_bwd = xent_fwd_bwd,
    .weighted_sum = weighted_sum,
    .cast = cast,
};
