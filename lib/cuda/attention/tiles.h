/* tiles.h - what the attention kernels for tensor cores have in common: tiles in shared memory and scores. */
#pragma once
#include "cuda/attention/attention.h"
#include "cuda/wgmma.h"

#define LN2 0.6931471805599453f

/* Heads are padded with zeros to D columns, the smallest of 64, 96, 128 and 256 that is not less than d and d_v. */
enum { MAX_D = 256 };

/* The constants of an instance of the kernels. */
template <class Type, int size, bool plain, bool with_wgmma> struct attn_config {
    using T = Type;                         /* element type of the heads */
    static constexpr int D = size;          /* padded head size */
    static constexpr bool is_plain = plain; /* scores are scale * q.k, and there is no block table */
    static constexpr bool uses_wgmma = with_wgmma;
    /* whether this compilation, for one type of GPU, contains the instance */
    static constexpr bool is_compiled = D > 128 || (uses_wgmma ? HAS_WGMMA : HAS_MMA_SYNC);

    template <int ROWS> using tile = ::tile<T, ROWS, D, uses_wgmma>;
};

/* End a kernel of which this compilation contains no code, so that the launch fails. */
static __device__ inline void fail_absent_instance()
{
#ifdef __CUDACC__
    __trap();
#else
    emu::fail("a launch of an instance that is not compiled");
#endif
}

