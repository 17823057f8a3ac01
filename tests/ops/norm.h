/* norm.h - what the cases of norms and of additions that a norm follows have in common. */
#ifndef TESTS_OPS_NORM_H
#define TESTS_OPS_NORM_H
#include "ops.h"

#define NORM_EPS 1e-5f
/* Types of norms: those of enum meg_norm, in its order, and norms without weight or bias. */
struct norm_type {
    enum meg_norm type;
    void *w, *b;
};
enum { NORM_TYPES = MEG_NORM_RMS_1P + 4 };
static const struct norm_type norm_types[NORM_TYPES] = {
    { MEG_NORM_LAYER, ON, ON },    { MEG_NORM_RMS, ON, NULL },   { MEG_NORM_LAYER_1P, ON, ON },
    { MEG_NORM_RMS_1P, ON, NULL }, { MEG_NORM_LAYER, ON, NULL }, { MEG_NORM_LAYER, NULL, NULL },
    { MEG_NORM_RMS, NULL, NULL },
};

struct norm_shape {
    int64_t n, h, pad;
};
/*
 * Row lengths on both sides of the sizes of a vector and a warp, and of the limits of the CUDA kernels: 1024, 4096 and
 * 8192.  Kernels use vectors if h and pad are multiples of 8.
 */
static const struct norm_shape norm_shapes[] = {
    { 5, 1, 0 },   { 3, 7, 1 },   { 9, 8, 0 },    { 37, 64, 8 },  { 6, 250, 6 },  { 4, 256, 0 },  { 5, 264, 0 },
    { 7, 768, 0 }, { 3, 770, 1 }, { 6, 1024, 8 }, { 3, 1024, 4 }, { 2, 1032, 0 }, { 9, 2048, 0 }, { 5, 2055, 1 },
};
static const struct norm_shape norm_long_shapes[] = { { 2, 4096, 0 }, { 1, 4104, 0 }, { 2, 8192, 0 },
                                                      { 1, 8184, 1 }, { 5, 8200, 0 }, { 2, 8195, 0 } };
/* Of benchmarks: the same number of elements in rows of several lengths. */
static const struct norm_shape norm_bench_shapes[] = { { 16384, 4096, 0 }, { 32768, 2048, 0 }, { 65536, 1024, 0 } };

/* Compute the results y, mean and rstd of a norm of rows x [n,h]. */
void norm_ref(struct op_call *c, enum meg_norm type, const double *x);
/* Give the rows of x different variances, and means that are not 0. */
void norm_fill(struct op_call *c);

#endif
