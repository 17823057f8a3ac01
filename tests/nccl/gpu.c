/*
 * gpu.c - the simulated GPU: its driver and properties, and the failure of a kernel.
 */
#include <stdlib.h>
#include <string.h>
#include "double.h"

/* ---- failures of a GPU ---- */

volatile cudaError_t gpu_error;

void fail_gpu(void *error)
{
    gpu_error = (cudaError_t)(intptr_t)error;
}

cudaError_t next_kernel_error(void)
{
    static long n;
    const char *error = getenv("MEG_DOUBLE_FAILURE");

    return error && ++n == strtol(error, NULL, 10) ? (cudaError_t)strtol(strchr(error, ':') + 1, NULL, 10)
                                                   : cudaSuccess;
}

API cudaError_t cudaGetLastError(void)
{
    return gpu_error;
}

API const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorNotReady ? "not ready" : "an error";
}

API const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorECCUncorrectable: return "cudaErrorECCUncorrectable";
    case cudaErrorNvlinkUncorrectable: return "cudaErrorNvlinkUncorrectable";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorSystemNotReady: return "cudaErrorSystemNotReady";
    default: return "an error";
    }
}

/* ---- the device ----------------------------------------------------------------------------------- */

API cudaError_t cudaDriverGetVersion(int *version)
{
    *version = (int)variable("MEG_DOUBLE_DRIVER", CUDART_VERSION);
    return cudaSuccess;
}

API cudaError_t cudaGetDeviceCount(int *n)
{
    *n = (int)variable("MEG_DOUBLE_GPUS", 64); /* one for each rank */
    if (variable("MEG_DOUBLE_DRIVER", CUDART_VERSION) < CUDART_VERSION)
        return cudaErrorInsufficientDriver;
    return *n ? (cudaError_t)variable("MEG_DOUBLE_DRIVER_ERROR", cudaSuccess) : cudaErrorNoDevice;
}

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int index)
{
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "double");
    prop->uuid.bytes[0] = (char)index;
    prop->major = (int)variable("MEG_DOUBLE_CC", 90) / 10;
    prop->minor = (int)variable("MEG_DOUBLE_CC", 90) % 10;
    prop->multiProcessorCount = 4;
    prop->totalGlobalMem = (size_t)1 << 40;
    return cudaSuccess;
}

API cudaError_t cudaSetDevice(int index)
{
    (void)index;
    return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
