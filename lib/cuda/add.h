/*
 * add.h - device functions of add.cu and norm.cu that compute VEC adjacent columns of a residual addition, z = x +
 * dropout(y + bias).
 */
#pragma once
#include "cuda/dropout.h"
#include "cuda/row.h"

/* The operands of a residual addition. */
struct add {
    struct meg_mat z, x, y, bias; /* bias has one row; its p may be NULL */
    struct drop_mask drop;
};

static inline struct add add_begin(struct meg_mat z, struct meg_mat x, struct meg_mat y, const void *bias,
                                   const struct meg_drop *drop)
{
    return { z, x, y, row_vector(bias, y.dtype, y.cols), drop_begin(drop) };
}

/* Like with_types, but also use `general` if the dropout units of a vector are in two blocks of Philox. */
template <class F>
void with_types_and_drop(std::initializer_list<struct meg_mat> s, std::initializer_list<struct meg_mat> b,
                         const struct drop_mask &drop, F f)
{
    if (drop.drop.unit0 % VEC == 0)
        with_types(s, b, f);
    else
        f(general(), general());
}

/* Fetch columns [c, c + VEC) of row r of x and y. */
template <class S, class B>
__device__ inline void add_fetch(vec<S> &x, vec<B> &y, const struct add &a, int64_t r, int64_t c)
{
    fetch(x, a.x, r, c);
    fetch(y, a.y, r, c);
}

/* Compute columns [c, c + VEC) of row r of z, store them, and return the stored values in z. */
template <class S, class B>
__device__ inline void add_vector(float (&z)[VEC], const struct add &a, const vec<S> &x, const vec<B> &y,
                                  const struct drop_row &drop, int64_t r, int64_t c)
{
    vec<B> bias = {};
    float xs[VEC], bs[VEC];

    if (a.bias.p)
        fetch(bias, a.bias, 0, c);
    convert(z, y);
    convert(bs, bias);
#pragma unroll
    for (int j = 0; j < VEC; j++)
        z[j] += bs[j];
    drop_columns<!is_general<B>>(z, a.drop, drop, c);
    convert(xs, x);
#pragma unroll
    for (int j = 0; j < VEC; j++)
        z[j] += xs[j];
    put<S>(a.z, r, c, z);
}
