/* queue.c - memory, streams and events of the queue device, and copies between host and device. */
#define _GNU_SOURCE
#include "queue.h"
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/mem.h"
#include "base/num.h"
#include "cpu/cpu.h"

/* ---- random order ---- */

static uint64_t state;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* ---- memory: one reserved range, so that one call protects all of it ---- */

enum { PAGE = 4096 };
#define RESERVED ((size_t)64 << 30)
static struct {
    char *base, *end; /* reserved addresses; device_release advances base past addresses that are not used again */
    size_t used;      /* bytes from base on that blocks, allocated or freed, occupy; a multiple of PAGE */
    int unlocked;
} memory;

struct block {
    struct block *next;
    char *p;
    size_t nbytes;
};
static struct block *blocks;

static void protect(int access)
{
    if (memory.used && mprotect(memory.base, memory.used, access) < 0)
        meg_die(MEG_EFAIL, "queue: mprotect fails");
}

void queue_unlock_memory(void)
{
    if (memory.unlocked++ == 0)
        protect(PROT_READ | PROT_WRITE);
}

void queue_lock_memory(void)
{
    if (--memory.unlocked == 0)
        protect(PROT_NONE);
}

static void *device_alloc(size_t nbytes)
{
    const size_t n = (nbytes + PAGE) / PAGE * PAGE; /* at least one page */
    struct block *b = meg_new(sizeof *b);

    if (!memory.base) {
        memory.base = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MEG_ASSERT(memory.base != MAP_FAILED);
        memory.end = memory.base + RESERVED;
    }
    MEG_ASSERT_LE(n, (size_t)(memory.end - memory.base) - memory.used);
    *b = (struct block){ blocks, memory.base + memory.used, n };
    blocks = b;
    memory.used += n;
    if (memory.unlocked)
        protect(PROT_READ | PROT_WRITE);
    return b->p;
}

static void run_all(void);

/*
 * Run the queued work, as cudaFree does, and fill the block with NaN.  Its addresses are not used again.  When no block
 * is left, free all pages, because locking and unlocking take time for each page.
 */
static void device_release(void *p)
{
    struct block **at = &blocks, *b;

    if (!p)
        return;
    run_all();
    while (*at && (*at)->p != p)
        at = &(*at)->next;
    b = *at;
    MEG_ASSERT(b);
    queue_unlock_memory();
    memset(b->p, 0xff, b->nbytes);
    queue_lock_memory();
    *at = b->next;
    free(b);
    if (!blocks) {
        protect(PROT_NONE);
        MEG_ASSERT(madvise(memory.base, memory.used, MADV_DONTNEED) == 0);
        memory.base += memory.used;
        memory.used = 0;
    }
}

/* ---- streams ---- */

/* A copy of host memory whose original is valid only during a call.  The copy exists until the task has run. */
struct copied {
    struct copied *next;
    _Alignas(16) char bytes[];
};

struct task {
    struct task *next;
    bool (*run)(void *args);
    struct copied *copied;
    _Alignas(16) char args[];
};

struct meg_stream {
    const char *name;
    struct meg_stream *next;
    struct task *first, *last;
};
static struct meg_stream *streams;
static int nstreams;

static struct copied *copied; /* copies that queue_keep made for the task that is pushed next */
static bool is_running;

struct meg_stream *queue_stream_create(const char *name)
{
    struct meg_stream *st = meg_new(sizeof *st);

    *st = (struct meg_stream){ .name = name, .next = streams };
    streams = st;
    nstreams++;
    return st;
}

void queue_stream_destroy(struct meg_stream *st)
{
    struct meg_stream **at = &streams;

    if (!st)
        return;
    run_all();
    while (*at != st)
        at = &(*at)->next;
    *at = st->next;
    nstreams--;
    free(st);
}

void *queue_keep(const void *bytes, size_t nbytes)
{
    struct copied *c = meg_new(sizeof *c + nbytes);

    memcpy(c->bytes, bytes, nbytes);
    c->next = copied;
    copied = c;
    return c->bytes;
}

void queue_push(struct meg_stream *st, bool (*run)(void *args), const void *args, size_t nbytes)
{
    struct task *t = meg_new(sizeof *t + nbytes);

    MEG_ASSERT(st);
    MEG_ASSERT(!is_running);
    t->run = run;
    t->copied = copied;
    copied = NULL;
    memcpy(t->args, args, nbytes);
    if (st->last)
        st->last->next = t;
    else
        st->first = t;
    st->last = t;
    if (next_random() % 16 == 0)
        queue_progress();
}

