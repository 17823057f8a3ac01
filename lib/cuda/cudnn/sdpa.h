/*
 * sdpa.h - attention as operation graphs of cuDNN.  cuDNN recognizes the operations, in this order and form, as
 * scaled dot-product attention and executes them by one or two kernels; cudnn-frontend builds the same graphs.  This
 * header is for C only.
 */
#pragma once
#include "cuda/cudnn/graph.h"

/* The tensors of a graph.  The id of a tensor is 1 + its value here. */
enum meg_cudnn_sdpa_tensor {
    SDPA_Q,
    SDPA_K,
    SDPA_V,
    SDPA_O,
    SDPA_D_O,
    SDPA_DQ,
    SDPA_DK,
    SDPA_DV,
    SDPA_HEADS, /* the number of tensors above, which are heads */
    SDPA_LSE = SDPA_HEADS,
    SDPA_DELTA,  /* out [b,h,s_q] f32: sum of d_o * o, used by the backward pass */
    SDPA_DQ_SUM, /* out [b,h,s_q,d] f32, contiguous: dq before it is rounded; absent if is_deterministic is set */
    SDPA_SCALE,  /* this and the following are numbers in host memory */
    SDPA_MINUS_INFINITY,
    SDPA_WINDOW, /* window_left + 1 */
    SDPA_ONE,
    SDPA_TENSORS
};

/*
 * The attributes of a graph.  All members have the type int64_t, so that two graphs can be compared by memcmp.  There
 * are b sequences, h query heads and h_k heads of keys and values.  h is a multiple of h_k, and query head j uses head
 * j / (h / h_k).
 */
struct meg_cudnn_sdpa {
    int64_t b, h, h_k, s_q, s_k, d, d_v;
    int64_t type;                          /* cudnnDataType_t of the heads */
    int64_t is_backward, is_deterministic; /* the latter for the backward pass: dq is not summed by atomic additions */
    int64_t is_causal, window_left;        /* window_left -1: no limit; it is not used unless is_causal is set */
    struct {
        int64_t b, h, s; /* strides in elements */
    } ld[SDPA_HEADS];
};

/* Add the operations of the forward or backward pass to g, which owns them.  The first failure is in g->e. */
void meg_cudnn_sdpa_graph(struct meg_cudnn_graph *g, const struct meg_cudnn_sdpa *x);
