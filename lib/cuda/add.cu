/* add.cu - residual addition with bias and dropout.  norm.cu has the addition that is fused with a norm. */
#include "cuda/add.h"
#include "cuda/elementwise.h"

template <class S, class B> static __global__ void __launch_bounds__(256) add_fwd(struct add a)
{
    const int64_t c = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * VEC;

    for (int64_t r = blockIdx.y; r < a.z.rows && c < a.z.cols; r += gridDim.y) {
        vec<S> x;
        vec<B> y;
        float z[VEC];

        add_fetch(x, y, a, r, c);
        add_vector(z, a, x, y, drop_row_of(a.drop, r), r, c);
    }
}

void meg_cuda_add_fwd(struct meg_stream *st, const struct meg_add_fwd_args *a)
{
    const struct add add = add_begin(a->z, a->x, a->y, a->bias, a->drop);

    with_types_and_drop({ a->z, a->x }, { a->y, add.bias }, add.drop, [&](auto s, auto b) {
        launch_elementwise(st, add_fwd<decltype(s), decltype(b)>, a->z.rows, a->z.cols, add);
    });
}

/* ---- backward ---- */

/*
 * A block computes TILE_COLS columns of dy, and the sums of these columns over its rows.  Its rows are every nparts-th
 * group of WARPS rows, and each warp computes one row of a group.  A grid has at most MOST_BLOCKS blocks, unless dy has
 * more tiles of TILE_COLS columns.  A thread fetches VEC columns of BATCH rows before it uses the first.  drop_row_of
 * requires a division, so each lane calls it for only one of these rows, and receives the results for the other rows
 * from other lanes.
 */
enum { THREADS = 256, WARPS = THREADS / WARP, TILE_COLS = WARP * VEC, BATCH = 4, MOST_BLOCKS = 16 * SMS };

template <class S, class B>
static __global__ void __launch_bounds__(THREADS, sizeof(vec<S>) > 16 ? 2 : 3)
    add_bwd(struct meg_mat dy, struct meg_mat dz, struct drop_mask drop, float *partial, unsigned nparts)
{
    SHARED(float, buf);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const unsigned part = blockIdx.x % nparts, tile = blockIdx.x / nparts;
    const int64_t rows = dz.rows, c0 = tile * (int64_t)TILE_COLS, c = c0 + lane * VEC, step = nparts * (int64_t)WARPS;
    float sum[VEC] = {};

    for (int64_t r0 = part * (int64_t)WARPS + warp; r0 < rows; r0 += BATCH * step) {
        const int64_t r_own = r0 + lane % BATCH * step;
        struct drop_row own;
        vec<S> v[BATCH];

#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (r0 + i * step < rows && c < dz.cols)
                fetch(v[i], dz, r0 + i * step, c);
        own = drop_row_of(drop, r_own < rows ? r_own : r0);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int64_t r = r0 + i * step;
            const struct drop_row row = { __shfl_sync(ALL_LANES, own.position, i),
                                          __shfl_sync(ALL_LANES, own.sample, i) };
            float g[VEC];

            if (r < rows && c < dz.cols) {
                convert(g, v[i]);
                drop_columns<!is_general<B>>(g, drop, row, c);
                put<B>(dy, r, c, g);
#pragma unroll
                for (int j = 0; j < VEC; j++)
                    sum[j] += g[j];
            }
        }
    }
    if (!partial)
        return;
    store(buf + warp * TILE_COLS, sum, lane * VEC, lane * VEC + VEC, true);
    __syncthreads();
    for (int k = (int)threadIdx.x; k < TILE_COLS; k += THREADS) {
        float s = 0.0f;

        for (int i = 0; i < WARPS; i++)
            s += buf[i * TILE_COLS + k];
        partial[part * (int64_t)(gridDim.x / nparts) * TILE_COLS + c0 + k] = s;
    }
}

void meg_cuda_add_bwd(struct meg_stream *st, const struct meg_add_bwd_args *a)
{
    const struct drop_mask drop = drop_begin(a->drop);
    const int64_t tiles = ceil_div(a->dz.cols, TILE_COLS);
    float *partial = NULL;
    unsigned nparts;

    if (!drop.threshold && a->dy.p == a->dz.p) {
        if (a->dbias)
            meg_cuda_column_sums(st, a->dbias, a->grad, a->dy, a->accumulate);
        return;
    }
    if (!tiles)
        return;
    nparts = grid_size(ceil_div(a->dz.rows, 2 * BATCH * WARPS), tiles < MOST_BLOCKS ? MOST_BLOCKS / tiles : 1);
    if (a->dbias)
        partial = (float *)meg_cuda_scratch(st, nparts * (size_t)tiles * TILE_COLS * sizeof *partial);
    with_types_and_drop({ a->dz }, { a->dy }, drop, [&](auto s, auto b) {
        launch(st, add_bwd<decltype(s), decltype(b)>, (unsigned)tiles * nparts, THREADS,
               WARPS * TILE_COLS * sizeof(float), a->dy, a->dz, drop, partial, nparts);
    });
    if (a->dbias)
        meg_cuda_sum_partials(st, a->dbias, NULL, a->grad, partial, (int)nparts, a->dz.cols, tiles * TILE_COLS,
                              a->accumulate);
}
