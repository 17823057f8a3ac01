/*
 * vmath.h - exp, tanh and GELU without branches.  The compiler can therefore vectorize loops that call them.  The
 * stated errors are the largest measured against float64 (tests/unit/cpu/ops_math.c).  The functions return NaN for
 * NaN.  The polynomials are minimax approximations (Remez algorithm), unless a source is given.
 */
#pragma once
#include <stdint.h>
#include <string.h>
#include "tensor/normal_cdf.h"

/* Return 2^n for n in [-126, 127]. */
static inline float vpow2i(int32_t n)
{
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/*
 * Return x clamped to [least, most].  Both comparisons use x, because gcc 12 turns comparisons that depend on each
 * other into branches, which it vectorizes as chains of masks.
 */
static inline float vclamp(float x, float least, float most)
{
    const float y = x < least ? least : x;
    return x > most ? most : y;
}

/*
 * Return e^x for x in [-104, 89].
 *   x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r) with q within 3.1e-9
 * 2^n is computed as a product of two factors, because n may be outside the range of vpow2i.
 */
static inline float vexp_in_range(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    float t, n, r, q;
    int32_t i;
    t = x * 1.44269504f + magic;
    memcpy(&i, &t, sizeof i);
    i -= 0x4b400000;
    n = t - magic;
    r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    q = 0.00138144672f;
    q = q * r + 0.00836878084f;
    q = q * r + 0.0416683927f;
    q = q * r + 0.166665196f;
    q = q * r + 0.499999940f;
    q = q * (r * r) + r + 1.0f;
    return q * vpow2i(i >> 1) * vpow2i(i - (i >> 1));
}

/* Return e^x within 1.1 ulp: 0 below -104, infinity above 88.73, and a subnormal number where e^x is subnormal. */
static inline float vexp(float x)
{
    return vexp_in_range(vclamp(x, -104.0f, 89.0f));
}

/*
 * Return tanh(x) within 1.3 ulp.  For |x| < 0.625, this is x + x^3 p(x^2), where p is the polynomial of Cephes' tanhf.
 * For larger |x|, it is 1 - 2 / (exp(2|x|) + 1) with the sign of x.
 */
static inline float vtanh(float x)
{
    const float a = x < 0.0f ? -x : x, x2 = x * x;
    float large = 1.0f - 2.0f / (vexp(2.0f * a) + 1.0f), p = -5.70498872745e-3f;
    p = p * x2 + 2.06390887954e-2f;
    p = p * x2 - 5.37397155531e-2f;
    p = p * x2 + 1.33314422036e-1f;
    p = p * x2 - 3.33332819422e-1f;
    large = x < 0.0f ? -large : large;
    return a < 0.625f ? x + x * x2 * p : large;
}

/* Return GELU in its tanh form: x * s(2u) with the logistic function s and u = sqrt(2/pi) * (x + 0.044715 * x^3). */
static inline float vgelu_tanh(float x)
{
    const float e = -1.5957691216f * x * (1.0f + 0.044715f * x * x);
    return x / (1.0f + vexp_in_range(vclamp(e, -104.0f, 80.0f)));
}

/*
 * Return the derivative of vgelu_tanh: s + x * s * (1 - s) * 2u', where s means s(2u).  x is clamped to [-10, 10],
 * because outside of this interval, the derivative is 0 or 1 to within 3e-36.
 */
static inline float vgelu_tanh_grad(float x)
{
    float e, s, x2;
    x = vclamp(x, -10.0f, 10.0f);
    x2 = x * x;
    e = vexp_in_range(-1.5957691216f * x * (1.0f + 0.044715f * x2));
    s = 1.0f / (1.0f + e);
    return s + x * (s * (e * s)) * (1.5957691216f + 0.2140644488f * x2);
}

/* Return the cumulative distribution function of the standard normal distribution at x, given e = exp(-x^2/2). */
static inline float vnormal(float x, float e)
{
    const float z = x < 0.0f ? -x : x;
    return meg_normal_cdf(x, e, 1.0f / (1.0f + 0.35355339f * z));
}

/* Return GELU in its exact form: x times the cumulative distribution function of the standard normal distribution. */
static inline float vgelu_erf(float x)
{
    return x * vnormal(x, vexp(-0.5f * x * x));
}

static inline float vgelu_erf_grad(float x)
{
    const float e = vexp(-0.5f * x * x);
    return vnormal(x, e) + x * (0.398942280f * e);
}
