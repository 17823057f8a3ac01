#include "train/stop.h"
#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t asked;

static void ask(int sig)
{
    asked = sig;
    signal(SIGTERM, SIG_DFL);
    signal(SIGUSR1, SIG_DFL);
}

void meg_stop_catch(void)
{
    struct sigaction a = { 0 };

    a.sa_handler = ask;
    a.sa_flags = SA_RESTART;
    sigemptyset(&a.sa_mask);
    sigaddset(&a.sa_mask, SIGTERM);
    sigaddset(&a.sa_mask, SIGUSR1);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
}

int meg_stop_asked(void)
{
    return asked;
}
