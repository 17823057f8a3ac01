/* xent_bwd.c - cases of xent_bwd and xent_fwd_bwd: the gradient of the cross-entropy. */
#include <stdlib.h>
#include "base/mem.h"
#include "tensor/suballoc.h"
#include "xent.h"

static const struct {
    int64_t n, v;
} small_shapes[] = { { 1, 1 }, { 3, 2 }, { 5, 63 }, { 4, 64 }, { 9, 131 }, { 3, 5000 } };

/* Set targets of small shapes. */
static void small_targets(int64_t n, int64_t v)
{
    for (int64_t r = 0; r < n; r++)
        xent_target[r] = r % 4 == 2 ? -1 : (int32_t)((r * 17 + 5) % v);
}

/* Set targets of an unsplit vocabulary: the last id, the first, some ignored rows, and random ids. */
static void unsplit_targets(int64_t n, int64_t v)
{
    for (int64_t r = 0; r < n; r++)
        xent_target[r] = (int32_t)(r == 0 ? v - 1 : r == 1 ? 0 : r % 9 == 2 ? -1 : op_below(v));
}

/* ---- xent_bwd ---- */

static double weight_of(struct op_call *c, int64_t r)
{
    const double *mask = op_in(c, "weight.mask"), *scale = op_in(c, "weight.scale");
    const double *loss_scale = op_in(c, "weight.loss_scale");

    return (mask ? mask[r] : 1) * (scale ? *scale : 1) * (loss_scale ? *loss_scale : 1);
}

/* The factors in the loss, and the soft cap that computed the logits; 0: none. */
struct loss_type {
    double z, softcap;
};

/* Compute the gradient of a row whose target is column t, or on another shard. */
static void gradient_of_row(struct op_call *c, int64_t r, double lse, int64_t t, struct loss_type type, double error)
{
    const double z = type.z;
    struct op_tensor *x = op_find(c, "logits");
    const int64_t v = x->size[1];
    const double weight = weight_of(c, r);
    double most = 0;

    for (int64_t i = r * v; i < (r + 1) * v; i++)
        most = isfinite(x->v[i]) ? fmax(most, fabs(x->v[i])) : most;
    /* The relative error of probabilities is the absolute error of lse; z-loss multiplies probabilities. */
    error += (most < 2 ? 16 : 8 * fmax(most, fabs(lse))) * EPS * (1 + 2 * fabs(z) * fmax(most, 10)) + 1e-8;
    for (int64_t k = 0; k < v; k++) {
        const double y = type.softcap > 0 ? x->v[r * v + k] / type.softcap : 0;

        x->want[r * v + k] = weight * (1 - y * y) * (exp(x->v[r * v + k] - lse) * (1 + 2 * z * lse) - (k == t));
        x->tol[r * v + k] = error * fabs(weight);
    }
}

/* A row that is ignored has the gradient 0. */
static void ignore_row(struct op_call *c, int64_t r)
{
    struct op_tensor *x = op_find(c, "logits");

    memset(x->want + r * x->size[1], 0, (size_t)x->size[1] * sizeof *x->want);
}

static void bwd_fill(struct op_call *c)
{
    const int64_t n = op_size(c, "n"), v = op_size(c, "v");
    double *lse = op_in(c, "lse"), *x = op_in(c, "logits");

    xent_fill(c);
    op_round(c);
    for (int64_t r = 0; x && r < n; r++)
        lse[r] = xent_lse(x + r * v, v);
}

static void bwd_ref(struct op_call *c)
{
    const struct meg_xent_bwd_args *a = c->args;

    for (int64_t r = 0; r < op_size(c, "n"); r++)
        if (op_in(c, "target")[r] < 0)
            ignore_row(c, r);
        else
            gradient_of_row(c, r, op_in(c, "lse")[r], (int64_t)op_in(c, "target")[r] - a->v0,
                            (struct loss_type){ (double)a->z_loss, (double)a->softcap }, 0);
}

/* The weights of rows that a bit mask selects. */
enum { MASK = 1, SCALE = 2, LOSS_SCALE = 4, ALL_WEIGHTS = 7 };

static struct meg_loss_weight weights(int mask)
{
    return (struct meg_loss_weight){ mask & MASK ? ON : NULL, mask & SCALE ? ON : NULL, mask & LOSS_SCALE ? ON : NULL };
}

static double value_at(const double *p)
{
    return p ? *p : 1;
}

/* Multiply row r of x by its weight, and return whether the weight is a power of two, so that products are exact. */
static bool weight_row(struct meg_mat x, int64_t r, const struct meg_loss_weight *weight)
{
    const float mask = weight->mask ? weight->mask[r] : 1;
    const float w = (float)(value_at(weight->scale) * value_at(weight->loss_scale)) * mask;
    float *const row = (float *)x.p + r * x.ld;
    int e;

    for (int64_t k = 0; k < x.cols; k++)
        row[k] *= w;
    return fabsf(frexpf(w, &e)) == 0.5f;
}

