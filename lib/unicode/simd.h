/* simd.h - vectors of 16 bytes, and conversion of comparison results to bit masks. */
#pragma once
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#    include <emmintrin.h>
#endif

typedef unsigned char v16 __attribute__((vector_size(16)));

/* Return the top bits of the bytes of m: bit i is the top bit of byte i.  All bytes must be 0 or 255. */
static inline uint64_t meg_movemask(v16 m)
{
#ifdef __SSE2__
    return (uint64_t)(unsigned)_mm_movemask_epi8((__m128i)m);
#else
    static const v16 bit = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    uint64_t w[2];
    v16 b = m & bit;

    memcpy(w, &b, 16);
    return (w[0] * 0x0101010101010101u >> 56) | (w[1] * 0x0101010101010101u >> 56 << 8);
#endif
}
