/* rotary_conf.c - checks of the options of rotary position embedding. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "model/attention_conf.h"
#include "model/layer_pattern.h"
#include "option/check.h"

static int check_percent(const struct meg_model_conf *c, struct meg_err *e)
{
    const int64_t rotated = (int64_t)((double)c->attn.d * c->rotary.percent);

    if (!(c->rotary.percent > 0 && c->rotary.percent <= 1))
        return meg_fail(e, MEG_EUSAGE, "--rotary-percent %g: must be above 0 and at most 1", c->rotary.percent);
    if (rotated < 2)
        return meg_fail(e, MEG_EUSAGE,
                        "--rotary-percent %g: this fraction of the %" PRId64
                        " channels of a head is less than one pair of channels; use a larger fraction",
                        c->rotary.percent, c->attn.d);
    if (rotated % 2)
        return meg_fail(e, MEG_EUSAGE,
                        "--rotary-percent %g: this fraction of the %" PRId64
                        " channels of a head is an odd number, but channels are rotated in pairs; use a different "
                        "fraction",
                        c->rotary.percent, c->attn.d);
    return 0;
}

static bool is_yarn(const struct meg_model_conf *c)
{
    return c->position_embedding_type == MEG_POSITION_YARN;
}

static int check_yarn(const struct meg_model_conf *c, struct meg_err *e)
{
    const struct meg_rotary_conf *o = &c->rotary;
    int r;

    if (!is_yarn(c))
        return 0;
    if ((r = meg_model_check_positive(o->yarn_original, "yarn-original-max-position-embeddings", e)) < 0 ||
        (r = meg_model_check_range(o->yarn_factor, 1, HUGE_VAL, "rotary-scaling-factor", e)) < 0 ||
        (r = meg_model_check_range(o->yarn_beta_slow, 0x1p-20, HUGE_VAL, "yarn-beta-slow", e)) < 0 ||
        (r = meg_model_check_range(o->yarn_beta_fast, o->yarn_beta_slow, HUGE_VAL, "yarn-beta-fast", e)) < 0 ||
        (r = meg_model_check_range(o->mscale, 0, HUGE_VAL, "mscale", e)) < 0 ||
        (r = meg_model_check_range(o->mscale_all_dim, 0, HUGE_VAL, "mscale-all-dim", e)) < 0)
        return r;
    if (isnan(o->yarn_attention_factor))
        return 0;
    return meg_model_check_range(o->yarn_attention_factor, 0x1p-20, HUGE_VAL, "yarn-attention-factor", e);
}

static int check_llama3(const struct meg_model_conf *c, struct meg_err *e)
{
    const struct meg_rotary_conf *o = &c->rotary;
    int r;

    if ((r = meg_model_check_range(o->scaling_factor, 1, HUGE_VAL, "rope-scaling-factor", e)) < 0 || !o->is_scaled ||
        (r = meg_model_check_range(o->low_freq_factor, 0x1p-20, HUGE_VAL, "rope-scaling-low-freq-factor", e)) < 0)
        return r;
    if (!(o->high_freq_factor > o->low_freq_factor && o->high_freq_factor < HUGE_VAL))
        return meg_fail(e, MEG_EUSAGE,
                        "--rope-scaling-high-freq-factor %g: must be above --rope-scaling-low-freq-factor %g",
                        o->high_freq_factor, o->low_freq_factor);
    return meg_model_check_positive(o->scaling_original, "rope-scaling-original-max-position-embeddings", e);
}

/* Check that a text has n positive numbers, separated by commas. */
static int check_factors(const char *text, int64_t n, const char *name, struct meg_err *e)
{
    const char *p = text;
    int64_t count = 0;

    for (bool is_ok = true; is_ok; count += is_ok) {
        char *end;
        const double x = strtod(p, &end);

        is_ok = end != p && x > 0 && x < HUGE_VAL && (*end == ',' || !*end);
        p = end + (is_ok && *end == ',');
        if (!*end && is_ok) {
            count++;
            break;
        }
    }
    if (*p || count != n)
        return meg_fail(e, MEG_EUSAGE,
                        "--%s: must be %" PRId64 " positive numbers, one for each pair of rotated channels of a head, "
                        "separated by commas",
                        name, n);
    return 0;
}

static int check_longrope(const struct meg_model_conf *c, struct meg_err *e)
{
    const struct meg_rotary_conf *o = &c->rotary;
    const int64_t half = meg_model_rope_half(c);
    int r;

    if (!o->long_factors && !o->short_factors && o->longrope_original == MEG_UNSET)
        return 0;
    if (!o->long_factors || !o->short_factors || o->longrope_original == MEG_UNSET)
        return meg_fail(e, MEG_EUSAGE,
                        "--rope-long-factors, --rope-short-factors and --rope-original-max-position-embeddings must be "
                        "given together");
    if ((r = check_factors(o->long_factors, half, "rope-long-factors", e)) < 0 ||
        (r = check_factors(o->short_factors, half, "rope-short-factors", e)) < 0)
        return r;
    if (o->longrope_original < 2 || o->longrope_original > INT32_MAX)
        return meg_fail(e, MEG_EUSAGE, "--rope-original-max-position-embeddings %" PRId64 ": must be from 2 to %d",
                        o->longrope_original, INT32_MAX);
    return 0;
}

