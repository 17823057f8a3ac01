/* xent.h - what the cases of the operations of cross-entropy have in common. */
#ifndef TESTS_OPS_XENT_H
#define TESTS_OPS_XENT_H
#include "ops.h"

/*
 * Logits.  SMALL: in [-1, 1).  BIG: up to 60, and around -300 in odd rows.  RISING: increasing on average from left to
 * right, so that the maximum changes often, with an offset that differs by row.  COUNTED: zeros or, if xent_num_high is
 * above 0, xent_num_high logits of 12, and -100 elsewhere; relative to the maximum, exp(-100) is 0.
 * INFINITE: -infinity, as of padded ids, in all columns of a thread.
 * NOT_FINITE: NaN and infinity, and a row of -infinity.  IGNORED: rows with target -1 have NaN and infinity.  POWERS:
 * RISING, with weights that are powers of two; otherwise the mask of row 1 is 0.
 */
enum { SMALL, BIG, RISING, COUNTED, INFINITE, NOT_FINITE, IGNORED, POWERS };

enum { XENT_V0 = 3000, XENT_ROWS = 5, XENT_MAX_ROWS = 2500 }; /* XENT_V0: the first id of a shard of the vocabulary */
extern int32_t xent_target[XENT_MAX_ROWS];                    /* of the next case */
extern int64_t xent_num_high;                                 /* of COUNTED */

/*
 * Numbers of logits on both sides of the sizes of a vector, a warp and a block, and some for which a thread has several
 * vectors: 8192 = 256 threads * 4 vectors of 8.
 */
struct xent_shape {
    int64_t v, pad;
};
static const struct xent_shape xent_shapes[] = {
    { 1, 0 },     { 2, 6 },    { 7, 1 },    { 8, 0 },    { 257, 7 },
    { 1000, 24 }, { 2056, 0 }, { 8191, 0 }, { 8192, 8 }, { 17003, 5 },
};

/*
 * Set targets of n rows for ids [v0, v0 + v): the last id, the first, the ids before and after them, which are on other
 * shards, an ignored row, and random ids.
 */
void xent_split_targets(int64_t n, int64_t v);
/* Set logits, targets and weights. */
void xent_fill(struct op_call *c);
/* Return the log-sum-exp of a row x [v]. */
double xent_lse(const double *x, int64_t v);
/* Adding v terms one by one has a standard error of sqrt(v)/3 EPS, because each partial sum is rounded. */
static inline double xent_sum_error(int64_t v)
{
    return 2 * sqrt((double)v) * EPS;
}

#endif
