/* internal.h - the watchdog's context, connections and frames, private to lib/watchdog. */
#ifndef MEG_WATCHDOG_INTERNAL_H
#define MEG_WATCHDOG_INTERNAL_H
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "watchdog/kv_store.h"
#include "watchdog/watchdog.h"

MEG_BEGIN_DECLS

/* The step of a rank, and the operation that it waits in. */
struct watchdog_rank_state {
    int64_t step;      /* -1: before the first step */
    int64_t op_number; /* in its group */
    int32_t is_waiting;
    char op[20], group[20]; /* of the wait */
};

/* ---- frame.c: frames over TCP ---- */

enum watchdog_frame_type {
    WATCHDOG_JOIN = 1,  /* struct watchdog_join_request: the first frame of a rank */
    WATCHDOG_WELCOME,   /* struct watchdog_welcome: the reply to it */
    WATCHDOG_HEARTBEAT, /* struct watchdog_rank_state: periodic, and the reply to WATCHDOG_QUERY */
    WATCHDOG_QUERY,     /* asks a rank for its state */
    WATCHDOG_TIMEOUT,   /* to rank 0: a wait of the sender timed out */
    WATCHDOG_EXITING,   /* struct watchdog_exit: the sender exits, for this reason */
    WATCHDOG_EXIT_ALL,  /* struct watchdog_exit: the receiver must exit; also the reply to a process that is refused */
    WATCHDOG_KV_ENTRY,  /* struct meg_kv_store_entry: for rank 0 to keep, or the reply to WATCHDOG_KV_GET */
    WATCHDOG_KV_GET,    /* struct meg_kv_store_entry: requests the value of its key */
    WATCHDOG_BYE        /* the sender is done and closes the connection */
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
    int32_t is_abort; /* the sender makes the launcher end the other ranks, which therefore wait for it */
    char reason[400];
};

/* One end of a connection. */
struct watchdog_conn {
    int fd;           /* -1: none */
    int rank;         /* of the peer; -1: unauthenticated */
    bool has_replied; /* to the last WATCHDOG_QUERY */
    bool has_closed;  /* the peer sent WATCHDOG_BYE */
    bool is_broken;   /* a frame was sent in part: no more is sent */
    double since_heard_s;
    int64_t accept_seq; /* connections are numbered in the order of acceptance */
    struct watchdog_rank_state state;
    char host[64];
    size_t nread;        /* bytes in buf */
    size_t frame_nbytes; /* of the frame at the start of buf that watchdog_recv returned last */
    unsigned char buf[sizeof(struct watchdog_exit) + 8];
};

/* The addresses and port at which rank 0 listens, and the token. */
struct watchdog_endpoint {
    int32_t is_open, port, naddrs;
    unsigned char token[16];
    char host[64];
    struct {
        int32_t family;
        unsigned char addr[16];
    } addr[8];
};

/* Listen on loopback only (is_local) or on all addresses of this host; port 0: any.  The socket, or -1 with errno. */
int watchdog_listen(struct watchdog_endpoint *to, bool is_local, int port);
/* Fill in the endpoint of a rendezvous.  NULL, or the error message of the name lookup. */
const char *watchdog_resolve(struct watchdog_endpoint *to, const struct meg_rendezvous *r);
int watchdog_accept(int listen_fd);
/* Copy a name of cap bytes that a peer sent to to[cap]: zero-terminated, and with ? for every control character. */
void watchdog_copy_name(char *to, const char *from, size_t cap);
/* Close *fd unless it is -1, and set it to -1; errno is preserved. */
void watchdog_close_fd(int *fd);
/* A connected socket, or -1 with errno. */
int watchdog_connect(const struct watchdog_endpoint *to);

/* Send a frame without blocking; it is dropped if the socket's buffer is full. */
void watchdog_send(struct watchdog_conn *c, enum watchdog_frame_type type, const void *payload, size_t n);
/*
 * Extract the next complete frame.  1: type and *payload are set (payload points into c until the next call); 0: none
 * is complete yet; -1: the connection is closed, or sent an invalid frame.
 */
int watchdog_recv(struct watchdog_conn *c, enum watchdog_frame_type *type, const void **payload);

/* ---- exit_report.c: the text of reports ---- */

struct watchdog_snapshot {
    int size, rank; /* of the job; of this process */
    struct watchdog_rank_state own_state;
    const char *host;                 /* of this process */
    const struct watchdog_conn *conn; /* [nconns]; those without a rank are ignored */
    int nconns;
    double timeout_s; /* that has expired */
};

