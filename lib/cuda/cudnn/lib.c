/* lib.c - the loader of cuDNN. */
#include "cuda/cudnn/lib.h"
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include "base/log.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libcudnn.so." TEXT(CUDNN_MAJOR)

struct meg_cudnn_lib meg_cudnn;

#define CALL(f) { #f, offsetof(struct meg_cudnn_lib, f) },
static const struct {
    const char *name;
    size_t offset; /* byte offset of the pointer in struct meg_cudnn_lib */
} calls[] = { MEG_CUDNN_CALLS(CALL) };

/* Return the major part of a version such as 91900, for 9.19.0. */
static int major(size_t version)
{
    return (int)(version / 10000);
}

static int minor(size_t version)
{
    return (int)(version / 100 % 100);
}

int meg_cudnn_load(struct meg_err *e)
{
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL), *fn;
    size_t version;

    if (!handle) {
        meg_info("attention uses meg's own kernels, which are slower than cuDNN's: %s; install cuDNN %d.%d or "
                 "set LD_LIBRARY_PATH",
                 dlerror(), major(MEG_CUDNN_OLDEST), minor(MEG_CUDNN_OLDEST));
        return 0;
    }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (!(fn = dlsym(handle, calls[i].name)))
            return meg_fail(e, MEG_EFAIL, LIBRARY ": %s; install cuDNN %d.%d or later", dlerror(),
                            major(MEG_CUDNN_OLDEST), minor(MEG_CUDNN_OLDEST));
        memcpy((char *)&meg_cudnn + calls[i].offset, &fn, sizeof fn);
    }
    version = meg_cudnn.cudnnGetVersion();
    meg_cudnn.is_usable = version >= MEG_CUDNN_OLDEST;
    if (!meg_cudnn.is_usable)
        meg_warn("attention uses meg's own kernels, because cuDNN %d.%d.%d is older than %d.%d; install a newer cuDNN",
                 major(version), minor(version), (int)(version % 100), major(MEG_CUDNN_OLDEST),
                 minor(MEG_CUDNN_OLDEST));
    return 0;
}
