/* cast.cu - conversion between f32, bf16 and f16, and copies of heads. */
#include "cuda/elementwise.h"

template <class D, class S> static __global__ void cast(D *dst, const S *src, int64_t n, bool is_aligned)
{
    for_each_vector(1, n, is_aligned, [&](int64_t, int64_t c, int64_t end, bool is_vector) {
        float v[VEC];

        load(v, src, c, end, is_vector);
        store(dst, v, c, end, is_vector);
    });
}

void meg_cuda_cast(struct meg_stream *st, const struct meg_cast_args *a)
{
    with_type(a->dst_type, [&](auto td) {
        with_type(a->src_type, [&](auto ts) {
            using D = decltype(td);
            using S = decltype(ts);
            launch_elementwise(st, cast<D, S>, 1, a->n, (D *)a->dst, (const S *)a->src, a->n,
                               is_aligned(a->dst) && is_aligned(a->src));
        });
    });
}

/* Strides of heads, in units of the copy. */
struct strides {
    int64_t s, b, g;
};

/*
 * Copy heads [rows/b, b, g, d] in units T, which may be several elements of the tensor.  Unless dst_offset is NULL, it
 * has the offsets of sequences in dst, in elements of `size` bytes.
 */
template <class T>
static __global__ void copy_units(T *dst, const int64_t *dst_offset, const T *src, struct strides to,
                                  struct strides from, int64_t rows, int64_t b, int64_t g, int64_t d, int64_t size)
{
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, j = i / d, c = i % d;

    if (j < g)
        for (int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
            const int64_t first = dst_offset ? dst_offset[r % b] * size / (int64_t)sizeof(T) : r % b * to.b;

            dst[r / b * to.s + first + j * to.g + c] = src[r / b * from.s + r % b * from.b + j * from.g + c];
        }
}

void meg_cuda_copy_heads(struct meg_stream *st, const struct meg_copy_heads_args *a)
{
    const int64_t size = (int64_t)meg_dtype_size(a->src.dtype);
    const struct strides to = { a->dst.ld_s * size, a->dst.ld_b * size, a->dst.ld_g * size };
    const struct strides from = { a->src.ld_s * size, a->src.ld_b * size, a->src.ld_g * size };
    /* the size of a unit must divide all addresses and strides in bytes */
    const uint64_t bits = (uintptr_t)a->dst.p | (uintptr_t)a->src.p |
                          (uint64_t)(to.s | to.b | to.g | from.s | from.b | from.g | a->d * size);
    const auto copy = [&](auto unit) {
        using T = decltype(unit);
        const int64_t n = sizeof(T);

        launch_rows(st, copy_units<T>, a->s * a->b, a->g * (a->d * size / n), (T *)a->dst.p, a->dst_offset,
                    (const T *)a->src.p, strides{ to.s / n, to.b / n, to.g / n },
                    strides{ from.s / n, from.b / n, from.g / n }, a->s * a->b, a->b, a->g, a->d * size / n, size);
    };

    if (bits % 16 == 0)
        copy(packed<float>());
    else if (bits % 8 == 0)
        copy(uint64_t());
    else if (bits % 4 == 0)
        copy(uint32_t());
    else
        copy(uint16_t());
}
