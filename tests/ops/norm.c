/* norm.c - cases of norm_fwd and norm_bwd: LayerNorm, RMSNorm and their gradients. */
#include "norm.h"

static const struct norm_shape small_shapes[] = {
    { 1, 1, 2 }, { 2, 3, 1 }, { 7, 33, 3 }, { 70, 130, 4 }, { 9, 768, 0 }
};

/* Variants: elements that are NaN or infinite. */
enum { PLAIN, WITH_NAN, WITH_INF };

/* The statistics of a row x [h]. */
struct stats {
    double mean, rstd;
    double most; /* the largest |x|, at least 1: the error of x - mean is a few half ulps of it */
};

static struct stats stats_of(enum meg_norm type, const double *x, int64_t h)
{
    struct stats s = { 0, 0, 1 };
    double sum = 0;

    for (int64_t c = 0; c < h; c++) {
        sum += x[c];
        s.most = fmax(s.most, fabs(x[c]));
    }
    s.mean = meg_norm_is_rms(type) ? 0 : sum / (double)h;
    sum = 0;
    for (int64_t c = 0; c < h; c++)
        sum += (x[c] - s.mean) * (x[c] - s.mean);
    s.rstd = 1 / sqrt(sum / (double)h + (double)NORM_EPS);
    return s;
}

void norm_ref(struct op_call *c, enum meg_norm type, const double *x)
{
    const int64_t n = op_size(c, "n"), h = op_size(c, "h");
    struct op_tensor *const y = op_find(c, "y"), *mean = op_find(c, "mean"), *rstd = op_find(c, "rstd");
    const double *w = op_in(c, "w"), *b = op_in(c, "b"), offset = (double)meg_norm_offset(type, w);

    for (int64_t r = 0; r < n; r++) {
        const struct stats s = stats_of(type, x + r * h, h);

        if (mean && !meg_norm_is_rms(type)) {
            mean->want[r] = s.mean;
            mean->tol[r] = 8 * EPS * s.most;
        }
        rstd->want[r] = s.rstd;
        rstd->tol[r] = 16 * EPS * s.rstd * (1 + s.most * s.rstd);
        for (int64_t k = 0; k < h; k++) {
            y->want[r * h + k] = (x[r * h + k] - s.mean) * s.rstd * ((w ? w[k] : 0) + offset) + (b ? b[k] : 0);
            y->tol[r * h + k] = 16 * EPS * (1 + s.most * s.rstd) * (1 + offset);
        }
    }
}

static void norm_fwd_ref(struct op_call *c)
{
    norm_ref(c, ((const struct meg_norm_fwd_args *)c->args)->type, op_in(c, "x"));
}

void norm_fill(struct op_call *c)
{
    const int64_t n = op_size(c, "n"), h = op_size(c, "h");
    double *x = op_in(c, "x");

    for (int64_t i = 0; x && n > 2 && i < n * h; i++)
        x[i] = x[i] * (double)(1 + i / h % 3) + (double)(i / h % 4);
}

static void norm_fwd_fill(struct op_call *c)
{
    norm_fill(c);
    if (c->variant)
        op_in(c, "x")[3 * op_size(c, "h") + 7] = c->variant == WITH_NAN ? NAN : INFINITY;
}

static void norm_bwd_fill(struct op_call *c)
{
    const struct meg_norm_bwd_args *a = c->args;
    const int64_t n = op_size(c, "n"), h = op_size(c, "h");
    double *x = op_in(c, "x"), *mean = op_in(c, "mean"), *rstd = op_in(c, "rstd"), *dy = op_in(c, "dy");

    norm_fill(c);
    if (c->variant)
        x[3 * h + 7] = c->variant == WITH_NAN ? NAN : INFINITY;
    for (int64_t k = 0; c->variant && k < h; k++)
        dy[2 * h + k] = c->variant == WITH_NAN ? NAN : INFINITY;
    if (!x)
        return;
    op_round(c);
    for (int64_t r = 0; r < n; r++) {
        const struct stats s = stats_of(a->type, x + r * h, h);

        rstd[r] = s.rstd;
        if (mean)
            mean[r] = s.mean;
    }
}

