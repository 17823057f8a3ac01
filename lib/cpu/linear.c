/* isa: baseline v3 v4 */
/*
 * linear.c - linear layers, computed in blocks of the output.  Bias and activation are applied to a block while the
 * block is in cache.  Block sizes depend only on shapes and types.
 *
 * Sums are accumulated in f32.  If the output is f32, it is the accumulator; in the forward pass, pre replaces the
 * output if it is stored.  Otherwise, the accumulator is a tile on the stack, whose values are rounded to bf16 or f16
 * when they are stored.
 */
#include "cpu/act.h"
#include "cpu/row.h"

/*
 * The shape of the blocks into which an [m,n] result is split.  Large blocks are faster, because operands are packed
 * again for each block.  But if there would be fewer than eight blocks, the number of column blocks becomes a power of
 * two, so that two, four or eight threads are equally busy.  Blocks of fewer than 256 columns are not split further.
 */
struct block_shape {
    int64_t m, n;
};

enum { MAX_COLS = 768, MIN_COLS = 128 };

/* Return the block size, a positive multiple of 16, with which n elements are split into at most k blocks. */
static int64_t block_size(int64_t n, int64_t k)
{
    return meg_max64(16, (meg_ceil_div(n, k) + 15) & ~(int64_t)15);
}

static struct block_shape choose_block_shape(int64_t m, int64_t n, int is_f32)
{
    const int64_t rows = meg_max64(1, meg_ceil_div(m, is_f32 ? 512 : GEMM_BLOCK_M));
    int64_t cols = meg_max64(1, meg_ceil_div(n, is_f32 ? MAX_COLS : GEMM_BLOCK_N));

    if (rows * cols < 8)
        for (cols = 1; rows * cols < 8 && n >= 2 * cols * MIN_COLS;)
            cols *= 2;
    return (struct block_shape){ block_size(m, rows), block_size(n, cols) };
}

/* Check shapes and types.  w is the weight or its gradient, and w_type is the type of w in the plan. */
static void check(const struct meg_linear_plan *l, struct meg_mat y, struct meg_mat x, struct meg_mat w,
                  enum meg_dtype w_type)
{
    MEG_ASSERT_EQ(x.dtype, l->desc.x);
    MEG_ASSERT_EQ(y.dtype, l->desc.y);
    MEG_ASSERT_EQ(w.dtype, w_type);
    MEG_ASSERT_EQ(y.rows, x.rows);
    MEG_ASSERT_EQ(w.rows, y.cols);
    MEG_ASSERT_EQ(w.cols, x.cols);
    MEG_ASSERT_LE(x.rows, l->desc.n);
    MEG_ASSERT_LE(x.cols, l->desc.in);
    MEG_ASSERT_LE(y.cols, l->desc.out);
}

static int all_f32(struct meg_mat a, struct meg_mat b, struct meg_mat c)
{
    return a.dtype == MEG_DTYPE_F32 && b.dtype == MEG_DTYPE_F32 && c.dtype == MEG_DTYPE_F32;
}

/* Return m with its first element moved to (r, c).  rows and cols, which gemm_block does not use, are not changed. */
static struct meg_mat submat(struct meg_mat m, int64_t r, int64_t c)
{
    m.p = element(m, r, c);
    return m;
}

/* A block of a result: rows [r0, r0 + m), columns [c0, c0 + n). */
struct block {
    int64_t r0, c0, m, n;
};

/* The f32 accumulator of a block. */
struct accum {
    float *p;
    int64_t ld;
};

static struct accum accum_of(struct meg_mat x, struct block b, float *tile)
{
    return x.dtype == MEG_DTYPE_F32 ? (struct accum){ element(x, b.r0, b.c0), x.ld } : (struct accum){ tile, b.n };
}

/* If a product accumulates, load the previous values of a block. */
static void load_block(struct accum s, struct meg_mat x, struct block b, bool accumulate)
{
    for (int64_t r = 0; accumulate && r < b.m; r++)
        row_load(x, b.r0 + r, b.c0, b.n, s.p + r * s.ld);
}

static void add_bias(float *y, const float *bias, int64_t n)
{
#pragma omp simd
    for (int64_t c = 0; c < n; c++)
        y[c] += bias[c];
}

#define ACT_ROW(NAME, ACT)                                                                                             \
    case ACT:                                                                                                          \
        _Pragma("omp simd") for (int64_t c = 0; c < n; c++) y[c] = vact(ACT, pre[c]);                                  \
        break;
#define ACT_BWD_ROW(NAME, ACT)                                                                                         \
    case ACT:                                                                                                          \
        _Pragma("omp simd") for (int64_t c = 0; c < n; c++)                                                            \
        {                                                                                                              \
            float y;                                                                                                   \
            dx[c] = vact_bwd(ACT, pre[c], dx[c], 0.0f, &y);                                                            \
        }                                                                                                              \
        break;

static void act_row(float *y, const float *pre, int64_t n, enum meg_act act)
{
    switch (act) {
        FOR_EACH_ACT(ACT_ROW)
    default: break;
    }
}

