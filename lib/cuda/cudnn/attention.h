/*
 * attention.h - attention by cuDNN, in the cases that it supports; attention.cu tries cuDNN before its own kernels.
 *
 * Plans are built at the first use of a shape, which takes up to a second, so the first calls must not be captured in a
 * CUDA graph.
 */
#ifndef MEG_CUDA_CUDNN_ATTENTION_H
#define MEG_CUDA_CUDNN_ATTENTION_H
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
bool meg_cudnn_attn_fwd(struct meg_stream *st, const struct meg_attn_desc *desc, struct meg_heads o, float *lse,
                        struct meg_heads q, struct meg_heads k, struct meg_heads v, const struct meg_drop *drop);
bool meg_cudnn_attn_bwd(struct meg_stream *st, const struct meg_attn_desc *desc, const struct meg_attn_bwd_args *args,
                        const struct meg_drop *drop);
/*
 * Return the size in bytes of the workspace of meg_cudnn_attn_bwd, also if cuDNN is not installed (attn_bwd_nbytes); 0
 * if `grad` is f32, which cuDNN does not support.
 */
size_t meg_cudnn_attn_bwd_nbytes(const struct meg_attn_desc *desc, enum meg_dtype grad);
/*
 * The deterministic backward pass requires 2 * a * s_q * s_k bytes of workspace per sequence.  It computes as many
 * key-value groups at a time, of all sequences, as this number of bytes is enough for, but at least one.  Tests reduce
 * the number.
 */
extern int64_t meg_cudnn_chunk_nbytes;
#else
static inline bool meg_cudnn_attn_fwd(struct meg_stream *st, const struct meg_attn_desc *desc, struct meg_heads o,
                                      float *lse, struct meg_heads q, struct meg_heads k, struct meg_heads v,
                                      const struct meg_drop *drop)
{
    (void)st, (void)desc, (void)o, (void)lse, (void)q, (void)k, (void)v, (void)drop;
    return false;
}

static inline bool meg_cudnn_attn_bwd(struct meg_stream *st, const struct meg_attn_desc *desc,
                                      const struct meg_attn_bwd_args *args, const struct meg_drop *drop)
{
    (void)st, (void)desc, (void)args, (void)drop;
    return false;
}

static inline size_t meg_cudnn_attn_bwd_nbytes(const struct meg_attn_desc *desc, enum meg_dtype grad)
{
    (void)desc, (void)grad;
    return 0;
}
#endif

MEG_END_DECLS
#endif
