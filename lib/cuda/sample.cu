/*
 * sample.cu - sample the next token from each row of logits.  A block samples the token of one row, in several passes
 * over the logits, which are probably in the L2 cache.
 *
 * The weight of an entry is exp((logit - max) / temperature), in units of 2^-40 and rounded down.  Sums of these
 * integers do not depend on the order of the additions, so threads add them atomically.
 */
#include "cuda/kernel.h"

enum { THREADS = 1024, WARPS = THREADS / WARP, UNROLL = 4 };
enum { DIGIT_BITS = 8, NUM_DIGITS = 1 << DIGIT_BITS, KEY_DIGITS = 5 };

/* The 64-bit integer type of CUDA's atomicAdd. */
typedef unsigned long long u64;

/* The shared memory of a block. */
struct block_memory {
    /* in find_key, for each value of a digit except the largest: the sum of value(x) over the entries that have it */
    u64 of_digit[NUM_DIGITS];
    union {
        u64 of_warp[WARPS];
        double f64_of_warp[WARPS];
        float f32_of_warp[WARPS];
    };
    int id;
};

/* Call f(id, x) for each logit x of this thread in a row of n logits. */
template <class F> static __device__ inline void for_each_logit(const float *row, int n, F f)
{
    for (int first = (int)threadIdx.x; first < n; first += UNROLL * THREADS) {
        float x[UNROLL];

#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            x[i] = first + i * THREADS < n ? row[first + i * THREADS] : 0.0f;
#pragma unroll
        for (int i = 0; i < UNROLL; i++)
            if (first + i * THREADS < n)
                f(first + i * THREADS, x[i]);
    }
}

