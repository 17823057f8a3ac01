/* Test that the queue device detects host accesses to device memory, early reads, and missing waits for events. */
#include <math.h>
#include <signal.h>
#include "queue.h"

#include "../unit/child.h"

static const struct meg_device *d;

/* Open the device, and return device memory with the floats 0, 1, ..., n - 1. */
static float *new_floats(int n)
{
    float host[64];
    float *dev;

    signal(SIGSEGV, SIG_DFL); /* remove cmocka's handler */
    setenv("MEG_QUEUE_SEED", "1", 1);
    d = queue_device();
    dev = d->op->alloc((size_t)n * sizeof *dev);
    for (int i = 0; i < n; i++)
        host[i] = (float)i;
    d->op->upload(d->compute, dev, host, (size_t)n * sizeof *dev);
    for (int i = 0; i < n; i++)
        host[i] = -1; /* upload has copied it */
    return dev;
}

static void read_from_host(void *arg)
{
    const float *dev = new_floats(4);

    (void)arg;
    meg_device_synchronize(d, d->compute);
    exit(dev[0] == 0 ? 3 : 4);
}

static void write_from_host(void *arg)
{
    float *dev = new_floats(4);

    (void)arg;
    meg_device_synchronize(d, d->compute);
    dev[0] = 1;
}

static void a_host_access_is_a_segmentation_fault(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, read_from_host, NULL);
    assert_int_equal(c.status, 128 + SIGSEGV);
    child_run(&c, write_from_host, NULL);
    assert_int_equal(c.status, 128 + SIGSEGV);
}

static void upload_copies_at_once_and_reads_are_in_order(void **state)
{
    float host[64], *dev = new_floats(64);

    (void)state;
    meg_device_read(d, d->compute, host, dev, sizeof host);
    for (int i = 0; i < 64; i++)
        assert_true(host[i] == (float)i);
    d->op->release(dev);
}

/*
 * Upload i from pinned memory, and overwrite i there: at once or, if `waits` is true, after waiting for an event of the
 * upload.  Repeat this for 100 values of i, and return how often the new value is uploaded instead of i.
 */
static int early_replacements(bool waits)
{
    struct meg_event *event = d->op->event_create();
    float *pinned = d->op->alloc_pinned(64 * sizeof *pinned), *dev = new_floats(64), host[64];
    int early = 0;

    meg_device_synchronize(d, d->compute);
    for (int i = 0; i < 100; i++) {
        pinned[1] = (float)i;
        d->op->upload_pinned(d->copy, dev, pinned, 64 * sizeof *pinned);
        d->op->event_record(d->copy, event);
        if (waits)
            meg_device_wait(d, event);
        pinned[1] = -1;
        meg_device_read(d, d->copy, host, dev, sizeof host);
        early += host[1] != (float)i;
    }
    d->op->event_destroy(event);
    d->op->release_pinned(pinned);
    d->op->release(dev);
    return early;
}

static void an_early_reuse_of_pinned_memory_gives_other_numbers(void **state)
{
    (void)state;
    assert_int_equal(early_replacements(true), 0);
    assert_true(early_replacements(false) > 10);
}

static void a_download_is_nan_until_it_is_waited_for(void **state)
{
    float *pinned = d->op->alloc_pinned(64 * sizeof *pinned), *dev = new_floats(64);
    int early = 0;

    (void)state;
    for (int i = 0; i < 100; i++) {
        d->op->download(d->compute, pinned, dev, 64 * sizeof *pinned);
        early += isnan(pinned[1]) != 0;
        meg_device_synchronize(d, d->compute);
        assert_true(pinned[1] == 1);
    }
    assert_true(early > 10);
    d->op->release_pinned(pinned);
    d->op->release(dev);
}

/*
 * Double an element on one stream, and read it on a second stream.  If `waits` is true, the second stream waits for an
 * event of the first one.  Repeat this 100 times, and return how often the element was read before it was doubled.
 */
static int early_reads(bool waits)
{
    struct meg_event *event = d->op->event_create();
    float *dev = new_floats(64), *pinned = d->op->alloc_pinned(64 * sizeof *pinned);
    const struct meg_mat x = { dev, MEG_DTYPE_F32, 1, 64, 64 };
    int early = 0;

    for (int i = 1; i <= 100; i++) {
        MEG_CALL(d->op, d->compute, add_fwd, .z = x, .x = x, .y = x);
        d->op->event_record(d->compute, event);
        if (waits)
            d->op->event_wait(d->copy, event);
        d->op->download(d->copy, pinned, dev, 64 * sizeof *pinned);
        meg_device_synchronize(d, d->copy);
        early += pinned[1] != ldexpf(1, i);
        meg_device_synchronize(d, d->compute);
    }
    d->op->event_destroy(event);
    d->op->release_pinned(pinned);
    d->op->release(dev);
    return early;
}

static void a_missing_wait_gives_other_numbers(void **state)
{
    (void)state;
    assert_int_equal(early_reads(true), 0);
    assert_true(early_reads(false) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_access_is_a_segmentation_fault),
        cmocka_unit_test(upload_copies_at_once_and_reads_are_in_order),
        cmocka_unit_test(an_early_reuse_of_pinned_memory_gives_other_numbers),
        cmocka_unit_test(a_download_is_nan_until_it_is_waited_for),
        cmocka_unit_test(a_missing_wait_gives_other_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
