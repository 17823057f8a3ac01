/* internal.h - the watchdog's context, connections and frames, private to lib/watchdog. */
#pragma once
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include "base/mem.h"
#include "watchdog/store.h"
#include "watchdog/watchdog.h"

/* The state of a rank, as sent in its heartbeats: its step, the operation in which it waits, and its task. */
struct watchdog_rank_state {
    int64_t step;      /* training step; -1 before the first step */
    int64_t op_number; /* number of the operation in its group */
    int32_t is_waiting;
    char op[20], group[20]; /* names of the operation and its group */
    char task[96];          /* empty if the rank runs no task */
    double task_s;          /* time since the task began */
    int32_t run_has_task;   /* any rank runs a task, as far as this rank knows from heartbeats */
};

/* ---- frame.c: frames over TCP ---- */

enum watchdog_frame_type {
    WATCHDOG_JOIN = 1,     /* struct watchdog_join_request: the first frame that a rank sends */
    WATCHDOG_WELCOME,      /* struct watchdog_welcome: the reply to WATCHDOG_JOIN */
    WATCHDOG_HEARTBEAT,    /* struct watchdog_rank_state: sent periodically, and in reply to WATCHDOG_QUERY */
    WATCHDOG_QUERY,        /* requests the state of a rank */
    WATCHDOG_TIMEOUT,      /* informs rank 0 of a timeout: the sender has waited too long, or received no heartbeat */
    WATCHDOG_EXITING,      /* struct watchdog_exit: the sender exits for this reason */
    WATCHDOG_EXIT_ALL,     /* struct watchdog_exit: the receiver must exit, or its join request is refused */
    WATCHDOG_STORE_VALUE,  /* struct meg_store_collective and a value: a rank's part in a host collective */
    WATCHDOG_STORE_RESULT, /* struct meg_store_collective and the result of the collective */
    WATCHDOG_BYE           /* the sender is finished and closes the connection */
};

struct watchdog_join_request {
    unsigned char token[16];
    int32_t rank, size;
    char host[64];
};

struct watchdog_welcome {
    char host[64];
};

struct watchdog_exit {
    int32_t status;
    int32_t is_abort; /* the sender aborts the run: the receiver waits up to ABORT_S for the launcher to end it */
    char reason[400];
};

/* One end of a connection. */
struct watchdog_conn {
    int fd;               /* socket; -1 if there is no connection */
    int rank;             /* rank of the peer; -1 if unauthenticated */
    bool has_replied;     /* a heartbeat has arrived since the last timeout */
    bool has_closed;      /* the peer sent WATCHDOG_BYE */
    double since_heard_s; /* time since the last frame from the peer */
    int64_t accept_seq;   /* sequence number of the connection, in the order of acceptance */
    struct watchdog_rank_state state;
    char host[64];
    size_t nread;        /* number of bytes in buf */
    size_t frame_nbytes; /* size in bytes of the frame that watchdog_recv returned last; it is at the start of buf */
    unsigned char *buf;  /* [buf_nbytes] received bytes */
    size_t buf_nbytes;
    unsigned char *out; /* [out_cap] frames that are sent as soon as the socket accepts them: bytes nsent to nout */
    size_t out_cap, nout, nsent;
};

/*
 * The addresses and port at which rank 0 listens, and the token of the run.  A join request must contain the token.
 */
struct watchdog_endpoint {
    int32_t is_open, port, naddrs;
    unsigned char token[16];
    char host[64];
    struct sockaddr_storage addr[8]; /* [naddrs] of IPv4 or IPv6, with the port */
};

/*
 * Listen on loopback only (is_local) or on all addresses of this host; port 0 selects any free port.  Set *to to the
 * endpoint, with a random token.  Returns the socket, or -1 with errno set.
 */
int watchdog_listen(struct watchdog_endpoint *to, bool is_local, int port);
/* Set *to to the endpoint of a rendezvous.  Returns NULL, or the error message of the name lookup. */
const char *watchdog_resolve(struct watchdog_endpoint *to, const struct meg_rendezvous *r);
int watchdog_accept(int listen_fd);
/*
 * Copy `from`, a name that a peer sent, to `to` [cap].  Replace control characters by ?, and append a zero byte.  At
 * most cap - 1 bytes are copied; `from` may lack a zero byte.
 */
void watchdog_copy_name(char *to, const char *from, size_t cap);
/* Close *fd unless it is -1, and set it to -1; errno is preserved. */
void watchdog_close_fd(int *fd);
/* Connect to an endpoint.  Returns the socket, or -1 with errno set. */
int watchdog_connect(const struct watchdog_endpoint *to);

/*
 * Queue a frame, and send as much of the queue as the socket accepts without blocking.  A heartbeat is dropped if the
 * queue is not empty.  watchdog_send_two sends a payload of two parts.
 */
