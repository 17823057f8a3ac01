/* attention_mma.h - what the attention kernels for tensor cores have in common: tiles in shared memory and scores. */
#ifndef MEG_CUDA_ATTENTION_MMA_H
#define MEG_CUDA_ATTENTION_MMA_H
#include "cuda/attention.h"
#include "cuda/mma.h"

#define LN2 0.6931471805599453f

/*
 * Heads are padded with zeros to D columns, the smallest of 64, 96, 128 and 256 that is not less than d and d_v.  Rows
 * of tiles in shared memory have 8 additional elements, so that the rows of an 8x8 matrix are in different banks.
 */
enum { MAX_D = 256, ROW_PAD = 8 };

/*
 * Call f(element type, padded head size, is_plain), the last two as constants.  In a plain case, scores are scale *
 * q.k, and there is neither dropout nor a block table.
 */
template <class F> void with_mma_type(enum meg_dtype type, const struct meg_attn_desc *desc, bool is_plain, F f)
{
    const int64_t d = desc->d > desc->d_v ? desc->d : desc->d_v;
    const auto with_size = [&](auto t, auto plain) {
        if (d <= 64)
            f(t, std::integral_constant<int, 64>(), plain);
        else if (d <= 96)
            f(t, std::integral_constant<int, 96>(), plain);
        else if (d <= 128)
            f(t, std::integral_constant<int, 128>(), plain);
        else
            f(t, std::integral_constant<int, 256>(), plain);
    };
    const auto with_plain = [&](auto t) {
        if (is_plain)
            with_size(t, std::true_type());
        else
            with_size(t, std::false_type());
    };

    if (type == MEG_DTYPE_BF16)
        with_plain(bf16());
    else
        with_plain(f16());
}

/* Return whether kernels for tensor cores can read heads x of `d` columns, and `type`, their type, is bf16 or f16. */
static inline bool fits_mma(struct meg_heads x, enum meg_dtype type, int64_t d)
{
    return x.dtype == type && type != MEG_DTYPE_F32 && d % 8 == 0 && d <= MAX_D && has_aligned_heads(x) &&
           x.ld_s <= INT32_MAX;
}

/* Return whether a block of the GPU in use may have nbytes of shared memory. */
static inline bool fits_shared(size_t nbytes)
{
    return (int64_t)nbytes <= meg_cuda_max_shared();
}

/* Return whether a case is plain (with_mma_type). */
static inline bool is_plain_attention(const struct meg_attn_desc *desc, const struct weight_drop *drop)
{
    return desc->softcap == 0.0f && !desc->alibi_slope && !desc->rel_bias.p && !desc->block_offset && !drop->threshold;
}

/* ---- tiles ---- */

/*
 * Begin to copy ROWS rows to shared memory by THREADS threads.  row(r) is a pointer to the first element of row r in
 * global memory, or NULL if the row is to be 0; columns from d on are 0.
 */
template <class T, int D, int ROWS, int THREADS, class F>
static __device__ inline void load_rows(T *to, const struct meg_heads &from, int d, F row)
{
    constexpr int LANES = 8, STEP = THREADS / LANES; /* threads per row, rows per step */
    const int r0 = (int)threadIdx.x / LANES, c0 = (int)threadIdx.x % LANES * VEC;

    static_assert(ROWS % STEP == 0);
#pragma unroll
    for (int r = r0; r < r0 + ROWS; r += STEP) {
        const T *const p = row(r);

#pragma unroll
        for (int c = c0; c < c0 + D; c += LANES * VEC)
            if (D % (LANES * VEC) == 0 || c < D)
                copy_async(to + r * (D + ROW_PAD) + c, p ? p + c : (const T *)from.p, p && c < d);
    }
}

/*
 * Begin to copy the keys or values [key, key + ROWS) of a group of sequence i; those outside [0, end) are 0.  A plain
 * case has no block table.
 */
template <class T, int D, int ROWS, int THREADS, bool is_plain>
static __device__ inline void load_keys(T *to, const struct meg_attn_desc &desc, const struct meg_heads &from,
                                        int64_t i, int64_t group, int64_t d, int key, int end)
{
    const T *const head = (const T *)from.p + i * from.ld_b + group * from.ld_g;

    load_rows<T, D, ROWS, THREADS>(to, from, (int)d, [&](int r) -> const T * {
        if ((unsigned)(key + r) >= (unsigned)end)
            return NULL;
        if (!is_plain)
            return (const T *)from.p + key_index(desc, from, key + r, i, group);
        return head + (int64_t)(key + r) * (int)from.ld_s;
    });
}

/* Begin to copy the queries [t0, t0 + ROWS) of head j of sequence i; for those from s_q on, copy the last query. */
template <class T, int D, int ROWS, int THREADS>
static __device__ inline void load_queries(T *to, const struct meg_attn_desc &desc, const struct meg_heads &from,
                                           int64_t i, int64_t j, int64_t d, int t0)
{
    const T *const head = (const T *)from.p + query_index(desc, from, 0, i, j);

    load_rows<T, D, ROWS, THREADS>(
        to, from, (int)d, [&](int r) { return head + (int64_t)min(t0 + r, (int)desc.s_q - 1) * (int)from.ld_s; });
}