/* Compute the gradient without weights in f32, multiply it by the weights, and round it. */
static void bwd_parts(const struct meg_ops *op, struct meg_stream *st, const void *args)
{
    const struct meg_xent_bwd_args *a = args;
    const int64_t n = a->logits.rows, v = a->logits.cols;
    const struct meg_mat x = meg_mat(meg_new((size_t)(n * v) * sizeof(float)), MEG_DTYPE_F32, n, v);
    bool is_exact = true;

    MEG_CALL(op, st, scale, .y = x, .x = a->logits, .factor = 1);
    MEG_CALL(op, st, xent_bwd, .logits = x, .lse = a->lse, .target = a->target, .v0 = a->v0, .z_loss = a->z_loss);
    for (int64_t r = 0; r < n; r++)
        is_exact &= weight_row(x, r, &a->weight);
    if (is_exact)
        MEG_CALL(op, st, scale, .y = a->logits, .x = x, .factor = 1);
    else
        op->xent_bwd(st, a);
    free(x.p);
}

static void bwd_one(int variant, enum meg_dtype t, int64_t n, struct xent_shape s, int64_t v0, float z_loss, int mask)
{
    OP_CASE(xent_bwd, variant, .logits = op_mat(t, n, s.v, s.pad), .v0 = v0, .z_loss = z_loss, .weight = weights(mask));
}

static void bwd_small(void)
{
    for (size_t i = 0; i < LEN(small_shapes); i++)
        for (int k = 0; k < 4 * OP_FLOATS; k++) {
            small_targets(small_shapes[i].n, small_shapes[i].v);
            bwd_one(k & 1 ? BIG : SMALL, (enum meg_dtype)(k / 4), small_shapes[i].n,
                    (struct xent_shape){ small_shapes[i].v, 3 }, 0, k & 2 ? 1e-2f : 0, MASK);
        }
}

static void bwd_shapes(void)
{
    for (int t = 0; t < OP_FLOATS; t++)
        for (size_t i = 0; i < LEN(xent_shapes); i++) {
            xent_split_targets(XENT_ROWS, xent_shapes[i].v);
            bwd_one(RISING, (enum meg_dtype)t, XENT_ROWS, xent_shapes[i], XENT_V0, 0, 0);
        }
}

static void bwd_weights(void)
{
    xent_split_targets(6, 300);
    for (int t = 0; t < OP_FLOATS; t++)
        for (int i = 0; i < 32; i++)
            bwd_one(i & 16 ? POWERS : RISING, (enum meg_dtype)t, 6, (struct xent_shape){ 300, 4 }, XENT_V0,
                    i & 8 ? 1e-3f : 0, i & ALL_WEIGHTS);
}

/* Logits that a soft cap computed: those of SMALL are less than 1. */
static void bwd_softcap(void)
{
    xent_split_targets(XENT_ROWS, 8192);
    for (int t = 0; t < OP_FLOATS; t++)
        for (int i = 0; i < 2; i++)
            OP_CASE(xent_bwd, SMALL, .logits = op_mat((enum meg_dtype)t, XENT_ROWS, i ? 8192 : 67, 8), .v0 = XENT_V0,
                    .z_loss = 1e-2f, .softcap = i ? 1 : 1.5f, .weight = weights(MASK));
}

/*
 * Without a target on this shard, the gradient is the softmax.  With a target, an error of the softmax would be small
 * compared with the gradient of the target's logit.
 */
static void bwd_softmax(void)
{
    xent_target[0] = 0;
    xent_target[1] = XENT_V0 + 9000;
    for (int t = 0; t < OP_FLOATS; t++)
        bwd_one(RISING, (enum meg_dtype)t, 2, (struct xent_shape){ 9000, 0 }, XENT_V0, 0, 0);
}

static void bwd_special(void)
{
    xent_target[0] = -1;
    xent_target[1] = XENT_V0 + 1;
    bwd_one(IGNORED, MEG_DTYPE_F32, 2, (struct xent_shape){ 2100, 3 }, XENT_V0, 0, 0);
    xent_split_targets(6, 2500);
    for (int t = 0; t < OP_FLOATS; t++)
        bwd_one(NOT_FINITE, (enum meg_dtype)t, 6, (struct xent_shape){ 2500, 4 }, XENT_V0, 1e-3f, MASK);
    bwd_one(SMALL, MEG_DTYPE_BF16, 0, (struct xent_shape){ 10, 0 }, 0, 0, 0);
}

static double bwd_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c;
    return t->dtype == MEG_DTYPE_F32 ? 1e-6 : op_tolerance(t->dtype);
}

