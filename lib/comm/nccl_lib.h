/*
 * NCCL and the CUDA runtime, found at run time by the names of their shared objects: a program without
 * torchrun neither needs them nor waits for them.
 */
#ifndef MEG_COMM_NCCL_LIB_H
#define MEG_COMM_NCCL_LIB_H
#include <nccl.h>
#include "base/err.h"

/* clang-format off */
#define MEG_CUDA_CALLS(X)                                                                          \
    X(cudaGetDeviceCount) X(cudaSetDevice) X(cudaGetErrorString) X(cudaStreamCreateWithFlags)      \
    X(cudaStreamDestroy) X(cudaStreamQuery) X(cudaStreamSynchronize) X(cudaMallocAsync)            \
    X(cudaFreeAsync) X(cudaMemcpyAsync)
#define MEG_NCCL_CALLS(X)                                                                          \
    X(ncclGetErrorString) X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommGetAsyncError)    \
    X(ncclGroupStart) X(ncclGroupEnd) X(ncclSend) X(ncclRecv) X(ncclCommFinalize) X(ncclCommDestroy)
/* clang-format on */

#define MEG_POINTER(f) __typeof__(&f) f;
struct meg_nccl_lib {
    MEG_CUDA_CALLS(MEG_POINTER)
    MEG_NCCL_CALLS(MEG_POINTER)
};
#undef MEG_POINTER

/* The calls; the first time loads them and takes device local_rank.  MEG_EFAIL ends the process. */
const struct meg_nccl_lib *meg_nccl_lib(int local_rank);

#endif
