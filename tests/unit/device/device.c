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

/* Read a block that is larger than the staging buffer and not a multiple of its size. */
static void check_size(const struct meg_device *d)
{
    const size_t n = (5 << 20) / 2 + 13;
    unsigned char *host = meg_new(n), *back = meg_new(n), *dev = d->op->alloc(n), *copy = d->op->alloc(n);

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

/* Read matrices, some of whose rows are split at the end of the staging buffer; the longest rows exceed it. */
static void check_rows(const struct meg_device *d)
{
    enum { ROWS = 7 };
    static const int64_t cols[] = { 1, 1000, 100003, 262143, 262144, 300001 };

    for (size_t k = 0; k < sizeof cols / sizeof *cols; k++)
        for (int64_t gap = 0; gap < 16; gap += 5) {
            const int64_t ld = cols[k] + gap;
            const size_t n = (size_t)(ROWS * ld - gap), kept = (size_t)(ROWS * cols[k]);
            float *host = meg_new(n * sizeof *host), *back = meg_new((kept + 1) * sizeof *back);
            float *pinned = d->op->alloc_pinned((kept + 1) * sizeof *pinned);
            struct meg_mat x = { .dtype = MEG_DTYPE_F32, .rows = ROWS, .cols = cols[k], .ld = ld };

            for (size_t i = 0; i < n; i++)
                host[i] = (float)i;
            x.p = d->op->alloc(n * sizeof *host);
            d->op->upload(d->compute, x.p, host, n * sizeof *host);
            back[kept] = pinned[kept] = -1;
            meg_device_read_mat(d, d->compute, back, x);
            meg_device_download_mat(d, d->compute, pinned, x);
            for (int64_t r = 0; r < ROWS; r++)
                assert_memory_equal(back + r * cols[k], host + r * ld, (size_t)cols[k] * sizeof *host);
            assert_memory_equal(pinned, back, (kept + 1) * sizeof *back);
            assert_true(back[kept] == -1);
            d->op->release_pinned(pinned);
            d->op->release(x.p);
            free(host);
            free(back);
        }
}

static void check_empty(const struct meg_device *d)
{
    const struct meg_mat x = { .dtype = MEG_DTYPE_F32, .cols = 4, .ld = 4 };
    char host = 7;

    meg_device_read_mat(d, d->compute, &host, x);
    meg_device_download_mat(d, d->compute, &host, x);
    meg_device_read(d, d->compute, &host, NULL, 0);
    assert_int_equal(host, 7);
}

/* Run a check on the CPU, and on a device that is used as if its memory were not host memory. */
static void on_both(void (*check)(const struct meg_device *d))
{
    struct meg_device copied = *meg_device_cpu();
    struct meg_ops op = *copied.op;

    check(&copied);
    op.is_host_memory = false;
    copied.op = &op;
    check(&copied);
}

static void reads_device_memory_of_any_size(void **state)
{
    (void)state;
    on_both(check_size);
}

static void reads_the_rows_of_a_matrix(void **state)
{
    (void)state;
    on_both(check_rows);
}

static void reads_nothing(void **state)
{
    (void)state;
    on_both(check_empty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_the_cpu_without_a_gpu),
        cmocka_unit_test(refuses_cuda_without_a_gpu),
        cmocka_unit_test(reads_device_memory_of_any_size),
        cmocka_unit_test(reads_the_rows_of_a_matrix),
        cmocka_unit_test(reads_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
