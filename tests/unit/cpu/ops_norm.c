/* ops_norm.c - LayerNorm, RMSNorm and residual addition against f64, gradients against central differences. */
#include "ops.h"

static const int64_t shapes[][2] = { { 1, 1 }, { 2, 3 }, { 7, 33 }, { 70, 130 }, { 9, 768 } };

/*
 * x, dx and skip have the type of the residual stream; y, dy, w and b have the type of sublayers; dw and db have their
 * own type.
 */
struct norm {
    enum meg_norm type;
    int64_t n, h;
    struct meg_mat x, y, dy, dx, skip, w, b, dw, db;
    float *mean, *rstd;
    double *x64, *w64, *b64;
};

static struct norm norm_new(enum meg_norm type, int64_t n, int64_t h, struct mix t, enum meg_dtype grad)
{
    struct norm m = { type,
                      n,
                      h,
                      rnd_mat_of(t.stream, n, h, 0),
                      rnd_mat_of(t.branch, n, h, 2),
                      rnd_mat_of(t.branch, n, h, 1),
                      rnd_mat_of(t.stream, n, h, 3),
                      rnd_mat_of(t.stream, n, h, 4),
                      rnd_mat_of(t.branch, 1, h, 0),
                      rnd_mat_of(t.branch, 1, h, 0),
                      rnd_mat_of(grad, 1, h, 0),
                      rnd_mat_of(grad, 1, h, 0),
                      rnd_new(n),
                      rnd_new(n),
                      NULL,
                      NULL,
                      NULL };
    m.x64 = dense64(m.x);
    m.w64 = dense64(m.w);
    m.b64 = dense64(m.b);
    return m;
}

static void norm_free(struct norm *m)
{
    void *const all[] = { m->x.p,  m->y.p,  m->dy.p, m->dx.p, m->skip.p, m->w.p, m->b.p,
                          m->mean, m->rstd, m->dw.p, m->db.p, m->x64,    m->w64, m->b64 };
    for (size_t i = 0; i < LEN(all); i++)
        free(all[i]);
}

static const double eps = 1e-5;

static void row64(const struct norm *m, int64_t r, double *mean, double *rstd)
{
    const double *x = m->x64 + r * m->h;
    double s = 0.0, s2 = 0.0;
    for (int64_t c = 0; c < m->h; c++)
        s += x[c];
    *mean = meg_norm_is_rms(m->type) ? 0.0 : s / (double)m->h;
    for (int64_t c = 0; c < m->h; c++)
        s2 += (x[c] - *mean) * (x[c] - *mean);
    *rstd = 1.0 / sqrt(s2 / (double)m->h + eps);
}

/* Return the number that is added to each stored weight, 1 for the 1P types. */
static double offset64(const struct norm *m)
{
    return m->type == MEG_NORM_LAYER_1P || m->type == MEG_NORM_RMS_1P ? 1.0 : 0.0;
}

static double y64(const struct norm *m, int64_t r, int64_t c, double mean, double rstd)
{
    return (m->x64[r * m->h + c] - mean) * rstd * (m->w64[c] + offset64(m)) +
           (meg_norm_is_rms(m->type) ? 0.0 : m->b64[c]);
}

static double loss(void *arg)
{
    const struct norm *m = arg;
    double s = 0.0;
    for (int64_t r = 0; r < m->n; r++) {
        double mean, rstd;
        row64(m, r, &mean, &rstd);
        for (int64_t c = 0; c < m->h; c++)
            s += at(m->dy, r, c) * y64(m, r, c, mean, rstd);
    }
    return s;
}

/*
 * Compare mean, rstd and y with f64.  Inputs are below 1, so the error of x - mean is a few half ulps of 1.  It is then
 * multiplied by rstd.
 */
static void check_forward(const struct norm *m)
{
    for (int64_t r = 0; r < m->n; r++) {
        double mean, rstd;
        row64(m, r, &mean, &rstd);
        if (!meg_norm_is_rms(m->type))
            near(m->mean[r], mean, 8 * EPS, "mean", r, 0);
        near(m->rstd[r], rstd, 16 * EPS * rstd * (1.0 + rstd), "rstd", r, 0);
        for (int64_t c = 0; c < m->h; c++)
            near_of(m->y.dtype, at(m->y, r, c), y64(m, r, c, mean, rstd), 16 * EPS * (1.0 + rstd) * (1.0 + offset64(m)),
                    "y", r, c);
    }
}

