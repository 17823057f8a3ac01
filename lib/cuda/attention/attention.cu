/*
 * attention.cu - attention: the choice between cuDNN, kernels for tensor cores and kernels in f32; attn_merge,
 * attn_delta, and the gradients of the sinks and of the relative attention bias.
 */
#include "cuda/attention/attention.h"
#include "cuda/cudnn/attention.h"
#include "cuda/wgmma.h"

/* LANES threads process one query of one head. */
enum { THREADS = 256, LANES = 8, ROWS_PER_BLOCK = THREADS / LANES };

/* A query of a head: row [i, j, t] of lse and delta. */
struct attn_row {
    int64_t i, j, t;
};

static __device__ inline struct attn_row row_at(const struct meg_attn_desc &desc, int64_t row)
{
    return { row / desc.s_q / desc.a, row / desc.s_q % desc.a, row % desc.s_q };
}

static unsigned grid_of_rows(const struct meg_attn_desc *desc)
{
    return grid_size(ceil_div(desc->b * desc->a * desc->s_q, ROWS_PER_BLOCK), 1 << 20);
}

/* ---- merge ---- */

/* Compute attn_merge: merge o_part, the output for a chunk of keys, into o, and lse_part into lse. */
static __global__ void merge(struct meg_attn_desc desc, struct meg_heads o, float *lse, struct meg_heads o_part,
                             const float *lse_part, bool is_aligned)
{
    const int64_t n = desc.b * desc.a * desc.s_q;
    const int lane = (int)threadIdx.x % LANES;

    for (int64_t first = blockIdx.x * (int64_t)ROWS_PER_BLOCK; first < n;
         first += gridDim.x * (int64_t)ROWS_PER_BLOCK) {
        const int64_t row = first + threadIdx.x / LANES;
        const float a = row < n ? lse[row] : -INFINITY, b = row < n ? lse_part[row] : -INFINITY;
        const float most = b > a || b != b ? b : a;

        __syncwarp(); /* all threads of the row have read lse */
        if (most != -INFINITY) {
            const struct attn_row x = row_at(desc, row);
            const float w_a = expf(a - most), w_b = expf(b - most), sum = w_a + w_b, r = 1.0f / sum;
            float *const to = (float *)o.p + query_index(desc, o, x.t, x.i, x.j);
            const float *const from = (const float *)o_part.p + query_index(desc, o_part, x.t, x.i, x.j);

            for (int64_t c = lane * VEC; c < desc.d_v; c += LANES * VEC) {
                float u[VEC], v[VEC];

                load(u, to, c, desc.d_v, is_aligned);
                load(v, from, c, desc.d_v, is_aligned);
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    u[k] = w_a * r * u[k] + w_b * r * v[k];
                store(to, u, c, desc.d_v, is_aligned);
            }
            if (lane == 0)
                lse[row] = most + logf(sum);
        }
    }
}

void meg_cuda_attn_merge(struct meg_stream *st, const struct meg_attn_merge_args *a)
{
    const struct meg_attn_desc *desc = a->desc;

    if (desc->b * desc->s_q > 0)
        launch(st, merge, grid_of_rows(desc), THREADS, 0, *desc, a->o, a->lse, a->o_part, a->lse_part,
               has_aligned_heads(a->o) && has_aligned_heads(a->o_part));
}

/* ---- delta and parameter gradients ---- */

/* Compute delta [b, a, s_q] = the sum of d_o * o over the columns of a head, for each query. */
template <class T, class O>
static __global__ void delta_rows(struct meg_attn_desc desc, float *delta, struct meg_heads d_o, struct meg_heads o,
                                  bool is_aligned)
{
    const int64_t n = desc.b * desc.a * desc.s_q;
    const int lane = (int)threadIdx.x % LANES;

    for (int64_t first = blockIdx.x * (int64_t)ROWS_PER_BLOCK; first < n;
         first += gridDim.x * (int64_t)ROWS_PER_BLOCK) {
        const int64_t row = first + threadIdx.x / LANES;
        const struct attn_row x = row_at(desc, min(row, n - 1));
        const T *const p = (const T *)d_o.p + query_index(desc, d_o, x.t, x.i, x.j);
        const O *const q = (const O *)o.p + query_index(desc, o, x.t, x.i, x.j);
        float sum = 0.0f;

        for (int64_t c = lane * VEC; c < desc.d_v; c += LANES * VEC) {
            float u[VEC], v[VEC];

            load(u, p, c, desc.d_v, is_aligned);
            load(v, q, c, desc.d_v, is_aligned);
#pragma unroll
            for (int k = 0; k < VEC; k++)
                sum += u[k] * v[k];
        }
#pragma unroll
        for (int k = LANES / 2; k > 0; k /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, k);
        if (lane == 0 && row < n)
            delta[row] = sum;
    }
}

void meg_cuda_attn_delta(struct meg_stream *st, const struct meg_attn_delta_args *a)
{
    const struct meg_attn_desc *desc = a->desc;

    if (desc->b * desc->s_q == 0)
        return;
    with_type(a->d_o.dtype, [&](auto t) {
        with_type(a->o.dtype, [&](auto u) {
            launch(st, delta_rows<decltype(t), decltype(u)>, grid_of_rows(desc), THREADS, 0, *desc, a->delta, a->d_o,
                   a->o, has_aligned_heads(a->d_o) && has_aligned_heads(a->o));
        });
    });
}