/* Run the first task of a stream, if any; return whether a task finished. */
static bool run_first(struct meg_stream *st)
{
    struct task *t = st->first;

    if (!t || !t->run(t->args))
        return false;
    st->first = t->next;
    if (!st->first)
        st->last = NULL;
    for (struct copied *c = t->copied, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(t);
    return true;
}

/*
 * Run the first task of each stream, beginning with the favorite stream, until one finishes; return whether one did.
 * The favorite changes seldom, so that a stream runs far ahead of the others where events allow.
 */
static bool run_one(void)
{
    static int favorite;
    bool is_finished = false;

    if (next_random() % 32 == 0)
        favorite = (int)(next_random() % (uint64_t)nstreams);
    is_running = true;
    queue_unlock_memory();
    for (int pass = 0; pass < 2 && !is_finished; pass++) {
        int i = 0;

        for (struct meg_stream *st = streams; st && !is_finished; st = st->next)
            if ((i++ >= favorite) == (pass == 0))
                is_finished = run_first(st);
    }
    queue_lock_memory();
    is_running = false;
    return is_finished;
}

void queue_progress(void)
{
    if (is_running)
        return;
    queue_unlock_memory();
    for (uint64_t n = next_random() % 4; n > 0 && run_one();)
        n--;
    queue_lock_memory();
}

static bool is_idle(void)
{
    for (const struct meg_stream *st = streams; st; st = st->next)
        if (st->first)
            return false;
    return true;
}

/* Run all queued work.  A pass without progress is not a deadlock, because tensor collectives wait for other ranks. */
static void run_all(void)
{
    queue_unlock_memory();
    while (!is_idle())
        if (!run_one())
            sched_yield();
    queue_lock_memory();
}

/* ---- events ---- */

struct meg_event {
    int64_t recorded, done; /* number of the latest record that was queued, and of the latest that ran */
    int64_t waited;         /* number of the latest record that the host waited for */
    int npending;           /* number of records and waits in queues */
    bool is_destroyed;      /* free the event when npending is 0 */
};

/* Number of downloads, and of events that the host waited for, in this process. */
static int64_t num_downloads, num_waits;

struct event_args {
    struct meg_event *event;
    int64_t number;
};

static void release_event(struct meg_event *event)
{
    if (--event->npending == 0 && event->is_destroyed)
        free(event);
}

static bool run_record(void *args)
{
    const struct event_args *a = args;

    a->event->done = a->number;
    release_event(a->event);
    return true;
}

static bool run_wait(void *args)
{
    const struct event_args *a = args;

    if (a->event->done < a->number)
        return false;
    release_event(a->event);
    return true;
}

static struct meg_event *event_create(void)
{
    return meg_new(sizeof(struct meg_event));
}

static void event_destroy(struct meg_event *event)
{
    event->is_destroyed = true;
    event->npending++;
    release_event(event);
}

static void event_record(struct meg_stream *st, struct meg_event *event)
{
    const struct event_args a = { event, ++event->recorded };

    event->npending++;
    queue_push(st, run_record, &a, sizeof a);
}

static void event_wait(struct meg_stream *st, struct meg_event *event)
{
    const struct event_args a = { event, event->recorded };

    event->npending++;
    queue_push(st, run_wait, &a, sizeof a);
}

/*
 * Run a random number of tasks, and return whether the event is done.  A host that waits for an event calls only this
 * function, so the tasks must run here.  While no task can run, yield the CPU to other ranks, whose collectives this
 * rank may need.
 */
static bool event_is_done(struct meg_event *event)
{
    if (event->waited < event->recorded) {
        event->waited = event->recorded;
        num_waits++;
    }
    queue_unlock_memory();
    for (uint64_t n = next_random() % 1024; n > 0; n--)
        if (!run_one()) {
            if (event->done >= event->recorded)
                break;
            sched_yield();
        }
    queue_lock_memory();
    return event->done >= event->recorded;
}

/* ---- copies between host and device ---- */

struct copy_args {
    void *dst;
    const void *src;
    size_t nbytes;
};

static bool run_copy(void *args)
{
    const struct copy_args *a = args;

    memcpy(a->dst, a->src, a->nbytes);
    return true;
}

static void push_copy(struct meg_stream *st, void *dst, const void *src, size_t nbytes)
{
    const struct copy_args a = { dst, src, nbytes };

    queue_push(st, run_copy, &a, sizeof a);
}

static bool is_device_memory(const void *p)
{
    return memory.base <= (const char *)p && (const char *)p < memory.base + memory.used;
}

static void copy(struct meg_stream *st, void *dst, const void *src, size_t nbytes)
{
    MEG_ASSERT(is_device_memory(dst) && is_device_memory(src));
    push_copy(st, dst, src, nbytes);
}

static void upload(struct meg_stream *st, void *dev, const void *host, size_t nbytes)
{
    MEG_ASSERT(is_device_memory(dev) && !is_device_memory(host));
    push_copy(st, dev, queue_keep(host, nbytes), nbytes);
}

static void upload_pinned(struct meg_stream *st, void *dev, const void *pinned, size_t nbytes)
{
    MEG_ASSERT(is_device_memory(dev) && !is_device_memory(pinned));
    push_copy(st, dev, pinned, nbytes);
}

static void release_pinned(void *p)
{
    run_all();
    meg_cpu_ops()->release_pinned(p);
}

static void download(struct meg_stream *st, void *pinned, const void *dev, size_t nbytes)
{
    MEG_ASSERT(!is_device_memory(pinned) && is_device_memory(dev));
    memset(pinned, 0xff, nbytes);
    num_downloads++;
    push_copy(st, pinned, dev, nbytes);
}

/* ---- the device ---- */

/* Append the counts to the file that MEG_QUEUE_COUNTS names. */
static void write_counts(void)
{
    FILE *f = fopen(getenv("MEG_QUEUE_COUNTS"), "a");

    if (f) {
        fprintf(f, "%" PRId64 " downloads, %" PRId64 " waits\n", num_downloads, num_waits);
        fclose(f);
    }
}

static struct meg_ops table;
static struct meg_device device;

static void open_device(void)
{
    const char *text = getenv("MEG_QUEUE_SEED");
    int64_t seed;

    if (!text)
        return;
    if (!meg_parse_i64(text, &seed))
        meg_die(MEG_EUSAGE, "MEG_QUEUE_SEED=%s: not a number", text);
    state = (uint64_t)seed * 0x9e3779b97f4a7c15u + 1;
    table = *queue_ops(meg_cpu_ops());
    table.name = "queue";
    table.is_host_memory = false;
    table.alloc = device_alloc;
    table.release = device_release;
    table.copy = copy;
    table.upload = upload;
    table.upload_pinned = upload_pinned;
    table.release_pinned = release_pinned;
    table.download = download;
    table.stream_create = queue_stream_create;
    table.event_create = event_create;
    table.event_destroy = event_destroy;
    table.event_record = event_record;
    table.event_wait = event_wait;
    table.event_is_done = event_is_done;
    device.op = &table;
    device.compute = queue_stream_create("compute");
    device.copy = queue_stream_create("copy");
    device.read_done = event_create();
    device.read_buffer = table.alloc_pinned(MEG_READ_NBYTES);
    if (getenv("MEG_QUEUE_COUNTS"))
        atexit(write_counts);
}

const struct meg_device *queue_device(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, open_device);
    return device.op ? &device : NULL;
}

