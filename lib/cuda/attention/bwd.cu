/*
 * bwd.cu - the backward pass of attention on tensor cores.
 *
 * One kernel computes dk and dv: a block owns 64 or 128 keys of a group and iterates over the queries of the heads of
 * the group.  The other computes dq: a block owns 64 or 128 queries of a head and iterates over the keys.  Both
 * recompute the scores and the gradients of the weights, 7 products of matrices instead of 5, so that no gradient is
 * the sum of the results of several blocks, and the results do not depend on the order of blocks.
 *
 * The next tile that a block iterates over is copied to shared memory while the current one is processed.  A warp owns
 * 16 or 32 rows of its block and keeps weights in registers, where they are operands of the next product.
 */
#include "cuda/attention/tiles.h"

struct attn_mma_bwd {
    struct meg_attn_desc desc;
    struct meg_heads dq, dk, dv, d_o, q, k, v;
    const float *lse, *delta;
    struct head_chunk chunk;
    int r; /* query heads per group */
    bool accumulate;
};

/*
 * Sizes for heads of D columns: a block owns OWN rows, of which a warp has M tiles of 16, and iterates over tiles of
 * STEP rows, such that a multiprocessor has registers and shared memory for MIN_BLOCKS blocks.
 */
template <class Config> struct own_sizes {
    static constexpr int D = Config::D, M = D <= 64 && Config::is_plain && !Config::uses_wgmma ? 2 : 1, OWN = 64 * M,
                         THREADS = 4 * WARP;
};

template <class Config> struct dkdv_sizes : own_sizes<Config> {
    static constexpr int D = Config::D, STEP = Config::uses_wgmma || (D <= 64 && !Config::is_plain) ? 64 : 32;
    /*
     * If D is above 128, dk and dv are split by columns between two warps that compute the same weights, to fit in
     * registers.
     */
    static constexpr int SPLITS = D <= 128 ? 1 : 2, N = D / 8 / SPLITS, THREADS = own_sizes<Config>::THREADS * SPLITS,
                         MIN_BLOCKS = !Config::uses_wgmma             ? 1
                                      : (D <= 64 && Config::is_plain) ? 3
                                                                      : 2;
};

template <class Config> struct dq_sizes : own_sizes<Config> {
    static constexpr int D = Config::D, STEP = Config::uses_wgmma || D <= (Config::is_plain ? 128 : 96) ? 64 : 32,
                         MIN_BLOCKS = D > 128                           ? 1
                                      : (D <= 64 && Config::uses_wgmma) ? 3
                                                                        : 2;
};

/*
 * Replace s, a dot product q.k, by the weight after dropout, and dp, a dot product d_o.v, by the gradient with respect
 * to scale * q.k.  Both results lack the factor chunk.scale of kept weights, by which the kernels multiply their sums
 * at the end.  lse must be multiplied by log2(e), and delta divided by chunk.scale, before the call.
 */
template <bool is_plain>
static __device__ inline void bwd_weight(const struct attn_mma_bwd &x, float &s, float &dp, float lse, float delta,
                                         float bias, bool is_kept)
{
    float slope = 1.0f;
    const float p = exp2_fast((is_plain ? x.desc.scale * LOG2E * s : score2(x.desc, s, bias, &slope)) - lse);

    s = is_kept ? p : 0.0f;
    dp = p * ((is_kept ? dp : 0.0f) - delta) * slope;
}

/* ---- dk and dv ---- */

template <class Config> struct dkdv_tiles {
    static constexpr int OWN = dkdv_sizes<Config>::OWN, STEP = dkdv_sizes<Config>::STEP;
    typename Config::template tile<OWN> k, v;
    struct {
        typename Config::template tile<STEP> q, d_o;
        alignas(16) uint64_t kept[OWN / 64][STEP];
        float lse[STEP], delta[STEP];
    } queries[2];
    int i, group; /* sequence and group of the block; reading them here saves registers in instances with wgmma */
    struct score_biases<STEP, OWN> biases;
};

