/* Ranks meet that know nothing of each other but rank 0's address and port. */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "comm/board_internal.h"

static bool all_have_come(void)
{
    int n;

    pthread_mutex_lock(&board.lock);
    n = board.ncome;
    pthread_mutex_unlock(&board.lock);
    return n == board.size;
}

static void wait_for_all(const struct meg_meeting *m)
{
    const double start = meg_now_s();
    struct meg_str s = { 0 };

    while (!all_have_come()) {
        if (meg_now_s() - start > board.deadline_s) {
            pthread_mutex_lock(&board.lock);
            board_say_absent(&s, board.has_come, board.size);
            pthread_mutex_unlock(&board.lock);
            meg_die(MEG_EPEER,
                    "rank 0 on %s waited %.1f s at port %d for %s (--distributed-timeout-minutes sets how long)",
                    board.host, board.deadline_s, m->port, s.s);
        }
        usleep(2000);
    }
}

void board_meet(const struct meg_meeting *m)
{
    const char *host = m->is_local ? "this machine" : m->host, *wrong = board_invite_to(&board.invite, m);

    if (wrong)
        meg_die(MEG_EUSAGE, "MASTER_ADDR is '%s': %s", m->host, wrong);
    if (board_is_host()) {
        if (!board_serve(m->is_local, m->port))
            meg_die(MEG_EUSAGE, "ranks cannot meet at port %d of %s: %s; give another MASTER_PORT", m->port, board.host,
                    strerror(errno));
        wait_for_all(m);
    } else if (!board_go_to(board.deadline_s)) {
        if (board.link[0].fd >= 0)
            meg_die(MEG_EPEER, "what listens at port %d of %s is not rank 0 of this run", m->port, host);
        meg_die(MEG_EPEER, "rank %d of %d on %s waited %.1f s for rank 0 at port %d of %s: %s", board.rank, board.size,
                board.host, board.deadline_s, m->port, host, strerror(errno));
    }
}
