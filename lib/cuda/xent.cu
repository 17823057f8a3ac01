/* xent.cu - cross-entropy of rows of logits; backward replaces the logits by their gradient in place. */
#include <float.h>
#include "cuda/kernel.h"

/*
 * A block processes one row at a time, and a thread UNROLL vectors of the row at a time.  Their loads are in flight at
 * once, because no branch separates them: alignment is a template parameter, and NO_END instead of the row's length
 * removes the checks of `load` and `store` for its end.
 */
enum { MAX_THREADS = 256, UNROLL = 4 };
#define NO_END INT64_MAX

/* exp2f is one hardware instruction, expf several: at the bandwidth of an H200, expf would be the bottleneck. */
static __device__ inline float exp_of(float x)
{
    return exp2f(x * 1.44269504f);
}

/* A softmax's denominator that is computed online (Milakov and Gimelshein 2018): the sum of exp(x - m), m = max(x). */
struct denominator {
    float m, sum;
};

/*
 * Add N values to d.  m begins at a finite number, because the exponential of -inf - (-inf) would be NaN: a logit of
 * -inf adds 0.
 */
template <int N> static __device__ inline void add_logits(denominator &d, const float (&x)[N][VEC])
{
    float most = d.m;

#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < VEC; j++)
            most = fmaxf(most, x[i][j]);
    if (most > d.m) {
        d.sum *= exp_of(d.m - most);
        d.m = most;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < VEC; j++)
            d.sum += exp_of(x[i][j] - d.m);
}

/* Return the denominator of the vectors of this thread in a row of v logits. */
template <bool ALIGNED, class T> static __device__ denominator thread_denominator(const T *row, int64_t v)
{
    const int64_t step = blockDim.x * (int64_t)VEC;
    denominator d = { -FLT_MAX, 0.0f };
    int64_t c = threadIdx.x * (int64_t)VEC;

    for (; c + (UNROLL - 1) * step + VEC <= v; c += UNROLL * step) {
        float x[UNROLL][VEC];

#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            load(x[i], row, c + i * step, NO_END, ALIGNED);
        add_logits(d, x);
    }
    for (; c < v; c += step) {
        float x[1][VEC];

        load(x[0], row, c, v, ALIGNED);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            x[0][j] = c + j < v ? x[0][j] : -INFINITY;
        add_logits(d, x);
    }
    return d;
}

template <class T>
static __global__ void xent_partial(float *part, struct meg_mat logits, const int32_t *target, int64_t v0, bool aligned)
{
    SHARED(float, buf);

    for (int64_t r = blockIdx.x; r < logits.rows; r += gridDim.x) {
        const T *row = (const T *)logits.p + r * logits.ld;
        const int64_t t = target[r] - v0;
        const denominator d =
            aligned ? thread_denominator<true>(row, logits.cols) : thread_denominator<false>(row, logits.cols);
        const float m = block_max(d.m, buf), sum = block_sum(d.sum * exp_of(d.m - m), buf);

        if (threadIdx.x == 0) {
            part[r] = m + logf(sum);
            part[logits.rows + r] = t >= 0 && t < logits.cols ? to_float(row[t]) : 0.0f;
        }
    }
}

/* Return the threads of a block for rows of v logits. */
static unsigned num_threads(int64_t v)
{
    return grid_size(ceil_div(v, WARP * VEC), MAX_THREADS / WARP) * WARP;
}

void meg_cuda_xent_partial(struct meg_stream *st, float *part, struct meg_mat logits, const int32_t *target, int64_t v0)
{
    if (logits.rows == 0)
        return;
    with_type(logits.dtype, [&](auto t) {
        launch(st, xent_partial<decltype(t)>, grid_size(logits.rows, INT32_MAX), num_threads(logits.cols),
               MAX_THREADS / WARP * sizeof(float), part, logits, target, v0, has_aligned_rows(logits));
    });
}