/* Multiply dx by the derivative of act at pre. */
static void act_bwd_row(float *dx, const float *pre, int64_t n, enum meg_act act)
{
    switch (act) {
        FOR_EACH_ACT(ACT_BWD_ROW)
    default: break;
    }
}

void MEG_FN(act_bwd)(struct meg_stream *st, const struct meg_act_bwd_args *a)
{
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->dx.rows; r++)
        for (int64_t c0 = 0; c0 < a->dx.cols; c0 += COL_BLOCK) {
            const int64_t n = meg_min64(COL_BLOCK, a->dx.cols - c0);
            float d[COL_BLOCK], p[COL_BLOCK], *out = row_out(a->dx, r, c0, d);
            const float *in = row_read(a->dy, r, c0, n, d);
            if (in != out)
                memcpy(out, in, (size_t)n * sizeof *out);
            act_bwd_row(out, row_read(a->pre, r, c0, n, p), n, a->act);
            row_store(a->dx, r, c0, n, out);
        }
}

void MEG_FN(scale)(struct meg_stream *st, const struct meg_scale_args *a)
{
    const float factor = a->factor;
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->y.rows; r++)
        for (int64_t c0 = 0; c0 < a->y.cols; c0 += COL_BLOCK) {
            const int64_t n = meg_min64(COL_BLOCK, a->y.cols - c0);
            float buf[COL_BLOCK], *out = row_out(a->y, r, c0, buf);
            const float *in = row_read(a->x, r, c0, n, buf);

            for (int64_t c = 0; c < n; c++)
                out[c] = factor * in[c];
            row_store(a->y, r, c0, n, out);
        }
}

void MEG_FN(softcap)(struct meg_stream *st, const struct meg_softcap_args *a)
{
    const float cap = a->cap;
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->y.rows; r++)
        for (int64_t c0 = 0; c0 < a->y.cols; c0 += COL_BLOCK) {
            const int64_t n = meg_min64(COL_BLOCK, a->y.cols - c0);
            float buf[COL_BLOCK], *out = row_out(a->y, r, c0, buf);
            const float *in = row_read(a->x, r, c0, n, buf);

            for (int64_t c = 0; c < n; c++)
                out[c] = cap * vtanh(in[c] / cap);
            row_store(a->y, r, c0, n, out);
        }
}

void MEG_FN(clamp)(struct meg_stream *st, const struct meg_clamp_args *a)
{
    const float limit = a->limit;
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->y.rows; r++)
        for (int64_t c0 = 0; c0 < a->y.cols; c0 += COL_BLOCK) {
            const int64_t n = meg_min64(COL_BLOCK, a->y.cols - c0);
            float buf[COL_BLOCK], *out = row_out(a->y, r, c0, buf);
            const float *in = row_read(a->x, r, c0, n, buf);

            for (int64_t c = 0; c < n; c++)
                out[c] = in[c] > limit ? limit : in[c] < -limit ? -limit : in[c];
            row_store(a->y, r, c0, n, out);
        }
}

void MEG_FN(clamp_bwd)(struct meg_stream *st, const struct meg_clamp_bwd_args *a)
{
    const float limit = a->limit;
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->dx.rows; r++)
        for (int64_t c0 = 0; c0 < a->dx.cols; c0 += COL_BLOCK) {
            const int64_t n = meg_min64(COL_BLOCK, a->dx.cols - c0);
            float d[COL_BLOCK], x[COL_BLOCK], *out = row_out(a->dx, r, c0, d);
            const float *dy = row_read(a->dy, r, c0, n, d), *in = row_read(a->x, r, c0, n, x);

            for (int64_t c = 0; c < n; c++)
                out[c] = in[c] > limit || in[c] < -limit ? 0.0f : dy[c];
            row_store(a->dx, r, c0, n, out);
        }
}

/* Compute a block of y and of a->pre, which is `pre` if it is written. */
static void fwd_block(const struct meg_linear_fwd_args *a, struct meg_mat pre, struct block b)
{
    const struct meg_mat y = a->y, x = a->x, w = a->w, sum_of = pre.p ? pre : y;
    float tile[GEMM_BLOCK_M * GEMM_BLOCK_N] __attribute__((aligned(64))), row[MAX_COLS];
    const struct accum s = accum_of(sum_of, b, tile);
    const struct meg_mat left = submat(x, b.r0, 0), right = submat(w, b.c0, 0);
    const struct gemm g = { 'N', 'T', b.m, b.n, x.cols, left, right, a->accumulate, s.p, s.ld };
    float biasb[MAX_COLS];
    const float *bv = row_read(row_vector(a->bias, w.dtype, y.cols), 0, b.c0, b.n, biasb);
    load_block(s, sum_of, b, a->accumulate);
    MEG_FN(gemm_block)(&g);
    for (int64_t r = 0; r < b.m; r++) {
        float *sum = s.p + r * s.ld, *out = sum;
        if (bv)
            add_bias(sum, bv, b.n);
        if (pre.p)
            row_store(pre, b.r0 + r, b.c0, b.n, sum);
        if (a->act != MEG_ACT_NONE)
            act_row(out = row_out(y, b.r0 + r, b.c0, row), sum, b.n, a->act);
        row_store(y, b.r0 + r, b.c0, b.n, out);
    }
}