/* Compute bwd_weight for keys row0, row0 + 1, ... of a block (rows) and a tile of queries (columns). */
template <bool is_plain, bool drops, int OWN, int N, class Queries>
static __device__ inline void dkdv_weights(float (&s)[N][4], float (&dp)[N][4], const struct attn_mma_bwd &x,
                                           const Queries &queries, const struct score_biases<8 * N, OWN> &biases,
                                           int row0, struct lane lane)
{
    const float kept_inverse = 1.0f / x.chunk.scale;
#pragma unroll
    for (int m = 0; m < N; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int query = 8 * m + 2 * lane.t + i;
            const float lse = queries.lse[query] * LOG2E, delta = queries.delta[query] * (drops ? kept_inverse : 1.0f);
            const uint32_t bits = drops ? (uint32_t)(queries.kept[row0 / 64][query] >> (row0 % 64 + lane.g)) : 0;

#pragma unroll
            for (int h = 0; h < 2; h++)
                bwd_weight<is_plain>(x, s[m][2 * h + i], dp[m][2 * h + i], lse, delta,
                                     is_plain ? 0.0f : biases.v[row0 + lane.g + 8 * h - query + 8 * N - 1],
                                     !drops || (bits >> 8 * h & 1));
        }
}

/*
 * Set s and dp to 0 where a query of the tile that begins at query t0 of sequence i does not attend to one of the keys
 * row0, row0 + 1, ...
 */
template <int M, int N>
static __device__ inline void dkdv_mask(float (&s)[M][N][4], float (&dp)[M][N][4], const struct meg_attn_desc &desc,
                                        int t0, int i, int row0, struct lane lane)
{
#pragma unroll
    for (int n = 0; n < 2 * N; n++) {
        const int t = t0 + n / 2 * 8 + 2 * lane.t + n % 2;
        struct attn_range visible = {};

        if (t < desc.s_q)
            visible = visible_keys(desc, t, i);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int c = row0 + 16 * m + lane.g + 8 * h;

                if (c < visible.lo || c >= visible.hi)
                    s[m][n / 2][2 * h + n % 2] = dp[m][n / 2][2 * h + n % 2] = 0.0f;
            }
    }
}

