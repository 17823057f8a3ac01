/*
 * f32.cu - attention in f32 arithmetic, for all cases that struct meg_attn_desc describes.
 *
 * A block keeps a tile of queries and a tile of keys in shared memory as f32, and multiplies them there.  In the
 * forward pass, a tile contains the queries of all heads of a group, and long sequences of keys are split over blocks
 * (Dao et al. 2023, Flash-Decoding), so that decoding of few queries reads each key once and occupies the GPU.  The
 * backward pass has a kernel for dq, whose blocks iterate over keys, and one for dk and dv, whose blocks iterate over
 * queries.
 */
#include "cuda/attention/attention.h"

/*
 * With one query per sequence, as in decoding, the keys are split into parts of SPLIT_SIZE, so that the result of a
 * sequence does not depend on the number and lengths of the other sequences.
 */
enum { THREADS = 128, BQ = 32, BK = 64, BK_BWD = 32, MAX_SHARED = 160 << 10, SPLIT_SIZE = 256 };

/* ---- tiles ---- */

/* Return whether tiles of nbytes exceed MAX_SHARED or the shared memory of the GPU in use. */
static bool is_too_large(size_t nbytes)
{
    return nbytes > MAX_SHARED || (int64_t)nbytes > meg_cuda_max_shared();
}

/* End the process with a message if the smallest tiles, of nbytes, exceed the shared memory of the GPU in use. */
static void check_shared(const struct meg_attn_desc *desc, size_t nbytes)
{
    if ((int64_t)nbytes > meg_cuda_max_shared())
        meg_die(MEG_EFAIL,
                "GPU %d (%s): attention with head size %d requires %d KiB of shared memory per block, but the GPU has "
                "%d KiB; use more and smaller heads, another GPU, or --device cpu",
                meg_cuda_device.index, meg_cuda_device.name, (int)(desc->d > desc->d_v ? desc->d : desc->d_v),
                (int)((nbytes + 1023) >> 10), (int)(meg_cuda_max_shared() >> 10));
}

/* A matrix in shared memory or its transpose: element (r, c) is p[r * row + c * col]. */
struct tile {
    float *p;
    int row, col;
};

static __device__ inline struct tile transpose(struct tile x)
{
    return { x.p, x.col, x.row };
}

/* Compute z [m,n] = scale * z + x y, where x is [m,k] and y [k,n].  If scale is 0, z is not read. */
static __device__ inline void multiply_add(struct tile z, float scale, struct tile x, struct tile y, int m, int n,
                                           int k)
{
    const int across = (n + 3) / 4, down = (m + 3) / 4;

    for (int i = (int)threadIdx.x; i < across * down; i += THREADS) {
        const int r0 = i / across * 4, c0 = i % across;
        const float *a[4], *b[4];
        float sum[4][4] = {};

#pragma unroll
        for (int j = 0; j < 4; j++) {
            a[j] = x.p + min(r0 + j, m - 1) * x.row;
            b[j] = y.p + min(c0 + j * across, n - 1) * y.col;
        }
        for (int l = 0; l < k; l++) {
            float u[4], w[4];

#pragma unroll
            for (int j = 0; j < 4; j++) {
                u[j] = a[j][l * x.col];
                w[j] = b[j][l * y.row];
            }
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sum[r][c] += u[r] * w[c];
        }
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (r0 + r < m && c0 + c * across < n) {
                    float *const to = z.p + (r0 + r) * z.row + (c0 + c * across) * z.col;

                    *to = scale == 0.0f ? sum[r][c] : scale * *to + sum[r][c];
                }
    }
}

static constexpr int64_t NO_ROW = INT64_MIN; /* other indices can be negative, too: see block_offset in tensor/ops.h */

/*
 * Copy m rows of n elements from global to shared memory as f32.  index(r) is the index of the first element of row r,
 * or NO_ROW if the row is to be 0.
 */
template <class F>
static __device__ inline void load_tile(struct tile to, struct meg_heads from, int m, int n, bool is_aligned, F index)
{
    const int vectors = (n + VEC - 1) / VEC;

    with_pointer(from.p, from.dtype, [&](auto *p) {
        for (int i = (int)threadIdx.x; i < m * vectors; i += THREADS) {
            const int r = i / vectors, c = i % vectors * VEC;
            const int64_t first = index(r);
            float v[VEC] = {};

            if (first != NO_ROW)
                load(v, p + first, c, n, is_aligned);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                if (c + j < n)
                    to.p[r * to.row + c + j] = v[j];
        }
    });
}

