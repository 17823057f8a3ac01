/*
 * philox.h - Philox4x32-10 (Salmon et al. 2011), a counter-based random number generator: four random words are a
 * function of a key and a counter.  The generator has no state, so any rank, thread or backend can compute each number
 * independently.
 *
 * The key is (seed, stream), and the counter identifies the number.  The streams and counters are as follows, where low
 * and high are the halves of a 64-bit integer:
 *   initial weights   stream 0; counter (element low, high, XXH3-64 of the tensor's name low, high)
 *   dropout           stream 1 + 16 * layer + site; counter (unit / 8, position, sample low, high);
 *                     unit u uses 16-bit lane u % 8, which is in word (u % 8) / 2, low half first
 *                     (tensor/ops.h defines site, unit, position and sample)
 *   rounding          stream 2^31 + 4 * row + array; counter (element / 8, 0, update low, high); element e uses 16-bit
 *                     lane e % 8 (tensor/ops.h defines row, array, element and update)
 *   sampling          stream 2^32 - 1; counter (step, 0, prompt low, high); step is the number of tokens generated
 *                     for the prompt so far
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include "base/decls.h"

MEG_BEGIN_DECLS

enum { MEG_PHILOX_INIT = 0, MEG_PHILOX_DROPOUT = 1 };
#define MEG_PHILOX_ROUNDING 0x80000000u
#define MEG_PHILOX_SAMPLING 0xffffffffu

static inline MEG_HOST_DEVICE void meg_philox(uint32_t out[4], const uint32_t key[2], const uint32_t counter[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Convert the upper 53 bits of the 64-bit number (high, low) to a uniform double in (0,1]. */
static inline MEG_HOST_DEVICE double meg_philox_unit(uint32_t low, uint32_t high)
{
    return (double)((((uint64_t)high << 32 | low) >> 11) + 1) * 0x1p-53;
}

/*
 * Generate the random words of one element of a tensor.  `element` is its index in the unsharded tensor; `name` is the
 * XXH3-64 hash of the tensor's name.
 */
static inline MEG_HOST_DEVICE void meg_philox_init_words(uint32_t out[4], uint32_t seed, uint64_t name,
                                                         uint64_t element)
{
    const uint32_t key[2] = { seed, MEG_PHILOX_INIT };
    const uint32_t counter[4] = { (uint32_t)element, (uint32_t)(element >> 32), (uint32_t)name,
                                  (uint32_t)(name >> 32) };

    meg_philox(out, key, counter);
}

/* Return a random number from N(0,1) for an initial weight, by the Box-Muller transform. */
static inline MEG_HOST_DEVICE double meg_philox_init_normal(uint32_t seed, uint64_t name, uint64_t element)
{
    uint32_t w[4];

    meg_philox_init_words(w, seed, name, element);
    return sqrt(-2 * log(meg_philox_unit(w[0], w[1]))) * cos(6.283185307179586 * meg_philox_unit(w[2], w[3]));
}

/* Return a uniform random number in (0,1] for an initial weight. */
static inline MEG_HOST_DEVICE double meg_philox_init_uniform(uint32_t seed, uint64_t name, uint64_t element)
{
    uint32_t w[4];

    meg_philox_init_words(w, seed, name, element);
    return meg_philox_unit(w[0], w[1]);
}

/*
 * Generate the random words of the dropout units 8 * block to 8 * block + 7, two units in each word.  `stream` is 16 *
 * layer + site; the key contains this number plus 1.
 */
static inline MEG_HOST_DEVICE void meg_philox_dropout(uint32_t out[4], uint32_t seed, uint32_t stream, uint32_t block,
                                                      uint32_t position, int64_t sample)
{
    const uint32_t key[2] = { seed, MEG_PHILOX_DROPOUT + stream };
    const uint32_t counter[4] = { block, position, (uint32_t)sample, (uint32_t)((uint64_t)sample >> 32) };

    meg_philox(out, key, counter);
}

/* Return a uniform number in (0,1] for sampling the next token of a prompt, after `step` generated tokens. */
static inline MEG_HOST_DEVICE double meg_philox_sampling(uint32_t seed, uint32_t step, int64_t prompt)
{
    const uint32_t key[2] = { seed, MEG_PHILOX_SAMPLING };
    const uint32_t counter[4] = { step, 0, (uint32_t)prompt, (uint32_t)((uint64_t)prompt >> 32) };
    uint32_t w[4];

    meg_philox(w, key, counter);
    return meg_philox_unit(w[0], w[1]);
}

MEG_END_DECLS
