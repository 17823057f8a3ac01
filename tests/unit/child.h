/* child.h - run a function in a child process, and get its output and exit status. */
#ifndef TESTS_UNIT_CHILD_H
#define TESTS_UNIT_CHILD_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct child {
    int status; /* exit status, or 128 + signal number */
    char out[8192], err[4096];
};

static inline void child_read(FILE *f, char *text, size_t n)
{
    rewind(f);
    text[fread(text, 1, n - 1, f)] = 0;
    fclose(f);
}

/* Run fn(arg) in a child process, which exits with status 0 if fn returns.  Output beyond the arrays of c is lost. */
static inline void child_run(struct child *c, void (*fn)(void *), void *arg)
{
    FILE *out = tmpfile(), *err = tmpfile();
    int status;
    pid_t pid;

    assert_non_null(out);
    assert_non_null(err);
    fflush(NULL); /* otherwise the child would print buffered output again */
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fileno(out), STDOUT_FILENO);
        dup2(fileno(err), STDERR_FILENO);
        fn(arg);
        fflush(NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    c->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    child_read(out, c->out, sizeof c->out);
    child_read(err, c->err, sizeof c->err);
}

/*
 * Preload a library, given by a path with a slash, in programs that are executed later.  LD_PRELOAD is split at spaces,
 * so it has the file name only, and the directory is prepended to LD_LIBRARY_PATH.
 */
static inline void preload(const char *library)
{
    const char *name = strrchr(library, '/') + 1, *before = getenv("LD_LIBRARY_PATH");
    char path[8192];

    snprintf(path, sizeof path, "%.*s%s%s", (int)(name - library), library, before ? ":" : "", before ? before : "");
    setenv("LD_LIBRARY_PATH", path, 1);
    setenv("LD_PRELOAD", name, 1);
}

/* Create a temporary directory in TMPDIR or /tmp, and store its path in dir [n]. */
static inline void make_dir(char dir[], size_t n)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(dir, n, "%s/meg-unit.XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
}

#endif