static void norm_of(const struct meg_ops *ops, struct norm *m)
{
    const int has_b = !meg_norm_is_rms(m->type);
    uint64_t h[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 2 : 1);
        fill_mat(m->dw, NAN);
        fill_mat(m->db, NAN);
        MEG_CALL(ops, NULL, norm_fwd, .type = m->type, .y = m->y, .mean = m->mean, .rstd = m->rstd, .x = m->x,
                 .w = m->w.p, .b = has_b ? m->b.p : NULL, .eps = (float)eps);
        MEG_CALL(ops, NULL, norm_bwd, .type = m->type, .dx = m->dx, .dw = m->dw.p, .db = has_b ? m->db.p : NULL,
                 .grad = m->dw.dtype, .dy = m->dy, .x = m->x, .w = m->w.p, .mean = m->mean, .rstd = m->rstd);
        digest_mat(h + k, m->y);
        digest_mat(h + k, m->dx);
        digest_mat(h + k, m->dw);
        digest_mat(h + k, m->db);
    }
    assert_int_equal(h[0], h[1]);
    check_forward(m);
    if (m->h > 2) { /* rstd of a row of one or two columns is up to 316, which magnifies errors */
        float *dx = dense32(m->dx), *dw = dense32(m->dw), *db = dense32(m->db);
        struct fd f = { loss, m, 0.0, m->dx.dtype };
        double most = 0.0, mean, rstd;
        for (int64_t r = 0; r < m->n; r++) {
            row64(m, r, &mean, &rstd);
            most = fmax(most, rstd);
        }
        f.tol = (32.0 + 2.0 * sqrt((double)m->n)) * EPS * (1.0 + most * most) * (1.0 + offset64(m)) + 1e-7;
        fd_check(&f, m->x64, m->n * m->h, dx, 60, "dx");
        f.tol *= sqrt((double)m->n);
        f.type = m->dw.dtype;
        fd_check(&f, m->w64, m->h, dw, 30, "dw");
        if (has_b)
            fd_check(&f, m->b64, m->h, db, 30, "db");
        free(dx);
        free(dw);
        free(db);
    }
}

static void norm(const struct meg_ops *ops, enum meg_norm type)
{
    for (size_t i = 0; i < LEN(shapes); i++)
        for (size_t t = 0; t < LEN(mixes); t++)
            for (int k = 0; k < 2; k++) {
                struct norm m =
                    norm_new(type, shapes[i][0], shapes[i][1], mixes[t], k ? mixes[t].branch : MEG_DTYPE_F32);
                norm_of(ops, &m);
                norm_free(&m);
            }
}

static void layer_norm(const struct meg_ops *ops)
{
    norm(ops, MEG_NORM_LAYER);
    norm(ops, MEG_NORM_LAYER_1P);
}

static void rms_norm(const struct meg_ops *ops)
{
    norm(ops, MEG_NORM_RMS);
    norm(ops, MEG_NORM_RMS_1P);
}