/* The rules over several options, if positions are rotary and if they are not. */
static int check_combination(const struct meg_model_conf *c, struct meg_err *e)
{
    const struct meg_rotary_conf *o = &c->rotary;
    const bool is_rotary = meg_model_is_rotary(c), is_long = o->long_factors, has_beta = o->temperature_beta != 0;
    static const char needs_rope[] = ": requires --position-embedding-type rope or yarn";
    const struct meg_opt_rule rules[] = {
        { !is_rotary && o->no_rope_freq, "no-rope-freq", needs_rope },
        { !is_rotary && is_long, "rope-long-factors", needs_rope },
        { !is_rotary && o->short_factors, "rope-short-factors", needs_rope },
        { !is_rotary && o->longrope_original != MEG_UNSET, "rope-original-max-position-embeddings", needs_rope },
        { !is_rotary && !isnan(o->base_window), "rotary-base-window", needs_rope },
        { !is_rotary && has_beta, "attn-temperature-beta", needs_rope },
        { !isnan(o->base_window) && !c->attn.window_size, "rotary-base-window", ": requires --window-size" },
        { !(o->temperature_beta >= 0 && o->temperature_beta < HUGE_VAL), "attn-temperature-beta",
          ": must be finite and at least 0" },
        { has_beta && (o->temperature_floor < 1 || o->temperature_floor > INT32_MAX), "attn-temperature-beta",
          ": requires --attn-temperature-floor, a number of tokens of at least 1" },
        { has_beta && c->attn.d % 2, "attn-temperature-beta", ": requires an even --kv-channels" },
        { has_beta && !o->is_interleaved && is_rotary && 2 * meg_model_rope_half(c) != c->attn.d,
          "attn-temperature-beta", ": requires --rotary-percent 1" },
        { is_yarn(c) && o->yarn_original == MEG_UNSET, "position-embedding-type",
          ": requires --yarn-original-max-position-embeddings" },
        { is_yarn(c) && o->is_scaled, "use-rope-scaling", ": cannot be combined with --position-embedding-type yarn" },
        { is_yarn(c) && is_long, "rope-long-factors", ": cannot be combined with --position-embedding-type yarn" },
        { o->is_scaled && is_long, "rope-long-factors", ": cannot be combined with --use-rope-scaling" },
        { 0 }
    };

    return meg_opt_check_rules(rules, meg_model_opts, c, e);
}

int meg_rotary_conf_check(struct meg_model_conf *c, struct meg_err *e)
{
    struct meg_rotary_conf *o = &c->rotary;
    int r;

    if (o->is_used)
        c->position_embedding_type = MEG_POSITION_ROPE;
    if ((r = check_combination(c, e)) < 0 || !meg_model_is_rotary(c))
        return r;
    if (isnan(o->interpolation))
        o->interpolation = 1;
    if ((r = meg_model_check_range(o->interpolation, 0x1p-20, HUGE_VAL, "rotary-seq-len-interpolation-factor", e)) <
            0 ||
        (r = meg_model_check_range(o->base, 1, HUGE_VAL, "rotary-base", e)) < 0 ||
        (!isnan(o->base_window) &&
         (r = meg_model_check_range(o->base_window, 1, HUGE_VAL, "rotary-base-window", e)) < 0) ||
        (r = check_percent(c, e)) < 0 || (r = check_llama3(c, e)) < 0 || (r = check_yarn(c, e)) < 0)
        return r;
    return check_longrope(c, e);
}

void meg_rotary_conf_normalize(struct meg_model_conf *c, const struct meg_model_conf *def)
{
    const struct meg_rotary_conf *d = &def->rotary;
    struct meg_rotary_conf *o = &c->rotary;

    if (!meg_model_is_rotary(c)) {
        *o = *d;
        o->interpolation = 1;
    }
    o->is_used = false; /* same as position_embedding_type */
    if (!c->attn.window_size)
        o->base_window = NAN;
    if (!o->is_scaled) {
        o->scaling_factor = d->scaling_factor;
        o->low_freq_factor = d->low_freq_factor;
        o->high_freq_factor = d->high_freq_factor;
        o->scaling_original = d->scaling_original;
    }
    if (!is_yarn(c)) {
        o->yarn_factor = d->yarn_factor;
        o->yarn_beta_fast = d->yarn_beta_fast;
        o->yarn_beta_slow = d->yarn_beta_slow;
        o->yarn_rounds = d->yarn_rounds;
        o->yarn_original = d->yarn_original;
        o->yarn_attention_factor = NAN;
    }
    if (!is_yarn(c) || o->yarn_attention_factor > 0) {
        o->mscale = d->mscale;
        o->mscale_all_dim = d->mscale_all_dim;
    }
    if (o->temperature_beta == 0)
        o->temperature_floor = d->temperature_floor;
}
