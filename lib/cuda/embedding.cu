/*
 * embedding.cu - word and position embeddings.  To compute a gradient, a stable radix sort with three kernels per digit
 * sorts tokens by their rows of the table.  Then the rows of dx are added in the order of the tokens, so that gradients
 * are deterministic.  Tokens and rows of a table are fewer than 2^31.
 */
#include "cuda/dropout.h"
#include "cuda/elementwise.h"

template <class X, class W>
static __global__ void embed_fwd(struct meg_mat x, const int32_t *token, struct meg_mat word, int64_t v0,
                                 bool is_aligned)
{
    for_each_vector(x.rows, x.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        const int64_t v = token[r] - v0;
        float w[VEC] = {};

        if (v >= 0 && v < word.rows)
            load(w, (const W *)word.p + v * word.ld, c, end, is_vector);
        store((X *)x.p + r * x.ld, w, c, end, is_vector);
    });
}

void meg_cuda_embed_fwd(struct meg_stream *st, const struct meg_embed_fwd_args *a)
{
    const bool is_aligned = has_aligned_rows(a->x) && has_aligned_rows(a->word);

    with_type(a->x.dtype, [&](auto tx) {
        with_type(a->word.dtype, [&](auto tw) {
            launch_elementwise(st, embed_fwd<decltype(tx), decltype(tw)>, a->x.rows, a->x.cols, a->x, a->token, a->word,
                               a->v0, is_aligned);
        });
    });
}

template <class X, class P>
static __global__ void position_fwd(struct meg_mat x, const int32_t *position, struct meg_mat pos,
                                    struct drop_mask drop, bool is_aligned)
{
    for_each_vector(x.rows, x.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        X *row = (X *)x.p + r * x.ld;
        float v[VEC], p[VEC] = {};

        load(v, row, c, end, is_vector);
        if (pos.p) {
            load(p, (const P *)pos.p + position[r] * pos.ld, c, end, is_vector);
#pragma unroll
            for (int j = 0; j < VEC; j++)
                v[j] += p[j];
        }
        drop_columns(v, drop, r, c);
        store(row, v, c, end, is_vector);
    });
}

void meg_cuda_position_fwd(struct meg_stream *st, const struct meg_position_fwd_args *a)
{
    const struct drop_mask drop = drop_begin(a->drop);
    const bool is_aligned = has_aligned_rows(a->x) && has_aligned_rows(a->pos);

    if (!a->pos.p && !drop.threshold)
        return;
    with_type(a->x.dtype, [&](auto tx) {
        with_type(a->pos.p ? a->pos.dtype : a->x.dtype, [&](auto tp) {
            launch_elementwise(st, position_fwd<decltype(tx), decltype(tp)>, a->x.rows, a->x.cols, a->x, a->position,
                               a->pos, drop, is_aligned);
        });
    });
}

/* ---- sort tokens ---- */

enum { THREADS = 256, WARPS = THREADS / WARP };
enum { TILE = 2048, WARP_TILE = TILE / WARPS }; /* number of tokens that a block and a warp sort */
enum { MAX_BITS = 9 };                          /* maximum number of bits of a digit of the radix sort */

/* The tokens of a table of `rows` rows: row index[i] - v0 belongs to token i. */
struct tokens {
    const int32_t *index;
    int64_t n, v0, rows;
};

/* Return the row of the table that belongs to token i, or t.rows if the table has no such row. */
static __device__ inline int64_t row_of(const tokens &t, int64_t i)
{
    const int64_t row = t.index[i] - t.v0;

    return row >= 0 && row < t.rows ? row : t.rows;
}

/* One pass of the radix sort: sort by bits [shift, shift + bits) of the rows. */
struct radix_pass {
    const int32_t *in; /* [n] tokens in the order of the previous pass; NULL: 0, 1, ... */
    int32_t *out;      /* [n] tokens in the new order */
    int32_t *count;    /* [2^bits, tiles] number of tokens of a tile with a digit, then position of the first */
    int shift, bits;
};

/*
 * A token, its digit, and the lanes of the warp whose tokens have the same digit; lanes whose position is not below n
 * have no token.
 */
