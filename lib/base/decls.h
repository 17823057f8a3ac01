/* decls.h - C linkage for headers that C++ and CUDA include, and function attributes. */
#pragma once

#ifdef __cplusplus
#    define MEG_BEGIN_DECLS extern "C" {
#    define MEG_END_DECLS }
#else
#    define MEG_BEGIN_DECLS
#    define MEG_END_DECLS
#endif

/* Mark an inline function of a header as __host__ __device__ in CUDA sources, so that kernels can call it. */
#ifdef __CUDACC__
#    define MEG_HOST_DEVICE __host__ __device__
#else
#    define MEG_HOST_DEVICE
#endif

#define MEG_NORETURN __attribute__((noreturn))
#define MEG_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