template <class Config> static __device__ inline void dkdv_block(const struct attn_mma_bwd &x)
{
    using T = typename Config::T;
    using sizes = dkdv_sizes<Config>;
    using tiles = dkdv_tiles<Config>;
    constexpr bool is_plain = Config::is_plain;
    constexpr int M = sizes::M, OWN = sizes::OWN, STEP = sizes::STEP, N = sizes::N, THREADS = sizes::THREADS;
    SHARED(tiles, sh);
    const struct meg_attn_desc &desc = x.desc;
    const int key = tile_origin(desc) + (int)blockIdx.x * OWN, group = x.chunk.g0 + (int)blockIdx.y,
              i = x.chunk.i0 + (int)blockIdx.z;
    const int warp = (int)threadIdx.x / WARP;
    const struct lane lane = { (int)threadIdx.x % WARP / 4, (int)threadIdx.x % 4 };
    const int row0 = warp % 4 * 16 * M, column0 = warp / 4 * N * 8;
    const struct attn_range window = queries_in_window(desc, max(key, 0), min(key + OWN, (int)desc.s_k));
    const int first = window.lo / STEP * STEP, head0 = window.lo < window.hi ? 0 : x.r;
    const auto load = [&](int stage, int head, int t0) {
        const int sequence = Config::uses_wgmma ? sh->i : i, own_group = Config::uses_wgmma ? sh->group : group;
        const int s_q = (int)desc.s_q, j = own_group * x.r + head;
        auto &to = sh->queries[stage];

        load_head<THREADS>(to.q, queries_of<T>(x.q, sequence, own_group, head), x.q.ld_s, desc.d, t0, s_q);
        load_head<THREADS>(to.d_o, queries_of<T>(x.d_o, sequence, own_group, head), x.d_o.ld_s, desc.d_v, t0, s_q);
        if (threadIdx.x < STEP) {
            const int t = t0 + (int)threadIdx.x;
            const int64_t row = (sequence * desc.a + j) * desc.s_q + t;

            copy_async<4>(&to.lse[threadIdx.x], x.lse + row, t < s_q);
            copy_async<4>(&to.delta[threadIdx.x], x.delta + row, t < s_q);
        }
        for (int n = 0; n < OWN / 64 && x.chunk.bits; n++)
            load_kept(to.kept[n], x.chunk, sequence, j, (int)blockIdx.x * (OWN / 64) + n, t0, STEP);
        copy_async_commit();
    };
    float dk[M][N][4] = {}, dv[M][N][4] = {};

    if (threadIdx.x == 0) {
        sh->i = i;
        sh->group = group;
    }
    __syncthreads();
    load_keys<THREADS, is_plain>(sh->k, desc, x.k, i, group, desc.d, key, (int)desc.s_k);
    load_keys<THREADS, is_plain>(sh->v, desc, x.v, i, group, desc.d_v, key, (int)desc.s_k);
    copy_async_commit();
    if (head0 < x.r)
        load(0, 0, first);
    for (int head = head0, t0 = first, next, next_t0, stage = 0; head < x.r; head = next, t0 = next_t0, stage ^= 1) {
        const auto &queries = sh->queries[stage];
        float s[M][STEP / 8][4], dp[M][STEP / 8][4];
        struct tile_keys keys;
        bool is_masked;

        wait_copies<Config>();
        __syncthreads();
        next = t0 + STEP < window.hi ? head : head + 1;
        next_t0 = t0 + STEP < window.hi ? t0 + STEP : first;
        if (next < x.r)
            load(stage ^ 1, next, next_t0);
        keys = keys_of_tile(desc, t0, STEP, i);
        if (keys.any.lo >= key + OWN || keys.any.hi <= key)
            continue;
        is_masked = key < keys.all.lo || key + OWN > keys.all.hi || t0 + STEP > desc.s_q;
        if (!is_plain) {
            fill_biases<STEP, OWN, THREADS>(&sh->biases, desc, i, group * x.r + head, t0, key);
            __syncthreads();
        }
        multiply_rows(s, sh->k, row0, queries.q);
        multiply_rows(dp, sh->v, row0, queries.d_o);
        wait_products<Config>(s, dp);
#pragma unroll
        for (int m = 0; m < M; m++)
            if (x.chunk.bits)
                dkdv_weights<is_plain, true>(s[m], dp[m], x, queries, sh->biases, row0 + 16 * m, lane);
            else
                dkdv_weights<is_plain, false>(s[m], dp[m], x, queries, sh->biases, row0 + 16 * m, lane);
        if (is_masked)
            dkdv_mask(s, dp, desc, t0, i, key + row0, lane);
        multiply_weights(dv, s, queries.d_o, column0);
        multiply_weights(dk, dp, queries.q, column0);
        wait_products<Config>(dv, dk);
    }
    copy_async_wait<0>();

#pragma unroll
    for (int m = 0; m < M; m++) {
        const float scale_v = x.chunk.scale, scale_k = scale_v * desc.scale;
        int64_t row_k[2], row_v[2];

#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int token = key + row0 + 16 * m + lane.g + 8 * h;
            const bool is_valid = token >= 0 && token < desc.s_k;

            row_k[h] = is_valid ? key_index(desc, x.dk, token, i, group) : -1;
            row_v[h] = is_valid ? key_index(desc, x.dv, token, i, group) : -1;
        }
        store_accumulators(x.dk, row_k, column0, desc.d, dk[m], { scale_k, scale_k }, x.accumulate);
        store_accumulators(x.dv, row_v, column0, desc.d_v, dv[m], { scale_v, scale_v }, x.accumulate);
    }
}

template <class Config>
static __global__ void __launch_bounds__(dkdv_sizes<Config>::THREADS, dkdv_sizes<Config>::MIN_BLOCKS)
    attn_bwd_dkdv(struct attn_mma_bwd x)
{
    if constexpr (Config::is_compiled)
        dkdv_block<Config>(x);
    else
        fail_absent_instance();
}

/* ---- dq ---- */

template <class Config> struct dq_tiles {
    static constexpr int OWN = dq_sizes<Config>::OWN, STEP = dq_sizes<Config>::STEP;
    typename Config::template tile<OWN> q, d_o;
    struct {
        typename Config::template tile<STEP> k, v;
        alignas(16) uint64_t kept[OWN];
    } keys[2];
    struct attn_range visible[OWN];
    struct score_biases<OWN, STEP> biases;
};

/*
 * Compute bwd_weight for queries row0, row0 + 1, ... of a block (rows) and a tile of keys (columns).  `kept` contains
 * a word of dropout bits for each query of the block, in which bit first_bit is that of the first key of the tile.
 */
