/*
 * ref_gpt.h - a GPT in float64 and plain loops, the reference of tests.  It computes the loss of a micro-batch from a
 * model configuration (after meg_model_conf_check) and a parameter table.  Dropout masks come from their definition
 * (base/philox.h), not from the kernels.
 */
#ifndef TESTS_REF_GPT_H
#define TESTS_REF_GPT_H
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/philox.h"
#include "model/model.h"

struct ref_gpt {
    const struct meg_model_conf *c;
    const struct meg_params *p;
    const double *w;           /* [p->flat_numel] */
    uint32_t seed;             /* dropout seed */
    const struct meg_batch *x; /* no dropout if x->sample_id is NULL */
};

/* Find a tensor by name; NULL if the model has none. */
static inline const double *ref_find(const struct ref_gpt *g, const char *fmt, ...)
{
    const struct meg_param *row;
    char name[96];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    row = meg_params_find(g->p, name);
    return row ? g->w + row->offset : NULL;
}

/*
 * Return the dropout factor of a unit at token t of sequence i: Philox with key (seed, 1 + 16 layer + site) and
 * counter (unit / 8, position, sample low, high) gives eight 16-bit lanes.  With q = round(65536 p), a unit is kept iff
 * its lane is at least q, and then scaled by 65536 / (65536 - q).
 */
static inline double ref_drop(const struct ref_gpt *g, double p, int layer, enum meg_drop_site site, int64_t unit,
                              int64_t t, int64_t i)
{
    const uint32_t key[] = { g->seed, 1 + 16 * (uint32_t)layer + (uint32_t)site };
    const double dropped = nearbyint(65536 * p);
    uint32_t counter[4], word[4];

    if (!g->x->sample_id || p == 0)
        return 1;
    counter[0] = (uint32_t)(unit / 8);
    counter[1] = (uint32_t)t;
    counter[2] = (uint32_t)g->x->sample_id[i];
    counter[3] = (uint32_t)(g->x->sample_id[i] >> 32);
    meg_philox(word, key, counter);
    return (word[unit % 8 / 2] >> 16 * (unit % 2) & 0xffff) < dropped ? 0 : 65536 / (65536 - dropped);
}

/* Add drop(x) to to, both [s,b,h]. */
static inline void ref_add(const struct ref_gpt *g, double *to, const double *x, int layer, enum meg_drop_site site)
{
    const int64_t h = g->c->hidden_size, b = g->x->b;

    for (int64_t k = 0; k < g->x->s * b * h; k++)
        to[k] += x[k] * ref_drop(g, g->c->hidden_dropout, layer, site, k % h, k / h / b, k / h % b);
}

/* Compute y [n,out] = x [n,in] w^T + bias; bias may be NULL. */
static inline void ref_linear(double *y, const double *x, const double *w, const double *bias, int64_t n, int64_t out,
                              int64_t in)
{
    for (int64_t r = 0; r < n; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = bias ? bias[o] : 0;

            for (int64_t i = 0; i < in; i++)
                sum += x[r * in + i] * w[o * in + i];
            y[r * out + o] = sum;
        }
}

/* Return weight i of a norm; w is NULL if the norm has none. */
static inline double ref_norm_weight(const struct ref_gpt *g, const double *w, int64_t i)
{
    return w ? w[i] + g->c->apply_layernorm_1p : 1;
}

/* Normalize rows of x [n,h] into y, which may be x; weight and bias may be NULL. */
static inline void ref_norm(const struct ref_gpt *g, double *y, const double *x, const double *w, const double *bias)
{
    const int64_t h = g->c->hidden_size;

    for (int64_t r = 0; r < g->x->s * g->x->b; r++) {
        double mean = 0, var = 0;

        for (int64_t i = 0; g->c->normalization == MEG_NORM_LAYER && i < h; i++)
            mean += x[r * h + i] / (double)h;
        for (int64_t i = 0; i < h; i++)
            var += (x[r * h + i] - mean) * (x[r * h + i] - mean) / (double)h;
        for (int64_t i = 0; i < h; i++)
            y[r * h + i] = (x[r * h + i] - mean) / sqrt(var + g->c->norm_epsilon) * ref_norm_weight(g, w, i) +
                           (bias ? bias[i] : 0);
    }
}

