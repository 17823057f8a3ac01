/* signals.c - the signal dispositions that all commands share. */
#include "base/signals.h"
#include <signal.h>

void meg_signals_init(void)
{
    signal(SIGXFSZ, SIG_IGN);
}
