/* norm_bwd.cu - the gradients of LayerNorm and RMSNorm. */
#include "cuda/norm.h"

/*
 * With g = dy * (w + offset) and n = (x - mean) * rstd, the gradient of a row is
 *   dx = skip + rstd * (g - mean(g) - n * mean(g * n))
 * and the row adds dy * n to dw and dy to db.  RMSNorm has mean 0 and lacks the term mean(g).
 */
struct norm_bwd {
    struct meg_mat dx, skip, dy, x, w; /* w has one row */
    const float *mean, *rstd;
    float *partial; /* [blocks,nsums,ld]: sums of dw and, if nsums is 2, of db over the rows of a block */
    int64_t ld;
    float offset, inv_n; /* inv_n = 1 / x.cols */
    bool is_rms;
    int nsums;
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
    const struct thread_rows rows(q.per_row);
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
            q.partial[(blockIdx.x * q.nsums + s) * q.ld + c] = sum;
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
            if (q.w.p && rows.column(i) < cols)
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
                if (sizeof w[i] > 16 && q.w.p)
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
    if (q.nsums == 2)
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
    float *dw_sum = q.partial + blockIdx.x * q.nsums * q.ld, *db_sum = dw_sum + q.ld;
    const auto read = [&](float(&x)[VEC], float(&dy)[VEC], float(&w)[VEC], int64_t r, int64_t c) {
        vec<S> xv;
        vec<B> dyv, wv = {};

        fetch(xv, q.x, r, c);
        fetch(dyv, q.dy, r, c);
        if (q.w.p)
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
                if (q.nsums == 2)
                    load(db, db_sum, c, c + VEC, true);
            }
            add_gradients(dx, dw, db, row, x, dy, w, q.offset);
            put<S>(q.dx, r, c, dx);
            store(dw_sum, dw, c, c + VEC, true);
            if (q.nsums == 2)
                store(db_sum, db, c, c + VEC, true);
        }
    }
}

void meg_cuda_norm_bwd(struct meg_stream *st, const struct meg_norm_bwd_args *a)
{
    const int64_t n = a->x.cols, ld = ceil_div(n, VEC) * VEC;
    const int nsums = a->db ? 2 : 1;
    struct norm_bwd q = { a->dx,
                          a->skip,
                          a->dy,
                          a->x,
                          row_vector(a->w, a->dy.dtype, n),
                          a->mean,
                          a->rstd,
                          NULL,
                          ld,
                          meg_norm_offset(a->type, a->w),
                          1.0f / (float)n,
                          meg_norm_is_rms(a->type),
                          nsums,
                          0 };
    unsigned blocks = 0;

    if (!n)
        return;
    with_types({ a->x, a->dx, a->skip }, { a->dy, q.w }, [&](auto s, auto t) {
        typedef decltype(s) S;
        typedef decltype(t) B;

        /* Launch a kernel with a number of blocks that depends only on the shape and the types. */
        const auto launch_bwd = [&](auto kernel, int threads, int groups, int most, size_t nbytes) {
            blocks = grid_size(ceil_div(a->x.rows, groups * MIN_STEPS), most);
            q.partial = (float *)meg_cuda_scratch(st, blocks * nsums * (size_t)ld * sizeof *q.partial);
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
    if (a->dw)
        meg_cuda_sum_partials(st, a->dw, a->db, a->grad, q.partial, a->x.rows ? (int)blocks : 0, n, ld, a->accumulate);
}