/* The gradient of the skip connection is added to dx, also in place, and gradients of weights are accumulated. */
static void norm_bwd_adds(const struct meg_ops *ops)
{
    for (size_t t = 0; t < LEN(mixes); t++) {
        struct norm m = norm_new(MEG_NORM_LAYER, 12, 40, mixes[t], MEG_DTYPE_F32);
        struct meg_mat alone = rnd_mat(12, 40, 0), dx = m.skip;
        struct meg_mat dw = rnd_mat_of(mixes[t].branch, 1, 40, 0), db = rnd_mat_of(mixes[t].branch, 1, 40, 0);
        float *skip = dense32(m.skip);
        MEG_CALL(ops, NULL, norm_fwd, .type = MEG_NORM_LAYER, .y = m.y, .mean = m.mean, .rstd = m.rstd, .x = m.x,
                 .w = m.w.p, .b = m.b.p, .eps = (float)eps);
        MEG_CALL(ops, NULL, norm_bwd, .type = MEG_NORM_LAYER, .dx = alone, .dw = m.dw.p, .db = m.db.p,
                 .grad = MEG_DTYPE_F32, .dy = m.dy, .x = m.x, .w = m.w.p, .mean = m.mean, .rstd = m.rstd);
        fill_mat(dw, 1.0f);
        fill_mat(db, 1.0f);
        MEG_CALL(ops, NULL, norm_bwd, .type = MEG_NORM_LAYER, .dx = dx, .dw = dw.p, .db = db.p, .grad = dw.dtype,
                 .skip = dx, .dy = m.dy, .x = m.x, .w = m.w.p, .mean = m.mean, .rstd = m.rstd, .accumulate = true);
        for (int64_t c = 0; c < 40; c++) {
            const double w = at(m.dw, 0, c), b = at(m.db, 0, c);
            near_of(dw.dtype, at(dw, 0, c), 1.0 + w, 8 * EPS * (1.0 + fabs(w)), "dw", 0, c);
            near_of(db.dtype, at(db, 0, c), 1.0 + b, 8 * EPS * (1.0 + fabs(b)), "db", 0, c);
            for (int64_t r = 0; r < 12; r++)
                near_of(dx.dtype, at(dx, r, c), (double)skip[r * 40 + c] + at(alone, r, c),
                        4 * EPS * (1.0 + fabs(at(alone, r, c))), "dx", r, c);
        }
        free(skip);
        free(alone.p);
        free(dw.p);
        free(db.p);
        norm_free(&m);
    }
}

/* Check residual addition with dropout against its definition.  In f32, dy must be exactly dz times the factor. */
static void add_of(const struct meg_ops *ops, int64_t n, int64_t h, float rate, struct mix t)
{
    const int64_t sample[3] = { 5, 1ll << 40, 0 };
    const struct meg_drop d = { rate, 99, 2, MEG_DROP_MLP_OUT, 13, 40, 3, sample, NULL };
    struct meg_mat x = rnd_mat_of(t.stream, n, h, 1), y = rnd_mat_of(t.branch, n, h, 2);
    struct meg_mat z = rnd_mat_of(t.stream, n, h, 0), dz = rnd_mat_of(t.stream, n, h, 0);
    struct meg_mat dy = rnd_mat_of(t.branch, n, h, 3), bias = rnd_mat_of(t.branch, 1, h, 0);
    struct meg_mat db = rnd_mat_of(t.branch, 1, h, 0), sum = rnd_mat_of(t.branch, 1, h, 0);
    float *x0 = dense32(x);
    uint64_t hash[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        fill_mat(db, NAN);
        fill_mat(sum, 4.0f);
        omp_set_num_threads(k ? 2 : 1);
        MEG_CALL(ops, NULL, add_fwd, .z = z, .x = x, .y = y, .bias = bias.p, .drop = &d);
        MEG_CALL(ops, NULL, add_bwd, .dy = dy, .dbias = db.p, .grad = db.dtype, .dz = dz, .drop = &d);
        MEG_CALL(ops, NULL, add_bwd, .dy = dy, .dbias = sum.p, .grad = sum.dtype, .dz = dz, .drop = &d,
                 .accumulate = true);
        digest_mat(hash + k, z);
        digest_mat(hash + k, dy);
        digest_mat(hash + k, db);
    }
    assert_int_equal(hash[0], hash[1]);
    MEG_CALL(ops, NULL, add_fwd, .z = x, .x = x, .y = y, .drop = &d); /* in place, no bias */
    for (int64_t c = 0; c < h; c++) {
        const double tol = (4.0 + 2.0 * sqrt((double)n)) * EPS * 2.0 * (double)n;
        double want = 0.0;
        for (int64_t r = 0; r < n; r++) {
            const double f = drop_factor64(&d, 13 + c, 40 + r / 3, sample[r % 3]), xv = x0[r * h + c];
            near_of(t.stream, at(z, r, c), xv + f * ((double)at(y, r, c) + at(bias, 0, c)), 8 * EPS, "z", r, c);
            near_of(t.stream, at(x, r, c), xv + f * at(y, r, c), 8 * EPS, "z in place", r, c);
            if (t.branch == MEG_DTYPE_F32)
                assert_true(at(dy, r, c) == at(dz, r, c) * (float)f); /* bit for bit */
            near_of(t.branch, at(dy, r, c), at(dz, r, c) * (double)(float)f, EPS * f, "dy", r, c);
            want += at(dy, r, c);
        }
        near_of(t.branch, at(db, 0, c), want, tol, "dbias", 0, c);
        near_of(t.branch, at(sum, 0, c), 4.0 + want, tol + 8 * EPS, "dbias, accumulated", 0, c);
    }
    if (t.branch == t.stream) { /* in place */
        MEG_CALL(ops, NULL, add_bwd, .dy = dz, .dbias = db.p, .grad = db.dtype, .dz = dz, .drop = &d);
        hash[0] = 0;
        digest_mat(hash, z);
        digest_mat(hash, dz);
        digest_mat(hash, db);
        assert_int_equal(hash[0], hash[1]);
    }
    free(x.p);
    free(y.p);
    free(z.p);
    free(dz.p);
    free(dy.p);
    free(bias.p);
    free(db.p);
    free(sum.p);
    free(x0);
}