/*
 * Store m rows of n elements, multiplied by `scale`, to global memory or, if `accumulate` is set, add them to it.
 * index(r) is the index of the first element of row r.
 */
template <class F>
static __device__ inline void store_tile(struct meg_heads to, struct tile from, int m, int n, float scale,
                                         bool accumulate, bool is_aligned, F index)
{
    const int vectors = (n + VEC - 1) / VEC;

    with_pointer(to.p, to.dtype, [&](auto *p) {
        for (int i = (int)threadIdx.x; i < m * vectors; i += THREADS) {
            const int r = i / vectors, c = i % vectors * VEC;
            float v[VEC] = {};

            if (accumulate)
                load(v, p + index(r), c, n, is_aligned);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                if (c + j < n)
                    v[j] += scale * from.p[r * from.row + c + j];
            store(p + index(r), v, c, n, is_aligned);
        }
    });
}

/* ---- scores ---- */

/* A query of a tile: token t and head j of the block's sequence, its position, and the keys that it attends to. */
struct query {
    int64_t t, j, position;
    struct attn_range keys;
};

/* Return the smallest range that contains the keys of n queries.  Queries without keys are ignored. */
static __device__ inline struct attn_range keys_of(const struct query *query, int n)
{
    struct attn_range all = { 1 << 30, 0 };

    for (int r = 0; r < n; r++)
        if (query[r].keys.lo < query[r].keys.hi) {
            all.lo = min(all.lo, query[r].keys.lo);
            all.hi = max(all.hi, query[r].keys.hi);
        }
    return all;
}

/*
 * Return first, the smallest relative position in a tile of `keys` keys from `key` on and the queries from position
 * `last` - (queries - 1) to `last`.  If there is a relative attention bias, fill bucket[n] with the bucket of relative
 * position first + n, for all relative positions of the tile.
 */
static __device__ inline int64_t fill_buckets(int *bucket, const struct meg_attn_desc &desc, int64_t key, int keys,
                                              int64_t last, int queries)
{
    const int64_t first = desc.k0 + key - last;

    if (desc.rel_bias.p)
        for (int n = (int)threadIdx.x; n < queries + keys - 1; n += THREADS)
            bucket[n] = rel_bias_bucket(desc, first + n);
    return first;
}

/* Return the score of a query and a key whose dot product is qk; see fill_buckets for `bucket` and first_relative. */
static __device__ inline float score_of(const struct meg_attn_desc &desc, const struct query &query, int64_t key,
                                        float qk, const int *bucket, int64_t first_relative, float *slope)
{
    const int64_t relative = desc.k0 + key - query.position;
    float score = capped_score(desc, qk, slope);

    if (desc.rel_bias.p || desc.alibi_slope)
        score += score_bias(desc, query.j, relative, desc.rel_bias.p ? bucket[relative - first_relative] : 0);
    return score;
}

/* ---- forward ---- */

struct attn_f32_fwd {
    struct meg_attn_desc desc;
    struct meg_heads o, q, k, v;
    struct weight_drop drop;
    float *lse;
    float *part; /* [b, a, s_q, splits, d_v + 1]: the output of each split, and its log-sum-exp; NULL for one split */
    int bq, bk;  /* rows (pairs of a query and a head) and keys per tile */
    int splits;  /* number of blocks among which the keys are split */
    int split_size;                                              /* keys per split, a multiple of bk */
    bool is_o_aligned, is_q_aligned, is_k_aligned, is_v_aligned; /* results of has_aligned_heads */
};

/* The arrays of a block in shared memory. */
struct fwd_arrays {
    struct tile q, kv, s, o;
    float *max, *sum, *rescale;
    struct query *query;
    int *bucket;
};

/* Return the stride of rows of n elements in shared memory: odd, so that a column's elements are in different banks. */
static MEG_HOST_DEVICE int pad_row(int64_t n)
{
    return (int)n | 1;
}

/* Return a tile of n rows at f, and advance f to its end. */
static MEG_HOST_DEVICE struct tile take_tile(float *&f, int n, int ld)
{
    const struct tile x = { f, ld, 1 };

    f += n * ld;
    return x;
}

