/*
 * kernel.h - definitions that all kernels in lib/cuda use: element types, 16-byte accesses, sums and maxima over warps
 * and blocks, and launches.
 *
 * A .cu file is compiled by nvcc or, for tests without a GPU, as C++ with tests/cuda/emulate.h in place of CUDA.  So
 * that both are possible, kernels
 *   - are launched by launch(), not by <<< >>>
 *   - have only dynamic shared memory, declared by SHARED(type, name)
 *   - except inside #ifdef __CUDACC__, use no function of CUDA's headers other than __syncthreads, __syncwarp,
 *     __shfl_*_sync, __ballot_sync, atomicAdd to integers in shared memory, min, max, rsqrtf and math functions of C
 * Sums have a fixed order: there are no atomic additions of floating-point numbers.
 */
#pragma once
#include "cuda/internal.h"
#ifdef __CUDACC__
#    include <cuda_bf16.h>
#    include <cuda_fp16.h>
#    include <cuda_runtime.h>
#    define IS_EMULATED 0
#else
#    include <emulate.h>
#    define IS_EMULATED 1
#endif
#include <initializer_list>
#include <math.h>
#include "base/philox.h"
#include "tensor/half.h"
#include "tensor/ops.h"

/* ---- element types ---- */

struct bf16 {
    uint16_t bits;
};

struct f16 {
    uint16_t bits;
};

__device__ inline float to_float(float x)
{
    return x;
}

__device__ inline float to_float(bf16 x)
{
#ifdef __CUDACC__
    return __uint_as_float((unsigned)x.bits << 16);
#else
    return meg_from_bf16(x.bits);
#endif
}

__device__ inline float to_float(f16 x)
{
#ifdef __CUDACC__
    return __half2float(__ushort_as_half(x.bits));
#else
    return meg_from_f16(x.bits);
#endif
}

/* Convert to T, rounding to nearest even. */
template <class T> __device__ T from_float(float x);
template <> __device__ inline float from_float<float>(float x)
{
    return x;
}

template <> __device__ inline bf16 from_float<bf16>(float x)
{
#ifdef __CUDACC__
    return { __bfloat16_as_ushort(__float2bfloat16_rn(x)) };
#else
    return { meg_to_bf16(x) };
#endif
}

template <> __device__ inline f16 from_float<f16>(float x)
{
#ifdef __CUDACC__
    return { __half_as_ushort(__float2half_rn(x)) };
#else
    return { meg_to_f16(x) };
#endif
}

/*
 * Call f with a value of the element type `type`, from which a generic lambda deduces the type:
 *   with_type(x.dtype, [&](auto t) { launch(st, kernel<decltype(t)>, ...); });
 */
template <class F> void with_type(enum meg_dtype type, F f)
{
    switch (type) {
    case MEG_DTYPE_F32: f(0.0f); break;
    case MEG_DTYPE_BF16: f(bf16()); break;
    case MEG_DTYPE_F16: f(f16()); break;
    default: meg_die(MEG_EFAIL, "CUDA: a kernel has no variant for data type %d", (int)type);
    }
}

/* A placeholder for an element type that is known only when the kernel runs. */
struct general {
};

template <class T> inline constexpr bool is_general = false;
template <> inline constexpr bool is_general<general> = true;

/* Call f as with_type does if all types are equal, otherwise with `general`. */
template <class F> void with_common_type(std::initializer_list<enum meg_dtype> types, F f)
{
    bool are_equal = true;

    for (enum meg_dtype type : types) {
        with_type(type, [](auto) {}); /* fail if there is no variant for the type */
        are_equal = are_equal && type == *types.begin();
    }
    if (are_equal)
        with_type(*types.begin(), f);
    else
        f(general());
}

/* Call f with p as a pointer to elements of type `type`, which is known only when the kernel runs. */
template <class F> __device__ inline void with_pointer(void *p, enum meg_dtype type, F f)
{
    switch (type) {
    case MEG_DTYPE_BF16: f((bf16 *)p); break;
    case MEG_DTYPE_F16: f((f16 *)p); break;
    default: f((float *)p); break;
    }
}

#define LOG2E 1.4426950408889634f /* log2(e): exp(x) = 2^(LOG2E x) */

