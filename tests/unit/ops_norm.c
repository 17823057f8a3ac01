/* Layer norm, RMS norm and the residual addition in front of it, against f64; gradients by differences. */
#include "ops.h"

static const int64_t shapes[][2] = { { 1, 1 }, { 2, 3 }, { 7, 33 }, { 70, 130 }, { 9, 768 } };

struct norm {
    enum meg_norm kind;
    int64_t n, h;
    struct meg_mat x, y, dy, dx, skip;
    float *w, *b, *mean, *rstd, *dw, *db;
    double *x64, *w64, *b64;
};

static struct norm norm_new(enum meg_norm kind, int64_t n, int64_t h)
{
    struct norm m = { kind,
                      n,
                      h,
                      rnd_mat(n, h, 0),
                      rnd_mat(n, h, 2),
                      rnd_mat(n, h, 1),
                      rnd_mat(n, h, 3),
                      rnd_mat(n, h, 4),
                      rnd_new(h),
                      rnd_new(h),
                      rnd_new(n),
                      rnd_new(n),
                      rnd_new(h),
                      rnd_new(h),
                      NULL,
                      NULL,
                      NULL };
    m.x64 = widen(m.x.p, n * h);
    m.w64 = widen(m.w, h);
    m.b64 = widen(m.b, h);
    return m;
}

static void norm_free(struct norm *m)
{
    void *const all[] = { m->x.p,  m->y.p,  m->dy.p, m->dx.p, m->skip.p, m->w,   m->b,
                          m->mean, m->rstd, m->dw,   m->db,   m->x64,    m->w64, m->b64 };
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
    *mean = m->kind == MEG_NORM_RMS ? 0.0 : s / (double)m->h;
    for (int64_t c = 0; c < m->h; c++)
        s2 += (x[c] - *mean) * (x[c] - *mean);
    *rstd = 1.0 / sqrt(s2 / (double)m->h + eps);
}

