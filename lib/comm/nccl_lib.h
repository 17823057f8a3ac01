/*
 * nccl_lib.h - NCCL and the CUDA runtime, loaded with dlopen.  A run without torchrun requires neither library, and
 * starts faster.  This header is for C only: in C++, the CUDA headers overload some of the functions.
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

/*
 * Return the loaded functions.  The first call loads the libraries and selects device local_rank.  If this fails, the
 * process ends.
 */
const struct meg_nccl_lib *meg_nccl_lib(int local_rank);

#endif
