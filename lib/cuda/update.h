/*
 * update.h - the kernel of optimizer steps: load the elements of each parameter, apply the rule of the optimizer, round
 * and store.
 *
 * A rule is a class with the type `conf` of its constants, a constructor from these constants, a range and the
 * hyper-parameters of the step, and a function `apply` that updates one element of w and of both states in f32.
 */
#pragma once
#include "cuda/kernel.h"

/*
 * Blocks process chunks of UPDATE_CHUNK elements, at multiples of UPDATE_CHUNK in the arrays.  With one vector of each
 * array in flight per thread, UPDATE_BLOCKS blocks per multiprocessor hide the latency of memory.
 */
enum { UPDATE_THREADS = 256, UPDATE_BLOCKS = 4, UPDATE_CHUNK = UPDATE_THREADS * VEC };

/* The element type of a missing state: SGD has no second moment. */
struct absent {
};

/*
 * The parameters of the random numbers of consecutive elements: the key (for array 0), the number of the update, and
 * the index of the first element in the unsharded parameter.
 */
struct update_random {
    uint32_t seed, stream;
    int64_t update, element;
};

/* Return the parameters of the random numbers of elements k, k + 1, ... of the arrays, which are in range r. */
__device__ inline struct update_random random_of(uint32_t seed, const struct meg_update_range &r, int64_t update,
                                                 int64_t k)
{
    const int64_t i = r.first + k - r.begin, row = i / r.cols;

    return { seed, MEG_PHILOX_ROUNDING + 4 * r.row, update, r.base + row * r.ld + (i - row * r.cols) };
}

/*
 * Return whether the elements of each vector of range r, which begins at a multiple of VEC in the arrays, use the
 * random numbers of one block of Philox.
 */
__device__ inline bool has_aligned_random(const struct meg_update_range &r)
{
    return ((r.first - r.begin) | r.base | r.cols | r.ld) % VEC == 0;
}

/*
 * Compute 16-bit random numbers (base/philox.h) of N elements of array number `array`.  N is 1 or, if r.element is a
 * multiple of VEC, VEC.
 */
template <int N> __device__ inline void random_bits(uint32_t (&bits)[N], const struct update_random &r, uint32_t array)
{
    const uint32_t key[2] = { r.seed, r.stream + array };
    const uint32_t counter[4] = { (uint32_t)(r.element / 8), 0, (uint32_t)r.update,
                                  (uint32_t)((uint64_t)r.update >> 32) };
    const int lane0 = N == VEC ? 0 : (int)(r.element % 8);
    uint32_t word[4];

    meg_philox(word, key, counter);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int lane = lane0 + i;
        const uint64_t half = lane < 4 ? (uint64_t)word[1] << 32 | word[0] : (uint64_t)word[3] << 32 | word[2];

        bits[i] = (uint32_t)(half >> lane % 4 * 16) & 0xffff;
    }
}

/*
 * Round x to bf16 stochastically: add `random`, a number of 16 bits, to the 16 bits that bf16 lacks, and truncate.  NaN
 * and Inf remain NaN and Inf.
 */
__device__ inline bf16 round_stochastic(float x, uint32_t random)
{
    const uint32_t u = meg_bits_of(x);

    return (u & 0x7f800000) == 0x7f800000 ? from_float<bf16>(x) : bf16{ (uint16_t)((u + random) >> 16) };
}

/* Load N elements.  N is 1 or, if p is at a multiple of 16 bytes, VEC. */
template <class T, int N> __device__ inline void load_elements(float (&x)[N], const T *p)
{
    if constexpr (N == VEC)
        load(x, p, 0, VEC, true);
    else
        x[0] = to_float(*p);
}

template <int N> __device__ inline void load_elements(float (&x)[N], const absent *)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = 0.0f;
}

/* Store N elements, 1 or VEC as in load_elements, rounded to nearest. */
template <class T, int N> __device__ inline void store_nearest(T *p, const float (&x)[N])
{
    if constexpr (N == VEC)
        store(p, x, 0, VEC, true);
    else
        *p = from_float<T>(x[0]);
}

/* Store N elements of array number `array`; bf16 is rounded stochastically. */
template <int N>
__device__ inline void store_elements(float *p, const float (&x)[N], const struct update_random &, uint32_t)
{
    store_nearest(p, x);
}

template <int N>
__device__ inline void store_elements(bf16 *p, const float (&x)[N], const struct update_random &r, uint32_t array)
{
    struct alignas(N * sizeof(bf16)) {
        bf16 v[N];
    } out;
    uint32_t bits[N];

    random_bits(bits, r, array);
#pragma unroll
    for (int i = 0; i < N; i++)
        out.v[i] = round_stochastic(x[i], bits[i]);
    *(decltype(out) *)p = out;
}

template <int N>
__device__ inline void store_elements(absent *, const float (&)[N], const struct update_random &, uint32_t)
{
}

