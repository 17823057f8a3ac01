/*
 * Dropout masks by position (tensor/ops.h, struct meg_drop): Philox4x32-10 (Salmon et al. 2011) run on
 * a row of counters at once, which the compiler turns into vector code.  base/philox.h is the
 * definition; tests hold these masks against it.
 */
#ifndef MEG_CPU_DROPOUT_H
#define MEG_CPU_DROPOUT_H
#include <math.h>
#include <string.h>
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
        r.key[1] = 1 + 16 * (uint32_t)d->layer + (uint32_t)d->site;
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
        uint32_t c0 = (uint32_t)(block + i), c1 = (uint32_t)position, c2 = (uint32_t)sample,
                 c3 = (uint32_t)((uint64_t)sample >> 32), k0 = d->key[0], k1 = d->key[1];
        for (int round = 0; round < 10; round++) {
            const uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c1 = (uint32_t)p1;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c3 = (uint32_t)p0;
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        word[4 * i] = c0;
        word[4 * i + 1] = c1;
        word[4 * i + 2] = c2;
        word[4 * i + 3] = c3;
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
