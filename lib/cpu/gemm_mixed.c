/* isa: baseline v3 v4 */
/*
 * gemm_mixed.c - compute one block of a GEMM with f32, bf16 or f16 operands and f32 sums.  oneDNN's sgemm multiplies
 * two f32 operands.  oneDNN's bf16 GEMM, which is twice as fast, multiplies two bf16 operands if the CPU and oneDNN
 * support it.  Other operands are converted into f32 panels for sgemm.
 *
 * A GEMM c = a b^T of at most GEMM_SKINNY_M rows (decoding) is computed here as dot products.  Such a linear layer
 * spends most of its time reading the weights b, and oneDNN would also copy them.  The result of a row does not depend
 * on the number of rows, if there are at most GEMM_SKINNY_M.
 */
#if defined __AVX512BW__
#    include <immintrin.h>
#endif
#include "cpu/internal.h"

/*
 * A panel has at most PANEL_DEPTH elements in the summed dimension.  Each row of a panel is followed by PAD elements of
 * padding.  Without padding, the stride is often a multiple of 1 KiB, rows map to the same cache sets, and a GEMM that
 * transposes a reaches 75 instead of 95 GFLOP/s.
 */
enum { TILE = 4, PANEL_DEPTH = 256, PAD = 16, PREFETCH_ROWS = 4, CACHE_LINE = 64 };
enum { PANEL_A = (GEMM_BLOCK_M + PAD) * (PANEL_DEPTH + PAD), PANEL_B = (GEMM_BLOCK_N + PAD) * (PANEL_DEPTH + PAD) };

