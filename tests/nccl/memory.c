/*
 * memory.c - device memory and pinned memory: allocation, detection of host accesses, and the order of accesses.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "double.h"

struct access {
    struct access *next;
    const char *p;
    size_t n;
    enum mode mode;
    bool is_collective;
    int stream;
    uint64_t seq;
    const char *what;
};

struct memory {
    struct memory *next;
    char *p;
    size_t n;
    bool is_pinned; /* host memory of cudaMallocHost */
    bool is_nccl;   /* of ncclMemAlloc */
    int num_registrations;
};

static struct memory *memory;
static struct access *accesses;
struct clock host_clock;

const struct memory *memory_of(const void *p, size_t n)
{
    const struct memory *m = memory;

    while (m && ((const char *)p < m->p || (const char *)p + n > m->p + m->n))
        m = m->next;
    return m;
}

bool is_device(const void *p, size_t n)
{
    const struct memory *m = memory_of(p, n);

    return m && !m->is_pinned;
}

/* ---- device memory; the caller holds the lock ----------------------------------------------------- */

/*
 * Blocks are allocated from a reserved range of addresses, which are not used again: from its beginning and from its
 * end alternately, so that a block can be before or after an earlier one.  A block, rounded up to a multiple of
 * ALIGNMENT, ends at the end of a page, and is followed by an inaccessible page.
 */
enum { PAGE = 4096, ALIGNMENT = 256 };
#define RESERVED ((size_t)1 << 40)
static struct {
    char *base;
    size_t used[2]; /* bytes at the beginning and at the end */
    bool is_at_end; /* whether the next block is at the end */
    bool is_accessible;
    struct sigaction old_action;
} device;

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Return the first page of a block, and set *n to the size of its pages in bytes. */
static char *pages_of(const struct memory *m, size_t *n)
{
    char *const first = m->p - (uintptr_t)m->p % PAGE;

    *n = round_up((size_t)(m->p - first) + m->n, PAGE);
    return first;
}

static void protect(const struct memory *m, bool is_accessible)
{
    size_t n;
    char *const first = pages_of(m, &n);

    if (mprotect(first, n, is_accessible ? PROT_READ | PROT_WRITE : PROT_NONE))
        fail("mprotect fails: %s", strerror(errno));
}

void set_accessible(bool is_accessible)
{
    if (device.is_accessible == is_accessible)
        return;
    device.is_accessible = is_accessible;
    for (const struct memory *m = memory; m; m = m->next)
        if (!m->is_pinned)
            protect(m, is_accessible);
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    const size_t at = (size_t)((char *)info->si_addr - device.base);

    (void)signal_number, (void)context;
    if (at < RESERVED)
        fail("the host accesses device memory, or a kernel accesses memory that is not allocated");
    sigaction(SIGSEGV, &device.old_action, NULL); /* the instruction is repeated */
}

static void device_reserve(void)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

    device.base = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (device.base == MAP_FAILED)
        fail("mmap fails: %s", strerror(errno));
    madvise(device.base, RESERVED, MADV_HUGEPAGE); /* because memory_new fills large workspaces */
    sigaction(SIGSEGV, &action, &device.old_action);
}

static char *device_alloc(size_t n)
{
    const size_t data = round_up(n ? n : 1, ALIGNMENT), pages = round_up(data, PAGE);
    size_t *used = &device.used[device.is_at_end], first;

    if (!device.base)
        device_reserve();
    if (pages + PAGE > RESERVED - device.used[0] - device.used[1])
        fail("%zu bytes of device memory", n);
    first = device.is_at_end ? RESERVED - *used - pages - PAGE : *used;
    *used += pages + PAGE;
    device.is_at_end = !device.is_at_end;
    return device.base + first + pages - data;
}

/* ---- order of accesses; the caller holds the lock ------------------------------------------------- */

void merge_clock(struct clock *to, const struct clock *from)
{
    for (int i = 0; i < nstreams; i++)
        if (to->at[i] < from->at[i])
            to->at[i] = from->at[i];
}

void forget_complete(void)
{
    for (struct access **link = &accesses; *link;) {
        struct access *a = *link;

        if (a->seq > host_clock.at[a->stream]) {
            link = &a->next;
            continue;
        }
        *link = a->next;
        free(a);
    }
}

