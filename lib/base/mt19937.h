/*
 * mt19937.h - the Mersenne Twister (Matsumoto and Nishimura 1998) and the draws NumPy's legacy
 * RandomState, Python's random and torch make from it, so that data come in the order Megatron gives
 * them.
 */
#ifndef MEG_BASE_MT19937_H
#define MEG_BASE_MT19937_H

#include <stdint.h>

#include "base/decls.h"

MEG_BEGIN_DECLS

/* std::mt19937, numpy RandomState(seed), torch's CPU generator. */
struct meg_mt19937 {
    uint32_t x[624];
    int next;
};
void meg_mt19937_seed(struct meg_mt19937 *g, uint32_t seed);
uint32_t meg_mt19937_u32(struct meg_mt19937 *g);
/* Uniform in [0,1) with 53 bits, from two words, the high part first. */
double meg_mt19937_double(struct meg_mt19937 *g);
/* Uniform in [0,max]; max 0 draws nothing. */
uint64_t meg_mt19937_interval(struct meg_mt19937 *g, uint64_t max);
/* Uniform in [lo,hi). */
int64_t meg_mt19937_randint(struct meg_mt19937 *g, int64_t lo, int64_t hi);
/* An index in [0,n) with probabilities p (numpy's choice with p). */
int64_t meg_mt19937_choice(struct meg_mt19937 *g, const double *p, int64_t n);
/* Trials to the first success, p below a third. */
int64_t meg_mt19937_geometric(struct meg_mt19937 *g, double p);
/* numpy's shuffle of n elements. */
void meg_mt19937_shuffle_i32(struct meg_mt19937 *g, int32_t *a, int64_t n);
void meg_mt19937_shuffle_u32(struct meg_mt19937 *g, uint32_t *a, int64_t n);
void meg_mt19937_shuffle_i64(struct meg_mt19937 *g, int64_t *a, int64_t n);
/* Python's random.Random(seed), and its randrange(n), n in [1, 2^32): an index in [0,n). */
void meg_mt19937_seed_python(struct meg_mt19937 *g, uint64_t seed);
int64_t meg_python_randrange(struct meg_mt19937 *g, int64_t n);
/* torch.randperm(n) with the generator seeded by seed. */
void meg_torch_randperm(int64_t *a, int64_t n, uint32_t seed);

/* std::mt19937_64 */
struct meg_mt19937_64 {
    uint64_t x[312];
    int next;
};
void meg_mt19937_64_seed(struct meg_mt19937_64 *g, uint64_t seed);
uint64_t meg_mt19937_64_u64(struct meg_mt19937_64 *g);

MEG_END_DECLS

#endif
