/* nccl_lib.c - open the NCCL library of the header's major version, and look up the functions in MEG_NCCL_CALLS. */
#include "comm/nccl_lib.h"
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libnccl.so." TEXT(NCCL_MAJOR)

#define CALL(f) { #f, offsetof(struct meg_nccl_lib, f) },
static const struct {
    const char *name;
    size_t offset; /* byte offset of the pointer in struct meg_nccl_lib */
} calls[] = { MEG_NCCL_CALLS(CALL) };

int meg_nccl_load(struct meg_nccl_lib *lib, struct meg_err *e)
{
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL), *fn;

    if (!handle)
        return meg_fail(e, MEG_EFAIL,
                        "several ranks on GPUs require " LIBRARY ": %s; install the library or set LD_LIBRARY_PATH",
                        dlerror());
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (!(fn = dlsym(handle, calls[i].name)))
            return meg_fail(e, MEG_EFAIL, LIBRARY ": %s; install NCCL %d.%d or later", dlerror(), NCCL_MAJOR,
                            NCCL_MINOR);
        memcpy((char *)lib + calls[i].offset, &fn, sizeof fn);
    }
    return 0;
}