/* Return 2^x, approximately.  On a GPU, a subnormal result is replaced by 0. */
__device__ inline float exp2_fast(float x)
{
#ifdef __CUDACC__
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* ---- 16-byte accesses ---- */

/* Kernels process a row in vectors of VEC elements: one access of 16 bytes if the type has 2 bytes, two if it has 4. */
enum { VEC = 8 };

/* The elements that one 16-byte instruction loads or stores. */
template <class T> struct alignas(16) packed {
    T v[16 / sizeof(T)];
};

/* Store 16 bytes by one instruction.  nvcc may split the assignment of a struct into several stores. */
template <class T> __device__ inline void store_packed(T *to, const packed<T> &p)
{
#ifdef __CUDACC__
    uint32_t w[4];

    memcpy(w, &p, sizeof w);
    asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
#else
    *(packed<T> *)to = p;
#endif
}

static inline MEG_HOST_DEVICE bool is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/*
 * Return whether the rows of m begin at multiples of 16 bytes, so that `load` and `store` may access them in vectors,
 * or m.p is NULL.
 */
static inline bool has_aligned_rows(struct meg_mat m)
{
    return !m.p || (is_aligned(m.p) && m.ld * (int64_t)meg_dtype_size(m.dtype) % 16 == 0);
}

/* Return whether all heads of x begin at multiples of 16 bytes. */
static inline bool has_aligned_heads(struct meg_heads x)
{
    return is_aligned(x.p) && (x.ld_s | x.ld_b | x.ld_g | x.ld_h) * (int64_t)meg_dtype_size(x.dtype) % 16 == 0;
}

/*
 * Load elements [c, c + VEC) of a row of n elements as f32; those at or after n are 0.  If is_aligned is set, `row` is
 * at a multiple of 16 bytes and c is a multiple of VEC, and complete vectors are accessed 16 bytes at a time.
 */
template <class T> __device__ inline void load(float (&x)[VEC], const T *row, int64_t c, int64_t n, bool is_aligned)
{
    constexpr int N = 16 / sizeof(T);

    if (is_aligned && c + VEC <= n) {
#pragma unroll
        for (int i = 0; i < VEC; i += N) {
            const packed<T> p = *(const packed<T> *)(row + c + i);
#pragma unroll
            for (int j = 0; j < N; j++)
                x[i + j] = to_float(p.v[j]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++)
            x[i] = c + i < n ? to_float(row[c + i]) : 0.0f;
    }
}

/*
 * Store x to elements [c, c + VEC) of a row of n elements, except those at or after n.  is_aligned has the same meaning
 * as in `load`.
 */
template <class T> __device__ inline void store(T *row, const float (&x)[VEC], int64_t c, int64_t n, bool is_aligned)
{
    constexpr int N = 16 / sizeof(T);

    if (is_aligned && c + VEC <= n) {
#pragma unroll
        for (int i = 0; i < VEC; i += N) {
            packed<T> p;
#pragma unroll
            for (int j = 0; j < N; j++)
                p.v[j] = from_float<T>(x[i + j]);
            store_packed(row + c + i, p);
        }
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (c + i < n)
                row[c + i] = from_float<T>(x[i]);
    }
}

/* A pointer to elements whose type is known only when the kernel runs. */
struct general_pointer {
    void *p;
    enum meg_dtype type;

    __device__ general_pointer operator+(int64_t n) const
    {
        return { (char *)p + n * (type == MEG_DTYPE_F32 ? 4 : 2), type };
    }
};

__device__ inline void load(float (&x)[VEC], general_pointer row, int64_t c, int64_t n, bool is_aligned)
{
    with_pointer(row.p, row.type, [&](auto *p) { load(x, p, c, n, is_aligned); });
}

__device__ inline void store(general_pointer row, const float (&x)[VEC], int64_t c, int64_t n, bool is_aligned)
{
    with_pointer(row.p, row.type, [&](auto *p) { store(p, x, c, n, is_aligned); });
}

/* Return a pointer to element i of an array.  T is the type `type`, or `general`. */
template <class T> __device__ inline auto pointer_to(const void *p, enum meg_dtype type, int64_t i)
{
    if constexpr (is_general<T>)
        return general_pointer{ (void *)p, type } + i;
    else
        return (T *)p + i;
}

/* Return a pointer to row r of m, as pointer_to does. */
template <class T> __device__ inline auto row_of(struct meg_mat m, int64_t r)
{
    return pointer_to<T>(m.p, m.dtype, r * m.ld);
}

/* ---- sums and maxima over threads ---- */

enum { WARP = 32 };
static const unsigned ALL_LANES = 0xffffffff;

/* Return the sum of x over the 32 threads of a warp, in every thread.  All threads of the warp call the function. */
template <class T> __device__ inline T warp_sum(T x)
{
#pragma unroll
    for (int i = WARP / 2; i > 0; i /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, i);
    return x;
}

/* Return the sum of x over the lanes of a warp up to the calling one.  All threads of the warp call it. */
template <class T> __device__ inline T warp_prefix_sum(T x)
{
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
        const T before = __shfl_up_sync(ALL_LANES, x, distance);

        if ((int)threadIdx.x % WARP >= distance)
            x += before;
    }
    return x;
}

/* Return the larger of two numbers; of a number and NaN, the number. */
__device__ inline float larger(float x, float y)
{
    return fmaxf(x, y);
}

__device__ inline unsigned long long larger(unsigned long long x, unsigned long long y)
{
    return max(x, y);
}

/* Like warp_sum, but return the maximum; T is float or unsigned long long. */
template <class T> __device__ inline T warp_max(T x)
{
#pragma unroll
    for (int i = WARP / 2; i > 0; i /= 2)
        x = larger(x, __shfl_xor_sync(ALL_LANES, x, i));
    return x;
}

/*
 * Return the sum of x over the threads of a block of complete warps, in every thread.  `buf` is shared memory for one
 * value per warp.  All threads of the block call the function.
 */
template <class T> __device__ inline T block_sum(T x, T *buf)
{
    const int warp = (int)threadIdx.x / WARP, nwarps = (int)blockDim.x / WARP;
    T sum = 0;

    x = warp_sum(x);
    __syncthreads(); /* buf may still be read by the previous call */
    if (threadIdx.x % WARP == 0)
        buf[warp] = x;
    __syncthreads();
    for (int i = 0; i < nwarps; i++)
        sum += buf[i];
    return sum;
}

/* Like block_sum, but return the maximum. */
template <class T> __device__ inline T block_max(T x, T *buf)
{
    const int warp = (int)threadIdx.x / WARP, nwarps = (int)blockDim.x / WARP;
    T most;

    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        buf[warp] = x;
    __syncthreads();
    most = buf[0];
    for (int i = 1; i < nwarps; i++)
        most = larger(most, buf[i]);
    return most;
}

/* ---- launches ---- */

static inline int64_t ceil_div(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

/*
 * Multiprocessors of an H100 or H200.  Grids of kernels that compute sums are sized by this constant instead of by the
 * number of multiprocessors of the GPU in use, so that results do not depend on that number.  In the emulation, threads
 * take time even if they have nothing to do.
 */
enum { SMS = IS_EMULATED ? 4 : 132 };

/*
 * Return the number of blocks of a grid: n, but at least 1 and at most `most`.  If `most` may be less than n, the
 * kernel loops over what the grid does not cover.
 */
static inline unsigned grid_size(int64_t n, int64_t most)
{
    return (unsigned)(n < 1 ? 1 : n < most ? n : most);
}

/*
 * The stream of a launch, and the source line for messages about failures.  A struct meg_stream * that is passed as
 * such a parameter is converted at the call, so `at` is the line of the call.  A function that launches a kernel for
 * its caller has such a parameter as well, so that `at` is the line of the caller.
 */
struct launch_stream {
    struct meg_stream *st;
    struct meg_cuda_line at;

    launch_stream(struct meg_stream *st, const char *file = __builtin_FILE(), int line = __builtin_LINE())
        : st(st), at{ file, line }
    {
    }
};

#ifdef __CUDACC__
/* the alignment is that of tiles (tile.h) */
#    define SHARED(type, name)                                                                                         \
        extern __shared__ __align__(1024) unsigned char meg_shared[];                                                  \
        type *name = (type *)meg_shared

template <class... P>
void queue_kernel(struct meg_stream *st, void (*kernel)(P...), dim3 grid, dim3 block, size_t nbytes, P... args)
{
    const char *name = "a kernel";

    if (nbytes > 48 << 10)
        CUDA(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)nbytes));
    kernel<<<grid, block, nbytes, meg_cuda_stream(st)>>>(args...);
    if (const cudaError_t error = cudaGetLastError()) {
        cudaFuncGetName(&name, (const void *)kernel);
        meg_cuda_check(error, name);
    }
}
#endif

/* Queue a kernel on a stream, with nbytes of dynamic shared memory per block.  The grid has at least one block. */
template <class... P, class... A>
void launch(launch_stream s, void (*kernel)(P...), dim3 grid, dim3 block, size_t nbytes, A... args)
{
    meg_cuda_last = s.at;
    queue_kernel<P...>(s.st, kernel, grid, block, nbytes, P(args)...);
}
