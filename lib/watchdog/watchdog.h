/*
 * The board: one small TCP service, a thread of rank 0, to which a thread of every other rank holds a
 * connection.  It carries heartbeats and who has arrived where, and ends the job when a rank is lost:
 *   - a connection that closes without a goodbye: that process is gone;
 *   - no heartbeat for as long as the deadline: it is stopped, or its machine is;
 *   - a wait longer than the deadline: somebody did not come, and everybody is asked where he is.  Until
 *     the first step is done, others may be setting up, and a wait may take a minute at least.
 * Then one message names rank, host, step and operation of who is missing, and who did arrive, and every
 * process that still can ends with status 69, before a launcher that kills has come round to it.  The
 * message comes from rank 0, or of rank 0's end from the next rank.  A rank that ends by meg_die says why
 * before, so that the others end with its status and its reason.
 *
 * The threads make no MPI call.  A time during which a process was itself stopped, as a whole job is by
 * Ctrl-Z, counts against nobody.  Connections are loopback's where all ranks share one network, and only
 * those are served that show the 16 random bytes which rank 0 handed out over the world communicator.
 *
 * Ranks that have no communicator yet, torchrun's, meet at the board instead, on a port that all were
 * told; the 16 bytes are then made of the run's name and keep strays out, not people of ill will.  They
 * leave each other the notes at it from which communicators are made.
 *
 * A process that another run started with the same port and name has the same token.  Until all ranks have
 * joined it cannot be told from a rank, and a contradiction ends both; from then on it is refused, and the
 * run continues.  Names that a peer sends are printed with ? for control characters.
 */
#ifndef MEG_COMM_BOARD_H
#define MEG_COMM_BOARD_H
#include <stdbool.h>
#include "comm/comm.h"

MEG_BEGIN_DECLS

/* Where ranks meet that have no communicator; host is of rank 0, and not looked at where all ranks share it. */
struct meg_rendezvous {
    const char *host;
    int port;
    bool is_local;
    unsigned char token[16];
};
/* Before meg_watchdog_open; m is kept, not copied. */
void meg_watchdog_set_rendezvous(const struct meg_rendezvous *m);

/*
 * Every rank of world calls it, once.  With one rank there is no board.  Where a rank cannot reach rank
 * 0's board there is none either, with a warning: what is lost is then noticed by deadlines alone.  Where
 * they meet at it, the process ends instead: MEG_EPEER names who did not come by the deadline, MEG_EUSAGE
 * a port that is taken, a run that is complete or another, and ranks that contradict each other.
 */
void meg_watchdog_open(struct meg_comm *world, double deadline_s);
/* Every rank calls it when all are done; the end of one is then no news to the others. */
void meg_watchdog_close(void);

/*
 * A note that one rank leaves for others of a group; group, from and to are its name.  A get that finds no
 * note asks for it, and a later one gives it: true, and bytes are set.
 */
struct meg_kv_store_entry {
    uint64_t group;
    int32_t from, to;
    int32_t readers; /* that will get it */
    unsigned char bytes[128];
};
void meg_kv_store_put(const struct meg_kv_store_entry *note);
bool meg_kv_store_get(struct meg_kv_store_entry *note);

/* From here on this rank works on this step (the iteration that is being made). */
void meg_watchdog_set_step(int64_t step);

/* Around a wait for others in the number'th operation of a group; what and group stay the caller's. */
void meg_watchdog_wait_begin(const char *what, const char *group, int64_t number);
void meg_watchdog_wait_end(void);

/* Whether a wait past its deadline is to go on, because the first step is not done yet. */
bool meg_watchdog_extends_timeout(double waited_s);

/*
 * meg_watchdog_await_report - a wait has failed or taken too long: gives the board some seconds to say why and
 * to end this process; returns where there is none, or it has nothing to say.
 */
void meg_watchdog_await_report(void);

/* This process is about to end with status: the others are told why, and end, too. */
void meg_watchdog_broadcast_exit(int status, const char *why);

MEG_END_DECLS
#endif
