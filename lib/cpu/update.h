/* update.h - load a block of the arrays of an optimizer step as f32, and round and store the updated block. */
#pragma once
#include <string.h>
#include "cpu/row.h"
#include "tensor/half.h"

/*
 * Elements [at, at + n) of the arrays, n <= COL_BLOCK.  w, g and state point to the elements in place if the array is
 * f32, else to a converted copy.  The pointer to an absent array is NULL.
 */
struct update_block {
    int64_t at, n;
    float *w, *g, *state[2];
    float buf[4][COL_BLOCK];
};

static inline float *update_load(struct meg_array x, int64_t at, int64_t n, float *buf)
{
    return x.p ? row_load(row_vector(x.p, x.dtype, at + n), 0, at, n, buf) : NULL;
}

/* Load a block of range r, which begins at element `at` of the arrays. */
static inline void update_begin(struct update_block *b, const struct meg_update_arrays *x,
                                const struct meg_update_range *r, int64_t at)
{
    const int64_t n = meg_min64(COL_BLOCK, r->end - at);

    b->at = at;
    b->n = n;
    b->w = update_load(x->w, at, n, b->buf[0]);
    b->g = update_load(x->g, at, n, b->buf[1]);
    for (int i = 0; i < 2; i++)
        b->state[i] = update_load(x->state[i], at, n, b->buf[2 + i]);
}

/*
 * Round x to bf16 stochastically: add `random`, a number of 16 bits, to the 16 bits that bf16 lacks, and truncate.  NaN
 * and Inf remain NaN and Inf.
 */
static inline uint16_t round_stochastic(float x, uint32_t random)
{
    const uint32_t u = meg_bits_of(x);

    return (u & 0x7f800000) == 0x7f800000 ? meg_to_bf16(x) : (uint16_t)((u + random) >> 16);
}

/* Round v [n] stochastically to out; the elements are consecutive in the unsharded parameter, from `element` on. */
static inline void round_consecutive(uint16_t *out, const float *v, int64_t n, const uint32_t key[2], int64_t element,
                                     int64_t update)
{
    uint32_t word[4][COL_BLOCK / 8 + 1], random[COL_BLOCK + 8];
    const struct philox_words first = { (uint32_t)(element / 8), 0, (uint32_t)update,
                                        (uint32_t)((uint64_t)update >> 32) };
    const int64_t nblocks = meg_ceil_div(element % 8 + n, 8);

    MEG_ASSERT_LT(element / 8, INT64_C(1) << 32);
    philox_blocks(word[0], word[1], word[2], word[3], first, key, nblocks);
    for (int64_t i = 0; i < nblocks; i++)
        for (int j = 0; j < 4; j++) {
            random[8 * i + 2 * j] = word[j][i] & 0xffff;
            random[8 * i + 2 * j + 1] = word[j][i] >> 16;
        }
    for (int64_t i = 0; i < n; i++)
        out[i] = round_stochastic(v[i], random[element % 8 + i]);
}

/*
 * Round v [b->n] stochastically to `to`, array number `array` of struct meg_update_arrays.  Do nothing if `to` is
 * absent, or f32 and therefore updated in place.
 */
static inline void update_store(const struct update_block *b, struct meg_array to, uint32_t array, const float *v,
                                const struct meg_update_arrays *x, const struct meg_update_range *r, int64_t update)
{
    const uint32_t key[2] = { x->seed, MEG_PHILOX_ROUNDING + 4 * r->row + array };

    if (!to.p || to.dtype == MEG_DTYPE_F32)
        return;
    MEG_ASSERT_EQ(to.dtype, MEG_DTYPE_BF16);
    for (int64_t done = 0; done < b->n;) {
        const int64_t i = r->first + b->at + done - r->begin;
        const int64_t n = meg_min64(b->n - done, r->cols - i % r->cols);

        round_consecutive((uint16_t *)to.p + b->at + done, v + done, n, key,
                          r->base + i / r->cols * r->ld + i % r->cols, update);
        done += n;
    }
}

/* Store w, the state and, if it is present, the copy of w. */
static inline void update_end(const struct update_block *b, const struct meg_update_arrays *x,
                              const struct meg_update_range *r, int64_t update)
{
    if (x->copy.p)
        MEG_FN(from_f32)(meg_element(x->copy.p, b->at, x->copy.dtype), x->copy.dtype, b->w, b->n);
    update_store(b, x->w, 0, b->w, x, r, update);
    for (int i = 0; i < 2; i++)
        update_store(b, x->state[i], 1 + (uint32_t)i, b->state[i], x, r, update);
}
