/*
 * norm.cu - LayerNorm and RMSNorm, which is LayerNorm with mean 0 and without the bias b, alone or fused with the
 * residual addition.
 */
#include "cuda/norm.h"
#include "cuda/add.h"

/*
 * Number of blocks of NORM_THREADS threads that a multiprocessor executes at a time.  It is limited by the registers
 * for K vectors of T.
 */
template <int K, class T> constexpr int fwd_blocks = K == 1 ? 4 : K == 2 ? 3 : 2;
template <int K> constexpr int fwd_blocks<K, float> = K <= 2 ? 2 : 1;
template <int K> constexpr int fwd_blocks<K, general> = 1;
template <int K, class T> constexpr int add_norm_blocks = K == 4 || fwd_blocks<K, T> == 1 ? 1 : 2;

struct norm_fwd {
    struct meg_mat y, x, w, b; /* w and b have one row */
    float *mean, *rstd;
    float eps, offset, inv_n; /* inv_n = 1 / y.cols */
    bool is_rms;
    int per_row; /* threads per row */
};

/* The weights, with their offset, and the biases of a thread's columns. */
template <int K> struct weights {
    float w[K][VEC], b[K][VEC];
};

template <class Y, int K>
__device__ static inline void read_weights(struct weights<K> &u, const struct norm_fwd &q,
                                           const struct thread_rows &rows)
{
#pragma unroll
    for (int i = 0; i < K; i++) {
        vec<Y> w = {}, b = {};

        if (rows.column(i) < q.w.cols) {
            if (q.w.p)
                fetch(w, q.w, 0, rows.column(i));
            if (q.b.p)
                fetch(b, q.b, 0, rows.column(i));
        }
        convert(u.w[i], w);
        convert(u.b[i], b);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            u.w[i][j] += q.offset;
#ifdef __CUDACC__
            if (K < 4) /* otherwise, nvcc converts the weights again for each row; K = 4 needs that to save registers */
                asm volatile("" : "+f"(u.w[i][j]), "+f"(u.b[i][j]));
#endif
        }
    }
}

/*
 * Normalize row r, whose elements are x, and store it and its rstd and, unless the norm is an RMSNorm, its mean.  All
 * threads of the row call the function.
 */
template <class Y, int K>
__device__ static inline void normalize(const struct norm_fwd &q, int64_t r, const struct thread_rows &rows,
                                        float (&x)[K][VEC], const struct weights<K> &u, struct row_sums &sums)
{
    const int n = (int)q.y.cols;
    float sum[1] = {}, mean = 0.0f, rstd;

    if (!q.is_rms) {
#pragma unroll
        for (int i = 0; i < K; i++)
#pragma unroll
            for (int j = 0; j < VEC; j++)
                sum[0] += x[i][j];
        sums.reduce(sum);
        mean = sum[0] * q.inv_n;
        sum[0] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < K; i++)
        if (rows.column(i) < n)
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                x[i][j] = !is_general<Y> || rows.column(i) + j < n ? x[i][j] - mean : 0.0f;
                sum[0] += x[i][j] * x[i][j];
            }
    sums.reduce(sum);
    rstd = rsqrtf(sum[0] * q.inv_n + q.eps);
    if (rows.lane == 0) {
        q.rstd[r] = rstd;
        if (!q.is_rms)
            q.mean[r] = mean;
    }
#pragma unroll
    for (int i = 0; i < K; i++)
        if (rows.column(i) < n) {
#pragma unroll
            for (int j = 0; j < VEC; j++)
                x[i][j] = x[i][j] * rstd * u.w[i][j] + u.b[i][j];
            put<Y>(q.y, r, rows.column(i), x[i]);
        }
}

template <int K, class X, class Y>
static __global__ void __launch_bounds__(NORM_THREADS, fwd_blocks<K, X>) norm_fwd(struct norm_fwd q)
{
    SHARED(char, shared);
    const struct thread_rows rows(q.per_row);
    struct row_sums sums(shared, q.per_row);
    char *memory = shared + row_sums::NBYTES;
    const next_row<K, X> next(memory);
    const auto copy_next = [&](int64_t r) {
        if (r < q.x.rows)
            next.copy(q.x, r, rows);
    };
    struct weights<K> u;

    copy_next(rows.first);
    read_weights<Y>(u, q, rows);
    for (int64_t r = rows.first; r < q.x.rows; r += rows.step) {
        vec<X> v[K];
        float x[K][VEC];

        wait_fetched();
        next.read(v);
        copy_next(r + rows.step);
#pragma unroll
        for (int i = 0; i < K; i++)
            convert(x[i], v[i]);
        normalize<Y>(q, r, rows, x, u, sums);
    }
}

template <int K, class S, class B>
static __global__ void __launch_bounds__(NORM_THREADS, add_norm_blocks<K, S>)
    add_norm_fwd(struct add a, struct norm_fwd q)
{
    SHARED(char, shared);
    const struct thread_rows rows(q.per_row);
    struct row_sums sums(shared, q.per_row);
    char *memory = shared + row_sums::NBYTES;
    const next_row<K, S> next_x(memory);
    const next_row<K, B> next_y(memory);
    const auto copy_next = [&](int64_t r) {
        if (r < q.x.rows) {
            next_x.copy(a.x, r, rows);
            next_y.copy(a.y, r, rows);
        }
    };
    struct weights<K> u;

    copy_next(rows.first);
    read_weights<B>(u, q, rows);
    for (int64_t r = rows.first; r < q.x.rows; r += rows.step) {
        const struct drop_row drop = drop_row_of(a.drop, r);
        vec<S> x[K];
        vec<B> y[K];
        float z[K][VEC] = {};

        wait_fetched();
        next_x.read(x);
        next_y.read(y);
        copy_next(r + rows.step);
#pragma unroll
        for (int i = 0; i < K; i++)
            if (rows.column(i) < (int)q.x.cols)
                add_vector(z[i], a, x[i], y[i], drop, r, rows.column(i));
        normalize<B>(q, r, rows, z, u, sums);
    }
}