struct digit {
    int32_t token;
    int value;
    unsigned lanes;
};

/* Return the digit of the token at position p.  All lanes of a warp call this function. */
static __device__ inline digit digit_at(const tokens &t, const radix_pass &pass, int64_t p)
{
    digit d = { 0, 0, __ballot_sync(ALL_LANES, p < t.n) };

    if (p < t.n) {
        d.token = pass.in ? pass.in[p] : (int32_t)p;
        d.value = (int)(row_of(t, d.token) >> pass.shift & ((1 << pass.bits) - 1));
    }
    for (int i = 0; i < pass.bits; i++) {
        const bool is_set = d.value >> i & 1;
        const unsigned set = __ballot_sync(ALL_LANES, is_set);

        d.lanes &= is_set ? set : ~set;
    }
    return d;
}

/* Return the number of lanes below this one in a mask. */
static __device__ inline int num_below(unsigned lanes)
{
    return __builtin_popcount(lanes & ((1u << threadIdx.x % WARP) - 1));
}

/* Return the position of the first token of this warp in tile blockIdx.x. */
static __device__ inline int64_t first_of_warp()
{
    return blockIdx.x * (int64_t)TILE + threadIdx.x / WARP * WARP_TILE;
}

/* Set count [WARPS, 2^bits], in shared memory, to the number of tokens of each warp of a tile for each digit. */
static __device__ void count_of_warps(const tokens &t, const radix_pass &pass, int32_t *count)
{
    int32_t *of_warp = count + (threadIdx.x / WARP << pass.bits);

    for (int i = (int)threadIdx.x; i < WARPS << pass.bits; i += THREADS)
        count[i] = 0;
    __syncthreads();
    for (int i = 0; i < WARP_TILE; i += WARP) {
        const int64_t p = first_of_warp() + i + threadIdx.x % WARP;
        const digit d = digit_at(t, pass, p);

        if (p < t.n && num_below(d.lanes) == 0)
            of_warp[d.value] += __builtin_popcount(d.lanes);
        __syncwarp();
    }
    __syncthreads();
}

/* Compute pass.count: the number of tokens of each tile for each digit. */
static __global__ void count_digits(struct tokens t, struct radix_pass pass)
{
    SHARED(int32_t, count);

    count_of_warps(t, pass, count);
    for (int value = (int)threadIdx.x; value < 1 << pass.bits; value += THREADS) {
        int32_t sum = 0;

        for (int w = 0; w < WARPS; w++)
            sum += count[(w << pass.bits) + value];
        pass.count[value * (int64_t)gridDim.x + blockIdx.x] = sum;
    }
}

enum { SCAN_THREADS = 1024 };

/* Replace x [n] by its exclusive prefix sums.  The grid has one block. */
static __global__ void scan_counts(int32_t *x, int64_t n)
{
    SHARED(int32_t, of_warp);
    int32_t base = 0;

    for (int64_t first = 0; first < n; first += SCAN_THREADS * VEC) {
        const int64_t i = first + threadIdx.x * (int64_t)VEC;
        int32_t v[VEC], own = 0, sum;

#pragma unroll
        for (int j = 0; j < VEC; j++) {
            v[j] = i + j < n ? x[i + j] : 0;
            own += v[j];
        }
        sum = warp_prefix_sum(own);
        if (threadIdx.x % WARP == WARP - 1)
            of_warp[threadIdx.x / WARP] = sum;
        __syncthreads();
        sum += base - own;
        for (int w = 0; w < SCAN_THREADS / WARP; w++) {
            sum += w < (int)threadIdx.x / WARP ? of_warp[w] : 0;
            base += of_warp[w];
        }
        __syncthreads(); /* the next iteration writes of_warp */
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            if (i + j < n)
                x[i + j] = sum;
            sum += v[j];
        }
    }
}