static void norm_bwd_ref(struct op_call *c)
{
    const struct meg_norm_bwd_args *a = c->args;
    const int64_t n = op_size(c, "n"), h = op_size(c, "h");
    const double *x = op_in(c, "x"), *dy = op_in(c, "dy"), *w = op_in(c, "w"), *skip = op_in(c, "skip");
    struct op_tensor *const dx = op_find(c, "dx"), *dw = op_find(c, "dw"), *db = op_find(c, "db");
    const double offset = (double)meg_norm_offset(a->type, w);
    double most = 0;

    for (int64_t k = 0; dw && k < h; k++) {
        dw->want[k] = 0;
        if (db)
            db->want[k] = 0;
    }
    for (int64_t r = 0; r < n; r++) {
        const struct stats s = stats_of(a->type, x + r * h, h);
        double sum = 0, sum_x = 0; /* of the gradient g of the normalized row, and of g times this row */
        const double tol = (32 + 2 * sqrt((double)n)) * EPS * (1 + s.rstd * s.rstd) * (1 + offset) * s.most + 1e-7;

        for (int64_t k = 0; k < h; k++) {
            const double xn = (x[r * h + k] - s.mean) * s.rstd, d = dy[r * h + k];

            sum += meg_norm_is_rms(a->type) ? 0 : d * ((w ? w[k] : 0) + offset);
            sum_x += d * ((w ? w[k] : 0) + offset) * xn;
            if (dw)
                dw->want[k] += d * xn;
            if (db)
                db->want[k] += d;
        }
        for (int64_t k = 0; k < h; k++) {
            const double xn = (x[r * h + k] - s.mean) * s.rstd, g = dy[r * h + k] * ((w ? w[k] : 0) + offset);

            dx->want[r * h + k] =
                s.rstd * (g - sum / (double)h - xn * sum_x / (double)h) + (skip ? skip[r * h + k] : 0);
            dx->tol[r * h + k] = tol;
        }
        most = fmax(most, tol);
    }
    for (int64_t k = 0; dw && k < h; k++) {
        dw->tol[k] = most * sqrt((double)n);
        if (db)
            db->tol[k] = most * sqrt((double)n);
    }
}

static void norm_fwd_one(int variant, int type, struct op_mix t, struct norm_shape s)
{
    const struct norm_type *norm = &norm_types[type];

    OP_CASE(norm_fwd, variant, .type = norm->type, .y = op_mat(t.branch, s.n, s.h, s.pad), .mean = ON,
            .x = op_mat(t.stream, s.n, s.h, s.pad), .w = norm->w, .b = norm->b, .eps = NORM_EPS);
}

static void norm_fwd_types(void)
{
    for (size_t i = 0; i < LEN(small_shapes); i++)
        for (int k = 0; k < NORM_TYPES * OP_MIXES; k++)
            norm_fwd_one(PLAIN, k % NORM_TYPES, op_mixes[k / NORM_TYPES], small_shapes[i]);
}

static void norm_fwd_shapes(void)
{
    for (int i = 0; i < (int)LEN(norm_shapes); i++)
        for (int type = 0; type < NORM_TYPES; type++)
            norm_fwd_one(PLAIN, type, op_mixes[(i + type) % OP_MIXES], norm_shapes[i]);
}

static void norm_fwd_long(void)
{
    for (int i = 0; i < (int)LEN(norm_long_shapes); i++)
        norm_fwd_one(PLAIN, i % NORM_TYPES, op_mixes[i % OP_MIXES], norm_long_shapes[i]);
}

/* There are more rows than a grid has blocks, so that a block processes several rows. */
static void norm_fwd_many_rows(void)
{
    static const struct norm_shape steps[] = { { 2200, 8, 0 }, { 1100, 9, 0 }, { 140, 4104, 0 }, { 300, 1025, 0 } };

    for (size_t i = 0; i < LEN(steps); i++)
        norm_fwd_one(PLAIN, MEG_NORM_LAYER, op_mixes[0], steps[i]);
}

/* Combinations of types that only the kernels for `general` types support (cuda/row.h). */
static const struct op_mix other_mixes[] = { { MEG_DTYPE_BF16, MEG_DTYPE_F32 },
                                             { MEG_DTYPE_F16, MEG_DTYPE_BF16 },
                                             { MEG_DTYPE_BF16, MEG_DTYPE_F16 } };

static void norm_fwd_other(void)
{
    for (int i = 0; i < (int)LEN(other_mixes); i++)
        norm_fwd_one(PLAIN, i, other_mixes[i], (struct norm_shape){ 5, 128, 0 });
    norm_fwd_one(PLAIN, MEG_NORM_LAYER, op_mixes[1], (struct norm_shape){ 0, 40, 0 });
}