template <bool is_plain, bool drops, int OWN, int N>
static __device__ inline void dq_weights(float (&s)[N][4], float (&dp)[N][4], const struct attn_mma_bwd &x,
                                         const float (&lse)[2], const float (&delta)[2],
                                         const struct score_biases<OWN, 8 * N> &biases, const uint64_t *kept,
                                         int first_bit, int row0, struct lane lane)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = row0 + lane.g + 8 * h;
        const uint64_t bits = drops ? kept[query] >> first_bit : 0;

#pragma unroll
        for (int m = 0; m < N; m++) {
            const uint32_t word = (uint32_t)(bits >> m / 4 * 32) >> 2 * lane.t;

#pragma unroll
            for (int i = 0; i < 2; i++)
                bwd_weight<is_plain>(x, s[m][2 * h + i], dp[m][2 * h + i], lse[h], delta[h],
                                     is_plain ? 0.0f : biases.v[8 * m + 2 * lane.t + i - query + OWN - 1],
                                     !drops || (word >> (m % 4 * 8 + i) & 1));
        }
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

template <class Config> static __device__ inline void dq_block(const struct attn_mma_bwd &x)
{
    using T = typename Config::T;
    using sizes = dq_sizes<Config>;
    using tiles = dq_tiles<Config>;
    constexpr bool is_plain = Config::is_plain;
    constexpr int D = Config::D, M = sizes::M, OWN = sizes::OWN, STEP = sizes::STEP, THREADS = sizes::THREADS;
    SHARED(tiles, sh);
    const struct meg_attn_desc &desc = x.desc;
    const int t0 = (int)(gridDim.x - 1 - blockIdx.x) * OWN, j = x.chunk.j0 + (int)blockIdx.y,
              i = x.chunk.i0 + (int)blockIdx.z, group = j / x.r;
    const int warp = (int)threadIdx.x / WARP;
    const struct lane lane = { (int)threadIdx.x % WARP / 4, (int)threadIdx.x % 4 };
    const int row0 = warp * 16 * M, origin = tile_origin(desc);
    const auto load = [&](int stage, int key, int end) {
        load_keys<THREADS, is_plain>(sh->keys[stage].k, desc, x.k, i, group, desc.d, key, end);
        load_keys<THREADS, is_plain>(sh->keys[stage].v, desc, x.v, i, group, desc.d_v, key, end);
        if (x.chunk.bits)
            load_kept(sh->keys[stage].kept, x.chunk, i, j, (key - origin) / 64, t0, OWN);
        copy_async_commit();
    };
    float dq[M][D / 8][4] = {}, lse[M][2], delta[M][2];
    struct tile_keys keys;
    int key, stage = 0;

    load_head<THREADS>(sh->q, queries_of<T>(x.q, i, group, j % x.r), x.q.ld_s, desc.d, t0, (int)desc.s_q);
    load_head<THREADS>(sh->d_o, queries_of<T>(x.d_o, i, group, j % x.r), x.d_o.ld_s, desc.d_v, t0, (int)desc.s_q);
    copy_async_commit();
    for (int n = (int)threadIdx.x; n < OWN; n += THREADS)
        sh->visible[n] = visible_keys(desc, min(t0 + n, (int)desc.s_q - 1), i);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int64_t t = min(t0 + row0 + 16 * m + lane.g + 8 * h, (int)desc.s_q - 1);

            lse[m][h] = x.lse[(i * desc.a + j) * desc.s_q + t] * LOG2E;
            delta[m][h] = x.delta[(i * desc.a + j) * desc.s_q + t] / x.chunk.scale;
        }
    keys = keys_of_tile(desc, t0, OWN, i);
    key = origin + (keys.any.lo - origin) / STEP * STEP;
    if (key < keys.any.hi)
        load(0, key, keys.any.hi);
    for (; key < keys.any.hi; key += STEP, stage ^= 1) {
        float s[M][STEP / 8][4], dp[M][STEP / 8][4];

        wait_copies<Config>();
        __syncthreads();
        if (key + STEP < keys.any.hi)
            load(stage ^ 1, key + STEP, keys.any.hi);
        if (!is_plain) {
            fill_biases<OWN, STEP, THREADS>(&sh->biases, desc, i, j, t0, key);
            __syncthreads();
        }
        multiply_rows(s, sh->q, row0, sh->keys[stage].k);
        multiply_rows(dp, sh->d_o, row0, sh->keys[stage].v);
        wait_products<Config>(s, dp);
#pragma unroll
        for (int m = 0; m < M; m++)
            if (x.chunk.bits)
                dq_weights<is_plain, true>(s[m], dp[m], x, lse[m], delta[m], sh->biases, sh->keys[stage].kept,
                                           (key - origin) % 64, row0 + 16 * m, lane);
            else
                dq_weights<is_plain, false>(s[m], dp[m], x, lse[m], delta[m], sh->biases, NULL, 0, row0 + 16 * m, lane);
        if (key < keys.all.lo || key + STEP > keys.all.hi)
#pragma unroll
            for (int m = 0; m < M; m++)
                dq_mask(dp[m], sh->visible + row0 + 16 * m, key, lane);
        multiply_weights(dq, dp, sh->keys[stage].k, 0);
        wait_products<Config>(dq);
    }
    copy_async_wait<0>();
