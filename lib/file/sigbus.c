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

#define WHY " cannot be read any more: the file was truncated, or its disk fails, while it was in use"

/*
 * The signal handler reads this list at any moment, so entries stay in it for ever: a mapping that is gone leaves its
 * entry, with p NULL, to the next one.
 */
struct meg_sigbus_range {
    _Atomic(uintptr_t) p; /* 0: not in use */
    size_t n;
    char *path;
    struct meg_sigbus_range *next, *next_spare;
};
static _Atomic(struct meg_sigbus_range *) all;
static struct meg_sigbus_range *spare;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Where this thread continues after a fault, and what it met. */
struct guard {
    sigjmp_buf jump;
    const struct meg_sigbus_range *volatile file;
    volatile size_t offset;
};
static _Thread_local struct guard *guard;

static struct sigaction before;

static const struct meg_sigbus_range *find(uintptr_t at)
{
    for (const struct meg_sigbus_range *m = atomic_load(&all); m; m = m->next) {
        const uintptr_t p = atomic_load(&m->p);

        if (p && at >= p && at - p <= m->n)
            return m;
    }
    return NULL;
}

static void put(const char *s)
{
    if (write(STDERR_FILENO, s, strlen(s)) < 0)
        return; /* there is nobody to tell */
}

/* Print the message by means that a signal handler may use. */
static void tell(const struct meg_sigbus_range *m, size_t offset)
{
    char digits[24], *d = digits + sizeof digits - 1;

    *d = 0;
    do
        *--d = (char)('0' + offset % 10);
    while (offset /= 10);
    put(meg_progname());
    put(": ");
    put(m->path);
    put(": byte ");
    put(d);
    put(WHY "\n");
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    const uintptr_t at = (uintptr_t)info->si_addr;
    const struct meg_sigbus_range *m = info->si_code > 0 ? find(at) : NULL;

    (void)context;
    if (!m) { /* none of ours: the fault occurs again, and is met as before */
        sigaction(SIGBUS, &before, NULL);
        if (info->si_code <= 0)
            raise(sig);
        return;
    }
    if (guard) {
        guard->file = m;
        guard->offset = at - atomic_load(&m->p);
        siglongjmp(guard->jump, 1);
    }
    tell(m, at - atomic_load(&m->p));
    meg_temporary_exit(meg_exit_status(MEG_EIO));
}

static void catch_sigbus(void)
{
    struct sigaction a = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };

    sigemptyset(&a.sa_mask);
    sigaction(SIGBUS, &a, &before);
}

struct meg_sigbus_range *meg_sigbus_register(const void *p, size_t n, const char *path)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct meg_sigbus_range *m;

    pthread_once(&once, catch_sigbus);
    pthread_mutex_lock(&lock);
    m = spare;
    if (m) {
        spare = m->next_spare;
        free(m->path);
    } else {
        m = (struct meg_sigbus_range *)meg_new(sizeof *m);
        m->next = atomic_load(&all);
        atomic_store(&all, m);
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
    m->next_spare = spare;
    spare = m;
    pthread_mutex_unlock(&lock);
}

int meg_sigbus_guard(int (*read)(void *arg, struct meg_err *e), void *arg, struct meg_err *e)
{
    struct guard mine, *const outer = guard;
    int r;

    if (sigsetjmp(mine.jump, 1)) {
        r = meg_fail(e, MEG_EIO, "%s: byte %zu" WHY, mine.file->path, mine.offset);
    } else {
        guard = &mine;
        r = read(arg, e);
    }
    guard = outer;
    return r;
}
