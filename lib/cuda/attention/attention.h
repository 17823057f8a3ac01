/*
 * attention.h - what the attention kernels have in common: addresses of heads, masks, biases and dropout, and the
 * functions that launch the kernels.
 *
 * Results of the kernels are deterministic: no sum depends on the order of blocks.  Positions, s_q and s_k must be
 * below 2^30.  a, g and b, which are dimensions of the grids of the kernels for tensor cores, must be at most 65535.
 */
#pragma once
#include "cuda/dropout.h"

/*
 * Queue attn_fwd or attn_bwd (tensor/ops.h) on kernels for tensor cores (fwd.cu, bwd.cu), and return true.  Return
 * false, with nothing queued, if these kernels do not support the case, require more shared memory than the GPU has, or
 * would be slower than those in f32.  meg_cuda_attn_mma_bwd requires a->delta, and does not compute d_rel_bias and
 * d_sink.
 */
bool meg_cuda_attn_mma_fwd(struct meg_stream *st, const struct meg_attn_fwd_args *a);
bool meg_cuda_attn_mma_bwd(struct meg_stream *st, const struct meg_attn_bwd_args *a);

/*
 * Queue attn_fwd in f32 arithmetic, which supports all cases (f32.cu).  If the GPU has too little shared memory for the
 * head size, end the process with a message; so does meg_cuda_attn_f32_bwd.
 */
void meg_cuda_attn_f32_fwd(struct meg_stream *st, const struct meg_attn_fwd_args *a);
/*
 * Queue attn_bwd in f32 arithmetic; a->delta is required, and d_sink is not computed.  If d_rel_bias is not NULL,
 * write the gradients of the relative attention bias to it, summed over each tile of queries: device memory [b, a,
 * tiles, buckets], where tiles is meg_cuda_attn_f32_tiles.
 */
void meg_cuda_attn_f32_bwd(struct meg_stream *st, const struct meg_attn_bwd_args *a, double *d_rel_bias);
/* Return the number of tiles into which meg_cuda_attn_f32_bwd divides the queries of a head. */
int64_t meg_cuda_attn_f32_tiles(const struct meg_attn_desc *desc);

/* ---- heads ---- */

/* Return the index of the first element of query head j, for token t of sequence i. */
__device__ inline int64_t query_index(const struct meg_attn_desc &desc, const struct meg_heads &x, int64_t t, int64_t i,
                                      int64_t j)
{
    const int64_t r = desc.a / desc.g;

    return t * x.ld_s + i * x.ld_b + j / r * x.ld_g + j % r * x.ld_h;
}

/* Return the index of the first element of the key or value head of a group, for token t of sequence i. */
__device__ inline int64_t key_index(const struct meg_attn_desc &desc, const struct meg_heads &x, int64_t t, int64_t i,
                                    int64_t group)
{
    if (desc.block_offset) {
        const int64_t block = desc.blocks_per_seq > 1 ? t / desc.block_size : 0;

        return desc.block_offset[i * desc.blocks_per_seq + block] + (t - block * desc.block_size) * x.ld_s +
               group * x.ld_g;
    }
    return t * x.ld_s + i * x.ld_b + group * x.ld_g;
}

/* Return element `index` of an array of type `type`, as f32. */
__device__ inline float element(const void *p, enum meg_dtype type, int64_t index)
{
    switch (type) {
    case MEG_DTYPE_BF16: return to_float(((const bf16 *)p)[index]);
    case MEG_DTYPE_F16: return to_float(((const f16 *)p)[index]);
    default: return ((const float *)p)[index];
    }
}

/* ---- masks ---- */

/* Tokens [lo, hi) of a chunk of keys or queries; none if hi <= lo. */
struct attn_range {
    int lo, hi;
};

/* Return the position of query t of sequence i. */
__device__ inline int64_t query_position(const struct meg_attn_desc &desc, int64_t t, int64_t i)
{
    return (desc.query_start ? desc.query_start[i] : desc.q0) + t;
}

/* Return the range of keys that query t of sequence i attends to.  Both of its ends are nondecreasing in t. */
__device__ inline struct attn_range visible_keys(const struct meg_attn_desc &desc, int64_t t, int64_t i)
{
    const int s_k = (int)desc.s_k, k0 = (int)desc.k0, position = (int)query_position(desc, t, i) - k0,
              most = (1 << 30) - 2;
    int lo = 0, hi = s_k;

    if (desc.doc_start)
        lo = max(lo, desc.doc_start[t * desc.b + i] - k0);
    if (desc.key_length)
        hi = min(hi, desc.key_length[i] - k0);
    if (desc.window_left >= 0)
        lo = max(lo, position - (int)min(desc.window_left, (int64_t)most));
    if (desc.window_right >= 0)
        hi = min(hi, position + (int)min(desc.window_right, (int64_t)most) + 1);
    lo = min(lo, s_k);
    return { lo, max(hi, lo) };
}

/*
 * Return the range of queries that may attend to a key of [begin, end), considering only window_left and window_right.
 * query_start is ignored, because it is for decoding only.
 */
__device__ inline struct attn_range queries_in_window(const struct meg_attn_desc &desc, int64_t begin, int64_t end)
{
    int64_t lo = 0, hi = desc.s_q;

    if (desc.window_right >= 0)
        lo = max(lo, desc.k0 + begin - desc.window_right - desc.q0);
    if (desc.window_left >= 0)
        hi = min(hi, desc.k0 + end + desc.window_left - desc.q0);
    return { (int)min(lo, desc.s_q), (int)max(hi, (int64_t)0) };
}

