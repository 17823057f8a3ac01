/*
 * row.h - access rows of matrices in vectors of VEC elements, and select the kernel for the element types of several
 * matrices.  Vectors are fetched early and converted later, so that many loads are in flight.
 */
#pragma once
#include <type_traits>
#include "cuda/copy_async.h"

/* ---- types of several matrices ---- */

/* Return whether the rows of m consist of complete vectors of type `type` at multiples of 16 bytes, or m.p is NULL. */
static inline bool has_vectors(struct meg_mat m, enum meg_dtype type)
{
    return !m.p || (m.dtype == type && m.cols % VEC == 0 && has_aligned_rows(m));
}

/*
 * Call f(s, b) with values of the element types of two groups of matrices: s, the type of the residual stream, and b,
 * the type of the sublayers.  A kernel is compiled for the types that are usual in a model, and for `general`.  With
 * usual types, the rows of all matrices consist of complete vectors at multiples of 16 bytes; with `general`, rows may
 * have any length and address.  Types are usual if the matrices of a group have the same type, and s is f32 or equal to
 * b.  Otherwise, or if has_vectors is false for a matrix, s and b are `general`.
 */
template <class F>
void with_types(std::initializer_list<struct meg_mat> s, std::initializer_list<struct meg_mat> b, F f)
{
    const enum meg_dtype ts = s.begin()->dtype, tb = b.begin()->dtype;
    bool is_usual = ts == tb || ts == MEG_DTYPE_F32;

    for (struct meg_mat m : s)
        is_usual = is_usual && has_vectors(m, ts);
    for (struct meg_mat m : b)
        is_usual = is_usual && has_vectors(m, tb);
    if (!is_usual)
        f(general(), general());
    else if (ts == MEG_DTYPE_F32)
        with_type(tb, [&](auto t) { f(0.0f, t); });
    else
        with_type(tb, [&](auto t) { f(t, t); });
}

/* Return a vector of n elements as a matrix of one row. */
static inline struct meg_mat row_vector(const void *p, enum meg_dtype type, int64_t n)
{
    return { (void *)p, type, 1, n, n };
}

/* ---- vectors of a row ---- */

/*
 * Call f with the address of row r of m, whose type is known only when the kernel runs.  If with_pointer were used
 * here, norm_bwd_long would spill registers.
 */
template <class F> __device__ inline void with_row(struct meg_mat m, int64_t r, F f)
{
    if (m.dtype == MEG_DTYPE_F32)
        f((float *)m.p + r * m.ld);
    else if (m.dtype == MEG_DTYPE_BF16)
        f((bf16 *)m.p + r * m.ld);
    else
        f((f16 *)m.p + r * m.ld);
}

/* VEC elements as they are stored, or converted to f32 if T is `general`. */
template <class T> struct alignas(16) vec {
    uint32_t w[VEC / 2];
};

template <> struct alignas(16) vec<float> {
    float w[VEC];
};

template <> struct vec<general> {
    float w[VEC];
};

/* Fetch elements [c, c + VEC) of row r of m, c < m.cols; those at or after m.cols are 0.  c is a multiple of VEC. */
template <class T> __device__ inline void fetch(vec<T> &v, struct meg_mat m, int64_t r, int64_t c)
{
    if constexpr (is_general<T>)
        with_row(m, r, [&](auto *row) { load(v.w, row, c, m.cols, is_aligned(row)); });
    else
        v = *(const vec<T> *)((const T *)m.p + r * m.ld + c);
}

/*
 * Begin to fetch elements [c, c + VEC) of row r of m to v in shared memory; those at or after m.cols are 0, and all are
 * 0 if m.p is NULL.
 */
template <class T> __device__ inline void fetch_async(vec<T> &v, struct meg_mat m, int64_t r, int c)
{
    const bool is_valid = m.p && c < (int)m.cols;

    if constexpr (is_general<T>) {
        v = {};
        if (is_valid)
            fetch(v, m, r, c);
    } else {
#pragma unroll
        for (int i = 0; i < (int)sizeof v; i += 16)
            copy_async((char *)&v + i, (const char *)((const T *)m.p + r * m.ld + c) + i, is_valid);
    }
}

/* Wait until the copies that the calling thread began by fetch_async are complete. */
__device__ inline void wait_fetched()
{
    copy_async_commit();
    copy_async_wait<0>();
}

/* Convert fetched elements to f32. */
template <class T> __device__ inline void convert(float (&x)[VEC], const vec<T> &v)
{
#pragma unroll
    for (int i = 0; i < VEC; i++)
        if constexpr (sizeof v.w == sizeof x)
            x[i] = v.w[i];
        else
            x[i] = to_float(T{ (uint16_t)(v.w[i / 2] >> i % 2 * 16) });
}

/* Store x to elements [c, c + VEC) of row r of m, except those at or after m.cols; round x to the stored values. */
template <class T> __device__ inline void put(struct meg_mat m, int64_t r, int64_t c, float (&x)[VEC])
{
    const auto put_as = [&](auto *row, int64_t n, bool is_aligned) {
        typedef std::remove_reference_t<decltype(*row)> U;

        store(row, x, c, n, is_aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            x[i] = to_float(from_float<U>(x[i]));
    };

    if constexpr (is_general<T>)
        with_row(m, r, [&](auto *row) { put_as(row, m.cols, is_aligned(row)); });
    else
        put_as((T *)m.p + r * m.ld, c + VEC, true);
}