void watchdog_send(struct watchdog_conn *c, enum watchdog_frame_type type, const void *payload, size_t n);
void watchdog_send_two(struct watchdog_conn *c, enum watchdog_frame_type type, const void *first, size_t nfirst,
                       const void *second, size_t nsecond);
/* Continue to send the queue without blocking. */
void watchdog_send_queued(struct watchdog_conn *c);
/*
 * Receive the next frame without blocking.  Returns 1 and sets *type, *n and *payload [n], which stays valid until the
 * next call; 0 if no frame is complete yet; or -1 if the connection was closed or the peer sent an invalid frame.
 */
int watchdog_recv(struct watchdog_conn *c, enum watchdog_frame_type *type, const void **payload, size_t *n);
/* Close the socket and free the buffers.  *c is then as if it had never been connected. */
void watchdog_close_conn(struct watchdog_conn *c);

/* ---- exit_report.c: the text of reports ---- */

struct watchdog_snapshot {
    int size, rank; /* number of ranks in the run; rank of this process */
    struct watchdog_rank_state own_state;
    const char *host;                 /* host name of this process */
    const struct watchdog_conn *conn; /* [nconns]; connections without a rank are ignored */
    int nconns;
    double timeout_s; /* timeout that has expired */
};

/* Append a report that the process at the other end of `lost` has exited, and the states of the other ranks. */
void watchdog_report_lost(struct meg_str *s, const struct watchdog_snapshot *v, const struct watchdog_conn *lost);
/*
 * Append a report of a timeout: the ranks that did not reply.  If all ranks replied, report the ranks that do not wait
 * in an operation.  If all ranks wait, report that.  The states of the remaining ranks follow.
 */
void watchdog_report_timeout(struct meg_str *s, const struct watchdog_snapshot *v);
/* Append the ranks in [0, n) that have not joined, and then the ranks that have joined. */
void watchdog_report_missing(struct meg_str *s, const bool *has_joined, int n);

/* ---- watchdog.c and monitor.c ---- */

enum watchdog_exit_cause {
    WATCHDOG_CAUSE_NONE,
    WATCHDOG_CAUSE_LOST,
    WATCHDOG_CAUSE_TIMEOUT,
    WATCHDOG_CAUSE_SIGTERM,
    WATCHDOG_CAUSE_PEER_EXIT
};

struct watchdog_store_message;
struct watchdog_store_pending;

struct meg_watchdog {
    /* fields that only meg_watchdog_open and meg_watchdog_close change */
    int rank, size, listen_fd, epoll, wake_pipe[2];
    double timeout_s, heartbeat_s;
    char host[64];
    struct watchdog_endpoint endpoint;
    struct meg_watchdog_bootstrap bootstrap;
    bool is_open; /* the monitor thread is running */
    pthread_t thread;

    /* fields that both threads use, protected by lock */
    pthread_mutex_t lock;
    pthread_cond_t exit_sent_cond;
    struct watchdog_rank_state state;
    int64_t nwaits, nsteps; /* number of waits and steps begun so far */
    struct watchdog_exit exit;
    bool is_exiting, has_sent_exit, is_closing;
    void (*abort)(void);                          /* function that aborts communication, or NULL */
    bool *has_joined;                             /* [size] */
    int njoined;                                  /* number of true elements in has_joined */
    struct watchdog_store_message *store_values;  /* values to send to rank 0 */
    struct watchdog_store_message *store_results; /* results that the main thread has not taken */

    /* fields that, while the monitor thread runs, only this thread uses (except was_terminated) */
    struct watchdog_conn *conn; /* [nconns] */
    int nconns;
    int64_t naccepted;
    double since_heartbeat_s, waited_s, paused_s, since_pause_s; /* paused_s: length of the last stop of this process */
    double until_task_log_s;                                     /* time until rank 0 logs a task that still runs */
    int64_t last_wait;                                           /* value of nwaits at the last check */
    enum watchdog_exit_cause cause;                              /* cause of the exit that is due in grace_s */
    double grace_s;
    const struct watchdog_conn *lost_conn;
    int peer_status; /* exit status for WATCHDOG_CAUSE_PEER_EXIT */
    bool must_exit;  /* after a timeout, exit even if all ranks reply */
    bool has_sent_bye;
    bool has_warned;                              /* the warning about a process that joined too late was printed */
    struct watchdog_store_pending *store_pending; /* on rank 0: collectives that wait for values */
    volatile sig_atomic_t was_terminated;         /* set by the SIGTERM handler */
};

static inline bool watchdog_is_server(const struct meg_watchdog *w)
{
    return w->rank == 0;
}

/* Create a watchdog that is not connected yet; meg_watchdog_close frees it. */
struct meg_watchdog *watchdog_new(const struct meg_watchdog_bootstrap *b);
/*
 * Return the timeout of a wait: timeout_s or, until the first step is complete, at least one minute.  The caller must
 * hold the lock.
 */