/* Normalize rows of more than LONG elements, which are read again for each sum and for the result. */
template <class X, class Y> static __global__ void __launch_bounds__(NORM_THREADS) norm_fwd_long(struct norm_fwd q)
{
    SHARED(float, buf);
    const int64_t n = q.x.cols;

    for (int64_t r = blockIdx.x; r < q.x.rows; r += gridDim.x) {
        float x[VEC], sum = 0.0f, mean = 0.0f, rstd;
        const auto for_each = [&](auto f) {
#pragma unroll 4
            for (int64_t c = threadIdx.x * VEC; c < n; c += NORM_THREADS * VEC) {
                vec<X> v;

                fetch(v, q.x, r, c);
                convert(x, v);
                f(c);
            }
        };

        if (!q.is_rms) {
            for_each([&](int64_t) {
#pragma unroll
                for (int j = 0; j < VEC; j++)
                    sum += x[j];
            });
            mean = block_sum(sum, buf) / (float)n;
            sum = 0.0f;
        }
        for_each([&](int64_t c) {
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                const float d = !is_general<Y> || c + j < n ? x[j] - mean : 0.0f;

                sum += d * d;
            }
        });
        rstd = rsqrtf(block_sum(sum, buf) / (float)n + q.eps);
        if (threadIdx.x == 0) {
            q.rstd[r] = rstd;
            if (!q.is_rms)
                q.mean[r] = mean;
        }
        for_each([&](int64_t c) {
            vec<Y> w = {}, b = {};
            float ws[VEC], bs[VEC];

            if (q.w.p)
                fetch(w, q.w, 0, c);
            if (q.b.p)
                fetch(b, q.b, 0, c);
            convert(ws, w);
            convert(bs, b);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                x[j] = (x[j] - mean) * rstd * (ws[j] + q.offset) + bs[j];
            put<Y>(q.y, r, c, x);
        });
    }
}

/* Return the arguments of the forward kernels. */
static struct norm_fwd norm_begin(const struct meg_norm_fwd_args *a)
{
    const int64_t n = a->y.cols;

    return { a->y,
             a->x,
             row_vector(a->w, a->y.dtype, n),
             row_vector(a->b, a->y.dtype, n),
             a->mean,
             a->rstd,
             a->eps,
             meg_norm_offset(a->type, a->w),
             1.0f / (float)n,
             meg_norm_is_rms(a->type),
             threads_per_row(n, vectors_per_thread(n)) };
}

/*
 * Launch a kernel for n rows, with at most `blocks` blocks of NORM_THREADS threads per multiprocessor, or a
 * correspondingly larger number of smaller blocks.
 */
template <class... P, class... A>
static void launch_norm(launch_stream st, void (*kernel)(P...), int64_t n, int per_row, int blocks,
                        size_t nbytes_per_thread, A... args)
{
    const int threads = per_row == WARP ? NORM_THREADS : per_row;
    const int64_t most = SMS * (blocks * NORM_THREADS / threads);

    launch(st, kernel, grid_size(ceil_div(n, threads / per_row), most), (unsigned)threads,
           row_sums::NBYTES + (size_t)threads * nbytes_per_thread, args...);
}

void meg_cuda_norm_fwd(struct meg_stream *st, const struct meg_norm_fwd_args *a)
{
    const struct norm_fwd q = norm_begin(a);

    if (!a->x.rows || !a->x.cols)
        return;
    with_types({ a->x }, { a->y, q.w, q.b }, [&](auto s, auto t) {
        typedef decltype(s) X;
        typedef decltype(t) Y;

        if (a->x.cols > LONG)
            launch(st, norm_fwd_long<X, Y>, grid_size(a->x.rows, INT32_MAX), NORM_THREADS, MAX_WARPS * sizeof(float),
                   q);
        else
            with_constant(vectors_per_thread(a->x.cols), [&](auto k) {
                launch_norm(st, norm_fwd<k, X, Y>, a->x.rows, q.per_row, fwd_blocks<k, X>, k * sizeof(vec<X>), q);
            });
    });
}

void meg_cuda_add_norm_fwd(struct meg_stream *st, const struct meg_add_norm_fwd_args *a)
{
    const struct add add = add_begin(a->z, a->x, a->sublayer_out, a->bias, a->drop);
    const struct meg_norm_fwd_args norm_args = { a->type, a->y, a->mean, a->rstd, a->z, a->w, a->b, a->eps };
    const struct norm_fwd q = norm_begin(&norm_args);

    if (!a->z.rows || !a->z.cols)
        return;
    if (a->z.cols > LONG) {
        const struct meg_add_fwd_args add_args = { a->z, a->x, a->sublayer_out, a->bias, a->drop };

        meg_cuda_add_fwd(st, &add_args);
        meg_cuda_norm_fwd(st, &norm_args);
        return;
    }
    with_types_and_drop({ a->z, a->x }, { a->sublayer_out, a->y, add.bias, q.w, q.b }, add.drop, [&](auto s, auto t) {
        typedef decltype(s) S;
        typedef decltype(t) B;

        with_constant(vectors_per_thread(a->z.cols), [&](auto k) {
            launch_norm(st, add_norm_fwd<k, S, B>, a->z.rows, q.per_row, add_norm_blocks<k, S>,
                        k * (sizeof(vec<S>) + sizeof(vec<B>)), add, q);
        });
    });
}
