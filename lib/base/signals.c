#include "base/signals.h"

#include <signal.h>

void meg_signals_init(void)
{
    signal(SIGXFSZ, SIG_IGN);
}
