/* device.c - selection of the device, and blocking copies to the host. */
#include "device/device.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "cpu/cpu.h"
#ifdef MEG_HAVE_CUDA
#    include "cuda/cuda.h"
#endif

#define C struct meg_device_conf
const struct meg_opt meg_device_opts[] = { { "device", 0, MEG_ENUM(C, device), "auto|cpu|cuda", "auto",
                                             "device to compute on; auto selects a GPU if there is one, else the CPU" },
                                           { "deterministic-mode", 0, MEG_BOOL(C, is_deterministic), NULL, "no",
                                             "on GPUs, use only kernels whose results are bitwise equal in each run, "
                                             "and do not time algorithms to select the fastest; results on CPUs "
                                             "are always bitwise equal" },
                                           { 0 } };
#undef C

static struct meg_device cpu;
#ifdef MEG_HAVE_CUDA
static struct meg_device gpu;
#endif
static const struct meg_device *current; /* device that meg_device_open opened, or NULL */

static void open_streams(struct meg_device *d)
{
    d->compute = d->op->stream_create("compute");
    d->copy = d->op->stream_create("copy");
    d->read_done = d->op->event_create();
    d->read_buffer = d->op->alloc_pinned(MEG_READ_NBYTES);
    if (!d->read_buffer)
        meg_die(MEG_EFAIL, "out of memory: cannot allocate a read buffer of %d bytes", MEG_READ_NBYTES);
}

static void open_cpu(void)
{
    cpu.op = meg_cpu_ops();
    open_streams(&cpu);
}

const struct meg_device *meg_device_cpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, open_cpu);
    return &cpu;
}

#ifdef MEG_HAVE_CUDA
/* Return the local rank, which the launcher sets in the environment; 0 if no launcher has set it. */
static int local_rank(void)
{
    static const char *const names[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                         "SLURM_LOCALID" };
    int64_t rank;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);

        if (text && meg_parse_i64(text, &rank) && rank >= 0 && rank <= INT32_MAX)
            return (int)rank;
    }
    return 0;
}

static int open_gpu(const struct meg_device_conf *c, struct meg_err *e)
{
    const int r = gpu.op ? 0
                         : meg_cuda_open(&gpu.op, &gpu.id, meg_cuda_num_devices(NULL) == 1 ? 0 : local_rank(),
                                         c->is_deterministic, e);

    if (r == 0 && !gpu.compute)
        open_streams(&gpu);
    return r;
}

/* Return whether --device auto selects a GPU. */
static bool auto_selects_gpu(void)
{
    struct meg_err e;
    const int n = meg_cuda_num_devices(&e);

    if (n < 0)
        meg_warn("--device auto selects the CPU: %s", e.msg);
    return n > 0;
}
#endif

int meg_device_open(const struct meg_device **out, const struct meg_device_conf *c, struct meg_err *e)
{
#ifdef MEG_HAVE_CUDA
    if (c->device == MEG_DEVICE_CUDA || (c->device == MEG_DEVICE_AUTO && auto_selects_gpu())) {
        const int r = open_gpu(c, e);

        if (r == 0)
            *out = current = &gpu;
        return r;
    }
#endif
    if (c->device == MEG_DEVICE_CUDA)
        return meg_fail(e, MEG_EUSAGE,
                        "--device cuda: this program was built without CUDA; install the CUDA toolkit and run make "
                        "CUDA=1, or use --device cpu");
    *out = current = meg_device_cpu();
    return 0;
}

const struct meg_device *meg_device_current(void)
{
    return current ? current : meg_device_cpu();
}

const struct meg_ops *meg_device_gpu_ops(void)
{
#ifdef MEG_HAVE_CUDA
    return &meg_cuda_ops;
#else
    return meg_cpu_ops();
#endif
}

#ifdef MEG_DEBUG
int64_t meg_device_step, meg_device_layer = -1;
#endif

void meg_device_set_step(int64_t step)
{
#ifdef MEG_HAVE_CUDA
    meg_cuda_position.step = step;
#endif
#ifdef MEG_DEBUG
    meg_device_step = step;
#endif
    (void)step;
}

void meg_device_set_layer(int64_t layer)
{
#ifdef MEG_HAVE_CUDA
    meg_cuda_position.layer = layer;
#endif
#ifdef MEG_DEBUG
    meg_device_layer = layer;
#endif
    (void)layer;
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

/* Copy rows of `row` bytes, which begin every `stride` bytes of device memory, to contiguous host memory. */
static void read_rows(const struct meg_device *d, struct meg_stream *st, char *host, const char *dev, int64_t rows,
                      size_t row, size_t stride)
{
    const size_t nbytes = rows > 0 ? (size_t)(rows - 1) * stride + row : 0;

    if (nbytes > 0 && d->op->is_host_memory) { /* the staging buffer is not needed */
        for (int64_t r = 0; r < rows; r++)
            d->op->download(st, host + (size_t)r * row, dev + (size_t)r * stride, row);
        meg_device_synchronize(d, st);
        return;
    }
    for (size_t at = 0; at < nbytes; at += MEG_READ_NBYTES) {
        const size_t end = nbytes - at < MEG_READ_NBYTES ? nbytes : at + MEG_READ_NBYTES;

        d->op->download(st, d->read_buffer, dev + at, end - at);
        meg_device_synchronize(d, st);
        for (size_t r = at / stride; r * stride < end; r++) {
            const size_t from = at > r * stride ? at : r * stride, to = end < r * stride + row ? end : r * stride + row;

            if (from < to)
                memcpy(host + (from - r * (stride - row)), (const char *)d->read_buffer + (from - at), to - from);
        }
    }
}

void meg_device_read(const struct meg_device *d, struct meg_stream *st, void *host, const void *dev, size_t nbytes)
{
    read_rows(d, st, host, dev, 1, nbytes, nbytes);
}

void meg_device_read_mat(const struct meg_device *d, struct meg_stream *st, void *host, struct meg_mat x)
{
    const size_t size = meg_dtype_size(x.dtype);

    read_rows(d, st, host, x.p, x.rows, (size_t)x.cols * size, (size_t)x.ld * size);
}

void meg_device_download_mat(const struct meg_device *d, struct meg_stream *st, void *pinned, struct meg_mat x)
{
    const size_t row = (size_t)x.cols * meg_dtype_size(x.dtype);

    if (x.rows == 0)
        return;
    if (x.ld == x.cols)
        d->op->download(st, pinned, x.p, (size_t)x.rows * row);
    else
        for (int64_t r = 0; r < x.rows; r++)
            d->op->download(st, (char *)pinned + (size_t)r * row, meg_element(x.p, r * x.ld, x.dtype), row);
    meg_device_synchronize(d, st);
}
