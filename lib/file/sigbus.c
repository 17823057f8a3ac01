/* sigbus.c - a SIGBUS handler for mapped files. */
#define _GNU_SOURCE /* siginfo_t */
#include "file/sigbus.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "file/temporary.h"

#define REASON " cannot be read: the file was truncated, or its disk failed, while it was in use"

/*
 * A mapping in a list that the signal handler may read at any time.  Entries are therefore never removed; the entry of
 * a closed mapping is reused.
 */
struct meg_sigbus_range {
    _Atomic(uintptr_t) p; /* address of the mapping; 0 if the entry is free */
    size_t n;
    char *path;
    struct meg_sigbus_range *next, *next_free;
};
static _Atomic(struct meg_sigbus_range *) ranges;
static struct meg_sigbus_range *free_ranges;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The point at which this thread continues after a fault, and the location of the fault. */
struct recovery {
    sigjmp_buf jump;
    const struct meg_sigbus_range *volatile file;
    volatile size_t offset;
};
static _Thread_local struct recovery *recovery;

static struct sigaction previous_action;

static const struct meg_sigbus_range *find(uintptr_t address)
{
    for (const struct meg_sigbus_range *m = atomic_load(&ranges); m; m = m->next) {
        const uintptr_t p = atomic_load(&m->p);

        if (p && address >= p && address - p <= m->n)
            return m;
    }
    return NULL;
}

static void write_stderr(const char *s)
{
    if (write(STDERR_FILENO, s, strlen(s)) < 0)
        return; /* a failure cannot be reported */
}

/* Print the error message with async-signal-safe functions only. */
static void print_fault(const struct meg_sigbus_range *m, size_t offset)
{
    char digits[24], *d = digits + sizeof digits - 1;

    *d = 0;
    do
        *--d = (char)('0' + offset % 10);
    while (offset /= 10);
    write_stderr(meg_progname());
    write_stderr(": ");
    write_stderr(m->path);
    write_stderr(": byte ");
    write_stderr(d);
    write_stderr(REASON "\n");
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    const uintptr_t address = (uintptr_t)info->si_addr;
    const struct meg_sigbus_range *m = info->si_code > 0 ? find(address) : NULL;

    (void)context;
    /*
     * If this is not a fault in a registered mapping, restore the previous handler.  That handler then receives the
     * signal: a fault repeats after the return, and a signal sent by kill(2) is raised again here.
     */
    if (!m) {
        sigaction(SIGBUS, &previous_action, NULL);
        if (info->si_code <= 0)
            raise(sig);
        return;
    }
    if (recovery) {
        recovery->file = m;
        recovery->offset = address - atomic_load(&m->p);
        siglongjmp(recovery->jump, 1);
    }
    print_fault(m, address - atomic_load(&m->p));
    meg_temporary_exit(meg_exit_status(MEG_EIO));
}

static void catch_sigbus(void)
{
    struct sigaction a = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };

    sigemptyset(&a.sa_mask);
    sigaction(SIGBUS, &a, &previous_action);
}

struct meg_sigbus_range *meg_sigbus_register(const void *p, size_t n, const char *path)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct meg_sigbus_range *m;

    pthread_once(&once, catch_sigbus);
    pthread_mutex_lock(&lock);
    m = free_ranges;
    if (m) {
        free_ranges = m->next_free;
        free(m->path);
    } else {
        m = (struct meg_sigbus_range *)meg_new(sizeof *m);
        m->next = atomic_load(&ranges);
        atomic_store(&ranges, m);
    }
    m->path = meg_strdup(path);
    m->n = n;
    atomic_store(&m->p, (uintptr_t)p);
    pthread_mutex_unlock(&lock);
    return m;
}

void meg_sigbus_unregister(struct meg_sigbus_range *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&lock);
    atomic_store(&m->p, 0);
    m->next_free = free_ranges;
    free_ranges = m;
    pthread_mutex_unlock(&lock);
}

int meg_sigbus_guard(int (*read)(void *arg, struct meg_err *e), void *arg, struct meg_err *e)
{
    struct recovery mine, *const outer = recovery;
    int r;

    if (sigsetjmp(mine.jump, 1)) {
        r = meg_fail(e, MEG_EIO, "%s: byte %zu" REASON, mine.file->path, mine.offset);
    } else {
        recovery = &mine;
        r = read(arg, e);
    }
    recovery = outer;
    return r;
}
