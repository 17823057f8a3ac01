/*
 * norm.cu - LayerNorm and RMSNorm, which is LayerNorm with mean 0 and without the bias b, alone or fused with the
 * residual addition.  Sums have a fixed order, and the numbers of blocks depend only on shapes and types, so that
 * results are deterministic and do not depend on the number of multiprocessors.
 */
#include "cuda/add.h"

/*
 * Rows of at most LONG elements are processed as follows.  A thread has K vectors of a row in registers: vectors lane,
 * lane + per_row, ... in thread `lane` of the per_row threads for the row.  A warp processes a row of at most SHORT
 * elements, and a block a longer one.  Meanwhile, the next row is copied to shared memory, where each thread reads
 * only what it copied itself.  Blocks process many rows each: a grid has at most as many blocks as can run at the same
 * time.
 */
enum { SHORT = 1024, MEDIUM = 4096, LONG = 8192, MAX_WARPS = 8, MAX_THREADS = MAX_WARPS * WARP };

/* Call f with k, 1 to 4, as a constant. */
template <class F> static void with_constant(int k, F f)
{
    switch (k) {
    case 1: f(std::integral_constant<int, 1>()); break;
    case 2: f(std::integral_constant<int, 2>()); break;
    case 3: f(std::integral_constant<int, 3>()); break;
    default: f(std::integral_constant<int, 4>());
    }
}

/* Return K for rows of n <= LONG elements, so that a row has at most MAX_THREADS threads. */
static int vectors_per_thread(int64_t n)
{
    return n <= SHORT ? (int)ceil_div(n, WARP * VEC) : n <= MEDIUM ? 2 : 4;
}

/* Return the number of threads for a row of n elements, each of which processes k vectors. */
static int threads_per_row(int64_t n, int k)
{
    return (int)ceil_div(n, k * VEC * WARP) * WARP;
}

/* The rows of a thread, and the columns of its vectors. */
struct rows {
    int64_t first, step;
    int lane, per_row;

    __device__ rows(int n) : lane((int)threadIdx.x % n), per_row(n)
    {
        const int rows = (int)blockDim.x / n;

        first = blockIdx.x * (int64_t)rows + (int)threadIdx.x / n;
        step = gridDim.x * (int64_t)rows;
    }
    __device__ int column(int i) const
    {
        return (lane + i * per_row) * VEC;
    }
};

/* Vectors of the next row of a matrix, in shared memory. */
template <int K, class T> struct next_row {
    vec<T> *p; /* vector 0 of this thread; the others follow at intervals of blockDim.x vectors */

    /* Use the first bytes of `memory`, and advance `memory` to the following bytes. */
    __device__ next_row(char *&memory) : p((vec<T> *)memory + threadIdx.x)
    {
        memory += K * blockDim.x * sizeof *p;
    }
    /* Begin to copy row r of m.  In the copy, columns from m.cols on are 0; if m.p is NULL, all columns are 0. */
    __device__ void copy(struct meg_mat m, int64_t r, const struct rows &rows) const
    {
#pragma unroll
        for (int i = 0; i < K; i++)
            fetch_async(p[i * blockDim.x], m, r, rows.column(i));
    }
    __device__ void read(vec<T> (&v)[K]) const
    {
#pragma unroll
        for (int i = 0; i < K; i++)
            v[i] = p[i * blockDim.x];
    }
};

/* Sums over the threads of a row. */
struct row_sums {
    enum { NBYTES = 2 * 2 * MAX_WARPS * sizeof(float) };
    float *buf; /* shared memory [2][N][MAX_WARPS], N <= 2; while one half is read, the other is written */
    int half, nwarps;

    /*
     * Set all sums to 0; the sums of warps that do not exist remain 0.  All threads of the block call the constructor.
     */
    __device__ row_sums(char *memory, int per_row) : buf((float *)memory), half(0), nwarps(per_row / WARP)
    {
        if (threadIdx.x < NBYTES / sizeof *buf)
            buf[threadIdx.x] = 0.0f;
        __syncthreads();
    }
    /* Replace each of the N values by its sum over the threads of the row, all of which call it. */
    template <int N> __device__ void reduce(float (&x)[N])
    {
        float *const sum = buf + half;

#pragma unroll
        for (int k = 0; k < N; k++)
            x[k] = warp_sum(x[k]);
        if (nwarps == 1)
            return;
        half ^= N * MAX_WARPS;
        if (threadIdx.x % WARP == 0)
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k * MAX_WARPS + threadIdx.x / WARP] = x[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < N; k++) {
            float all[VEC];

            static_assert((int)MAX_WARPS == (int)VEC);
            load(all, sum + k * MAX_WARPS, 0, VEC, true);
            x[k] = 0.0f;
#pragma unroll
            for (int i = 0; i < MAX_WARPS; i++)
                x[k] += all[i];
        }
    }
};

