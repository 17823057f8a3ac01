/* Selection of the device by --device, and blocking copies from the device to the host. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "device/device.h"
#ifdef MEG_HAVE_CUDA
#    include "cuda/cuda.h"
#endif

static bool has_gpu(void)
{
#ifdef MEG_HAVE_CUDA
    return meg_cuda_num_devices(NULL) > 0;
#else
    return false;
#endif
}

static void opens_the_cpu_without_a_gpu(void **state)
{
    const struct meg_device_conf c = { 0 };
    const struct meg_device *d = NULL;
    struct meg_err e;

    (void)state;
    if (has_gpu())
        skip();
    assert_int_equal(meg_device_open(&d, &c, &e), 0);
    assert_string_equal(d->op->name, "cpu");
    assert_ptr_equal(d, meg_device_cpu());
}

static void refuses_cuda_without_a_gpu(void **state)
{
    const struct meg_device_conf c = { .device = MEG_DEVICE_CUDA };
    const struct meg_device *d = NULL;
    struct meg_err e;
    int r;

    (void)state;
    if (has_gpu())
        skip();
    r = meg_device_open(&d, &c, &e);
    assert_null(d);
#ifdef MEG_HAVE_CUDA
    assert_int_equal(r, MEG_EFAIL);
    assert_ptr_equal(strstr(e.msg, "--device cuda: "), e.msg);
#else
    assert_int_equal(r, MEG_EUSAGE);
    assert_string_equal(e.msg,
                        "--device cuda: this program was built without CUDA; install the CUDA toolkit and run make "
                        "CUDA=1, or use --device cpu");
#endif
}

/* The size exceeds that of the staging buffer, and is not a multiple of it. */
static void reads_device_memory_of_any_size(void **state)
{
    const struct meg_device *d = meg_device_cpu();
    const size_t n = (5 << 20) / 2 + 13;
    unsigned char *host = meg_new(n), *back = meg_new(n), *dev = d->op->alloc(n), *copy = d->op->alloc(n);

    (void)state;
    for (size_t i = 0; i < n; i++)
        host[i] = (unsigned char)(i * 2654435761u >> 13);
    d->op->upload(d->compute, dev, host, n);
    d->op->copy(d->compute, copy, dev, n);
    d->op->zero(d->compute, dev, n);
    meg_device_read(d, d->compute, back, copy, n);
    assert_memory_equal(back, host, n);
    meg_device_read(d, d->compute, back, dev, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(back[i], 0);
    d->op->release(dev);
    d->op->release(copy);
    free(host);
    free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_the_cpu_without_a_gpu),
        cmocka_unit_test(refuses_cuda_without_a_gpu),
        cmocka_unit_test(reads_device_memory_of_any_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
