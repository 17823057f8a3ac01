/* step_finish.c - cases of step_finish: the scalars of a training step. */
#include "ops.h"

/* ---- reference ---- */

/* The columns of a record, in the order of struct meg_step_record. */
enum {
    DIVISOR,
    LOSS_SUM, /* [MEG_MAX_LOSSES] */
    GRAD_SUMSQ = LOSS_SUM + MEG_MAX_LOSSES,
    PARAM_SUMSQ,
    NUM_ZEROS,
    LOCAL_LOSS, /* [MEG_MAX_LOSSES] */
    LOSS = LOCAL_LOSS + MEG_MAX_LOSSES,
    GRAD_NORM = LOSS + MEG_MAX_LOSSES,
    NONFINITE,
    IS_SKIPPED,
    LR, /* [2] */
    WEIGHT_DECAY = LR + 2,
    ADAM_C,
    GRAD_SCALE = ADAM_C + 2,
    SKIP,
    UPDATE,
    TYPE,
    SCALE,
    MIN_SCALE,
    WINDOW,
    HYSTERESIS,
    GROWTH,
    HYSTERESIS_LEFT,
    NUM_UPDATES
};

/* Update the loss scale, and return whether to skip the update (Megatron's ConstantGradScaler, DynamicGradScaler). */
static bool update_scaler(double *r, bool overflowed)
{
    if (r[TYPE] == MEG_SCALER_DYNAMIC && overflowed) {
        r[GROWTH] = 0;
        r[HYSTERESIS_LEFT]--;
        if (r[HYSTERESIS_LEFT] <= 0)
            r[SCALE] = fmax(0.5 * r[SCALE], r[MIN_SCALE]);
    } else if (r[TYPE] == MEG_SCALER_DYNAMIC) {
        r[GROWTH]++;
        if (r[GROWTH] == r[WINDOW]) {
            r[GROWTH] = 0;
            r[HYSTERESIS_LEFT] = r[HYSTERESIS];
            r[SCALE] *= 2;
        }
    }
    return r[TYPE] != MEG_SCALER_NONE && overflowed;
}

/* Set the hyper-parameters of a record, with the gradients multiplied by `scale`. */
static void set_hparams(double *r, const struct meg_step_hparams *h, double scale)
{
    for (int i = 0; i < 2; i++)
        r[LR + i] = (double)h->lr[i];
    r[WEIGHT_DECAY] = (double)h->weight_decay;
    r[ADAM_C] = (double)h->adam_c1;
    r[ADAM_C + 1] = (double)h->adam_c2;
    r[GRAD_SCALE] = scale;
    r[SKIP] = r[IS_SKIPPED];
    r[UPDATE] = (double)h->update;
}

static void ref(struct op_call *c)
{
    const struct meg_step_conf *conf = ((const struct meg_step_finish_args *)c->args)->conf;
    struct op_tensor *const record = op_find(c, "record");
    const struct op_tensor *const sums = op_find(c, "conf.grad_sum");
    double *const r = record->want;
    double scale = 1 / r[SCALE];
    bool is_finite = true;

    if (conf->is_per_token && r[DIVISOR] > 0)
        scale /= r[DIVISOR];
    for (int i = 0; i < MEG_MAX_LOSSES; i++) {
        r[LOSS + i] = r[DIVISOR] > 0 ? r[LOSS_SUM + i] / r[DIVISOR] : 0;
        is_finite &= isfinite(r[LOSS + i]) != 0;
        record->tol[LOSS + i] = 1e-15 * fabs(r[LOSS + i]);
    }
    r[GRAD_NORM] = conf->has_grad_norm ? scale * sqrt(r[GRAD_SUMSQ]) : NAN;
    record->tol[GRAD_NORM] = 1e-15 * fabs(r[GRAD_NORM]);
    r[NONFINITE] = 0;
    for (int64_t i = 0; sums && i < sums->numel; i++)
        if (!isfinite(sums->v[i]))
            r[NONFINITE] = (double)(i + 1);
    r[IS_SKIPPED] = conf->skips_nonfinite && !(is_finite && isfinite(r[GRAD_NORM]));
    if (!r[IS_SKIPPED])
        r[IS_SKIPPED] = update_scaler(r, !isfinite(r[GRAD_NORM]));
    if (conf->clip_grad > 0 && r[GRAD_NORM] + 1e-6 > (double)conf->clip_grad)
        scale *= (double)conf->clip_grad / (r[GRAD_NORM] + 1e-6);
    set_hparams(r, &conf->candidate[r[NUM_UPDATES] == (double)conf->num_updates ? 0 : 1], scale);
    record->tol[GRAD_SCALE] = EPS * fabs(scale);
    r[NUM_UPDATES] += r[IS_SKIPPED] == 0;
}

