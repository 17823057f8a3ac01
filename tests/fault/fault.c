/*
 * fault.c - a library for LD_PRELOAD that lets one system call of a write path fail, so that a test
 * can fail each in turn:
 *
 *     MEG_FAULT_COUNT=n LD_PRELOAD=fault.so COMMAND                      how many calls there are
 *     MEG_FAULT_AT=3 MEG_FAULT_ERRNO=ENOSPC LD_PRELOAD=fault.so COMMAND  the third one fails
 *
 * Counted, from 1, are write, pwrite, fsync, fdatasync, ftruncate, posix_fallocate and close, on
 * regular files open for writing and on directories but never on stdout and stderr, and rename and
 * renameat2.  What stdio writes goes past us.  MEG_FAULT_ERRNO is ENOSPC or EIO; KILL ends the
 * process by SIGKILL, a write half done; SHORT writes half and says so.  MEG_FAULT_COUNT=FILE
 * leaves the number in FILE when the process exits.  MEG_FAULT_IN=TEXT counts only calls on open
 * files whose path has TEXT in it.
 * MEG_FAULT_RECV set: a socket that is looked at without waiting was closed by the other side.
 * MEG_FAULT_THREADS=n: only n threads can be started.
 * Under ASan also ASAN_OPTIONS=verify_asan_link_order=0.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum fault { NONE, FAIL, KILL, SHORT };

static int calls; /* changed atomically: any thread may write */

/* Count a call and say what is to become of it. */
static enum fault next(void)
{
    const char *at = getenv("MEG_FAULT_AT"), *how = getenv("MEG_FAULT_ERRNO");

    if (__atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) != (at ? atoi(at) : 0))
        return NONE;
    if (how && strcmp(how, "KILL") == 0)
        return KILL;
    if (how && strcmp(how, "SHORT") == 0)
        return SHORT;
    errno = how && strcmp(how, "ENOSPC") == 0 ? ENOSPC : EIO;
    return FAIL;
}

static int is_meant(int fd)
{
    const char *part = getenv("MEG_FAULT_IN");
    char link[64], path[4096];
    ssize_t n;

    if (!part)
        return 1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    return strstr(path, part) != NULL;
}

static enum fault next_on(int fd)
{
    struct stat st;

    if (fd <= STDERR_FILENO || fstat(fd, &st) < 0 ||
        !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
        return NONE;
    if (S_ISREG(st.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
        return NONE;
    return is_meant(fd) ? next() : NONE;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
}

/* The function behind ours, looked up once. */
#define REAL(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (!real)                                                                                     \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* A call that is done or not: RESULT when it is to fail. */
#define ALL_OR_NOTHING(fault, fail, call)                                                          \
    switch (fault) {                                                                               \
    case FAIL: return fail;                                                                        \
    case KILL: die(); return fail;                                                                 \
    default: return call;                                                                          \
    }

/* A call that can be half done. */
#define BY_HALVES(fault, half, call)                                                               \
    switch (fault) {                                                                               \
    case FAIL: return -1;                                                                          \
    case KILL: (void)!(half); die(); return -1;                                                    \
    case SHORT: return half;                                                                       \
    default: return call;                                                                          \
    }

ssize_t write(int fd, const void *p, size_t n)
{
    REAL(write);
    BY_HALVES(next_on(fd), real(fd, p, n - n / 2), real(fd, p, n))
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    REAL(pwrite);
    BY_HALVES(next_on(fd), real(fd, p, n - n / 2, at), real(fd, p, n, at))
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
    return pwrite(fd, p, n, at);
}

int fsync(int fd)
{
    REAL(fsync);
    ALL_OR_NOTHING(next_on(fd), -1, real(fd))
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    ALL_OR_NOTHING(next_on(fd), -1, real(fd))
}

int ftruncate(int fd, off_t n)
{
    REAL(ftruncate);
    ALL_OR_NOTHING(next_on(fd), -1, real(fd, n))
}

int posix_fallocate(int fd, off_t at, off_t n)
{
    REAL(posix_fallocate);
    ALL_OR_NOTHING(next_on(fd), errno, real(fd, at, n))
}

/* A close that fails has closed. */
int close(int fd)
{
    enum fault fault;
    int no, r;

    REAL(close);
    fault = next_on(fd);
    no = errno;
    if (fault == KILL)
        die();
    r = real(fd);
    if (fault != FAIL)
        return r;
    errno = no;
    return -1;
}

static enum fault next_name(void)
{
    return getenv("MEG_FAULT_IN") ? NONE : next();
}

int rename(const char *from, const char *to)
{
    REAL(rename);
    ALL_OR_NOTHING(next_name(), -1, real(from, to))
}

int renameat2(int fromdir, const char *from, int todir, const char *to, unsigned flags)
{
    REAL(renameat2);
    ALL_OR_NOTHING(next_name(), -1, real(fromdir, from, todir, to, flags))
}

ssize_t recv(int fd, void *buf, size_t n, int flags)
{
    REAL(recv);
    return getenv("MEG_FAULT_RECV") && flags & MSG_DONTWAIT ? 0 : real(fd, buf, n, flags);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg)
{
    static int started;
    const char *most = getenv("MEG_FAULT_THREADS");

    REAL(pthread_create);
    return most && started++ >= atoi(most) ? EAGAIN : real(thread, how, run, arg);
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("MEG_FAULT_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;

    if (f) {
        fprintf(f, "%d\n", calls);
        fclose(f);
    }
}