/*
 * Tiles of keys begin at tile_origin + n * size, where size is a multiple of 8.  So keys 8 m to 8 m + 7 of a tile use
 * the eight numbers of one block of Philox.  The origin is at most 0.
 */
__device__ inline int tile_origin(const struct meg_attn_desc &desc)
{
    return -(int)(desc.k0 % 8);
}

/* ---- biases ---- */

/* Return log(x) rounded to nearest, unlike logf, so that powers of 2 are in the same bucket as on the CPU. */
__device__ inline float log_rounded(float x)
{
    return (float)log((double)x);
}

/*
 * Return the bucket of a relative position, the position of a key minus the position of a query (struct meg_attn_desc).
 */
__device__ inline int rel_bias_bucket(const struct meg_attn_desc &desc, int64_t relative)
{
    const bool is_bidirectional = desc.rel_bias_is_bidirectional, is_right = is_bidirectional && relative > 0;
    const int64_t n = desc.rel_bias.rows / (is_bidirectional ? 2 : 1), exact = n / 2, first = is_right ? n : 0;
    const int64_t distance = is_right ? relative : max(-relative, (int64_t)0);
    const float ratio = (float)distance / (float)exact, most = (float)desc.rel_bias_max_distance / (float)exact;

    if (distance < exact)
        return (int)(first + distance);
    return (int)(first + min(exact + (int64_t)(log_rounded(ratio) / log_rounded(most) * (float)(n - exact)), n - 1));
}

/*
 * Return the bias of head j at a relative position.  `bucket` is the bucket of this position, which is ignored without
 * a relative attention bias.
 */
__device__ inline float score_bias(const struct meg_attn_desc &desc, int64_t j, int64_t relative, int bucket)
{
    float bias = 0.0f;

    if (desc.rel_bias.p)
        bias = element(desc.rel_bias.p, desc.rel_bias.dtype, bucket * desc.rel_bias.ld + j);
    if (desc.alibi_slope)
        bias -= desc.alibi_slope[j] * (float)(relative < 0 ? -relative : relative);
    return bias;
}

/* Return the sink of head j, or -infinity without sinks. */
__device__ inline float sink_of(const struct meg_attn_desc &desc, int64_t j)
{
    return desc.sink.p ? element(desc.sink.p, desc.sink.dtype, j) : -INFINITY;
}

/*
 * Return the score of a query and a key whose dot product is qk, before biases are added.  Set *slope to the derivative
 * of the score with respect to scale * qk.
 */
__device__ inline float capped_score(const struct meg_attn_desc &desc, float qk, float *slope)
{
    float score = desc.scale * qk;

    *slope = 1.0f;
    if (desc.softcap > 0.0f) {
        const float th = tanhf(score / desc.softcap);

        score = desc.softcap * th;
        *slope = 1.0f - th * th;
    }
    return score;
}

/* ---- dropout ---- */

/* Dropout of attention weights, as an argument of kernels. */
struct weight_drop {
    uint32_t seed, stream; /* of meg_philox_dropout */
    uint32_t threshold;    /* 0: no dropout */
    float scale;           /* factor of kept weights; 1 without dropout */
    int64_t unit0;
    const int64_t *sample;
};

/* Return the dropout for d, which may be NULL. */
static inline struct weight_drop weight_drop_of(const struct meg_drop *d)
{
    struct weight_drop x = {};

    x.scale = 1.0f;
    if (d) {
        x.seed = d->seed;
        x.stream = 16 * (uint32_t)d->layer + (uint32_t)d->site;
        x.threshold = drop_threshold(d->p);
        x.scale = drop_scale(x.threshold);
        x.unit0 = d->unit0;
        x.sample = d->sample;
    }
    return x;
}

/*
 * Return the block of Philox for the weights of keys key to key + 7 and query head j; desc.k0 + key is a multiple of 8.
 */
__device__ inline uint32_t philox_block(const struct meg_attn_desc &desc, const struct weight_drop &drop, int64_t j,
                                        int64_t key)
{
    return (uint32_t)((drop.unit0 + j) * ((desc.s + 7) / 8) + (desc.k0 + key) / 8);
}

/* Return a byte whose bit n states whether weight n of a block is kept, for a query at a position of a sample. */
__device__ inline uint8_t kept_weights(const struct weight_drop &drop, uint32_t block, int64_t position, int64_t sample)
{
    const uint32_t threshold = drop.threshold << 16;
    uint32_t word[4], kept = 0;

    meg_philox_dropout(word, drop.seed, drop.stream, block, (uint32_t)position, sample);
#pragma unroll
    for (int n = 0; n < 4; n++) { /* the lower 16 bits of a word do not affect the second comparison */
        if (word[n] << 16 >= threshold)
            kept |= 1u << 2 * n;
        if (word[n] >= threshold)
            kept |= 2u << 2 * n;
    }
    return (uint8_t)kept;
}

/* Return kept_weights of keys key to key + 7, for query head j at a position of sequence i. */
__device__ inline uint8_t kept_keys(const struct meg_attn_desc &desc, const struct weight_drop &drop, int64_t i,
                                    int64_t j, int64_t position, int64_t key)
{
    return kept_weights(drop, philox_block(desc, drop, j, key), position, drop.sample[i]);
}