/* Tensor i of x, y, w and dy begins at an address that is not a multiple of 16. */
static void norm_fwd_unaligned(void)
{
    for (int i = 0; i < 4; i++) {
        const struct op_mix t = op_mixes[1 + i % 2];
        struct meg_mat x = op_mat(t.stream, 3, 256, 8), y = op_mat(t.branch, 3, 256, 8);

        x.p = OFFSET(i == 0 ? 2 : 0);
        y.p = OFFSET(i == 1 ? 2 : 0);
        OP_CASE(norm_fwd, PLAIN, .type = MEG_NORM_LAYER, .y = y, .mean = ON, .x = x, .w = OFFSET(i == 2 ? 2 : 0),
                .b = ON, .eps = NORM_EPS);
    }
}

static void norm_fwd_not_finite(void)
{
    for (int i = 0; i < OP_MIXES; i++) {
        norm_fwd_one(WITH_NAN, MEG_NORM_LAYER, op_mixes[i], (struct norm_shape){ 5, 50, 0 });
        norm_fwd_one(WITH_INF, MEG_NORM_LAYER, op_mixes[i], (struct norm_shape){ 5, 50, 0 });
    }
}

static void norm_fwd_bench(void)
{
    for (size_t i = 0; i < LEN(norm_bench_shapes); i++)
        norm_fwd_one(PLAIN, MEG_NORM_LAYER, op_mixes[1], norm_bench_shapes[i]);
}

OP_TEST(norm_fwd, .fill = norm_fwd_fill, .ref = norm_fwd_ref, .bench = norm_fwd_bench,
        .group = { { "types", norm_fwd_types, .is_cpu_only = true },
                   { "rows of all lengths", norm_fwd_shapes },
                   { "long rows", norm_fwd_long },
                   { "many rows", norm_fwd_many_rows },
                   { "other types, no rows", norm_fwd_other },
                   { "unaligned matrices", norm_fwd_unaligned },
                   { "NaN and infinity", norm_fwd_not_finite } });

/* Without skip, with skip in memory of its own, and with a skip that may also be dx. */
enum skip { NO_SKIP, SKIP, SKIP_AS_DX };

static void norm_bwd_one(int variant, int type, struct op_mix t, struct norm_shape s, enum skip skip,
                         enum meg_dtype grad, bool accumulate)
{
    struct meg_mat skips = op_mat(t.stream, s.n, s.h, skip == SKIP_AS_DX ? s.pad : s.pad + 8);

    const struct norm_type *norm = &norm_types[type];

    OP_CASE(norm_bwd, variant, .type = norm->type, .dx = op_mat(t.stream, s.n, s.h, s.pad), .dw = norm->w,
            .db = norm->b, .grad = grad, .skip = skip ? skips : meg_no_mat(), .dy = op_mat(t.branch, s.n, s.h, s.pad),
            .x = op_mat(t.stream, s.n, s.h, s.pad), .w = norm->w, .mean = ON, .accumulate = accumulate);
}

static void norm_bwd_types(void)
{
    for (size_t i = 0; i < LEN(small_shapes); i++)
        for (int k = 0; k < NORM_TYPES * OP_MIXES; k++)
            for (int g = 0; g < 2; g++) {
                const struct op_mix t = op_mixes[k / NORM_TYPES];

                norm_bwd_one(PLAIN, k % NORM_TYPES, t, small_shapes[i], small_shapes[i].h == 1 ? SKIP : NO_SKIP,
                             g ? t.branch : MEG_DTYPE_F32, false);
            }
}

static void norm_bwd_adds(void)
{
    for (int i = 0; i < OP_MIXES; i++)
        norm_bwd_one(PLAIN, MEG_NORM_LAYER, op_mixes[i], (struct norm_shape){ 12, 40, 0 }, SKIP_AS_DX,
                     op_mixes[i].branch, true);
}

static void norm_bwd_shapes(void)
{
    for (int i = 0; i < (int)LEN(norm_shapes); i++)
        for (int type = 0; type < NORM_TYPES; type++) {
            const int k = i + type;

            /* The gradient of a row of one element is 0, so rounding errors are all that would be compared. */
            norm_bwd_one(PLAIN, type, op_mixes[k % OP_MIXES], norm_shapes[i],
                         norm_shapes[i].h == 1 ? SKIP : (enum skip)(k % 3), (enum meg_dtype)(k / 2 % OP_FLOATS), k % 2);
        }
}

static void norm_bwd_long(void)
{
    for (int i = 0; i < (int)LEN(norm_long_shapes); i++)
        norm_bwd_one(PLAIN, (i + 1) % NORM_TYPES, op_mixes[i % OP_MIXES], norm_long_shapes[i], (enum skip)((i + 2) % 3),
                     (enum meg_dtype)(i % OP_FLOATS), i % 2);
}

