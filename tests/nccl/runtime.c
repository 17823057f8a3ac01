/*
 * runtime.c - streams, events, copies and kernels of the CUDA runtime.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "double.h"

struct CUevent_st {
    struct CUevent_st *next;
    uint64_t recorded, done; /* numbers of the last record that was queued, and of the last that was executed */
    struct clock clock;      /* of the last record */
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;  /* a task was queued */
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER; /* a stream became idle, or an event was recorded */
static struct CUstream_st *streams;
int nstreams;
static struct CUevent_st *events;
static uint64_t random_state;

/* ---- streams -------------------------------------------------------------------------------------- */

static void *run_streams(void *arg);

void push_task(struct CUstream_st *s, struct task t)
{
    static bool is_running;
    struct task *copy;
    pthread_t thread;

    if (s->capture) {
        capture_task(s->capture, t);
        return;
    }
    if (!is_running) {
        is_running = true;
        random_state = (uint64_t)getpid() * 0x9e3779b97f4a7c15u + 1;
        pthread_create(&thread, NULL, run_streams, NULL);
    }
    copy = malloc(sizeof *copy);
    *copy = t;
    copy->next = NULL;
    if (s->first)
        s->last->next = copy;
    else
        s->first = copy;
    s->last = copy;
    pthread_cond_broadcast(&changed);
}

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Execute a copy.  Fail if pinned memory has changed since the copy was queued. */
static void run_copy(const struct task *t)
{
    if (t->bytes && memcmp(t->from, t->bytes, t->n) != 0)
        fail("pinned memory of %zu bytes changes before the copy from it is complete", t->n);
    memcpy(t->to, t->from, t->n);
    free(t->bytes);
}

/* Execute a task; return whether it is finished.  Functions, copies and memsets run without the lock. */
static bool run_task(struct task *t)
{
    switch (t->type) {
    case RECORD: t->event->done = t->number; return true;
    case WAIT: return t->event->done >= t->number;
    case LAUNCH: return next_random() % 4 != 0 && progress_launch(t->launch);
    case FUNCTION:
    case COPY:
    case SET: break;
    }
    pthread_mutex_unlock(&lock);
    if (t->type == FUNCTION) {
        t->fn(t->arg);
        if (t->release)
            t->release(t->arg);
    } else if (t->type == COPY) {
        run_copy(t);
    } else {
        memset(t->to, t->value, t->n);
    }
    pthread_mutex_lock(&lock);
    return true;
}

/*
 * Try the first task of each stream until one finishes; return whether one did.  Begin with the favorite stream, which
 * changes seldom.  Set *is_launched to whether an NCCL operation was tried.
 */
static bool run_one(bool *is_launched)
{
    static int favorite;

    *is_launched = false;
    if (gpu_error)
        return false;
    if (next_random() % 32 == 0)
        favorite = (int)(next_random() % (uint64_t)nstreams);
    for (int pass = 0; pass < 2; pass++)
        for (struct CUstream_st *s = streams; s; s = s->next) {
            struct task *t = s->first;

            if (!t || (s->index >= favorite) != (pass == 0))
                continue;
            *is_launched |= t->type == LAUNCH;
            if (!run_task(t))
                continue;
            s->first = t->next;
            if (!s->first || t->type == RECORD)
                pthread_cond_broadcast(&finished);
            free(t);
            return true;
        }
    return false;
}

static void *run_streams(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        bool is_launched;

        set_accessible(true);
        if (run_one(&is_launched))
            continue;
        if (is_launched) {
            pthread_mutex_unlock(&lock);
            usleep(20);
            pthread_mutex_lock(&lock);
        } else {
            if (next_random() % 16 == 0) /* seldom, because it takes time */
                set_accessible(false);
            pthread_cond_wait(&changed, &lock);
        }
    }
    return NULL;
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned int flags)
{
    RETURN_GPU_ERROR();
    if (flags != cudaStreamNonBlocking)
        fail("a stream that synchronizes with the default stream");
    *s = calloc(1, sizeof **s);
    pthread_mutex_lock(&lock);
    (*s)->index = nstreams++;
    (*s)->next = streams;
    streams = *s;
    if (nstreams > MAX_STREAMS)
        fail("more than %d streams", MAX_STREAMS);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static bool is_idle(const struct CUstream_st *s)
{
    if (s)
        return !s->first;
    for (s = streams; s; s = s->next)
        if (s->first)
            return false;
    return true;
}

/* Wait until a stream is idle or an event is recorded, but at most 1 ms, because gpu_error may change. */
static void wait_finished(void)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&finished, &lock, &until);
}

void wait_idle(const struct CUstream_st *s)
{
    while (!is_idle(s) && !gpu_error)
        wait_finished();
}

/*
 * With s = NULL, the default stream, return at once: nothing is queued on it, and other streams do not synchronize with
 * it.
 */
API cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    pthread_mutex_lock(&lock);
    if (s && s->capture)
        fail("the host waits for a stream that is captured");
    if (s) {
        wait_idle(s);
        merge_clock(&host_clock, &s->clock);
        forget_complete();
    }
    pthread_mutex_unlock(&lock);
    return gpu_error;
}

/* Return the error of an earlier kernel.  Callers do not use other results. */
API cudaError_t cudaStreamQuery(cudaStream_t s)
{
    (void)s;
    RETURN_GPU_ERROR();
    return cudaErrorNotReady;
}

API cudaError_t cudaDeviceSynchronize(void)
{
    pthread_mutex_lock(&lock);
    wait_idle(NULL);
    for (const struct CUstream_st *s = streams; s; s = s->next)
        merge_clock(&host_clock, &s->clock);
    forget_complete();
    pthread_mutex_unlock(&lock);
    return gpu_error;
}

API cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    struct CUstream_st **link = &streams;

    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    if (s->first)
        fail("a stream is destroyed while work is queued on it");
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    free(s);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* ---- events --------------------------------------------------------------------------------------- */

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned int flags)
{
    RETURN_GPU_ERROR();
    (void)flags;
    *e = calloc(1, sizeof **e);
    pthread_mutex_lock(&lock);
    (*e)->next = events;
    events = *e;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* The event stays in the list: queued tasks may refer to it. */
API cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)e;
    return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    begin_task(s);
    e->clock = s->clock;
    push_task(s, (struct task){ .type = RECORD, .event = e, .number = ++e->recorded });
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned int flags)
{
    RETURN_GPU_ERROR();
    (void)flags;
    pthread_mutex_lock(&lock);
    begin_task(s);
    merge_clock(&s->clock, &e->clock);
    push_task(s, (struct task){ .type = WAIT, .event = e, .number = e->recorded });
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaEventQuery(cudaEvent_t e)
{
    bool is_done;

    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    is_done = e->done == e->recorded;
    if (is_done) {
        merge_clock(&host_clock, &e->clock);
        forget_complete();
    } else {
        wait_finished(); /* so that callers that poll need little CPU time */
    }
    pthread_mutex_unlock(&lock);
    return is_done ? cudaSuccess : cudaErrorNotReady;
}

API cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    cudaError_t error;

    while ((error = cudaEventQuery(e)) == cudaErrorNotReady)
        ;
    return error;
}

API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    (void)begin, (void)end;
    *ms = 1;
    return cudaSuccess;
}

/* ---- copies and kernels --------------------------------------------------------------------------- */

/* A copy from pageable memory reads the memory at once. */
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    void *bytes = NULL;
    bool is_pageable;

    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    if (s->capture && kind != cudaMemcpyDeviceToDevice)
        fail("a copy between host and device on a stream that is captured");
    if (n && (is_device(to, n) != (kind != cudaMemcpyDeviceToHost) ||
              is_device(from, n) != (kind != cudaMemcpyHostToDevice)))
        fail("a copy of %zu bytes does not match cudaMemcpyKind %d", n, (int)kind);
    if (n && kind == cudaMemcpyDeviceToHost) {
        if (!memory_of(to, n))
            fail("a copy of %zu bytes to pageable memory, which blocks the host", n);
        memset(to, 0xff, n);
    }
    if (kind == cudaMemcpyHostToDevice)
        bytes = memcpy(malloc(n + 1), from, n);
    is_pageable = bytes && !memory_of(from, n);
    if (is_pageable)
        from = bytes;
    begin_task(s);
    if (!is_pageable)
        check_access(s, from, n, READ, false, "a copy from memory");
    check_access(s, to, n, WRITE, false, "a copy to memory");
    push_task(s, (struct task){ .type = COPY, .to = to, .from = from, .bytes = bytes, .n = n });
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t s)
{
    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    if (n && !is_device(to, n))
        fail("a memset of %zu bytes that are not device memory", n);
    begin_task(s);
    check_access(s, to, n, WRITE, false, "a memset");
    push_task(s, (struct task){ .type = SET, .to = to, .value = value, .n = n });
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t meg_double_launch(cudaStream_t s, void (*run)(void *arg), void *arg, void (*release)(void *arg))
{
    const bool is_blocking = variable("CUDA_LAUNCH_BLOCKING", 0) != 0;
    struct task task = { .type = FUNCTION, .fn = run, .arg = arg, .release = release };
    cudaError_t error;

    RETURN_GPU_ERROR();
    if ((error = next_kernel_error()))
        task = (struct task){ .type = FUNCTION, .fn = fail_gpu, .arg = (void *)(intptr_t)error };
    pthread_mutex_lock(&lock);
    if (!s->capture)
        log_launch("kernel");
    begin_task(s);
    push_task(s, task);
    if (is_blocking)
        wait_idle(s);
    pthread_mutex_unlock(&lock);
    return is_blocking ? gpu_error : cudaSuccess;
}
