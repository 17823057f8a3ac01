/* cuda.c - the GPU in use: its selection, memory, streams and events, and copies between host and device. */
#include "cuda/cuda.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "cuda/cublas/lib.h"
#ifdef MEG_HAVE_CUDNN
#    include "cuda/cudnn/lib.h"
#endif
#include "cuda/internal.h"
#include "tensor/check_ops.h"
#include "tensor/trace_ops.h"

struct meg_cuda_device meg_cuda_device;

/* ---- errors ---- */

struct meg_cuda_line meg_cuda_last;
struct meg_cuda_position meg_cuda_position = { 0, -1 };

/* Return whether an operation is complete when the call that queues it returns (CUDA_LAUNCH_BLOCKING). */
static bool is_blocking(void)
{
    const char *value = getenv("CUDA_LAUNCH_BLOCKING");

    return value && strcmp(value, "0") != 0;
}

/* Return advice about an error for its message. */
static const char *advice(cudaError_t error)
{
    switch (error) {
    case cudaErrorECCUncorrectable:
        return "the memory of the GPU or its driver failed: check nvidia-smi -q and dmesg (Xid), and reset the GPU or "
               "use another one";
    case cudaErrorNvlinkUncorrectable:
        return "a connection between GPUs failed: check nvidia-smi nvlink -e and dmesg (Xid), and use another node";
    case cudaErrorLaunchFailure:
    case cudaErrorUnknown: return "the GPU or its driver may have failed: check nvidia-smi -q and dmesg (Xid)";
    case cudaErrorDevicesUnavailable: return "another process may use the GPU exclusively: check nvidia-smi";
    case cudaErrorSystemNotReady: return "a service of the driver does not run: check nvidia-fabricmanager";
    case cudaErrorSystemDriverMismatch:
        return "the driver was updated while it was loaded: restart the machine or load the new driver";
    case cudaErrorNoKernelImageForDevice:
        return "this program contains no kernels for the GPU: build it with its compute capability in CUDA_ARCHS";
    case cudaErrorMemoryAllocation:
        return "reduce --micro-batch-size, or end other processes that use the memory of the GPU or the host";
    default: return "check dmesg for errors of the GPU (Xid)";
    }
}

void meg_cuda_check(cudaError_t error, const char *what)
{
    const struct meg_cuda_line at = meg_cuda_last;
    const struct meg_cuda_position *position = &meg_cuda_position;
    char operation[300] = "", step[40] = "", layer[40] = "";

    if (error == cudaSuccess)
        return;
    if (position->step)
        snprintf(step, sizeof step, " in step %" PRId64, position->step);
    if (position->layer >= 0)
        snprintf(layer, sizeof layer, ", layer %" PRId64, position->layer);
    if (at.line)
        snprintf(operation, sizeof operation,
                 is_blocking()
                     ? "; the operation is that of %s:%d%s%s"
                     : "; the last operation that was queued is that of %s:%d%s%s, but an earlier one may have "
                       "failed: set CUDA_LAUNCH_BLOCKING=1 to find it",
                 at.file, at.line, step, layer);
    meg_die(MEG_EFAIL, "GPU %d (%s): %s (%s), reported by %.*s%s; %s", meg_cuda_device.index, meg_cuda_device.name,
            cudaGetErrorString(error), cudaGetErrorName(error), (int)strcspn(what, "("), what, operation,
            advice(error));
}

void meg_cuda_check_earlier(const char *what)
{
    const cudaError_t error = cudaStreamQuery(NULL);

    if (error != cudaErrorNotReady)
        meg_cuda_check(error, what);
}

/* ---- memory ---- */

static size_t free_nbytes(void)
{
    size_t available, total;

    CUDA(cudaMemGetInfo(&available, &total));
    return available;
}

/* Return whether an allocation succeeded.  An error other than exhausted memory ends the process. */
static bool has_allocated(cudaError_t error, const char *what)
{
    if (error != cudaErrorMemoryAllocation) {
        meg_cuda_check(error, what);
        return true;
    }
    (void)cudaGetLastError(); /* clear the error */
    return false;
}

