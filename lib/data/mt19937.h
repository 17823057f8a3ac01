/*
 * mt19937.h - the Mersenne Twister (Matsumoto and Nishimura 1998), with the distributions of NumPy's legacy
 * RandomState and torch.  Megatron draws the order of its data from these distributions.
 */
#pragma once
#include <stdint.h>

/* State of the generator that std::mt19937, numpy.random.RandomState(seed) and torch on the CPU use. */
struct meg_mt19937 {
    uint32_t x[624];
    int next;
};
void meg_mt19937_seed(struct meg_mt19937 *g, uint32_t seed);
uint32_t meg_mt19937_u32(struct meg_mt19937 *g);
/* Return a uniform double in [0,1) with 53 random bits: 27 high bits from one output, 26 low bits from the next. */
double meg_mt19937_double(struct meg_mt19937 *g);
/* Return a uniform integer in [0,max]; max 0 does not advance the generator. */
uint64_t meg_mt19937_interval(struct meg_mt19937 *g, uint64_t max);
/* Return a uniform integer in [lo,hi). */
int64_t meg_mt19937_randint(struct meg_mt19937 *g, int64_t lo, int64_t hi);
/* Return an index in [0,n) with probabilities p [n] divided by their sum, as numpy.random.choice(n, p=p) does. */
int64_t meg_mt19937_choice(struct meg_mt19937 *g, const double *p, int64_t n);
/* Return the number of trials up to the first success, as numpy.random.geometric(p) does for p < 1/3. */
int64_t meg_mt19937_geometric(struct meg_mt19937 *g, double p);
/* Shuffle the array `a` [n] as numpy.random.shuffle does. */
void meg_mt19937_shuffle_i32(struct meg_mt19937 *g, int32_t *a, int64_t n);
void meg_mt19937_shuffle_u32(struct meg_mt19937 *g, uint32_t *a, int64_t n);
void meg_mt19937_shuffle_i64(struct meg_mt19937 *g, int64_t *a, int64_t n);
/*
 * Set `a` [n] to the permutation that torch.randperm(n) returns for a CPU generator of this seed, if n < 214748364.
 * For larger n, torch uses another algorithm.
 */
void meg_torch_randperm(int64_t *a, int64_t n, uint32_t seed);

/* State of the generator std::mt19937_64. */
struct meg_mt19937_64 {
    uint64_t x[312];
    int next;
};
void meg_mt19937_64_seed(struct meg_mt19937_64 *g, uint64_t seed);
uint64_t meg_mt19937_64_u64(struct meg_mt19937_64 *g);