/* Write the tokens to their new positions; pass.count contains prefix sums (scan_counts). */
static __global__ void move_tokens(struct tokens t, struct radix_pass pass)
{
    SHARED(int32_t, next); /* [WARPS, 2^bits] new position of each warp's next token with each digit */
    int32_t *of_warp = next + (threadIdx.x / WARP << pass.bits);

    count_of_warps(t, pass, next);
    for (int value = (int)threadIdx.x; value < 1 << pass.bits; value += THREADS) {
        int32_t position = pass.count[value * (int64_t)gridDim.x + blockIdx.x];

        for (int w = 0; w < WARPS; w++) {
            const int32_t count = next[(w << pass.bits) + value];

            next[(w << pass.bits) + value] = position;
            position += count;
        }
    }
    __syncthreads();
    for (int i = 0; i < WARP_TILE; i += WARP) {
        const int64_t p = first_of_warp() + i + threadIdx.x % WARP;
        const digit d = digit_at(t, pass, p);
        const int below = num_below(d.lanes);

        if (p < t.n)
            pass.out[of_warp[d.value] + below] = d.token;
        __syncwarp();
        if (p < t.n && below == 0)
            of_warp[d.value] += __builtin_popcount(d.lanes);
        __syncwarp();
    }
}

/* ---- add rows of dx ---- */

/*
 * The list of a row contains the tokens to which the row belongs.  It is processed in chunks of at most CHUNK tokens.
 * The row's gradient is the sum of the rows of dx of its tokens, in order, if the list is one chunk, else the sum of
 * the chunks' sums, in order.  So the order of additions depends only on this list.
 */
enum { CHUNK = 128 };
enum { UNROLL = 4 }; /* rows of dx that a thread loads at a time */
enum { WINDOW = 8 }; /* a warp adds the chunks that begin at WINDOW consecutive positions */

/* The sorted tokens: row r has those at positions [begin[r], end[r]) of order. */
struct lists {
    struct tokens t;
    const int32_t *order; /* [n] */
    int32_t *begin, *end; /* [rows] */
};

/* Set begin and end of rows that have tokens. */
static __global__ void find_lists(struct lists l)
{
    for (int64_t p = blockIdx.x * (int64_t)THREADS + threadIdx.x; p < l.t.n; p += gridDim.x * (int64_t)THREADS) {
        const int64_t r = row_of(l.t, l.order[p]);

        if (r == l.t.rows)
            return;
        if (p == 0 || row_of(l.t, l.order[p - 1]) != r)
            l.begin[r] = (int32_t)p;
        if (p == l.t.n - 1 || row_of(l.t, l.order[p + 1]) != r)
            l.end[r] = (int32_t)(p + 1);
    }
}

/* Set the gradients of rows without tokens to 0. */
template <class G> static __global__ void zero_other_rows(struct meg_mat table, struct lists l, bool is_aligned)
{
    for_each_vector(table.rows, table.cols, is_aligned, [&](int64_t r, int64_t c, int64_t end, bool is_vector) {
        const float zero[VEC] = {};

        if (l.begin[r] == l.end[r])
            store((G *)table.p + r * table.ld, zero, c, end, is_vector);
    });
}

/*
 * Return the index of the partial sum of the chunk that begins at position p, in a list of several chunks.  At most two
 * such chunks begin at positions with the same p / CHUNK: the last one of a list, and the first one of a later list.
 */
static __device__ inline int64_t partial_index(int64_t p, bool is_first)
{
    return p / CHUNK * 2 + is_first;
}

/* Add columns [c, c + VEC) of rows order[0..n) of dx to sum; the arguments end and is_vector are those of `load`. */
template <class X>
static __device__ inline void add_chunk(float (&sum)[VEC], struct meg_mat dx, const int32_t *order, int n, int64_t c,
                                        int64_t end, bool is_vector)
{
    for (int i = 0; i < n; i += UNROLL) {
        float x[UNROLL][VEC];

#pragma unroll
        for (int k = 0; k < UNROLL; k++) /* load the last row again: a branch would delay the next load */
            load(x[k], (const X *)dx.p + order[min(i + k, n - 1)] * dx.ld, c, end, is_vector);
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
#pragma unroll
            for (int j = 0; j < VEC; j++)
                sum[j] = i + k < n ? sum[j] + x[k][j] : sum[j];
    }
}

/*
 * Compute the gradients of rows whose list is one chunk, and write the sums of the chunks of longer lists to partial
 * [..,ld] f32.
 */