/*
 * Return the value of layer l in a pattern of Megatron's: every Nth layer, or a list in canonical notation.  Without a
 * pattern, return `otherwise`.
 */
static inline bool ref_pattern(const char *pattern, int l, bool is_multiple, bool otherwise)
{
    if (!pattern)
        return otherwise;
    if (*pattern == '[')
        return pattern[1 + 2 * l] == '1';
    return ((l + 1) % atoi(pattern) == 0) == is_multiple;
}

/* The rotation of a head in a layer: sequences of s tokens, whose layers have a window or not. */
struct ref_rotation {
    const struct meg_model_conf *c;
    int64_t s;
    bool has_window;
};

/* Return element i of a list of numbers. */
static inline double ref_element(const char *list, int64_t i)
{
    for (; i > 0; i--)
        list = strchr(list, ',') + 1;
    return atof(list);
}

/* Return the dimension, from 0 to 2 half, that rotates r times over the original context of YaRN. */
static inline double ref_yarn_dim(const struct meg_rotary_conf *o, double r, int64_t half)
{
    return 2 * (double)half * log((double)o->yarn_original / (2 * M_PI * r)) / (2 * log(o->base));
}

/*
 * Return the rotary angle of column pair i at a position, where half is the number of pairs (Su et al. 2021), with the
 * scaling of Llama 3, YaRN or LongRoPE if it is enabled.
 */
