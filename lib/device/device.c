/* device.c - selection of the device, and blocking copies to the host. */
#include "device/device.h"
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include "base/mem.h"
#include "cpu/cpu.h"

#define C struct meg_device_conf
const struct meg_opt meg_device_opts[] = { { "device", 0, MEG_ENUM(C, device), "auto|cpu|cuda", "auto",
                                             "device to compute on; auto selects the CPU; cuda is not supported yet" },
                                           { 0 } };
#undef C

static struct meg_device cpu;
static const struct meg_device *current; /* device that meg_device_open opened, or NULL */

static void open_cpu(void)
{
    cpu.op = meg_cpu_ops();
    cpu.read_done = cpu.op->event_create();
    cpu.read_buffer = cpu.op->alloc_pinned(MEG_READ_NBYTES);
    if (!cpu.read_buffer)
        meg_die(MEG_EFAIL, "out of memory: cannot allocate a read buffer of %d bytes", MEG_READ_NBYTES);
}

const struct meg_device *meg_device_cpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, open_cpu);
    return &cpu;
}

int meg_device_open(const struct meg_device **out, const struct meg_device_conf *c, struct meg_err *e)
{
    if (c->device == MEG_DEVICE_CUDA)
        return meg_fail(e, MEG_EUSAGE, "--device cuda: this build has no CUDA backend; use --device cpu");
    *out = current = meg_device_cpu();
    return 0;
}

const struct meg_device *meg_device_current(void)
{
    return current ? current : meg_device_cpu();
}

static void (*wait_function)(const struct meg_device *d, struct meg_event *event);

void meg_device_on_wait(void (*wait)(const struct meg_device *d, struct meg_event *event))
{
    wait_function = wait;
}

void meg_device_wait(const struct meg_device *d, struct meg_event *event)
{
    if (wait_function) {
        wait_function(d, event);
        return;
    }
    while (!d->op->event_is_done(event))
        sched_yield();
}

void meg_device_synchronize(const struct meg_device *d, struct meg_stream *st)
{
    d->op->event_record(st, d->read_done);
    meg_device_wait(d, d->read_done);
}

void meg_device_read(const struct meg_device *d, struct meg_stream *st, void *host, const void *dev, size_t nbytes)
{
    for (size_t at = 0; at < nbytes; at += MEG_READ_NBYTES) {
        const size_t n = nbytes - at < MEG_READ_NBYTES ? nbytes - at : MEG_READ_NBYTES;

        d->op->download(st, d->read_buffer, (const char *)dev + at, n);
        meg_device_synchronize(d, st);
        memcpy((char *)host + at, d->read_buffer, n);
    }
}
