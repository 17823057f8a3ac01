/* isa: baseline v3 v4 */
/*
 * Linear layers: products in blocks of the output, bias and activation put on each block while it
 * is still in cache.  Block sizes depend on the shape alone.
 *
 * Up to FEW rows (decoding) the time is that of reading w, which oneDNN would copy first, so those
 * rows are dot products of our own; a row's result does not depend on how many there are.
 */
#include "cpu/vmath.h"
#include "cpu/internal.h"

/*
 * The blocks of an [m,n] result: large, since each packs its operands anew, but at least eight where
 * that leaves them 192 columns wide.
 */
struct cut {
    int64_t m, n;
};

static int64_t part(int64_t n, int64_t most)
{
    return n ? (blocks(n, blocks(n, most)) + 15) & ~(int64_t)15 : most;
}

static struct cut cut(int64_t m, int64_t n)
{
    struct cut c = { part(m, 512), part(n, 768) };
    for (int64_t most = 384; most >= 192 && blocks(m, c.m) * blocks(n, c.n) < 8; most /= 2)
        c.n = part(n, most);
    return c;
}

static void check(const struct meg_linear *l, struct meg_mat y, struct meg_mat x, struct meg_mat w)
{
    MEG_ASSERT(y.rows == x.rows && w.rows == y.cols && w.cols == x.cols);
    MEG_ASSERT(x.rows <= l->desc.n && x.cols <= l->desc.in && y.cols <= l->desc.out);
}

static void add_bias(float *y, const float *bias, int64_t n)
{
#pragma omp simd
    for (int64_t c = 0; c < n; c++)
        y[c] += bias[c];
}

static void act_row(float *y, const float *pre, int64_t n, enum meg_act act)
{
    if (act == MEG_ACT_GELU_TANH) {
#pragma omp simd
        for (int64_t c = 0; c < n; c++)
            y[c] = vgelu_tanh(pre[c]);
    } else {
#pragma omp simd
        for (int64_t c = 0; c < n; c++)
            y[c] = vgelu_erf(pre[c]);
    }
}

static void act_grad_row(float *dx, const float *pre, int64_t n, enum meg_act act)
{
    if (act == MEG_ACT_GELU_TANH) {
#pragma omp simd
        for (int64_t c = 0; c < n; c++)
            dx[c] *= vgelu_tanh_grad(pre[c]);
    } else {
#pragma omp simd
        for (int64_t c = 0; c < n; c++)
            dx[c] *= vgelu_erf_grad(pre[c]);
    }
}

enum { FEW = 16, TILE = 4 };

#if defined __AVX512F__
enum { LANES = 16 };
#elif defined __AVX__
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float vec
    __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

/* The sum of all lanes, halves upon halves. */
static float sum_lanes(vec v)
{
    int32_t other __attribute__((vector_size(LANES * sizeof(int32_t)))) = { 0 };
    for (int half = LANES / 2; half; half /= 2) {
        for (int l = 0; l < LANES; l++)
            other[l] = l ^ half;
        v += __builtin_shuffle(v, other);
    }
    return v[0];
}

/* y[r,c] = x[r] . w[c] for TILE rows of w and nr <= TILE rows of x, missing ones being the last again. */
static void dot_tile(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t nr, const float *w,
                     int64_t ldw, int64_t nc, int64_t k)
{
    const float *xr[TILE], *wc[TILE];
    vec sum[TILE][TILE] = { 0 };
    int64_t i = 0;
    for (int t = 0; t < TILE; t++) {
        xr[t] = x + min64(t, nr - 1) * ldx;
        wc[t] = w + min64(t, nc - 1) * ldw;
    }
    for (; i + LANES <= k; i += LANES) {
        for (int c = 0; c < TILE; c++)
            __builtin_prefetch(wc[c] + i + TILE * ldw);
        for (int r = 0; r < TILE; r++)
            for (int c = 0; c < TILE; c++)
                sum[r][c] += *(const vec *)(xr[r] + i) * *(const vec *)(wc[c] + i);
    }
    for (int64_t r = 0; r < nr; r++)
        for (int64_t c = 0; c < nc; c++) {
            float s = sum_lanes(sum[r][c]);
            for (int64_t j = i; j < k; j++)
                s += xr[r][j] * wc[c][j];
            y[r * ldy + c] = s;
        }
}