/*
 * `any` is the smallest range that contains all keys to which at least one query of a tile attends.  `all` contains the
 * keys to which each query attends.
 */
struct tile_keys {
    struct attn_range any, all;
};

/*
 * Return the keys of a tile of n queries, given those of each query in shared memory.  All threads of a warp call it.
 */
static __device__ inline struct tile_keys keys_of_tile(const struct attn_range *keys, int n)
{
    struct tile_keys x = { { 1 << 30, 0 }, { 0, 1 << 30 } };

    for (int r = (int)threadIdx.x % WARP; r < n; r += WARP) {
        const struct attn_range k = keys[r];

        if (k.lo < k.hi) {
            x.any.lo = min(x.any.lo, k.lo);
            x.any.hi = max(x.any.hi, k.hi);
        }
        x.all.lo = max(x.all.lo, k.lo);
        x.all.hi = min(x.all.hi, k.hi);
    }
#pragma unroll
    for (int i = WARP / 2; i > 0; i /= 2) {
        x.any.lo = min(x.any.lo, __shfl_xor_sync(0xffffffffu, x.any.lo, i));
        x.any.hi = max(x.any.hi, __shfl_xor_sync(0xffffffffu, x.any.hi, i));
        x.all.lo = max(x.all.lo, __shfl_xor_sync(0xffffffffu, x.all.lo, i));
        x.all.hi = min(x.all.hi, __shfl_xor_sync(0xffffffffu, x.all.hi, i));
    }
    return x;
}

/* The lane of a thread: element e of its accumulators is in row g + e / 2 * 8 and column 2 * t + e % 2 (mma.h). */
struct lane {
    int g, t;
};

/* ---- scores ---- */

/* The biases and the dropout of a tile of ROWS queries and KEYS keys, in shared memory. */
template <int ROWS, int KEYS> struct score_terms {
    float bias[ROWS + KEYS];      /* element key - query + ROWS - 1: the bias times log2(e) */
    uint8_t kept[ROWS][KEYS / 8]; /* kept_keys */
};

/* Compute the terms of queries [t0, t0 + ROWS) of head j and keys [key, key + KEYS). */
template <int ROWS, int KEYS, int THREADS>
static __device__ inline void fill_terms(struct score_terms<ROWS, KEYS> *x, const struct meg_attn_desc &desc,
                                         const struct weight_drop &drop, int64_t i, int64_t j, int64_t t0, int64_t key)
{
    const int64_t position = query_position(desc, t0, i), first = desc.k0 + key - position - (ROWS - 1);

    if (desc.rel_bias.p || desc.alibi_slope)
        for (int n = (int)threadIdx.x; n < ROWS + KEYS - 1; n += THREADS)
            x->bias[n] = LOG2E * score_bias(desc, j, first + n, desc.rel_bias.p ? rel_bias_bucket(desc, first + n) : 0);
    else
        for (int n = (int)threadIdx.x; n < ROWS + KEYS - 1; n += THREADS)
            x->bias[n] = 0.0f;
    if (drop.threshold)
        for (int n = (int)threadIdx.x; n < ROWS * (KEYS / 8); n += THREADS) {
            const int r = n / (KEYS / 8), c = n % (KEYS / 8);

            x->kept[r][c] = kept_keys(desc, drop, i, j, position + r, key + 8 * c);
        }
}

/*
 * Return log2(e) times the score of a query and a key whose product is qk.  `bias` contains the factor log2(e).
 * *slope, which is that of capped_score, does not.
 */
static __device__ inline float score2(const struct meg_attn_desc &desc, float qk, float bias, float *slope)
{
    return LOG2E * capped_score(desc, qk, slope) + bias;
}

/* ---- results ---- */

/*
 * Store rows g and g+8 of accumulators [16, 8N], multiplied by scale[0] and scale[1], to columns [c0, c0 + 8N) of heads
 * of d columns, or add them if `accumulate` is set.  row[0] and row[1] are the indices of the first elements of the
 * rows; nothing is stored if they are negative.
 */
template <int N>
static __device__ inline void store_accumulators(struct meg_heads to, const int64_t (&row)[2], int c0, int64_t d,
                                                 const float (&c)[N][4], const float (&scale)[2], bool accumulate)
{
    with_pointer(to.p, to.dtype, [&](auto *p) {
        using T = std::remove_reference_t<decltype(*p)>;
        struct alignas(2 * sizeof(T)) pair {
            T v[2];
        };

#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int column = c0 + 8 * n + (int)threadIdx.x % 4 * 2;
                float x = c[n][2 * h] * scale[h], y = c[n][2 * h + 1] * scale[h];

                if (row[h] >= 0 && column < d) {
                    pair *const at = (pair *)(p + row[h] + column);

                    if (accumulate) {
                        const pair old = *at;

                        x += to_float(old.v[0]);
                        y += to_float(old.v[1]);
                    }
                    *at = { { from_float<T>(x), from_float<T>(y) } };
                }
            }
    });
}
#endif
