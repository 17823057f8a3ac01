/* internal.h - declarations private to lib/cuda that need no C++: streams, errors, scratch memory and operations. */
#pragma once
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "cuda/cuda.h"

MEG_BEGIN_DECLS

/* A struct meg_stream * is a cudaStream_t, and a struct meg_event * is a cudaEvent_t. */
static inline cudaStream_t meg_cuda_stream(struct meg_stream *st)
{
    return (cudaStream_t)(void *)st;
}

/* End the process with a message unless the CUDA runtime call succeeded.  `what` is the call. */
#define CUDA(call) meg_cuda_check(call, #call)
void meg_cuda_check(cudaError_t error, const char *what);
/*
 * End the process with a message if an earlier operation failed.  Call the function when a call `what` of cuBLASLt or
 * cuDNN fails, because the cause may be an earlier operation, which the status of the library does not describe.
 */
void meg_cuda_check_earlier(const char *what);

/*
 * The source line that last queued an operation.  A GPU executes operations asynchronously, so a later call reports
 * that one failed.  The message of a failure therefore contains this line.
 */
struct meg_cuda_line {
    const char *file;
    int line;
};
extern struct meg_cuda_line meg_cuda_last;
#define MEG_CUDA_QUEUE_HERE() (meg_cuda_last.file = __FILE__, meg_cuda_last.line = __LINE__)

/*
 * Return at least nbytes of device memory, 256-byte aligned, which an operation on st may use until the operation is
 * complete.  The contents are arbitrary.  A stream keeps its allocations until it is destroyed.  If memory is
 * exhausted, end the process with a message.  An operation calls the function at most once, because a second call can
 * return the same memory.
 */
void *meg_cuda_scratch(struct meg_stream *st, size_t nbytes);

/*
 * Maximum size in bytes of the bits that state which attention weights dropout keeps.  If the bits of one group of one
 * sequence are larger, that group is computed alone (struct head_chunk).
 */
extern int64_t meg_cuda_kept_nbytes;

/* The GPU in use. */
struct meg_cuda_device {
    int index;
    char name[256];
    int cc;         /* compute capability: 10 * major + minor */
    int num_sms;    /* number of multiprocessors */
    bool has_wgmma; /* the GPU runs kernels that were compiled for wgmma (wgmma.h) */
    uint64_t id;    /* hash of the UUID */
    bool is_deterministic;
};
extern struct meg_cuda_device meg_cuda_device;

/*
 * Return the number of bytes of shared memory that a block may use; if no device is open, return the maximum of all
 * GPUs.  A multiprocessor has 1 KiB more, and uses 1 KiB for each block.
 */
static inline int64_t meg_cuda_max_shared(void)
{
    const int cc = meg_cuda_device.cc;

    return (int64_t)(cc == 80 || cc == 87 ? 163 : cc == 0 || (cc >= 90 && cc < 120) ? 227 : 99) << 10;
}

/* Set meg_cuda_device's has_wgmma for the current GPU (attention.cu). */
cudaError_t meg_cuda_probe_wgmma(bool *has_wgmma);

/* Declare the operations with the types of struct meg_ops. */
#define OP(name) __typeof__(*((struct meg_ops *)0)->name) meg_cuda_##name;
OP(linear_create)
OP(linear_destroy)
OP(attn_bwd_nbytes)
OP(sample_nbytes)
MEG_TENSOR_OPS(OP)
#undef OP

/*
 * Compute out [x.cols] = column sums of x [n,cols], or add them to out if `accumulate` is set (reduce.cu).  out has the
 * type `type`.  The function uses the scratch memory of st.
 */
void meg_cuda_column_sums(struct meg_stream *st, void *out, enum meg_dtype type, struct meg_mat x, bool accumulate);
/*
 * Compute out0 [n] and, unless it is NULL, out1 [n] as sums of partial [nparts,nsums,ld] over the parts, or add the
 * sums to them if `accumulate` is set (reduce.cu).  nsums is the number of outputs, 1 or 2, and the first n of ld
 * columns are summed.  The outputs have the type `type`.
 */
void meg_cuda_sum_partials(struct meg_stream *st, void *out0, void *out1, enum meg_dtype type, const float *partial,
                           int nparts, int64_t n, int64_t ld, bool accumulate);
/* Compute y = act(x), element by element; y may be x (act.cu). */
void meg_cuda_act_fwd(struct meg_stream *st, struct meg_mat y, struct meg_mat x, enum meg_act act);
/* Compute y [n,o] += bias [o] of type `type` (act.cu). */
void meg_cuda_add_bias(struct meg_stream *st, struct meg_mat y, const void *bias, enum meg_dtype type);

MEG_END_DECLS
