/* dropout.h - dropout in kernels, with the masks that struct meg_drop (tensor/ops.h) defines, as on the CPU. */
#pragma once
#include "cuda/kernel.h"

/* Return the threshold for probability p: a unit is dropped if its 16-bit number is below the threshold. */
static inline uint32_t drop_threshold(float p)
{
    return (uint32_t)fminf(rintf(p * 65536.0f), 65535.0f);
}

/* Return the factor for the values of kept units. */
static inline float drop_scale(uint32_t threshold)
{
    return 65536.0f / (float)(65536 - threshold);
}

/* Dropout of activations, as an argument of kernels. */
struct drop_mask {
    struct meg_drop drop;
    uint32_t key[2];    /* of Philox */
    uint32_t threshold; /* 0: no dropout */
    float scale;
};

/* Return the mask for d, which may be NULL. */
static inline struct drop_mask drop_begin(const struct meg_drop *d)
{
    struct drop_mask r = {};

    if (d && d->p > 0.0f) {
        MEG_ASSERT(d->p < 1.0f);
        r.drop = *d;
        r.key[0] = d->seed;
        r.key[1] = MEG_PHILOX_DROPOUT + 16 * (uint32_t)d->layer + (uint32_t)d->site;
        r.threshold = drop_threshold(d->p);
        r.scale = drop_scale(r.threshold);
    }
    return r;
}

/* The global position and sample number of a row of [n, h] activations, which are parts of its Philox counters. */
struct drop_row {
    uint32_t position;
    int64_t sample;
};

/* Return the position and the sample number of row r; both are 0 without dropout. */
__device__ inline struct drop_row drop_row_of(const struct drop_mask &d, int64_t r)
{
    const struct meg_drop &drop = d.drop;
    int64_t t;

    if (!d.threshold)
        return {};
    t = r / drop.b;
    return { (uint32_t)(drop.position_of_row ? drop.position_of_row[t] : drop.pos0 + t), drop.sample[r - t * drop.b] };
}

/* Compute the factors, 0 or d.scale, of units [unit, unit + 8).  If `IN_BLOCK` is set, unit is a multiple of 8. */
template <bool IN_BLOCK = false>
__device__ inline void drop_factors(float (&factor)[8], const struct drop_mask &d, int64_t unit,
                                    const struct drop_row &row)
{
    uint32_t counter[4] = { (uint32_t)(unit / 8), row.position, (uint32_t)row.sample,
                            (uint32_t)((uint64_t)row.sample >> 32) };
    uint32_t w[8] = {};

    meg_philox(w, d.key, counter);
    if (!IN_BLOCK && unit % 8) { /* the units are in two blocks of Philox: shift their numbers to the beginning of w */
        counter[0]++;
        meg_philox(w + 4, d.key, counter);
        for (int i = 0; i < (int)(unit % 8); i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                w[j] = w[j] >> 16 | (j < 7 ? w[j + 1] << 16 : 0);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        factor[2 * j] = (w[j] & 0xffff) < d.threshold ? 0.0f : d.scale;
        factor[2 * j + 1] = w[j] >> 16 < d.threshold ? 0.0f : d.scale;
    }
}

/*
 * Multiply v, which are columns [c, c + VEC) of a row of [n, h] activations, by their dropout factors.  If `IN_BLOCK`
 * is set, unit0 is a multiple of 8.
 */
template <bool IN_BLOCK = false>
__device__ inline void drop_columns(float (&v)[VEC], const struct drop_mask &d, const struct drop_row &row, int64_t c)
{
    float factor[VEC];

    if (!d.threshold)
        return;
    drop_factors<IN_BLOCK>(factor, d, d.drop.unit0 + c, row);
#pragma unroll
    for (int j = 0; j < VEC; j++)
        v[j] *= factor[j];
}

/* Like the function above, for row r. */
__device__ inline void drop_columns(float (&v)[VEC], const struct drop_mask &d, int64_t r, int64_t c)
{
    drop_columns(v, d, drop_row_of(d, r), c);
}
