/* rope.c - compute the tables of rotary position embedding: a function for each method that extends the context. */
#include "model/rope.h"
#include <math.h>
#include <stdlib.h>
#include "base/int64.h"
#include "base/mem.h"

static bool is_longrope(const struct meg_rope_conf *c)
{
    return c->half > 0 && c->set == MEG_ROPE_FULL && c->o.long_factors;
}

void meg_rope_describe(struct meg_rope_conf *rope, const struct meg_model_conf *c)
{
    const int64_t half = meg_model_rope_half(c), n = c->max_position_embeddings;
    const struct meg_rotary_conf *o = &c->rotary;
    const bool has_window_base = o->base_window > 0, has_temperature = half > 0 && o->temperature_beta != 0;

    const int64_t halves[] = { [MEG_ROPE_FULL] = half,
                               [MEG_ROPE_WINDOW] = has_window_base ? half : 0,
                               [MEG_ROPE_NONE] = has_temperature && o->no_rope_freq ? c->attn.d / 2 : 0 };

    for (int k = 0; k < MEG_ROPE_SETS; k++)
        rope[k] = (struct meg_rope_conf){ .half = halves[k],
                                          .positions = n,
                                          .base = k == MEG_ROPE_WINDOW ? o->base_window : o->base,
                                          .set = (enum meg_rope_set)k,
                                          .is_yarn = c->position_embedding_type == MEG_POSITION_YARN,
                                          .max_position_embeddings = n,
                                          .o = *o };
}

int64_t meg_rope_short_positions(const struct meg_rope_conf *c)
{
    return is_longrope(c) ? c->o.longrope_original : 0;
}

int64_t meg_rope_rows(const struct meg_rope_conf *c)
{
    return meg_rope_short_positions(c) + c->positions;
}

bool meg_rope_has_temperature(const struct meg_rope_conf *c)
{
    return c->half > 0 && c->o.temperature_beta != 0;
}

/* ---- methods ---- */

/*
 * Llama 3.1: frequencies are divided by the factor at wavelengths above original / low_freq_factor, unchanged below
 * original / high_freq_factor, and interpolated between.
 */
static double llama3_scale(const struct meg_rotary_conf *o, double freq)
{
    const double turns = (double)o->scaling_original / (2 * M_PI / freq);
    const double unscaled = fmin(fmax((turns - o->low_freq_factor) / (o->high_freq_factor - o->low_freq_factor), 0), 1);

    return (1 - unscaled) / o->scaling_factor + unscaled;
}

/* Return the index of the column pair, a real number, that turns `turns` times over the original context of YaRN. */
static double yarn_pair(const struct meg_rope_conf *c, double turns)
{
    return (double)c->half * log((double)c->o.yarn_original / (turns * 2 * M_PI)) / log(c->base);
}

/*
 * YaRN (Peng et al. 2023): frequencies are divided by the factor if they turn less than beta_slow times over the
 * original context, unchanged if they turn more than beta_fast times, and interpolated by the index between.
 */
static double yarn_scale(const struct meg_rope_conf *c, int64_t i)
{
    const struct meg_rotary_conf *o = &c->o;
    double low = yarn_pair(c, o->yarn_beta_fast), high = yarn_pair(c, o->yarn_beta_slow), ramp;

    if (o->yarn_rounds) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)(2 * c->half - 1));
    ramp = fmin(fmax(((double)i - low) / (high == low ? 0.001 : high - low), 0), 1);
    return ramp / o->yarn_factor + 1 - ramp;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

/* Return the factor of cosines and sines. */
static double magnitude(const struct meg_rope_conf *c)
{
    const struct meg_rotary_conf *o = &c->o;
    const double extension = (double)c->max_position_embeddings / (double)o->longrope_original;

    if (c->set != MEG_ROPE_FULL)
        return 1;
    if (is_longrope(c))
        return extension > 1 ? sqrt(1 + log(extension) / log((double)o->longrope_original)) : 1;
    if (!c->is_yarn)
        return 1;
    if (o->yarn_attention_factor > 0)
        return o->yarn_attention_factor;
    return yarn_mscale(o->yarn_factor, o->mscale) / yarn_mscale(o->yarn_factor, o->mscale_all_dim);
}

/* ---- tables ---- */

/* LongRoPE (Ding et al. 2024): frequencies are divided by a factor for each column pair. */
struct factors {
    double *short_list, *long_list; /* [half] NULL: not LongRoPE */
};

static double *read_list(const char *text, int64_t n)
{
    double *list = meg_new((size_t)n * sizeof *list);
    char *end = (char *)text;

    for (int64_t i = 0; i < n; i++)
        list[i] = strtod(end + (i > 0), &end);
    return list;
}

static double scale_of(const struct meg_rope_conf *c, const struct factors *f, int64_t i, bool is_long)
{
    if (c->set == MEG_ROPE_NONE)
        return 0;
    if (c->set == MEG_ROPE_WINDOW)
        return 1;
    if (f->long_list)
        return 1 / (is_long ? f->long_list : f->short_list)[i];
    if (c->is_yarn)
        return yarn_scale(c, i);
    return c->o.is_scaled ? llama3_scale(&c->o, pow(c->base, -(double)i / (double)c->half)) : 1;
}

void meg_rope_fill(const struct meg_rope_conf *c, bool is_query, float *cosine, float *sine)
{
    const struct meg_rotary_conf *o = &c->o;
    const int64_t first_long = meg_rope_short_positions(c);
    const double factor = magnitude(c), interpolation = c->set == MEG_ROPE_FULL ? o->interpolation : 1;
    struct factors f = { 0 };

    if (is_longrope(c))
        f = (struct factors){ read_list(o->short_factors, c->half), read_list(o->long_factors, c->half) };
    for (int64_t i = 0; i < c->half; i++) {
        const double freq = pow(c->base, -(double)i / (double)c->half);
        const double scale[] = { scale_of(c, &f, i, false), scale_of(c, &f, i, true) };

        for (int64_t row = 0; row < meg_rope_rows(c); row++) {
            const bool is_long = row >= first_long;
            const int64_t p = is_long ? row - first_long : row;
            const double angle = (double)p / interpolation * freq * scale[is_long];
            const double temperature =
                is_query ? 1 + o->temperature_beta * log1p((double)(p / o->temperature_floor)) : 1;

            cosine[row * c->half + i] = (float)(temperature * factor * cos(angle));
            sine[row * c->half + i] = (float)(temperature * factor * sin(angle));
        }
    }
    free(f.short_list);
    free(f.long_list);
}
