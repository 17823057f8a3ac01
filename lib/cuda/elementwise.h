/*
 * elementwise.h - kernels that compute matrices element by element: a thread computes VEC columns of a row at a time.
 */
#pragma once
#include "cuda/kernel.h"

/*
 * Launch a kernel with at least n threads in dimension x for each row; do nothing if n or the number of rows is 0.  A
 * block with blockIdx.y = y computes rows y, y + gridDim.y, ...
 */
template <class... P, class... A>
void launch_rows(launch_stream st, void (*kernel)(P...), int64_t rows, int64_t n, A... args)
{
    enum { MAX_THREADS = 256, MAX_GRID_Y = 4096 };
    const int64_t blocks = ceil_div(n, MAX_THREADS);

    if (rows > 0 && n > 0)
        launch(st, kernel, dim3((unsigned)blocks, grid_size(rows, MAX_GRID_Y)),
               (unsigned)(ceil_div(ceil_div(n, blocks), WARP) * WARP), 0, args...);
}

/*
 * Launch a kernel that calls for_each_vector with the same numbers of rows and columns, so that a thread computes VEC
 * columns.
 */
template <class... P, class... A>
void launch_elementwise(launch_stream st, void (*kernel)(P...), int64_t rows, int64_t cols, A... args)
{
    launch_rows(st, kernel, rows, ceil_div(cols, VEC), args...);
}

/*
 * Call f(r, c, end, is_vector) for each vector of this thread: columns [c, end) of row r.  end and is_vector are the
 * last arguments of `load` and `store`.  f is inlined twice.  Where is_vector is true, the compiler knows that the
 * vector is complete and removes the branches of `load`, so that all loads of f precede the first use of a value.
 */
template <class F> __device__ inline void for_each_vector(int64_t rows, int64_t cols, bool is_aligned, F f)
{
    const int64_t c = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * VEC;

    if (is_aligned && c + VEC <= cols)
        for (int64_t r = blockIdx.y; r < rows; r += gridDim.y)
            f(r, c, c + VEC, true);
    else if (c < cols)
        for (int64_t r = blockIdx.y; r < rows; r += gridDim.y)
            f(r, c, cols, false);
}
