/*
 * reduce.cu - column sums, sums of squares, weighted sums and counts of zeros.  One kernel computes partial sums, whose
 * number depends only on the shape, and another adds the partial sums in a fixed order.
 */
#include "cuda/kernel.h"

/* BATCH is the number of vectors that a thread loads before it uses the first. */
enum { THREADS = 256, WARPS = THREADS / WARP, BATCH = 4, MOST_PARTS = 1024 };

/* Return the number of blocks that compute the partial sums of n elements. */
static unsigned num_parts(int64_t n)
{
    return grid_size(ceil_div(n, THREADS * VEC * BATCH), MOST_PARTS);
}

/* ---- sums over arrays ---- */

/* A reduction is a class: `sum` is the type of its accumulator s, and `add` adds the term of element x to s. */
struct sum_of_squares {
    typedef double sum;
    static __device__ void add(double &s, float x)
    {
        s += (double)x * x;
    }
};

struct number_of_zeros {
    typedef int64_t sum;
    static __device__ void add(int64_t &s, float x)
    {
        s += x == 0.0f;
    }
};

/*
 * Return the sum that Op defines over the vectors first, first + stride, ... of x [n]; first and stride count elements.
 */
template <class Op, class T>
static __device__ typename Op::sum thread_sum(const T *x, int64_t n, int64_t first, int64_t stride, bool is_aligned)
{
    typename Op::sum s = 0;
    int64_t c = first;

    for (; is_aligned && c + (BATCH - 1) * stride + VEC <= n; c += BATCH * stride) {
        float v[BATCH][VEC];

#pragma unroll
        for (int i = 0; i < BATCH; i++)
            load(v[i], x + c + i * stride, 0, VEC, true);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
#pragma unroll
            for (int j = 0; j < VEC; j++)
                Op::add(s, v[i][j]);
    }
    for (; c < n; c += stride) {
        float v[VEC];

        load(v, x, c, n, is_aligned);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            if (c + j < n)
                Op::add(s, v[j]);
    }
    return s;
}

/* Compute part [gridDim.x], the partial sums that Op defines over x [n]. */
template <class Op, class T>
static __global__ void __launch_bounds__(THREADS)
    partial_sums(typename Op::sum *part, const T *x, int64_t n, bool is_aligned)
{
    SHARED(typename Op::sum, buf);
    const int64_t stride = gridDim.x * (int64_t)THREADS * VEC;
    const typename Op::sum s =
        block_sum(thread_sum<Op>(x, n, (blockIdx.x * (int64_t)THREADS + threadIdx.x) * VEC, stride, is_aligned), buf);

    if (threadIdx.x == 0)
        part[blockIdx.x] = s;
}

/* Compute part [gridDim.x], the partial sums of x * weight, or of x if weight is NULL. */
static __global__ void __launch_bounds__(THREADS)
    partial_weighted_sums(double *part, const float *x, const float *weight, int64_t n)
{
    SHARED(double, buf);
    double s = 0;

    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n; i += gridDim.x * (int64_t)THREADS)
        s += weight ? (double)x[i] * (double)weight[i] : (double)x[i];
    s = block_sum(s, buf);
    if (threadIdx.x == 0)
        part[blockIdx.x] = s;
}

/* Add *scale * sum(part [nparts]), or the sum if scale is NULL, to *out.  The grid has one block. */
template <class T>
static __global__ void __launch_bounds__(THREADS) add_parts(T *out, const T *part, int nparts, const T *scale)
{
    SHARED(T, buf);
    T s = 0;

    for (int i = threadIdx.x; i < nparts; i += THREADS)
        s += part[i];
    s = block_sum(s, buf);
    if (threadIdx.x == 0)
        *out += scale ? *scale * s : s;
}

/* Add the sum that Op defines over x [n] to *out. */
template <class Op>
static void add_sum(struct meg_stream *st, typename Op::sum *out, const void *x, enum meg_dtype type, int64_t n)
{
    typedef typename Op::sum sum;
    const unsigned nparts = num_parts(n);
    sum *part;

    if (n == 0)
        return;
    part = (sum *)meg_cuda_scratch(st, nparts * sizeof *part);
    with_type(type, [&](auto t) {
        launch(st, partial_sums<Op, decltype(t)>, nparts, THREADS, WARPS * sizeof(sum), part, (const decltype(t) *)x, n,
               is_aligned(x));
    });
    launch(st, add_parts<sum>, 1, THREADS, WARPS * sizeof(sum), out, part, nparts, (const sum *)nullptr);
}

