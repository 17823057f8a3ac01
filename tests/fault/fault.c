/*
 * fault.c - fault injection by LD_PRELOAD: make one chosen system call fail, so that a test can try every call of a
 * program that writes files.
 *
 *     MEG_FAULT_COUNT=FILE LD_PRELOAD=fault.so COMMAND                   count the calls
 *     MEG_FAULT_AT=3 MEG_FAULT_ERRNO=ENOSPC LD_PRELOAD=fault.so COMMAND  let the third call fail
 *
 * These calls are counted, from 1: write, pwrite, fsync, fdatasync, ftruncate, posix_fallocate and close on directories
 * and on regular files that are open for writing, except stdin, stdout and stderr; rename and renameat2; if
 * MEG_FAULT_NAMES is set, also link, unlink, mkdir and an open with O_CREAT.  Writes of stdio are not intercepted.
 *
 * MEG_FAULT_AT=n         let call n fail
 * MEG_FAULT_ERRNO=...    type of the failure.  ENOSPC: fail with ENOSPC.  KILL: end the process by SIGKILL, after half
 *                        of a write or before any other call.  SHORT: write only half of the bytes, and return their
 *                        number; other calls succeed.  WAIT: wait at most 60 s until the file MEG_FAULT_GO exists, then
 *                        make the call.  By default and for other values: fail with EIO.
 * MEG_FAULT_COUNT=FILE   write the number of calls to FILE when the process exits
 * MEG_FAULT_IN=TEXT      count only calls on open files whose path contains TEXT; do not count rename, renameat2 and
 *                        the calls of MEG_FAULT_NAMES
 * MEG_FAULT_LOG=FILE     append a line per counted call to FILE, which processes may share: process id, call, path, and
 *                        the new path of a rename
 * MEG_FAULT_NO_EXCHANGE  if set, let renameat2 with flags fail as on file systems that cannot exchange two names
 * MEG_FAULT_PREAD=n      let the nth pread fail with EIO, or return 0 if MEG_FAULT_ERRNO is END
 * MEG_FAULT_RECV         if set, let a non-blocking recv return 0, as if the peer had closed the connection
 * MEG_FAULT_THREADS=n    let pthread_create fail with EAGAIN after n calls
 *
 * Programs built with ASan also need ASAN_OPTIONS=verify_asan_link_order=0.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum fault { NONE, FAIL, KILL, SHORT };

static int calls; /* number of counted calls; atomic, because several threads may make calls */

/* Count a call, and return the fault to inject into it. */
static enum fault next(void)
{
    const char *at = getenv("MEG_FAULT_AT"), *how = getenv("MEG_FAULT_ERRNO");

    if (__atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) != (at ? atoi(at) : 0))
        return NONE;
    if (how && strcmp(how, "KILL") == 0)
        return KILL;
    if (how && strcmp(how, "SHORT") == 0)
        return SHORT;
    if (how && strcmp(how, "WAIT") == 0) {
        for (int i = 0; i < 6000 && access(getenv("MEG_FAULT_GO"), F_OK) < 0; i++)
            usleep(10000);
        return NONE;
    }
    errno = how && strcmp(how, "ENOSPC") == 0 ? ENOSPC : EIO;
    return FAIL;
}

/*
 * Append a line to the log by an uncounted call; each line is one write, so that lines of several processes do not mix.
 */
static void note(const char *call, const char *path, const char *to)
{
    const char *log = getenv("MEG_FAULT_LOG");
    char line[8400];
    long fd;
    int n;

    if (!log)
        return;
    n = snprintf(line, sizeof line, "%d %s %s %s\n", (int)getpid(), call, path, to);
    fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    syscall(SYS_write, fd, line, n);
    syscall(SYS_close, fd);
}

static enum fault next_on(const char *call, int fd)
{
    const char *part = getenv("MEG_FAULT_IN");
    char link[64], path[4096];
    struct stat st;
    ssize_t n;