static double y64(const struct norm *m, int64_t r, int64_t c, double mean, double rstd)
{
    return (m->x64[r * m->h + c] - mean) * rstd * m->w64[c] +
        (m->kind == MEG_NORM_RMS ? 0.0 : m->b64[c]);
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

/* Values are below 1, so x - mean is right to a few half ulps of 1, which rstd then multiplies. */
static void check_forward(const struct norm *m)
{
    for (int64_t r = 0; r < m->n; r++) {
        double mean, rstd;
        row64(m, r, &mean, &rstd);
        if (m->kind == MEG_NORM_LAYER)
            near(m->mean[r], mean, 8 * EPS, "mean", r, 0);
        near(m->rstd[r], rstd, 16 * EPS * rstd * (1.0 + rstd), "rstd", r, 0);
        for (int64_t c = 0; c < m->h; c++)
            near(at(m->y, r, c), y64(m, r, c, mean, rstd), 16 * EPS * (1.0 + rstd), "y", r, c);
    }
}

static void norm(const struct meg_ops *ops, enum meg_norm kind)
{
    const int has_b = kind == MEG_NORM_LAYER;
    for (size_t i = 0; i < LEN(shapes); i++) {
        struct norm m = norm_new(kind, shapes[i][0], shapes[i][1]);
        uint64_t h[2] = { 0, 0 };
        for (int k = 0; k < 2; k++) {
            omp_set_num_threads(k ? 2 : 1);
            memset(m.dw, 0, (size_t)m.h * 4);
            memset(m.db, 0, (size_t)m.h * 4);
            ops->norm_fwd(NULL, kind, m.y, m.mean, m.rstd, m.x, m.w, has_b ? m.b : NULL,
                          (float)eps);
            ops->norm_bwd(NULL, kind, m.dx, m.dw, has_b ? m.db : NULL, no_mat, m.dy, m.x, m.w,
                          m.mean, m.rstd);
            digest_mat(h + k, m.y);
            digest_mat(h + k, m.dx);
            digest(h + k, m.dw, (size_t)m.h * 4);
            digest(h + k, m.db, (size_t)m.h * 4);
        }
        assert_int_equal(h[0], h[1]);
        check_forward(&m);
        if (m.h > 2) { /* a row of one or two hangs on eps: rstd is 316, errors with it */
            float *dx = malloc((size_t)(m.n * m.h) * 4);
            struct fd f = { loss, &m, 0.0 };
            double most = 0.0, mean, rstd;
            for (int64_t r = 0; r < m.n; r++) {
                row64(&m, r, &mean, &rstd);
                most = fmax(most, rstd);
                memcpy(dx + r * m.h, (float *)m.dx.p + r * m.dx.ld, (size_t)m.h * 4);
            }
            f.tol = (32.0 + 2.0 * sqrt((double)m.n)) * EPS * (1.0 + most * most) + 1e-7;
            fd_check(&f, m.x64, m.n * m.h, dx, 200, "dx");
            f.tol *= sqrt((double)m.n);
            fd_check(&f, m.w64, m.h, m.dw, 100, "dw");
            if (has_b)
                fd_check(&f, m.b64, m.h, m.db, 100, "db");
            free(dx);
        }
        norm_free(&m);
    }
}

static void layer_norm(const struct meg_ops *ops)
{
    norm(ops, MEG_NORM_LAYER);
}

static void rms_norm(const struct meg_ops *ops)
{
    norm(ops, MEG_NORM_RMS);
}

/* The skip is added to dx, in place too, and gradients of weights to what is there. */
static void norm_bwd_adds(const struct meg_ops *ops)
{
    struct norm m = norm_new(MEG_NORM_LAYER, 12, 40), z = norm_new(MEG_NORM_LAYER, 12, 40);
    const struct meg_mat in_place = m.skip;
    float *skip;
    ops->norm_fwd(NULL, MEG_NORM_LAYER, m.y, m.mean, m.rstd, m.x, m.w, m.b, (float)eps);
    memset(m.dw, 0, 40 * 4);
    memset(m.db, 0, 40 * 4);
    ops->norm_bwd(NULL, MEG_NORM_LAYER, m.dx, m.dw, m.db, no_mat, m.dy, m.x, m.w, m.mean, m.rstd);
    for (int64_t c = 0; c < 40; c++)
        z.dw[c] = z.db[c] = 1.0f;
    skip = copy_new(m.skip.p, 12 * m.skip.ld);
    ops->norm_bwd(NULL, MEG_NORM_LAYER, in_place, z.dw, z.db, in_place, m.dy, m.x, m.w, m.mean,
                  m.rstd);
    for (int64_t c = 0; c < 40; c++) {
        near(z.dw[c], 1.0 + m.dw[c], 8 * EPS * (1.0 + fabs(m.dw[c])), "dw", 0, c);
        near(z.db[c], 1.0 + m.db[c], 8 * EPS * (1.0 + fabs(m.db[c])), "db", 0, c);
        for (int64_t r = 0; r < 12; r++)
            near(at(in_place, r, c), (double)skip[r * m.skip.ld + c] + at(m.dx, r, c),
                 4 * EPS * (1.0 + fabs(at(m.dx, r, c))), "dx", r, c);
    }
    free(skip);
    norm_free(&m);
    norm_free(&z);
}

/* Residual addition: forward and mask bit for bit from the definition, several rates, odd shard edges. */
static void add(const struct meg_ops *ops)
{
    static const float rates[] = { 0.0f, 0.1f, 0.5f };
    for (size_t i = 0; i < LEN(shapes); i++)
        for (size_t p = 0; p < LEN(rates); p++) {
            const int64_t n = shapes[i][0] * 3, h = shapes[i][1];
            const int64_t sample[3] = { 5, 1ll << 40, 0 };
            const struct meg_drop d = { rates[p], 99, 2, MEG_DROP_MLP_OUT, 13, 40, 3, sample, NULL };
            struct meg_mat x = rnd_mat(n, h, 1), y = rnd_mat(n, h, 2), z = rnd_mat(n, h, 0),
                           dz = rnd_mat(n, h, 0);
            struct meg_mat dy = rnd_mat(n, h, 3);
            float *bias = rnd_new(h), *db = zeros(h, 4);
            uint64_t hash[2] = { 0, 0 };
            for (int k = 0; k < 2; k++) {
                memset(db, 0, (size_t)h * 4);
                omp_set_num_threads(k ? 2 : 1);
                ops->add_fwd(NULL, z, x, y, bias, &d);
                ops->add_bwd(NULL, dy, db, dz, &d);
                digest_mat(hash + k, z);
                digest_mat(hash + k, dy);
                digest(hash + k, db, (size_t)h * 4);
            }
            assert_int_equal(hash[0], hash[1]);
            for (int64_t c = 0; c < h; c++) {
                double sum = 0.0;
                for (int64_t r = 0; r < n; r++) {
                    const double f = drop_factor64(&d, 13 + c, 40 + r / 3, sample[r % 3]);
                    const double want = at(x, r, c) + f * ((double)at(y, r, c) + bias[c]);
                    near(at(z, r, c), want, 8 * EPS, "z", r, c);
                    assert_true(at(dy, r, c) == at(dz, r, c) * (float)f); /* bit for bit */
                    sum += f * at(dz, r, c);
                }
                near(db[c], sum, (4.0 + 2.0 * sqrt((double)n)) * EPS * 2.0 * (double)n, "dbias", 0,
                     c);
            }
            ops->add_fwd(NULL, x, x, y, NULL, &d); /* in place, no bias */
            for (int64_t c = 0; c < h; c++)
                near(at(x, 0, c), (double)at(z, 0, c) - drop_factor64(&d, 13 + c, 40, 5) * bias[c],
                     16 * EPS, "z", 0, c);
            free(x.p);
            free(y.p);
            free(z.p);
            free(dz.p);
            free(dy.p);
            free(bias);
            free(db);
        }
}

/* Columns [16, 40) alone, told where they stand, drop what they drop among all. */
static void a_shard_drops_the_same(const struct meg_ops *ops)
{
    const int64_t sample[2] = { 3, 4 };
    struct meg_drop d = { 0.3f, 7, 0, MEG_DROP_ATTN_OUT, 0, 0, 2, sample, NULL };
    struct meg_mat x = rnd_mat(10, 64, 0), y = rnd_mat(10, 64, 0), z = rnd_mat(10, 64, 0),
                   part = rnd_mat(10, 24, 0);
    struct meg_mat xs = x, ys = y;
    ops->add_fwd(NULL, z, x, y, NULL, &d);
    d.unit0 = 16;
    xs.p = (float *)x.p + 16;
    ys.p = (float *)y.p + 16;
    xs.cols = ys.cols = 24;
    ops->add_fwd(NULL, part, xs, ys, NULL, &d);
    for (int64_t r = 0; r < 10; r++)
        assert_memory_equal((float *)part.p + r * 24, (float *)z.p + r * 64 + 16, 24 * 4);
    free(x.p);
    free(y.p);
    free(z.p);
    free(part.p);
}

static void check_add_norm(const struct meg_ops *ops, enum meg_norm kind)
{
    const int64_t sample[1] = { 3 };
    const struct meg_drop d = { 0.2f, 7, 1, MEG_DROP_ATTN_OUT, 0, 0, 1, sample, NULL };
    struct norm m = norm_new(kind, 11, 50), n = norm_new(kind, 11, 50);
    const float *b = kind == MEG_NORM_LAYER ? n.b : NULL;
    struct meg_mat z = rnd_mat(11, 50, 0);
    ops->add_fwd(NULL, z, m.x, m.dy, m.b, &d);
    ops->norm_fwd(NULL, kind, m.y, m.mean, m.rstd, z, m.w, b, (float)eps);
    ops->add_norm_fwd(NULL, kind, n.x, n.y, n.mean, n.rstd, m.x, m.dy, m.b, &d, m.w, b, (float)eps);
    for (int64_t r = 0; r < 11; r++) {
        if (b)
            near(n.mean[r], m.mean[r], 4 * EPS, "mean", r, 0);
        near(n.rstd[r], m.rstd[r], 8 * EPS * m.rstd[r], "rstd", r, 0);
        for (int64_t c = 0; c < 50; c++) {
            near(at(n.x, r, c), at(z, r, c), 0.0, "z", r, c);
            near(at(n.y, r, c), at(m.y, r, c), 16 * EPS * (1.0 + m.rstd[r]), "y", r, c);
        }
    }
    free(z.p);
    norm_free(&m);
    norm_free(&n);
}

static void add_norm_is_add_then_norm(const struct meg_ops *ops)
{
    check_add_norm(ops, MEG_NORM_LAYER);
    check_add_norm(ops, MEG_NORM_RMS);
}

static void nan_comes_through(const struct meg_ops *ops)
{
    const float bad[] = { NAN, INFINITY };
    const int64_t sample[1] = { 3 };
    const struct meg_drop d = { 0.9f, 7, 1, MEG_DROP_ATTN_OUT, 0, 0, 1, sample, NULL };
    for (size_t i = 0; i < LEN(bad); i++) {
        struct norm m = norm_new(MEG_NORM_LAYER, 5, 50);
        for (int64_t c = 0; c < 50; c++)
            ((float *)m.dy.p)[2 * m.dy.ld + c] = bad[i];
        ((float *)m.x.p)[3 * 50 + 7] = bad[i];
        ops->norm_fwd(NULL, MEG_NORM_LAYER, m.y, m.mean, m.rstd, m.x, m.w, m.b, (float)eps);
        ops->norm_bwd(NULL, MEG_NORM_LAYER, m.dx, m.dw, m.db, no_mat, m.dy, m.x, m.w, m.mean,
                      m.rstd);
        for (int64_t c = 0; c < 50; c++) {
            assert_true(isnan(at(m.y, 3, c)) && isnan(at(m.dx, 3, c)));
            assert_false(isfinite(at(m.dx, 2, c)) || isfinite(m.dw[c]) || isfinite(m.db[c]));
        }
        ops->add_fwd(NULL, m.y, m.skip, m.dy, NULL, &d); /* what is dropped too */
        for (int64_t c = 0; c < 50; c++)
            assert_false(isfinite(at(m.y, 2, c)));
        norm_free(&m);
    }
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "layer norm and its gradients", layer_norm },
        { "RMS norm and its gradients", rms_norm },
        { "gradients are added to what is there", norm_bwd_adds },
        { "residual addition with dropout", add },
        { "a shard of the columns drops the same", a_shard_drops_the_same },
        { "addition and norm in one", add_norm_is_add_then_norm },
        { "NaN comes through", nan_comes_through },
    };
    return run_cases(cases, LEN(cases));
}
