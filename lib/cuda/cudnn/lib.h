/*
 * lib.h - cuDNN, loaded with dlopen.  It is optional: without it, attention uses meg's own kernels.  This header is for
 * C only.
 */
#pragma once
#include <cudnn.h>
#include <stdbool.h>
#include "base/err.h"

/* clang-format off */
#define MEG_CUDNN_CALLS(X)                                                                         \
    X(cudnnGetVersion) X(cudnnGetErrorString) X(cudnnGetLastErrorString)                           \
    X(cudnnCreate) X(cudnnSetStream)                                                               \
    X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor) X(cudnnBackendSetAttribute)   \
    X(cudnnBackendGetAttribute) X(cudnnBackendFinalize) X(cudnnBackendExecute)
/* clang-format on */

/*
 * The oldest version that is used.  The engines of older versions were not tested with these graphs, and some have
 * known errors: the backward pass in 9.10.0 and 9.10.1, sliding windows in 9.14.0, and sequence lengths that are not a
 * multiple of 128 up to 9.15 (cudnn-frontend).
 */
enum { MEG_CUDNN_OLDEST = 91900 };

#define MEG_POINTER(f) __typeof__(&f) f;
struct meg_cudnn_lib {
    bool is_usable; /* the library was found, it is not too old, and creating a handle did not fail */
    MEG_CUDNN_CALLS(MEG_POINTER)
};
#undef MEG_POINTER

extern struct meg_cudnn_lib meg_cudnn;

/*
 * Load cuDNN into meg_cudnn.  If it is missing or too old, print why it is not used and return 0.  Return MEG_EFAIL if
 * the library lacks a function.
 */
int meg_cudnn_load(struct meg_err *e);
