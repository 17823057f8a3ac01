/* blend.c - blend datasets by weight: assign a dataset, and a sample of that dataset, to each sample of the blend. */
#include "data/blend/blend.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

/* Sum n numbers pairwise, in numpy's order for a contiguous array: the result is bit-identical to numpy.sum. */
static double pairwise_sum(const double *a, int n)
{
    double r[8], sum;
    int i, j;

    if (n < 8) {
        for (sum = 0, i = 0; i < n; i++)
            sum += a[i];
        return sum;
    }
    if (n > 128) {
        int half = n / 2 - n / 2 % 8;
        return pairwise_sum(a, half) + pairwise_sum(a + half, n - half);
    }
    memcpy(r, a, sizeof r);
    for (i = 8; i < n - n % 8; i += 8)
        for (j = 0; j < 8; j++)
            r[j] += a[i + j];
    sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++)
        sum += a[i];
    return sum;
}

int meg_blend_check_weights(const double *w, int n, const char *origin, struct meg_err *e)
{
    const double sum = pairwise_sum(w, n);

    if (isfinite(sum))
        return 0;
    return meg_fail(e, MEG_EUSAGE,
                    "%s: the sum of the weights exceeds %g; use smaller weights, because only their ratios matter",
                    origin, DBL_MAX);
}

void meg_blend_normalize(double *w, int n)
{
    double sum = pairwise_sum(w, n);
    for (int i = 0; i < n; i++)
        w[i] /= sum;
}

void meg_blend_sizes(int64_t *out, const double *w, int n, int64_t num_samples)
{
    for (int i = 0; i < n; i++)
        out[i] = (int64_t)ceil((double)num_samples * w[i] * 1.005);
}

void meg_blend_sizes_with_surplus(int64_t *taken, int64_t *built, const double *w, int n, int64_t num_samples,
                                  double surplus)
{
    for (int i = 0; i < n; i++) {
        taken[i] = (int64_t)ceil((double)num_samples * w[i]);
        built[i] = (int64_t)ceil((double)taken[i] * (1 + surplus));
    }
}

/*
 * Build the index of a blend.  Sample i is taken from the dataset d with the largest error
 * w[d] * max(i, 1) - taken[d]; among datasets with equal errors, from the first.  A dataset is skipped after limit[d]
 * samples; limit NULL: no limits.
 */
static void build_indices(struct meg_blend_index *x, const double *w, const int64_t *limit, int k, int64_t n)
{
    int16_t *dataset = meg_realloc_array(NULL, (size_t)n, sizeof *dataset);
    int64_t *sample = meg_realloc_array(NULL, (size_t)n, sizeof *sample);
    int64_t *taken = meg_new((size_t)k * sizeof *taken); /* [k] samples taken from each dataset so far */

    for (int64_t i = 0; i < n; i++) {
        double n_so_far = fmax((double)i, 1.0), max_error = 0;
        int best = -1;
        for (int d = 0; d < k; d++) {
            double error = w[d] * n_so_far - (double)taken[d];
            if ((best < 0 || error > max_error) && (!limit || taken[d] < limit[d])) {
                best = d;
                max_error = error;
            }
        }
        dataset[i] = (int16_t)best;
        sample[i] = taken[best]++;
    }
    free(taken);
    *x = (struct meg_blend_index){ n, dataset, sample, { dataset, sample } };
}

void meg_blend_weighted(struct meg_blend_index *x, const double *w, int k, int64_t n)
{
    build_indices(x, w, NULL, k, n);
}

void meg_blend_exhaustive(struct meg_blend_index *x, const int64_t *size, int k)
{
    double *ratio = meg_realloc_array(NULL, (size_t)k, sizeof *ratio);
    int64_t n = 0;

    for (int d = 0; d < k; d++)
        n += size[d];
    for (int d = 0; d < k; d++)
        ratio[d] = (double)size[d] / (double)n;
    build_indices(x, ratio, size, k, n);
    free(ratio);
}

void meg_blend_index_free(struct meg_blend_index *x)
{
    free(x->owned[0]);
    free(x->owned[1]);
    *x = (struct meg_blend_index){ 0 };
}
