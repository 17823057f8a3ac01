/* xent.c - cases of xent_partial and xent_combine: cross-entropy. */
#include "xent.h"

int32_t xent_target[XENT_MAX_ROWS];
int64_t xent_num_high;

void xent_split_targets(int64_t n, int64_t v)
{
    for (int64_t r = 0; r < n; r++)
        xent_target[r] = (int32_t)(r == 0   ? XENT_V0 + v - 1
                                   : r == 1 ? XENT_V0
                                   : r == 2 ? XENT_V0 - 1
                                   : r == 3 ? XENT_V0 + v
                                   : r == 4 ? -1
                                            : XENT_V0 + op_below(v));
}

static void set(struct op_tensor *x, int64_t r, int64_t c, double v)
{
    if (r < x->size[0] && c < x->size[1])
        x->v[r * x->size[1] + c] = v;
}

void xent_fill(struct op_call *c)
{
    struct op_tensor *const x = op_find(c, "logits"), *const t = op_find(c, "target");
    struct op_tensor *const scale = op_find(c, "weight.scale"), *const loss_scale = op_find(c, "weight.loss_scale");
    struct op_tensor *const mask = op_find(c, "weight.mask");

    for (int64_t r = 0; t && r < t->numel; r++)
        t->v[r] = xent_target[r % XENT_MAX_ROWS];
    if (scale)
        *scale->v = c->variant == POWERS ? 0.25 : 0.37;
    if (mask && c->variant != POWERS && mask->numel > 1)
        mask->v[1] = 0;
    for (int64_t r = 0; mask && c->variant == POWERS && r < mask->numel; r++)
        mask->v[r] = ldexp(1, (int)(r % 3) - 1);
    if (loss_scale)
        *loss_scale->v = 1024;
    for (int64_t i = 0; x->v && i < x->numel; i++) {
        const int64_t v = x->size[1], r = i / v, k = i % v;

        if (c->variant == BIG)
            x->v[i] = 60 * x->v[i] - 300 * (double)(r % 2);
        if (c->variant == RISING || c->variant == POWERS)
            x->v[i] = 4 * x->v[i] + 3 * (double)k / (double)v + 100 * (double)(r % 3 - 1);
        if (c->variant == COUNTED)
            x->v[i] = xent_num_high == 0 ? 0 : k % 1000 == 0 && k / 1000 < xent_num_high ? 12 : -100;
        if (c->variant == INFINITE && ((r == 0 && k != 2999) || (r == 1 && k < 2048) || (r == 2 && k == 17)))
            x->v[i] = -INFINITY;
        if (c->variant == NOT_FINITE && (r == 4 || (r == 3 && k != 2499) || (r == 5 && k > 4)))
            x->v[i] = -INFINITY;
        if (c->variant == IGNORED && xent_target[r] < 0)
            x->v[i] = k % 2 ? NAN : INFINITY;
    }
    if (c->variant == NOT_FINITE) {
        set(x, 0, 2499, NAN);
        set(x, 1, 0, NAN);
        set(x, 2, 1200, INFINITY);
    }
}

double xent_lse(const double *x, int64_t v)
{
    double most = -INFINITY, sum = 0;

    for (int64_t k = 0; k < v; k++)
        most = fmax(most, x[k]);
    for (int64_t k = 0; k < v; k++)
        sum += exp(x[k] - most);
    return most + log(sum);
}

/* ---- xent_partial ---- */

static void partial_ref(struct op_call *c)
{
    const int64_t v0 = ((const struct meg_xent_partial_args *)c->args)->v0, n = op_size(c, "n"), v = op_size(c, "v");
    const double *x = op_in(c, "logits"), *id = op_in(c, "target");
    struct op_tensor *part = op_find(c, "part");

    for (int64_t r = 0; r < n; r++) {
        const int64_t t = (int64_t)id[r] - v0;

        part->want[r] = xent_lse(x + r * v, v);
        part->tol[r] = 4 * EPS * (fabs(part->want[r]) + 1) + (c->variant == COUNTED ? 0 : xent_sum_error(v));
        part->want[n + r] = t >= 0 && t < v ? x[r * v + t] : 0;
    }
}

