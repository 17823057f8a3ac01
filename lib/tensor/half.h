/* half.h - conversion of bf16 and f16 (IEEE binary16) to f32 and back, rounding to nearest even; NaN stays NaN. */
#pragma once
#include <stdint.h>
#include <string.h>
#include "base/decls.h"

MEG_BEGIN_DECLS

static inline MEG_HOST_DEVICE uint32_t meg_bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static inline MEG_HOST_DEVICE float meg_float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static inline MEG_HOST_DEVICE float meg_from_bf16(uint16_t h)
{
    return meg_float_of((uint32_t)h << 16);
}

static inline MEG_HOST_DEVICE uint16_t meg_to_bf16(float x)
{
    const uint32_t u = meg_bits_of(x);

    if (x != x)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline MEG_HOST_DEVICE float meg_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;

    if (magnitude >= 0x7c00) /* infinity, NaN */
        return meg_float_of(sign | 0x7f800000 | magnitude << 13);
    /* multiplying by 2^112 converts the exponent from f16's bias to f32's, exactly even for subnormals */
    return meg_float_of(sign | meg_bits_of(meg_float_of(magnitude << 13) * 0x1p112f));
}

static inline MEG_HOST_DEVICE uint16_t meg_to_f16(float x)
{
    const uint32_t u = meg_bits_of(x), magnitude = u & 0x7fffffff;
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    uint32_t m;

    if (magnitude > 0x7f800000)
        return sign | 0x7e00;
    if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
        return sign | 0x7c00;
    if (magnitude < 0x38800000) /* below 2^-14 the result is subnormal; adding 0.5 rounds to a multiple of 2^-24 */
        return sign | (uint16_t)(meg_bits_of(meg_float_of(magnitude) + 0.5f) - 0x3f000000);
    m = magnitude - (112u << 23);
    return sign | (uint16_t)((m + 0xfff + (m >> 13 & 1)) >> 13);
}

MEG_END_DECLS