/* Write `sum` to element `index` of a gradient or, if `accumulate` is set, add it. */
template <class T> static __device__ void put(T *grad, int64_t index, double sum, bool accumulate)
{
    grad[index] = from_float<T>((accumulate ? to_float(grad[index]) : 0.0f) + (float)sum);
}

/* Compute d_sink = -sum of exp(sink - lse) * delta over the queries of a head.  A block computes one head. */
template <class T>
static __global__ void sink_grads(struct meg_attn_desc desc, T *d_sink, const float *lse, const float *delta,
                                  bool accumulate)
{
    SHARED(double, buf);
    const int64_t j = blockIdx.x;
    const float sink = sink_of(desc, j);
    double sum = 0.0;

    for (int64_t n = threadIdx.x; n < desc.b * desc.s_q; n += THREADS) {
        const int64_t row = (n / desc.s_q * desc.a + j) * desc.s_q + n % desc.s_q;

        sum -= (double)(expf(sink - lse[row]) * delta[row]);
    }
    sum = block_sum(sum, buf);
    if (threadIdx.x == 0)
        put(d_sink, j, sum, accumulate);
}

/* Compute d_rel_bias [buckets,a], sums of part [b, a, tiles, buckets] over b and tiles.  A warp computes an element. */
template <class T>
static __global__ void rel_bias_grads(struct meg_attn_desc desc, struct meg_mat d_rel_bias, const double *part,
                                      int64_t tiles, bool accumulate)
{
    const int64_t element = (blockIdx.x * (int64_t)THREADS + threadIdx.x) / WARP, bucket = element / desc.a,
                  j = element % desc.a;
    double sum = 0.0;

    if (bucket >= d_rel_bias.rows)
        return;
    for (int64_t n = threadIdx.x % WARP; n < desc.b * tiles; n += WARP)
        sum += part[((n / tiles * desc.a + j) * tiles + n % tiles) * d_rel_bias.rows + bucket];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        put((T *)d_rel_bias.p, bucket * d_rel_bias.ld + j, sum, accumulate);
}

/* ---- forward and backward ---- */

#ifdef __CUDACC__
static __device__ bool compiled_with_wgmma = HAS_WGMMA;

cudaError_t meg_cuda_probe_wgmma(bool *has_wgmma)
{
    return cudaMemcpyFromSymbol(has_wgmma, compiled_with_wgmma, sizeof *has_wgmma);
}
#else
cudaError_t meg_cuda_probe_wgmma(bool *has_wgmma)
{
    *has_wgmma = meg_cuda_device.cc == 90;
    return cudaSuccess;
}
#endif

void meg_cuda_attn_fwd(struct meg_stream *st, const struct meg_attn_fwd_args *a)
{
    if (!meg_cudnn_attn_fwd(st, a) && !meg_cuda_attn_mma_fwd(st, a))
        meg_cuda_attn_f32_fwd(st, a);
}

/* Return the size in bytes of delta in the workspace of attn_bwd, where the partial sums of d_rel_bias follow it. */
static size_t delta_nbytes(const struct meg_attn_desc *desc)
{
    return (size_t)ceil_div(desc->b * desc->a * desc->s_q * (int64_t)sizeof(float), 256) * 256;
}

size_t meg_cuda_attn_bwd_nbytes(const struct meg_attn_desc *desc, enum meg_dtype grad, bool has_param_grads)
{
    const int64_t sums = desc->b * desc->a * meg_cuda_attn_f32_tiles(desc) * desc->rel_bias.rows;
    const size_t own = delta_nbytes(desc) + (has_param_grads ? (size_t)sums * sizeof(double) : 0);
    const size_t cudnn = meg_cudnn_attn_bwd_nbytes(desc, grad);

    return own > cudnn ? own : cudnn;
}

void meg_cuda_attn_bwd(struct meg_stream *st, const struct meg_attn_bwd_args *a)
{
    const struct meg_attn_desc *desc = a->desc;
    struct meg_attn_bwd_args x = *a;
    double *const sums = (double *)(void *)((char *)a->workspace.p + delta_nbytes(desc));
    const int64_t tiles = meg_cuda_attn_f32_tiles(desc);

    if (meg_cudnn_attn_bwd(st, a))
        return;
    if (!a->delta) {
        const struct meg_attn_delta_args delta = { desc, (float *)a->workspace.p, a->d_o, a->o };

        meg_cuda_attn_delta(st, &delta);
        x.delta = delta.delta;
    }
    if (a->d_rel_bias.p || !meg_cuda_attn_mma_bwd(st, &x))
        meg_cuda_attn_f32_bwd(st, &x, a->d_rel_bias.p ? sums : NULL);
    if (a->d_sink.p)
        with_type(a->d_sink.dtype, [&](auto t) {
            launch(st, sink_grads<decltype(t)>, (unsigned)desc->a, THREADS, THREADS / WARP * sizeof(double), *desc,
                   (decltype(t) *)a->d_sink.p, a->lse, x.delta, a->accumulate_params);
        });
    if (a->d_rel_bias.p)
        with_type(a->d_rel_bias.dtype, [&](auto t) {
            launch(st, rel_bias_grads<decltype(t)>, (unsigned)ceil_div(desc->rel_bias.rows * desc->a * WARP, THREADS),
                   THREADS, 0, *desc, a->d_rel_bias, sums, tiles, a->accumulate_params);
        });
}