/* ---- cases ---- */

enum { PARAMS = 101, ALL_FINITE = -1 };

/* The variant is the index of a gradient that is not finite, or ALL_FINITE; its sum of squares is `nonfinite`. */
static double nonfinite;

static void fill(struct op_call *c)
{
    const struct op_tensor *const sums = op_find(c, "conf.grad_sum");

    if (sums && c->variant != ALL_FINITE && c->variant < sums->numel)
        sums->v[c->variant] = nonfinite;
}

static const struct meg_step_hparams hparams = {
    .lr = { 0.2f, 0.07f },
    .weight_decay = 0.3f,
    .adam_c1 = 0.5f,
    .adam_c2 = 0.4f,
    .grad_scale = 0.7f,
    .update = (INT64_C(5) << 32) + 3,
};

/* Return a record; the bits of i select its values. */
static struct meg_step_record record_of(int i)
{
    static const double norms[] = { 9.0, 1e8, NAN, INFINITY };
    static const double losses[] = { 80.5, 1e-3, NAN, -INFINITY };

    return (struct meg_step_record){
        .sums = { .loss_divisor = i & 1 ? 37 : 0,
                  .loss = { 80.5, i % 7 ? 20.25 : losses[i / 7 % 4] },
                  .grad_sumsq = norms[i >> 1 & 3],
                  .param_sumsq = 11,
                  .num_zeros = 13,
                  .local_loss = { 17, 19 } },
        .num_updates = 7 + (i >> 3 & 1),
        .scaler = { .type = (enum meg_scaler_type)(i % 3),
                    .scale = i % 5 ? 1024 : 1,
                    .min_scale = 1,
                    .window = 5,
                    .growth_tracker = i & 128 ? 4 : 1,
                    .hysteresis = 2,
                    .hysteresis_tracker = 1 + i % 2 },
    };
}

static void all_bits(void)
{
    for (int i = 0; i < 512; i++) {
        const struct meg_step_record r = record_of(i);
        struct meg_step_conf conf = { .candidate = { hparams, hparams }, .num_updates = 7 };

        conf.candidate[1].lr[0] = 0.3f;
        conf.candidate[1].update++;
        conf.has_grad_norm = i & 256 || i & 2;
        conf.clip_grad = i & 16 ? 1 : 0;
        conf.is_per_token = i & 32;
        conf.skips_nonfinite = i & 64;
        conf.num_params = i % 5 == 0 ? 0 : PARAMS - i % 5;
        conf.grad_sum = ON;
        nonfinite = i & 4 ? NAN : INFINITY;
        OP_CASE(step_finish, i % 4 ? (int)op_below(PARAMS) : ALL_FINITE, .record = (void *)(uintptr_t)&r,
                .conf = &conf);
    }
}

/* The columns of a record, in the order of struct meg_step_record: sums, results, hyper-parameters, scaler, updates. */
OP_TEST(step_finish, .fill = fill, .ref = ref,
        .extra = { { "record", .shape = "1", .format = "dddddqdddddqqffffffixqixddqqqqq", .dtype = MEG_DTYPES } },
        .group = { { "scalers, clipping, skipped steps and gradients that are not finite", all_bits } });
