/*
 * dropout.cu - the attention weights that dropout keeps, for the kernels for tensor cores.
 *
 * A separate kernel computes a bit for each weight, before the forward pass and again before the backward pass.  In
 * the attention kernels, few warps run at a time, so the latency of Philox would not be hidden.
 */
#include "cuda/attention/tiles.h"

enum { THREADS = 128 };
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

/* A thread computes the bits of a query in one word, and a block those of THREADS queries. */
static __global__ void __launch_bounds__(THREADS)
    fill_kept(struct meg_attn_desc desc, struct weight_drop drop, struct head_chunk x)
{
    const int row_blocks = x.rows / THREADS, word = (int)blockIdx.x / row_blocks,
              t0 = (int)blockIdx.x % row_blocks * THREADS, t = t0 + (int)threadIdx.x;
    const int i = x.i0 + (int)blockIdx.z, j = x.j0 + (int)blockIdx.y, key = tile_origin(desc) + 64 * word;
    const struct attn_range keys = keys_of_tile(desc, t0, THREADS, i).any;
    const int64_t position = query_position(desc, t, i);
    uint64_t bits = 0;

    if (keys.lo >= key + 64 || keys.hi <= key)
        return;
#pragma unroll
    for (int c = 0; c < 8; c++)
        bits |= (uint64_t)kept_keys(desc, drop, i, j, position, key + 8 * c) << 8 * c;
    x.bits[(((int64_t)blockIdx.z * x.heads + blockIdx.y) * x.words + word) * (int64_t)x.rows + t] = bits;
}

void meg_cuda_fill_kept_bits(struct meg_stream *st, const struct meg_attn_desc *desc, const struct weight_drop *drop,
                             const struct head_chunk *x)
{
    if (x->bits)
        launch(st, fill_kept, dim3((unsigned)(x->rows / THREADS * x->words), (unsigned)x->heads, (unsigned)x->ni),
               THREADS, 0, *desc, *drop, *x);
}