/* Return the arrays at `p`; *nbytes is their size. */
static MEG_HOST_DEVICE struct fwd_arrays fwd_arrays_at(char *p, const struct meg_attn_desc &desc, int bq, int bk,
                                                       size_t *nbytes)
{
    struct fwd_arrays x;
    const int ld_q = pad_row(desc.d), ld_o = pad_row(desc.d_v), ld_kv = ld_q > ld_o ? ld_q : ld_o, ld_s = pad_row(bk);
    float *f;

    x.query = (struct query *)(void *)p;
    f = (float *)(void *)(x.query + bq);
    x.q = take_tile(f, bq, ld_q);
    x.kv = take_tile(f, bk, ld_kv);
    x.s = take_tile(f, bq, ld_s);
    x.o = take_tile(f, bq, ld_o);
    x.max = f;
    x.sum = f + bq;
    x.rescale = f + 2 * bq;
    x.bucket = (int *)(void *)(f + 3 * bq);
    *nbytes = (size_t)((char *)(void *)(x.bucket + bq + bk) - p);
    return x;
}

/* Replace the dot products of a tile in s by scores, or by -infinity for masked keys. */
static __device__ inline void score_tile(const struct attn_f32_fwd &x, const struct fwd_arrays &sh, int nq, int key,
                                         int64_t first)
{
    for (int i = (int)threadIdx.x; i < nq * x.bk; i += THREADS) {
        const int r = i / x.bk, c = i % x.bk;
        const struct query &query = sh.query[r];
        float *const s = sh.s.p + r * sh.s.row + c, slope;

        *s = key + c >= query.keys.lo && key + c < query.keys.hi
                 ? score_of(x.desc, query, key + c, *s, sh.bucket, first, &slope)
                 : -INFINITY;
    }
}

/* Replace scores by exp(score - max), and update the running max and sum of each query. */
static __device__ inline void softmax_tile(const struct attn_f32_fwd &x, const struct fwd_arrays &sh, int nq)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;

    for (int r = warp; r < nq; r += THREADS / WARP) {
        float *const s = sh.s.p + r * sh.s.row;
        float most = sh.max[r], sum = 0.0f, base;

        for (int c = lane; c < x.bk; c += WARP)
            most = fmaxf(most, s[c]);
        most = warp_max(most);
        base = most == -INFINITY ? 0.0f : most;
        for (int c = lane; c < x.bk; c += WARP) {
            s[c] = expf(s[c] - base);
            sum += s[c];
        }
        sum = warp_sum(sum);
        __syncwarp();
        if (lane == 0) {
            sh.rescale[r] = expf(sh.max[r] - base);
            sh.sum[r] = sh.sum[r] * sh.rescale[r] + sum;
            sh.max[r] = most;
        }
    }
}

/* Multiply the weights of a tile by their dropout factors. */
static __device__ inline void drop_tile(const struct attn_f32_fwd &x, const struct fwd_arrays &sh, int nq, int64_t i,
                                        int key)
{
    for (int n = (int)threadIdx.x; n < nq * (x.bk / 8); n += THREADS) {
        const int r = n / (x.bk / 8), c = n % (x.bk / 8) * 8;
        const struct query &query = sh.query[r];
        const uint8_t kept = kept_keys(x.desc, x.drop, i, query.j, query.position, key + c);

        for (int k = 0; k < 8; k++)
            sh.s.p[r * sh.s.row + c + k] *= kept >> k & 1 ? x.drop.scale : 0.0f;
    }
}