/* ---- forward ---- */

/*
 * Number of blocks of MAX_THREADS threads that a multiprocessor executes at a time.  It is limited by the registers for
 * K vectors of T.
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
__device__ static inline void read_weights(struct weights<K> &u, const struct norm_fwd &q, const struct rows &rows)
{
#pragma unroll
    for (int i = 0; i < K; i++) {
        vec<Y> w = {}, b = {};

        if (rows.column(i) < q.w.cols) {
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
__device__ static inline void normalize(const struct norm_fwd &q, int64_t r, const struct rows &rows,
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
static __global__ void __launch_bounds__(MAX_THREADS, fwd_blocks<K, X>) norm_fwd(struct norm_fwd q)
{
    SHARED(char, shared);
    const struct rows rows(q.per_row);
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
static __global__ void __launch_bounds__(MAX_THREADS, add_norm_blocks<K, S>)
    add_norm_fwd(struct add a, struct norm_fwd q)
{
    SHARED(char, shared);
    const struct rows rows(q.per_row);
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
template <class X, class Y> static __global__ void __launch_bounds__(MAX_THREADS) norm_fwd_long(struct norm_fwd q)
{
    SHARED(float, buf);
    const int64_t n = q.x.cols;

    for (int64_t r = blockIdx.x; r < q.x.rows; r += gridDim.x) {
        float x[VEC], sum = 0.0f, mean = 0.0f, rstd;
        const auto for_each = [&](auto f) {
#pragma unroll 4
            for (int64_t c = threadIdx.x * VEC; c < n; c += MAX_THREADS * VEC) {
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
            vec<Y> w, b = {};
            float ws[VEC], bs[VEC];

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
             meg_norm_offset(a->type),
             1.0f / (float)n,
             meg_norm_is_rms(a->type),
             threads_per_row(n, vectors_per_thread(n)) };
}

/*
 * Launch a kernel for n rows, with at most `blocks` blocks of MAX_THREADS threads per multiprocessor, or a
 * correspondingly larger number of smaller blocks.
 */
template <class... P, class... A>
static void launch_norm(launch_stream st, void (*kernel)(P...), int64_t n, int per_row, int blocks,
                        size_t nbytes_per_thread, A... args)
{
    const int threads = per_row == WARP ? MAX_THREADS : per_row;
    const int64_t most = SMS * (blocks * MAX_THREADS / threads);

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
            launch(st, norm_fwd_long<X, Y>, grid_size(a->x.rows, INT32_MAX), MAX_THREADS, MAX_WARPS * sizeof(float), q);
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

/* ---- backward ---- */

/*
 * With g = dy * (w + offset) and n = (x - mean) * rstd, the gradient of a row is
 *   dx = skip + rstd * (g - mean(g) - n * mean(g * n))
 * and the row adds dy * n to dw and dy to db.  RMSNorm has mean 0 and lacks the term mean(g).
 */
struct norm_bwd {
    struct meg_mat dx, skip, dy, x, w; /* w has one row */
    const float *mean, *rstd;
    float *partial; /* [blocks, 1 + !is_rms, ld]: sums of dw and db over the rows of a block */
    int64_t ld;
    float offset, inv_n; /* inv_n = 1 / x.cols */
    bool is_rms;
    int per_row; /* threads per row */
};

/* The values from which the gradient of a row is computed: its statistics, and the means of g and g * n. */
struct norm_row {
    float mean, rstd, mean_g, mean_gn;
};

/* Add a vector of g and g * n to their sums. */
__device__ static inline void add_to_sums(float &g_sum, float &gn_sum, const struct norm_row &row,
                                          const float (&x)[VEC], const float (&dy)[VEC], const float (&w)[VEC],
                                          float offset)
{
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        const float g = dy[j] * (w[j] + offset);

        g_sum += g;
        gn_sum += g * ((x[j] - row.mean) * row.rstd);
    }
}

/* Add a vector of the gradients to dx, dw and db. */
__device__ static inline void add_gradients(float (&dx)[VEC], float (&dw)[VEC], float (&db)[VEC],
                                            const struct norm_row &row, const float (&x)[VEC], const float (&dy)[VEC],
                                            const float (&w)[VEC], float offset)
{
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        const float n = (x[j] - row.mean) * row.rstd;

        dx[j] += row.rstd * (dy[j] * (w[j] + offset) - row.mean_g - n * row.mean_gn);
        dw[j] += dy[j] * n;
        db[j] += dy[j];
    }
}