    if (fd <= STDERR_FILENO || fstat(fd, &st) < 0 || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
        return NONE;
    if (S_ISREG(st.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
        return NONE;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    if (part && !strstr(path, part))
        return NONE;
    note(call, path, "");
    return next();
}

static void die(void)
{
    kill(getpid(), SIGKILL);
}

/* Declare `real`, the intercepted function of libc, which the first call looks up. */
#define REAL(name)                                                                                                     \
    static __typeof__(&name) real;                                                                                     \
    if (!real)                                                                                                         \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* Make the call, or inject the fault: return `fail`, or end the process before the call.  SHORT has no effect. */
#define ALL_OR_NOTHING(fault, fail, call)                                                                              \
    switch (fault) {                                                                                                   \
    case FAIL: return fail;                                                                                            \
    case KILL: die(); return fail;                                                                                     \
    default: return call;                                                                                              \
    }

/* Make the call, or inject the fault: return -1, end the process after `half`, or only make the call `half`. */
#define BY_HALVES(fault, half, call)                                                                                   \
    switch (fault) {                                                                                                   \
    case FAIL: return -1;                                                                                              \
    case KILL:                                                                                                         \
        (void)!(half);                                                                                                 \
        die();                                                                                                         \
        return -1;                                                                                                     \
    case SHORT: return half;                                                                                           \
    default: return call;                                                                                              \
    }

ssize_t write(int fd, const void *p, size_t n)
{
    REAL(write);
    BY_HALVES(next_on("write", fd), real(fd, p, n - n / 2), real(fd, p, n))
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    REAL(pwrite);
    BY_HALVES(next_on("pwrite", fd), real(fd, p, n - n / 2, at), real(fd, p, n, at))
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
    return pwrite(fd, p, n, at);
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    static int reads;
    const char *fails = getenv("MEG_FAULT_PREAD"), *how = getenv("MEG_FAULT_ERRNO");

    REAL(pread);
    if (!fails || __atomic_add_fetch(&reads, 1, __ATOMIC_SEQ_CST) != atoi(fails))
        return real(fd, p, n, at);
    if (how && strcmp(how, "END") == 0)
        return 0;
    errno = EIO;
    return -1;
}

ssize_t pread64(int fd, void *p, size_t n, off64_t at)
{
    return pread(fd, p, n, at);
}

int fsync(int fd)
{
    REAL(fsync);
    ALL_OR_NOTHING(next_on("fsync", fd), -1, real(fd))
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    ALL_OR_NOTHING(next_on("fdatasync", fd), -1, real(fd))
}

int ftruncate(int fd, off_t n)
{
    REAL(ftruncate);
    ALL_OR_NOTHING(next_on("ftruncate", fd), -1, real(fd, n))
}

int posix_fallocate(int fd, off_t at, off_t n)
{
    REAL(posix_fallocate);
    ALL_OR_NOTHING(next_on("posix_fallocate", fd), errno, real(fd, at, n))
}

/* A close that fails still closes the descriptor. */
int close(int fd)
{
    enum fault fault;
    int no, r;

    REAL(close);
    fault = next_on("close", fd);
    no = errno;
    if (fault == KILL)
        die();
    r = real(fd);
    if (fault != FAIL)
        return r;
    errno = no;
    return -1;
}

static enum fault next_name(const char *call, const char *from, const char *to)
{
    if (getenv("MEG_FAULT_IN"))
        return NONE;
    note(call, from, to);
    return next();
}

int rename(const char *from, const char *to)
{
    REAL(rename);
    ALL_OR_NOTHING(next_name("rename", from, to), -1, real(from, to))
}

int renameat2(int fromdir, const char *from, int todir, const char *to, unsigned flags)
{
    REAL(renameat2);
    if (flags && getenv("MEG_FAULT_NO_EXCHANGE")) {
        errno = EINVAL;
        return -1;
    }
    ALL_OR_NOTHING(next_name("rename", from, to), -1, real(fromdir, from, todir, to, flags))
}

static enum fault next_of_names(const char *call, const char *path)
{
    return getenv("MEG_FAULT_NAMES") ? next_name(call, path, "") : NONE;
}

int link(const char *from, const char *to)
{
    REAL(link);
    ALL_OR_NOTHING(next_of_names("link", to), -1, real(from, to))
}

int unlink(const char *path)
{
    REAL(unlink);
    ALL_OR_NOTHING(next_of_names("unlink", path), -1, real(path))
}

int mkdir(const char *path, mode_t mode)
{
    REAL(mkdir);
    ALL_OR_NOTHING(next_of_names("mkdir", path), -1, real(path, mode))
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list ap;

    REAL(open);
    if (flags & O_CREAT) {
        va_start(ap, flags);
        mode = va_arg(ap, mode_t);
        va_end(ap);
    }
    ALL_OR_NOTHING(flags & O_CREAT ? next_of_names("open", path) : NONE, -1, real(path, flags, mode))
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

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("MEG_FAULT_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;

    if (f) {
        fprintf(f, "%d\n", calls);
        fclose(f);
    }
}
