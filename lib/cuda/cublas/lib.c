/* lib.c - the loader of cuBLASLt. */
#include "cuda/cublas/lib.h"
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

_Static_assert(CUBLAS_VER_MAJOR >= 12, "the CUDA backend requires CUDA 12 or later");

struct meg_cublaslt_lib meg_cublaslt;

#define CALL(f) { #f, offsetof(struct meg_cublaslt_lib, f) },
static const struct {
    const char *name;
    size_t offset; /* byte offset of the pointer in struct meg_cublaslt_lib */
} calls[] = { MEG_CUBLASLT_CALLS(CALL) };

int meg_cublaslt_load(struct meg_err *e)
{
    struct meg_cublaslt_lib *lib = &meg_cublaslt;
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL), *fn;
    cublasStatus_t status;

    if (!handle)
        return meg_fail(e, MEG_EFAIL,
                        "GPUs require " LIBRARY ": %s; install cuBLAS %d or set LD_LIBRARY_PATH, or use --device cpu",
                        dlerror(), CUBLAS_VER_MAJOR);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (!(fn = dlsym(handle, calls[i].name)))
            return meg_fail(e, MEG_EFAIL, LIBRARY ": %s; install cuBLAS %d.%d or later", dlerror(), CUBLAS_VER_MAJOR,
                            CUBLAS_VER_MINOR);
        memcpy((char *)lib + calls[i].offset, &fn, sizeof fn);
    }
    lib->version = lib->cublasLtGetVersion();
    if (lib->version / 10000 != CUBLAS_VER_MAJOR)
        return meg_fail(
            e, MEG_EFAIL,
            LIBRARY " has version %zu.%zu.%zu, but this build requires cuBLAS %d; install it or set LD_LIBRARY_PATH",
            lib->version / 10000, lib->version / 100 % 100, lib->version % 100, CUBLAS_VER_MAJOR);
    if ((status = lib->cublasLtCreate(&lib->handle)) != CUBLAS_STATUS_SUCCESS)
        return meg_fail(e, MEG_EFAIL, LIBRARY " cannot use the GPU: cublasLtCreate fails: %s; check the driver",
                        lib->cublasLtGetStatusString(status));
    return 0;
}
