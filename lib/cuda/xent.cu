/* xent.cu - cross-entropy of rows of logits; backward replaces the logits by their gradient in place. */
#include <float.h>
#include "cuda/copy_async.h"

/*
 * A block processes one row at a time, and a thread N vectors of the row at a time.  Their loads are in flight at once,
 * because no branch separates them: alignment is a template parameter, and NO_END instead of the row's length removes
 * the checks of `load` and `store` for its end.
 */
enum { MAX_THREADS = 256, UNROLL = 4 }; /* UNROLL: N in kernels with blocks of at most MAX_THREADS */
#define NO_END INT64_MAX

/*
 * Return e^x, approximately: at the memory bandwidth of an H200, expf would be the bottleneck.  On a GPU, results below
 * 2^-126 are 0.
 */
static __device__ inline float exp_of(float x)
{
    return exp2_fast(LOG2E * x);
}

/*
 * The denominator of a softmax, computed online (Milakov and Gimelshein 2018): sum is the sum of exp(x - m), and m is
 * the maximum of the logits so far.
 */
struct denominator {
    float m, sum;
};

/*
 * Add N vectors to d.  m begins at the finite number -FLT_MAX, because the exponential of -inf - (-inf) would be NaN: a
 * logit of -inf adds 0.
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

/* Add the vectors of this thread in a row of v logits to d. */
template <int N, bool ALIGNED, class T> static __device__ void add_row(denominator &d, const T *row, int64_t v)
{
    const int64_t step = blockDim.x * (int64_t)VEC;
    int64_t c = threadIdx.x * (int64_t)VEC;

    for (; c + (N - 1) * step + VEC <= v; c += N * step) {
        float x[N][VEC];

#pragma unroll
        for (int i = 0; i < N; i++)
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
}

/* Return the log-sum-exp of a row from the denominators of the threads of a block, which has at most WARP warps. */
static __device__ float log_sum_exp(denominator d, float *buf)
{
    const float m = block_max(d.m, buf);

    return m + logf(block_sum(d.sum * exp_of(d.m - m), buf));
}

template <class T>
static __global__ void xent_partial(float *part, struct meg_mat logits, const int32_t *target, int64_t v0, bool aligned)
{
    SHARED(float, buf);

    for (int64_t r = blockIdx.x; r < logits.rows; r += gridDim.x) {
        const T *row = (const T *)logits.p + r * logits.ld;
        const int64_t t = target[r] - v0;
        denominator d = { -FLT_MAX, 0.0f };
        float lse;

        if (aligned)
            add_row<UNROLL, true>(d, row, logits.cols);
        else
            add_row<UNROLL, false>(d, row, logits.cols);
        lse = log_sum_exp(d, buf);
        if (threadIdx.x == 0) {
            part[r] = lse;
            part[logits.rows + r] = t >= 0 && t < logits.cols ? to_float(row[t]) : 0.0f;
        }
    }
}

/* Return the number of threads of a block for rows of v logits: at most `most`, a multiple of WARP. */
static unsigned num_threads(int64_t v, int most)
{
    return grid_size(ceil_div(v, WARP * VEC), most / WARP) * WARP;
}

void meg_cuda_xent_partial(struct meg_stream *st, const struct meg_xent_partial_args *a)
{
    if (a->logits.rows == 0)
        return;
    with_type(a->logits.dtype, [&](auto t) {
        launch(st, xent_partial<decltype(t)>, grid_size(a->logits.rows, INT32_MAX),
               num_threads(a->logits.cols, MAX_THREADS), MAX_THREADS / WARP * sizeof(float), a->part, a->logits,
               a->target, a->v0, has_aligned_rows(a->logits));
    });
}

/* Return the loss of a row whose target has the logit `target_logit`. */
static __device__ inline float loss_of(float lse, float target_logit, float z_loss)
{
    return lse - target_logit + (z_loss != 0.0f ? z_loss * lse * lse : 0.0f);
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
        loss[r] = target[r] < 0 ? 0.0f : loss_of(l, target_logit, z_loss);
    }
}

void meg_cuda_xent_combine(struct meg_stream *st, const struct meg_xent_combine_args *a)
{
    const unsigned threads = 128;

    if (a->n > 0)
        launch(st, xent_combine, grid_size(ceil_div(a->n, threads), INT32_MAX), threads, 0, a->loss, a->lse, a->part,
               a->target, a->nparts, a->n, a->z_loss);
}

