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
 * Add a[r] . b[c] to c[r,c] for at most TILE rows of a, from row i on, and TILE rows of b, from row j on.  Missing rows
 * are computed as copies of the last row, and their results are discarded.  Without inlining, a GEMM of one row takes
 * 15% longer.
 */
static inline __attribute__((always_inline)) void dot_tile(const struct gemm *g, int64_t i, int64_t j)
{
    const int64_t lda = g->a.ld, ldb = g->b.ld, k = g->k;
    const int64_t nr = meg_min64(TILE, g->m - i), nc = meg_min64(TILE, g->n - j);
    const float *x = (const float *)g->a.p + i * lda, *w = (const float *)g->b.p + j * ldb;
    float *y = g->c + i * g->ldc + j;
    const float *xr[TILE], *wc[TILE];
    vec sum[TILE][TILE] = { 0 };
    int64_t l = 0;
    for (int t = 0; t < TILE; t++) {
        xr[t] = x + meg_min64(t, nr - 1) * lda;
        wc[t] = w + meg_min64(t, nc - 1) * ldb;
    }
    for (; l + VEC_LANES <= k; l += VEC_LANES) {
        for (int c = 0; c < TILE; c++)
            __builtin_prefetch(wc[c] + l + TILE * ldb);
        for (int r = 0; r < TILE; r++)
            for (int c = 0; c < TILE; c++)
                sum[r][c] += *(const vec *)(xr[r] + l) * *(const vec *)(wc[c] + l);
    }
    for (int64_t r = 0; r < nr; r++)
        for (int64_t c = 0; c < nc; c++) {
            float s = sum_lanes(sum[r][c]);
            for (int64_t rest = l; rest < k; rest++)
                s += xr[r][rest] * wc[c][rest];
            y[r * g->ldc + c] += s;
        }
}

/* Add a b^T to c. */
static void gemm_dots(const struct gemm *g)
{
    for (int64_t j = 0; j < g->n; j += TILE)
        for (int64_t i = 0; i < g->m; i += TILE)
            dot_tile(g, i, j);
}

#if defined __AVX512BW__
/* Mark a function that uses bf16 instructions.  Call it only if meg_cpu_has_bf16_gemm returns true. */
#    define USES_BF16 __attribute__((target("avx512bf16")))
enum { BF16_LANES = 32 };

/*
 * Like dot_tile for bf16 operands, but set c[r,c] instead of adding to it.  An instruction adds two products to an f32
 * sum.  The elements after the last complete vector are padded with zeros.
 */
static inline USES_BF16 void dot_tile_bf16(const struct gemm *g, int64_t i, int64_t j)
{
    const int64_t lda = g->a.ld, ldb = g->b.ld, k = g->k;
    const int64_t nr = meg_min64(TILE, g->m - i), nc = meg_min64(TILE, g->n - j);
    const uint16_t *x = (const uint16_t *)g->a.p + i * lda, *w = (const uint16_t *)g->b.p + j * ldb;
    float *y = g->c + i * g->ldc + j;
    const uint16_t *xr[TILE], *wc[TILE];
    __m512 sum[TILE][TILE];
    for (int t = 0; t < TILE; t++) {
        xr[t] = x + meg_min64(t, nr - 1) * lda;
        wc[t] = w + meg_min64(t, nc - 1) * ldb;
        for (int c = 0; c < TILE; c++)
            sum[t][c] = _mm512_setzero_ps();
    }
    for (int64_t l = 0; l < k; l += BF16_LANES) {
        const __mmask32 mask = l + BF16_LANES <= k ? ~(__mmask32)0 : ((__mmask32)1 << (k - l)) - 1;
        __m512bh wv[TILE];
        for (int c = 0; c < TILE; c++) {
            __builtin_prefetch(wc[c] + l + TILE * ldb);
            wv[c] = (__m512bh)_mm512_maskz_loadu_epi16(mask, wc[c] + l);
        }
        for (int r = 0; r < TILE; r++) {
            const __m512bh xv = (__m512bh)_mm512_maskz_loadu_epi16(mask, xr[r] + l);
            for (int c = 0; c < TILE; c++)
                sum[r][c] = _mm512_dpbf16_ps(sum[r][c], xv, wv[c]);
        }
    }
    for (int64_t r = 0; r < nr; r++)
        for (int64_t c = 0; c < nc; c++)
            y[r * g->ldc + c] = _mm512_reduce_add_ps(sum[r][c]);
}