#if defined __AVX512F__
enum { VEC_LANES = 16 };
#elif defined __AVX__
enum { VEC_LANES = 8 };
#else
enum { VEC_LANES = 4 };
#endif
typedef float vec __attribute__((vector_size(VEC_LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

/* Sum all lanes: add the upper half to the lower one until one lane is left. */
static float sum_lanes(vec v)
{
    float lane[VEC_LANES];
    memcpy(lane, &v, sizeof lane);
    for (int half = VEC_LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

/*
 * Add x[r] . w[c] to y[r,c] for nr <= TILE rows of x and nc <= TILE rows of w.  Missing rows are computed as copies of
 * the last row, and their results are discarded.  Without inlining, a GEMM of one row takes 15% longer.
 */
static inline __attribute__((always_inline)) void dot_tile(float *y, int64_t ldy, const float *x, int64_t ldx,
                                                           int64_t nr, const float *w, int64_t ldw, int64_t nc,
                                                           int64_t k)
{
    const float *xr[TILE], *wc[TILE];
    vec sum[TILE][TILE] = { 0 };
    int64_t i = 0;
    for (int t = 0; t < TILE; t++) {
        xr[t] = x + meg_min64(t, nr - 1) * ldx;
        wc[t] = w + meg_min64(t, nc - 1) * ldw;
    }
    for (; i + VEC_LANES <= k; i += VEC_LANES) {
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
            y[r * ldy + c] += s;
        }
}

/* Add a b^T to c [m,n]. */
static void gemm_dots(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
                      float *c, int64_t ldc)
{
    for (int64_t j = 0; j < n; j += TILE)
        for (int64_t i = 0; i < m; i += TILE)
            dot_tile(c + i * ldc + j, ldc, a + i * lda, lda, meg_min64(TILE, m - i), b + j * ldb, ldb,
                     meg_min64(TILE, n - j), k);
}

#if defined __AVX512BW__
/* Mark a function that uses bf16 instructions.  Call it only if meg_cpu_has_bf16_gemm returns true. */
#    define USES_BF16 __attribute__((target("avx512bf16")))
enum { BF16_LANES = 32 };

/*
 * Like dot_tile for bf16 operands, but set y[r,c] instead of adding to it.  An instruction adds two products to an f32
 * sum.  The elements after the last complete vector are padded with zeros.
 */
static inline USES_BF16 void dot_tile_bf16(float *y, int64_t ldy, const uint16_t *x, int64_t ldx, int64_t nr,
                                           const uint16_t *w, int64_t ldw, int64_t nc, int64_t k)
{
    const uint16_t *xr[TILE], *wc[TILE];
    __m512 sum[TILE][TILE];
    for (int t = 0; t < TILE; t++) {
        xr[t] = x + meg_min64(t, nr - 1) * ldx;
        wc[t] = w + meg_min64(t, nc - 1) * ldw;
        for (int c = 0; c < TILE; c++)
            sum[t][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < k; i += BF16_LANES) {
        const __mmask32 mask = i + BF16_LANES <= k ? ~(__mmask32)0 : ((__mmask32)1 << (k - i)) - 1;
        __m512bh wv[TILE];
        for (int c = 0; c < TILE; c++) {
            __builtin_prefetch(wc[c] + i + TILE * ldw);
            wv[c] = (__m512bh)_mm512_maskz_loadu_epi16(mask, wc[c] + i);
        }
        for (int r = 0; r < TILE; r++) {
            const __m512bh xv = (__m512bh)_mm512_maskz_loadu_epi16(mask, xr[r] + i);
            for (int c = 0; c < TILE; c++)
                sum[r][c] = _mm512_dpbf16_ps(sum[r][c], xv, wv[c]);
        }
    }
    for (int64_t r = 0; r < nr; r++)
        for (int64_t c = 0; c < nc; c++)
            y[r * ldy + c] = _mm512_reduce_add_ps(sum[r][c]);
}

/* Compute c [m,n] = a b^T with bf16 operands. */
static USES_BF16 void gemm_dots_bf16(int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b,
                                     int64_t ldb, float *c, int64_t ldc)
{
    for (int64_t j = 0; j < n; j += TILE)
        for (int64_t i = 0; i < m; i += TILE)
            dot_tile_bf16(c + i * ldc + j, ldc, a + i * lda, lda, meg_min64(TILE, m - i), b + j * ldb, ldb,
                          meg_min64(TILE, n - j), k);
}
#endif

/*
 * Convert rows [r0, r0 + rows), columns [c0, c0 + cols) of x to f32; the rows of out begin ld elements apart.  Later
 * rows are prefetched, because short rows end before a hardware prefetcher detects the sequence.
 */
static void pack(float *out, int64_t ld, struct meg_mat x, int64_t r0, int64_t rows, int64_t c0, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++) {
        const char *next = element(x, r0 + r + PREFETCH_ROWS, c0), *end = element(x, r0 + r + PREFETCH_ROWS, c0 + cols);

        for (; next < end; next += CACHE_LINE)
            __builtin_prefetch(next);
        MEG_FN(to_f32)(out + r * ld, element(x, r0 + r, c0), x.dtype, cols);
    }
}

static void gemm_mixed(char ta, char tb, int64_t m, int64_t n, int64_t k, struct meg_mat a, struct meg_mat b,
                       float beta, float *c, int64_t ldc)
{
    float pa[PANEL_A] __attribute__((aligned(64))), pb[PANEL_B] __attribute__((aligned(64)));
    for (int64_t k0 = 0; k0 < k; k0 += PANEL_DEPTH) {
        const int64_t depth = meg_min64(PANEL_DEPTH, k - k0);
        const int64_t lda = (ta == 'N' ? depth : m) + PAD, ldb = (tb == 'N' ? n : depth) + PAD;
        if (ta == 'N')
            pack(pa, lda, a, 0, m, k0, depth);
        else
            pack(pa, lda, a, k0, depth, 0, m);
        if (tb == 'N')
            pack(pb, ldb, b, k0, depth, 0, n);
        else
            pack(pb, ldb, b, 0, n, k0, depth);
        meg_cpu_gemm(ta, tb, m, n, depth, 1.0f, pa, lda, pb, ldb, k0 ? 1.0f : beta, c, ldc);
    }
}

/*
 * Add a b^T to c [m,n] for m <= GEMM_SKINNY_M.  b is packed in blocks of 16 rows and 512 columns (32 KiB), which fit
 * into the L1 cache.
 */
static void gemm_skinny_mixed(int64_t m, int64_t n, int64_t k, struct meg_mat a, struct meg_mat b, float *c,
                              int64_t ldc)
{
    float pa[GEMM_SKINNY_M * 512] __attribute__((aligned(64)));
    float pb[16 * 512] __attribute__((aligned(64)));
    for (int64_t k0 = 0; k0 < k; k0 += 512) {
        const int64_t depth = meg_min64(512, k - k0);
        pack(pa, depth, a, 0, m, k0, depth);
        for (int64_t j = 0; j < n; j += 16) {
            const int64_t cols = meg_min64(16, n - j);
            pack(pb, depth, b, j, cols, k0, depth);
            gemm_dots(m, cols, depth, pa, depth, pb, depth, c + j, ldc);
        }
    }
}

void MEG_FN(gemm_block)(char ta, char tb, int64_t m, int64_t n, int64_t k, struct meg_mat a, struct meg_mat b,
                        float beta, float *c, int64_t ldc)
{
    const int is_f32 = a.dtype == MEG_DTYPE_F32 && b.dtype == MEG_DTYPE_F32;
    const int is_bf16 = a.dtype == MEG_DTYPE_BF16 && b.dtype == MEG_DTYPE_BF16;
    const int is_skinny = ta == 'N' && tb == 'T' && m <= GEMM_SKINNY_M && beta == 0.0f;
    MEG_ASSERT(is_f32 || (m <= GEMM_BLOCK_M && n <= GEMM_BLOCK_N));
#if defined __AVX512BW__
    if (is_skinny && is_bf16 && meg_cpu_has_bf16_gemm()) {
        gemm_dots_bf16(m, n, k, a.p, a.ld, b.p, b.ld, c, ldc);
        return;
    }
#endif
    for (int64_t i = 0; is_skinny && i < m; i++)
        memset(c + i * ldc, 0, (size_t)n * sizeof *c);
    if (is_skinny && is_f32)
        gemm_dots(m, n, k, a.p, a.ld, b.p, b.ld, c, ldc);
    else if (is_skinny)
        gemm_skinny_mixed(m, n, k, a, b, c, ldc);
    else if (is_f32)
        meg_cpu_gemm(ta, tb, m, n, k, 1.0f, a.p, a.ld, b.p, b.ld, beta, c, ldc);
    else if (is_bf16 && meg_cpu_has_bf16_gemm())
        meg_cpu_gemm_bf16(ta, tb, m, n, k, 1.0f, a.p, a.ld, b.p, b.ld, beta, c, ldc);
    else
        gemm_mixed(ta, tb, m, n, k, a, b, beta, c, ldc);
}