/* Append a report that the process at the other end of `lost` has exited. */
void watchdog_report_lost(struct meg_str *s, const struct watchdog_snapshot *v, const struct watchdog_conn *lost);
/* Append a report of a timeout; ranks that have not replied are reported as stopped. */
void watchdog_report_timeout(struct meg_str *s, const struct watchdog_snapshot *v);
/* Append the ranks of n that have not joined, and those that have. */
void watchdog_report_missing(struct meg_str *s, const bool *has_joined, int n);

/* ---- watchdog.c and monitor.c ---- */

enum watchdog_exit_cause {
    WATCHDOG_CAUSE_NONE,
    WATCHDOG_CAUSE_LOST,
    WATCHDOG_CAUSE_TIMEOUT,
    WATCHDOG_CAUSE_SIGTERM,
    WATCHDOG_CAUSE_PEER_EXIT
};

struct watchdog_kv_item;

struct meg_watchdog {
    /* set once */
    int rank, size, listen_fd, epoll, wake_pipe[2];
    double timeout_s, heartbeat_s;
    char host[64];
    struct watchdog_endpoint endpoint;
    struct meg_watchdog_bootstrap bootstrap;
    bool is_open; /* the thread runs */
    pthread_t thread;

    /* shared by the threads, protected by lock */
    pthread_mutex_t lock;
    pthread_cond_t exit_sent_cond;
    struct watchdog_rank_state state;
    int64_t nwaits, nsteps; /* begun so far */
    struct watchdog_exit exit;
    bool is_exiting, has_sent_exit, is_closing;
    bool *has_joined; /* [size] */
    int njoined;      /* how many of has_joined are true */
    struct watchdog_kv_item *kv;
    int nkv;

    /* owned by the monitor thread */
    struct watchdog_conn *conn;
    int nconns;
    int64_t naccepted;
    double since_heartbeat_s, waited_s, paused_s, since_pause_s;
    int64_t last_wait;              /* nwaits at the last check */
    enum watchdog_exit_cause cause; /* of the exit that is due in grace_s */
    double grace_s;
    const struct watchdog_conn *lost_conn;
    int peer_status; /* exit status for WATCHDOG_CAUSE_PEER_EXIT */
    bool must_exit;  /* on a timeout: even if all ranks reply */
    bool has_warned; /* of a process that tried to join a complete run */
    volatile sig_atomic_t was_terminated;
};

static inline bool watchdog_is_server(const struct meg_watchdog *w)
{
    return w->rank == 0;
}

/* A watchdog that is not connected yet; meg_watchdog_close frees it. */
struct meg_watchdog *watchdog_new(const struct meg_watchdog_bootstrap *b);
/* Timeout of a wait, longer until the first step is complete.  The caller holds the lock. */
double watchdog_timeout_s(const struct meg_watchdog *w);
/* Wake the monitor thread. */
void watchdog_wake(struct meg_watchdog *w);
/* Listen and start the thread, as rank 0.  False with errno. */
bool watchdog_serve(struct meg_watchdog *w, bool is_local, int port);
/*
 * Connect to rank 0, retrying for patience_s, and start the thread.  On failure false with errno; conn[0].fd is then
 * open if the listener is not a watchdog.
 */
bool watchdog_join(struct meg_watchdog *w, double patience_s);
/* Connect at the bootstrap's rendezvous; ends the process if that fails (rendezvous.c). */
void watchdog_rendezvous(struct meg_watchdog *w);

/* Wake the thread on events of fd, tagged with tag: a connection, &listen_fd or &wake_pipe. */
bool watchdog_epoll_add(struct meg_watchdog *w, int fd, void *tag);
/* The thread; arg is the struct meg_watchdog. */
void *watchdog_monitor(void *arg);

/* ---- kv_store.c ---- */

/* Handle a frame of the key-value store, on the monitor thread. */
void watchdog_kv_receive(struct meg_watchdog *w, struct watchdog_conn *c, enum watchdog_frame_type type,
                         const struct meg_kv_store_entry *entry);
/* Send pending entries and requests, on the monitor thread. */
void watchdog_kv_flush(struct meg_watchdog *w);
void watchdog_kv_clear(struct meg_watchdog *w);

MEG_END_DECLS
#endif
