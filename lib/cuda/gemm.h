/*
 * gemm.h - matrix products by cuBLASLt, with a bias, an activation or their gradients.
 *
 * The first product of a shape creates a plan: cuBLASLt proposes algorithms for the product with the epilogue fused and
 * without it, each is timed on random data, and the fastest one is kept, also for later processes (gemm_cache.h).  This
 * takes about as long as 100 products.  With --deterministic-mode, nothing is timed: the plan is the stored one or
 * cuBLASLt's first proposal.  Sums of split-K algorithms have a fixed order and are in f32.
 */
#ifndef MEG_CUDA_GEMM_H
#define MEG_CUDA_GEMM_H
#include <stdbool.h>
#include "tensor/ops.h"

MEG_BEGIN_DECLS

/*
 * A product d [m,n] = a [m,k] b [k,n], or d += a b if accumulate is set.  a and b have the same type; d has this type or
 * f32.  At most one of the epilogues follows:
 *   bias, act   d = act(a b + bias), bias [n] of the type of b or NULL; if pre.p is not NULL, pre = a b + bias
 *   grad_act    d = (a b) * grad_act'(pre)
 *   dbias       dbias [m] = row sums of a, of the type of d; added to dbias if accumulate is set; a is transposed
 * pre [m,n] has the type of d unless it is an input.
 */
struct meg_gemm {
    struct meg_mat d, a, b;
    bool is_a_transposed, is_b_transposed; /* the matrix is stored as its transpose: a [k,m], b [n,k] */
    bool accumulate;
    const void *bias;
    enum meg_act act, grad_act;
    struct meg_mat pre;
    void *dbias;
};

/* Queue a product on st.  A product that cuBLASLt does not support ends the process with a message. */
void meg_gemm(struct meg_stream *st, const struct meg_gemm *g);

MEG_END_DECLS
#endif
