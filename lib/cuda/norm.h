/*
 * norm.h - how norm.cu and norm_bwd.cu divide rows between threads.  Sums have a fixed order, and the numbers of blocks
 * depend only on shapes and types, so that results are deterministic and do not depend on the number of
 * multiprocessors.
 */
#pragma once
#include "cuda/row.h"

/*
 * Rows of at most LONG elements are processed as follows.  A thread has K vectors of a row in registers: vectors lane,
 * lane + per_row, ... in thread `lane` of the per_row threads for the row.  A warp processes a row of at most SHORT
 * elements, and a block a longer one.  Meanwhile, the next row is copied to shared memory, where each thread reads
 * only what it copied itself.  Blocks process many rows each: a grid has at most as many blocks as can run at the same
 * time.
 */
enum { SHORT = 1024, MEDIUM = 4096, LONG = 8192, MAX_WARPS = 8, NORM_THREADS = MAX_WARPS * WARP };

/* Call f with k, 1 to 4, as a constant. */
template <class F> static inline void with_constant(int k, F f)
{
    switch (k) {
    case 1: f(std::integral_constant<int, 1>()); break;
    case 2: f(std::integral_constant<int, 2>()); break;
    case 3: f(std::integral_constant<int, 3>()); break;
    default: f(std::integral_constant<int, 4>());
    }
}

/* Return K for rows of n <= LONG elements, so that a row has at most NORM_THREADS threads. */
static inline int vectors_per_thread(int64_t n)
{
    return n <= SHORT ? (int)ceil_div(n, WARP * VEC) : n <= MEDIUM ? 2 : 4;
}

/* Return the number of threads for a row of n elements, each of which processes k vectors. */
static inline int threads_per_row(int64_t n, int k)
{
    return (int)ceil_div(n, k * VEC * WARP) * WARP;
}

/* The rows of a thread, and the columns of its vectors. */
struct thread_rows {
    int64_t first, step;
    int lane, per_row;

    __device__ thread_rows(int n) : lane((int)threadIdx.x % n), per_row(n)
    {
        const int rows = (int)blockDim.x / n;

        first = blockIdx.x * (int64_t)rows + (int)threadIdx.x / n;
        step = gridDim.x * (int64_t)rows;
    }
    __device__ int column(int i) const
    {
        return (lane + i * per_row) * VEC;
    }
};

/* Vectors of the next row of a matrix, in shared memory. */
template <int K, class T> struct next_row {
    vec<T> *p; /* vector 0 of this thread; the others follow at intervals of blockDim.x vectors */

    /* Use the first bytes of `memory`, and advance `memory` to the following bytes. */
    __device__ next_row(char *&memory) : p((vec<T> *)memory + threadIdx.x)
    {
        memory += K * blockDim.x * sizeof *p;
    }
    /* Begin to copy row r of m.  In the copy, columns from m.cols on are 0; if m.p is NULL, all columns are 0. */
    __device__ void copy(struct meg_mat m, int64_t r, const struct thread_rows &rows) const
    {
#pragma unroll
        for (int i = 0; i < K; i++)
            fetch_async(p[i * blockDim.x], m, r, rows.column(i));
    }
    __device__ void read(vec<T> (&v)[K]) const
    {
#pragma unroll
        for (int i = 0; i < K; i++)
            v[i] = p[i * blockDim.x];
    }
};

/* Sums over the threads of a row. */
struct row_sums {
    enum { NBYTES = 2 * 2 * MAX_WARPS * sizeof(float) };
    float *buf; /* shared memory [2][N][MAX_WARPS], N <= 2; while one half is read, the other is written */
    int half, nwarps;

    /*
     * Set all sums to 0; the sums of warps that do not exist remain 0.  All threads of the block call the constructor.
     */
    __device__ row_sums(char *memory, int per_row) : buf((float *)memory), half(0), nwarps(per_row / WARP)
    {
        if (threadIdx.x < NBYTES / sizeof *buf)
            buf[threadIdx.x] = 0.0f;
        __syncthreads();
    }
    /* Replace each of the N values by its sum over the threads of the row, all of which call it. */
    template <int N> __device__ void reduce(float (&x)[N])
    {
        float *const sum = buf + half;

#pragma unroll
        for (int k = 0; k < N; k++)
            x[k] = warp_sum(x[k]);
        if (nwarps == 1)
            return;
        half ^= N * MAX_WARPS;
        if (threadIdx.x % WARP == 0)
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k * MAX_WARPS + threadIdx.x / WARP] = x[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < N; k++) {
            float all[VEC];

            static_assert((int)MAX_WARPS == (int)VEC);
            load(all, sum + k * MAX_WARPS, 0, VEC, true);
            x[k] = 0.0f;
#pragma unroll
            for (int i = 0; i < MAX_WARPS; i++)
                x[k] += all[i];
        }
    }
};
