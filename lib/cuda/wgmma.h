/*
 * wgmma.h - asynchronous products of matrices on the tensor cores of Hopper GPUs (sm_90a).
 *
 * A warpgroup, 128 threads, computes 64 rows of a product.  Warp w computes rows [16w, 16w + 16), and each thread holds
 * the elements of these rows that it would hold of accumulators of mma.h.  The functions queue products.  Until
 * wgmma_wait returns, do not access the accumulators, and do not overwrite the tiles.  All threads call each function.
 */
#pragma once
#include "cuda/mma.h"
#ifndef __CUDACC__
#    include <array>
#    include <functional>
#endif

/*
 * HAS_WGMMA and HAS_MMA_SYNC state whether this compilation, for one target or for the emulation, contains the
 * instances of kernels that use these functions, and those that use mma.h instead.
 */
#if !defined __CUDACC__
static constexpr bool HAS_WGMMA = true, HAS_MMA_SYNC = true;
#elif defined __CUDA_ARCH_FEAT_SM90_ALL
static constexpr bool HAS_WGMMA = true, HAS_MMA_SYNC = false;
#else
static constexpr bool HAS_WGMMA = false, HAS_MMA_SYNC = true;
#endif

/* Make the copies that the calling thread has waited for visible to products that are queued after the next barrier. */
__device__ inline void publish_copies();

/*
 * Queue c += a b, where c [64,8N] consists of accumulators, and a is [64,16] and b [16,8N].  The first function takes
 * descriptors of a and of the transpose of b, which are K-major, and queues c = a b if is_first is set.  The second
 * takes a in registers and a descriptor of b, which is MN-major.
 */
template <class T, int N> __device__ void wgmma(float (&c)[N][4], uint64_t a, uint64_t b, bool is_first);
template <class T, int N> __device__ void wgmma(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b);

#ifdef __CUDACC__

__device__ inline void publish_copies()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/*
 * Return the matrix descriptor of PTX for the part of a tile that begins at element (r, c), where r is a multiple of 8
 * and c of 16.  It serves for K-major operands, whose rows are those of the tile, and for MN-major ones, whose rows are
 * the columns of the tile.
 */
template <class T, int ROWS, int COLS>
__device__ inline uint64_t descriptor(const tile<T, ROWS, COLS, true> &x, int r, int c)
{
    constexpr int PANEL = tile<T, ROWS, COLS, true>::PANEL;
    constexpr uint64_t panel_nbytes = ROWS * PANEL * sizeof(T), rows8_nbytes = 8 * PANEL * sizeof(T),
                       swizzling = PANEL == 64 ? 1 : 2;

    return shared_address(x.at(r, c)) >> 4 | panel_nbytes / 16 << 16 | rows8_nbytes / 16 << 32 | swizzling << 62;
}

#    define FOUR(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#    define SIXTEEN(c, i) FOUR(c, i), FOUR(c, i + 1), FOUR(c, i + 2), FOUR(c, i + 3)
#    define OPERANDS_0_31                                                                                              \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "    \
        "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#    define OPERANDS_32_47 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#    define OPERANDS_48_63 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#    define DEFINE_WGMMA(T, type)                                                                                      \
        template <> __device__ inline void wgmma<T>(float(&c)[8][4], uint64_t a, uint64_t b, bool is_first)            \
        {                                                                                                              \
            asm volatile("{ .reg .pred p; setp.eq.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type     \
                         " {" OPERANDS_0_31 "}, %32, %33, p, 1, 1, 0, 0; }"                                            \
                         : SIXTEEN(c, 0), SIXTEEN(c, 4)                                                                \
                         : "l"(a), "l"(b), "r"((int)is_first));                                                        \
        }                                                                                                              \
        template <> __device__ inline void wgmma<T>(float(&c)[8][4], const uint32_t(&a)[4], uint64_t b)                \
        {                                                                                                              \
            asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type " {" OPERANDS_0_31                         \
                         "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                                   \
                         : SIXTEEN(c, 0), SIXTEEN(c, 4)                                                                \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                        \
        }                                                                                                              \
        template <> __device__ inline void wgmma<T>(float(&c)[12][4], const uint32_t(&a)[4], uint64_t b)               \
        {                                                                                                              \
            asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32." type " {" OPERANDS_0_31 ", " OPERANDS_32_47     \
                         "}, {%48, %49, %50, %51}, %52, 1, 1, 1, 1;"                                                   \
                         : SIXTEEN(c, 0), SIXTEEN(c, 4), SIXTEEN(c, 8)                                                 \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                        \
        }                                                                                                              \
        template <> __device__ inline void wgmma<T>(float(&c)[16][4], const uint32_t(&a)[4], uint64_t b)               \
        {                                                                                                              \
            asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type " {" OPERANDS_0_31 ", " OPERANDS_32_47    \
                         ", " OPERANDS_48_63 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                               \
                         : SIXTEEN(c, 0), SIXTEEN(c, 4), SIXTEEN(c, 8), SIXTEEN(c, 12)                                 \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                        \
        }

DEFINE_WGMMA(bf16, "bf16.bf16")
DEFINE_WGMMA(f16, "f16.f16")
#    undef DEFINE_WGMMA

/* Prevent the compiler from moving accesses to c, accumulators or operands in registers, across this point. */
template <int N> __device__ inline void keep_in_place(float (&c)[N][4])
{
#    pragma unroll
    for (int n = 0; n < N; n++)
#    pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(c[n][i])::"memory");
}

