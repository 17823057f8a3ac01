/* count_attention.c - count the cost of operations on heads: attention, rotary embedding, norms of queries and keys. */
#include <math.h>
#include "plan/count_ops.h"

/* ---- heads -------------------------------------------------------------------------------------------- */

void cost_rope(struct meg_stream *st, struct meg_heads x, int64_t s, int64_t b, int64_t g, int64_t heads, int64_t half,
               int is_interleaved, const float *cosine, const float *sine, const int32_t *position, float sign)
{
    (void)is_interleaved, (void)cosine, (void)sine, (void)position, (void)sign;
    cost_traffic(st, 2 * cost_nbytes((double)(s * b * g * heads * 2 * half), x.dtype));
}

static double qk_numel(const struct meg_qk_norm *q)
{
    return (double)(q->s * q->b * q->g * q->heads * q->d);
}

void cost_qk_norm_fwd(struct meg_stream *st, const struct meg_qk_norm *q, struct meg_heads y, float *rstd,
                      struct meg_heads x, const void *w)
{
    (void)rstd, (void)w;
    cost_traffic(st, cost_nbytes(qk_numel(q), x.dtype) + cost_nbytes(qk_numel(q), y.dtype));
}

void cost_qk_norm_bwd(struct meg_stream *st, const struct meg_qk_norm *q, struct meg_heads dx, void *dw,
                      enum meg_dtype grad, struct meg_heads dy, struct meg_heads x, const void *w, const float *rstd,
                      bool accumulate)
{
    (void)dw, (void)grad, (void)w, (void)rstd, (void)accumulate;
    cost_traffic(st, cost_nbytes(qk_numel(q), dx.dtype) + cost_nbytes(qk_numel(q), dy.dtype) +
                         cost_nbytes(qk_numel(q), x.dtype));
}

void cost_copy_heads(struct meg_stream *st, struct meg_heads dst, const int64_t *dst_offset, struct meg_heads src,
                     int64_t s, int64_t b, int64_t g, int64_t d)
{
    (void)dst_offset, (void)src;
    cost_traffic(st, 2 * cost_nbytes((double)(s * b * g * d), dst.dtype));
}

/* ---- attention ---------------------------------------------------------------------------------------- */

/* Return the sum of min(max(j, 0), most) over all integers j below end. */
static double sum_clamped(double end, double most)
{
    const double ramp = fmin(fmax(end, 0), most);

    return ramp * (ramp - 1) / 2 + fmax(end - most, 0) * most;
}

/* Return the number of pairs of a query at position p and a key at position t with t - p <= right, in one sequence. */
static double pairs_up_to(const struct meg_attn_desc *d, int64_t right)
{
    const double first = (double)(d->q0 + right - d->k0 + 1), keys = (double)d->s_k;

    return sum_clamped(first + (double)d->s_q, keys) - sum_clamped(first, keys);
}

/* Return the number of pairs of a query and a key in the window of the query, in one sequence. */
static double visible_pairs(const struct meg_attn_desc *d)
{
    const double right = d->window_right < 0 ? (double)d->s_q * (double)d->s_k : pairs_up_to(d, d->window_right);

    return right - (d->window_left < 0 ? 0 : pairs_up_to(d, -d->window_left - 1));
}

/*
 * Count the FLOPs of `products` matrix products, each with d + d_v FLOPs per score [s_q,s_k] of each head.  Unless
 * scores are stored, also count the time of the scores inside the window, at the fraction `rate` of the peak.
 */
static void attention(struct meg_stream *st, const struct meg_attn_desc *d, enum meg_dtype t, int products, double rate)
{
    struct cost_counter *c = cost_counter_of(st);
    const double width = (double)(d->d + d->d_v) / 2, scores = (double)(d->s_q * d->s_k), heads = (double)(d->b * d->a);

    c->pass->flops += products * 2 * width * heads * scores;
    if (!c->stores_scores)
        c->pass->attention_s += products * 2 * width * heads * visible_pairs(d) / (cost_peak(c, t) * rate);
}

/*
 * If scores are stored, count the time of `products` matrix products, and of `passes` passes over the scores.  As
 * without FlashAttention, all scores and the byte masks of dropout are then written to memory and read again.
 */
static void stored_scores(struct meg_stream *st, const struct meg_attn_desc *d, enum meg_dtype t, int products,
                          double passes)
{
    struct cost_counter *c = cost_counter_of(st);
    const double rows = (double)(d->s_q * d->b), scores = rows * (double)d->s_k * (double)d->a;

    if (!c->stores_scores)
        return;
    c->pass->attention_s += products * (double)d->a * cost_gemm_time(c, t, rows, (double)d->d, (double)d->s_k);
    c->pass->attention_s += passes * cost_nbytes(scores, t) / c->hw->memory_bw;
}

void cost_attn_fwd(struct meg_stream *st, const struct meg_attn_desc *desc, struct meg_heads o, float *lse,
                   struct meg_heads q, struct meg_heads k, struct meg_heads v, const struct meg_drop *drop)
{
    (void)o, (void)lse, (void)k, (void)v, (void)drop;
    attention(st, desc, q.dtype, 2, cost_counter_of(st)->hw->attention_fwd_efficiency);
    stored_scores(st, desc, q.dtype, 2, 6.5);
}

static double output_numel(const struct meg_attn_desc *d)
{
    return (double)(d->s_q * d->b) * (double)(d->a * d->d_v);
}

void cost_attn_merge(struct meg_stream *st, const struct meg_attn_desc *desc, struct meg_heads o, float *lse,
                     struct meg_heads o_part, const float *lse_part)
{
    (void)lse, (void)lse_part;
    cost_traffic(st, cost_nbytes(2 * output_numel(desc), o.dtype) + cost_nbytes(output_numel(desc), o_part.dtype));
}

void cost_attn_delta(struct meg_stream *st, const struct meg_attn_desc *desc, float *delta, struct meg_heads d_o,
                     struct meg_heads o)
{
    (void)delta;
    cost_traffic(st, cost_nbytes(output_numel(desc), d_o.dtype) + cost_nbytes(output_numel(desc), o.dtype));
}

void cost_attn_bwd(struct meg_stream *st, const struct meg_attn_desc *desc, const struct meg_attn_bwd_args *args,
                   const struct meg_drop *drop)
{
    (void)drop;
    attention(st, desc, args->q.dtype, 5, cost_counter_of(st)->hw->attention_bwd_efficiency);
    stored_scores(st, desc, args->q.dtype, 4, 9.5);
    if (!args->delta)
        cost_attn_delta(st, desc, NULL, args->d_o, args->o);
}

size_t cost_attn_bwd_nbytes(const struct meg_attn_desc *desc, enum meg_dtype grad, bool has_param_grads)
{
    (void)desc, (void)grad, (void)has_param_grads;
    return 0;
}