void meg_cuda_sumsq(struct meg_stream *st, const struct meg_sumsq_args *a)
{
    add_sum<sum_of_squares>(st, a->out, a->x, a->type, a->n);
}

void meg_cuda_count_zeros(struct meg_stream *st, const struct meg_count_zeros_args *a)
{
    add_sum<number_of_zeros>(st, a->out, a->x, a->type, a->n);
}

void meg_cuda_weighted_sum(struct meg_stream *st, const struct meg_weighted_sum_args *a)
{
    const unsigned nparts = num_parts(a->n);
    double *part;

    if (a->n == 0)
        return;
    part = (double *)meg_cuda_scratch(st, nparts * sizeof *part);
    launch(st, partial_weighted_sums, nparts, THREADS, WARPS * sizeof *part, part, a->x, a->weight, a->n);
    launch(st, add_parts<double>, 1, THREADS, WARPS * sizeof *part, a->out, part, nparts, a->scale);
}

/* ---- sums over ranges ---- */

enum { RANGE_PARTS = SMS < 64 ? SMS : 64 }; /* 64 on a GPU, fewer in the emulation */

/*
 * Block (p, i) computes part [i * RANGE_PARTS + p], the sum of squares of part p of range i.  A range has RANGE_PARTS
 * parts of equal length, a multiple of VEC, of which the last ones may be shorter or empty.
 */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    partial_range_sums(double *part, const T *x, const struct meg_range *range)
{
    SHARED(double, buf);
    const int64_t first = range[blockIdx.y].begin, n = range[blockIdx.y].end - first;
    const int64_t length = (n + RANGE_PARTS * VEC - 1) / (RANGE_PARTS * VEC) * VEC, begin = blockIdx.x * length;
    const T *p = x + first + begin;
    const double sum = begin < n
                           ? block_sum(thread_sum<sum_of_squares>(p, min(length, n - begin), threadIdx.x * (int64_t)VEC,
                                                                  THREADS * (int64_t)VEC, is_aligned(p)),
                                       buf)
                           : 0.0;

    if (threadIdx.x == 0)
        part[blockIdx.y * RANGE_PARTS + blockIdx.x] = sum;
}

/* Add the sum of the parts of each range to out [nranges].  A thread computes one range. */
static __global__ void __launch_bounds__(THREADS) add_range_parts(double *out, const double *part, int nranges)
{
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    double s = 0;

    for (int p = 0; p < RANGE_PARTS && i < nranges; p++)
        s += part[i * RANGE_PARTS + p];
    if (i < nranges)
        out[i] += s;
}

void meg_cuda_sumsq_ranges(struct meg_stream *st, const struct meg_sumsq_ranges_args *a)
{
    double *part;

    if (a->nranges == 0)
        return;
    part = (double *)meg_cuda_scratch(st, (size_t)a->nranges * RANGE_PARTS * sizeof *part);
    with_type(a->type, [&](auto t) {
        launch(st, partial_range_sums<decltype(t)>, dim3(RANGE_PARTS, (unsigned)a->nranges), THREADS,
               WARPS * sizeof(double), part, (const decltype(t) *)a->x, a->range);
    });
    launch(st, add_range_parts, (unsigned)ceil_div(a->nranges, THREADS), THREADS, 0, a->out, part, a->nranges);
}

/* ---- partial sums ---- */

enum { SUM_WARPS = 16 };

/*
 * Compute out0 [n] and, if nsums is 2, out1 [n] as sums of partial [nparts,nsums,ld] over the parts, or add the sums to
 * them.  Each warp sums 32 columns over every SUM_WARPS-th part.
 */
template <class T>
static __global__ void __launch_bounds__(SUM_WARPS *WARP)
    sum_parts(T *out0, T *out1, const float *partial, int nparts, int nsums, int64_t n, int64_t ld, bool accumulate)
{
    SHARED(float, buf);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int64_t k = blockIdx.x * (int64_t)WARP + lane, c = k < ld ? k : k - ld;
    T *out = k < ld ? out0 : out1;
    float sum = 0.0f;

    if (k < nsums * ld) {
#pragma unroll 8
        for (int i = warp; i < nparts; i += SUM_WARPS)
            sum += partial[i * nsums * ld + k];
    }
    buf[threadIdx.x] = sum;
    __syncthreads();
    if (warp == 0 && k < nsums * ld && c < n) {
        sum = accumulate ? to_float(out[c]) : 0.0f;
        for (int i = 0; i < SUM_WARPS; i++)
            sum += buf[i * WARP + lane];
        out[c] = from_float<T>(sum);
    }
}