/*
 * The gradient of a row: w_softmax * exp(x - lse), minus w at column `target`, times 1 - (x * inv_cap)^2 if inv_cap,
 * the inverse of the soft cap, is not 0.
 */
struct row_gradient {
    float lse, w, w_softmax, inv_cap;
    int64_t target;
    bool is_ignored; /* the gradient is 0 */
};

static __device__ inline row_gradient gradient_of(float lse, float w, float z_loss, float softcap, int32_t target,
                                                  int64_t v0)
{
    return { lse,
             w,
             z_loss != 0.0f ? w * (1.0f + 2.0f * z_loss * lse) : w,
             softcap > 0.0f ? 1.0f / softcap : 0.0f,
             target - v0,
             target < 0 };
}

/* The weights of rows, in struct meg_loss_weight. */
struct row_weights {
    double scale;
    const float *mask;

    __device__ row_weights(const struct meg_loss_weight &weight)
        : scale((weight.scale ? *weight.scale : 1) * (weight.loss_scale ? *weight.loss_scale : 1)), mask(weight.mask)
    {
    }
    __device__ float of(int64_t r) const
    {
        return (float)(mask ? scale * (double)mask[r] : scale);
    }
};

/*
 * Write the gradient of N vectors of a row of v logits: those at columns c0, c0 + step, ...  The logits are at `from`,
 * which may be `row`.  Call then(c) when the vector at column c of `from` is not needed any more.
 */
template <int N, bool ALIGNED, class T, class F>
static __device__ inline void replace_vectors(T *row, const T *from, int64_t c0, int64_t step, int64_t v,
                                              const row_gradient &g, F then)
{
    float x[N][VEC];

#pragma unroll
    for (int i = 0; i < N; i++)
        load(x[i], from, c0 + i * step, v, ALIGNED);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int64_t c = c0 + i * step;
        float slope[VEC];

#pragma unroll
        for (int j = 0; j < VEC; j++) {
            slope[j] = 1.0f - x[i][j] * g.inv_cap * (x[i][j] * g.inv_cap);
            x[i][j] = g.is_ignored ? 0.0f : g.w_softmax * exp_of(x[i][j] - g.lse);
        }
        if (g.target >= c && g.target < c + VEC)
#pragma unroll
            for (int j = 0; j < VEC; j++)
                x[i][j] -= c + j == g.target ? g.w : 0.0f;
        if (g.inv_cap != 0.0f && !g.is_ignored)
#pragma unroll
            for (int j = 0; j < VEC; j++)
                x[i][j] *= slope[j];
        store(row, x[i], c, v, ALIGNED);
        then(c);
    }
}

/* Write the gradient of the vectors of this thread (replace_vectors). */
template <int N, bool ALIGNED, class T, class F>
static __device__ void replace_row(T *row, const T *from, int64_t v, const row_gradient &g, F then)
{
    const int64_t step = blockDim.x * (int64_t)VEC;
    int64_t c = threadIdx.x * (int64_t)VEC;

    for (; c + (N - 1) * step + VEC <= v; c += N * step)
        replace_vectors<N, ALIGNED>(row, from, c, step, NO_END, g, then);
    for (; c < v; c += step)
        replace_vectors<1, ALIGNED>(row, from, c, step, v, g, then);
}

template <class T>
static __global__ void xent_bwd(struct meg_mat logits, const float *lse, const int32_t *target, int64_t v0,
                                float z_loss, float softcap, struct meg_loss_weight weight, bool aligned)
{
    const row_weights weights(weight);

    for (int64_t r = blockIdx.x; r < logits.rows; r += gridDim.x) {
        T *row = (T *)logits.p + r * logits.ld;
        const row_gradient g = gradient_of(lse[r], weights.of(r), z_loss, softcap, target[r], v0);
        const auto then = [](int64_t) {};

        if (aligned)
            replace_row<UNROLL, true>(row, row, logits.cols, g, then);
        else
            replace_row<UNROLL, false>(row, row, logits.cols, g, then);
    }
}

void meg_cuda_xent_bwd(struct meg_stream *st, const struct meg_xent_bwd_args *a)
{
    if (a->logits.rows == 0)
        return;
    with_type(a->logits.dtype, [&](auto t) {
        launch(st, xent_bwd<decltype(t)>, grid_size(a->logits.rows, INT32_MAX),
               num_threads(a->logits.cols, MAX_THREADS), 0, a->logits, a->lse, a->target, a->v0, a->z_loss, a->softcap,
               a->weight, has_aligned_rows(a->logits));
    });
}

/* ---- a vocabulary that is not split ---- */