static void add(const struct meg_ops *ops)
{
    static const float rates[] = { 0.0f, 0.1f, 0.5f };
    for (size_t i = 0; i < LEN(shapes); i++)
        for (size_t p = 0; p < LEN(rates); p++)
            for (size_t t = 0; t < LEN(mixes); t++)
                add_of(ops, shapes[i][0] * 3, shapes[i][1], rates[p], mixes[t]);
}

/* Columns [16, 40) alone, with their global indices, have the same dropout mask as among all columns. */
static void shard_of_columns(const struct meg_ops *ops)
{
    const int64_t sample[2] = { 3, 4 };
    struct meg_drop d = { 0.3f, 7, 0, MEG_DROP_ATTN_OUT, 0, 0, 2, sample, NULL };
    struct meg_mat x = rnd_mat(10, 64, 0), y = rnd_mat(10, 64, 0), z = rnd_mat(10, 64, 0), part = rnd_mat(10, 24, 0);
    struct meg_mat xs = x, ys = y;
    MEG_CALL(ops, NULL, add_fwd, .z = z, .x = x, .y = y, .drop = &d);
    d.unit0 = 16;
    xs.p = (float *)x.p + 16;
    ys.p = (float *)y.p + 16;
    xs.cols = ys.cols = 24;
    MEG_CALL(ops, NULL, add_fwd, .z = part, .x = xs, .y = ys, .drop = &d);
    for (int64_t r = 0; r < 10; r++)
        assert_memory_equal((float *)part.p + r * 24, (float *)z.p + r * 64 + 16, 24 * 4);
    free(x.p);
    free(y.p);
    free(z.p);
    free(part.p);
}

