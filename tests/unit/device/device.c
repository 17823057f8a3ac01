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

static void opens_the_cpu_by_default(void **state)
{
    const struct meg_device_conf c = { 0 };
    const struct meg_device *d = NULL;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_device_open(&d, &c, &e), 0);
    assert_string_equal(d->op->name, "cpu");
    assert_ptr_equal(d, meg_device_cpu());
}

static void refuses_cuda_in_a_build_without_it(void **state)
{
    const struct meg_device_conf c = { MEG_DEVICE_CUDA };
    const struct meg_device *d = NULL;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_device_open(&d, &c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--device cuda: this build has no CUDA backend; use --device cpu");
    assert_null(d);
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
        cmocka_unit_test(opens_the_cpu_by_default),
        cmocka_unit_test(refuses_cuda_in_a_build_without_it),
        cmocka_unit_test(reads_device_memory_of_any_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