static __global__ void xent_combine(float *loss, float *lse, const float *part, const int32_t *target, int64_t nparts,
                                    int64_t n, float z_loss)
{
    for (int64_t r = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; r < n; r += gridDim.x * (int64_t)blockDim.x) {
        float m = -INFINITY, sum = 0.0f, target_logit = 0.0f, l;

        for (int64_t i = 0; i < nparts; i++)
            m = fmaxf(m, part[2 * n * i + r]);
        for (int64_t i = 0; i < nparts; i++) {
            sum += expf(part[2 * n * i + r] - m);
            target_logit += part[2 * n * i + n + r];
        }
        l = m + logf(sum);
        lse[r] = l;
        loss[r] = target[r] < 0 ? 0.0f : l - target_logit + (z_loss != 0.0f ? z_loss * l * l : 0.0f);
    }
}

void meg_cuda_xent_combine(struct meg_stream *st, float *loss, float *lse, const float *part, const int32_t *target,
                           int64_t nparts, int64_t n, float z_loss)
{
    const unsigned threads = 128;

    if (n > 0)
        launch(st, xent_combine, grid_size(ceil_div(n, threads), INT32_MAX), threads, 0, loss, lse, part, target,
               nparts, n, z_loss);
}

/* The gradient of a row: w_softmax * exp(x - lse), less w at column `target`. */
struct row_gradient {
    float lse, w, w_softmax;
    int64_t target;
    bool is_ignored; /* the gradient is 0 */
};

/* Replace N vectors of a row of v logits by their gradient: those at columns c0, c0 + step, ... */
template <int N, bool ALIGNED, class T>
static __device__ inline void replace_vectors(T *row, int64_t c0, int64_t step, int64_t v, const row_gradient &g)
{
    float x[N][VEC];

#pragma unroll
    for (int i = 0; i < N; i++)
        load(x[i], row, c0 + i * step, v, ALIGNED);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int64_t c = c0 + i * step;

#pragma unroll
        for (int j = 0; j < VEC; j++)
            x[i][j] = g.is_ignored ? 0.0f : g.w_softmax * exp_of(x[i][j] - g.lse);
        if (g.target >= c && g.target < c + VEC)
#pragma unroll
            for (int j = 0; j < VEC; j++)
                x[i][j] -= c + j == g.target ? g.w : 0.0f;
        store(row, x[i], c, v, ALIGNED);
    }
}

template <bool ALIGNED, class T> static __device__ void replace_row(T *row, int64_t v, const row_gradient &g)
{
    const int64_t step = blockDim.x * (int64_t)VEC;
    int64_t c = threadIdx.x * (int64_t)VEC;

    for (; c + (UNROLL - 1) * step + VEC <= v; c += UNROLL * step)
        replace_vectors<UNROLL, ALIGNED>(row, c, step, NO_END, g);
    for (; c < v; c += step)
        replace_vectors<1, ALIGNED>(row, c, step, v, g);
}

template <class T>
static __global__ void xent_bwd(struct meg_mat logits, const float *lse, const int32_t *target, int64_t v0,
                                float z_loss, struct meg_loss_weight weight, bool aligned)
{
    const double scale = weight.loss_scale ? weight.scale * *weight.loss_scale : weight.scale;

    for (int64_t r = blockIdx.x; r < logits.rows; r += gridDim.x) {
        T *row = (T *)logits.p + r * logits.ld;
        const float l = lse[r], w = (float)(weight.mask ? scale * (double)weight.mask[r] : scale);
        const row_gradient g = { l, w, z_loss != 0.0f ? w * (1.0f + 2.0f * z_loss * l) : w, target[r] - v0,
                                 target[r] < 0 };

        if (aligned)
            replace_row<true>(row, logits.cols, g);
        else
            replace_row<false>(row, logits.cols, g);
    }
}

void meg_cuda_xent_bwd(struct meg_stream *st, struct meg_mat logits, const float *lse, const int32_t *target,
                       int64_t v0, float z_loss, struct meg_loss_weight weight)
{
    if (logits.rows == 0)
        return;
    with_type(logits.dtype, [&](auto t) {
        launch(st, xent_bwd<decltype(t)>, grid_size(logits.rows, INT32_MAX), num_threads(logits.cols), 0, logits, lse,
               target, v0, z_loss, weight, has_aligned_rows(logits));
    });
}
