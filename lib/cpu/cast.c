/* isa: baseline v3 v4 */
/* cast.c - conversion between f32, bf16 and f16. */
#include "cpu/internal.h"
#include "tensor/half.h"

enum { BLOCK = 8192, CHUNK = 512 };

void MEG_FN(to_f32)(float *restrict out, const void *restrict p, enum meg_dtype t, int64_t n)
{
    const uint16_t *h = p;
    switch (t) {
    case MEG_DTYPE_BF16:
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            out[i] = meg_from_bf16(h[i]);
        break;
    case MEG_DTYPE_F16:
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            out[i] = meg_from_f16(h[i]);
        break;
    default: MEG_ASSERT_EQ(t, MEG_DTYPE_F32); memcpy(out, p, (size_t)n * sizeof *out);
    }
}

void MEG_FN(from_f32)(void *restrict out, enum meg_dtype t, const float *restrict p, int64_t n)
{
    uint16_t *h = out;
    switch (t) {
    case MEG_DTYPE_BF16:
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            h[i] = meg_to_bf16(p[i]);
        break;
    case MEG_DTYPE_F16:
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            h[i] = meg_to_f16(p[i]);
        break;
    default: MEG_ASSERT_EQ(t, MEG_DTYPE_F32); memcpy(out, p, (size_t)n * sizeof *p);
    }
}

void MEG_FN(cast)(struct meg_stream *st, const struct meg_cast_args *a)
{
    const struct meg_mat d = row_vector(a->dst, a->dst_type, a->n), s = row_vector(a->src, a->src_type, a->n);
    (void)st;
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < a->n; b += BLOCK)
        for (int64_t i = b; i < meg_min64(a->n, b + BLOCK); i += CHUNK) {
            float f[CHUNK];
            const int64_t m = meg_min64(CHUNK, a->n - i);
            MEG_FN(to_f32)(f, element(s, 0, i), a->src_type, m);
            MEG_FN(from_f32)(element(d, 0, i), a->dst_type, f, m);
        }
}
