/* glu.cu - gated linear units, act(gate) * (up + offset), and their gradients. */
#include "cuda/act.h"
#include "cuda/elementwise.h"

template <class T>
static __global__ void glu_fwd(struct meg_glu unit, struct meg_mat y, struct meg_mat x, bool is_aligned)
{
    for_each_vector(y.rows, y.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        const auto row = row_of<T>(x, r);
        float gate[VEC], up[VEC];

        load(gate, row, c, end, is_vector);
        load(up, row + y.cols, c, end, is_vector);
        with_act(unit.act, [&](auto f) {
#pragma unroll
            for (int j = 0; j < VEC; j++)
                up[j] =
                    f.of(clamp(gate[j], -INFINITY, unit.limit)) * (clamp(up[j], -unit.limit, unit.limit) + unit.offset);
        });
        store(row_of<T>(y, r), up, c, end, is_vector);
    });
}

template <class T>
static __global__ void glu_bwd(struct meg_glu unit, struct meg_mat dx, struct meg_mat dy, struct meg_mat x,
                               bool is_aligned)
{
    for_each_vector(dy.rows, dy.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        const auto row = row_of<T>(x, r);
        const auto out = row_of<T>(dx, r);
        float gate[VEC], up[VEC], d[VEC];

        load(gate, row, c, end, is_vector);
        load(up, row + dy.cols, c, end, is_vector);
        load(d, row_of<T>(dy, r), c, end, is_vector);
        with_act(unit.act, [&](auto f) {
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                const float g = clamp(gate[j], -INFINITY, unit.limit), u = clamp(up[j], -unit.limit, unit.limit);
                float y;
                const float dgate = d[j] * (u + unit.offset) * f.grad(g, y), dup = d[j] * y;

                /* a clamped value has gradient 0; NaN is not clamped */
                gate[j] = gate[j] > unit.limit ? 0.0f : dgate;
                up[j] = up[j] > unit.limit || up[j] < -unit.limit ? 0.0f : dup;
            }
        });
        store(out, gate, c, end, is_vector);
        store(out + dy.cols, up, c, end, is_vector);
    });
}

/* Return the unit, with limit INFINITY if it has none. */
static struct meg_glu with_limit(struct meg_glu unit)
{
    if (!(unit.limit > 0.0f))
        unit.limit = INFINITY;
    return unit;
}

/* Return whether both halves of the rows of m may be accessed in vectors. */
static bool has_aligned_halves(struct meg_mat m)
{
    return has_aligned_rows(m) && is_aligned(meg_element(m.p, m.cols / 2, m.dtype));
}

void meg_cuda_glu_fwd(struct meg_stream *st, const struct meg_glu_fwd_args *a)
{
    with_common_type({ a->y.dtype, a->x.dtype }, [&](auto t) {
        launch_elementwise(st, glu_fwd<decltype(t)>, a->y.rows, a->y.cols, with_limit(*a->unit), a->y, a->x,
                           has_aligned_rows(a->y) && has_aligned_halves(a->x));
    });
}

void meg_cuda_glu_bwd(struct meg_stream *st, const struct meg_glu_bwd_args *a)
{
    const bool is_aligned = has_aligned_halves(a->dx) && has_aligned_rows(a->dy) && has_aligned_halves(a->x);

    with_common_type({ a->dx.dtype, a->dy.dtype, a->x.dtype }, [&](auto t) {
        launch_elementwise(st, glu_bwd<decltype(t)>, a->dy.rows, a->dy.cols, with_limit(*a->unit), a->dx, a->dy, a->x,
                           is_aligned);
    });
}
