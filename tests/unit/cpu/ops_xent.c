/* ops_xent.c - cross-entropy against f64, its gradient against central differences. */
#include "ops.h"

static const float Z = 1e-3f; /* coefficient of the z-loss */

struct xent {
    int64_t n, v;
    double *x;
    int32_t *target;
    float *weight, z_loss;
};

static double row64(const struct xent *a, int64_t r, double *lse)
{
    const double *x = a->x + r * a->v;
    double m = x[0], s = 0.0;
    for (int64_t c = 0; c < a->v; c++)
        m = fmax(m, x[c]);
    for (int64_t c = 0; c < a->v; c++)
        s += exp(x[c] - m);
    *lse = m + log(s);
    return a->target[r] < 0 ? 0 : *lse - x[a->target[r]] + (double)a->z_loss * *lse * *lse;
}

static double loss(void *arg)
{
    const struct xent *a = arg;
    double s = 0.0, lse;
    for (int64_t r = 0; r < a->n; r++)
        s += a->weight[r] * row64(a, r, &lse);
    return s;
}

static void unsharded(const struct meg_ops *ops, float *loss_of, float *lse, struct meg_mat logits,
                      const int32_t *target, float z_loss)
{
    float *part = rnd_new(2 * logits.rows);

    MEG_CALL(ops, NULL, xent_partial, .part = part, .logits = logits, .target = target);
    MEG_CALL(ops, NULL, xent_combine, .loss = loss_of, .lse = lse, .part = part, .target = target, .nparts = 1,
             .n = logits.rows, .z_loss = z_loss);
    free(part);
}

/* Check loss and gradient of logits [n,v] of type t.  The gradient overwrites the logits, so it has type t, too. */
static void xent_of(const struct meg_ops *ops, int64_t n, int64_t v, int big, enum meg_dtype t, float z_loss)
{
    struct meg_mat x = rnd_mat_of(t, n, v, 3), y = x;
    struct xent a = { n, v, NULL, zeros(n, 4), rnd_new(n), z_loss };
    float *got = rnd_new(n), *lse = rnd_new(n), *grad = NULL;
    uint64_t h[2] = { 0, 0 };
    for (int64_t r = 0; r < n; r++) {
        a.target[r] = r % 4 == 2 ? -1 : (int32_t)((r * 17 + 5) % v); /* -1: ignored */
        for (int64_t c = 0; big && c < v; c++)                       /* values up to 60, or around -300 */
            put(x, r, c, 60.0f * at(x, r, c) - 300.0f * (float)(r % 2));
    }
    a.x = dense64(x);
    for (int k = 0; k < 2; k++) {
        const size_t nbytes = (size_t)(n * x.ld) * meg_dtype_size(t);
        omp_set_num_threads(k ? 2 : 1);
        y.p = memcpy(malloc(nbytes), x.p, nbytes);
        unsharded(ops, got, lse, y, a.target, z_loss);
        digest(h + k, got, (size_t)n * 4);
        MEG_CALL(ops, NULL, xent_bwd, .logits = y, .lse = lse, .target = a.target, .z_loss = z_loss,
                 .weight = (struct meg_loss_weight){ a.weight, NULL, NULL });
        digest_mat(h + k, y);
        free(grad);
        grad = dense32(y);
        free(y.p);
    }
    assert_int_equal(h[0], h[1]);
    for (int64_t r = 0; r < n; r++) {
        /* adding v terms one by one has a standard error of sqrt(v)/3 EPS, because each partial sum is rounded */
        const double sum_error = 2 * sqrt((double)v) * EPS;
        double l, want = row64(&a, r, &l);
        near(lse[r], l, 4 * EPS * (fabs(l) + 1.0) + sum_error, "lse", r, 0);
        near(got[r], want,
             8 * EPS * (fabs(l) + 1.0 + (double)z_loss * l * l) + sum_error * (1.0 + 2 * (double)z_loss * fabs(l)),
             "loss", r, 0);
        for (int64_t c = 0; a.target[r] < 0 && c < v; c++)
            assert_true(grad[r * v + c] == 0.0f);
    }
    { /* the relative error of probabilities is the absolute error of lse; z-loss multiplies probabilities */
        const double most = big ? 360 : 10;
        struct fd f = { loss, &a, (big ? 8 * 360.0 : 16.0) * EPS * (1 + 2 * (double)z_loss * most) + 1e-8, t };
        fd_check(&f, a.x, n * v, grad, 100, "dlogits");
    }
    free(x.p);
    free(a.x);
    free(a.target);
    free(a.weight);
    free(got);
    free(lse);
    free(grad);
}