/* n columns from c0 on of y = x w^T, for a few rows. */
static void few_rows(struct meg_mat y, struct meg_mat x, struct meg_mat w, int64_t c0, int64_t n)
{
    for (int64_t c = c0; c < c0 + n; c += TILE)
        for (int64_t r = 0; r < y.rows; r += TILE)
            dot_tile(f32(y) + r * y.ld + c, y.ld, f32(x) + r * x.ld, x.ld, min64(TILE, y.rows - r),
                     f32(w) + c * w.ld, w.ld, min64(TILE, c0 + n - c), x.cols);
}

void MEG_FN(linear_fwd)(struct meg_stream *st, struct meg_linear *l, struct meg_mat y,
                        struct meg_mat pre, struct meg_mat x, struct meg_mat w, const void *bias,
                        enum meg_act act)
{
    const struct cut b = y.rows <= FEW ? (struct cut){ FEW, 64 } : cut(y.rows, y.cols);
    const struct meg_mat t = act != MEG_ACT_NONE && pre.p ? pre : y;
    (void)st;
    check(l, y, x, w);
    MEG_ASSERT(t.rows == y.rows && t.cols == y.cols && (t.p == y.p || act != MEG_ACT_NONE));
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t c0 = 0; c0 < y.cols; c0 += b.n)
        for (int64_t r0 = 0; r0 < y.rows; r0 += b.m) {
            const int64_t m = min64(b.m, y.rows - r0), n = min64(b.n, y.cols - c0);
            float *tp = f32(t) + r0 * t.ld + c0, *yp = f32(y) + r0 * y.ld + c0;
            if (y.rows <= FEW)
                few_rows(t, x, w, c0, n);
            else
                meg_cpu_gemm('N', 'T', m, n, x.cols, 1.0f, f32(x) + r0 * x.ld, x.ld,
                             f32(w) + c0 * w.ld, w.ld, 0.0f, tp, t.ld);
            for (int64_t r = 0; r < m; r++) {
                if (bias)
                    add_bias(tp + r * t.ld, (const float *)bias + c0, n);
                if (act != MEG_ACT_NONE)
                    act_row(yp + r * y.ld, tp + r * t.ld, n, act);
            }
        }
}

void MEG_FN(linear_bwd_data)(struct meg_stream *st, struct meg_linear *l, struct meg_mat dx,
                             struct meg_mat dy, struct meg_mat w, struct meg_mat pre,
                             enum meg_act act)
{
    const struct cut b = cut(dx.rows, dx.cols);
    (void)st;
    check(l, dy, dx, w);
    MEG_ASSERT(act == MEG_ACT_NONE || (pre.rows == dx.rows && pre.cols == dx.cols));
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t c0 = 0; c0 < dx.cols; c0 += b.n)
        for (int64_t r0 = 0; r0 < dx.rows; r0 += b.m) {
            const int64_t m = min64(b.m, dx.rows - r0), n = min64(b.n, dx.cols - c0);
            float *p = f32(dx) + r0 * dx.ld + c0;
            meg_cpu_gemm('N', 'N', m, n, dy.cols, 1.0f, f32(dy) + r0 * dy.ld, dy.ld, f32(w) + c0,
                         w.ld, 0.0f, p, dx.ld);
            for (int64_t r = 0; act != MEG_ACT_NONE && r < m; r++)
                act_grad_row(p + r * dx.ld, f32(pre) + (r0 + r) * pre.ld + c0, n, act);
        }
}

void MEG_FN(linear_bwd_weight)(struct meg_stream *st, struct meg_linear *l, struct meg_mat dw,
                               float *dbias, struct meg_mat dy, struct meg_mat x)
{
    const struct cut b = cut(dw.rows, dw.cols);
    (void)st;
    check(l, dy, x, dw);
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t r0 = 0; r0 < dw.rows; r0 += b.m)
        for (int64_t c0 = 0; c0 < dw.cols; c0 += b.n)
            meg_cpu_gemm('T', 'N', min64(b.m, dw.rows - r0), min64(b.n, dw.cols - c0), dy.rows,
                         1.0f, f32(dy) + r0, dy.ld, f32(x) + c0, x.ld, 1.0f,
                         f32(dw) + r0 * dw.ld + c0, dw.ld);
    if (dbias)
        MEG_FN(add_column_sums)(dbias, dy);
}