/* add_norm_fwd agrees with add_fwd and norm_fwd, so it computes the norm from the sum rounded to its type. */
static void check_add_norm(const struct meg_ops *ops, enum meg_norm type, struct mix t)
{
    const int64_t sample[1] = { 3 };
    const struct meg_drop d = { 0.2f, 7, 1, MEG_DROP_ATTN_OUT, 0, 0, 1, sample, NULL };
    struct norm m = norm_new(type, 11, 50, t, MEG_DTYPE_F32), n = norm_new(type, 11, 50, t, MEG_DTYPE_F32);
    const void *b = meg_norm_is_rms(type) ? NULL : n.b.p;
    struct meg_mat z = rnd_mat_of(t.stream, 11, 50, 0);
    MEG_CALL(ops, NULL, add_fwd, .z = z, .x = m.x, .y = m.dy, .bias = m.b.p, .drop = &d);
    MEG_CALL(ops, NULL, norm_fwd, .type = type, .y = m.y, .mean = m.mean, .rstd = m.rstd, .x = z, .w = m.w.p, .b = b,
             .eps = (float)eps);
    MEG_CALL(ops, NULL, add_norm_fwd, .type = type, .z = n.x, .y = n.y, .mean = n.mean, .rstd = n.rstd, .x = m.x,
             .sublayer_out = m.dy, .bias = m.b.p, .drop = &d, .w = m.w.p, .b = b, .eps = (float)eps);
    for (int64_t r = 0; r < 11; r++) {
        if (b)
            near(n.mean[r], m.mean[r], 4 * EPS, "mean", r, 0);
        near(n.rstd[r], m.rstd[r], 8 * EPS * m.rstd[r], "rstd", r, 0);
        for (int64_t c = 0; c < 50; c++) {
            near(at(n.x, r, c), at(z, r, c), 0.0, "z", r, c);
            near_of(t.branch, at(n.y, r, c), at(m.y, r, c), 16 * EPS * (1.0 + m.rstd[r]), "y", r, c);
        }
    }
    free(z.p);
    norm_free(&m);
    norm_free(&n);
}

static void add_norm_is_add_then_norm(const struct meg_ops *ops)
{
    for (size_t t = 0; t < LEN(mixes); t++) {
        check_add_norm(ops, MEG_NORM_LAYER, mixes[t]);
        check_add_norm(ops, MEG_NORM_RMS, mixes[t]);
        check_add_norm(ops, MEG_NORM_LAYER_1P, mixes[t]);
        check_add_norm(ops, MEG_NORM_RMS_1P, mixes[t]);
    }
}

static void nan_propagates_of(const struct meg_ops *ops, float bad, struct mix t)
{
    const int64_t sample[1] = { 3 };
    const struct meg_drop d = { 0.9f, 7, 1, MEG_DROP_ATTN_OUT, 0, 0, 1, sample, NULL };
    struct norm m = norm_new(MEG_NORM_LAYER, 5, 50, t, t.branch);
    for (int64_t c = 0; c < 50; c++)
        put(m.dy, 2, c, bad);
    put(m.x, 3, 7, bad);
    MEG_CALL(ops, NULL, norm_fwd, .type = MEG_NORM_LAYER, .y = m.y, .mean = m.mean, .rstd = m.rstd, .x = m.x,
             .w = m.w.p, .b = m.b.p, .eps = (float)eps);
    MEG_CALL(ops, NULL, norm_bwd, .type = MEG_NORM_LAYER, .dx = m.dx, .dw = m.dw.p, .db = m.db.p, .grad = t.branch,
             .dy = m.dy, .x = m.x, .w = m.w.p, .mean = m.mean, .rstd = m.rstd);
    for (int64_t c = 0; c < 50; c++) {
        assert_true(isnan(at(m.y, 3, c)) && isnan(at(m.dx, 3, c)));
        assert_false(isfinite(at(m.dx, 2, c)) || isfinite(at(m.dw, 0, c)) || isfinite(at(m.db, 0, c)));
    }
    MEG_CALL(ops, NULL, add_fwd, .z = m.dx, .x = m.skip, .y = m.dy,
             .drop = &d); /* not finite even where dropout multiplies by 0 */
    for (int64_t c = 0; c < 50; c++)
        assert_false(isfinite(at(m.dx, 2, c)));
    norm_free(&m);
}

static void nan_propagates(const struct meg_ops *ops)
{
    for (size_t t = 0; t < LEN(mixes); t++) {
        nan_propagates_of(ops, NAN, mixes[t]);
        nan_propagates_of(ops, INFINITY, mixes[t]);
    }
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "LayerNorm and its gradients agree with f64", layer_norm },
        { "RMSNorm and its gradients agree with f64", rms_norm },
        { "skip is added and weight gradients are accumulated", norm_bwd_adds },
        { "residual addition with dropout follows its definition", add },
        { "a shard of the columns has the same dropout mask", shard_of_columns },
        { "the fused addition and norm equals the two operations", add_norm_is_add_then_norm },
        { "NaN propagates", nan_propagates },
    };
    return run_cases(cases, LEN(cases));
}
