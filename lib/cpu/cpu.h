/* The CPU's table of operations: the definition of each, and the default where there is no GPU. */
#ifndef MEG_CPU_CPU_H
#define MEG_CPU_CPU_H
#include "tensor/ops.h"

MEG_BEGIN_DECLS

/*
 * The operations built for the best instruction set this machine has.  Tensors are f32, bf16 or
 * f16; streams are NULL.  Work runs on OpenMP's threads and gives the same bits for any number of
 * them.
 *
 * The first call binds the threads to processors, one each, when there are exactly as many as the
 * process may use and OMP_PROC_BIND is unset: unbound, two of them now and then share one for the
 * length of a product, at half the speed.  Processes that share processors (MPI ranks) must be
 * bound by their launcher or run with fewer threads.  The calling thread keeps its own mask, so
 * threads it makes later are free.
 *
 * linear_create and attn_fwd load oneDNN on first use and end the process with a message where
 * it is not installed.
 */
const struct meg_ops *meg_cpu_ops(void);

MEG_END_DECLS
#endif
