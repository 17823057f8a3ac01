/*
 * rope.cu - rotary position embedding, alone or after the norm of a head.
 *
 * A group of threads processes a head.  Each thread has a chunk of the head, two vectors of columns, such that both
 * elements of a rotated pair are in the registers of one thread.  A group consists of a power of two of lanes of a
 * warp, or of all threads of a block if a head has more than 32 chunks.  A call processes at most 2^30 - 1 heads.
 */
#include "cuda/kernel.h"

enum {
    THREADS = 256, /* maximum number of threads per block, and of chunks per head: d is at most about 4096 */
    /*
     * maximum number of blocks of qk_norm_bwd, each of which has a sum for dw: 8 per multiprocessor of an H100 or H200,
     * of which 2 run at a time
     */
    BWD_BLOCKS = 8 * SMS
};

/* The columns of a thread: those of [a, a + VEC) before end_a, and those of [b, b + VEC) before end_b. */
struct chunk {
    int a, end_a, b, end_b;
    int angle;      /* index of the first of VEC angles, -1 if the columns are not rotated */
    bool is_vector; /* all columns are in the head and accessed in vectors */
};

/* Return the number of chunks of a head. */
static __host__ __device__ int num_chunks(const struct meg_qk_norm &q)
{
    return (int)((q.half + VEC - 1) / VEC + (q.d - 2 * q.half + 2 * VEC - 1) / (2 * VEC));
}

/* Return chunk i of a head; those at or after num_chunks are empty. */
static __device__ inline struct chunk chunk_of(const struct meg_qk_norm &q, int i, bool is_aligned)
{
    const int half = (int)q.half, d = (int)q.d, num_rotated = (half + VEC - 1) / VEC, c = i * VEC;
    struct chunk k;

    if (i >= num_rotated) {
        k.a = 2 * half + 2 * VEC * (i - num_rotated);
        k.b = k.a + VEC;
        k.end_a = k.end_b = d;
        k.angle = -1;
    } else if (q.is_interleaved) {
        k.a = 2 * c;
        k.b = k.a + VEC;
        k.end_a = k.end_b = 2 * half;
        k.angle = c;
    } else {
        k.a = c;
        k.b = half + c;
        k.end_a = half;
        k.end_b = 2 * half;
        k.angle = c;
    }
    k.is_vector = is_aligned && k.a + VEC <= k.end_a && k.b + VEC <= k.end_b;
    return k;
}

/* The values of a thread's columns, and the cosines and sines of their angles. */
struct columns {
    float a[VEC], b[VEC];
};
struct angles {
    float cos[VEC], sin[VEC];
};

/*
 * Call f(is_vector).  f is inlined twice, with the constants true and false.  Where the argument is true, `load` has no
 * branches, so that all loads of f precede the first use of a value.
 */
template <class F> static __device__ inline void specialize(bool is_vector, F f)
{
    if (is_vector)
        f(true);
    else
        f(false);
}

/* Load the columns of a chunk; those at or after end_a or end_b are 0. */
template <class P>
static __device__ inline void load_chunk(struct columns &x, P head, const struct chunk &k, bool is_vector)
{
    const int64_t a = k.a, b = k.b; /* int64_t as in `load`, so that the compiler can remove its check c + VEC <= n */

    load(x.a, head, a, is_vector ? a + VEC : k.end_a, is_vector);
    load(x.b, head, b, is_vector ? b + VEC : k.end_b, is_vector);
}

template <class P> static __device__ inline void store_chunk(P head, const struct columns &x, const struct chunk &k)
{
    const int64_t a = k.a, b = k.b;

    specialize(k.is_vector, [&](bool is_vector) {
        store(head, x.a, a, is_vector ? a + VEC : k.end_a, is_vector);
        store(head, x.b, b, is_vector ? b + VEC : k.end_b, is_vector);
    });
}

/* Load the angles of a chunk at a row's position.  A chunk that is not rotated has none. */
static __device__ inline void load_angles(struct angles &r, const struct meg_qk_norm &q, int64_t row,
                                          const struct chunk &k, bool is_vector)
{
    if (k.angle >= 0) {
        const int64_t at = q.position[row] * q.half, i = k.angle, end = is_vector ? i + VEC : q.half;

        load(r.cos, q.cos + at, i, end, is_vector);
        load(r.sin, q.sin + at, i, end, is_vector);
    }
}

