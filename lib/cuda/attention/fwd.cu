/*
 * fwd.cu - the forward pass of attention on tensor cores (Dao 2023, FlashAttention-2).
 *
 * A block of four warps computes a tile of queries of one head; each warp owns 16 or 32 queries and keeps their output,
 * running maximum and sum in registers.  The block iterates over tiles of keys; a tile is copied to shared memory while
 * the previous one is processed.  Products of matrices use wgmma if compiled for sm_90a, and otherwise, or for heads
 * of more than 128 columns, mma.sync.
 */
#include "cuda/attention/tiles.h"

enum { THREADS = 128 };

struct attn_mma_fwd {
    struct meg_attn_desc desc;
    struct meg_heads o, q, k, v;
    float *lse;
    struct head_chunk chunk;
};

/*
 * A warp has M tiles of 16 queries, and a block BQ queries and BK keys, such that a multiprocessor has registers and
 * shared memory for MIN_BLOCKS blocks.
 */
template <class Config> struct fwd_sizes {
    static constexpr bool uses_wgmma = Config::uses_wgmma;
    static constexpr int D = Config::D, M = D > 64 && D <= 128 && !uses_wgmma ? 2 : 1, BQ = 64 * M,
                         BK = D <= 64 || uses_wgmma ? 64 : 32,
                         MIN_BLOCKS = D <= 64       ? 4
                                      : !uses_wgmma ? 1
                                      : D <= 96     ? 3
                                                    : 2;
};

/* The arrays of a block in shared memory. */
template <class Config> struct fwd_tiles {
    static constexpr int BQ = fwd_sizes<Config>::BQ, BK = fwd_sizes<Config>::BK;
    typename Config::template tile<BQ> q;
    struct {
        typename Config::template tile<BK> k, v;
        alignas(16) uint64_t kept[BQ];
    } keys[2];
    struct attn_range visible[BQ];
    int i, group; /* sequence and group of the block; reading them here saves registers in instances with mma.sync */
    struct score_biases<BQ, BK> biases;
};

/* The running softmax of the queries of a thread: rows g and g+8 of each of its M tiles. */
template <int M> struct running_softmax {
    float max[M][2]; /* maximum score, times log2(e) */
    float sum[M][2]; /* sum of the weights that the thread has computed */
};

/*
 * Replace s by weights exp2(scale * s - max) and update `run`.  Multiply the output o accumulated so far by
 * exp2(old max - max).
 */
template <int M, int NK, int N>
static __device__ inline void softmax(float (&s)[M][NK][4], float (&o)[M][N][4], struct running_softmax<M> &run,
                                      float scale)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = -INFINITY, base, rescale, sum = 0.0f;

#pragma unroll
            for (int n = 0; n < NK; n++)
                most = fmaxf(most, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            most = fmaxf(run.max[m][h], most * scale);
            base = most == -INFINITY ? 0.0f : most;
            rescale = exp2_fast(run.max[m][h] - base);
            run.max[m][h] = most;
#pragma unroll
            for (int n = 0; n < NK; n++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    s[m][n][e] = exp2_fast(s[m][n][e] * scale - base);
                    sum += s[m][n][e];
                }
            run.sum[m][h] = run.sum[m][h] * rescale + sum;
#pragma unroll
            for (int n = 0; n < N; n++) {
                o[m][n][2 * h] *= rescale;
                o[m][n][2 * h + 1] *= rescale;
            }
        }
}

/* ---- a tile of keys ---- */

/* Replace the dot products of rows row0, row0 + 1, ... of a tile by their scores (score2). */
template <int M, int NK, int BQ>
static __device__ inline void score_tile(float (&s)[M][NK][4], const struct meg_attn_desc &desc,
                                         const struct score_biases<BQ, 8 * NK> &biases, int row0, struct lane lane)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < NK; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int r = row0 + 16 * m + lane.g + e / 2 * 8, c = 8 * n + 2 * lane.t + e % 2;
                float slope;

                s[m][n][e] = score2(desc, s[m][n][e], biases.v[c - r + BQ - 1], &slope);
            }
}