void meg_cuda_sum_partials(struct meg_stream *st, void *out0, void *out1, enum meg_dtype type, const float *partial,
                           int nparts, int64_t n, int64_t ld, bool accumulate)
{
    const int nsums = out1 ? 2 : 1;

    with_type(type, [&](auto t) {
        typedef decltype(t) T;

        launch(st, sum_parts<T>, (unsigned)ceil_div(nsums * ld, WARP), SUM_WARPS * WARP,
               SUM_WARPS * WARP * sizeof(float), (T *)out0, (T *)out1, partial, nparts, nsums, n, ld, accumulate);
    });
}

/* ---- column sums ---- */

/*
 * A block sums TILE columns; each of its warps reads different rows, at least ROWS if there are enough.  A grid has at
 * most MOST_BLOCKS blocks, so that all can run at the same time, but always at least one block per TILE columns.
 */
enum { TILE = WARP * VEC, ROWS = 8, MOST_BLOCKS = 4 * SMS, MOST_ROW_BLOCKS = MOST_BLOCKS / 3 };

/* Return the number of blocks between which the rows of x are divided. */
static unsigned num_row_blocks(struct meg_mat x)
{
    const int64_t most = grid_size(MOST_BLOCKS / ceil_div(x.cols, TILE), MOST_ROW_BLOCKS);

    return grid_size(ceil_div(x.rows, WARPS * ROWS), most);
}

/* Add elements [c, c + VEC) of rows r, r + WARPS, ..., below `end`, of x to sum. */
template <class T>
static __device__ inline void add_rows(float (&sum)[VEC], struct meg_mat x, int64_t r, int64_t end, int64_t c,
                                       int64_t cols, bool is_aligned)
{
    constexpr int BATCH = sizeof(T) == 2 ? (int)ROWS : ROWS / 2; /* rows that are loaded before the first is used */
    const T *p = (const T *)x.p + r * x.ld;

    for (; r + (BATCH - 1) * WARPS < end; r += BATCH * WARPS, p += BATCH * WARPS * x.ld) {
        float v[BATCH][VEC];

#pragma unroll
        for (int i = 0; i < BATCH; i++)
            load(v[i], p + i * WARPS * x.ld, c, cols, is_aligned);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
#pragma unroll
            for (int j = 0; j < VEC; j++)
                sum[j] += v[i][j];
    }
    for (; r < end; r += WARPS, p += WARPS * x.ld) {
        float v[VEC];

        load(v, p, c, cols, is_aligned);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            sum[j] += v[j];
    }
}

/* Compute part [gridDim.y,x.cols]: block (i, j) sums TILE columns of the jth part of the rows. */
template <class T>
static __global__ void __launch_bounds__(THREADS, 4) partial_column_sums(float *part, struct meg_mat x, bool is_aligned)
{
    SHARED(float, buf); /* [WARPS,TILE] */
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t c0 = blockIdx.x * (int64_t)TILE, c = c0 + lane * VEC;
    const int64_t rows = (x.rows + gridDim.y - 1) / gridDim.y, r = blockIdx.y * rows;
    const int64_t end = r + rows < x.rows ? r + rows : x.rows;
    float sum[VEC] = { 0 };

    if (is_aligned && c + VEC <= x.cols)
        add_rows<T>(sum, x, r + warp, end, c, c + VEC, true);
    else if (c < x.cols)
        add_rows<T>(sum, x, r + warp, end, c, x.cols, false);
    store(buf + warp * TILE, sum, lane * VEC, TILE, true);
    __syncthreads();
    for (int i = threadIdx.x; i < TILE && c0 + i < x.cols; i += THREADS) {
        float s = 0;

#pragma unroll
        for (int w = 0; w < WARPS; w++)
            s += buf[w * TILE + i];
        part[blockIdx.y * x.cols + c0 + i] = s;
    }
}

void meg_cuda_column_sums(struct meg_stream *st, void *out, enum meg_dtype type, struct meg_mat x, bool accumulate)
{
    unsigned nparts;
    float *part;

    if (x.cols == 0)
        return;
    nparts = num_row_blocks(x);
    part = (float *)meg_cuda_scratch(st, (size_t)nparts * (size_t)x.cols * sizeof *part);
    with_type(x.dtype, [&](auto t) {
        launch(st, partial_column_sums<decltype(t)>, dim3((unsigned)ceil_div(x.cols, TILE), nparts), THREADS,
               WARPS * TILE * sizeof(float), part, x, has_aligned_rows(x));
    });
    meg_cuda_sum_partials(st, out, NULL, type, part, (int)nparts, x.cols, x.cols, accumulate);
}