/* Remove the accesses to memory that is freed. */
static void forget_memory(const struct memory *m)
{
    for (struct access **link = &accesses; *link;) {
        struct access *a = *link;

        if (a->p >= m->p + m->n || m->p >= a->p + a->n) {
            link = &a->next;
            continue;
        }
        *link = a->next;
        free(a);
    }
}

void begin_task(struct CUstream_st *s)
{
    if (s->capture)
        return;
    merge_clock(&s->clock, &host_clock);
    s->clock.at[s->index] = ++s->seq;
}

void check_access(struct CUstream_st *s, const void *p, size_t n, enum mode mode, bool is_collective, const char *what)
{
    struct access *record = NULL;

    if (!n)
        return;
    if (s->capture) {
        capture_access(s->capture, p, n, mode, what);
        return;
    }
    for (struct access *a = accesses; a; a = a->next) {
        if (a->p < (const char *)p + n && (const char *)p < a->p + a->n && a->stream != s->index &&
            (mode == WRITE || a->mode == WRITE) && s->clock.at[a->stream] < a->seq)
            fail("%s of %zu bytes on stream %d is not ordered after %s on stream %d", what, n, s->index, a->what,
                 a->stream);
        if (a->p == p && a->n == n && a->stream == s->index && a->is_collective == is_collective &&
            (mode == WRITE || a->mode != WRITE))
            record = a;
    }
    if (!record) {
        record = calloc(1, sizeof *record);
        record->next = accesses;
        accesses = record;
    }
    *record = (struct access){ record->next, p, n, mode, is_collective, s->index, s->seq, what };
}

API void meg_double_touch(cudaStream_t s, const void *p)
{
    pthread_mutex_lock(&lock);
    if (is_device(p, 1)) {
        begin_task(s);
        check_access(s, p, 1, TOUCH, false, "a kernel");
    }
    pthread_mutex_unlock(&lock);
}

API int meg_double_is_device(const void *p)
{
    bool is;

    pthread_mutex_lock(&lock);
    is = is_device(p, 0);
    pthread_mutex_unlock(&lock);
    return is;
}

/* ---- allocation ----------------------------------------------------------------------------------- */

static size_t other_nbytes; /* memory of another process */

static void *memory_new(size_t n, bool is_pinned)
{
    struct memory *m = malloc(sizeof *m);

    pthread_mutex_lock(&lock);
    *m = (struct memory){ .next = memory,
                          .p = is_pinned ? aligned_alloc(ALIGNMENT, round_up(n + 1, ALIGNMENT)) : device_alloc(n),
                          .n = n,
                          .is_pinned = is_pinned };
    if (!is_pinned)
        protect(m, true);
    memset(m->p, 0xff, n);
    if (!is_pinned && !device.is_accessible)
        protect(m, false);
    memory = m;
    pthread_mutex_unlock(&lock);
    return m->p;
}

/* Return the memory that begins at p. */
static struct memory *find_memory(const void *p)
{
    struct memory *m = memory;

    while (m && m->p != p)
        m = m->next;
    if (!m)
        fail("no memory begins at %p", p);
    return m;
}

void add_registration(const void *p, size_t n, int change)
{
    struct memory *m = find_memory(p);

    if (!m->is_nccl || n > m->n)
        fail("registration of memory that ncclMemAlloc has not allocated");
    m->num_registrations += change;
}

/*
 * Wait until stream s is idle or, if s is NULL, until all streams are idle, and free memory.  Fail if a collective may
 * still access it.  Like the real functions, do not wait for more streams: their work may wait for other ranks, which
 * may wait for this rank.
 */
