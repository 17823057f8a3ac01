/* rendezvous.c - rendezvous: the other ranks connect to rank 0's address, and rank 0 waits until all have joined. */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "watchdog/internal.h"

static bool all_joined(struct meg_watchdog *w)
{
    int n;

    pthread_mutex_lock(&w->lock);
    n = w->njoined;
    pthread_mutex_unlock(&w->lock);
    return n == w->size;
}

static void wait_for_all(struct meg_watchdog *w)
{
    const double start = meg_now_s();
    struct meg_str s = { 0 };

    while (!all_joined(w)) {
        if (meg_now_s() - start > w->timeout_s) {
            pthread_mutex_lock(&w->lock);
            watchdog_report_missing(&s, w->has_joined, w->size);
            pthread_mutex_unlock(&w->lock);
            meg_die(MEG_EPEER,
                    "rank 0 on %s waited %.1f s on port %d for %s; start the missing ranks, or increase "
                    "--distributed-timeout-minutes",
                    w->host, w->timeout_s, w->bootstrap.rendezvous->port, s.s);
        }
        usleep(2000);
    }
}

void watchdog_rendezvous(struct meg_watchdog *w)
{
    const struct meg_rendezvous *r = w->bootstrap.rendezvous;
    const char *host = r->is_local ? "this machine" : r->host, *failure = watchdog_resolve(&w->endpoint, r);

    if (failure)
        meg_die(MEG_EUSAGE, "MASTER_ADDR is '%s': %s", r->host, failure);
    if (watchdog_is_server(w)) {
        if (!watchdog_serve(w, r->is_local, r->port))
            meg_die(MEG_EUSAGE, "rank 0 cannot listen on port %d of %s: %s; set a different MASTER_PORT", r->port,
                    w->host, strerror(errno));
        wait_for_all(w);
    } else if (!watchdog_join(w, w->timeout_s)) {
        if (w->conn[0].fd >= 0)
            meg_die(MEG_EPEER,
                    "the process that listens on port %d of %s is not rank 0 of this run; set a different MASTER_PORT",
                    r->port, host);
        meg_die(MEG_EPEER, "rank %d of %d on %s could not connect to rank 0 on port %d of %s within %.1f s: %s",
                w->rank, w->size, w->host, r->port, host, w->timeout_s, strerror(errno));
    }
}