static __device__ inline void rotate_pair(float &x, float &y, float cos, float sin)
{
    const float a = x, b = y;

    x = a * cos - b * sin;
    y = b * cos + a * sin;
}

/* Rotate the columns of a chunk by its angles; sign -1 rotates back.  Do nothing if it has no angles. */
static __device__ inline void rotate(struct columns &x, const struct angles &r, const struct meg_qk_norm &q,
                                     const struct chunk &k, float sign)
{
    if (k.angle < 0)
        return;
    if (q.is_interleaved) {
#pragma unroll
        for (int j = 0; j < VEC / 2; j++) {
            rotate_pair(x.a[2 * j], x.a[2 * j + 1], r.cos[j], sign * r.sin[j]);
            rotate_pair(x.b[2 * j], x.b[2 * j + 1], r.cos[VEC / 2 + j], sign * r.sin[VEC / 2 + j]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < VEC; j++)
            rotate_pair(x.a[j], x.b[j], r.cos[j], sign * r.sin[j]);
    }
}

/* Head k of group j in a row.  Heads are numbered by row, then group, then head. */
struct head {
    int row, j, k;
};

/* Return head number i. */
static __device__ inline struct head head_of(const struct meg_qk_norm &q, int i)
{
    const int heads = (int)q.heads, n = (int)q.g * heads, row = i / n, head = i % n;

    return { row, head / heads, head % heads };
}

/* Return a pointer to a head in a view, whose type is T or, if T is `general`, known only when the kernel runs. */
template <class T>
static __device__ inline auto address(const struct meg_heads &x, const struct meg_qk_norm &q, const struct head &h)
{
    const int b = (int)q.b;

    return pointer_to<T>(x.p, x.dtype, h.row / b * x.ld_s + h.row % b * x.ld_b + h.j * x.ld_g + h.k * x.ld_h);
}

/* ---- launches ---- */

/* The shape of a launch: one group of threads per head, or fewer groups that loop over the heads. */
struct head_grid {
    int n;     /* number of heads */
    int group; /* threads per head: a power of two up to 32, or all threads of a block, a multiple of 32 */
    unsigned blocks, threads;
};

/* Return the grid for the heads of q, with at most max_blocks blocks; it has no blocks if there are no heads. */
static struct head_grid grid_of(const struct meg_qk_norm &q, int64_t max_blocks)
{
    const int chunks = num_chunks(q);
    const int64_t n = q.s * q.b * q.g * q.heads;
    struct head_grid g = { (int)n, 1, 0, THREADS };

    MEG_ASSERT_LE(chunks, THREADS);
    MEG_ASSERT_LE(n, INT32_MAX / 2);
    while (g.group < chunks && g.group < WARP)
        g.group *= 2;
    if (g.group < chunks)
        g.threads = (unsigned)(g.group = (int)ceil_div(chunks, WARP) * WARP);
    if (g.n > 0)
        g.blocks = grid_size(ceil_div(g.n, g.threads / g.group), max_blocks);
    return g;
}

/* Return the first head of this block. */
static __device__ inline int first_head(const struct head_grid &g)
{
    return (int)blockIdx.x * ((int)blockDim.x / g.group);
}

/* Return whether the angles, and the columns that begin at `half` and 2 * half, may be accessed in vectors. */
static bool has_aligned_angles(const struct meg_qk_norm &q)
{
    return q.half % VEC == 0 && is_aligned(q.cos) && is_aligned(q.sin);
}

/* ---- rope ---- */

template <class T>
static __global__ void rope(struct meg_qk_norm q, struct head_grid g, struct meg_heads x, float sign, bool is_aligned)
{
    const struct chunk k = chunk_of(q, (int)threadIdx.x % g.group, is_aligned);
    const int i = first_head(g) + (int)threadIdx.x / g.group;

    if (i < g.n) {
        const struct head h = head_of(q, i);
        const auto p = address<T>(x, q, h);
        struct columns v;
        struct angles r;

        specialize(k.is_vector, [&](bool is_vector) {
            load_angles(r, q, h.row, k, is_vector);
            load_chunk(v, p, k, is_vector);
        });
        rotate(v, r, q, k, sign);
        store_chunk(p, v, k);
    }
}

void meg_cuda_rope(struct meg_stream *st, const struct meg_rope_args *a)
{
    const struct meg_qk_norm q = { a->s,   a->b,   a->g,       a->heads, 2 * a->half, 0.0f, a->half, a->is_interleaved,
                                   a->cos, a->sin, a->position };
    const struct head_grid grid = grid_of(q, INT32_MAX);

    if (grid.blocks && a->half)
        with_type(a->x.dtype, [&](auto t) {
            launch(st, rope<decltype(t)>, grid.blocks, grid.threads, 0, q, grid, a->x, a->sign,
                   has_aligned_heads(a->x) && has_aligned_angles(q));
        });
}

/* ---- QK-norm: RMSNorm of each head, then rotation ---- */

/* Return the sum of x over the threads of a group.  All threads of the block call this; `buf` is that of block_sum. */
static __device__ inline float group_sum(float x, int group, float *buf)
{
    if (group > WARP)
        return block_sum(x, buf);
    for (int i = group / 2; i > 0; i /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, i);
    return x;
}

template <class T>
static __global__ void __launch_bounds__(THREADS, is_general<T> ? 1 : 3)
    qk_norm_fwd(struct meg_qk_norm q, struct head_grid g, struct meg_heads y, float *rstd, struct meg_heads x,
                const void *w, bool is_aligned)
{
    SHARED(float, buf);
    const int lane = (int)threadIdx.x % g.group;
    const struct chunk k = chunk_of(q, lane, is_aligned);
    const int i = first_head(g) + (int)threadIdx.x / g.group;
    const struct head h = head_of(q, i);
    struct columns v = {}, wv = {};
    struct angles r;
    float sum = 0.0f, rs;

    if (i < g.n)
        specialize(k.is_vector, [&](bool is_vector) {
            load_angles(r, q, h.row, k, is_vector);
            load_chunk(wv, pointer_to<T>(w, y.dtype, 0), k, is_vector);
            load_chunk(v, address<T>(x, q, h), k, is_vector);
        });
#pragma unroll
    for (int j = 0; j < VEC; j++)
        sum += v.a[j] * v.a[j] + v.b[j] * v.b[j];
    rs = 1.0f / sqrtf(group_sum(sum, g.group, buf) / (float)q.d + q.eps);
    if (i >= g.n)
        return;
    if (lane == 0)
        rstd[i] = rs;
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        v.a[j] *= rs * wv.a[j];
        v.b[j] *= rs * wv.b[j];
    }
    rotate(v, r, q, k, 1.0f);
    store_chunk(address<T>(y, q, h), v, k);
}

