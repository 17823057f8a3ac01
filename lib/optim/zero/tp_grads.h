/*
 * tp_grads.h - sum the gradients of replicated parameters over the tensor-parallel ranks, if each rank computes a part
 * of them (meg_param_sums_grad_over_tp).
 *
 * With sequence parallelism, these are the gradients of all replicated parameters: norms, biases added to the residual
 * stream, position and token-type embeddings, and the replicated layers of BERT's heads.  Without it, these are the
 * gradients with grad_is_partial_over_tp, such as that of a norm of the queries, and those of replicated parts of
 * sharded parameters.
 *
 * A layer group has one all-reduce, or two if its experts have other tensor-parallel ranks than its dense parameters.
 * The gradients of several ranges are copied to one buffer, reduced there, and copied back.
 */
#pragma once
#include "device/device.h"
#include "params/param.h"

struct meg_tp_grads {
    struct meg_comm *comm[2]; /* tp, and etp if it is another group */
    const struct meg_device *device;
    enum meg_dtype dtype;
    struct meg_elem_range *range; /* summed elements of the gradients (grad_offset) */
    int *first_range;             /* [2 * nlayer_groups + 1] index of the first range of a layer group and a group */
    void *packed;                 /* gradients of one all-reduce, in device memory; NULL if none has several ranges */
};

/* List the gradients to sum, and allocate the buffer.  Return MEG_EFAIL, without a message, if memory is exhausted. */
int meg_tp_grads_init(struct meg_tp_grads *s, const struct meg_mesh *mesh, const struct meg_params *params,
                      const struct meg_device *device, enum meg_dtype dtype);
void meg_tp_grads_free(struct meg_tp_grads *s);

/* Sum these gradients of a layer group, which are in g, over the tensor-parallel ranks. */
void meg_tp_grads_reduce(const struct meg_tp_grads *s, int group, void *g);
