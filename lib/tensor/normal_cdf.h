/* normal_cdf.h - the cumulative distribution function of the standard normal distribution, for the exact GELU. */
#pragma once
#include "base/decls.h"

MEG_BEGIN_DECLS

/*
 * Return the value at x.  The caller computes e = exp(-x^2/2) and t = 1 / (1 + |x| / sqrt(8)), because backends have
 * different functions for these.  With z = |x| / sqrt(2), the result is erfc(z) / 2 for x < 0, and 1 - erfc(z) / 2
 * otherwise, where
 *   erfc(z) = exp(-z^2) t P(t) with a polynomial P whose error is at most 2.2e-8
 */
static inline MEG_HOST_DEVICE float meg_normal_cdf(float x, float e, float t)
{
    float p = 0.0110999084f;

    p = p * t - 0.116974030f;
    p = p * t + 0.414558350f;
    p = p * t - 0.651462395f;
    p = p * t + 0.406406091f;
    p = p * t - 0.0906807966f;
    p = p * t + 0.223034834f;
    p = p * t + 0.239150506f;
    p = p * t + 0.282800322f;
    p = p * t + 0.282067189f;
    p = 0.5f * e * t * p;
    return x < 0.0f ? p : 1.0f - p;
}

MEG_END_DECLS