/* Replace scores by -infinity where a query does not attend to a key of the tile, whose first key is `key`. */
template <int M, int NK>
static __device__ inline void mask_tile(float (&s)[M][NK][4], const struct attn_range *visible, int row0,
                                        struct lane lane, int key)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const struct attn_range row = visible[row0 + 16 * m + lane.g + 8 * h];

#pragma unroll
            for (int n = 0; n < NK; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int c = key + 8 * n + 2 * lane.t + e;

                    if (c < row.lo || c >= row.hi)
                        s[m][n][2 * h + e] = -INFINITY;
                }
        }
}

/*
 * Replace weights by 0 where dropout drops them.  `kept` contains a word of bits for each query of the block, in which
 * bit first_bit is that of the first key of the tile.  store_output multiplies the output by the factor of kept
 * weights.
 */
template <int M, int NK>
static __device__ inline void drop_tile(float (&s)[M][NK][4], const uint64_t *kept, int first_bit, int row0,
                                        struct lane lane)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint64_t bits = kept[row0 + 16 * m + lane.g + 8 * h] >> first_bit;

#pragma unroll
            for (int n = 0; n < NK; n++) {
                const uint32_t word = (uint32_t)(bits >> n / 4 * 32) >> 2 * lane.t;

#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!(word >> (n % 4 * 8 + e) & 1))
                        s[m][n][2 * h + e] = 0.0f;
            }
        }
}

/* Store the output and the log-sum-exp of the queries of a thread.  The first query of its warp is query t0. */
template <int M, int N>
static __device__ inline void store_output(const struct attn_mma_fwd &x, const float (&o)[M][N][4],
                                           const struct running_softmax<M> &run, int t0, struct lane lane, int i, int j)
{
    const struct meg_attn_desc &desc = x.desc;
#pragma unroll
    for (int m = 0; m < M; m++) {
        float factor[2];
        int64_t row[2];

#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int64_t token = t0 + 16 * m + lane.g + 8 * h;
            float sum = run.sum[m][h];

            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            factor[h] = sum == 0.0f ? 0.0f : x.chunk.scale / sum;
            row[h] = token < desc.s_q ? query_index(desc, x.o, token, i, j) : -1;
            if (token < desc.s_q && lane.t == 0)
                x.lse[(i * desc.a + j) * desc.s_q + token] = run.max[m][h] * LN2 + logf(sum);
        }
        store_accumulators(x.o, row, 0, desc.d_v, o[m], factor, false);
    }
}