static __global__ void __launch_bounds__(THREADS) attn_fwd(struct attn_f32_fwd x)
{
    SHARED(char, shared);
    size_t nbytes;
    const struct meg_attn_desc &desc = x.desc;
    const struct fwd_arrays sh = fwd_arrays_at(shared, desc, x.bq, x.bk, &nbytes);
    const int64_t r = desc.a / desc.g, rows = desc.s_q * r, tiles = (rows + x.bq - 1) / x.bq;
    const int64_t split = blockIdx.x % x.splits, n0 = blockIdx.x / x.splits % tiles * x.bq,
                  group = blockIdx.x / x.splits / tiles % desc.g, i = blockIdx.x / x.splits / tiles / desc.g;
    const int nq = (int)min((int64_t)x.bq, rows - n0);
    const int d = (int)desc.d, d_v = (int)desc.d_v, origin = tile_origin(desc);
    struct attn_range keys;
    int nt;

    for (int n = (int)threadIdx.x; n < nq; n += THREADS) {
        const int64_t t = (n0 + n) / r, j = group * r + (n0 + n) % r;

        sh.query[n] = { t, j, query_position(desc, t, i), visible_keys(desc, t, i) };
        sh.max[n] = split == 0 ? sink_of(desc, j) : -INFINITY;
        sh.sum[n] = split == 0 && desc.sink.p ? 1.0f : 0.0f;
    }
    for (int n = (int)threadIdx.x; n < nq * sh.o.row; n += THREADS)
        sh.o.p[n] = 0.0f;
    __syncthreads();
    nt = (int)(sh.query[nq - 1].t - sh.query[0].t) + 1;
    keys = keys_of(sh.query, nq);
    keys.lo = max(keys.lo, (int)min(origin + split * x.split_size, (int64_t)INT32_MAX));
    keys.hi = (int)min((int64_t)keys.hi, origin + (split + 1) * x.split_size);
    load_tile(sh.q, x.q, nq, d, x.is_q_aligned,
              [&](int n) { return query_index(desc, x.q, sh.query[n].t, i, sh.query[n].j); });
    for (int key = origin + (keys.lo - origin) / x.bk * x.bk; key < keys.hi; key += x.bk) {
        int64_t first;

        load_tile(sh.kv, x.k, x.bk, d, x.is_k_aligned, [&](int n) {
            return key + n >= 0 && key + n < keys.hi ? key_index(desc, x.k, key + n, i, group) : NO_ROW;
        });
        first = fill_buckets(sh.bucket, desc, key, x.bk, sh.query[nq - 1].position, nt);
        __syncthreads();
        multiply_add(sh.s, 0.0f, sh.q, transpose(sh.kv), nq, x.bk, d);
        __syncthreads();
        load_tile(sh.kv, x.v, x.bk, d_v, x.is_v_aligned, [&](int n) {
            return key + n >= 0 && key + n < keys.hi ? key_index(desc, x.v, key + n, i, group) : NO_ROW;
        });
        score_tile(x, sh, nq, key, first);
        __syncthreads();
        softmax_tile(x, sh, nq);
        __syncthreads();
        if (x.drop.threshold)
            drop_tile(x, sh, nq, i, key);
        for (int n = (int)threadIdx.x; n < nq * d_v; n += THREADS)
            sh.o.p[n / d_v * sh.o.row + n % d_v] *= sh.rescale[n / d_v];
        __syncthreads();
        multiply_add(sh.o, 1.0f, sh.s, sh.kv, nq, d_v, x.bk);
        __syncthreads();
    }
    for (int n = (int)threadIdx.x; n < nq * d_v; n += THREADS)
        sh.o.p[n / d_v * sh.o.row + n % d_v] *= sh.sum[n / d_v] == 0.0f ? 0.0f : 1.0f / sh.sum[n / d_v];
    __syncthreads();
    if (!x.part)
        store_tile(x.o, sh.o, nq, d_v, 1.0f, false, x.is_o_aligned,
                   [&](int n) { return query_index(desc, x.o, sh.query[n].t, i, sh.query[n].j); });
    for (int n = (int)threadIdx.x; n < nq * (d_v + 1); n += THREADS) {
        const int m = n / (d_v + 1), c = n % (d_v + 1);
        const int64_t row = (i * desc.a + sh.query[m].j) * desc.s_q + sh.query[m].t;
        const float value = c < d_v ? sh.o.p[m * sh.o.row + c] : sh.max[m] + logf(sh.sum[m]);

        if (x.part)
            x.part[(row * x.splits + split) * (d_v + 1) + c] = value;
        else if (c == d_v)
            x.lse[row] = value;
    }
}