#pragma unroll
    for (int m = 0; m < M; m++) {
        const float scale = desc.scale * x.chunk.scale;
        int64_t row[2];

#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int t = t0 + row0 + 16 * m + lane.g + 8 * h;

            row[h] = t < desc.s_q ? query_index(desc, x.dq, t, i, j) : -1;
        }
        store_accumulators(x.dq, row, 0, desc.d, dq[m], { scale, scale }, x.accumulate);
    }
}

template <class Config>
static __global__ void __launch_bounds__(dq_sizes<Config>::THREADS, dq_sizes<Config>::MIN_BLOCKS)
    attn_bwd_dq(struct attn_mma_bwd x)
{
    if constexpr (Config::is_compiled)
        dq_block<Config>(x);
    else
        fail_absent_instance();
}

bool meg_cuda_attn_mma_bwd(struct meg_stream *st, const struct meg_attn_bwd_args *a)
{
    const struct meg_attn_desc *desc = a->desc;
    const struct weight_drop weight_drop = weight_drop_of(a->drop);
    struct attn_mma_bwd x = {};
    const enum meg_dtype type = a->q.dtype;
    bool fits_plain, fits = true;

    if (!fits_mma(a->q, type, desc->d) || !fits_mma(a->k, type, desc->d) || !fits_mma(a->v, type, desc->d_v) ||
        !fits_mma(a->d_o, type, desc->d_v) || !has_aligned_heads(a->dq) || !has_aligned_heads(a->dk) ||
        !has_aligned_heads(a->dv))
        return false;
    x.desc = *desc;
    x.dq = a->dq, x.dk = a->dk, x.dv = a->dv;
    x.d_o = a->d_o, x.q = a->q, x.k = a->k, x.v = a->v;
    x.lse = a->lse;
    x.delta = a->delta;
    x.r = (int)(desc->a / desc->g);
    x.accumulate = a->accumulate;
    /*
     * Without wgmma, the tiles of plain cases with 128 columns are larger.  If they do not fit, use the kernels of
     * other cases.
     */
    fits_plain = meg_cuda_device.has_wgmma || (desc->d > desc->d_v ? desc->d : desc->d_v) <= 96 ||
                 fits_shared(sizeof(dq_tiles<attn_config<bf16, 128, true, false>>));
    with_config(type, desc, fits_plain && is_plain_attention(desc), [&](auto config) {
        using Config = decltype(config);
        using dkdv = dkdv_sizes<Config>;
        using dq = dq_sizes<Config>;

        fits = fits_shared(sizeof(dkdv_tiles<Config>)) && fits_shared(sizeof(dq_tiles<Config>));
        if (!fits)
            return;
        for_chunks(st, desc, &weight_drop, [&](const struct head_chunk &chunk) {
            x.chunk = chunk;
            if (desc->s_k > 0)
                launch(st, attn_bwd_dkdv<Config>,
                       dim3((unsigned)ceil_div(desc->s_k + desc->k0 % 8, dkdv::OWN), (unsigned)chunk.ng,
                            (unsigned)chunk.ni),
                       dkdv::THREADS, sizeof(dkdv_tiles<Config>), x);
            if (desc->s_q > 0)
                launch(st, attn_bwd_dq<Config>,
                       dim3((unsigned)ceil_div(desc->s_q, dq::OWN), (unsigned)chunk.heads, (unsigned)chunk.ni),
                       dq::THREADS, sizeof(dq_tiles<Config>), x);
        });
    });
    return fits;
}
