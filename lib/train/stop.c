/* stop.c - stop a run on SIGTERM, SIGUSR1, SIGINT or SIGHUP, after the current iteration. */
#include "train/stop.h"
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include "file/temporary.h"

static volatile sig_atomic_t caught;

static const struct {
    int number;
    bool may_be_ignored; /* stays ignored if it was ignored when the process started */
    bool ends_second;    /* ends the process if a signal was already caught */
} signals[] = {
    { SIGTERM, false, true },
    { SIGUSR1, false, true },
    { SIGINT, true, true },
    { SIGHUP, true, false },
};
enum { NSIGNALS = sizeof signals / sizeof *signals };

static void handle(int sig)
{
    for (int i = 0; caught && i < NSIGNALS; i++)
        if (signals[i].number == sig && signals[i].ends_second) {
            meg_temporary_unlink_all(); /* removes the lock of --save as well */
            signal(sig, SIG_DFL);
            raise(sig);
        }
    caught = sig;
}

void meg_stop_catch(void)
{
    struct sigaction a = { 0 }, now;

    a.sa_handler = handle;
    a.sa_flags = SA_RESTART | SA_ONSTACK; /* the signal may interrupt a matrix multiplication (cpu/gemm.c) */
    sigemptyset(&a.sa_mask);
    for (int i = 0; i < NSIGNALS; i++)
        sigaddset(&a.sa_mask, signals[i].number);
    for (int i = 0; i < NSIGNALS; i++) {
        sigaction(signals[i].number, NULL, &now);
        if (!signals[i].may_be_ignored || now.sa_handler != SIG_IGN)
            sigaction(signals[i].number, &a, NULL);
    }
}

int meg_stop_signal(void)
{
    return caught;
}
