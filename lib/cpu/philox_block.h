/*
 * philox_block.h - compute many consecutive random numbers of Philox (base/philox.h) in loops that compilers vectorize.
 */
#pragma once
#include <stdint.h>

struct philox_words {
    uint32_t c0, c1, c2, c3;
};

/* Compute round r of meg_philox.  The compiler vectorizes ten calls in a row, but not a loop over the rounds. */
static inline struct philox_words philox_round(struct philox_words c, uint32_t k0, uint32_t k1, uint32_t r)
{
    const uint64_t p0 = (uint64_t)0xd2511f53u * c.c0, p1 = (uint64_t)0xcd9e8d57u * c.c2;
    const struct philox_words next = { (uint32_t)(p1 >> 32) ^ c.c1 ^ (k0 + r * 0x9e3779b9u), (uint32_t)p1,
                                       (uint32_t)(p0 >> 32) ^ c.c3 ^ (k1 + r * 0xbb67ae85u), (uint32_t)p0 };
    return next;
}

/*
 * Compute n blocks of eight 16-bit numbers: block i has counter (first.c0 + i, first.c1, first.c2, first.c3).  Words 0
 * to 3 of block i are stored in w0[i] to w3[i].  Number j of a block is the low half of word j / 2 if j is even, else
 * the high half.
 */
static inline void philox_blocks(uint32_t *w0, uint32_t *w1, uint32_t *w2, uint32_t *w3, struct philox_words first,
                                 const uint32_t key[2], int64_t n)
{
    const uint32_t key0 = key[0], key1 = key[1];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        struct philox_words c = { first.c0 + (uint32_t)i, first.c1, first.c2, first.c3 };
        c = philox_round(c, key0, key1, 0);
        c = philox_round(c, key0, key1, 1);
        c = philox_round(c, key0, key1, 2);
        c = philox_round(c, key0, key1, 3);
        c = philox_round(c, key0, key1, 4);
        c = philox_round(c, key0, key1, 5);
        c = philox_round(c, key0, key1, 6);
        c = philox_round(c, key0, key1, 7);
        c = philox_round(c, key0, key1, 8);
        c = philox_round(c, key0, key1, 9);
        w0[i] = c.c0;
        w1[i] = c.c1;
        w2[i] = c.c2;
        w3[i] = c.c3;
    }
}
