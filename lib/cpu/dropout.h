/*
 * dropout.h - dropout masks, defined at struct meg_drop in tensor/ops.h.  Many consecutive units are computed at once,
 * so that the compiler vectorizes the rounds of Philox.
 */
#ifndef MEG_CPU_DROPOUT_H
#define MEG_CPU_DROPOUT_H
#include <math.h>
#include <string.h>
#include "base/philox.h"
#include "cpu/internal.h"

MEG_BEGIN_DECLS

enum { DROP_BLOCK = 512 }; /* maximum number of units per call */

struct dropout {
    uint32_t key[2];
    uint32_t threshold; /* a unit is dropped if its 16-bit number is below this value; 0: no dropout */
    float scale;        /* factor for the values of kept units */
};

static inline struct dropout drop_begin(const struct meg_drop *d)
{
    struct dropout r = { { 0, 0 }, d ? (uint32_t)fminf(rintf(d->p * 65536.0f), 65535.0f) : 0, 0.0f };
    if (r.threshold) {
        MEG_ASSERT(d->p > 0.0f && d->p < 1.0f && d->sample);
        MEG_ASSERT_LT(0, d->b);
        r.key[0] = d->seed;
        r.key[1] = MEG_PHILOX_DROPOUT + 16 * (uint32_t)d->layer + (uint32_t)d->site;
        r.scale = 65536.0f / (float)(65536 - r.threshold);
    }
    return r;
}

struct drop_buf {
    float factor[DROP_BLOCK + 8];
};

struct drop_words {
    uint32_t c0, c1, c2, c3;
};

/* Compute round r of meg_philox.  The compiler vectorizes ten calls in a row, but not a loop over the rounds. */
static inline struct drop_words drop_round(struct drop_words c, uint32_t k0, uint32_t k1, uint32_t r)
{
    const uint64_t p0 = (uint64_t)0xd2511f53u * c.c0, p1 = (uint64_t)0xcd9e8d57u * c.c2;
    const struct drop_words next = { (uint32_t)(p1 >> 32) ^ c.c1 ^ (k0 + r * 0x9e3779b9u), (uint32_t)p1,
                                     (uint32_t)(p0 >> 32) ^ c.c3 ^ (k1 + r * 0xbb67ae85u), (uint32_t)p0 };
    return next;
}

/* Return the dropout factors, 0 or d->scale, of units [unit, unit + n), n <= DROP_BLOCK.  They are stored in buf. */
static inline const float *drop_factors(struct drop_buf *buf, const struct dropout *d, int64_t unit, int64_t n,
                                        int64_t position, int64_t sample)
{
    enum { BLOCKS = DROP_BLOCK / 8 + 1 };
    uint32_t word[4][BLOCKS];
    const int64_t nblocks = ceil_div(unit % 8 + n, 8);
    const uint32_t first = (uint32_t)(unit / 8), pos = (uint32_t)position, low = (uint32_t)sample,
                   high = (uint32_t)((uint64_t)sample >> 32), key0 = d->key[0], key1 = d->key[1];
    const uint32_t threshold = d->threshold;
    const float scale = d->scale;
    MEG_ASSERT_LE(n, DROP_BLOCK);
#pragma omp simd
    for (int64_t i = 0; i < nblocks; i++) {
        struct drop_words c = { first + (uint32_t)i, pos, low, high };
        c = drop_round(c, key0, key1, 0);
        c = drop_round(c, key0, key1, 1);
        c = drop_round(c, key0, key1, 2);
        c = drop_round(c, key0, key1, 3);
        c = drop_round(c, key0, key1, 4);
        c = drop_round(c, key0, key1, 5);
        c = drop_round(c, key0, key1, 6);
        c = drop_round(c, key0, key1, 7);
        c = drop_round(c, key0, key1, 8);
        c = drop_round(c, key0, key1, 9);
        word[0][i] = c.c0;
        word[1][i] = c.c1;
        word[2][i] = c.c2;
        word[3][i] = c.c3;
    }
#pragma omp simd
    for (int64_t i = 0; i < nblocks; i++) {
        float *f = buf->factor + 8 * i;
        f[0] = (word[0][i] & 0xffff) < threshold ? 0.0f : scale;
        f[1] = (word[0][i] >> 16) < threshold ? 0.0f : scale;
        f[2] = (word[1][i] & 0xffff) < threshold ? 0.0f : scale;
        f[3] = (word[1][i] >> 16) < threshold ? 0.0f : scale;
        f[4] = (word[2][i] & 0xffff) < threshold ? 0.0f : scale;
        f[5] = (word[2][i] >> 16) < threshold ? 0.0f : scale;
        f[6] = (word[3][i] & 0xffff) < threshold ? 0.0f : scale;
        f[7] = (word[3][i] >> 16) < threshold ? 0.0f : scale;
    }
    return buf->factor + unit % 8;
}

/* Return the global position of row r of [n, h] activations. */
static inline int64_t drop_position(const struct meg_drop *d, int64_t r)
{
    return d->position_of_row ? d->position_of_row[r / d->b] : d->pos0 + r / d->b;
}

static inline int64_t drop_sample(const struct meg_drop *d, int64_t r)
{
    return d->sample[r % d->b];
}

MEG_END_DECLS

#endif
