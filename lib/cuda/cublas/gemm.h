/*
 * gemm.h - matrix products by cuBLASLt, with a bias, an activation or their gradients.
 *
 * The first product of a shape creates a plan.  If a plan is stored for the shape (gemm_cache.h), it is used.
 * Otherwise, cuBLASLt proposes algorithms for the product with the epilogue fused and without it, each is timed on
 * random data, and the fastest one is kept and stored.  This takes about as long as 100 products.  Nothing is timed
 * with --deterministic-mode, while a CUDA graph is captured, or if the process has four plans that differ only in the
 * number of tokens; then, the plan is the stored one or cuBLASLt's first proposal.  Sums of split-K algorithms have a
 * fixed order and are in f32.
 */
#pragma once
#include <stdbool.h>
#include "tensor/ops.h"

MEG_BEGIN_DECLS

/*
 * A product d [m,n] = a [m,k] b [k,n], or d += a b if accumulate is set.  a and b have the same type; d has this type
 * or f32.  At most one of the epilogues follows:
 *   bias, act   d = act(a b + bias), bias [n] of the type of b or NULL; also pre = a b + bias, unless pre.p is NULL or
 *               act is MEG_ACT_NONE.  If pre is written and accumulate is set, a b is added to pre instead of d.
 *   grad_act    d = (a b) * grad_act'(pre); if accumulate is set, (d + a b) * grad_act'(pre)
 *   dbias       dbias [m] = row sums of a, of the type of d; added to dbias if accumulate is set; a is transposed
 * pre [m,n] has the type of d if it is an output; as an input, it may have another type.
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
