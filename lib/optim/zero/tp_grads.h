/*
 * tp_grads.h - sum the gradients of replicated parameters over the tensor-parallel ranks, if each rank computes a part
 * of them (meg_param_sums_grad_over_tp).
 *
 * With sequence parallelism, these are the gradients of all replicated parameters: norms, biases added to the residual
 * stream, position and token-type embeddings, and the replicated layers of BERT's heads.  Without it, these are the
 * gradients with grad_is_partial_over_tp, such as that of a norm of the queries.
 *
 * A layer group has one all-reduce.  The gradients of several parameters are copied to one buffer, reduced there, and
 * copied back.
 */
#ifndef MEG_OPTIM_ZERO_TP_GRADS_H
#define MEG_OPTIM_ZERO_TP_GRADS_H
#include "device/device.h"
#include "params/param.h"

MEG_BEGIN_DECLS

struct meg_tp_grads {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    const struct meg_device *device;
    enum meg_dtype dtype;
    void *packed; /* [meg_tp_grads_numel] of type dtype, in device memory; NULL if this number is 0 */
};

/* Return the size of the buffer in elements; 0 if none is required. */
int64_t meg_tp_grads_numel(const struct meg_params *params, const struct meg_layout *l);

/* Sum these gradients of a layer group over the tensor-parallel ranks.  The group's gradients begin at g. */
void meg_tp_grads_reduce(const struct meg_tp_grads *s, int group, void *g);

MEG_END_DECLS
#endif