/*
 * A thread also keeps the sums of dw and db for its columns over the rows that it processes; at the end, the sums of
 * all rows of a block are added.  The registers permit bwd_threads threads per multiprocessor: one block with several
 * short rows, or several blocks with one row each.  Each sum consists of MIN_STEPS rows or more, if there are enough
 * rows.
 */
enum { MIN_STEPS = 4 };
template <int K, class T> constexpr int bwd_threads = K <= 2 ? 512 : K == 3 ? 384 : 256;
template <int K> constexpr int bwd_threads<K, float> = K == 1 ? 512 : K == 2 ? 384 : 256;
template <int K> constexpr int bwd_threads<K, general> = K == 1 ? 512 : 256;

template <int K, class S, class B>
static __global__ void __launch_bounds__((bwd_threads<K, S>), 1) norm_bwd(struct norm_bwd q)
{
    SHARED(char, shared);
    const struct rows rows(q.per_row);
    struct row_sums sums(shared, q.per_row);
    char *memory = shared + row_sums::NBYTES;
    float *buf = (float *)memory;
    const next_row<K, S> next_x(memory), next_skip(memory);
    const next_row<K, B> next_dy(memory);
    const int cols = (int)q.x.cols;
    float dw[K][VEC] = {}, db[K][VEC] = {}, mean = 0.0f, rstd = 0.0f;
    const auto copy_next = [&](int64_t r) {
        if (r < q.x.rows) {
            next_x.copy(q.x, r, rows);
            next_dy.copy(q.dy, r, rows);
            next_skip.copy(q.skip, r, rows);
            rstd = q.rstd[r];
            mean = q.is_rms ? 0.0f : q.mean[r];
        }
    };
    const auto write_sums = [&](const float(&own)[K][VEC], int s) {
        const int n = (int)blockDim.x / q.per_row;

        __syncthreads();
#pragma unroll
        for (int i = 0; i < K; i++)
            if (rows.column(i) < cols)
                store(buf + (int)threadIdx.x / q.per_row * q.ld, own[i], rows.column(i), rows.column(i) + VEC, true);
        __syncthreads();
        for (int c = (int)threadIdx.x; c < q.ld; c += (int)blockDim.x) {
            float sum = 0.0f;

            for (int i = 0; i < n; i++)
                sum += buf[i * q.ld + c];
            q.partial[(blockIdx.x * (q.is_rms ? 1 : 2) + s) * q.ld + c] = sum;
        }
    };

    copy_next(rows.first);
    for (int64_t r = rows.first; r < q.x.rows; r += rows.step) {
        struct norm_row row = { mean, rstd, 0.0f, 0.0f };
        vec<S> x[K], skip[K];
        vec<B> dy[K], w[K] = {};
        float sum[2] = {};

        wait_fetched();
        next_x.read(x);
        next_dy.read(dy);
        next_skip.read(skip);
        copy_next(r + rows.step);
#pragma unroll
        for (int i = 0; i < K; i++)
            if (rows.column(i) < cols)
                fetch(w[i], q.w, 0, rows.column(i)); /* from the L1 cache, to save registers */
#pragma unroll
        for (int i = 0; i < K; i++) {
            float xs[VEC], dys[VEC], ws[VEC];

            convert(xs, x[i]);
            convert(dys, dy[i]);
            convert(ws, w[i]);
            add_to_sums(sum[0], sum[1], row, xs, dys, ws, q.offset);
        }
        sums.reduce(sum);
        row.mean_g = q.is_rms ? 0.0f : sum[0] * q.inv_n;
        row.mean_gn = sum[1] * q.inv_n;
#pragma unroll
        for (int i = 0; i < K; i++) {
            float xs[VEC], dys[VEC], ws[VEC], dx[VEC];

            if (rows.column(i) < cols) {
                if (sizeof w[i] > 16)
                    fetch(w[i], q.w, 0, rows.column(i)); /* again, to save registers */
                convert(xs, x[i]);
                convert(dys, dy[i]);
                convert(ws, w[i]);
                convert(dx, skip[i]);
                add_gradients(dx, dw[i], db[i], row, xs, dys, ws, q.offset);
                put<S>(q.dx, r, rows.column(i), dx);
            }
        }
    }
    write_sums(dw, 0);
    if (!q.is_rms)
        write_sums(db, 1);
}

/*
 * Compute norm_bwd for rows that are too long for the registers; they are read twice.  The sums of dw and db are in
 * global memory.
 */
enum { LONG_THREADS = 512 };

