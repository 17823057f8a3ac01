/* isa: baseline v3 v4 */
/* rope.c - rotary position embedding, alone or after the norm of a head. */
#include <math.h>
#include "cpu/row.h"

enum {
    ROWS = 8, /* rows per task of QK-norm */
    /*
     * maximum head size of QK-norm, and maximum number of rotated columns of a bf16 or f16 head; equal to the maximum
     * head size of attention.h, PACK_FLOATS / 8
     */
    MAX_HEAD = 4096
};

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

void MEG_FN(rope)(struct meg_stream *st, const struct meg_rope_args *a)
{
    (void)st;
    MEG_ASSERT(a->x.dtype == MEG_DTYPE_F32 || 2 * a->half <= MAX_HEAD);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->s * a->b; r++) {
        const int64_t at = a->position[r] * a->half, row = r / a->b * a->x.ld_s + r % a->b * a->x.ld_b;
        for (int64_t j = 0; j < a->g; j++)
            for (int64_t k = 0; k < a->heads; k++) {
                const int64_t first = row + j * a->x.ld_g + k * a->x.ld_h;
                float head[MAX_HEAD];
                uint16_t *half_head = (uint16_t *)a->x.p + first;
                if (a->x.dtype == MEG_DTYPE_F32) {
                    rotate_pairs((float *)a->x.p + first, a->half, a->is_interleaved, a->cos + at, a->sin + at,
                                 a->sign);
                } else {
                    MEG_FN(to_f32)(head, half_head, a->x.dtype, 2 * a->half);
                    rotate_pairs(head, a->half, a->is_interleaved, a->cos + at, a->sin + at, a->sign);
                    MEG_FN(from_f32)(half_head, a->x.dtype, head, 2 * a->half);
                }
            }
    }
}

/* ---- QK-norm: RMSNorm of each head, then rotation ---- */

/* Rotate x, a head of a row, by the angles of the row's position.  If sign is -1, rotate back. */
static void rotate_head(const struct meg_qk_norm *q, float *x, int64_t row, float sign)
{
    const int64_t at = q->half ? q->position[row] * q->half : 0;

    rotate_pairs(x, q->half, q->is_interleaved, q->cos + at, q->sin + at, sign);
}

/* Return head k of group j of a row of x as a matrix of one row. */
static struct meg_mat head_row(struct meg_heads x, const struct meg_qk_norm *q, int64_t row, int64_t j, int64_t k)
{
    const int64_t first = row / q->b * x.ld_s + row % q->b * x.ld_b + j * x.ld_g + k * x.ld_h;

    return row_vector((char *)x.p + (size_t)first * meg_dtype_size(x.dtype), x.dtype, q->d);
}

void MEG_FN(qk_norm_fwd)(struct meg_stream *st, const struct meg_qk_norm_fwd_args *a)
{
    const struct meg_qk_norm *q = a->q;

    (void)st;
    MEG_ASSERT_LE(q->d, MAX_HEAD);
#pragma omp parallel for schedule(static, ROWS)
    for (int64_t row = 0; row < q->s * q->b; row++) {
        float wb[MAX_HEAD], xb[MAX_HEAD], yb[MAX_HEAD];
        const float *wr = row_read(row_vector(a->w, a->y.dtype, q->d), 0, 0, q->d, wb);

        for (int64_t i = 0; i < q->g * q->heads; i++) {
            const struct meg_mat out = head_row(a->y, q, row, i / q->heads, i % q->heads);
            const float *xr = row_read(head_row(a->x, q, row, i / q->heads, i % q->heads), 0, 0, q->d, xb);
            float *yr = row_out(out, 0, 0, yb), s2 = 0.0f, rs;

#pragma omp simd reduction(+ : s2)
            for (int64_t c = 0; c < q->d; c++)
                s2 += xr[c] * xr[c];
            rs = a->rstd[row * q->g * q->heads + i] = 1.0f / sqrtf(s2 / (float)q->d + q->eps);
#pragma omp simd
            for (int64_t c = 0; c < q->d; c++)
                yr[c] = xr[c] * rs * wr[c];
            rotate_head(q, yr, row, 1.0f);
            row_store(out, 0, 0, q->d, yr);
        }
    }
}

/*
 * Compute dx of head i of a row, and add the gradient of w to dw.  Let r be dy rotated back, g = r * w and
 * n = x * rstd.  Then dx = rstd * (g - n * mean(g * n)), and the gradient of w is r * n.
 */
static void bwd_head(const struct meg_qk_norm_bwd_args *a, int64_t row, int64_t i, const float *w, float *dw)
{
    const struct meg_qk_norm *q = a->q;
    const int64_t j = i / q->heads, k = i % q->heads;
    const struct meg_mat dx = head_row(a->dx, q, row, j, k);
    const float rstd = a->rstd[row * q->g * q->heads + i];
    float xb[MAX_HEAD], dyb[MAX_HEAD], dxb[MAX_HEAD], mean = 0.0f;
    const float *xr = row_read(head_row(a->x, q, row, j, k), 0, 0, q->d, xb);
    const float *dyr = row_read(head_row(a->dy, q, row, j, k), 0, 0, q->d, dyb);
    float *g = row_out(dx, 0, 0, dxb);

    if (g != dyr)
        memcpy(g, dyr, (size_t)q->d * sizeof *g);
    rotate_head(q, g, row, -1.0f);
#pragma omp simd reduction(+ : mean)
    for (int64_t c = 0; c < q->d; c++) {
        const float n = xr[c] * rstd;
        dw[c] += g[c] * n;
        mean += g[c] * w[c] * n;
    }
    mean /= (float)q->d;
#pragma omp simd
    for (int64_t c = 0; c < q->d; c++)
        g[c] = rstd * (g[c] * w[c] - xr[c] * rstd * mean);
    row_store(dx, 0, 0, q->d, g);
}

/* The gradient of w is summed in blocks of ROWS rows, which are added in order. */
void MEG_FN(qk_norm_bwd)(struct meg_stream *st, const struct meg_qk_norm_bwd_args *a)
{
    const struct meg_qk_norm *q = a->q;
    const struct meg_mat sum = row_vector(a->dw, a->grad, q->d);
    float sumb[MAX_HEAD], *sums;
    (void)st;
    MEG_ASSERT_LE(q->d, MAX_HEAD);
    sums = a->dw ? row_sum(sum, 0, 0, q->d, sumb, a->accumulate) : sumb;
#pragma omp parallel for ordered schedule(static, 1)
    for (int64_t r0 = 0; r0 < q->s * q->b; r0 += ROWS) {
        float wb[MAX_HEAD], part[MAX_HEAD] = { 0 };
        const float *wr = row_read(row_vector(a->w, a->dy.dtype, q->d), 0, 0, q->d, wb);

        for (int64_t row = r0; row < meg_min64(r0 + ROWS, q->s * q->b); row++)
            for (int64_t i = 0; i < q->g * q->heads; i++)
                bwd_head(a, row, i, wr, part);
#pragma omp ordered
        for (int64_t c = 0; a->dw && c < q->d; c++)
            sums[c] += part[c];
    }
    if (a->dw)
        row_store(sum, 0, 0, q->d, sums);
}