static void xent(const struct meg_ops *ops)
{
    static const int64_t shapes[][2] = { { 1, 1 }, { 3, 2 }, { 5, 63 }, { 4, 64 }, { 9, 131 }, { 3, 5000 } };
    for (size_t i = 0; i < LEN(shapes); i++)
        for (int big = 0; big < 2; big++)
            for (int t = MEG_DTYPE_F32; t <= MEG_DTYPE_F16; t++)
                for (int z = 0; z < 2; z++)
                    xent_of(ops, shapes[i][0], shapes[i][1], big, (enum meg_dtype)t, z ? 1e-2f : 0);
}

static void nan_propagates_of(const struct meg_ops *ops, enum meg_dtype t)
{
    const float bad[] = { NAN, INFINITY };
    for (size_t i = 0; i < LEN(bad); i++)
        for (int64_t c = 0; c < 130; c += 43) {
            struct meg_mat x = rnd_mat_of(t, 2, 130, 0);
            const int32_t target[2] = { 1, 1 };
            const float weight[2] = { 1.0f, 1.0f };
            float loss_of[2], lse[2];
            put(x, 0, c, bad[i]);
            unsharded(ops, loss_of, lse, x, target, Z);
            assert_true(isnan(loss_of[0]) && isfinite(loss_of[1]));
            MEG_CALL(ops, NULL, xent_bwd, .logits = x, .lse = lse, .target = target, .z_loss = Z,
                     .weight = (struct meg_loss_weight){ weight, NULL, NULL });
            assert_true(isnan(at(x, 0, 5)) && isfinite(at(x, 1, 5)));
            free(x.p);
        }
}

static void nan_propagates(const struct meg_ops *ops)
{
    for (int t = MEG_DTYPE_F32; t <= MEG_DTYPE_F16; t++)
        nan_propagates_of(ops, (enum meg_dtype)t);
}

/*
 * The logits have 131 columns in three shards, one of which has a single column.  Loss and gradient of the shards equal
 * those of the unsharded logits.
 */
static void shards_of_the_vocabulary(const struct meg_ops *ops)
{
    enum { N = 9, V = 131 };
    static const int64_t v0[] = { 0, 60, 61, V };
    struct meg_mat x = rnd_mat(N, V, 3), kept = x;
    float loss_of[N], lse[N], joined[N], joined_lse[N], part[3][2 * N], *weight = rnd_new(N);
    int32_t target[N];

    kept.p = copy_new(x.p, N * x.ld);
    for (int r = 0; r < N; r++)
        target[r] = r == 4 ? -1 : (int32_t)((r * 17 + 60) % V);
    unsharded(ops, loss_of, lse, x, target, Z);
    for (int k = 0; k < 3; k++) {
        struct meg_mat y = x;

        y.p = (float *)x.p + v0[k];
        y.cols = v0[k + 1] - v0[k];
        MEG_CALL(ops, NULL, xent_partial, .part = part[k], .logits = y, .target = target, .v0 = v0[k]);
    }
    MEG_CALL(ops, NULL, xent_combine, .loss = joined, .lse = joined_lse, .part = part[0], .target = target, .nparts = 3,
             .n = N, .z_loss = Z);
    for (int r = 0; r < N; r++) {
        near(joined_lse[r], lse[r], 4 * EPS * 6, "lse", r, 0);
        near(joined[r], loss_of[r], 8 * EPS * 6, "loss", r, 0);
    }
    MEG_CALL(ops, NULL, xent_bwd, .logits = kept, .lse = lse, .target = target, .z_loss = Z,
             .weight = (struct meg_loss_weight){ weight, NULL, NULL });
    for (int k = 0; k < 3; k++) {
        struct meg_mat y = x;

        y.p = (float *)x.p + v0[k];
        y.cols = v0[k + 1] - v0[k];
        MEG_CALL(ops, NULL, xent_bwd, .logits = y, .lse = lse, .target = target, .v0 = v0[k], .z_loss = Z,
                 .weight = (struct meg_loss_weight){ weight, NULL, NULL });
    }
    for (int r = 0; r < N; r++)
        for (int c = 0; c < V; c++)
            near(at(x, r, c), at(kept, r, c), 8 * EPS, "dlogits", r, c);
    free(x.p);
    free(kept.p);
    free(weight);
}

