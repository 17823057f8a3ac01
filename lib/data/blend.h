/*
 * blend.h - blending of datasets by weight: which dataset, and which of its samples, each sample of a blend is.
 * Bit for bit as Megatron-LM's, including its sums in double precision.
 */
#ifndef MEG_DATA_BLEND_H
#define MEG_DATA_BLEND_H

#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"

MEG_BEGIN_DECLS

/* Return MEG_EUSAGE unless the sum of n weights is finite; origin: their option or file, for the message. */
int meg_blend_check_weights(const double *w, int n, const char *origin, struct meg_err *e);

/* Divide n weights by their sum, which is added pairwise as numpy does. */
void meg_blend_normalize(double *w, int n);

/*
 * meg_blend_sizes - compute the samples that each dataset is built for: its part of num_samples, 0.5% more, rounded up
 *   out  [n]  out
 *   w    [n]  normalised weights
 */
void meg_blend_sizes(int64_t *out, const double *w, int n, int64_t num_samples);

/*
 * meg_blend_sizes_with_surplus - the same as Megatron core 0.11 and later do it: only the built size has the surplus
 *   taken    [n]  out  samples that the blend takes of each dataset
 *   built    [n]  out  samples that each dataset is built for
 *   surplus  >= 0, 0.005 in Megatron-LM: built is taken * (1 + surplus), rounded up
 */
void meg_blend_sizes_with_surplus(int64_t *taken, int64_t *built, const double *w, int n, int64_t num_samples,
                                  double surplus);

/* The index of a blend: its sample i is sample[i] of dataset[i]. */
struct meg_blend_index {
    int64_t n;
    const int16_t *dataset;
    const int64_t *sample;
    void *owned[2]; /* allocations for meg_blend_index_free; NULL when mapped from a file */
};

/*
 * meg_blend_weighted - build the index of n samples, each from the dataset whose number of samples so far is furthest
 *                      below its weight
 * meg_blend_exhaustive - build the index that has every sample of every dataset once, interleaved evenly
 *   w     [k]  normalised weights
 *   size  [k]  samples of each dataset, > 0
 * k is in [1, 32766].  The index takes 10 bytes a sample.
 */
void meg_blend_weighted(struct meg_blend_index *x, const double *w, int k, int64_t n);
void meg_blend_exhaustive(struct meg_blend_index *x, const int64_t *size, int k);
void meg_blend_index_free(struct meg_blend_index *x);

MEG_END_DECLS

#endif