static void *device_alloc(size_t nbytes)
{
    void *p;

    if (!has_allocated(cudaMalloc(&p, nbytes ? nbytes : 1), "cudaMalloc")) {
        meg_warn("GPU %d (%s): cannot allocate %zu MiB of device memory; %zu MiB are free", meg_cuda_device.index,
                 meg_cuda_device.name, nbytes >> 20, free_nbytes() >> 20);
        return NULL;
    }
    CUDA(cudaMemset(p, 0, nbytes));
    CUDA(cudaStreamSynchronize(NULL));
    return p;
}

static void device_release(void *p)
{
    CUDA(cudaFree(p));
}

static void *alloc_pinned(size_t nbytes)
{
    void *p;

    return has_allocated(cudaMallocHost(&p, nbytes ? nbytes : 1), "cudaMallocHost") ? memset(p, 0, nbytes) : NULL;
}

static void release_pinned(void *p)
{
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFreeHost(p));
}

/*
 * An allocation of scratch memory.  One list contains the allocations of all streams; the latest allocation of a
 * stream, which is its largest, precedes its earlier ones.  Earlier allocations are freed only with the stream: graphs
 * contain their addresses, and cudaFree waits for all work of the GPU, which may in turn wait for other ranks.  An
 * allocation is at least twice as large as the previous one, so that all allocations of a stream have at most twice the
 * size of the latest one.
 */
struct scratch {
    struct scratch *next;
    struct meg_stream *st;
    void *p;
    size_t nbytes;
};
static struct scratch *scratches;

void *meg_cuda_scratch(struct meg_stream *st, size_t nbytes)
{
    struct scratch *s = scratches;
    size_t available, total;

    while (s && s->st != st)
        s = s->next;
    if (s && nbytes <= s->nbytes)
        return s->p;
    if (s && nbytes < 2 * s->nbytes)
        nbytes = 2 * s->nbytes;
    s = meg_new(sizeof *s);
    *s = (struct scratch){ .next = scratches, .st = st, .nbytes = (nbytes + ((1 << 20) - 1)) >> 20 << 20 };
    if (!has_allocated(cudaMalloc(&s->p, s->nbytes), "cudaMalloc")) {
        CUDA(cudaMemGetInfo(&available, &total));
        meg_die(MEG_EFAIL,
                "GPU %d (%s): out of memory: an operation requires %zu MiB of workspace, but %zu of %zu MiB are free; "
                "reduce --micro-batch-size or --seq-length",
                meg_cuda_device.index, meg_cuda_device.name, s->nbytes >> 20, available >> 20, total >> 20);
    }
    scratches = s;
    return s->p;
}

static void free_scratch(struct meg_stream *st)
{
    for (struct scratch **link = &scratches, *s; (s = *link);) {
        if (s->st != st) {
            link = &s->next;
            continue;
        }
        *link = s->next;
        CUDA(cudaFree(s->p));
        free(s);
    }
}

/* ---- copies ---- */

static void copy(struct meg_stream *st, void *dst, const void *src, size_t nbytes)
{
    CUDA(cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDeviceToDevice, meg_cuda_stream(st)));
}

/* Buffers of pinned memory through which `upload` copies.  A buffer is used again when the copy from it is complete. */
enum { NUM_STAGING = 64, STAGING_NBYTES = 256 << 10 };
static struct {
    char *p;
    cudaEvent_t done[NUM_STAGING];
    int next;
} staging;

static void open_staging(void)
{
    CUDA(cudaMallocHost((void **)&staging.p, (size_t)NUM_STAGING * STAGING_NBYTES));
    for (int i = 0; i < NUM_STAGING; i++)
        CUDA(cudaEventCreateWithFlags(&staging.done[i], cudaEventDisableTiming));
}

static void upload(struct meg_stream *st, void *dev, const void *host, size_t nbytes)
{
    for (size_t at = 0; at < nbytes; at += STAGING_NBYTES) {
        const size_t n = nbytes - at < STAGING_NBYTES ? nbytes - at : STAGING_NBYTES;
        char *buffer = staging.p + (size_t)staging.next * STAGING_NBYTES;
        const cudaEvent_t done = staging.done[staging.next];

        staging.next = (staging.next + 1) % NUM_STAGING;
        CUDA(cudaEventSynchronize(done));
        memcpy(buffer, (const char *)host + at, n);
        CUDA(cudaMemcpyAsync((char *)dev + at, buffer, n, cudaMemcpyHostToDevice, meg_cuda_stream(st)));
        CUDA(cudaEventRecord(done, meg_cuda_stream(st)));
    }
}