template <class G, class X>
static __global__ void add_chunks(struct meg_mat table, struct meg_mat dx, struct lists l, float *partial, int64_t ld,
                                  bool accumulate, bool is_aligned)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int64_t c = (blockIdx.x * (int64_t)WARP + lane) * VEC;

    for (int64_t first = (blockIdx.y * WARPS + warp) * (int64_t)WINDOW; first < l.t.n;
         first += gridDim.y * (int64_t)WARPS * WINDOW) {
        const int64_t p = first + lane, r = lane < WINDOW && p < l.t.n ? row_of(l.t, l.order[p]) : l.t.rows;
        int begin = 0, length = 0; /* of the list of row r */
        int n = 0;                 /* tokens of the chunk that begins at position p */

        if (r < l.t.rows) {
            begin = l.begin[r];
            length = l.end[r] - begin;
            if ((p - begin) % CHUNK == 0)
                n = min(CHUNK, begin + length - (int)p);
        }
        for (int i = 0; i < WINDOW; i++) {
            const int64_t row = __shfl_sync(ALL_LANES, r, i), at = first + i;
            const bool is_first = __shfl_sync(ALL_LANES, begin, i) == at;
            const bool is_complete = __shfl_sync(ALL_LANES, length, i) <= CHUNK;
            const int chunk = __shfl_sync(ALL_LANES, n, i);
            const auto add = [&](int64_t end, bool is_vector) {
                G *to = (G *)table.p + row * table.ld;
                float sum[VEC] = {};

                if (is_complete && accumulate)
                    load(sum, to, c, end, is_vector);
                add_chunk<X>(sum, dx, l.order + at, chunk, c, end, is_vector);
                if (is_complete)
                    store(to, sum, c, end, is_vector);
                else
                    store(partial + partial_index(at, is_first) * ld, sum, c, c + VEC, true);
            };

            if (chunk && is_aligned && c + VEC <= dx.cols)
                add(c + VEC, true);
            else if (chunk && c < dx.cols)
                add(dx.cols, false);
        }
    }
}

/*
 * Compute the gradients of rows whose lists have several chunks, from the sums of the chunks.  For CHUNK consecutive
 * positions at a time, a block finds such a list that begins there.  There is at most one, because it has more than
 * CHUNK tokens.
 */
template <class G>
static __global__ void add_partials(struct meg_mat table, struct lists l, const float *partial, int64_t ld,
                                    bool accumulate)
{
    SHARED(int32_t, found); /* the row of the list, or -1 */
    const int64_t c = blockIdx.x * (int64_t)THREADS + threadIdx.x;

    for (int64_t first = blockIdx.y * (int64_t)CHUNK; first < l.t.n; first += gridDim.y * (int64_t)CHUNK) {
        const int64_t p = first + threadIdx.x;

        __syncthreads();
        if (threadIdx.x == 0)
            *found = -1;
        __syncthreads();
        if (threadIdx.x < CHUNK && p < l.t.n) {
            const int64_t r = row_of(l.t, l.order[p]);

            if (r < l.t.rows && l.begin[r] == p && l.end[r] - p > CHUNK)
                *found = (int32_t)r;
        }
        __syncthreads();
        if (*found >= 0 && c < table.cols) {
            G *to = (G *)table.p + *found * table.ld + c;
            const int64_t begin = l.begin[*found], end = l.end[*found];
            float sum = accumulate ? to_float(*to) : 0.0f;

#pragma unroll 8
            for (int64_t at = begin; at < end; at += CHUNK)
                sum += partial[partial_index(at, at == begin) * ld + c];
            *to = from_float<G>(sum);
        }
    }
}

/*
 * Sort the tokens of l by row, in npasses passes over digits of `bits` bits, and set l->order to the result, which is
 * in `order`.  order [2,n] and count [2^bits,tiles] are scratch memory.
 */