/* Merge the outputs of the splits: a warp merges one query of one head. */
template <class O> static __global__ void merge_splits(struct attn_f32_fwd x)
{
    const struct meg_attn_desc &desc = x.desc;
    const int64_t row = (blockIdx.x * (int64_t)THREADS + threadIdx.x) / WARP;
    const int lane = (int)threadIdx.x % WARP, n = (int)desc.d_v + 1;
    const float *part;
    float most = -INFINITY, sum = 0.0f;
    O *o;

    if (row >= desc.b * desc.a * desc.s_q)
        return;
    part = x.part + row * x.splits * n;
    o = (O *)x.o.p + query_index(desc, x.o, row % desc.s_q, row / desc.s_q / desc.a, row / desc.s_q % desc.a);
    for (int s = 0; s < x.splits; s++)
        most = fmaxf(most, part[s * n + n - 1]);
    for (int s = 0; s < x.splits; s++)
        sum += most == -INFINITY ? 0.0f : expf(part[s * n + n - 1] - most);
    for (int c = lane; c < n - 1; c += WARP) {
        float value = 0.0f;

        for (int s = 0; s < x.splits; s++)
            if (part[s * n + n - 1] != -INFINITY)
                value += expf(part[s * n + n - 1] - most) / sum * part[s * n + c];
        o[c] = from_float<O>(value);
    }
    if (lane == 0)
        x.lse[row] = most == -INFINITY ? most : most + logf(sum);
}

void meg_cuda_attn_f32_fwd(struct meg_stream *st, const struct meg_attn_fwd_args *a)
{
    const struct meg_attn_desc *desc = a->desc;
    struct attn_f32_fwd x = {};
    size_t nbytes;
    int64_t blocks;

    if (desc->s_q * desc->b == 0)
        return;
    x.desc = *desc;
    x.o = a->o, x.q = a->q, x.k = a->k, x.v = a->v;
    x.drop = weight_drop_of(a->drop);
    x.lse = a->lse;
    x.is_o_aligned = has_aligned_heads(a->o), x.is_q_aligned = has_aligned_heads(a->q);
    x.is_k_aligned = has_aligned_heads(a->k), x.is_v_aligned = has_aligned_heads(a->v);
    x.bq = BQ, x.bk = BK;
    while (fwd_arrays_at(NULL, *desc, x.bq, x.bk, &nbytes), is_too_large(nbytes) && x.bk > 8) {
        x.bk /= 2;
        x.bq = x.bq > 4 ? x.bq / 2 : x.bq;
    }
    check_shared(desc, nbytes);
    blocks = ceil_div(desc->s_q * (desc->a / desc->g), x.bq) * desc->g * desc->b;
    if (desc->s_q == 1) {
        x.split_size = SPLIT_SIZE;
        x.splits = (int)ceil_div(desc->s_k + 7, SPLIT_SIZE);
    } else {
        x.splits = (int)grid_size(512 / blocks, ceil_div(desc->s_k, 256) > 1 ? ceil_div(desc->s_k, 256) : 1);
        x.split_size = (int)(ceil_div(desc->s_k + 8, x.splits * x.bk) * x.bk);
    }
    if (x.splits > 1)
        x.part = (float *)meg_cuda_scratch(st, (size_t)(desc->b * desc->a * desc->s_q * x.splits * (desc->d_v + 1)) *
                                                   sizeof *x.part);
    launch(st, attn_fwd, (unsigned)(blocks * x.splits), THREADS, nbytes, x);
    if (x.splits > 1)
        with_type(a->o.dtype, [&](auto t) {
            launch(st, merge_splits<decltype(t)>, (unsigned)ceil_div(desc->b * desc->a * desc->s_q * WARP, THREADS),
                   THREADS, 0, x);
        });
}

/* ---- backward ---- */

struct attn_f32_bwd {
    struct meg_attn_desc desc;
    struct meg_heads dq, dk, dv, d_o, q, k, v;
    const float *lse, *delta;
    struct weight_drop drop;
    double *d_rel_bias; /* [b, a, tiles, buckets] or NULL */
    int bq, bk;
    bool accumulate;
    bool are_grads_aligned, is_q_aligned, is_k_aligned, is_v_aligned, is_d_o_aligned; /* has_aligned_heads */
};

/*
 * The arrays of a block in shared memory.  x contains the sums of dq or dk that the block computes, and y those of dv.
 */
struct bwd_arrays {
    struct tile q, d_o, k, v, s, dp, x, y;
    struct query *query;
    float *lse, *delta, *diagonal;
    int *bucket;
};