static void partial_one(int variant, enum meg_dtype t, int64_t n, int64_t v, int64_t pad)
{
    OP_CASE(xent_partial, variant, .logits = op_mat(t, n, v, pad), .v0 = XENT_V0);
}

static void partial_shapes(void)
{
    for (int t = 0; t < OP_FLOATS; t++)
        for (size_t i = 0; i < LEN(xent_shapes); i++) {
            xent_split_targets(XENT_ROWS, xent_shapes[i].v);
            partial_one(RISING, (enum meg_dtype)t, XENT_ROWS, xent_shapes[i].v, xent_shapes[i].pad);
        }
}

/* The sum of exponentials is the exact number of logits, so that each of them changes the result. */
static void partial_counts(void)
{
    xent_split_targets(1, 9001);
    for (int t = 0; t < OP_FLOATS; t++)
        for (xent_num_high = 0; xent_num_high <= 10; xent_num_high++)
            partial_one(COUNTED, (enum meg_dtype)t, 1, 9001, 7);
}

static void partial_special(void)
{
    xent_split_targets(6, 3000);
    partial_one(INFINITE, MEG_DTYPE_F32, 3, 3000, 0);
    for (int t = 0; t < OP_FLOATS; t++)
        partial_one(NOT_FINITE, (enum meg_dtype)t, 4, 2500, 4);
    partial_one(SMALL, MEG_DTYPE_BF16, 0, 10, 0);
}

/* The CPU sums 17003 exponentials in f32. */
static double partial_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c, (void)t;
    return 4e-5;
}

static void partial_bench(void)
{
    OP_CASE(xent_partial, SMALL, .logits = op_mat(MEG_DTYPE_BF16, 16384, 50304, 0));
}

OP_TEST(xent_partial, .fill = xent_fill, .ref = partial_ref, .cuda = partial_cuda, .bench = partial_bench,
        .group = { { "shapes and types", partial_shapes },
                   { "each logit counts once", partial_counts },
                   { "logits that are not finite, no rows", partial_special } });

/* ---- xent_combine ---- */

static void combine_fill(struct op_call *c)
{
    const int64_t n = op_size(c, "n"), nparts = op_size(c, "nparts");
    double *part = op_in(c, "part");

    for (int64_t i = 0; i < 2 * nparts * n; i++)
        part[i] *= i / n % 2 ? 1 : 60;
    if (nparts > 1 && n > 0)
        part[0] = -INFINITY;
    for (int64_t r = 0; r < n; r++)
        op_in(c, "target")[r] = (double)(op_below(5) - 1);
}

static void combine_ref(struct op_call *c)
{
    const struct meg_xent_combine_args *a = c->args;
    const double *part = op_in(c, "part"), z = (double)a->z_loss;
    struct op_tensor *const loss = op_find(c, "loss"), *lse = op_find(c, "lse");

    for (int64_t r = 0; r < a->n; r++) {
        double x[8], l, logit = 0, size = 0;

        for (int64_t i = 0; i < a->nparts; i++) {
            x[i] = part[2 * a->n * i + r];
            logit += part[2 * a->n * i + a->n + r];
            size += fabs(part[2 * a->n * i + a->n + r]);
        }
        lse->want[r] = l = xent_lse(x, a->nparts);
        lse->tol[r] = 4 * EPS * (fabs(l) + 1);
        loss->want[r] = op_in(c, "target")[r] < 0 ? 0 : l - logit + z * l * l;
        loss->tol[r] = op_in(c, "target")[r] < 0 ? 0 : 8 * EPS * (fabs(l) + size + z * l * l);
    }
}

static void combine_parts(void)
{
    static const int64_t lengths[] = { 0, 1, 127, 129, 400 };

    for (size_t i = 0; i < LEN(lengths); i++)
        for (int64_t nparts = 1; nparts <= 3; nparts++)
            for (int z = 0; z < 2; z++)
                OP_CASE(xent_combine, 0, .nparts = nparts, .n = lengths[i], .z_loss = z ? 0.03f : 0);
}

static double combine_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c, (void)t;
    return 1e-6;
}

OP_TEST(xent_combine, .fill = combine_fill, .ref = combine_ref, .cuda = combine_cuda,
        .group = { { "parts and z-loss", combine_parts } });