static void bwd_bench(void)
{
    bwd_one(SMALL, MEG_DTYPE_BF16, 16384, (struct xent_shape){ 50304, 0 }, 0, 0, ALL_WEIGHTS);
}

/* The offsets of f64 numbers that the rows do not describe. */
#define WEIGHTS(args)                                                                                                  \
    { "weight.scale", offsetof(struct args, weight.scale), MEG_DTYPE_F64, "1" },                                       \
    {                                                                                                                  \
        "weight.loss_scale", offsetof(struct args, weight.loss_scale), MEG_DTYPE_F64, "1"                              \
    }

OP_TEST(xent_bwd, .fill = bwd_fill, .ref = bwd_ref, .parts = bwd_parts, .same = "logits", .cuda = bwd_cuda,
        .bench = bwd_bench, .extra = { WEIGHTS(meg_xent_bwd_args) },
        .group = { { "small shapes", bwd_small, .is_cpu_only = true },
                   { "shapes and types", bwd_shapes },
                   { "mask, loss scale and z-loss", bwd_weights },
                   { "soft cap", bwd_softcap },
                   { "softmax without a target", bwd_softmax },
                   { "ignored rows, logits that are not finite, no rows", bwd_special } });

/* ---- xent_fwd_bwd ---- */

/* Return the loss of a row, and set *lse. */
static double loss_of_row(struct op_call *c, int64_t r, double *lse)
{
    const double z = (double)((const struct meg_xent_fwd_bwd_args *)c->args)->z_loss;
    const int64_t v = op_size(c, "v"), t = (int64_t)op_in(c, "target")[r];
    const double *x = op_in(c, "logits") + r * v;

    *lse = xent_lse(x, v);
    return t < 0 ? 0 : *lse - x[t] + z * *lse * *lse;
}

/* Return the number whose gradient replaces the logits. */
static double weighted_loss(struct op_call *c)
{
    double sum = 0, lse;

    for (int64_t r = 0; r < op_size(c, "n"); r++)
        sum += weight_of(c, r) * loss_of_row(c, r, &lse);
    return sum;
}

static void fwd_bwd_ref(struct op_call *c)
{
    const struct meg_xent_fwd_bwd_args *a = c->args;
    const double z = (double)a->z_loss;
    struct op_tensor *const loss = op_find(c, "loss");
    const int64_t v = op_size(c, "v");

    for (int64_t r = 0; r < op_size(c, "n"); r++) {
        const int64_t t = (int64_t)op_in(c, "target")[r];
        double lse;

        loss->want[r] = loss_of_row(c, r, &lse);
        if (t < 0) {
            ignore_row(c, r);
            continue;
        }
        loss->tol[r] = 8 * EPS * (fabs(lse) + 1 + z * lse * lse) + xent_sum_error(v) * (1 + 2 * z * fabs(lse));
        gradient_of_row(c, r, lse, t, (struct loss_type){ z, (double)a->softcap },
                        xent_sum_error(v) * (1 + 2 * z * fabs(lse)));
    }
}

static void fwd_bwd_parts(const struct meg_ops *op, struct meg_stream *st, const void *args)
{
    const struct meg_xent_fwd_bwd_args *a = args;
    const int64_t n = a->logits.rows;
    float *part = meg_new((size_t)(2 * n) * sizeof *part), *lse = meg_new((size_t)n * sizeof *lse);

    MEG_CALL(op, st, xent_partial, .part = part, .logits = a->logits, .target = a->target);
    MEG_CALL(op, st, xent_combine, .loss = a->loss, .lse = lse, .part = part, .target = a->target, .nparts = 1, .n = n,
             .z_loss = a->z_loss);
    MEG_CALL(op, st, xent_bwd, .logits = a->logits, .lse = lse, .target = a->target, .z_loss = a->z_loss,
             .softcap = a->softcap, .weight = a->weight);
    free(part);
    free(lse);
}

static void fwd_bwd_one(int variant, enum meg_dtype t, int64_t n, struct xent_shape s, float z_loss, int mask)
{
    OP_CASE(xent_fwd_bwd, variant, .logits = op_mat(t, n, s.v, s.pad), .z_loss = z_loss, .weight = weights(mask));
}

static void fwd_bwd_small(void)
{
    for (size_t i = 0; i < LEN(small_shapes); i++)
        for (int k = 0; k < 4 * OP_FLOATS; k++) {
            small_targets(small_shapes[i].n, small_shapes[i].v);
            fwd_bwd_one(k & 1 ? BIG : SMALL, (enum meg_dtype)(k / 4), small_shapes[i].n,
                        (struct xent_shape){ small_shapes[i].v, 3 }, k & 2 ? 1e-2f : 0, MASK);
        }
}