/* Return the arrays at `p`; *nbytes is their size. */
static MEG_HOST_DEVICE struct bwd_arrays bwd_arrays_at(char *p, const struct meg_attn_desc &desc, int bq, int bk,
                                                       size_t *nbytes)
{
    struct bwd_arrays x;
    const int ld = pad_row(desc.d), ld_v = pad_row(desc.d_v), ld_s = pad_row(bk), most = bq > bk ? bq : bk;
    float *f;

    x.query = (struct query *)(void *)p;
    f = (float *)(void *)(x.query + bq);
    x.q = take_tile(f, bq, ld);
    x.d_o = take_tile(f, bq, ld_v);
    x.k = take_tile(f, bk, ld);
    x.v = take_tile(f, bk, ld_v);
    x.s = take_tile(f, bq, ld_s);
    x.dp = take_tile(f, bq, ld_s);
    x.x = take_tile(f, most, ld);
    x.y = take_tile(f, most, ld_v);
    x.lse = f;
    x.delta = f + bq;
    x.diagonal = f + 2 * bq;
    x.bucket = (int *)(void *)(x.diagonal + bq + bk);
    *nbytes = (size_t)((char *)(void *)(x.bucket + bq + bk) - p);
    return x;
}

/* Load queries [t0, t0 + nq) of head j of sequence i, and their d_o, lse, delta and ranges of visible keys. */
static __device__ inline void load_queries(const struct attn_f32_bwd &x, const struct bwd_arrays &sh, int64_t t0,
                                           int nq, int64_t i, int64_t j)
{
    const struct meg_attn_desc &desc = x.desc;

    for (int n = (int)threadIdx.x; n < nq; n += THREADS) {
        const int64_t row = (i * desc.a + j) * desc.s_q + t0 + n;

        sh.query[n] = { t0 + n, j, query_position(desc, t0 + n, i), visible_keys(desc, t0 + n, i) };
        sh.lse[n] = x.lse[row];
        sh.delta[n] = x.delta[row];
    }
    load_tile(sh.q, x.q, nq, (int)desc.d, x.is_q_aligned, [&](int n) { return query_index(desc, x.q, t0 + n, i, j); });
    load_tile(sh.d_o, x.d_o, nq, (int)desc.d_v, x.is_d_o_aligned,
              [&](int n) { return query_index(desc, x.d_o, t0 + n, i, j); });
}

/* Load keys and values [key, key + x.bk) of a group of sequence i; those outside [0, s_k) are 0. */
static __device__ inline void load_keys(const struct attn_f32_bwd &x, const struct bwd_arrays &sh, int key, int64_t i,
                                        int64_t group)
{
    const struct meg_attn_desc &desc = x.desc;

    load_tile(sh.k, x.k, x.bk, (int)desc.d, x.is_k_aligned, [&](int n) {
        return key + n >= 0 && key + n < desc.s_k ? key_index(desc, x.k, key + n, i, group) : NO_ROW;
    });
    load_tile(sh.v, x.v, x.bk, (int)desc.d_v, x.is_v_aligned, [&](int n) {
        return key + n >= 0 && key + n < desc.s_k ? key_index(desc, x.v, key + n, i, group) : NO_ROW;
    });
}

/*
 * Compute a tile from q, d_o, k and v: in dp, the gradients with respect to scale * q.k; in s, the weights after
 * dropout or, if is_dq is set, the gradients of the scores.
 */
static __device__ inline void bwd_tile(const struct attn_f32_bwd &x, const struct bwd_arrays &sh, int nq, int key,
                                       int64_t i, bool is_dq)
{
    const int vectors = x.bk / 8;
    const int64_t first = fill_buckets(sh.bucket, x.desc, key, x.bk, sh.query[nq - 1].position, nq);

    multiply_add(sh.s, 0.0f, sh.q, transpose(sh.k), nq, x.bk, (int)x.desc.d);
    multiply_add(sh.dp, 0.0f, sh.d_o, transpose(sh.v), nq, x.bk, (int)x.desc.d_v);
    __syncthreads();
    for (int n = (int)threadIdx.x; n < nq * vectors; n += THREADS) {
        const int r = n / vectors, c0 = n % vectors * 8;
        const struct query &query = sh.query[r];
        const uint32_t kept =
            x.drop.threshold ? kept_keys(x.desc, x.drop, i, query.j, query.position, key + c0) : 0xffu;

        for (int c = c0; c < c0 + 8; c++) {
            float *const s = sh.s.p + r * sh.s.row + c, *const dp = sh.dp.p + r * sh.dp.row + c, slope;

            if (key + c >= query.keys.lo && key + c < query.keys.hi) {
                const float factor = kept >> (c - c0) & 1 ? x.drop.scale : 0.0f;
                const float p = expf(score_of(x.desc, query, key + c, *s, sh.bucket, first, &slope) - sh.lse[r]);
                const float ds = p * (*dp * factor - sh.delta[r]);

                *s = is_dq ? ds : p * factor;
                *dp = ds * slope;
            } else {
                *s = *dp = 0.0f;
            }
        }
    }
    __syncthreads();
}

