/* count_attention.c - count the FLOPs and the time of attention. */
#include <math.h>
#include "plan/count_ops.h"

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

void cost_attn_fwd(struct meg_stream *st, const struct meg_attn_fwd_args *a)
{
    attention(st, a->desc, a->q.dtype, 2, cost_counter_of(st)->hw->attention_fwd_efficiency);
    stored_scores(st, a->desc, a->q.dtype, 2, 6.5);
}

void cost_attn_bwd(struct meg_stream *st, const struct meg_attn_bwd_args *a)
{
    const struct meg_attn_delta_args delta = { .desc = a->desc, .d_o = a->d_o, .o = a->o };

    attention(st, a->desc, a->q.dtype, 5, cost_counter_of(st)->hw->attention_bwd_efficiency);
    stored_scores(st, a->desc, a->q.dtype, 4, 9.5);
    if (!a->delta)
        cost_count_ops.attn_delta(st, &delta);
}

size_t cost_attn_bwd_nbytes(const struct meg_attn_desc *desc, enum meg_dtype grad, bool has_param_grads)
{
    (void)desc, (void)grad, (void)has_param_grads;
    return 0;
}
