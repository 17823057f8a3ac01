/*
 * graph.c - graphs of the CUDA runtime.  A graph has the tasks and the accesses to memory of one stream, which are
 * captured instead of being executed.  Each launch queues the tasks again, and checks the accesses at that time.
 */
#include <stdlib.h>
#include "double.h"

struct captured_access {
    struct captured_access *next;
    const void *p;
    size_t n;
    enum mode mode;
    const char *what;
};

struct CUgraph_st {
    int nusers; /* number of users: the handle of the graph, and each executable graph */
    struct task *first, **end;
    struct captured_access *accesses;
};

struct CUgraphExec_st {
    struct CUgraph_st *graph;
    int stream;      /* index of the stream of the last launch */
    uint64_t number; /* of the task before which the launch began; 0: none */
};

int ncaptures;

void capture_task(struct CUgraph_st *g, struct task t)
{
    struct task *copy = malloc(sizeof *copy);

    if (t.type != FUNCTION && t.type != COPY && t.type != SET)
        fail("%s on a stream that is captured", t.type == LAUNCH ? "a collective" : "an event");
    *copy = t;
    *g->end = copy;
    g->end = &copy->next;
}

void capture_access(struct CUgraph_st *g, const void *p, size_t n, enum mode mode, const char *what)
{
    struct captured_access *a = malloc(sizeof *a);

    *a = (struct captured_access){ g->accesses, p, n, mode, what };
    g->accesses = a;
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    RETURN_GPU_ERROR();
    if (mode != cudaStreamCaptureModeThreadLocal)
        fail("a capture that other threads may disturb");
    pthread_mutex_lock(&lock);
    if (s->capture)
        fail("a stream is captured twice");
    s->capture = calloc(1, sizeof *s->capture);
    s->capture->nusers = 1;
    s->capture->end = &s->capture->first;
    ncaptures++;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    *graph = s->capture;
    s->capture = NULL;
    ncaptures--;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
    RETURN_GPU_ERROR();
    *status = s->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    RETURN_GPU_ERROR();
    (void)flags;
    *exec = calloc(1, sizeof **exec);
    (*exec)->graph = graph;
    graph->nusers++;
    return cudaSuccess;
}

void log_launch(const char *what)
{
    const char *path = getenv("MEG_DOUBLE_LAUNCHES");
    FILE *f = path ? fopen(path, "a") : NULL;

    if (f) {
        fprintf(f, "%s\n", what);
        fclose(f);
    }
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    log_launch("graph");
    begin_task(s);
    exec->stream = s->index;
    exec->number = s->seq;
    for (const struct captured_access *a = exec->graph->accesses; a; a = a->next) {
        if (!memory_of(a->p, a->n))
            fail("a graph accesses memory that was freed");
        check_access(s, a->p, a->n, a->mode, false, a->what);
    }
    for (const struct task *t = exec->graph->first; t; t = t->next) {
        struct task copy = *t;

        copy.release = NULL;
        push_task(s, copy);
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (--graph->nusers > 0)
        return cudaSuccess;
    for (struct task *t = graph->first, *next; t; t = next) {
        next = t->next;
        if (t->release)
            t->release(t->arg);
        free(t);
    }
    for (struct captured_access *a = graph->accesses, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    free(graph);
    return cudaSuccess;
}

/* The caller must have waited for the last launch, which refers to the arguments of the tasks. */
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    pthread_mutex_lock(&lock);
    if (exec->number > host_clock.at[exec->stream])
        fail("a graph is destroyed before the host knows that its last launch is complete");
    pthread_mutex_unlock(&lock);
    cudaGraphDestroy(exec->graph);
    free(exec);
    return cudaSuccess;
}