template <class Config, bool may_drop> static __device__ inline void fwd_block(const struct attn_mma_fwd &x)
{
    using T = typename Config::T;
    using sizes = fwd_sizes<Config>;
    using tiles = fwd_tiles<Config>;
    constexpr bool is_plain = Config::is_plain;
    constexpr int D = Config::D, M = sizes::M, BQ = sizes::BQ, BK = sizes::BK, NK = BK / 8;
    SHARED(tiles, sh);
    const struct meg_attn_desc &desc = x.desc;
    const int t0 = (int)(gridDim.x - 1 - blockIdx.x) * BQ, j = x.chunk.j0 + (int)blockIdx.y,
              i = x.chunk.i0 + (int)blockIdx.z, r = (int)desc.a / (int)desc.g, group = j / r;
    const int warp = (int)threadIdx.x / WARP;
    const struct lane lane = { (int)threadIdx.x % WARP / 4, (int)threadIdx.x % 4 };
    const int row0 = warp * 16 * M, origin = tile_origin(desc);
    const float scale = is_plain ? desc.scale * LOG2E : 1.0f, sink = sink_of(desc, j);
    const auto load = [&](int stage, int key, int end) {
        const int sequence = Config::uses_wgmma ? i : sh->i, own_group = Config::uses_wgmma ? group : sh->group;

        load_keys<THREADS, is_plain>(sh->keys[stage].k, desc, x.k, sequence, own_group, desc.d, key, end);
        load_keys<THREADS, is_plain>(sh->keys[stage].v, desc, x.v, sequence, own_group, desc.d_v, key, end);
        if (may_drop && x.chunk.bits)
            load_kept(sh->keys[stage].kept, x.chunk, sequence, j, (key - origin) / 64, t0, BQ);
        copy_async_commit();
    };
    float o[M][D / 8][4] = {};
    struct running_softmax<M> run;
    /* the keys of the first and of the last query: references, so that they stay in shared memory */
    const struct attn_range &first = sh->visible[0], &last = sh->visible[BQ - 1];
    int key, stage = 0;

    load_head<THREADS>(sh->q, queries_of<T>(x.q, i, group, j % r), x.q.ld_s, desc.d, t0, (int)desc.s_q);
    copy_async_commit();
    for (int n = (int)threadIdx.x; n < BQ; n += THREADS)
        sh->visible[n] = visible_keys(desc, min(t0 + n, (int)desc.s_q - 1), i);
    if (threadIdx.x == 0) {
        sh->i = i;
        sh->group = group;
    }
    __syncthreads();
    key = origin + (first.lo - origin) / BK * BK;
    if (key < last.hi)
        load(0, key, last.hi);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            run.max[m][h] = sink * LOG2E;
            run.sum[m][h] = desc.sink.p && lane.t == 0 ? 1.0f : 0.0f;
        }
    for (; key < last.hi; key += BK, stage ^= 1) {
        float s[M][NK][4];

        wait_copies<Config>();
        __syncthreads();
        if (key + BK < last.hi)
            load(stage ^ 1, key + BK, last.hi);
        if (!is_plain) {
            fill_biases<BQ, BK, THREADS>(&sh->biases, desc, i, j, t0, key);
            __syncthreads();
        }
        multiply_rows(s, sh->q, row0, sh->keys[stage].k);
        wait_products<Config>(s);
        if (!is_plain)
            score_tile(s, desc, sh->biases, row0, lane);
        if (key < last.lo || key + BK > first.hi)
            mask_tile(s, sh->visible, row0, lane, key);
        softmax(s, o, run, scale);
        if (may_drop && x.chunk.bits)
            drop_tile(s, sh->keys[stage].kept, (key - origin) % 64, row0, lane);
        multiply_weights(o, s, sh->keys[stage].v, 0);
        wait_products<Config>(o);
    }
    copy_async_wait<0>();
    store_output(x, o, run, t0 + row0, lane, i, j);
}

template <class Config, bool may_drop>
static __global__ void __launch_bounds__(THREADS, fwd_sizes<Config>::MIN_BLOCKS) attn_fwd(struct attn_mma_fwd x)
{
    if constexpr (Config::is_compiled)
        fwd_block<Config, may_drop>(x);
    else
        fail_absent_instance();
}

bool meg_cuda_attn_mma_fwd(struct meg_stream *st, const struct meg_attn_fwd_args *a)
{
    const struct meg_attn_desc *desc = a->desc;
    const struct weight_drop weight_drop = weight_drop_of(a->drop);
    struct attn_mma_fwd x = {};
    bool fits = true;

    /* A few queries are faster in f32, where the keys are split over blocks and the heads of a group use one tile. */
    if (desc->s_q < 16 || !fits_mma(a->q, a->q.dtype, desc->d) || !fits_mma(a->k, a->q.dtype, desc->d) ||
        !fits_mma(a->v, a->q.dtype, desc->d_v) || !has_aligned_heads(a->o))
        return false;
    x.desc = *desc;
    x.o = a->o, x.q = a->q, x.k = a->k, x.v = a->v;
    x.lse = a->lse;
    with_config(a->q.dtype, desc, is_plain_attention(desc), [&](auto config) {
        using Config = decltype(config);
        using tiles = fwd_tiles<Config>;
        /* the kernel for cases that are not plain always supports dropout */
        const auto kernel = weight_drop.threshold ? attn_fwd<Config, true> : attn_fwd<Config, !Config::is_plain>;

        fits = fits_shared(sizeof(tiles));
        if (fits)
            for_chunks(st, desc, &weight_drop, [&](const struct head_chunk &chunk) {
                x.chunk = chunk;
                launch(st, kernel,
                       dim3((unsigned)ceil_div(desc->s_q, tiles::BQ), (unsigned)chunk.heads, (unsigned)chunk.ni),
                       THREADS, sizeof(tiles), x);
            });
    });
    return fits;
}