static void memory_free(void *p, bool is_pinned, struct CUstream_st *s)
{
    struct memory **link = &memory, *m;
    size_t n;
    char *first;

    if (!p)
        return;
    pthread_mutex_lock(&lock);
    while (*link && (*link)->p != p)
        link = &(*link)->next;
    m = *link;
    if (!m || m->is_pinned != is_pinned)
        fail("free of memory that is not %s", is_pinned ? "pinned" : "device memory");
    if (m->is_nccl)
        fail("memory of ncclMemAlloc is freed by cudaFree");
    if (m->num_registrations)
        fail("memory is freed before it is deregistered");
    for (const struct access *a = accesses; a; a = a->next)
        if (a->is_collective && a->p < m->p + m->n && m->p < a->p + a->n)
            fail("memory is freed before the host knows that %s on stream %d is complete", a->what, a->stream);
    if (s) {
        begin_task(s);
        check_access(s, m->p, m->n, WRITE, false, "cudaFreeAsync");
    }
    wait_idle(s);
    forget_memory(m);
    link = &memory; /* other threads may have changed the list */
    while (*link != m)
        link = &(*link)->next;
    *link = m->next;
    if (is_pinned) {
        memset(m->p, 0xff, m->n);
        free(m->p);
    } else {
        protect(m, false);
        first = pages_of(m, &n);
        madvise(first, n, MADV_DONTNEED);
    }
    free(m);
    pthread_mutex_unlock(&lock);
}

/* Return the memory of the GPU that is not allocated, in bytes. */
static size_t free_nbytes(void)
{
    const size_t total = (size_t)variable("MEG_DOUBLE_MEMORY", 1 << 20) << 20;
    size_t used = other_nbytes;

    pthread_mutex_lock(&lock);
    for (const struct memory *m = memory; m; m = m->next)
        used += m->is_pinned ? 0 : m->n;
    pthread_mutex_unlock(&lock);
    return used < total ? total - used : 0;
}

API cudaError_t cudaMalloc(void **p, size_t n)
{
    RETURN_GPU_ERROR();
    if (ncaptures)
        fail("an allocation while a stream is captured");
    if (n > free_nbytes())
        return cudaErrorMemoryAllocation;
    *p = memory_new(n, false);
    return cudaSuccess;
}

API cudaError_t cudaFree(void *p)
{
    RETURN_GPU_ERROR();
    if (ncaptures)
        fail("memory is freed while a stream is captured");
    memory_free(p, false, NULL);
    return cudaSuccess;
}

API cudaError_t cudaMallocHost(void **p, size_t n)
{
    RETURN_GPU_ERROR();
    *p = memory_new(n, true);
    return cudaSuccess;
}

API cudaError_t cudaFreeHost(void *p)
{
    RETURN_GPU_ERROR();
    memory_free(p, true, NULL);
    return cudaSuccess;
}

API ncclResult_t ncclMemAlloc(void **p, size_t n)
{
    if (cudaMalloc(p, n) != cudaSuccess)
        return ncclUnhandledCudaError;
    pthread_mutex_lock(&lock);
    find_memory(*p)->is_nccl = true;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

API ncclResult_t ncclMemFree(void *p)
{
    struct memory *m;

    pthread_mutex_lock(&lock);
    m = find_memory(p);
    if (!m->is_nccl)
        fail("ncclMemFree of memory that ncclMemAlloc has not allocated");
    forget_complete();
    for (const struct access *a = accesses; a; a = a->next) /* unlike cudaFree, ncclMemFree waits for no work */
        if (a->p < m->p + m->n && m->p < a->p + a->n)
            fail("ncclMemFree before the host knows that %s on stream %d is complete", a->what, a->stream);
    m->is_nccl = false;
    pthread_mutex_unlock(&lock);
    return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

API cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s)
{
    (void)s;
    return cudaMalloc(p, n);
}

API cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    RETURN_GPU_ERROR();
    memory_free(p, false, s);
    return cudaSuccess;
}

API cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    RETURN_GPU_ERROR();
    *available = free_nbytes();
    *total = (size_t)variable("MEG_DOUBLE_MEMORY", 1 << 20) << 20;
    other_nbytes = (size_t)variable("MEG_DOUBLE_OTHER_MEMORY", 0) << 20;
    return cudaSuccess;
}

/* Set memory that no stream uses yet; fail if a stream does. */
API cudaError_t cudaMemset(void *to, int value, size_t n)
{
    bool was_accessible;

    RETURN_GPU_ERROR();
    pthread_mutex_lock(&lock);
    if (n && !is_device(to, n))
        fail("a memset of %zu bytes that are not device memory", n);
    for (const struct access *a = accesses; a; a = a->next)
        if (a->p < (const char *)to + n && (const char *)to < a->p + a->n)
            fail("a memset on the default stream is not ordered after %s on stream %d", a->what, a->stream);
    was_accessible = device.is_accessible;
    set_accessible(true);
    memset(to, value, n);
    set_accessible(was_accessible);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
