/*
 * golden_device.h - the device of tests that compare models with reference numbers: the GPU if MEG_TEST_GPU is set,
 * else the CPU.  tests/cuda_golden.t runs these tests on the CUDA backend.
 */
#ifndef TESTS_GOLDEN_DEVICE_H
#define TESTS_GOLDEN_DEVICE_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include "base/mem.h"
#include "model/model.h"

/* On a GPU, the algorithms of matrix products are not chosen by timing them, so that results are reproducible. */
static inline struct meg_device_conf golden_device_conf(void)
{
    return (struct meg_device_conf){ .device = getenv("MEG_TEST_GPU") ? MEG_DEVICE_CUDA : MEG_DEVICE_CPU,
                                     .is_deterministic = true };
}

static inline const struct meg_device *golden_device(void)
{
    const struct meg_device_conf c = golden_device_conf();
    const struct meg_device *d = NULL;
    struct meg_err e;

    if (meg_device_open(&d, &c, &e) < 0)
        fail_msg("%s", e.msg);
    return d;
}

/* Set the weights of a model in f32 to w [flat_numel] (host). */
static inline void set_weights(struct meg_model *g, const float *w)
{
    g->op->upload(g->device->compute, g->w, w, (size_t)g->params.flat_numel * sizeof *w);
}

/* Return a copy in host memory of the weights or the gradients of a model in f32, g->w or g->g; the caller frees it. */
static inline float *copy_to_host(const struct meg_model *g, const void *flat)
{
    const size_t nbytes = (size_t)g->params.flat_numel * sizeof(float);
    float *host = meg_new(nbytes);

    meg_device_read(g->device, g->device->compute, host, flat, nbytes);
    return host;
}

#endif