/* The gradient is multiplied by scale, *loss_scale and the mask; without them, by 1. */
static void weights_are_products(const struct meg_ops *ops)
{
    enum { N = 4, V = 37 };
    static const float mask[N] = { 1, 0, 1, 0.5f };
    static const int32_t target[N] = { 3, 36, 0, 7 };
    const double scale = 0.25, negative = -0.25, loss_scale = 1024;
    const struct meg_loss_weight one = { NULL, NULL, NULL }, all = { mask, &scale, &loss_scale };
    struct meg_mat x = rnd_mat(N, V, 0), y = x;
    float loss_of[N], lse[N];
    double sum = 1;

    y.p = copy_new(x.p, N * x.ld);
    unsharded(ops, loss_of, lse, x, target, Z);
    MEG_CALL(ops, NULL, xent_bwd, .logits = x, .lse = lse, .target = target, .z_loss = Z, .weight = one);
    MEG_CALL(ops, NULL, xent_bwd, .logits = y, .lse = lse, .target = target, .z_loss = Z, .weight = all);
    for (int r = 0; r < N; r++)
        for (int c = 0; c < V; c++)
            assert_true(at(y, r, c) == 256 * mask[r] * at(x, r, c));
    MEG_CALL(ops, NULL, weighted_sum, .out = &sum, .x = loss_of, .n = N);
    assert_true(sum == 1 + ((double)loss_of[0] + loss_of[1] + loss_of[2] + loss_of[3]));
    sum = 0;
    MEG_CALL(ops, NULL, weighted_sum, .out = &sum, .x = loss_of, .weight = mask, .n = N);
    assert_true(sum == (double)loss_of[0] + loss_of[2] + 0.5 * loss_of[3]);
    MEG_CALL(ops, NULL, weighted_sum, .out = &sum, .x = loss_of, .weight = mask, .n = N, .scale = &negative);
    assert_true(sum == 0.75 * ((double)loss_of[0] + loss_of[2] + 0.5 * loss_of[3]));
    loss_of[1] = NAN;
    MEG_CALL(ops, NULL, weighted_sum, .out = &sum, .x = loss_of, .weight = mask, .n = N);
    assert_true(isnan(sum));
    free(x.p);
    free(y.p);
}

/* There are more rows than xent_fwd_bwd processes at once. */
static void fwd_bwd_is_fused(const struct meg_ops *ops)
{
    enum { N = 2500, V = 67 };
    static const double scale = 0.37, loss_scale = 3;

    for (int i = 0; i < 16; i++)
        for (int t = MEG_DTYPE_F32; t <= MEG_DTYPE_F16; t++) {
            const struct meg_mat x = rnd_mat_of((enum meg_dtype)t, N, V, 3);
            const size_t nbytes = (size_t)(N * x.ld) * meg_dtype_size(x.dtype);
            const float z_loss = i & 1 ? Z : 0;
            float *mask = rnd_new(N), *want = rnd_new(N), *got = rnd_new(N), *lse = rnd_new(N);
            int32_t *target = zeros(N, sizeof *target);
            const struct meg_loss_weight weight = { i & 2 ? mask : NULL, i & 8 ? &scale : NULL,
                                                    i & 4 ? &loss_scale : NULL };
            struct meg_mat y = x;

            y.p = memcpy(malloc(nbytes), x.p, nbytes);
            for (int r = 0; r < N; r++)
                target[r] = r % 9 == 4 ? -1 : r * 17 % V;
            unsharded(ops, want, lse, x, target, z_loss);
            MEG_CALL(ops, NULL, xent_bwd, .logits = x, .lse = lse, .target = target, .z_loss = z_loss,
                     .weight = weight);
            MEG_CALL(ops, NULL, xent_fwd_bwd, .loss = got, .logits = y, .target = target, .z_loss = z_loss,
                     .weight = weight);
            assert_memory_equal(got, want, N * sizeof *got);
            assert_memory_equal(y.p, x.p, nbytes);
            free(x.p);
            free(y.p);
            free(mask);
            free(want);
            free(got);
            free(lse);
            free(target);
        }
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "loss, log-sum-exp and gradient agree with f64", xent },
        { "shards of the vocabulary combine to the unsharded loss", shards_of_the_vocabulary },
        { "weights are products of scale, loss scale and mask", weights_are_products },
        { "NaN propagates to loss and gradient", nan_propagates },
        { "xent_fwd_bwd equals xent_partial, xent_combine and xent_bwd bit for bit", fwd_bwd_is_fused },
    };
    return run_cases(cases, LEN(cases));
}