double watchdog_timeout_s(const struct meg_watchdog *w);
/* Call the function that meg_watchdog_set_abort has set, if any, and reset it to NULL. */
void watchdog_abort(struct meg_watchdog *w);
/* Wake the monitor thread. */
void watchdog_wake(struct meg_watchdog *w);
/* On rank 0, listen for connections and start the monitor thread.  Returns false with errno set on failure. */
bool watchdog_serve(struct meg_watchdog *w, bool is_local, int port);
/*
 * Connect to rank 0, retrying for patience_s, and start the monitor thread.  If rank 0 refuses this process, ends the
 * process.  On any other failure, returns false with errno set; conn[0].fd is then open if a process accepted the last
 * connection but did not reply as rank 0 does.
 */
bool watchdog_join(struct meg_watchdog *w, double patience_s);
/*
 * Rank 0 listens at the rendezvous address of the bootstrap and waits until all ranks have joined; the other ranks
 * connect to rank 0.  On failure, this function ends the process (rendezvous.c).
 */
void watchdog_rendezvous(struct meg_watchdog *w);

/* Run the monitor thread; arg is the struct meg_watchdog. */
void *watchdog_monitor(void *arg);

/* Return whether c is the connection of another rank of the run. */
static inline bool watchdog_is_peer(const struct watchdog_conn *c)
{
    return c->fd >= 0 && c->rank >= 0 && !c->has_closed;
}

/* ---- exit.c; the monitor thread calls these functions ---- */

/* Return a copy of the state of this rank. */
struct watchdog_rank_state watchdog_own_state(struct meg_watchdog *w);
/* Print one line to stderr without acquiring the locks of stdio and of the log, which another thread may hold. */
void watchdog_print(const struct meg_watchdog *w, const char *text);
/* Send a frame to all peers. */
void watchdog_send_all(struct meg_watchdog *w, enum watchdog_frame_type type, const void *payload, size_t n);
/* Exit with this status. */
void watchdog_exit_now(struct meg_watchdog *w, int status) MEG_NORETURN;
/* Exit with this status; on rank 0, first request the other ranks to exit. */
void watchdog_end_all(struct meg_watchdog *w, int status) MEG_NORETURN;
/* Print a message, and end all ranks with this status.  Only rank 0 calls this function. */
void watchdog_exit_all(struct meg_watchdog *w, int status, const char *fmt, ...) MEG_NORETURN MEG_PRINTF(3, 4);
/*
 * Schedule the exit.  Rank 0 exits after server_s, and rank 1 after other_s.  Rank 2 exits one second after rank 1, and
 * all other ranks one second after rank 2.  A rank therefore reports only if the lower ranks did not.
 */
void watchdog_schedule_exit(struct meg_watchdog *w, enum watchdog_exit_cause cause, double server_s, double other_s);
/* Make the lost connection c the cause of the exit.  This cause replaces a timeout or SIGTERM, which it explains. */
void watchdog_on_conn_lost(struct meg_watchdog *w, const struct watchdog_conn *c);
/*
 * Schedule an exit because of a timeout, unless one is already scheduled.  Rank 0 queries the state of all ranks; any
 * other rank informs rank 0.  must_exit is false if a late heartbeat is the only problem.  watchdog_check_exit cancels
 * such an exit when all peers have sent a heartbeat.
 */
void watchdog_on_timeout(struct meg_watchdog *w, bool must_exit);
/*
 * Subtract `passed` seconds from the grace period of a scheduled exit, and exit when the period is over.  If all peers
 * have replied after a timeout, cancel the exit unless must_exit is set.  If must_exit is set and all peers have
 * replied, rank 0 exits at once, and the other ranks extend the period so that rank 0 can report.
 */
void watchdog_check_exit(struct meg_watchdog *w, double passed);

/* ---- connections.c; the monitor thread calls these functions ---- */

/*
 * Wake the monitor thread on events of fd.  Returns false with errno set on failure.  tag identifies the source: a
 * connection, &listen_fd or &wake_pipe.
 */
bool watchdog_epoll_add(struct meg_watchdog *w, int fd, void *tag);
/* Accept the connections that wait at listen_fd. */
void watchdog_accept_conns(struct meg_watchdog *w);
/* Handle epoll events of a connection: send what is queued, and handle the frames that have arrived. */
void watchdog_handle_conn(struct meg_watchdog *w, struct watchdog_conn *c, uint32_t events);

/* ---- store.c; the monitor thread calls these functions ---- */

/* Handle a frame of the store.  Returns false if the frame is invalid. */
bool watchdog_store_receive(struct meg_watchdog *w, struct watchdog_conn *conn, enum watchdog_frame_type type,
                            const void *payload, size_t nbytes);
/* Send the values that the main thread has passed to meg_store_start. */
void watchdog_store_flush(struct meg_watchdog *w);
/* Free all values and results; the monitor thread must have ended. */
void watchdog_store_clear(struct meg_watchdog *w);
