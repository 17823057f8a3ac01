/* Load NCCL and the CUDA runtime, and select the device of this rank. */
#include "comm/nccl_lib.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define CUDART "libcudart.so." /* followed by the major version */
#define NCCL "libnccl.so." TEXT(NCCL_MAJOR)

struct call {
    const char *name;
    size_t offset; /* byte offset of the pointer in struct meg_nccl_lib */
};
#define CALL(f) { #f, offsetof(struct meg_nccl_lib, f) },
static const struct call cuda_calls[] = { MEG_CUDA_CALLS(CALL){ NULL, 0 } };
static const struct call nccl_calls[] = { MEG_NCCL_CALLS(CALL){ NULL, 0 } };

static void load(struct meg_nccl_lib *lib, const char *name, const struct call *calls)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL), *fn;

    if (!handle)
        meg_die(MEG_EFAIL,
                "ranks started by torchrun require %s: %s; install the library or set LD_LIBRARY_PATH, or start the "
                "ranks with mpirun",
                name, dlerror());
    for (; calls->name; calls++) {
        if (!(fn = dlsym(handle, calls->name)))
            meg_die(MEG_EFAIL, "%s: %s; install NCCL %d.%d and CUDA %d.%d or later", name, dlerror(), NCCL_MAJOR,
                    NCCL_MINOR, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
        memcpy((char *)lib + calls->offset, &fn, sizeof fn);
    }
}

static void select_device(const struct meg_nccl_lib *lib, int local_rank)
{
    int devices = 0;
    cudaError_t r = lib->cudaGetDeviceCount(&devices);

    if (r == cudaSuccess && local_rank >= devices)
        meg_die(MEG_EFAIL,
                "LOCAL_RANK is %d, but this machine has %d CUDA device%s; start at most one rank per device, or use "
                "mpirun",
                local_rank, devices, devices == 1 ? "" : "s");
    if (r == cudaSuccess)
        r = lib->cudaSetDevice(local_rank);
    if (r != cudaSuccess)
        meg_die(MEG_EFAIL,
                "each rank started by torchrun requires a CUDA device: %s; start the ranks with mpirun instead",
                lib->cudaGetErrorString(r));
}

const struct meg_nccl_lib *meg_nccl_lib(int local_rank)
{
    static struct meg_nccl_lib lib;
    static bool is_loaded;
    char cudart[32];

    if (!is_loaded) {
        snprintf(cudart, sizeof cudart, CUDART "%d", CUDART_VERSION / 1000);
        load(&lib, cudart, cuda_calls);
        load(&lib, NCCL, nccl_calls);
        select_device(&lib, local_rank);
        is_loaded = true;
    }
    return &lib;
}