template <class S, class B> static __global__ void __launch_bounds__(LONG_THREADS) norm_bwd_long(struct norm_bwd q)
{
    SHARED(float, buf);
    const int64_t rows = q.x.rows, cols = q.x.cols, step = LONG_THREADS * VEC;
    float *dw_sum = q.partial + blockIdx.x * (q.is_rms ? 1 : 2) * q.ld, *db_sum = dw_sum + q.ld;
    const auto read = [&](float(&x)[VEC], float(&dy)[VEC], float(&w)[VEC], int64_t r, int64_t c) {
        vec<S> xv;
        vec<B> dyv, wv;

        fetch(xv, q.x, r, c);
        fetch(dyv, q.dy, r, c);
        fetch(wv, q.w, 0, c);
        convert(x, xv);
        convert(dy, dyv);
        convert(w, wv);
    };

    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
        struct norm_row row = { q.is_rms ? 0.0f : q.mean[r], q.rstd[r], 0.0f, 0.0f };
        float x[VEC], dy[VEC], w[VEC], g_sum = 0.0f, gn_sum = 0.0f;

        for (int64_t c = threadIdx.x * VEC; c < cols; c += step) {
            read(x, dy, w, r, c);
            add_to_sums(g_sum, gn_sum, row, x, dy, w, q.offset);
        }
        row.mean_g = q.is_rms ? 0.0f : block_sum(g_sum, buf) / (float)cols;
        row.mean_gn = block_sum(gn_sum, buf) / (float)cols;
        for (int64_t c = threadIdx.x * VEC; c < cols; c += step) {
            float dx[VEC], dw[VEC] = {}, db[VEC] = {};
            vec<S> skip = {};

            read(x, dy, w, r, c);
            if (q.skip.p)
                fetch(skip, q.skip, r, c);
            convert(dx, skip);
            if (r != blockIdx.x) {
                load(dw, dw_sum, c, c + VEC, true);
                if (!q.is_rms)
                    load(db, db_sum, c, c + VEC, true);
            }
            add_gradients(dx, dw, db, row, x, dy, w, q.offset);
            put<S>(q.dx, r, c, dx);
            store(dw_sum, dw, c, c + VEC, true);
            if (!q.is_rms)
                store(db_sum, db, c, c + VEC, true);
        }
    }
}

void meg_cuda_norm_bwd(struct meg_stream *st, const struct meg_norm_bwd_args *a)
{
    const int64_t n = a->x.cols, ld = ceil_div(n, VEC) * VEC;
    const bool is_rms = meg_norm_is_rms(a->type);
    struct norm_bwd q = { a->dx,           a->skip, a->dy, a->x, row_vector(a->w, a->dy.dtype, n),
                          a->mean,         a->rstd, NULL,  ld,   meg_norm_offset(a->type),
                          1.0f / (float)n, is_rms,  0 };
    unsigned blocks = 0;

    if (!n)
        return;
    with_types({ a->x, a->dx, a->skip }, { a->dy, q.w }, [&](auto s, auto t) {
        typedef decltype(s) S;
        typedef decltype(t) B;

        /* Launch a kernel with a number of blocks that depends only on the shape and the types. */
        const auto launch_bwd = [&](auto kernel, int threads, int groups, int most, size_t nbytes) {
            blocks = grid_size(ceil_div(a->x.rows, groups * MIN_STEPS), most);
            q.partial = (float *)meg_cuda_scratch(st, blocks * (is_rms ? 1 : 2) * (size_t)ld * sizeof *q.partial);
            if (a->x.rows)
                launch(st, kernel, blocks, (unsigned)threads, nbytes, q);
        };

        if (n > (is_general<S> ? (int)MEDIUM : (int)LONG))
            launch_bwd(norm_bwd_long<S, B>, LONG_THREADS, 1, 2 * SMS, LONG_THREADS / WARP * sizeof(float));
        else
            with_constant(vectors_per_thread(n), [&](auto k) {
                constexpr int K = is_general<S> && k == 4 ? 2 : k; /* `general` needs too many registers for K = 4 */
                const int most = bwd_threads<K, S>, per_row = threads_per_row(n, K);
                const int threads = per_row == WARP ? most : per_row;

                q.per_row = per_row;
                launch_bwd(norm_bwd<K, S, B>, threads, threads / per_row, most / threads * SMS,
                           row_sums::NBYTES + (size_t)threads * K * (2 * sizeof(vec<S>) + sizeof(vec<B>)));
            });
    });
    meg_cuda_sum_partials(st, a->dw, a->db, a->grad, q.partial, a->x.rows ? (int)blocks : 0, n, ld, a->accumulate);
}
