/*
 * attention_bwd.cu - the backward pass of attention on tensor cores.
 *
 * One kernel computes dk and dv: a block owns 64 keys of a group and iterates over the queries of the heads of the
 * group.  The other computes dq: a block owns 64 queries of a head and iterates over the keys.  Both recompute the
 * scores and the gradients of the weights, 7 products of matrices instead of 5, so that no gradient is the sum of the
 * results of several blocks, and the results do not depend on the order of blocks.
 *
 * A tile of what a block iterates over is copied to shared memory while the previous one is processed.  A warp owns 16
 * rows of its block and keeps weights in registers, where they are operands of the next product.
 */
#include "cuda/attention_mma.h"

struct attn_mma_bwd {
    struct meg_attn_desc desc;
    struct meg_heads dq, dk, dv, d_o, q, k, v;
    const float *lse, *delta;
    struct weight_drop drop;
    bool accumulate;
};

enum { OWN = 64 }; /* rows that a block owns */

/* Sizes for heads of D columns. */
template <int D, bool is_plain> struct bwd_sizes {
    static constexpr int LD = D + ROW_PAD;
    static constexpr int STEP =
        D <= (is_plain ? 128 : 96) ? 64 : 32; /* rows of the tiles over which a block iterates */
    /*
     * If D is above 128, dk and dv are split by columns between two warps that compute the same weights, to fit in
     * registers.
     */
    static constexpr int SPLITS = D <= 128 ? 1 : 2, N = D / 8 / SPLITS;
    static constexpr int THREADS = OWN / 16 * WARP, THREADS_DKDV = THREADS * SPLITS;
};

/*
 * Replace s, a product q.k, by the weight after dropout, but without the factor of kept weights, and dp, a product
 * d_o.v, by the gradient with respect to scale * q.k.  lse contains the factor log2(e).
 */
template <bool is_plain>
static __device__ inline void bwd_weight(const struct attn_mma_bwd &x, float &s, float &dp, float lse, float delta,
                                         float bias, bool is_kept)
{
    float slope = 1.0f, p;

    if (is_plain) {
        p = exp2_fast(x.desc.scale * LOG2E * s - lse);
        s = p;
        dp = p * (dp - delta);
    } else {
        p = exp2_fast(score2(x.desc, s, bias, &slope) - lse);
        s = is_kept ? p : 0.0f;
        dp = p * ((is_kept ? dp * x.drop.scale : 0.0f) - delta) * slope;
    }
}

/* ---- dk and dv ---- */

template <class T, int D, bool is_plain> struct dkdv_tiles {
    static constexpr int LD = bwd_sizes<D, is_plain>::LD, STEP = bwd_sizes<D, is_plain>::STEP;
    T k[OWN * LD], v[OWN * LD];
    struct {
        T q[STEP * LD], d_o[STEP * LD];
        float lse[STEP], delta[STEP]; /* lse contains the factor log2(e) */
        struct attn_range keys[STEP];
    } queries[2];
    struct score_terms<STEP, OWN> terms;
};

/* Compute bwd_weight for keys row0, row0 + 1, ... of a block (rows) and a tile of queries (columns). */
template <bool is_plain, int N, class Queries>
static __device__ inline void dkdv_weights(float (&s)[N][4], float (&dp)[N][4], const struct attn_mma_bwd &x,
                                           const Queries &queries, const struct score_terms<8 * N, OWN> &terms,
                                           int row0, struct lane lane)
{
#pragma unroll
    for (int m = 0; m < N; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int query = 8 * m + 2 * lane.t + e % 2, c = row0 + lane.g + e / 2 * 8;
            float bias = 0.0f;
            bool is_kept = true;

            if (!is_plain) {
                bias = terms.bias[c - query + 8 * N - 1];
                is_kept = !x.drop.threshold || (terms.kept[query][c / 8] >> lane.g & 1);
            }
            bwd_weight<is_plain>(x, s[m][e], dp[m][e], queries.lse[query], queries.delta[query], bias, is_kept);
        }
}

/* Set s and dp to 0 where a query of a tile does not attend to one of the keys row0, row0 + 1, ... of the sequence. */
template <int N>
static __device__ inline void dkdv_mask(float (&s)[N][4], float (&dp)[N][4], const struct attn_range *keys, int row0,
                                        struct lane lane)
{
#pragma unroll
    for (int m = 0; m < N; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const struct attn_range visible = keys[8 * m + 2 * lane.t + e % 2];
            const int c = row0 + lane.g + e / 2 * 8;

            if (c < visible.lo || c >= visible.hi)
                s[m][e] = dp[m][e] = 0.0f;
        }
}

