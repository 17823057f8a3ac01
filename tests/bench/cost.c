/*
 * cost COMMAND [ARG...]: run COMMAND, with its standard output redirected to standard error, and print its elapsed
 * seconds, its CPU seconds including children, and its peak memory in KiB.  The exit status is that of COMMAND, or
 * 1 if a signal ended it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

int main(int argc, char **argv)
{
    double start = meg_now_s();
    struct rusage use;
    int status;
    pid_t pid;

    if (argc < 2) {
        fprintf(stderr, "usage: cost COMMAND [ARG...]\n");
        return 2;
    }
    if ((pid = fork()) == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        execvp(argv[1], argv + 1);
        fprintf(stderr, "cost: %s: %s\n", argv[1], strerror(errno));
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0) {
        perror("cost");
        return 1;
    }
    getrusage(RUSAGE_CHILDREN, &use);
    printf("%.4f %.4f %ld\n", meg_now_s() - start, seconds(use.ru_utime) + seconds(use.ru_stime), use.ru_maxrss);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