/* Store N elements of w to its copy, if there is one, from element k on. */
template <int N> __device__ inline void store_copy(struct meg_array copy, int64_t k, const float (&w)[N])
{
    if (copy.p)
        with_pointer(copy.p, copy.dtype, [&](auto *p) { store_nearest(p + k, w); });
}

/* Update N elements of the arrays from element k on. */
template <int N, class Rule, class W, class G, class S0, class S1>
__device__ inline void update_elements(const struct meg_update_arrays &x, int64_t k, const Rule &rule,
                                       const struct update_random &random)
{
    W *w = (W *)x.w.p + k;
    S0 *s0 = (S0 *)x.state[0].p + k;
    S1 *s1 = (S1 *)x.state[1].p + k;
    float wv[N], gv[N], v0[N], v1[N];

    load_elements(gv, (const G *)x.g.p + k);
    load_elements(wv, w);
    load_elements(v0, s0);
    load_elements(v1, s1);
#pragma unroll
    for (int i = 0; i < N; i++)
        rule.apply(wv[i], gv[i], v0[i], v1[i]);
    store_copy(x.copy, k, wv);
    store_elements(w, wv, random, 0);
    store_elements(s0, v0, random, 1);
    store_elements(s1, v1, random, 2);
}

/*
 * Update the elements of all ranges, unless step->skip is set.  is_aligned states that the arrays are at multiples of
 * 16 bytes.  A block finds its chunks by counting the chunks of the ranges.  It processes a chunk in vectors if
 * is_aligned is set, the range contains the complete chunk and, unless w and the states are f32, has_aligned_random is
 * true; otherwise element by element.
 */
template <class Rule, class W, class G, class S0, class S1>
static __global__ void __launch_bounds__(UPDATE_THREADS, UPDATE_BLOCKS)
    update_kernel(struct meg_update_arrays x, const struct meg_update_range *range, int nranges,
                  typename Rule::conf conf, const struct meg_step_hparams *step, bool is_aligned)
{
    constexpr bool is_rounded = sizeof(W) == 2 || sizeof(S0) == 2 || sizeof(S1) == 2;
    int64_t chunk = blockIdx.x; /* the block's next chunk, counted from the beginning of range i */

    if (step->skip)
        return;
    for (int i = 0; i < nranges; i++) {
        const struct meg_update_range &r = range[i];
        const int64_t begin = r.begin, end = r.end, chunk0 = begin / UPDATE_CHUNK;
        const int64_t nchunks = (end + UPDATE_CHUNK - 1) / UPDATE_CHUNK - chunk0;

        if (chunk < nchunks) {
            const Rule rule(conf, r, *step);
            const bool has_vectors = is_aligned && (!is_rounded || has_aligned_random(r));

            for (; chunk < nchunks; chunk += gridDim.x) {
                const int64_t k0 = (chunk0 + chunk) * UPDATE_CHUNK, k1 = k0 + UPDATE_CHUNK;

                if (has_vectors && begin <= k0 && k1 <= end) {
                    const int64_t k = k0 + threadIdx.x * VEC;

                    update_elements<VEC, Rule, W, G, S0, S1>(x, k, rule, random_of(x.seed, r, step->update, k));
                } else {
#pragma unroll 1
                    for (int64_t k = k0 + threadIdx.x; k < k1; k += UPDATE_THREADS)
                        if (begin <= k && k < end)
                            update_elements<1, Rule, W, G, S0, S1>(x, k, rule, random_of(x.seed, r, step->update, k));
                }
            }
        }
        chunk -= nchunks;
    }
}

/* Call f with a value of the element type of parameters or of a state. */
template <class F> void with_state_type(enum meg_dtype type, F f)
{
    if (type == MEG_DTYPE_BF16)
        f(bf16());
    else
        f(0.0f);
}

/*
 * Launch the kernel; the second state has the type S1.  The number of blocks depends on the GPU, but results do not: no
 * element depends on others.
 */
template <class Rule, class S1>
void launch_update(struct meg_stream *st, const struct meg_update_arrays *x, const struct meg_update_range *range,
                   int nranges, const typename Rule::conf &conf, const struct meg_step_hparams *step)
{
    const bool are_aligned = is_aligned(x->w.p) && is_aligned(x->g.p) && is_aligned(x->state[0].p) &&
                             is_aligned(x->state[1].p) && is_aligned(x->copy.p);

    if (nranges == 0)
        return;
    with_state_type(x->w.dtype, [&](auto w) {
        with_type(x->g.dtype, [&](auto g) {
            with_state_type(x->state[0].dtype, [&](auto s0) {
                launch(st, update_kernel<Rule, decltype(w), decltype(g), decltype(s0), S1>,
                       UPDATE_BLOCKS * meg_cuda_device.num_sms, UPDATE_THREADS, 0, *x, range, nranges, conf, step,
                       are_aligned);
            });
        });
    });
}
