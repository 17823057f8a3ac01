/*
 * dropout.cu - dropout masks of attention, one bit per weight, for the kernels for tensor cores.
 *
 * A separate kernel computes the bits before the forward pass and again before the backward pass.  In
 * the attention kernels, few warps run at a time, so the latency of Philox would not be hidden.
 */
#include "cuda/attention/tiles.h"

enum { THREADS = 128, WORDS = 8 };
int64_t meg_cuda_kept_nbytes = 256 << 20;

struct head_chunk meg_cuda_first_chunk(const struct meg_attn_desc *desc, const struct weight_drop *drop)
{
    const int64_t words = ceil_div(desc->s_k + desc->k0 % 8, 64), rows = ceil_div(desc->s_q, THREADS) * THREADS;
    const int64_t group = desc->a / desc->g * words * rows * 8, most = group > 0 ? meg_cuda_kept_nbytes / group : 1;
    struct head_chunk x = {};

    x.ng = (int)desc->g;
    x.ni = (int)desc->b;
    x.scale = drop->scale;
    if (!drop->threshold)
        return x;
    x.words = (int)words;
    x.rows = (int)rows;
    if (most < desc->g)
        x.ng = most < 1 ? 1 : (int)most;
    if (most / desc->g < desc->b)
        x.ni = most / desc->g < 1 ? 1 : (int)(most / desc->g);
    return x;
}

/*
 * A thread computes WORDS words of the bits of a query, and a block those of THREADS queries.  Words without visible
 * keys are not computed.
 */
static __global__ void __launch_bounds__(THREADS)
    fill_kept(struct meg_attn_desc desc, struct weight_drop drop, struct head_chunk x)
{
    const int row_blocks = x.rows / THREADS, begin = (int)blockIdx.x / row_blocks * WORDS,
              t0 = (int)blockIdx.x % row_blocks * THREADS, t = t0 + (int)threadIdx.x;
    const int i = x.i0 + (int)blockIdx.z, j = x.j0 + (int)blockIdx.y, origin = tile_origin(desc);
    const struct attn_range keys = keys_of_tile(desc, t0, THREADS, i).any;
    const int end = min(begin + WORDS, (keys.hi - origin + 63) / 64);
    const int64_t position = query_position(desc, t, i), sample = drop.sample[i];
    uint64_t *const to = x.bits + ((int64_t)blockIdx.z * x.heads + blockIdx.y) * x.words * (int64_t)x.rows + t;

    for (int word = max(begin, (keys.lo - origin) / 64); word < end; word++) {
        const uint32_t block = philox_block(desc, drop, j, origin + 64 * word);
        uint64_t bits = 0;

#pragma unroll
        for (int c = 0; c < 8; c++)
            bits |= (uint64_t)kept_weights(drop, block + (uint32_t)c, position, sample) << 8 * c;
        to[(int64_t)word * x.rows] = bits;
    }
}

void meg_cuda_fill_kept_bits(struct meg_stream *st, const struct meg_attn_desc *desc, const struct weight_drop *drop,
                             const struct head_chunk *x)
{
    if (x->bits)
        launch(st, fill_kept,
               dim3((unsigned)(x->rows / THREADS * ceil_div(x->words, WORDS)), (unsigned)x->heads, (unsigned)x->ni),
               THREADS, 0, *desc, *drop, *x);
}
