/*
 * nccl_lib.h - NCCL, loaded with dlopen: runs that do not use it need no library, and start faster.  This header is for
 * C only: the CUDA headers overload functions in C++.
 */
#pragma once
#include <nccl.h>
#include "base/err.h"

/* clang-format off */
#define MEG_NCCL_CALLS(X)                                                                          \
    X(ncclGetErrorString) X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommSplit)            \
    X(ncclCommGetAsyncError) X(ncclCommFinalize) X(ncclCommDestroy) X(ncclCommAbort)               \
    X(ncclGroupStart) X(ncclGroupEnd) X(ncclSend) X(ncclRecv) X(ncclAllReduce)                     \
    X(ncclReduceScatter) X(ncclAllGather) X(ncclBroadcast) X(ncclMemAlloc) X(ncclMemFree)          \
    X(ncclCommRegister) X(ncclCommDeregister)
/* clang-format on */

#define MEG_POINTER(f) __typeof__(&f) f;
struct meg_nccl_lib {
    MEG_NCCL_CALLS(MEG_POINTER)
};
#undef MEG_POINTER

/* Load NCCL into *lib.  Return MEG_EFAIL if the library or one of its functions is missing. */
int meg_nccl_load(struct meg_nccl_lib *lib, struct meg_err *e);