/* Add the gradients of the scores in s, nq queries by bk keys, to the sums of their buckets in global memory. */
static __device__ inline void add_to_buckets(const struct attn_f32_bwd &x, const struct bwd_arrays &sh, int nq,
                                             double *sum)
{
    const int n = nq + x.bk - 1;

    for (int m = (int)threadIdx.x; m < n; m += THREADS) {
        float value = 0.0f;

        for (int r = max(0, nq - 1 - m); r < nq && m - (nq - 1) + r < x.bk; r++)
            value += sh.s.p[r * sh.s.row + m - (nq - 1) + r];
        sh.diagonal[m] = value;
    }
    __syncthreads();
    for (int bucket = (int)threadIdx.x; bucket < x.desc.rel_bias.rows; bucket += THREADS)
        for (int m = 0; m < n; m++)
            if (sh.bucket[m] == bucket)
                sum[bucket] += (double)sh.diagonal[m];
}

static __global__ void __launch_bounds__(THREADS, 2) attn_bwd_dq(struct attn_f32_bwd x)
{
    SHARED(char, shared);
    size_t nbytes;
    const struct meg_attn_desc &desc = x.desc;
    const struct bwd_arrays sh = bwd_arrays_at(shared, desc, x.bq, x.bk, &nbytes);
    const int64_t tiles = (desc.s_q + x.bq - 1) / x.bq, t0 = blockIdx.x % tiles * x.bq, j = blockIdx.x / tiles % desc.a,
                  i = blockIdx.x / tiles / desc.a, group = j / (desc.a / desc.g);
    const int nq = (int)min((int64_t)x.bq, desc.s_q - t0), d = (int)desc.d, origin = tile_origin(desc);
    double *const d_rel_bias = x.d_rel_bias ? x.d_rel_bias + blockIdx.x * desc.rel_bias.rows : NULL;
    struct attn_range keys;

    load_queries(x, sh, t0, nq, i, j);
    for (int n = (int)threadIdx.x; n < nq * sh.x.row; n += THREADS)
        sh.x.p[n] = 0.0f;
    for (int n = (int)threadIdx.x; d_rel_bias && n < desc.rel_bias.rows; n += THREADS)
        d_rel_bias[n] = 0.0;
    __syncthreads();
    keys = keys_of(sh.query, nq);
    for (int key = origin + (keys.lo - origin) / x.bk * x.bk; key < keys.hi; key += x.bk) {
        load_keys(x, sh, key, i, group);
        __syncthreads();
        bwd_tile(x, sh, nq, key, i, true);
        if (d_rel_bias)
            add_to_buckets(x, sh, nq, d_rel_bias);
        multiply_add(sh.x, 1.0f, sh.dp, sh.k, nq, d, x.bk);
        __syncthreads();
    }
    store_tile(x.dq, sh.x, nq, d, desc.scale, x.accumulate, x.are_grads_aligned,
               [&](int n) { return query_index(desc, x.dq, t0 + n, i, j); });
}