template <class T, int D, bool is_plain>
static __global__ void __launch_bounds__(bwd_sizes<D, is_plain>::THREADS_DKDV) attn_bwd_dkdv(struct attn_mma_bwd x)
{
    using sizes = bwd_sizes<D, is_plain>;
    constexpr int LD = sizes::LD, STEP = sizes::STEP, N = sizes::N, THREADS = sizes::THREADS_DKDV;
    using tiles = dkdv_tiles<T, D, is_plain>;
    SHARED(tiles, sh);
    const struct meg_attn_desc &desc = x.desc;
    const int r = (int)(desc.a / desc.g), key = tile_origin(desc) + (int)blockIdx.x * OWN, group = (int)blockIdx.y,
              i = (int)blockIdx.z;
    const int warp = (int)threadIdx.x / WARP;
    const struct lane lane = { (int)threadIdx.x % WARP / 4, (int)threadIdx.x % 4 };
    const int row0 = warp % (OWN / 16) * 16, column0 = warp / (OWN / 16) * N * 8;
    const struct attn_range window = queries_in_window(desc, max(key, 0), min(key + OWN, (int)desc.s_k));
    const int first = window.lo / STEP * STEP, end_j = window.lo < window.hi ? (group + 1) * r : 0;
    const auto load = [&](int stage, int j, int t0) {
        auto &to = sh->queries[stage];

        load_queries<T, D, STEP, THREADS>(to.q, desc, x.q, i, j, desc.d, t0);
        load_queries<T, D, STEP, THREADS>(to.d_o, desc, x.d_o, i, j, desc.d_v, t0);
        copy_async_commit();
        if (threadIdx.x < STEP) {
            const int token = t0 + (int)threadIdx.x;
            const bool is_valid = token < desc.s_q;
            const int64_t row = (i * desc.a + j) * desc.s_q + token;

            to.lse[threadIdx.x] = is_valid ? x.lse[row] * LOG2E : 0.0f;
            to.delta[threadIdx.x] = is_valid ? x.delta[row] : 0.0f;
            to.keys[threadIdx.x] = is_valid ? visible_keys(desc, token, i) : attn_range{ 0, 0 };
        }
    };
    float dk[1][N][4] = {}, dv[1][N][4] = {};

    load_keys<T, D, OWN, THREADS, is_plain>(sh->k, desc, x.k, i, group, desc.d, key, (int)desc.s_k);
    load_keys<T, D, OWN, THREADS, is_plain>(sh->v, desc, x.v, i, group, desc.d_v, key, (int)desc.s_k);
    copy_async_commit();
    if (group * r < end_j)
        load(0, group * r, first);
    for (int j = group * r, t0 = first, next_j, next_t0, stage = 0; j < end_j; j = next_j, t0 = next_t0, stage ^= 1) {
        const auto &queries = sh->queries[stage];
        float s[1][STEP / 8][4] = {}, dp[1][STEP / 8][4] = {};
        struct tile_keys keys;

        copy_async_wait<0>();
        __syncthreads();
        next_j = t0 + STEP < window.hi ? j : j + 1;
        next_t0 = t0 + STEP < window.hi ? t0 + STEP : first;
        if (next_j < end_j)
            load(stage ^ 1, next_j, next_t0);
        keys = keys_of_tile(queries.keys, STEP);
        if (keys.any.lo >= key + OWN || keys.any.hi <= key)
            continue;
        if (!is_plain) {
            fill_terms<STEP, OWN, THREADS>(&sh->terms, desc, x.drop, i, j, t0, key);
            __syncthreads();
        }
        multiply_rows<T, D>(s, sh->k, row0, queries.q, LD);
        multiply_rows<T, D>(dp, sh->v, row0, queries.d_o, LD);
        dkdv_weights<is_plain>(s[0], dp[0], x, queries, sh->terms, row0, lane);
        if (key < keys.all.lo || key + OWN > keys.all.hi)
            dkdv_mask(s[0], dp[0], queries.keys, key + row0, lane);
        multiply_weights<T>(dv, s, queries.d_o + column0, LD);
        multiply_weights<T>(dk, dp, queries.q + column0, LD);
    }
    copy_async_wait<0>();

    int64_t row_k[2], row_v[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int token = key + row0 + lane.g + 8 * h;
        const bool is_valid = token >= 0 && token < desc.s_k;

        row_k[h] = is_valid ? key_index(desc, x.dk, token, i, group) : -1;
        row_v[h] = is_valid ? key_index(desc, x.dv, token, i, group) : -1;
    }
    store_accumulators(x.dk, row_k, column0, desc.d, dk[0], { desc.scale, desc.scale }, x.accumulate);
    store_accumulators(x.dv, row_v, column0, desc.d_v, dv[0], { x.drop.scale, x.drop.scale }, x.accumulate);
}