/* Return an integer for x such that the integers have the order of the numbers; it is the same for 0 and -0. */
static __device__ inline uint32_t ordered_bits(float x)
{
    uint32_t bits;

    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

/* Return the number whose ordered_bits are `ordered`. */
static __device__ inline float from_ordered_bits(uint32_t ordered)
{
    const uint32_t bits = ordered >> 31 ? ordered & ~(1u << 31) : ~ordered;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Entries [0, n) of a row, from which a token is sampled at a temperature. */
struct entries {
    const float *row;
    int n;
    float max;
    double temperature;

    __device__ u64 weight(float x) const
    {
        return (u64)(exp(((double)x - (double)max) / temperature) * 0x1p40);
    }
    /*
     * Return a number of KEY_DIGITS digits, which is smaller for a larger logit, and equal for equal logits only.  The
     * first digit is proportional to the distance from the maximum, so that many entries rarely have the same digit.
     */
    __device__ u64 key(float x) const
    {
        const float digit = fminf((max - x) * fminf(8.0f / (float)temperature, 1e30f), NUM_DIGITS - 1.0f);

        return (u64)(uint32_t)digit << 32 | (uint32_t)~ordered_bits(x);
    }
    /* Return the logit that has a key. */
    static __device__ float logit(u64 key)
    {
        return from_ordered_bits(~(uint32_t)key);
    }
};

/* Return the sum of value(x) over all entries, in every thread. */
template <class F> static __device__ u64 sum_of(const entries &e, struct block_memory *memory, F value)
{
    u64 sum = 0;

    for_each_logit(e.row, e.n, [&](int, float x) { sum += value(x); });
    return block_sum(sum, memory->of_warp);
}

/* The key of an entry, and the sum of the values of all entries with smaller keys. */
struct found_key {
    u64 key, before;
};

/*
 * Find the key at which the sum of value(x), over the entries in ascending order of keys, reaches target, which is at
 * least 1 and at most the sum of all.  A pass over the entries finds one digit of the key.  The sum for the largest
 * value of a digit is not computed, because most of the vocabulary may have it: if the sums for all smaller values do
 * not reach target, the digit has the largest value.
 */
template <class F>
static __device__ found_key find_key(const entries &e, u64 target, struct block_memory *memory, F value)
{
    enum { PER_LANE = NUM_DIGITS / WARP };
    const int lane = (int)threadIdx.x % WARP;
    found_key p = { 0, 0 };

    for (int shift = DIGIT_BITS * (KEY_DIGITS - 1); shift >= 0; shift -= DIGIT_BITS) {
        u64 sum = 0, before, own;
        int digit = lane * PER_LANE, owner;

        __syncthreads(); /* the previous pass has read of_digit */
        if (threadIdx.x < NUM_DIGITS)
            memory->of_digit[threadIdx.x] = 0;
        __syncthreads();
        for_each_logit(e.row, e.n, [&](int, float x) {
            const u64 key = e.key(x);
            const int d = (int)(key >> shift & (NUM_DIGITS - 1));

            if (key >> shift >> DIGIT_BITS == p.key && d < NUM_DIGITS - 1)
                atomicAdd(&memory->of_digit[d], value(x));
        });
        __syncthreads();
        for (int i = 0; i < PER_LANE; i++)
            sum += memory->of_digit[digit + i];
        own = sum;
        sum = p.before + warp_prefix_sum(sum);
        owner = min(__builtin_popcount(__ballot_sync(ALL_LANES, sum < target)), WARP - 1);
        before = sum - own;
        while (digit < lane * PER_LANE + PER_LANE - 1 && before + memory->of_digit[digit] < target)
            before += memory->of_digit[digit++];
        p.before = __shfl_sync(ALL_LANES, before, owner);
        p.key = p.key << DIGIT_BITS | (u64)__shfl_sync(ALL_LANES, digit, owner);
    }
    return p;
}

/*
 * Return the first id at which the sum of value(x), in ascending order of ids, reaches target, which is at least 1 and
 * at most the sum of all.  Each warp sums consecutive ids.
 */
template <class F> static __device__ int find_id(const entries &e, u64 target, struct block_memory *memory, F value)
{
    static_assert((int)WARPS == (int)WARP, "a lane reads the sum of each warp");
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int length = (e.n + THREADS - 1) / THREADS * WARP, begin = warp * length, end = min(begin + length, e.n);
    u64 sum = 0, before;

#pragma unroll 4
    for (int id = begin + lane; id < end; id += WARP)
        sum += value(e.row[id]);
    sum = warp_sum(sum);
    __syncthreads(); /* of_warp may still be read */
    if (lane == 0)
        memory->of_warp[warp] = sum;
    __syncthreads();
    before = warp_prefix_sum(memory->of_warp[lane]);
    if (__builtin_popcount(__ballot_sync(ALL_LANES, before < target)) == warp) {
        before = __shfl_sync(ALL_LANES, before, warp) - sum;
        for (int first = begin; first < end; first += WARP) {
            const int id = first + lane;
            const u64 up_to = before + warp_prefix_sum(id < end ? value(e.row[id]) : 0);
            const int found = __builtin_popcount(__ballot_sync(ALL_LANES, up_to < target));

            if (found < WARP) {
                if (lane == found)
                    memory->id = id;
                break;
            }
            before = __shfl_sync(ALL_LANES, up_to, WARP - 1);
        }
    }
    __syncthreads();
    return memory->id;
}

/* Return the cumulative weight at which an entry is sampled: fraction * total, rounded up, in [1, total]. */
static __device__ inline u64 target_of(double fraction, u64 total)
{
    const u64 target = (u64)ceil(fraction * (double)total);

    return target < 1 ? 1 : target > total ? total : target;
}

/* Return the sum of the weights of the entries that the filter keeps. */
static __device__ u64 kept_weight(const entries &e, const struct meg_sampling_args &args, struct block_memory *memory)
{
    const auto weight = [&](float x) { return e.weight(x); };
    u64 total, limit, w;
    found_key last;

    if (args.top_k > 0) {
        last = find_key(e, (u64)min(args.top_k, (int64_t)e.n), memory, [](float) { return (u64)1; });
        return sum_of(e, memory, [&](float x) { return e.key(x) <= last.key ? e.weight(x) : 0; });
    }
    total = sum_of(e, memory, weight);
    limit = min((u64)(args.top_p * (double)total) + 1, total);
    last = find_key(e, limit, memory, weight);
    w = e.weight(e.logit(last.key));
    return last.before + ((limit - last.before - 1) / w + 1) * w;
}

/* Return the token that is sampled from entries, of which at least one is finite and none is NaN or +Inf. */
static __device__ int sample_id(const entries &e, const struct meg_sampling_args &args, struct block_memory *memory)
{
    const auto weight = [&](float x) { return e.weight(x); };
    u64 target, index;
    found_key p;

    if (args.top_k == 0 && !(args.top_p > 0 && args.top_p < 1))
        return find_id(e, target_of(args.u, sum_of(e, memory, weight)), memory, weight);
    target = target_of(args.u, kept_weight(e, args, memory));
    p = find_key(e, target, memory, weight);
    index = (target - p.before - 1) / e.weight(e.logit(p.key));
    return find_id(e, index + 1, memory, [&](float x) { return (u64)(e.key(x) == p.key); });
}

static __global__ void __launch_bounds__(THREADS)
    sample(struct meg_sampled_token *token, struct meg_mat logits, int unpadded_vocab,
           const struct meg_sampling_args *args, bool has_logprobs)
{
    SHARED(struct block_memory, memory);
    const float *row = (const float *)logits.p + blockIdx.x * logits.ld;
    const struct meg_sampling_args a = args[blockIdx.x];
    u64 best = 0, nbad = 0; /* best: the ordered bits of the largest logit, then its id with all bits inverted */
    float most = -INFINITY;
    int id;

    for_each_logit(row, (int)logits.cols, [&](int i, float x) {
        nbad += !(x < INFINITY);
        most = fmaxf(most, x);
        if (i < unpadded_vocab)
            best = max(best, (u64)ordered_bits(x) << 32 | ~(uint32_t)i);
    });
    best = block_max(best, memory->of_warp);
    nbad = block_sum(nbad, memory->of_warp);
    most = block_max(most, memory->f32_of_warp);
    id = (int)~(uint32_t)best;
    if (nbad > 0 || row[id] == -INFINITY) {
        if (threadIdx.x == 0)
            token[blockIdx.x] = { -1, NAN };
        return;
    }
    if (a.temperature > 0)
        id = sample_id({ row, unpadded_vocab, row[id], a.temperature }, a, memory);

    double sum = 0;

    if (has_logprobs) {
        for_each_logit(row, (int)logits.cols, [&](int, float x) { sum += exp((double)x - (double)most); });
        sum = block_sum(sum, memory->f64_of_warp);
    }
    if (threadIdx.x == 0)
        token[blockIdx.x] = { id, has_logprobs ? (double)row[id] - ((double)most + log(sum)) : NAN };
}

void meg_cuda_sample(struct meg_stream *st, const struct meg_sample_args *a)
{
    if (a->logits.rows > 0)
        launch(st, sample, (unsigned)a->logits.rows, THREADS, sizeof(struct block_memory), a->token, a->logits,
               (int)a->unpadded_vocab, a->args, a->has_logprobs);
}

size_t meg_cuda_sample_nbytes(int64_t, int64_t)
{
    return 0;
}