static void upload_pinned(struct meg_stream *st, void *dev, const void *pinned, size_t nbytes)
{
    CUDA(cudaMemcpyAsync(dev, pinned, nbytes, cudaMemcpyHostToDevice, meg_cuda_stream(st)));
}

static void download(struct meg_stream *st, void *pinned, const void *dev, size_t nbytes)
{
    CUDA(cudaMemcpyAsync(pinned, dev, nbytes, cudaMemcpyDeviceToHost, meg_cuda_stream(st)));
}

static void zero(struct meg_stream *st, void *dev, size_t nbytes)
{
    CUDA(cudaMemsetAsync(dev, 0, nbytes, meg_cuda_stream(st)));
}

/* ---- streams and events ---- */

/* Bytes of scratch memory that are allocated when the compute stream is created.  Few operations need more. */
enum { MIN_SCRATCH_NBYTES = 64 << 20 };

static struct meg_stream *stream_create(const char *name)
{
    cudaStream_t st;

    CUDA(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    if (strcmp(name, "compute") == 0)
        meg_cuda_scratch((struct meg_stream *)st, MIN_SCRATCH_NBYTES);
    return (struct meg_stream *)st;
}

static void stream_destroy(struct meg_stream *st)
{
    free_scratch(st);
    CUDA(cudaStreamDestroy(meg_cuda_stream(st)));
}

static cudaEvent_t cuda_event(struct meg_event *event)
{
    return (cudaEvent_t)event;
}

static struct meg_event *event_create(void)
{
    cudaEvent_t event;

    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return (struct meg_event *)event;
}

static void event_destroy(struct meg_event *event)
{
    CUDA(cudaEventDestroy(cuda_event(event)));
}

static void event_record(struct meg_stream *st, struct meg_event *event)
{
    CUDA(cudaEventRecord(cuda_event(event), meg_cuda_stream(st)));
}

static void event_wait(struct meg_stream *st, struct meg_event *event)
{
    CUDA(cudaStreamWaitEvent(meg_cuda_stream(st), cuda_event(event), 0));
}

static bool event_is_done(struct meg_event *event)
{
    const cudaError_t error = cudaEventQuery(cuda_event(event));

    if (error == cudaErrorNotReady)
        return false;
    meg_cuda_check(error, "cudaEventQuery");
    return true;
}

/* ---- graphs ---- */

static void graph_begin(struct meg_stream *st)
{
    CUDA(cudaStreamBeginCapture(meg_cuda_stream(st), cudaStreamCaptureModeThreadLocal));
}

static struct meg_graph *graph_end(struct meg_stream *st)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    CUDA(cudaStreamEndCapture(meg_cuda_stream(st), &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return (struct meg_graph *)exec;
}

static void graph_launch(struct meg_stream *st, struct meg_graph *graph)
{
    MEG_CUDA_QUEUE_HERE();
    CUDA(cudaGraphLaunch((cudaGraphExec_t)graph, meg_cuda_stream(st)));
}

static void graph_destroy(struct meg_graph *graph)
{
    CUDA(cudaGraphExecDestroy((cudaGraphExec_t)graph));
}

/* ---- the table of operations ---- */

/*
 * Return the largest multiple of 1024 rows whose bf16 logits take at most 1 GiB, but at least 1024 rows.  For each
 * chunk of rows, the weight gradient of the head is read and written, so small chunks cost time.
 */
static int64_t logits_rows(int64_t v)
{
    const int64_t rows = (INT64_C(1) << 29) / v / 1024 * 1024;

    return rows > 1024 ? rows : 1024;
}

#define OP(name) , .name = meg_cuda_##name
const struct meg_ops meg_cuda_ops = {
    .name = "cuda",
    .is_host_memory = false,
    .decode_rows = 64,
    .pads_decode_steps = true,
    .logits_rows = logits_rows,
    .free_nbytes = free_nbytes,
    .alloc = device_alloc,
    .release = device_release,
    .alloc_pinned = alloc_pinned,
    .release_pinned = release_pinned,
    .copy = copy,
    .upload = upload,
    .upload_pinned = upload_pinned,
    .download = download,
    .zero = zero,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_is_done = event_is_done,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
    .linear_create = meg_cuda_linear_create,
    .linear_destroy = meg_cuda_linear_destroy,
    .attn_bwd_nbytes = meg_cuda_attn_bwd_nbytes,
    .sample_nbytes = meg_cuda_sample_nbytes MEG_TENSOR_OPS(OP),
};
#undef OP

/* ---- selection of the GPU ---- */

/* The oldest compute capability for which kernels are built, 10 * major + minor. */
enum { MIN_CC = 80 };

/* Store the message of an error of the driver, which begins with `what`, and return MEG_EFAIL. */
static int driver_failed(struct meg_err *e, const char *what, cudaError_t error)
{
    return meg_fail(e, MEG_EFAIL, "%s: %s (%s); %s, or use --device cpu", what, cudaGetErrorString(error),
                    cudaGetErrorName(error), advice(error));
}

static int driver_version(void)
{
    int version = 0;

    CUDA(cudaDriverGetVersion(&version));
    return version;
}

int meg_cuda_num_devices(struct meg_err *e)
{
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);

    (void)cudaGetLastError(); /* clear the error */
    if (error == cudaSuccess)
        return n;
    if (error == cudaErrorNoDevice || (error == cudaErrorInsufficientDriver && driver_version() == 0))
        return 0;
    if (error == cudaErrorInsufficientDriver)
        return meg_fail(e, MEG_EFAIL,
                        "the NVIDIA driver supports CUDA %d.%d, but this build requires %d.%d; update the driver, or "
                        "use --device cpu",
                        driver_version() / 1000, driver_version() % 1000 / 10, CUDART_VERSION / 1000,
                        CUDART_VERSION % 1000 / 10);
    return driver_failed(e, "the NVIDIA driver fails", error);
}

static int select_device(int index, struct meg_err *e)
{
    const int n = meg_cuda_num_devices(e);
    struct meg_cuda_device *d = &meg_cuda_device;
    struct cudaDeviceProp prop;
    cudaError_t error;
    char what[40];

    if (n < 0)
        return n;
    if (n == 0 && driver_version() == 0)
        return meg_fail(e, MEG_EFAIL,
                        "--device cuda: no NVIDIA driver (libcuda.so.1) is installed; install it, or use --device cpu");
    if (n == 0)
        return meg_fail(e, MEG_EFAIL,
                        "--device cuda: the NVIDIA driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES, or "
                        "use --device cpu");
    if (index >= n)
        return meg_fail(e, MEG_EFAIL,
                        "local rank %d has no GPU: this process may use %d; start at most %d ranks per node, or check "
                        "CUDA_VISIBLE_DEVICES",
                        index, n, n);
    snprintf(what, sizeof what, "GPU %d cannot be used", index);
    if ((error = cudaGetDeviceProperties(&prop, index)) || (error = cudaSetDevice(index)))
        return driver_failed(e, what, error);
    d->index = index;
    d->cc = 10 * prop.major + prop.minor;
    d->num_sms = prop.multiProcessorCount;
    memcpy(d->name, prop.name, sizeof d->name);
    if (d->cc < MIN_CC)
        return meg_fail(e, MEG_EFAIL,
                        "GPU %d (%s) has compute capability %d.%d, but %d.%d or later is required; use another GPU, or "
                        "--device cpu",
                        index, d->name, prop.major, prop.minor, MIN_CC / 10, MIN_CC % 10);
    d->id = meg_xxh3_64(&prop.uuid, sizeof prop.uuid);
    if ((error = meg_cuda_probe_wgmma(&d->has_wgmma)))
        return driver_failed(e, what, error);
    return 0;
}

int meg_cuda_open(const struct meg_ops **out, uint64_t *id, int index, bool is_deterministic, struct meg_err *e)
{
    const struct meg_ops *table = &meg_cuda_ops;
    int r;

    if ((r = select_device(index, e)) < 0 || (r = meg_cublaslt_load(e)) < 0)
        return r;
#ifdef MEG_HAVE_CUDNN
    if ((r = meg_cudnn_load(e)) < 0)
        return r;
#endif
    meg_cuda_device.is_deterministic = is_deterministic;
    open_staging();
#ifdef MEG_DEBUG
    table = meg_check_ops(table);
#endif
    *id = meg_cuda_device.id;
    *out = meg_trace_ops(table);
    return 0;
}