static __global__ void __launch_bounds__(THREADS, 2) attn_bwd_dkdv(struct attn_f32_bwd x)
{
    SHARED(char, shared);
    size_t nbytes;
    const struct meg_attn_desc &desc = x.desc;
    const struct bwd_arrays sh = bwd_arrays_at(shared, desc, x.bq, x.bk, &nbytes);
    const int64_t r = desc.a / desc.g, tiles = (desc.s_k - tile_origin(desc) + x.bk - 1) / x.bk;
    const int64_t group = blockIdx.x / tiles % desc.g, i = blockIdx.x / tiles / desc.g;
    const int key = tile_origin(desc) + (int)(blockIdx.x % tiles * x.bk), d = (int)desc.d, d_v = (int)desc.d_v;
    const int begin = max(key, 0), end = (int)min((int64_t)key + x.bk, desc.s_k);
    const struct attn_range queries = queries_in_window(desc, begin, end);
    const struct tile dk = { sh.x.p + (begin - key) * sh.x.row, sh.x.row, 1 };
    const struct tile dv = { sh.y.p + (begin - key) * sh.y.row, sh.y.row, 1 };

    load_keys(x, sh, key, i, group);
    for (int n = (int)threadIdx.x; n < x.bk * sh.x.row; n += THREADS)
        sh.x.p[n] = 0.0f;
    for (int n = (int)threadIdx.x; n < x.bk * sh.y.row; n += THREADS)
        sh.y.p[n] = 0.0f;
    for (int64_t j = group * r; j < (group + 1) * r; j++)
        for (int64_t t0 = queries.lo / x.bq * x.bq; t0 < queries.hi; t0 += x.bq) {
            const int nq = (int)min((int64_t)x.bq, desc.s_q - t0);

            load_queries(x, sh, t0, nq, i, j);
            __syncthreads();
            bwd_tile(x, sh, nq, key, i, false);
            multiply_add(sh.y, 1.0f, transpose(sh.s), sh.d_o, x.bk, d_v, nq);
            multiply_add(sh.x, 1.0f, transpose(sh.dp), sh.q, x.bk, d, nq);
            __syncthreads();
        }
    __syncthreads();
    store_tile(x.dk, dk, end - begin, d, desc.scale, x.accumulate, x.are_grads_aligned,
               [&](int n) { return key_index(desc, x.dk, begin + n, i, group); });
    store_tile(x.dv, dv, end - begin, d_v, 1.0f, x.accumulate, x.are_grads_aligned,
               [&](int n) { return key_index(desc, x.dv, begin + n, i, group); });
}

/* Set the sizes of tiles such that the arrays fit in shared memory, and return the size of the arrays in bytes. */
static size_t bwd_tile_sizes(const struct meg_attn_desc *desc, int *bq, int *bk)
{
    size_t nbytes;

    *bq = BQ, *bk = BK_BWD;
    while (bwd_arrays_at(NULL, *desc, *bq, *bk, &nbytes), is_too_large(nbytes) && *bk > 8) {
        *bk /= 2;
        *bq /= 2;
    }
    return nbytes;
}

int64_t meg_cuda_attn_f32_tiles(const struct meg_attn_desc *desc)
{
    int bq, bk;

    bwd_tile_sizes(desc, &bq, &bk);
    return ceil_div(desc->s_q, bq);
}

void meg_cuda_attn_f32_bwd(struct meg_stream *st, const struct meg_attn_bwd_args *a, double *d_rel_bias)
{
    const struct meg_attn_desc *desc = a->desc;
    struct attn_f32_bwd x = {};
    const size_t nbytes = bwd_tile_sizes(desc, &x.bq, &x.bk);

    check_shared(desc, nbytes);
    x.desc = *desc;
    x.dq = a->dq, x.dk = a->dk, x.dv = a->dv;
    x.d_o = a->d_o, x.q = a->q, x.k = a->k, x.v = a->v;
    x.lse = a->lse;
    x.delta = a->delta;
    x.drop = weight_drop_of(a->drop);
    x.d_rel_bias = d_rel_bias;
    x.accumulate = a->accumulate;
    x.are_grads_aligned = has_aligned_heads(a->dq) && has_aligned_heads(a->dk) && has_aligned_heads(a->dv);
    x.is_q_aligned = has_aligned_heads(a->q), x.is_k_aligned = has_aligned_heads(a->k);
    x.is_v_aligned = has_aligned_heads(a->v), x.is_d_o_aligned = has_aligned_heads(a->d_o);
    if (desc->s_q * desc->b > 0)
        launch(st, attn_bwd_dq, (unsigned)(ceil_div(desc->s_q, x.bq) * desc->a * desc->b), THREADS, nbytes, x);
    if (desc->s_k * desc->b > 0)
        launch(st, attn_bwd_dkdv, (unsigned)(ceil_div(desc->s_k + desc->k0 % 8, x.bk) * desc->g * desc->b), THREADS,
               nbytes, x);
}