void MEG_FN(linear_fwd)(struct meg_stream *st, const struct meg_linear_fwd_args *a)
{
    const struct block_shape b = a->y.rows <= GEMM_SKINNY_M
                                     ? (struct block_shape){ GEMM_SKINNY_M, 64 }
                                     : choose_block_shape(a->y.rows, a->y.cols, all_f32(a->y, a->x, a->w));
    struct meg_mat pre = a->pre;
    (void)st;
    check(a->plan, a->y, a->x, a->w, a->plan->desc.w);
    if (a->act == MEG_ACT_NONE)
        pre.p = NULL;
    MEG_ASSERT(!pre.p || (pre.rows == a->y.rows && pre.cols == a->y.cols));
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t c0 = 0; c0 < a->y.cols; c0 += b.n)
        for (int64_t r0 = 0; r0 < a->y.rows; r0 += b.m)
            fwd_block(a, pre, (struct block){ r0, c0, meg_min64(b.m, a->y.rows - r0), meg_min64(b.n, a->y.cols - c0) });
}

static void bwd_block(const struct meg_linear_bwd_data_args *a, struct block b)
{
    float tile[GEMM_BLOCK_M * GEMM_BLOCK_N] __attribute__((aligned(64))), row[MAX_COLS];
    const struct accum s = accum_of(a->dx, b, tile);
    const struct meg_mat left = submat(a->dy, b.r0, 0), right = submat(a->w, 0, b.c0);
    const struct gemm g = { 'N', 'N', b.m, b.n, a->dy.cols, left, right, a->accumulate, s.p, s.ld };
    load_block(s, a->dx, b, a->accumulate);
    MEG_FN(gemm_block)(&g);
    for (int64_t r = 0; r < b.m; r++) {
        float *sum = s.p + r * s.ld;
        if (a->act != MEG_ACT_NONE)
            act_bwd_row(sum, row_read(a->pre, b.r0 + r, b.c0, b.n, row), b.n, a->act);
        row_store(a->dx, b.r0 + r, b.c0, b.n, sum);
    }
}

void MEG_FN(linear_bwd_data)(struct meg_stream *st, const struct meg_linear_bwd_data_args *a)
{
    const struct block_shape b = choose_block_shape(a->dx.rows, a->dx.cols, all_f32(a->dx, a->dy, a->w));
    (void)st;
    check(a->plan, a->dy, a->dx, a->w, a->plan->desc.w);
    MEG_ASSERT(a->act == MEG_ACT_NONE || (a->pre.rows == a->dx.rows && a->pre.cols == a->dx.cols));
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t c0 = 0; c0 < a->dx.cols; c0 += b.n)
        for (int64_t r0 = 0; r0 < a->dx.rows; r0 += b.m)
            bwd_block(a, (struct block){ r0, c0, meg_min64(b.m, a->dx.rows - r0), meg_min64(b.n, a->dx.cols - c0) });
}

static void weight_block(struct meg_mat dw, struct meg_mat dy, struct meg_mat x, bool accumulate, struct block b)
{
    float tile[GEMM_BLOCK_M * GEMM_BLOCK_N] __attribute__((aligned(64)));
    const struct accum s = accum_of(dw, b, tile);
    const struct meg_mat left = submat(dy, 0, b.r0), right = submat(x, 0, b.c0);
    const struct gemm g = { 'T', 'N', b.m, b.n, dy.rows, left, right, accumulate, s.p, s.ld };
    load_block(s, dw, b, accumulate);
    MEG_FN(gemm_block)(&g);
    for (int64_t r = 0; r < b.m; r++)
        row_store(dw, b.r0 + r, b.c0, b.n, s.p + r * s.ld);
}

void MEG_FN(linear_bwd_weight)(struct meg_stream *st, const struct meg_linear_bwd_weight_args *a)
{
    const struct block_shape b = choose_block_shape(a->dw.rows, a->dw.cols, all_f32(a->dw, a->dy, a->x));
    (void)st;
    check(a->plan, a->dy, a->x, a->dw, a->plan->desc.dw);
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t r0 = 0; r0 < a->dw.rows; r0 += b.m)
        for (int64_t c0 = 0; c0 < a->dw.cols; c0 += b.n)
            weight_block(a->dw, a->dy, a->x, a->accumulate,
                         (struct block){ r0, c0, meg_min64(b.m, a->dw.rows - r0), meg_min64(b.n, a->dw.cols - c0) });
    if (a->dbias)
        MEG_FN(column_sums)(row_vector(a->dbias, a->dw.dtype, a->dw.rows), a->dy, a->accumulate);
}
