/*
 * act.h - activation functions and their derivatives.  If act is constant, they have no branches, so that the compiler
 * can vectorize loops that call them.
 */
#pragma once
#include "cpu/vmath.h"
#include "tensor/ops_layer.h"

#define ACT_INLINE static inline __attribute__((always_inline))

/* Expand F(name, act) for each activation function. */
#define FOR_EACH_ACT(F)                                                                                                \
    F(gelu_tanh, MEG_ACT_GELU_TANH)                                                                                    \
    F(gelu_erf, MEG_ACT_GELU_ERF)                                                                                      \
    F(tanh, MEG_ACT_TANH)                                                                                              \
    F(relu, MEG_ACT_RELU)                                                                                              \
    F(silu, MEG_ACT_SILU)                                                                                              \
    F(quick_gelu, MEG_ACT_QUICK_GELU)                                                                                  \
    F(squared_relu, MEG_ACT_SQUARED_RELU)

/* Return act(x). */
ACT_INLINE float vact(enum meg_act act, float x)
{
    switch (act) {
    case MEG_ACT_GELU_TANH: return vgelu_tanh(x);
    case MEG_ACT_GELU_ERF: return vgelu_erf(x);
    case MEG_ACT_TANH: return vtanh(x);
    case MEG_ACT_RELU: return x < 0.0f ? 0.0f : x;
    case MEG_ACT_SILU: return x / (1.0f + vexp(-x));
    case MEG_ACT_QUICK_GELU: return x / (1.0f + vexp(-1.702f * x));
    case MEG_ACT_SQUARED_RELU: return x < 0.0f ? 0.0f : x * x;
    default: return x; /* MEG_ACT_NONE */
    }
}

/* Return d * act'(x), and set *y to e * act(x).  The derivatives of the ReLUs at 0 are 0, as in PyTorch. */
ACT_INLINE float vact_bwd(enum meg_act act, float x, float d, float e, float *y)
{
    const float alpha = act == MEG_ACT_QUICK_GELU ? 1.702f : 1.0f;
    float s;

    if (act == MEG_ACT_SILU || act == MEG_ACT_QUICK_GELU) { /* act(x) = x * s, s = 1 / (1 + exp(-alpha * x)) */
        s = 1.0f / (1.0f + vexp(-(alpha * x)));
        *y = e * x * s;
        return d * s * (1.0f + alpha * x * (1.0f - s));
    }
    *y = e * vact(act, x);
    switch (act) {
    case MEG_ACT_GELU_TANH: return d * vgelu_tanh_grad(x);
    case MEG_ACT_GELU_ERF: return d * vgelu_erf_grad(x);
    case MEG_ACT_TANH: return d * (1.0f - vtanh(x) * vtanh(x));
    case MEG_ACT_RELU: return x <= 0.0f ? 0.0f : d;
    case MEG_ACT_SQUARED_RELU: return x <= 0.0f ? 0.0f : d * (2.0f * x);
    default: return d; /* MEG_ACT_NONE */
    }
}
