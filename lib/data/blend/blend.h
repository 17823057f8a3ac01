/*
 * blend.h - blend datasets by weight: assign a dataset, and a sample of that dataset, to each sample of the blend.
 * Doubles are summed in Megatron-LM's order, so that the result is identical to Megatron-LM's.
 */
#pragma once
#include <stdint.h>
#include "base/err.h"

/* Return MEG_EUSAGE unless the sum of n weights is finite; origin: option or file that the message names. */
int meg_blend_check_weights(const double *w, int n, const char *origin, struct meg_err *e);

/* Divide n weights by their sum, which is computed by pairwise summation as in numpy. */
void meg_blend_normalize(double *w, int n);

/*
 * meg_blend_sizes - compute how many samples to build for each dataset: its weight times num_samples, plus 0.5%
 *   out  [n]  out  number of samples, rounded up
 *   w    [n]  normalized weights
 */
void meg_blend_sizes(int64_t *out, const double *w, int n, int64_t num_samples);

/*
 * meg_blend_sizes_with_surplus - compute the sample counts of Megatron core 0.11 and later
 *   taken    [n]  out  samples that the blend takes from each dataset: num_samples * w, rounded up
 *   built    [n]  out  samples to build for each dataset: taken * (1 + surplus), rounded up
 *   w        [n]  normalized weights
 *   surplus  >= 0; Megatron-LM's default is 0.005
 */
void meg_blend_sizes_with_surplus(int64_t *taken, int64_t *built, const double *w, int n, int64_t num_samples,
                                  double surplus);

/* The index of a blend: sample i of the blend is sample number sample[i] of dataset number dataset[i]. */
struct meg_blend_index {
    int64_t n;
    const int16_t *dataset;
    const int64_t *sample;
    void *owned[2]; /* arrays that meg_blend_index_free frees; NULL if the arrays are mapped from files */
};

/*
 * meg_blend_weighted - build the index of n samples in the proportions w
 * meg_blend_exhaustive - build the index that contains each sample of each dataset once, interleaved evenly
 *   w     [k]  normalized weights
 *   size  [k]  number of samples in each dataset, > 0
 *   k     number of datasets, in [1, 32766]
 * meg_blend_weighted takes sample i from the dataset d with the largest value of w[d] * max(i, 1) - taken[d].  taken[d]
 * is the number of samples taken from d so far.
 * The index uses 10 bytes per sample.
 */
void meg_blend_weighted(struct meg_blend_index *x, const double *w, int k, int64_t n);
void meg_blend_exhaustive(struct meg_blend_index *x, const int64_t *size, int k);
void meg_blend_index_free(struct meg_blend_index *x);
