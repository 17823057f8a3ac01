/*
 * common.h - common code of the test doubles of the CUDA runtime and NCCL, of cuBLASLt, and of cuDNN.  A file defines
 * LIBRARY, the name of its library in messages, before it includes this header.
 */
#ifndef TESTS_NCCL_COMMON_H
#define TESTS_NCCL_COMMON_H

#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

/* End the process with a message and SIGABRT. */
#define fail(...) fail_of(LIBRARY, __VA_ARGS__)
__attribute__((format(printf, 2, 3), noreturn)) static inline void fail_of(const char *library, const char *fmt, ...)
{
    char text[500];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    dprintf(STDERR_FILENO, "%s double: %s\n", library, text);
    abort();
}

/* Return the number in an environment variable, or `otherwise`. */
static inline long variable(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text ? strtol(text, NULL, 10) : otherwise;
}

/* ---- functions of the double of the CUDA runtime ---- */

/*
 * Declare that the next host function launched on s, which replaces a kernel, accesses p.  Do nothing if p is not in
 * device memory.
 */
API void meg_double_touch(cudaStream_t s, const void *p);

/*
 * Queue run(arg), a host function that replaces a kernel, on s.  `release` frees arg when no task or graph refers to it
 * any more.
 */
API cudaError_t meg_double_launch(cudaStream_t s, void (*run)(void *arg), void *arg, void (*release)(void *arg));

/* Return whether a pointer is to device memory, or to its end. */
API int meg_double_is_device(const void *p);

#endif