void meg_cuda_qk_norm_fwd(struct meg_stream *st, const struct meg_qk_norm_fwd_args *a)
{
    const struct meg_qk_norm *q = a->q;
    const struct head_grid grid = grid_of(*q, INT32_MAX);
    const bool are_aligned =
        has_aligned_heads(a->y) && has_aligned_heads(a->x) && is_aligned(a->w) && (!q->half || has_aligned_angles(*q));

    if (!grid.blocks)
        return;
    with_common_type({ a->y.dtype, a->x.dtype }, [&](auto t) {
        launch(st, qk_norm_fwd<decltype(t)>, grid.blocks, grid.threads, THREADS / WARP * sizeof(float), *q, grid, a->y,
               a->rstd, a->x, a->w, are_aligned);
    });
}

/* Compute out [d], the sum of the columns of all groups of the block.  `buf` has one struct columns per thread. */
static __device__ inline void add_groups(float *out, const struct columns &own, const struct meg_qk_norm &q,
                                         const struct head_grid &g, bool is_aligned, float *buf)
{
    const int num_groups = (int)blockDim.x / g.group;

    __syncthreads(); /* buf may still be read by block_sum */
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        buf[(2 * threadIdx.x) * VEC + j] = own.a[j];
        buf[(2 * threadIdx.x + 1) * VEC + j] = own.b[j];
    }
    __syncthreads();
    for (int t = (int)threadIdx.x; t < 2 * VEC * g.group; t += (int)blockDim.x) {
        const struct chunk k = chunk_of(q, t / (2 * VEC), is_aligned);
        const bool is_a = t % (2 * VEC) < VEC;
        const int c = (is_a ? k.a : k.b) + t % VEC;
        float total = 0.0f;

        for (int j = 0; j < num_groups; j++)
            total += buf[2 * VEC * g.group * j + t];
        if (c < (is_a ? k.end_a : k.end_b))
            out[c] = total;
    }
}