/* There are more rows than the blocks of a grid process at a time. */
static void norm_bwd_many_rows(void)
{
    static const struct norm_shape steps[] = {
        { 95, 24, 0 }, { 47, 300, 0 }, { 31, 1024, 0 }, { 13, 1040, 0 }, { 9, 8200, 0 }
    };

    for (int i = 0; i < (int)LEN(steps); i++)
        norm_bwd_one(PLAIN, i % 2 ? MEG_NORM_RMS : MEG_NORM_LAYER, op_mixes[(i + 1) % OP_MIXES], steps[i], SKIP,
                     MEG_DTYPE_F32, false);
}

static void norm_bwd_other(void)
{
    for (int i = 0; i < (int)LEN(other_mixes); i++)
        OP_CASE(norm_bwd, PLAIN, .type = norm_types[i].type, .dx = op_mat(other_mixes[i].stream, 5, 128, 0), .dw = ON,
                .db = norm_types[i].b, .skip = op_mat((enum meg_dtype)i, 5, 128, 0),
                .dy = op_mat(other_mixes[i].branch, 5, 128, 0), .x = op_mat(other_mixes[i].stream, 5, 128, 0), .w = ON,
                .mean = ON);
    for (int accumulate = 0; accumulate < 2; accumulate++)
        norm_bwd_one(PLAIN, MEG_NORM_LAYER, op_mixes[1], (struct norm_shape){ 0, 40, 0 }, SKIP, MEG_DTYPE_F32,
                     accumulate);
}

static void norm_bwd_unaligned(void)
{
    for (int i = 0; i < 4; i++) {
        const struct op_mix t = op_mixes[1 + i % 2];
        struct meg_mat x = op_mat(t.stream, 3, 256, 8), dy = op_mat(t.branch, 3, 256, 8);

        x.p = OFFSET(i == 0 ? 2 : 0);
        dy.p = OFFSET(i == 3 ? 2 : 0);
        OP_CASE(norm_bwd, PLAIN, .type = MEG_NORM_LAYER, .dx = op_mat(t.stream, 3, 256, 8), .dw = ON, .db = ON,
                .skip = op_mat(t.stream, 3, 256, 8), .dy = dy, .x = x, .w = OFFSET(i == 2 ? 2 : 0), .mean = ON);
    }
}

static void norm_bwd_frozen(void)
{
    for (int k = 0; k < NORM_TYPES * OP_MIXES; k++) {
        const struct op_mix t = op_mixes[k / NORM_TYPES];

        OP_CASE(norm_bwd, PLAIN, .type = norm_types[k % NORM_TYPES].type, .dx = op_mat(t.stream, 7, 33, 3),
                .dy = op_mat(t.branch, 7, 33, 3), .x = op_mat(t.stream, 7, 33, 3), .w = norm_types[k % NORM_TYPES].w,
                .mean = ON);
    }
}

static void norm_bwd_not_finite(void)
{
    for (int i = 0; i < OP_MIXES; i++) {
        norm_bwd_one(WITH_NAN, MEG_NORM_LAYER, op_mixes[i], (struct norm_shape){ 5, 50, 0 }, NO_SKIP,
                     op_mixes[i].branch, false);
        norm_bwd_one(WITH_INF, MEG_NORM_LAYER, op_mixes[i], (struct norm_shape){ 5, 50, 0 }, NO_SKIP,
                     op_mixes[i].branch, false);
    }
}

static void norm_bwd_bench(void)
{
    for (size_t i = 0; i < LEN(norm_bench_shapes); i++)
        norm_bwd_one(PLAIN, MEG_NORM_LAYER, op_mixes[1], norm_bench_shapes[i], SKIP, MEG_DTYPE_F32, true);
}

OP_TEST(norm_bwd, .fill = norm_bwd_fill, .ref = norm_bwd_ref, .grad_of = &op_test_norm_fwd, .added = "dw db",
        .bench = norm_bwd_bench,
        .group = { { "types", norm_bwd_types, .is_cpu_only = true },
                   { "skip in place, gradients are added", norm_bwd_adds },
                   { "rows of all lengths", norm_bwd_shapes },
                   { "long rows", norm_bwd_long },
                   { "many rows", norm_bwd_many_rows },
                   { "other types, no rows", norm_bwd_other },
                   { "unaligned matrices", norm_bwd_unaligned },
                   { "frozen weights", norm_bwd_frozen },
                   { "NaN and infinity", norm_bwd_not_finite } });
