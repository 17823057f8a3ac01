/* Which dataset of a blend gives each sample.  Bit for bit as Megatron-LM's, its double sums too. */
#ifndef MEG_DATA_BLEND_H
#define MEG_DATA_BLEND_H

#include <stdint.h>

#include "base/err.h"

/* Check that the weights of the option or file from have a finite sum; MEG_EUSAGE where they have not. */
int meg_blend_check_weights(const double *w, int n, const char *origin, struct meg_err *e);

/* w / sum(w) in place; the sum is numpy's pairwise one. */
void meg_blend_normalize(double *w, int n);

/*
 * meg_blend_sizes - samples each dataset is built for when the blend wants so many: half a per
 * cent more than its share, rounded up
 *   out  [n]  out
 *   w    [n]  normalised weights
 */
void meg_blend_sizes(int64_t *out, const double *w, int n, int64_t num_samples);

/*
 * meg_blend_sizes_with_surplus - the same from core 0.11 on, where only what is built has the surplus
 *   drawn    [n]  out  samples that the blend takes of each dataset
 *   built    [n]  out  what each dataset is built for
 *   surplus  >= 0, 0.005 in Megatron-LM: the share that built has more
 */
void meg_blend_sizes_with_surplus(int64_t *taken, int64_t *built, const double *w, int n, int64_t num_samples,
                                  double surplus);

/* Samples of a blend: dataset[i] gives its own sample number sample[i]. */
struct meg_blend_index {
    int64_t n;
    const int16_t *dataset;
    const int64_t *sample;
    void *owned[2]; /* what meg_blend_index_free frees; NULL when mapped */
};

/*
 * meg_blend_weighted - n samples, always from the dataset that is furthest behind its share
 * meg_blend_exhaustive - every sample of every dataset once, spread evenly
 *   w     [k]  weights, normalised
 *   size  [k]  samples of each dataset, > 0
 * k in [1, 32766].  Memory: 10 bytes a sample.
 */
void meg_blend_weighted(struct meg_blend_index *x, const double *w, int k, int64_t n);
void meg_blend_exhaustive(struct meg_blend_index *x, const int64_t *size, int k);
void meg_blend_index_free(struct meg_blend_index *x);

#endif