/* ---- dq ---- */

template <class T, int D, bool is_plain> struct dq_tiles {
    static constexpr int LD = bwd_sizes<D, is_plain>::LD, STEP = bwd_sizes<D, is_plain>::STEP;
    T q[OWN * LD], d_o[OWN * LD];
    struct {
        T k[STEP * LD], v[STEP * LD];
    } keys[2];
    struct attn_range visible[OWN];
    struct score_terms<OWN, STEP> terms;
};

/* Compute bwd_weight for queries row0, row0 + 1, ... of a block (rows) and a tile of keys (columns). */
template <bool is_plain, int N>
static __device__ inline void dq_weights(float (&s)[N][4], float (&dp)[N][4], const struct attn_mma_bwd &x,
                                         const float (&lse)[2], const float (&delta)[2],
                                         const struct score_terms<OWN, 8 * N> &terms, int row0, struct lane lane)
{
#pragma unroll
    for (int m = 0; m < N; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int query = row0 + lane.g + e / 2 * 8, c = 8 * m + 2 * lane.t + e % 2;
            float bias = 0.0f;
            bool is_kept = true;

            if (!is_plain) {
                bias = terms.bias[c - query + OWN - 1];
                is_kept = !x.drop.threshold || (terms.kept[query][m] >> c % 8 & 1);
            }
            bwd_weight<is_plain>(x, s[m][e], dp[m][e], lse[e / 2], delta[e / 2], bias, is_kept);
        }
}

/* Set dp to 0 where a query of a warp does not attend to a key of the tile, whose first key is `key`. */
template <int N>
static __device__ inline void dq_mask(float (&dp)[N][4], const struct attn_range *keys, int key, struct lane lane)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const struct attn_range visible = keys[lane.g + 8 * h];

#pragma unroll
        for (int m = 0; m < N; m++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int c = key + 8 * m + 2 * lane.t + e;

                if (c < visible.lo || c >= visible.hi)
                    dp[m][2 * h + e] = 0.0f;
            }
    }
}

