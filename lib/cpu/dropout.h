/*
 * dropout.h - dropout masks, defined at struct meg_drop in tensor/ops.h.  Many consecutive units are computed at once,
 * so that the compiler vectorizes the rounds of Philox.
 */
#pragma once
#include <math.h>
#include <string.h>
#include "base/philox.h"
#include "cpu/internal.h"
#include "cpu/philox_block.h"

enum { DROP_BLOCK = 512 }; /* maximum number of units per call of drop_factors */

struct dropout {
    const struct meg_drop *desc; /* NULL: no dropout */
    uint32_t key[2];
    uint32_t threshold; /* a unit is dropped if its 16-bit number is below this value; 0: no dropout */
    float scale;        /* factor for the values of kept units */
};

static inline struct dropout drop_begin(const struct meg_drop *d)
{
    struct dropout r = { d, { 0, 0 }, d ? (uint32_t)fminf(rintf(d->p * 65536.0f), 65535.0f) : 0, 0.0f };
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

/* Return the dropout factors, 0 or d->scale, of units [unit, unit + n), n <= DROP_BLOCK.  They are stored in buf. */
static inline const float *drop_factors(struct drop_buf *buf, const struct dropout *d, int64_t unit, int64_t n,
                                        int64_t position, int64_t sample)
{
    enum { BLOCKS = DROP_BLOCK / 8 + 1 };
    uint32_t word[4][BLOCKS];
    const int64_t nblocks = meg_ceil_div(unit % 8 + n, 8);
    const uint32_t first = (uint32_t)(unit / 8), pos = (uint32_t)position, low = (uint32_t)sample,
                   high = (uint32_t)((uint64_t)sample >> 32);
    const uint32_t threshold = d->threshold;
    const float scale = d->scale;
    MEG_ASSERT_LE(n, DROP_BLOCK);
    philox_blocks(word[0], word[1], word[2], word[3], (struct philox_words){ first, pos, low, high }, d->key, nblocks);
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

/* Return the dropout factors of columns [c0, c0 + n) of row r of [n, h] activations, as drop_factors does. */
static inline const float *drop_factors_of_row(struct drop_buf *buf, const struct dropout *drop, int64_t r, int64_t c0,
                                               int64_t n)
{
    const struct meg_drop *d = drop->desc;
    const int64_t position = d->position_of_row ? d->position_of_row[r / d->b] : d->pos0 + r / d->b;

    return drop_factors(buf, drop, d->unit0 + c0, n, position, d->sample[r % d->b]);
}
