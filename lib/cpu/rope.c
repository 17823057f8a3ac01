/* isa: baseline v3 v4 */
/* rope.c - rotary position embedding. */
#include "cpu/internal.h"

enum { MAX_HEAD = 4096 }; /* maximum rotated columns per head in bf16 or f16; attention has this limit on d */

static void rotate_pairs(float *x, int64_t half, int is_interleaved, const float *cos, const float *sin, float sign)
{
    const int64_t step = is_interleaved ? 2 : 1, other = is_interleaved ? 1 : half;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i * step], b = x[i * step + other], c = cos[i], s = sign * sin[i];
        x[i * step] = a * c - b * s;
        x[i * step + other] = b * c + a * s;
    }
}

void MEG_FN(rope)(struct meg_stream *st, struct meg_heads x, int64_t s, int64_t b, int64_t g, int64_t heads,
                  int64_t half, int is_interleaved, const float *cos, const float *sin, const int32_t *position,
                  float sign)
{
    (void)st;
    MEG_ASSERT(x.dtype == MEG_DTYPE_F32 || 2 * half <= MAX_HEAD);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < s * b; r++) {
        const int64_t at = position[r] * half, row = r / b * x.ld_s + r % b * x.ld_b;
        for (int64_t j = 0; j < g; j++)
            for (int64_t k = 0; k < heads; k++) {
                const int64_t first = row + j * x.ld_g + k * x.ld_h;
                float head[MAX_HEAD];
                uint16_t *half_head = (uint16_t *)x.p + first;
                if (x.dtype == MEG_DTYPE_F32) {
                    rotate_pairs((float *)x.p + first, half, is_interleaved, cos + at, sin + at, sign);
                } else {
                    MEG_FN(to_f32)(head, half_head, x.dtype, 2 * half);
                    rotate_pairs(head, half, is_interleaved, cos + at, sin + at, sign);
                    MEG_FN(from_f32)(half_head, x.dtype, head, 2 * half);
                }
            }
    }
}
