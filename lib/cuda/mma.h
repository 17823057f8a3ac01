/*
 * mma.h - products of small matrices on tensor cores (sm_80 and later).
 *
 * A warp holds a matrix in registers.  An accumulator is f32; an operand is bf16 or f16, two elements in each u32.
 * Thread 4 * g + t of the warp has these elements:
 *   accumulator c [16,8]: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)
 *   operand a [16,16]:    (g, 2t..2t+1), (g+8, 2t..), (g, 2t+8..), (g+8, 2t+8..), as two packed accumulators
 *   operand b [16,8]:     (2t..2t+1, g), (2t+8.., g)
 */
#pragma once
#include "cuda/tile.h"

/* Round two numbers to T and pack them; x is in the lower half of the result. */
template <class T> __device__ uint32_t pack(float x, float y);

/* Compute c += a b, where b consists of b0 and b1. */
template <class T> __device__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

#ifdef __CUDACC__
template <> __device__ inline uint32_t pack<bf16>(float x, float y)
{
    uint32_t u;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(y), "f"(x));
    return u;
}

template <> __device__ inline uint32_t pack<f16>(float x, float y)
{
    uint32_t u;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(y), "f"(x));
    return u;
}

template <> __device__ inline void mma<bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <> __device__ inline void mma<f16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/*
 * Load four 8x8 matrices from shared memory.  Lanes 8i to 8i+7 pass the addresses of the rows of matrix i, 16 bytes
 * each; r[i] receives elements (g, 2t..2t+1) of matrix i.
 */
__device__ inline void load_matrices(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Like load_matrices, but r[i] receives elements (2t..2t+1, g) of matrix i. */
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

#else

template <class T> uint32_t pack(float x, float y)
{
    return from_float<T>(x).bits | (uint32_t)from_float<T>(y).bits << 16;
}

/* Return element `half` of a packed pair. */
template <class T> float unpack(uint32_t u, int half)
{
    return to_float(T{ (uint16_t)(u >> 16 * half) });
}

template <class T> void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    struct {
        float a[4][2], b[2][2];
    } own, all[WARP];
    const int g = emu::lane() / 4, t = emu::lane() % 4;

    for (int h = 0; h < 2; h++) {
        for (int i = 0; i < 4; i++)
            own.a[i][h] = unpack<T>(a[i], h);
        own.b[0][h] = unpack<T>(b0, h);
        own.b[1][h] = unpack<T>(b1, h);
    }
    emu::warp_exchange(&own, all, sizeof own);
    for (int i = 0; i < 4; i++) {
        float sum = c[i];

#    pragma GCC unroll 16
        for (int k = 0; k < 16; k++)
            sum += all[4 * g + k % 8 / 2].a[k / 8 * 2 + i / 2][k % 2] *
                   all[4 * (2 * t + i % 2) + k % 8 / 2].b[k / 8][k % 2];
        c[i] = sum;
    }
}

inline void load_matrices(uint32_t (&r)[4], const void *row)
{
    uint16_t own[8], all[WARP][8];
    const int g = emu::lane() / 4, t = emu::lane() % 4;

    memcpy(own, row, sizeof own);
    emu::warp_exchange(own, all, sizeof own);
    for (int i = 0; i < 4; i++)
        r[i] = all[8 * i + g][2 * t] | (uint32_t)all[8 * i + g][2 * t + 1] << 16;
}

inline void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
    uint16_t own[8], all[WARP][8];
    const int g = emu::lane() / 4, t = emu::lane() % 4;

    memcpy(own, row, sizeof own);
    emu::warp_exchange(own, all, sizeof own);
    for (int i = 0; i < 4; i++)
        r[i] = all[8 * i + 2 * t][g] | (uint32_t)all[8 * i + 2 * t + 1][g] << 16;
}

#endif

/* Load operand a [16,16], from row r0 and column c0 of a tile on. */
template <class T, int ROWS, int COLS>
__device__ inline void load_a(uint32_t (&a)[4], const tile<T, ROWS, COLS, false> &x, int r0, int c0)
{
    const int lane = (int)threadIdx.x % WARP;

    load_matrices(a, x.at(r0 + lane % 16, c0 + lane / 16 * 8));
}

/* Load two operands b, [16,16] together, of the transpose of a tile, from row c0 and column r0 of the tile on. */
template <class T, int ROWS, int COLS>
__device__ inline void load_b_of_rows(uint32_t (&b)[4], const tile<T, ROWS, COLS, false> &x, int c0, int r0)
{
    const int lane = (int)threadIdx.x % WARP;

    load_matrices(b, x.at(c0 + lane / 16 * 8 + lane % 8, r0 + lane / 8 % 2 * 8));
}

/* Load two operands b, [16,16] together, of a tile, from row r0 and column c0 on. */
template <class T, int ROWS, int COLS>
__device__ inline void load_b(uint32_t (&b)[4], const tile<T, ROWS, COLS, false> &x, int r0, int c0)
{
    const int lane = (int)threadIdx.x % WARP;

    load_matrices_transposed(b, x.at(r0 + lane % 16, c0 + lane / 16 * 8));
}

/* Round accumulators [16,16] to T: w[0] and w[1] become operand a. */
template <class T> __device__ inline void pack_a(uint32_t (&a)[4], const float (*w)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = pack<T>(w[i / 2][i % 2 * 2], w[i / 2][i % 2 * 2 + 1]);
}

/*
 * Compute c [16M, 8N] = x y^T for rows [x0, x0 + 16M) of x and all rows of y.  c[m] and c[m][n] are accumulators
 * [16, 8N] and [16, 8].
 */
template <class T, int K, int M, int N, int ROWS>
__device__ inline void multiply_rows(float (&c)[M][N][4], const tile<T, ROWS, K, false> &x, int x0,
                                     const tile<T, 8 * N, K, false> &y)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[m][n][i] = 0.0f;
#pragma unroll 2
    for (int k = 0; k < K; k += 16) {
        uint32_t a[M][4], b[4];

#pragma unroll
        for (int m = 0; m < M; m++)
            load_a(a[m], x, x0 + 16 * m, k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            load_b_of_rows(b, y, 8 * n, k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<T>(c[m][n], a[m], b[0], b[1]);
                mma<T>(c[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/*
 * Compute c [16M, 8N] += w y for columns [c0, c0 + 8N) of y, where w [16M, 8K] consists of accumulators, which are
 * rounded to T.
 */
template <class T, int K, int M, int N, int COLS>
__device__ inline void multiply_weights(float (&c)[M][N][4], const float (&w)[M][K][4],
                                        const tile<T, 8 * K, COLS, false> &y, int c0)
{
#pragma unroll
    for (int k = 0; k < K; k += 2) {
        uint32_t a[M][4], b[4];

#pragma unroll
        for (int m = 0; m < M; m++)
            pack_a<T>(a[m], &w[m][k]);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            load_b(b, y, 8 * k, c0 + 8 * n);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<T>(c[m][n], a[m], b[0], b[1]);
                mma<T>(c[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}
