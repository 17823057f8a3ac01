/* cpu.h - the CPU backend, the reference implementation of the operations in tensor/ops.h. */
#pragma once
#include "tensor/ops.h"

/*
 * Return the operations compiled for the best instruction set of this machine.  Tensors are f32, bf16 or f16; streams
 * are NULL.  Operations run on OpenMP's threads, and their results are bit-identical for any number of threads.
 *
 * The first call binds each OpenMP thread except the caller to one processor, if the process may use exactly as many
 * processors as OpenMP has threads, and neither OMP_PROC_BIND nor GOMP_CPU_AFFINITY is set.  Two unbound threads
 * occasionally run on one processor, and a GEMM then takes twice as long.  The calling thread keeps its affinity mask,
 * so threads that it creates later are not bound.  Processes that share processors (MPI ranks) must be bound by their
 * launcher or run with fewer threads.
 *
 * With MEG_TRACE=ops in the environment, calls are printed on stderr (see tensor/trace_ops.h).  With MEG_DEBUG defined
 * (make DEBUG=1), operations check their arguments (see tensor/check_ops.h).
 *
 * linear_create, attn_fwd and attn_bwd load oneDNN on first use.  If loading fails, these operations end the process
 * with a message.
 */
const struct meg_ops *meg_cpu_ops(void);
