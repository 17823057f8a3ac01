/* Ranks meet that know nothing of each other but rank 0's address and port. */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "watchdog/internal.h"

static bool all_joined(void)
{
    int n;

    pthread_mutex_lock(&watchdog.lock);
    n = watchdog.ncome;
    pthread_mutex_unlock(&watchdog.lock);
    return n == watchdog.size;
}

static void wait_for_all(const struct meg_rendezvous *m)
{
    const double start = meg_now_s();
    struct meg_str s = { 0 };

    while (!all_joined()) {
        if (meg_now_s() - start > watchdog.deadline_s) {
            pthread_mutex_lock(&watchdog.lock);
            watchdog_report_missing(&s, watchdog.has_come, watchdog.size);
            pthread_mutex_unlock(&watchdog.lock);
            meg_die(MEG_EPEER,
                    "rank 0 on %s waited %.1f s at port %d for %s (--distributed-timeout-minutes sets how long)",
                    watchdog.host, watchdog.deadline_s, m->port, s.s);
        }
        usleep(2000);
    }
}

void watchdog_rendezvous(const struct meg_rendezvous *m)
{
    const char *host = m->is_local ? "this machine" : m->host, *wrong = watchdog_resolve(&watchdog.invite, m);

    if (wrong)
        meg_die(MEG_EUSAGE, "MASTER_ADDR is '%s': %s", m->host, wrong);
    if (watchdog_is_server()) {
        if (!watchdog_serve(m->is_local, m->port))
            meg_die(MEG_EUSAGE, "ranks cannot meet at port %d of %s: %s; give another MASTER_PORT", m->port,
                    watchdog.host, strerror(errno));
        wait_for_all(m);
    } else if (!watchdog_join(watchdog.deadline_s)) {
        if (watchdog.link[0].fd >= 0)
            meg_die(MEG_EPEER, "what listens at port %d of %s is not rank 0 of this run", m->port, host);
        meg_die(MEG_EPEER, "rank %d of %d on %s waited %.1f s for rank 0 at port %d of %s: %s", watchdog.rank,
                watchdog.size, watchdog.host, watchdog.deadline_s, m->port, host, strerror(errno));
    }
}
