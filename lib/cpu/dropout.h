/*
 * Dropout masks by position (tensor/ops.h, struct meg_drop), for runs of units, so that the compiler
 * turns the rounds of Philox into vector code.
 */
#ifndef MEG_CPU_DROPOUT_H
#define MEG_CPU_DROPOUT_H
#include <math.h>
#include <string.h>
#include "base/philox.h"
#include "cpu/internal.h"

enum { DROP_RUN = 512 }; /* most units a call of drop_factors makes */

struct drop {
    uint32_t key[2];
    uint32_t threshold; /* lanes below it are dropped */
    float scale;        /* of what is kept */
};

static inline struct drop drop_begin(const struct meg_drop *d)
{
    struct drop r = { .threshold = d ? (uint32_t)lrintf(d->p * 65536.0f) : 0 };
    if (r.threshold) {
        MEG_ASSERT(r.threshold < 65536 && d->sample && d->b > 0);
        r.key[0] = d->seed;
        r.key[1] = MEG_PHILOX_DROPOUT + 16 * (uint32_t)d->layer + (uint32_t)d->site;
        r.scale = 65536.0f / (float)(65536 - r.threshold);
    }
    return r;
}

/* 0 or the scale for n <= DROP_RUN units from unit on. */
static inline void drop_factors(float *factor, const struct drop *d, int64_t unit, int64_t n, int64_t position,
                                int64_t sample)
{
    uint32_t word[4 * (DROP_RUN / 8 + 1)];
    float all[DROP_RUN + 8];
    const int64_t block = unit / 8, skip = unit % 8, nblocks = blocks(skip + n, 8);
    float *f = skip || n % 8 ? all : factor;
#pragma omp simd
    for (int64_t i = 0; i < nblocks; i++) {
        const uint32_t counter[4] = { (uint32_t)(block + i), (uint32_t)position, (uint32_t)sample,
                                      (uint32_t)((uint64_t)sample >> 32) };
        uint32_t w[4];
        meg_philox(w, d->key, counter);
        for (int k = 0; k < 4; k++)
            word[4 * i + k] = w[k];
    }
#pragma omp simd
    for (int64_t i = 0; i < 4 * nblocks; i++) {
        f[2 * i] = (word[i] & 0xffff) >= d->threshold ? d->scale : 0.0f;
        f[2 * i + 1] = (word[i] >> 16) >= d->threshold ? d->scale : 0.0f;
    }
    if (f != factor)
        memcpy(factor, all + skip, (size_t)n * sizeof *factor);
}

/* The position and sample of row r of [n, h] activations. */
static inline int64_t drop_position(const struct meg_drop *d, int64_t r)
{
    return d->pos0 + r / d->b;
}

static inline int64_t drop_sample(const struct meg_drop *d, int64_t r)
{
    return d->sample[r % d->b];
}

#endif
