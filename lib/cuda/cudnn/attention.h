/*
 * attention.h - attention by cuDNN, in the cases that it supports; attention.cu tries cuDNN before its own kernels.
 *
 * Plans are built at the first use of a shape, which takes up to a second, so the first calls must not be captured in a
 * CUDA graph.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "tensor/ops.h"

MEG_BEGIN_DECLS

#ifdef MEG_HAVE_CUDNN
/*
 * Queue attn_fwd or attn_bwd (tensor/ops.h) on st and return true.  Return false, with nothing queued, if cuDNN is not
 * installed or not usable, or is not used for the case (attention.c).  If cuDNN fails to execute a plan, end the
 * process with a message.
 */
bool meg_cudnn_attn_fwd(struct meg_stream *st, const struct meg_attn_fwd_args *a);
bool meg_cudnn_attn_bwd(struct meg_stream *st, const struct meg_attn_bwd_args *a);
/*
 * Return the size in bytes of the workspace of meg_cudnn_attn_bwd, also if cuDNN is not installed (attn_bwd_nbytes); 0
 * if `grad` is f32, which cuDNN does not support.
 */
size_t meg_cudnn_attn_bwd_nbytes(const struct meg_attn_desc *desc, enum meg_dtype grad);
/*
 * Target size in bytes of the workspace of the deterministic backward pass, which requires 2 * a * s_q * s_k bytes per
 * sequence.  The key-value groups of all sequences are processed in chunks that fit, of at least one group.  Tests
 * reduce the size.
 */
extern int64_t meg_cudnn_chunk_nbytes;
#else
static inline bool meg_cudnn_attn_fwd(struct meg_stream *st, const struct meg_attn_fwd_args *a)
{
    (void)st, (void)a;
    return false;
}

static inline bool meg_cudnn_attn_bwd(struct meg_stream *st, const struct meg_attn_bwd_args *a)
{
    (void)st, (void)a;
    return false;
}

static inline size_t meg_cudnn_attn_bwd_nbytes(const struct meg_attn_desc *desc, enum meg_dtype grad)
{
    (void)desc, (void)grad;
    return 0;
}
#endif

MEG_END_DECLS