/*
 * Compute dx, and row blockIdx.x of part [gridDim.x, d], the gradient of w over the heads of the block.  Let r be dy
 * rotated back, g = r * w and n = x * rstd.  Then dx = rstd * (g - n * mean(g * n)), and the gradient of w is r * n.
 */
template <class T>
static __global__ void __launch_bounds__(THREADS, is_general<T> ? 1 : 2)
    qk_norm_bwd(struct meg_qk_norm q, struct head_grid g, struct meg_heads dx, float *part, struct meg_heads dy,
                struct meg_heads x, const void *w, const float *rstd, bool is_aligned)
{
    SHARED(float, buf);
    const int group = (int)threadIdx.x / g.group, lane = (int)threadIdx.x % g.group;
    const int num_groups = (int)blockDim.x / g.group;
    const struct chunk k = chunk_of(q, lane, is_aligned);
    struct columns sum = {};

    for (int i0 = first_head(g); i0 < g.n; i0 += (int)gridDim.x * num_groups) {
        const int i = i0 + group;
        const struct head h = head_of(q, i);
        struct columns d = {}, v = {}, wv;
        struct angles r;
        float rs = 0.0f, mean = 0.0f;

        if (i < g.n) {
            rs = rstd[i];
            specialize(k.is_vector, [&](bool is_vector) {
                load_angles(r, q, h.row, k, is_vector);
                load_chunk(d, address<T>(dy, q, h), k, is_vector);
                load_chunk(v, address<T>(x, q, h), k, is_vector);
            });
            rotate(d, r, q, k, -1.0f);
        }
        specialize(k.is_vector, [&](bool is_vector) { load_chunk(wv, pointer_to<T>(w, dy.dtype, 0), k, is_vector); });
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            v.a[j] *= rs;
            v.b[j] *= rs;
            sum.a[j] += d.a[j] * v.a[j];
            sum.b[j] += d.b[j] * v.b[j];
            d.a[j] *= wv.a[j];
            d.b[j] *= wv.b[j];
            mean += d.a[j] * v.a[j] + d.b[j] * v.b[j];
        }
        mean = group_sum(mean, g.group, buf) / (float)q.d;
        if (i < g.n) {
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                d.a[j] = rs * (d.a[j] - v.a[j] * mean);
                d.b[j] = rs * (d.b[j] - v.b[j] * mean);
            }
            store_chunk(address<T>(dx, q, h), d, k);
        }
    }
    add_groups(part + blockIdx.x * q.d, sum, q, g, is_aligned, buf);
}

void meg_cuda_qk_norm_bwd(struct meg_stream *st, const struct meg_qk_norm_bwd_args *a)
{
    const struct meg_qk_norm *q = a->q;
    const struct head_grid grid = grid_of(*q, BWD_BLOCKS);
    const bool are_aligned = has_aligned_heads(a->dx) && has_aligned_heads(a->dy) && has_aligned_heads(a->x) &&
                             is_aligned(a->w) && (!q->half || has_aligned_angles(*q));
    float *const part = (float *)meg_cuda_scratch(st, (size_t)(grid.blocks * q->d) * sizeof *part);

    if (grid.blocks)
        with_common_type({ a->dx.dtype, a->dy.dtype, a->x.dtype }, [&](auto t) {
            launch(st, qk_norm_bwd<decltype(t)>, grid.blocks, grid.threads, grid.threads * sizeof(struct columns), *q,
                   grid, a->dx, part, a->dy, a->x, a->w, a->rstd, are_aligned);
        });
    if (a->dw)
        meg_cuda_sum_partials(st, a->dw, NULL, a->grad, part, (int)grid.blocks, q->d, q->d, a->accumulate);
}