template <int N> __device__ inline void keep_in_place(uint32_t (&a)[N][4])
{
#    pragma unroll
    for (int n = 0; n < N; n++)
#    pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+r"(a[n][i])::"memory");
}

template <int N> __device__ inline void begin_products(float (&c)[N][4])
{
    keep_in_place(c);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

template <int N> __device__ inline void commit_products(float (&c)[N][4])
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    keep_in_place(c);
}

/* Wait for all products of the warpgroup; c... are the accumulators of those that the caller has queued. */
template <class... C> __device__ inline void wgmma_wait(C &...c)
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    (keep_in_place(c[0]), ...);
}

#else

namespace emu
{

/* A product that a thread has queued.  It reads shared memory when the thread waits for it. */
struct product {
    const void *c;
    std::function<void()> run;
};
inline std::deque<product> products[MAX_THREADS];

inline void queue_product(const void *c, const std::function<void()> &run)
{
    const int thread = state.running->thread;

    if (state.nbarriers < visible_at[thread])
        fail("a product reads copies that are not visible to it");
    products[thread].push_back({ c, run });
    state.nunfinished++;
}

/* Convert row r of a tile to f32. */
template <class T, int ROWS, int COLS> void load_row(float (&to)[COLS], const tile<T, ROWS, COLS, true> &x, int r)
{
    for (int c = 0; c < COLS; c += 8)
        for (int i = 0; i < 8; i++)
            to[c + i] = to_float(x.at(r, c)[i]);
}

} // namespace emu

inline void publish_copies()
{
    emu::visible_at[emu::state.running->thread] = emu::state.nbarriers + 1;
}

template <class... C> void wgmma_wait(C &...c)
{
    auto &products = emu::products[emu::state.running->thread];

    for (; !products.empty(); products.pop_front()) {
        if (!((products.front().c == &c) || ...))
            emu::fail("a wait for products without the accumulators of one of them");
        products.front().run();
        emu::state.nunfinished--;
    }
}

#endif

/* Queue c = x y^T, for all 64 rows of x.  The unnamed parameter, x0 in mma.h, is ignored. */
template <class T, int K, int N>
__device__ inline void multiply_rows(float (&c)[1][N][4], const tile<T, 64, K, true> &x, int,
                                     const tile<T, 8 * N, K, true> &y)
{
#ifdef __CUDACC__
    begin_products(c[0]);
#    pragma unroll
    for (int k = 0; k < K; k += 16)
        wgmma<T>(c[0], descriptor(x, 0, k), descriptor(y, 0, k), k == 0);
    commit_products(c[0]);
#else
    const int row = (int)threadIdx.x / WARP * 16 + emu::lane() / 4, column = emu::lane() % 4 * 2;

    memset(c, 0xff, sizeof c);
    emu::queue_product(&c, [&, row, column] {
        float x_row[2][K], y_row[K];

        emu::load_row(x_row[0], x, row);
        emu::load_row(x_row[1], x, row + 8);
        for (int n = 0; n < 2 * N; n++) {
            emu::load_row(y_row, y, n / 2 * 8 + column + n % 2);
            for (int h = 0; h < 2; h++) {
                float sum = 0.0f;

                for (int k = 0; k < K; k++)
                    sum += x_row[h][k] * y_row[k];
                c[0][n / 2][2 * h + n % 2] = sum;
            }
        }
    });
#endif
}

/*
 * Queue c += w y, where w [64, 8K] consists of accumulators, which are rounded to T.  w is copied, so the caller may
 * change it at once.  The unnamed parameter, c0 in mma.h, is ignored.
 */
template <class T, int K, int N>
__device__ inline void multiply_weights(float (&c)[1][N][4], const float (&w)[1][K][4],
                                        const tile<T, 8 * K, 8 * N, true> &y, int)
{
    uint32_t a[K / 2][4];

#pragma unroll
    for (int k = 0; k < K; k += 2)
        pack_a<T>(a[k / 2], &w[0][k]);
#ifdef __CUDACC__
    keep_in_place(a);
    begin_products(c[0]);
#    pragma unroll
    for (int k = 0; k < K; k += 2)
        wgmma<T>(c[0], a[k / 2], descriptor(y, 8 * k, 0));
    commit_products(c[0]);
#else
    struct operand {
        uint32_t v[K / 2][4];
    } own, all[WARP];
    std::array<float, 16 * K> w_rows; /* [2, 8K] */
    const int first = emu::lane() / 4 * 4, column = emu::lane() % 4 * 2;

    memcpy(own.v, a, sizeof a);
    emu::warp_exchange(&own, all, sizeof own);
    for (int h = 0; h < 2; h++)
        for (int k = 0; k < 8 * K; k++)
            w_rows[(size_t)(8 * K * h + k)] = unpack<T>(all[first + k % 8 / 2].v[k / 16][k % 16 / 8 * 2 + h], k % 2);
    emu::queue_product(&c, [&c, &y, w_rows, column] {
        for (int k = 0; k < 8 * K; k++)
            for (int n = 0; n < 2 * N; n++) {
                const float y_element = to_float(*y.at(k, n / 2 * 8 + column + n % 2));

                for (int h = 0; h < 2; h++)
                    c[0][n / 2][2 * h + n % 2] += w_rows[(size_t)(8 * K * h + k)] * y_element;
            }
    });
#endif
}