/* Call f(attn_config<...>()) for heads of type `type`. */
template <class F> void with_config(enum meg_dtype type, const struct meg_attn_desc *desc, bool is_plain, F f)
{
    const int64_t d = desc->d > desc->d_v ? desc->d : desc->d_v;
    const auto with_all = [&](auto t, auto size, auto plain, auto wgmma) {
        f(attn_config<decltype(t), size, plain, wgmma>());
    };
    const auto with_instruction = [&](auto t, auto size, auto plain) {
        if (meg_cuda_device.has_wgmma)
            with_all(t, size, plain, std::true_type());
        else
            with_all(t, size, plain, std::false_type());
    };
    const auto with_size = [&](auto t, auto plain) {
        if (d <= 64)
            with_instruction(t, std::integral_constant<int, 64>(), plain);
        else if (d <= 96)
            with_instruction(t, std::integral_constant<int, 96>(), plain);
        else if (d <= 128)
            with_instruction(t, std::integral_constant<int, 128>(), plain);
        else
            with_all(t, std::integral_constant<int, 256>(), plain, std::false_type());
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

/* Return whether kernels for tensor cores can read x [.., d]: it has the type `type`, bf16 or f16, and aligned rows. */
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

/* Return whether a case is plain (attn_config). */
static inline bool is_plain_attention(const struct meg_attn_desc *desc)
{
    return desc->softcap == 0.0f && !desc->alibi_slope && !desc->rel_bias.p && !desc->block_offset;
}

/* ---- dropout ---- */

/*
 * The heads that a launch computes, in groups [g0, g0 + ng) of sequences [i0, i0 + ni), and the weights that
 * dropout keeps.  Bit n of element [i - i0, j - j0, word, t] of `bits` states whether query t of head j of sequence i
 * keeps the weight of key tile_origin + 64 * word + n.  The bits of one group of one sequence have
 * 8 * (a / g) * words * rows bytes, where words is about s_k / 64, and rows is s_q, rounded up to a multiple of 128.
 */
struct head_chunk {
    uint64_t *bits; /* [ni, heads, words, rows] in scratch memory, or NULL without dropout */
    int i0, ni, g0, ng;
    int j0, heads; /* query heads [j0, j0 + heads) of the groups */
    int words, rows;
    float scale; /* factor of kept weights; 1 without dropout */
};

/*
 * Return the first chunk, in which `bits`, j0 and `heads` are not set.  It has as many groups as meg_cuda_kept_nbytes
 * allows, but at least one; without dropout, it has all groups of all sequences.
 */
struct head_chunk meg_cuda_first_chunk(const struct meg_attn_desc *desc, const struct weight_drop *drop);
/* Queue the computation of the bits of a chunk, unless they are NULL. */
void meg_cuda_fill_kept_bits(struct meg_stream *st, const struct meg_attn_desc *desc, const struct weight_drop *drop,
                             const struct head_chunk *x);

/* Divide the heads into chunks.  For each, queue the computation of its bits, and call f(chunk). */
template <class F>
void for_chunks(struct meg_stream *st, const struct meg_attn_desc *desc, const struct weight_drop *drop, F f)
{
    const struct head_chunk first = meg_cuda_first_chunk(desc, drop);
    const int b = (int)desc->b, g = (int)desc->g, r = (int)(desc->a / desc->g);
    const size_t nwords = (size_t)first.ni * (size_t)(first.ng * r) * (size_t)first.words * (size_t)first.rows;
    struct head_chunk x = first;

    if (nwords > 0)
        x.bits = (uint64_t *)meg_cuda_scratch(st, nwords * sizeof *x.bits);
    for (x.i0 = 0; x.i0 < b; x.i0 += x.ni)
        for (x.g0 = 0; x.g0 < g; x.g0 += x.ng) {
            x.ni = first.ni < b - x.i0 ? first.ni : b - x.i0;
            x.ng = first.ng < g - x.g0 ? first.ng : g - x.g0;
            x.j0 = x.g0 * r;
            x.heads = x.ng * r;
            meg_cuda_fill_kept_bits(st, desc, drop, &x);
            f(x);
        }
}

/*
 * Begin to copy word `word` of x.bits, the dropout masks of 64 keys, to shared memory for queries [t0, t0 + n) of head
 * j of sequence i.  t0 and n are even.  Nothing is copied if `word` is not less than x.words.
 */
static __device__ inline void load_kept(uint64_t *to, const struct head_chunk &x, int i, int j, int word, int t0, int n)
{
    const uint64_t *const from =
        x.bits + (((int64_t)(i - x.i0) * x.heads + j - x.j0) * x.words + word) * (int64_t)x.rows + t0;

    if ((int)threadIdx.x < n / 2 && word < x.words)
        copy_async(to + 2 * threadIdx.x, from + 2 * threadIdx.x, true);
}

/* ---- tiles ---- */

/*
 * Begin to copy ROWS rows of d columns to a tile by THREADS threads.  row(r) returns a pointer to the first element of
 * row r in global memory; it is called once for each row of the thread, in ascending order.  Rows outside [begin, end),
 * for which the pointer may be invalid, and columns from d on are not read, but set to 0 in the copy.
 */
template <int THREADS, class T, int ROWS, int D, bool for_wgmma, class F>
static __device__ inline void load_rows(tile<T, ROWS, D, for_wgmma> &to, int d, int begin, int end, F row)
{
    constexpr int LANES = 8, STEP = THREADS / LANES; /* threads per row, rows per step */
    const int r0 = (int)threadIdx.x / LANES, c0 = (int)threadIdx.x % LANES * VEC;

    static_assert(ROWS % STEP == 0);
#pragma unroll
    for (int r = r0; r < r0 + ROWS; r += STEP) {
        const bool is_valid = r >= begin && r < end;
        const T *const p = row(r);

#pragma unroll
        for (int c = c0; c < c0 + D; c += LANES * VEC)
            if (D % (LANES * VEC) == 0 || c < D)
                copy_async(to.at(r, c), p + c, is_valid && c < d);
    }
}

/*
 * Begin to copy rows row0, row0 + 1, ... of a head of d columns, whose row 0 is at `head`; rows outside [0, end) are 0.
 */
template <int THREADS, class T, int ROWS, int D, bool for_wgmma>
static __device__ inline void load_head(tile<T, ROWS, D, for_wgmma> &to, const T *head, int64_t ld, int64_t d, int row0,
                                        int end)
{
    constexpr int STEP = THREADS / 8;
    const T *p = head + (row0 + (int)threadIdx.x / 8 - STEP) * ld;

    load_rows<THREADS>(to, (int)d, -row0, end - row0, [&](int) { return p += STEP * ld; });
}

/*
 * Begin to copy keys or values key, key + 1, ... of a group of sequence i; those outside [0, end) are 0.  A plain case
 * has no block table.
 */
template <int THREADS, bool is_plain, class T, int ROWS, int D, bool for_wgmma>
static __device__ inline void load_keys(tile<T, ROWS, D, for_wgmma> &to, const struct meg_attn_desc &desc,
                                        const struct meg_heads &from, int64_t i, int64_t group, int64_t d, int key,
                                        int end)
{
    const T *const p = (const T *)from.p;

    if (is_plain)
        load_head<THREADS>(to, p + i * from.ld_b + group * from.ld_g, from.ld_s, d, key, end);
    else
        load_rows<THREADS>(to, (int)d, -key, end - key,
                           [&](int r) { return p + key_index(desc, from, min(max(key + r, 0), end - 1), i, group); });
}

/* Wait until the copies of the calling thread are complete.  After the next barrier, products may read the tiles. */
template <class Config> static __device__ inline void wait_copies()
{
    copy_async_wait<0>();
    if constexpr (Config::uses_wgmma)
        publish_copies();
}

/*
 * Wait until all products that the warpgroup has queued are complete; c are their accumulators.  Without wgmma,
 * products are complete when multiply_rows and multiply_weights return.
 */
template <class Config, class... C> static __device__ inline void wait_products(C &...c)
{
    if constexpr (Config::uses_wgmma)
        wgmma_wait(c...);
}

/* Return a pointer to query 0 of head `head` of a group of sequence i. */
template <class T>
static __device__ inline const T *queries_of(const struct meg_heads &x, int64_t i, int64_t group, int64_t head)
{
    return (const T *)x.p + i * x.ld_b + group * x.ld_g + head * x.ld_h;
}

/*
 * `any` contains all keys to which at least one query of a tile attends, and `all` the keys to which each query
 * attends.
 */
struct tile_keys {
    struct attn_range any, all;
};

/* Return the keys of the queries [t0, t0 + n) of sequence i; those from s_q on count as the last query. */
static __device__ inline struct tile_keys keys_of_tile(const struct meg_attn_desc &desc, int t0, int n, int i)
{
    const struct attn_range first = visible_keys(desc, t0, i),
                            last = visible_keys(desc, min(t0 + n, (int)desc.s_q) - 1, i);

    return { { first.lo, last.hi }, { last.lo, first.hi } };
}

/* The lane of a thread: element e of its accumulators is in row g + e / 2 * 8 and column 2 * t + e % 2 (mma.h). */
struct lane {
    int g, t;
};

/* ---- scores ---- */

/* The biases of a tile of ROWS queries and KEYS keys, in shared memory. */
template <int ROWS, int KEYS> struct score_biases {
    float v[ROWS + KEYS]; /* element key - query + ROWS - 1: the bias times log2(e) */
};

/* Compute the biases of queries [t0, t0 + ROWS) of head j and keys [key, key + KEYS). */
template <int ROWS, int KEYS, int THREADS>
static __device__ inline void fill_biases(struct score_biases<ROWS, KEYS> *x, const struct meg_attn_desc &desc,
                                          int64_t i, int64_t j, int64_t t0, int64_t key)
{
    const int64_t position = query_position(desc, t0, i), first = desc.k0 + key - position - (ROWS - 1);

    if (desc.rel_bias.p || desc.alibi_slope)
        for (int n = (int)threadIdx.x; n < ROWS + KEYS - 1; n += THREADS)
            x->v[n] = LOG2E * score_bias(desc, j, first + n, desc.rel_bias.p ? rel_bias_bucket(desc, first + n) : 0);
    else
        for (int n = (int)threadIdx.x; n < ROWS + KEYS - 1; n += THREADS)
            x->v[n] = 0.0f;
}

/*
 * Return log2(e) times the score of a query and a key whose dot product is qk.  `bias` is already multiplied by
 * log2(e).  *slope is that of capped_score, without this factor.
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