template <class T, int D, bool is_plain>
static __global__ void __launch_bounds__(bwd_sizes<D, is_plain>::THREADS, D <= 128 ? 2 : 1)
    attn_bwd_dq(struct attn_mma_bwd x)
{
    using sizes = bwd_sizes<D, is_plain>;
    constexpr int LD = sizes::LD, STEP = sizes::STEP, THREADS = sizes::THREADS;
    using tiles = dq_tiles<T, D, is_plain>;
    SHARED(tiles, sh);
    const struct meg_attn_desc &desc = x.desc;
    const int t0 = (int)(gridDim.x - 1 - blockIdx.x) * OWN, j = (int)blockIdx.y, i = (int)blockIdx.z,
              group = j / (int)(desc.a / desc.g);
    const int warp = (int)threadIdx.x / WARP;
    const struct lane lane = { (int)threadIdx.x % WARP / 4, (int)threadIdx.x % 4 };
    const int row0 = warp * 16, origin = tile_origin(desc);
    const auto load = [&](int stage, int key, int end) {
        load_keys<T, D, STEP, THREADS, is_plain>(sh->keys[stage].k, desc, x.k, i, group, desc.d, key, end);
        load_keys<T, D, STEP, THREADS, is_plain>(sh->keys[stage].v, desc, x.v, i, group, desc.d_v, key, end);
        copy_async_commit();
    };
    float dq[1][D / 8][4] = {}, lse[2], delta[2];
    int64_t row[2];
    struct tile_keys keys;
    int key, stage = 0;

    load_queries<T, D, OWN, THREADS>(sh->q, desc, x.q, i, j, desc.d, t0);
    load_queries<T, D, OWN, THREADS>(sh->d_o, desc, x.d_o, i, j, desc.d_v, t0);
    copy_async_commit();
    for (int n = (int)threadIdx.x; n < OWN; n += THREADS)
        sh->visible[n] = visible_keys(desc, min(t0 + n, (int)desc.s_q - 1), i);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t token = min(t0 + row0 + lane.g + 8 * h, (int)desc.s_q - 1);

        lse[h] = x.lse[(i * desc.a + j) * desc.s_q + token] * LOG2E;
        delta[h] = x.delta[(i * desc.a + j) * desc.s_q + token];
    }
    __syncthreads();
    keys = keys_of_tile(sh->visible, OWN);
    key = origin + (keys.any.lo - origin) / STEP * STEP;
    if (key < keys.any.hi)
        load(0, key, keys.any.hi);
    for (; key < keys.any.hi; key += STEP, stage ^= 1) {
        float s[1][STEP / 8][4] = {}, dp[1][STEP / 8][4] = {};

        copy_async_wait<0>();
        __syncthreads();
        if (key + STEP < keys.any.hi)
            load(stage ^ 1, key + STEP, keys.any.hi);
        if (!is_plain) {
            fill_terms<OWN, STEP, THREADS>(&sh->terms, desc, x.drop, i, j, t0, key);
            __syncthreads();
        }
        multiply_rows<T, D>(s, sh->q, row0, sh->keys[stage].k, LD);
        multiply_rows<T, D>(dp, sh->d_o, row0, sh->keys[stage].v, LD);
        dq_weights<is_plain>(s[0], dp[0], x, lse, delta, sh->terms, row0, lane);
        if (key < keys.all.lo || key + STEP > keys.all.hi)
            dq_mask(dp[0], sh->visible + row0, key, lane);
        multiply_weights<T>(dq, dp, sh->keys[stage].k, LD);
    }
    copy_async_wait<0>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int token = t0 + row0 + lane.g + 8 * h;

        row[h] = token < desc.s_q ? query_index(desc, x.dq, token, i, j) : -1;
    }
    store_accumulators(x.dq, row, 0, desc.d, dq[0], { desc.scale, desc.scale }, x.accumulate);
}

bool meg_cuda_attn_mma_bwd(struct meg_stream *st, const struct meg_attn_desc *desc,
                           const struct meg_attn_bwd_args *args, const struct meg_drop *drop)
{
    struct attn_mma_bwd x = {};
    const enum meg_dtype type = args->q.dtype;
    bool fits_plain, fits = true;

    if (!fits_mma(args->q, type, desc->d) || !fits_mma(args->k, type, desc->d) || !fits_mma(args->v, type, desc->d_v) ||
        !fits_mma(args->d_o, type, desc->d_v) || !has_aligned_heads(args->dq) || !has_aligned_heads(args->dk) ||
        !has_aligned_heads(args->dv))
        return false;
    x.desc = *desc;
    x.dq = args->dq, x.dk = args->dk, x.dv = args->dv;
    x.d_o = args->d_o, x.q = args->q, x.k = args->k, x.v = args->v;
    x.lse = args->lse;
    x.delta = args->delta;
    x.drop = weight_drop_of(drop);
    x.accumulate = args->accumulate;
    /* The tiles of plain cases with 128 columns are larger.  GPUs without space for them use those of other cases. */
    fits_plain = (desc->d > desc->d_v ? desc->d : desc->d_v) <= 96 || fits_shared(sizeof(dkdv_tiles<bf16, 128, true>));
    with_mma_type(type, desc, fits_plain && is_plain_attention(desc, &x.drop), [&](auto t, auto size, auto is_plain) {
        using T = decltype(t);
        constexpr int D = size;
        using sizes = bwd_sizes<D, is_plain>;

        fits = fits_shared(sizeof(dkdv_tiles<T, D, is_plain>)) && fits_shared(sizeof(dq_tiles<T, D, is_plain>));
        if (fits && desc->s_k * desc->b > 0)
            launch(st, attn_bwd_dkdv<T, D, is_plain>,
                   dim3((unsigned)ceil_div(desc->s_k + desc->k0 % 8, OWN), (unsigned)desc->g, (unsigned)desc->b),
                   sizes::THREADS_DKDV, sizeof(dkdv_tiles<T, D, is_plain>), x);
        if (fits && desc->s_q * desc->b > 0)
            launch(st, attn_bwd_dq<T, D, is_plain>,
                   dim3((unsigned)ceil_div(desc->s_q, OWN), (unsigned)desc->a, (unsigned)desc->b), sizes::THREADS,
                   sizeof(dq_tiles<T, D, is_plain>), x);
    });
    return fits;
}