/*
 * The linker option --wrap redirects calls of the functions of lib/device and of meg_cpu_ops to the functions __wrap_*.
 * The functions __real_* are the originals.
 */
const struct meg_device *__real_meg_device_cpu(void);
const struct meg_device *__wrap_meg_device_cpu(void);
const struct meg_device *__real_meg_device_current(void);
const struct meg_device *__wrap_meg_device_current(void);
int __real_meg_device_open(const struct meg_device **out, const struct meg_device_conf *c, struct meg_err *e);
int __wrap_meg_device_open(const struct meg_device **out, const struct meg_device_conf *c, struct meg_err *e);

const struct meg_ops *__real_meg_cpu_ops(void);
const struct meg_ops *__wrap_meg_cpu_ops(void);

static struct meg_ops cpu;

static int64_t logits_rows(int64_t v)
{
    int64_t rows;

    (void)v;
    if (!meg_parse_i64(getenv("MEG_QUEUE_LOGITS_ROWS"), &rows))
        meg_die(MEG_EUSAGE, "MEG_QUEUE_LOGITS_ROWS=%s: not a number", getenv("MEG_QUEUE_LOGITS_ROWS"));
    return rows;
}

static void init_cpu(void)
{
    cpu = *__real_meg_cpu_ops();
    if (getenv("MEG_QUEUE_LOGITS_ROWS"))
        cpu.logits_rows = logits_rows;
}

const struct meg_ops *__wrap_meg_cpu_ops(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, init_cpu);
    return &cpu;
}

const struct meg_device *__wrap_meg_device_current(void)
{
    return queue_device() ? queue_device() : __real_meg_device_current();
}

const struct meg_device *__wrap_meg_device_cpu(void)
{
    return queue_device() ? queue_device() : __real_meg_device_cpu();
}

int __wrap_meg_device_open(const struct meg_device **out, const struct meg_device_conf *c, struct meg_err *e)
{
    const int r = __real_meg_device_open(out, c, e);

    if (r == 0 && queue_device())
        *out = queue_device();
    return r;
}
