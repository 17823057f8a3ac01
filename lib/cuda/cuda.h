/*
 * cuda.h - the CUDA backend: the operations of tensor/ops.h on one NVIDIA GPU.
 *
 * cudart is linked statically.  cuBLASLt and, if the build supports it and it is installed, cuDNN are loaded when the
 * device is opened, so that a program built with CUDA starts, and runs on the CPU, on a machine without these libraries
 * and without a driver.
 */
#pragma once
#include "base/err.h"
#include "tensor/ops.h"

MEG_BEGIN_DECLS

/*
 * The table of operations.  Before meg_cuda_open, only functions that need no open device may be called, such as
 * logits_rows and attn_bwd_nbytes.
 */
extern const struct meg_ops meg_cuda_ops;

/*
 * The training step and the layer whose operations are queued now, for messages; step is 0 and layer is -1 if there is
 * none.
 */
struct meg_cuda_position {
    int64_t step, layer;
};
extern struct meg_cuda_position meg_cuda_position;

/*
 * Return the number of GPUs that this process may use; 0 if there is none, or no driver.  Return MEG_EFAIL if the
 * driver is too old or fails.
 */
int meg_cuda_num_devices(struct meg_err *e);

/*
 * Select GPU `index` of this process, check the driver and the libraries, and return the table of operations, which is
 * valid until the process ends.  Do not call the function again after it succeeded.  Set *id to a number that
 * identifies the GPU among the GPUs of all nodes.  Return MEG_EFAIL if there is no such GPU, the driver or a library is
 * missing or too old, or the GPU's architecture is not supported.
 *
 * If is_deterministic is set, attention does not use kernels whose results depend on the order of atomic additions, and
 * matrix products are not timed (cuda/cublas/gemm.h).
 */
int meg_cuda_open(const struct meg_ops **out, uint64_t *id, int index, bool is_deterministic, struct meg_err *e);

MEG_END_DECLS
