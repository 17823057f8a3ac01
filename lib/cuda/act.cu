/* act.cu - kernels for activation functions, their gradients, bias addition and scaling, not fused with a product. */
#include "cuda/act.h"
#include "cuda/elementwise.h"

template <class T> static __global__ void act_fwd(struct meg_mat y, struct meg_mat x, enum meg_act act, bool is_aligned)
{
    for_each_vector(x.rows, x.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        float v[VEC];

        load(v, row_of<T>(x, r), c, end, is_vector);
        with_act(act, [&](auto f) {
#pragma unroll
            for (int j = 0; j < VEC; j++)
                v[j] = f.of(v[j]);
        });
        store(row_of<T>(y, r), v, c, end, is_vector);
    });
}

void meg_cuda_act_fwd(struct meg_stream *st, struct meg_mat y, struct meg_mat x, enum meg_act act)
{
    const bool is_aligned = has_aligned_rows(y) && has_aligned_rows(x);

    with_common_type({ y.dtype, x.dtype }, [&](auto t) {
        launch_elementwise(st, act_fwd<decltype(t)>, x.rows, x.cols, y, x, act, is_aligned);
    });
}

template <class T>
static __global__ void act_bwd(struct meg_mat dx, struct meg_mat dy, struct meg_mat pre, enum meg_act act,
                               bool is_aligned)
{
    for_each_vector(dx.rows, dx.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        float d[VEC], p[VEC];

        load(d, row_of<T>(dy, r), c, end, is_vector);
        load(p, row_of<T>(pre, r), c, end, is_vector);
        with_act(act, [&](auto f) {
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                float y;

                d[j] *= f.grad(p[j], y);
            }
        });
        store(row_of<T>(dx, r), d, c, end, is_vector);
    });
}

void meg_cuda_act_bwd(struct meg_stream *st, const struct meg_act_bwd_args *a)
{
    const bool is_aligned = has_aligned_rows(a->dx) && has_aligned_rows(a->dy) && has_aligned_rows(a->pre);

    with_common_type({ a->dx.dtype, a->dy.dtype, a->pre.dtype }, [&](auto t) {
        launch_elementwise(st, act_bwd<decltype(t)>, a->dx.rows, a->dx.cols, a->dx, a->dy, a->pre, a->act, is_aligned);
    });
}

template <class Y, class B> static __global__ void add_bias(struct meg_mat y, const B *bias, bool is_aligned)
{
    for_each_vector(y.rows, y.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        Y *row = (Y *)y.p + r * y.ld;
        float v[VEC], b[VEC];

        load(v, row, c, end, is_vector);
        load(b, bias, c, end, is_vector);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            v[j] += b[j];
        store(row, v, c, end, is_vector);
    });
}

void meg_cuda_add_bias(struct meg_stream *st, struct meg_mat y, const void *bias, enum meg_dtype type)
{
    with_type(y.dtype, [&](auto ty) {
        with_type(type, [&](auto tb) {
            using B = decltype(tb);
            launch_elementwise(st, add_bias<decltype(ty), B>, y.rows, y.cols, y, (const B *)bias,
                               has_aligned_rows(y) && is_aligned(bias));
        });
    });
}

template <class Y, class X>
static __global__ void clamp(struct meg_mat y, struct meg_mat x, float limit, bool is_aligned)
{
    for_each_vector(x.rows, x.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        float v[VEC];

        load(v, (const X *)x.p + r * x.ld, c, end, is_vector);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            v[j] = v[j] > limit ? limit : v[j] < -limit ? -limit : v[j];
        store((Y *)y.p + r * y.ld, v, c, end, is_vector);
    });
}

void meg_cuda_clamp(struct meg_stream *st, const struct meg_clamp_args *a)
{
    const bool is_aligned = has_aligned_rows(a->y) && has_aligned_rows(a->x);

    with_type(a->y.dtype, [&](auto ty) {
        with_type(a->x.dtype, [&](auto tx) {
            launch_elementwise(st, clamp<decltype(ty), decltype(tx)>, a->x.rows, a->x.cols, a->y, a->x, a->limit,
                               is_aligned);
        });
    });
}

/* T: the type of all operands, or `general`. */
template <class T>
static __global__ void clamp_bwd(struct meg_mat dx, struct meg_mat dy, struct meg_mat x, float limit, bool is_aligned)
{
    for_each_vector(x.rows, x.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        float d[VEC], v[VEC];

        load(d, pointer_to<T>(dy.p, dy.dtype, r * dy.ld), c, end, is_vector);
        load(v, pointer_to<T>(x.p, x.dtype, r * x.ld), c, end, is_vector);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            d[j] = v[j] > limit || v[j] < -limit ? 0.0f : d[j];
        store(pointer_to<T>(dx.p, dx.dtype, r * dx.ld), d, c, end, is_vector);
    });
}

void meg_cuda_clamp_bwd(struct meg_stream *st, const struct meg_clamp_bwd_args *a)
{
    const bool is_aligned = has_aligned_rows(a->dx) && has_aligned_rows(a->dy) && has_aligned_rows(a->x);

    with_common_type({ a->dx.dtype, a->dy.dtype, a->x.dtype }, [&](auto t) {
        launch_elementwise(st, clamp_bwd<decltype(t)>, a->x.rows, a->x.cols, a->dx, a->dy, a->x, a->limit, is_aligned);
    });
}

template <class Y, class X>
static __global__ void scale(struct meg_mat y, struct meg_mat x, float factor, bool is_aligned)
{
    for_each_vector(x.rows, x.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        float v[VEC];

        load(v, (const X *)x.p + r * x.ld, c, end, is_vector);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            v[j] *= factor;
        store((Y *)y.p + r * y.ld, v, c, end, is_vector);
    });
}

template <class Y, class X>
static __global__ void softcap(struct meg_mat y, struct meg_mat x, float cap, bool is_aligned)
{
    for_each_vector(x.rows, x.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        float v[VEC];

        load(v, (const X *)x.p + r * x.ld, c, end, is_vector);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            v[j] = cap * tanhf(v[j] / cap);
        store((Y *)y.p + r * y.ld, v, c, end, is_vector);
    });
}

void meg_cuda_softcap(struct meg_stream *st, const struct meg_softcap_args *a)
{
    const bool is_aligned = has_aligned_rows(a->y) && has_aligned_rows(a->x);

    with_type(a->y.dtype, [&](auto ty) {
        with_type(a->x.dtype, [&](auto tx) {
            launch_elementwise(st, softcap<decltype(ty), decltype(tx)>, a->x.rows, a->x.cols, a->y, a->x, a->cap,
                               is_aligned);
        });
    });
}

void meg_cuda_scale(struct meg_stream *st, const struct meg_scale_args *a)
{
    const bool is_aligned = has_aligned_rows(a->y) && has_aligned_rows(a->x);

    with_type(a->y.dtype, [&](auto ty) {
        with_type(a->x.dtype, [&](auto tx) {
            launch_elementwise(st, scale<decltype(ty), decltype(tx)>, a->x.rows, a->x.cols, a->y, a->x, a->factor,
                               is_aligned);
        });
    });
}
