/*
 * lib.h - cuBLASLt, loaded with dlopen when the device is opened.  This header is for C only: the CUDA headers overload
 * functions in C++.
 */
#pragma once
#include <cublasLt.h>
#include "base/err.h"

/* clang-format off */
#define MEG_CUBLASLT_CALLS(X)                                                                      \
    X(cublasLtGetVersion) X(cublasLtGetStatusString) X(cublasLtCreate) X(cublasLtMatmul)           \
    X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute)     \
    X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)                                   \
    X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy)                           \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulAlgoCheck)
/* clang-format on */

#define MEG_POINTER(f) __typeof__(&f) f;
struct meg_cublaslt_lib {
    size_t version; /* such as 130100, for 13.1.0 */
    cublasLtHandle_t handle;
    MEG_CUBLASLT_CALLS(MEG_POINTER)
};
#undef MEG_POINTER

extern struct meg_cublaslt_lib meg_cublaslt;

/*
 * Load cuBLASLt into meg_cublaslt, and create the handle for the current GPU.  Return MEG_EFAIL if the library or one
 * of its functions is missing, its major version is not the header's, or it cannot use the GPU.
 */
int meg_cublaslt_load(struct meg_err *e);