static inline double ref_angle(const struct ref_rotation *x, int64_t position, int64_t i, int64_t half)
{
    const struct meg_rotary_conf *o = &x->c->rotary;
    double freq = pow(o->base, -(double)i / (double)half);
    const double original = (double)o->scaling_original, length = 2 * M_PI / freq;
    const double t = (original / length - o->low_freq_factor) / (o->high_freq_factor - o->low_freq_factor);

    if (x->has_window && o->base_window > 0)
        return (double)position * pow(o->base_window, -(double)i / (double)half);
    if (x->c->position_embedding_type == MEG_POSITION_YARN) {
        double low = ref_yarn_dim(o, o->yarn_beta_fast, half), high = ref_yarn_dim(o, o->yarn_beta_slow, half), ramp;

        low = fmax(o->yarn_rounds ? floor(low) : low, 0);
        high = fmin(o->yarn_rounds ? ceil(high) : high, 2 * (double)half - 1);
        ramp = ((double)i - low) / (high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        freq = freq / o->yarn_factor * ramp + freq * (1 - ramp);
    }
    if (o->long_factors)
        freq /= ref_element(x->s > o->longrope_original ? o->long_factors : o->short_factors, i);
    if (o->is_scaled && length > original / o->low_freq_factor)
        freq /= o->scaling_factor;
    else if (o->is_scaled && length > original / o->high_freq_factor)
        freq = (1 - t) * freq / o->scaling_factor + t * freq;
    return (double)position / o->interpolation * freq;
}

/* Return the factor of rotated columns. */
static inline double ref_magnitude(const struct ref_rotation *x)
{
    const struct meg_rotary_conf *o = &x->c->rotary;
    const double s = (double)x->c->max_position_embeddings / (double)o->longrope_original;

    if (x->has_window && o->base_window > 0)
        return 1;
    if (o->long_factors)
        return sqrt(1 + log(s) / log((double)o->longrope_original));
    if (x->c->position_embedding_type != MEG_POSITION_YARN)
        return 1;
    if (o->yarn_attention_factor > 0)
        return o->yarn_attention_factor;
    return (0.1 * o->mscale * log(o->yarn_factor) + 1) / (0.1 * o->mscale_all_dim * log(o->yarn_factor) + 1);
}

/* Apply the rotary position embedding to one head at a position, in place, and then the temperature of a query. */
static inline void ref_rotate(const struct ref_rotation *x, double *v, int64_t position)
{
    const struct meg_rotary_conf *o = &x->c->rotary;
    const int64_t half = (int64_t)((double)x->c->attn.d * o->percent) / 2;
    const double m = ref_magnitude(x);

    for (int64_t i = 0; i < half; i++) {
        double *u = o->is_interleaved ? &v[2 * i] : &v[i], *w = o->is_interleaved ? u + 1 : &v[i + half];
        const double a = *u, b = *w, angle = ref_angle(x, position, i, half);

        *u = m * (a * cos(angle) - b * sin(angle));
        *w = m * (b * cos(angle) + a * sin(angle));
    }
}

static inline void ref_rotate_all(const struct ref_gpt *m, double *qkv, int layer, bool has_window)
{
    const struct meg_model_conf *c = m->c;
    const struct meg_rotary_conf *o = &c->rotary;
    const int64_t d = c->attn.d, r = c->attn.a / c->attn.g;
    const struct ref_rotation x = { c, m->x->s, has_window };

    for (int64_t n = 0; n < m->x->s * m->x->b; n++)
        for (int64_t j = 0; j < c->attn.g * (r + 1); j++) {
            double *head = qkv + (n * c->attn.g * (r + 2) + j / (r + 1) * (r + 2) + j % (r + 1)) * d;
            const int64_t p = m->x->position_ids[n];

            if (!ref_pattern(o->no_rope_freq, layer, true, false))
                ref_rotate(&x, head, p);
            for (int64_t e = 0; e < d && j % (r + 1) < r && o->temperature_beta > 0; e++)
                head[e] *= 1 + o->temperature_beta * log(1 + floor((double)p / (double)o->temperature_floor));
        }
}

/*
 * Normalize x [n], the columns of one norm of queries or keys, which begin at column `first` of all its heads.  Weight
 * and bias belong to column first % nw of each norm, nw being their number.
 */
static inline void ref_head_norm(const struct ref_gpt *m, double *x, int64_t n, int64_t first, const char *name, int l)
{
    const bool is_rms = m->c->normalization == MEG_NORM_RMS;
    const double *w = ref_find(m, "decoder.layers.%d.self_attention.%s.weight", l, name);
    const double *bias = ref_find(m, "decoder.layers.%d.self_attention.%s.bias", l, name);
    double mean = 0, var = 0;

    first = m->c->attn.qk_norm_scope == MEG_QK_NORM_PER_HEAD_WEIGHT ? first : 0;
    for (int64_t i = 0; i < n && !is_rms; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        x[i] = (x[i] - mean) / sqrt(var + m->c->norm_epsilon) * ref_norm_weight(m, w, first + i) +
               (bias ? bias[first + i] : 0);
}

/* Normalize the queries (r heads of a group, from head 0) or keys (one head, head r) of a row of qkv. */
static inline void ref_qk_norm(const struct ref_gpt *m, double *row, bool is_key, int l)
{
    const int64_t g = m->c->attn.g, d = m->c->attn.d, r = m->c->attn.a / g, per = is_key ? 1 : r, n = g * per;
    const bool is_wide = m->c->attn.qk_norm_scope == MEG_QK_NORM_WIDTH;
    double *x = meg_new((size_t)(n * d) * sizeof *x);

    for (int is_back = 0; is_back < 2; is_back++) {
        for (int64_t k = 0; k < n * d; k++) {
            double *in_row = row + (k / d / per * (r + 2) + (is_key ? r : k / d % per)) * d + k % d;

            *(is_back ? in_row : &x[k]) = *(is_back ? &x[k] : in_row);
        }
        for (int64_t j = 0; j < (is_wide ? 1 : n) && !is_back; j++)
            ref_head_norm(m, x + j * d, is_wide ? n * d : d, j * d, is_key ? "k_layernorm" : "q_layernorm", l);
    }
    free(x);
}

/* Return x, or cap * tanh(x / cap) if the cap is set. */
static inline double ref_softcap(double x, double cap)
{
    return cap > 0 ? cap * tanh(x / cap) : x;
}

/*
 * Return the slope of ALiBi of head j of n (Press et al. 2022): the first heads have those of p heads, p the largest
 * power of two that is at most n, and the others every second one of those of 2 p heads.
 */
static inline double ref_alibi_slope(int64_t j, int64_t n)
{
    const double p = exp2(floor(log2((double)n)));

    return (double)j < p ? pow(2, -8 * (double)(j + 1) / p) : pow(2, -8 * (2 * ((double)j - p) + 1) / (2 * p));
}

/* Return the exponential of the sink of head j, which is added to the denominator of the softmax. */
static inline double ref_sink(const struct ref_gpt *m, int layer, int64_t j)
{
    const double *sink = ref_find(m, "decoder.layers.%d.self_attention.core_attention.softmax_offset", layer);

    return m->c->attn.softmax_type == MEG_SOFTMAX_OFF_BY_ONE ? 1 : sink ? exp(sink[j]) : 0;
}

/*
 * Compute attention o [s,b,a d] from qkv [s,b,g (a/g + 2) d]; a row of qkv has the queries, key and value of each
 * group.  Queries and keys are rotated in place if the model has rotary embeddings.
 */
static inline void ref_attention(const struct ref_gpt *m, double *o, double *qkv, int layer)
{
    const struct meg_model_conf *c = m->c;
    const struct meg_batch *x = m->x;
    const int64_t a = c->attn.a, g = c->attn.g, d = c->attn.d, r = a / g;
    const int64_t ld = g * (r + 2) * d, keys = (x->s + 7) / 8 * 8;
    const bool has_window = c->attn.window_size && ref_pattern(c->attn.window_attn_skip_freq, layer, false, true);
    const int64_t window = has_window ? atoi(c->attn.window_size) : x->s;
    double *p = meg_new((size_t)x->s * sizeof *p);

    for (int64_t i = 0; i < x->s * x->b * ld && c->attn.clip > 0; i++)
        qkv[i] = fmax(-c->attn.clip, fmin(c->attn.clip, qkv[i]));
    for (int64_t n = 0; n < 2 * x->s * x->b && c->attn.qk_layernorm && !c->attn.qk_norm_after_rope; n++)
        ref_qk_norm(m, qkv + n / 2 * ld, n % 2, layer);
    if (meg_model_is_rotary(c))
        ref_rotate_all(m, qkv, layer, has_window);
    for (int64_t n = 0; n < 2 * x->s * x->b && c->attn.qk_layernorm && c->attn.qk_norm_after_rope; n++)
        ref_qk_norm(m, qkv + n / 2 * ld, n % 2, layer);
    for (int64_t n = 0; n < x->s * x->b; n++)
        for (int64_t j = 0; j < a; j++) {
            const int64_t t = n / x->b, i = n % x->b, start = x->doc_start ? x->doc_start[n] : 0;
            const int64_t first = t - window > start ? t - window : start;
            const double *q = qkv + n * ld + (j / r * (r + 2) + j % r) * d;
            const double *key = qkv + i * ld + (j / r * (r + 2) + r) * d, *value = key + d;
            const double slope = c->position_embedding_type == MEG_POSITION_ALIBI ? ref_alibi_slope(j, a) : 0;
            double sum = ref_sink(m, layer, j);

            for (int64_t k = first; k <= t; k++) {
                double dot = 0;

                for (int64_t e = 0; e < d; e++)
                    dot += q[e] * key[k * x->b * ld + e];
                sum += p[k] = exp(ref_softcap(dot / sqrt((double)d), c->attn.softcap) - slope * (double)(t - k));
            }
            for (int64_t k = first; k <= t; k++)
                p[k] *= ref_drop(m, c->attn.dropout, layer, MEG_DROP_ATTN, j * keys + k, t, i) / sum;
            for (int64_t e = 0; e < d; e++) {
                double v = 0;

                for (int64_t k = first; k <= t; k++)
                    v += p[k] * value[k * x->b * ld + e];
                o[(n * a + j) * d + e] = v;
            }
        }
    free(p);
}

static inline double ref_act(enum meg_act act, double u)
{
    switch (act) {
    case MEG_ACT_GELU_TANH: return 0.5 * u * (1 + tanh(sqrt(2 / M_PI) * (u + 0.044715 * u * u * u)));
    case MEG_ACT_GELU_ERF: return 0.5 * u * (1 + erf(u / sqrt(2)));
    case MEG_ACT_RELU: return fmax(u, 0);
    case MEG_ACT_SQUARED_RELU: return fmax(u, 0) * fmax(u, 0);
    case MEG_ACT_QUICK_GELU: return u / (1 + exp(-1.702 * u));
    default: return u / (1 + exp(-u)); /* MEG_ACT_SILU */
    }
}

/* Apply the activation function or the gated linear unit to fc1's output x; y is [n,f]. */
static inline void ref_activation(const struct meg_model_conf *c, double *y, const double *x, int64_t n)
{
    const double limit = c->activation_func_clamp_value > 0 ? c->activation_func_clamp_value : INFINITY;
    const enum meg_act act = meg_model_act(c);
    const int64_t f = c->mlp.f;

    for (int64_t k = 0; k < n * f; k++) {
        const double *row = x + k / f * 2 * f;

        if (meg_model_is_gated(c))
            y[k] = ref_act(act, fmin(row[k % f], limit)) *
                   (fmin(fmax(row[f + k % f], -limit), limit) + c->glu_linear_offset);
        else
            y[k] = ref_act(act, x[k]);
    }
}

static inline double *ref_rows(const struct ref_gpt *g, int64_t cols)
{
    return meg_new((size_t)(g->x->s * g->x->b * cols) * sizeof(double));
}

/* Set x to the norm of h.  With post placement, also replace h by it.  Without input norms, copy h. */
static inline void ref_input(const struct ref_gpt *g, double *x, double *h, const char *name, int l)
{
    const bool is_first = l == 0 && strcmp(name, "input_layernorm") == 0;
    const bool is_post = g->c->norm_placement == MEG_NORM_PLACEMENT_POST;
    const size_t nbytes = (size_t)(g->x->s * g->x->b * g->c->hidden_size) * sizeof *x;

    memcpy(x, h, nbytes);
    if (!meg_model_norms_input(g->c) || (is_post && is_first))
        return;
    ref_norm(g, x, h, ref_find(g, "decoder.layers.%d.%s.weight", l, name),
             ref_find(g, "decoder.layers.%d.%s.bias", l, name));
    if (is_post)
        memcpy(h, x, nbytes);
}

/* Apply the norm of the output and the factor to y, the output of attention or MLP. */
static inline void ref_output(const struct ref_gpt *g, double *y, const char *name, int l)
{
    if (meg_model_norms_output(g->c))
        ref_norm(g, y, y, ref_find(g, "decoder.layers.%d.%s.weight", l, name),
                 ref_find(g, "decoder.layers.%d.%s.bias", l, name));
    for (int64_t k = 0; k < g->x->s * g->x->b * g->c->hidden_size; k++)
        y[k] *= meg_model_residual_multiplier(g->c);
}

/* Run h [s,b,h] through one layer, in place. */
static inline void ref_layer(const struct ref_gpt *g, double *h, int l)
{
#define P(name) ref_find(g, "decoder.layers.%d." name, l)
    const struct meg_model_conf *c = g->c;
    const int64_t n = g->x->s * g->x->b, hidden = c->hidden_size, ad = c->attn.a * c->attn.d;
    const int64_t qkv_cols = ad + 2 * c->attn.g * c->attn.d, f = c->mlp.f;
    const int64_t fc1 = meg_model_is_gated(c) ? 2 * f : f;
    double *x = ref_rows(g, hidden), *y = ref_rows(g, hidden), *qkv = ref_rows(g, qkv_cols), *o = ref_rows(g, ad);
    double *pre = ref_rows(g, fc1), *mid = ref_rows(g, f);

    ref_input(g, x, h, "input_layernorm", l);
    ref_linear(qkv, x, P("self_attention.linear_qkv.weight"), P("self_attention.linear_qkv.bias"), n, qkv_cols, hidden);
    ref_attention(g, o, qkv, l);
    ref_linear(y, o, P("self_attention.linear_proj.weight"), P("self_attention.linear_proj.bias"), n, hidden, ad);
    ref_output(g, y, "post_self_attn_layernorm", l);
    if (c->parallel_residual == MEG_PARALLEL_RESIDUAL_TWO_NORMS)
        ref_input(g, x, h, "pre_mlp_layernorm", l);
    ref_add(g, h, y, l, MEG_DROP_ATTN_OUT);
    if (c->parallel_residual == MEG_PARALLEL_RESIDUAL_NONE)
        ref_input(g, x, h, "pre_mlp_layernorm", l);
    ref_linear(pre, x, P("mlp.linear_fc1.weight"), P("mlp.linear_fc1.bias"), n, fc1, hidden);
    ref_activation(c, mid, pre, n);
    ref_linear(y, mid, P("mlp.linear_fc2.weight"), P("mlp.linear_fc2.bias"), n, hidden, f);
    ref_output(g, y, "post_mlp_layernorm", l);
    ref_add(g, h, y, l, c->parallel_residual == MEG_PARALLEL_RESIDUAL_NONE ? MEG_DROP_MLP_OUT : MEG_DROP_ATTN_OUT);
    free(x);
    free(y);
    free(qkv);
    free(o);
    free(pre);
    free(mid);
#undef P
}

/* Return the sum of loss * mask over all tokens, in nats. */
static inline double ref_loss(const struct ref_gpt *g)
{
    const struct meg_model_conf *c = g->c;
    const struct meg_batch *x = g->x;
    const int64_t n = x->s * x->b, hidden = c->hidden_size, v = c->vocab_size;
    const double *word = ref_find(g, "embedding.word_embeddings.weight"), *out = ref_find(g, "output_layer.weight");
    const double *position = ref_find(g, "embedding.position_embeddings.weight");
    double *h = ref_rows(g, hidden), *y = ref_rows(g, hidden), *logits = ref_rows(g, v), loss = 0;

    for (int64_t k = 0; k < n * hidden; k++)
        y[k] = word[x->tokens[k / hidden] * hidden + k % hidden] * meg_model_embedding_multiplier(c);
    if (c->embed_layernorm)
        ref_norm(g, y, y, ref_find(g, "embedding.word_embeddings.norm.weight"),
                 ref_find(g, "embedding.word_embeddings.norm.bias"));
    for (int64_t k = 0; k < n * hidden && position; k++)
        y[k] += position[(x->position_ids[k / hidden] + c->position_embedding_offset) * hidden + k % hidden];
    ref_add(g, h, y, 0, MEG_DROP_EMBED);
    for (int l = 0; l < c->num_layers; l++)
        ref_layer(g, h, l);
    ref_norm(g, y, h, ref_find(g, "decoder.final_layernorm.weight"), ref_find(g, "decoder.final_layernorm.bias"));
    for (int64_t k = 0; k < n * hidden; k++)
        y[k] *= meg_model_logit_multiplier(c);
    ref_linear(logits, y, out ? out : word, ref_find(g, "output_layer.bias"), n, v, hidden);
    for (int64_t k = 0; k < n * v; k++)
        logits[k] = ref_softcap(logits[k], c->logit_softcap);
    for (int64_t r = 0; r < n; r++) {
        double sum = 0;

        for (int64_t k = 0; k < v; k++)
            sum += exp(logits[r * v + k]);
        loss += (log(sum) - logits[r * v + x->labels[r]]) * (x->loss_mask ? x->loss_mask[r] : 1);
    }
    free(h);
    free(y);
    free(logits);
    return loss;
}

#endif