static void sort_tokens(struct meg_stream *st, struct lists *l, int32_t *order, int32_t *count, int npasses, int bits)
{
    const unsigned ntiles = (unsigned)ceil_div(l->t.n, TILE);

    for (int i = 0; i < npasses; i++) {
        const struct radix_pass pass = { l->order, order + i % 2 * l->t.n, count, i * bits, bits };
        const size_t nbytes = sizeof *count * WARPS << bits;

        launch(st, count_digits, ntiles, THREADS, nbytes, l->t, pass);
        launch(st, scan_counts, 1, SCAN_THREADS, SCAN_THREADS / WARP * sizeof *count, count, (int64_t)ntiles << bits);
        launch(st, move_tokens, ntiles, THREADS, nbytes, l->t, pass);
        l->order = pass.out;
    }
}

/*
 * Add each row i of dx to row index[i] - v0 of table, if the table has this row.  Unless `accumulate` is set, ignore
 * the old contents of the table; rows without tokens become 0.
 */
static void scatter_add(struct meg_stream *st, struct meg_mat table, int64_t v0, struct meg_mat dx,
                        const int32_t *index, bool accumulate)
{
    enum { MAX_GRID_Y = IS_EMULATED ? 4 : 65535 }; /* fewer in the emulation, so that blocks loop */
    const bool is_aligned = has_aligned_rows(table) && has_aligned_rows(dx);
    const int64_t n = dx.rows, rows = table.rows, ld = ceil_div(dx.cols, VEC) * VEC;
    const int64_t npartials = n > CHUNK ? ceil_div(n, CHUNK) * 2 : 0;
    int row_bits = 1, npasses, bits;

    if (rows == 0 || table.cols == 0)
        return;
    MEG_ASSERT_LT(n, INT32_MAX);
    MEG_ASSERT_LT(rows, INT32_MAX);
    while (rows >> row_bits)
        row_bits++;
    npasses = (int)ceil_div(row_bits, MAX_BITS);
    bits = (int)ceil_div(row_bits, npasses);

    const int64_t ncounts = ceil_div(n, TILE) << bits;
    float *partial =
        (float *)meg_cuda_scratch(st, sizeof(float) * (size_t)(npartials * ld + 2 * rows + 2 * n + ncounts));
    int32_t *begin = (int32_t *)(partial + npartials * ld), *end = begin + rows, *order = end + rows;
    struct lists l = { { index, n, v0, rows }, NULL, begin, end };

    CUDA(cudaMemsetAsync(begin, 0, sizeof *begin * 2 * (size_t)rows, meg_cuda_stream(st)));
    if (n > 0) {
        sort_tokens(st, &l, order, order + 2 * n, npasses, bits);
        launch(st, find_lists, grid_size(ceil_div(n, THREADS), INT32_MAX), THREADS, 0, l);
    }
    with_type(table.dtype, [&](auto tg) {
        using G = decltype(tg);

        if (!accumulate)
            launch_elementwise(st, zero_other_rows<G>, rows, table.cols, table, l, is_aligned);
        if (n == 0)
            return;
        with_type(dx.dtype, [&](auto tx) {
            launch(st, add_chunks<G, decltype(tx)>,
                   dim3((unsigned)ceil_div(ld, WARP * VEC), grid_size(ceil_div(n, WARPS * WINDOW), MAX_GRID_Y)),
                   THREADS, 0, table, dx, l, partial, ld, accumulate, is_aligned);
        });
        if (npartials)
            launch(st, add_partials<G>,
                   dim3((unsigned)ceil_div(ld, THREADS), grid_size(ceil_div(n, CHUNK), MAX_GRID_Y)), THREADS,
                   sizeof(int32_t), table, l, partial, ld, accumulate);
    });
}

void meg_cuda_embed_bwd(struct meg_stream *st, const struct meg_embed_bwd_args *a)
{
    scatter_add(st, a->dword, a->v0, a->dx, a->token, a->accumulate);
}

void meg_cuda_position_bwd(struct meg_stream *st, const struct meg_position_bwd_args *a)
{
    const struct meg_position_fwd_args drop = { a->dx, NULL, {}, a->drop };

    meg_cuda_position_fwd(st, &drop);
    if (a->dpos.p)
        scatter_add(st, a->dpos, 0, a->dx, a->position, a->accumulate);
}