static void fwd_bwd_shapes(void)
{
    for (int t = 0; t < OP_FLOATS; t++)
        for (size_t i = 0; i < LEN(xent_shapes); i++) {
            const int64_t n = xent_shapes[i].v < 1000 ? 40 : 7;

            unsplit_targets(n, xent_shapes[i].v);
            fwd_bwd_one(RISING, (enum meg_dtype)t, n, xent_shapes[i], 0, 0);
        }
}

/* There are more rows than the CPU processes at once. */
static void fwd_bwd_many_rows(void)
{
    unsplit_targets(XENT_MAX_ROWS, 67);
    for (int t = 0; t < OP_FLOATS; t++)
        for (int i = 0; i < 16; i++)
            fwd_bwd_one(SMALL, (enum meg_dtype)t, XENT_MAX_ROWS, (struct xent_shape){ 67, 3 }, i & 8 ? 1e-3f : 0,
                        i & ALL_WEIGHTS);
}

static void fwd_bwd_weights(void)
{
    unsplit_targets(12, 1100);
    for (int t = 0; t < OP_FLOATS; t++)
        for (int i = 0; i < 16; i++)
            fwd_bwd_one(RISING, (enum meg_dtype)t, 12, (struct xent_shape){ 1100, 4 }, i & 8 ? 1e-3f : 0,
                        i & ALL_WEIGHTS);
}

/* There are too many logits for central differences, because these do not include the soft cap. */
static void fwd_bwd_softcap(void)
{
    unsplit_targets(5, 8192);
    for (int t = 0; t < OP_FLOATS; t++)
        for (int i = 0; i < 2; i++)
            OP_CASE(xent_fwd_bwd, SMALL, .logits = op_mat((enum meg_dtype)t, 5, 8192, i ? 8 : 5), .z_loss = 1e-2f,
                    .softcap = i ? 1 : 1.5f, .weight = weights(MASK));
}

/*
 * With a large z-loss, the gradient is almost the softmax.  Otherwise, an error of the softmax would be small compared
 * with the gradient of the target's logit.
 */
static void fwd_bwd_softmax(void)
{
    unsplit_targets(3, 9003);
    for (int t = 0; t < OP_FLOATS; t++)
        fwd_bwd_one(SMALL, (enum meg_dtype)t, 3, (struct xent_shape){ 9003, 5 }, 1e4f, 0);
}

/* Ignored rows before, between and after others have the loss 0 and the gradient 0, even if logits are not finite. */
static void fwd_bwd_special(void)
{
    static const int32_t ignored[10] = { -1, -1, -1, 7, -1, -1, 0, 2099, -1, -1 };
    static const int32_t others[6] = { 0, 1, 1201, 2499, 3, 4 };

    memcpy(xent_target, ignored, sizeof ignored);
    fwd_bwd_one(IGNORED, MEG_DTYPE_F32, 10, (struct xent_shape){ 2100, 4 }, 1e-3f, 0);
    fwd_bwd_one(IGNORED, MEG_DTYPE_F32, 10, (struct xent_shape){ 2100, 5 }, 1e-3f, 0);
    memcpy(xent_target, others, sizeof others);
    for (int t = 0; t < OP_FLOATS; t++)
        fwd_bwd_one(NOT_FINITE, (enum meg_dtype)t, 6, (struct xent_shape){ 2500, 4 }, 0, 0);
    fwd_bwd_one(SMALL, MEG_DTYPE_BF16, 0, (struct xent_shape){ 10, 0 }, 0, 0);
}

/* 4e-5: the tolerance of lse. */
static double fwd_bwd_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c;
    return t->dtype == MEG_DTYPE_F32 ? 4e-5 : op_tolerance(t->dtype);
}

static void fwd_bwd_bench(void)
{
    fwd_bwd_one(SMALL, MEG_DTYPE_BF16, 16384, (struct xent_shape){ 50304, 0 }, 0, ALL_WEIGHTS);
}

OP_TEST(xent_fwd_bwd, .fill = xent_fill, .ref = fwd_bwd_ref, .loss = weighted_loss, .parts = fwd_bwd_parts,
        .same = "loss logits", .cuda = fwd_bwd_cuda, .bench = fwd_bwd_bench,
        .extra = { WEIGHTS(meg_xent_fwd_bwd_args) },
        .group = { { "small shapes", fwd_bwd_small, .is_cpu_only = true },
                   { "shapes and types", fwd_bwd_shapes, .num_sms = 1 },
                   { "many rows", fwd_bwd_many_rows, .is_cpu_only = true },
                   { "mask, loss scale and z-loss", fwd_bwd_weights, .num_sms = 1 },
                   { "soft cap", fwd_bwd_softcap, .num_sms = 1 },
                   { "softmax", fwd_bwd_softmax, .num_sms = 1 },
                   { "ignored rows, logits that are not finite, no rows", fwd_bwd_special, .num_sms = 1 } });
