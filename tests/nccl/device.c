/*
 * device.c - a device for tests of NCCL collectives: streams, events, memory and copies of the CUDA runtime, and the
 * CPU's operations as functions in its streams.  With the double (double.h) as the CUDA runtime, it needs no GPU.
 */
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "queue.h"

void meg_double_touch(cudaStream_t s, const void *p);
cudaError_t meg_double_launch(cudaStream_t s, void (*run)(void *arg), void *arg, void (*release)(void *arg));

#define CUDA(call) MEG_ASSERT_EQ(call, cudaSuccess)

static cudaStream_t cuda_stream(struct meg_stream *st)
{
    MEG_ASSERT(st);
    return (cudaStream_t)st;
}

/* ---- memory ---- */

static void *device_alloc(size_t nbytes)
{
    void *p;

    CUDA(cudaMalloc(&p, nbytes));
    CUDA(cudaMemset(p, 0, nbytes));
    return p;
}

static void device_release(void *p)
{
    if (p)
        CUDA(cudaFree(p));
}

static void *alloc_pinned(size_t nbytes)
{
    void *p;

    CUDA(cudaMallocHost(&p, nbytes));
    return memset(p, 0, nbytes);
}

static void release_pinned(void *p)
{
    CUDA(cudaFreeHost(p));
}

static void copy(struct meg_stream *st, void *dst, const void *src, size_t nbytes)
{
    CUDA(cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDeviceToDevice, cuda_stream(st)));
}

/* The runtime copies from pageable memory before it returns. */
static void upload(struct meg_stream *st, void *dev, const void *host, size_t nbytes)
{
    CUDA(cudaMemcpyAsync(dev, host, nbytes, cudaMemcpyHostToDevice, cuda_stream(st)));
}

static void upload_pinned(struct meg_stream *st, void *dev, const void *pinned, size_t nbytes)
{
    CUDA(cudaMemcpyAsync(dev, pinned, nbytes, cudaMemcpyHostToDevice, cuda_stream(st)));
}

static void download(struct meg_stream *st, void *pinned, const void *dev, size_t nbytes)
{
    CUDA(cudaMemcpyAsync(pinned, dev, nbytes, cudaMemcpyDeviceToHost, cuda_stream(st)));
}

static void zero(struct meg_stream *st, void *dev, size_t nbytes)
{
    CUDA(cudaMemsetAsync(dev, 0, nbytes, cuda_stream(st)));
}

/* ---- streams and events ---- */

static struct meg_stream *stream_create(const char *name)
{
    cudaStream_t s;

    (void)name;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return (struct meg_stream *)s;
}

static void stream_destroy(struct meg_stream *st)
{
    CUDA(cudaStreamDestroy((cudaStream_t)st));
}

static struct meg_event *event_create(void)
{
    cudaEvent_t e;

    CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return (struct meg_event *)e;
}

static void event_destroy(struct meg_event *event)
{
    CUDA(cudaEventDestroy((cudaEvent_t)event));
}

static void event_record(struct meg_stream *st, struct meg_event *event)
{
    CUDA(cudaEventRecord((cudaEvent_t)event, cuda_stream(st)));
}

static void event_wait(struct meg_stream *st, struct meg_event *event)
{
    CUDA(cudaStreamWaitEvent(cuda_stream(st), (cudaEvent_t)event, 0));
}

static bool event_is_done(struct meg_event *event)
{
    return cudaEventQuery((cudaEvent_t)event) == cudaSuccess;
}

/* ---- operations of the CPU (tests/queue/queue_ops.c) ---- */

struct copied { /* a copy of an argument in host memory, because the caller's memory is valid only during the call */
    struct copied *next;
    _Alignas(16) char bytes[];
};

struct function {
    bool (*run)(void *args);
    struct copied *copied;
    _Alignas(16) char args[];
};

static struct copied *copied; /* copies of queue_keep for the next operation to be queued */

void *queue_keep(const void *bytes, size_t nbytes)
{
    struct copied *c = meg_new(sizeof *c + nbytes);

    memcpy(c->bytes, bytes, nbytes);
    c->next = copied;
    copied = c;
    return c->bytes;
}

static void run_function(void *arg)
{
    struct function *f = arg;

    f->run(f->args);
}

static void release_function(void *arg)
{
    struct function *f = arg;

    for (struct copied *c = f->copied, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(f);
}

/*
 * Queue a function.  Pass each pointer-sized value of the arguments to meg_double_touch: it may be an address that the
 * operation accesses.
 */
void queue_push(struct meg_stream *st, bool (*run)(void *args), const void *args, size_t nbytes)
{
    struct function *f = meg_new(sizeof *f + nbytes);
    const void *p;

    f->run = run;
    f->copied = copied;
    copied = NULL;
    memcpy(f->args, args, nbytes);
    for (size_t i = 0; i + sizeof p <= nbytes; i += sizeof p) {
        memcpy(&p, f->args + i, sizeof p);
        meg_double_touch(cuda_stream(st), p);
    }
    CUDA(meg_double_launch(cuda_stream(st), run_function, f, release_function));
}

/* ---- the device ---- */

static struct meg_ops table;
static struct meg_device device;

static void open_device(void)
{
    table = *queue_ops(meg_cpu_ops());
    table.name = "cuda double";
    table.is_host_memory = false;
    table.alloc = device_alloc;
    table.release = device_release;
    table.alloc_pinned = alloc_pinned;
    table.release_pinned = release_pinned;
    table.copy = copy;
    table.upload = upload;
    table.upload_pinned = upload_pinned;
    table.download = download;
    table.zero = zero;
    table.stream_create = stream_create;
    table.stream_destroy = stream_destroy;
    table.event_create = event_create;
    table.event_destroy = event_destroy;
    table.event_record = event_record;
    table.event_wait = event_wait;
    table.event_is_done = event_is_done;
    device.op = &table;
    device.compute = stream_create("compute");
    device.copy = stream_create("copy");
    device.read_done = event_create();
    device.read_buffer = table.alloc_pinned(MEG_READ_NBYTES);
}

static const struct meg_device *test_device(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, open_device);
    return &device;
}

/* The linker option --wrap redirects calls of the functions of lib/device to the functions __wrap_*. */
const struct meg_device *__wrap_meg_device_cpu(void);
const struct meg_device *__wrap_meg_device_current(void);
int __wrap_meg_device_open(const struct meg_device **out, const struct meg_device_conf *c, struct meg_err *e);

const struct meg_device *__wrap_meg_device_current(void)
{
    return test_device();
}

const struct meg_device *__wrap_meg_device_cpu(void)
{
    return test_device();
}

int __wrap_meg_device_open(const struct meg_device **out, const struct meg_device_conf *c, struct meg_err *e)
{
    (void)c, (void)e;
    *out = test_device();
    return 0;
}
