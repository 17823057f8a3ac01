/*
 * act.h - activation functions and their derivatives in kernels.
 *
 * An activation function is a class: of(x) returns its value, and grad(x, y) returns its derivative and sets y to its
 * value.  The value at NaN is NaN, and so is the derivative, except that of `identity` and `relu`.  The formulas of
 * GELU are from cpu/vmath.h, which avoid cancellation.
 */
#pragma once
#include "cuda/kernel.h"
#include "tensor/normal_cdf.h"

/* Return x / y, within 2 ulp if |y| is in [2^-126, 2^126].  On a GPU, return 0 if |y| is larger and x is finite. */
__device__ inline float divide(float x, float y)
{
#ifdef __CUDACC__
    return __fdividef(x, y);
#else
    return x / y;
#endif
}

/* Return x clamped to [least, most]. */
__device__ inline float clamp(float x, float least, float most)
{
    return x < least ? least : x > most ? most : x;
}

/* Return e^x with a relative error below 2^-23 * (2 + |x|). */
__device__ inline float exp_fast(float x)
{
    return exp2f(LOG2E * x);
}

struct identity {
    __device__ float of(float x) const
    {
        return x;
    }
    __device__ float grad(float x, float &y) const
    {
        y = x;
        return 1.0f;
    }
};

struct hyperbolic_tangent {
    __device__ float of(float x) const
    {
        return tanhf(x);
    }
    __device__ float grad(float x, float &y) const
    {
        y = tanhf(x);
        return 1.0f - y * y;
    }
};

/* GELU in its tanh form: x * s(2u) with the logistic function s and u = sqrt(2/pi) * (x + 0.044715 * x^3). */
struct gelu_tanh {
    __device__ float of(float x) const
    {
        return divide(x, 1.0f + exp_fast(fminf(-1.5957691216f * x * (1.0f + 0.044715f * x * x), 80.0f)));
    }
    /* Beyond [-10, 10], the derivative is 0 or 1 to within 3e-36. */
    __device__ float grad(float x, float &y) const
    {
        const float z = clamp(x, -10.0f, 10.0f), z2 = z * z;
        const float e = exp_fast(-1.5957691216f * z * (1.0f + 0.044715f * z2)), s = divide(1.0f, 1.0f + e);

        y = x * s;
        return s + z * (s * (e * s)) * (1.5957691216f + 0.2140644488f * z2);
    }
};

/* GELU in its exact form: x times the cumulative distribution function of the standard normal distribution. */
struct gelu_erf {
    __device__ static float normal(float x, float e)
    {
        return meg_normal_cdf(x, e, divide(1.0f, 1.0f + 0.35355339f * fabsf(x)));
    }
    __device__ float of(float x) const
    {
        return x * normal(x, exp_fast(-0.5f * x * x));
    }
    __device__ float grad(float x, float &y) const
    {
        const float e = exp_fast(-0.5f * x * x), cdf = normal(x, e);

        y = x * cdf;
        return cdf + x * (0.398942280f * e);
    }
};

/* Swish: x * s(alpha * x) with the logistic function s.  It is SiLU if alpha is 1. */
struct swish {
    float alpha;

    __device__ float of(float x) const
    {
        return divide(x, 1.0f + exp_fast(-alpha * x));
    }
    __device__ float grad(float x, float &y) const
    {
        const float s = divide(1.0f, 1.0f + exp_fast(-alpha * x));

        y = x * s;
        return s * (1.0f + alpha * x * (1.0f - s));
    }
};

struct relu {
    __device__ float of(float x) const
    {
        return x < 0.0f ? 0.0f : x;
    }
    __device__ float grad(float x, float &y) const
    {
        y = of(x);
        return x <= 0.0f ? 0.0f : 1.0f;
    }
};

struct squared_relu {
    __device__ float of(float x) const
    {
        return x < 0.0f ? 0.0f : x * x;
    }
    __device__ float grad(float x, float &y) const
    {
        y = of(x);
        return x <= 0.0f ? 0.0f : 2.0f * x;
    }
};

/*
 * Call f with an object of the class of the activation function, so that the branch is outside f's loops over elements.
 */
template <class F> __device__ inline void with_act(enum meg_act act, F f)
{
    switch (act) {
    case MEG_ACT_GELU_TANH: f(gelu_tanh()); break;
    case MEG_ACT_GELU_ERF: f(gelu_erf()); break;
    case MEG_ACT_TANH: f(hyperbolic_tangent()); break;
    case MEG_ACT_RELU: f(relu()); break;
    case MEG_ACT_SILU: f(swish{ 1.0f }); break;
    case MEG_ACT_QUICK_GELU: f(swish{ 1.702f }); break;
    case MEG_ACT_SQUARED_RELU: f(squared_relu()); break;
    default: f(identity()); /* MEG_ACT_NONE */
    }
}