/* Compute c = a b^T with bf16 operands. */
static USES_BF16 void gemm_dots_bf16(const struct gemm *g)
{
    for (int64_t j = 0; j < g->n; j += TILE)
        for (int64_t i = 0; i < g->m; i += TILE)
            dot_tile_bf16(g, i, j);
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

static void gemm_mixed(const struct gemm *g)
{
    float pa[PANEL_A] __attribute__((aligned(64))), pb[PANEL_B] __attribute__((aligned(64)));
    struct gemm part = *g;
    for (int64_t k0 = 0; k0 < g->k; k0 += PANEL_DEPTH) {
        const int64_t depth = part.k = meg_min64(PANEL_DEPTH, g->k - k0);
        part.a = f32_operand(pa, (g->ta == 'N' ? depth : g->m) + PAD);
        part.b = f32_operand(pb, (g->tb == 'N' ? g->n : depth) + PAD);
        if (g->ta == 'N')
            pack(pa, part.a.ld, g->a, 0, g->m, k0, depth);
        else
            pack(pa, part.a.ld, g->a, k0, depth, 0, g->m);
        if (g->tb == 'N')
            pack(pb, part.b.ld, g->b, k0, depth, 0, g->n);
        else
            pack(pb, part.b.ld, g->b, 0, g->n, k0, depth);
        meg_cpu_gemm(&part);
        part.beta = 1.0f;
    }
}

/*
 * Add a b^T to c for m <= GEMM_SKINNY_M.  b is packed in blocks of 16 rows and 512 columns (32 KiB), which fit into the
 * L1 cache.
 */
static void gemm_skinny_mixed(const struct gemm *g)
{
    float pa[GEMM_SKINNY_M * 512] __attribute__((aligned(64)));
    float pb[16 * 512] __attribute__((aligned(64)));
    struct gemm part = *g;
    for (int64_t k0 = 0; k0 < g->k; k0 += 512) {
        const int64_t depth = part.k = meg_min64(512, g->k - k0);
        part.a = f32_operand(pa, depth);
        part.b = f32_operand(pb, depth);
        pack(pa, depth, g->a, 0, g->m, k0, depth);
        for (int64_t j = 0; j < g->n; j += 16) {
            part.n = meg_min64(16, g->n - j);
            part.c = g->c + j;
            pack(pb, depth, g->b, j, part.n, k0, depth);
            gemm_dots(&part);
        }
    }
}

void MEG_FN(gemm_block)(const struct gemm *g)
{
    const int is_f32 = g->a.dtype == MEG_DTYPE_F32 && g->b.dtype == MEG_DTYPE_F32;
    const int is_bf16 = g->a.dtype == MEG_DTYPE_BF16 && g->b.dtype == MEG_DTYPE_BF16 && meg_cpu_has_bf16_gemm();
    const int is_skinny = g->ta == 'N' && g->tb == 'T' && g->m <= GEMM_SKINNY_M && g->beta == 0.0f;
    MEG_ASSERT(is_f32 || (g->m <= GEMM_BLOCK_M && g->n <= GEMM_BLOCK_N));
#if defined __AVX512BW__
    if (is_skinny && is_bf16) {
        gemm_dots_bf16(g);
        return;
    }
#endif
    for (int64_t i = 0; (is_skinny || (g->k == 0 && g->beta == 0.0f)) && i < g->m; i++)
        memset(g->c + i * g->ldc, 0, (size_t)g->n * sizeof *g->c);
    if (is_skinny && is_f32)
        gemm_dots(g);
    else if (is_skinny)
        gemm_skinny_mixed(g);
    else if (is_f32 || is_bf16)
        meg_cpu_gemm(g);
    else
        gemm_mixed(g);
}