/*
 * A block has at most FUSED_THREADS threads if no second block fits into the shared memory of a multiprocessor,
 * otherwise at most half as many.
 */
enum { FUSED_THREADS = 1024, FUSED_UNROLL = 2, BUF_NBYTES = FUSED_THREADS / WARP * sizeof(float) };

/*
 * Compute losses and gradients; a block processes one row at a time.  The first `kept` logits of the row are in shared
 * memory: each thread copies the vectors that it processes.  When it has written the gradient of such a vector, it
 * begins to copy the vector in the same columns of the block's next row.  The logits after the first `kept` are read
 * twice from global memory, the second time probably from the L2 cache.  The logits of ignored rows are not copied.  A
 * copy always has 16 bytes, so that the last one of a row may include bytes between this row and the next one.
 */
template <bool ALIGNED, class T>
static __global__ void __launch_bounds__(FUSED_THREADS)
    xent_fwd_bwd(float *loss, struct meg_mat logits, const int32_t *target, float z_loss, float softcap,
                 struct meg_loss_weight weight, int kept)
{
    SHARED(char, shared);
    float *const buf = (float *)shared;
    T *const copy = (T *)(shared + BUF_NBYTES);
    const row_weights weights(weight);
    const int64_t rest = logits.cols - kept;
    const auto is_used = [&](int64_t r) { return r < logits.rows && target[r] >= 0; };
    const auto fetch = [&](int64_t r, int64_t c) {
#pragma unroll
        for (int i = 0; i < VEC; i += 16 / sizeof(T))
            copy_async(copy + c + i, (const T *)logits.p + r * logits.ld + c + i, c + i < logits.cols);
    };

    if (is_used(blockIdx.x))
        for (int c = (int)threadIdx.x * VEC; c < kept; c += (int)blockDim.x * VEC)
            fetch(blockIdx.x, c);
    for (int64_t r = blockIdx.x; r < logits.rows; r += gridDim.x) {
        T *row = (T *)logits.p + r * logits.ld;
        const int32_t t = target[r];
        const int64_t next = r + gridDim.x;
        const bool is_next_used = is_used(next);
        const float w = weights.of(r);
        float lse = 0.0f;
        row_gradient g;

        if (t >= 0) {
            const float target_logit = t < logits.cols ? to_float(row[t]) : 0.0f;
            denominator d = { -FLT_MAX, 0.0f };

            add_row<FUSED_UNROLL, ALIGNED>(d, row + kept, rest);
            copy_async_commit();
            copy_async_wait<0>();
            add_row<FUSED_UNROLL, true>(d, copy, kept);
            lse = log_sum_exp(d, buf);
            if (threadIdx.x == 0)
                loss[r] = loss_of(lse, target_logit, z_loss);
        } else if (threadIdx.x == 0) {
            loss[r] = 0.0f;
        }
        g = gradient_of(lse, w, z_loss, softcap, t, 0);
        replace_row<FUSED_UNROLL, true>(row, copy, kept, g, [&](int64_t c) {
            if (is_next_used)
                fetch(next, c);
        });
        g.target -= kept;
        replace_row<FUSED_UNROLL, ALIGNED>(row + kept, row + kept, rest, g, [](int64_t) {});
    }
}

void meg_cuda_xent_fwd_bwd(struct meg_stream *st, const struct meg_xent_fwd_bwd_args *a)
{
    const bool aligned = has_aligned_rows(a->logits);

    if (a->logits.rows == 0)
        return;
    with_type(a->logits.dtype, [&](auto t) {
        typedef decltype(t) T;
        const int64_t size = VEC * sizeof(T), most = (meg_cuda_max_shared() - BUF_NBYTES) / size * VEC;
        const int64_t kept = !aligned ? 0 : a->logits.cols < most ? a->logits.cols : most;
        const int64_t nbytes = BUF_NBYTES + ceil_div(kept, VEC) * size;
        const bool is_single = 2 * (nbytes + 1024) > meg_cuda_max_shared() + 1024;
        const unsigned threads = num_threads(a->logits.cols, is_single ? FUSED_THREADS : FUSED_THREADS / 2);

        launch(st, aligned ? xent_fwd_bwd<true, T> : xent_fwd_bwd<false, T>,
               grid_size(a->logits.rows, meg_cuda_device.num_sms * (int64_t)(FUSED_THREADS / threads)), threads,
               (size_t)nbytes, a->loss, a->logits, a->target, a->z_loss, a->softcap, a->weight, (int)kept);
    });
}
