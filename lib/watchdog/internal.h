/* What the files of the board share. */
#ifndef MEG_COMM_BOARD_INTERNAL_H
#define MEG_COMM_BOARD_INTERNAL_H
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "watchdog/watchdog.h"

/* ---- where a rank is ---- */

struct watchdog_rank_state {
    int64_t step;   /* -1: not training yet */
    int64_t number; /* of the operation in its group */
    int32_t is_waiting;
    char what[20], group[20]; /* of the wait */
};

/* ---- board_wire.c: frames over TCP ---- */

enum watchdog_frame_type {
    WATCHDOG_JOIN = 1,  /* struct board_join: the first frame of a rank */
    WATCHDOG_WELCOME,   /* struct board_welcome: the answer to it */
    WATCHDOG_HEARTBEAT, /* struct board_place: a heartbeat, and the answer to BOARD_ASK */
    WATCHDOG_QUERY,     /* where are you? */
    WATCHDOG_TIMEOUT,   /* to rank 0: my wait took too long */
    WATCHDOG_EXITING,   /* struct board_ends: I end, and this is why */
    WATCHDOG_EXIT_ALL,  /* struct board_ends: everybody ends; the answer to a process that is refused */
    WATCHDOG_KV_ENTRY,  /* struct meg_kv_store_entry: to be kept by rank 0, or what was asked for */
    WATCHDOG_KV_GET,    /* struct meg_kv_store_entry, its name: asks for it */
    WATCHDOG_BYE        /* I am done, and close */
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
    int32_t is_abort; /* who ends has the launcher end the others: they are in no hurry */
    char why[400];
};

/* One end of a connection. */
struct watchdog_conn {
    int fd;            /* -1: none */
    int rank;          /* of the other end, -1: not known yet */
    bool has_answered; /* since it was asked */
    bool has_left;     /* said goodbye */
    bool is_clogged;   /* a frame went out in part: nothing more is sent */
    double silent_s;
    int64_t arrival; /* connections are numbered as they arrive */
    struct watchdog_rank_state place;
    char host[64];
    size_t have, taken; /* bytes of in, and of its first frame where that was given */
    unsigned char in[sizeof(struct watchdog_exit) + 8];
};

/* Where rank 0 listens, and the token. */
struct watchdog_endpoint {
    int32_t is_open, port, naddrs;
    unsigned char token[16];
    char host[64];
    struct {
        int32_t family;
        unsigned char addr[16];
    } addr[8];
};

/* Listen on loopback only, or on all addresses of this host; port 0: any.  The socket, or -1 with errno. */
int watchdog_listen(struct watchdog_endpoint *to, bool is_local, int port);
/* Invite to a host by its name, or to loopback.  NULL, or what is wrong. */
const char *watchdog_resolve(struct watchdog_endpoint *to, const struct meg_rendezvous *m);
int watchdog_accept(int listening);
/* Copy a name that a peer sent, cap bytes, to to[cap]: with a zero at its end, and ? for every control character. */
void watchdog_copy_name(char *to, const char *from, size_t cap);
/* Close *fd where it is one, leaving -1, and errno as it is. */
void watchdog_close_fd(int *fd);
/* A connected socket, or -1 with errno. */
int watchdog_connect(const struct watchdog_endpoint *to);

/* Send a frame without waiting; a heartbeat that finds no room is left out. */
void watchdog_send(struct watchdog_conn *l, enum watchdog_frame_type kind, const void *payload, size_t n);

/*
 * Take the next whole frame out of what has arrived.  1: kind and *payload (in l) are set; 0: none yet;
 * -1: closed, or not a frame of ours.
 */
int watchdog_recv(struct watchdog_conn *l, enum watchdog_frame_type *kind, const void **payload);

/* ---- board_words.c: what is said ---- */

struct watchdog_snapshot {
    int size, rank; /* of the job; whose view this is */
    struct watchdog_rank_state mine;
    const char *host;                 /* mine */
    const struct watchdog_conn *link; /* to others; those without a rank are not looked at */
    int nlinks;
    double deadline_s; /* that has passed */
};

/* The process at the other end is gone. */
void watchdog_report_lost(struct meg_str *s, const struct watchdog_snapshot *v, const struct watchdog_conn *gone);
/* Time is up, and who has not answered is taken for stopped. */
void watchdog_report_timeout(struct meg_str *s, const struct watchdog_snapshot *v);

/* Of n ranks these came, and the others did not. */
void watchdog_report_missing(struct meg_str *s, const bool *has_come, int n);

/* ---- board_notes.c ---- */

/* A frame of a note; the thread's. */
void watchdog_kv_receive(struct watchdog_conn *l, enum watchdog_frame_type kind, const struct meg_kv_store_entry *note);
/* Send what there is to send; the thread's. */
void watchdog_kv_flush(void);
void watchdog_kv_clear(void);

/* ---- board.c and board_thread.c: the board of this process ---- */

enum watchdog_exit_cause {
    WATCHDOG_CAUSE_NONE,
    WATCHDOG_CAUSE_LOST,
    WATCHDOG_CAUSE_TIMEOUT,
    WATCHDOG_CAUSE_SIGTERM,
    WATCHDOG_CAUSE_PEER_EXIT
};

struct watchdog {
    /* set once */
    int rank, size, listening, epoll, poke[2];
    double deadline_s, beat_s;
    char host[64];
    struct watchdog_endpoint invite;
    const struct meg_rendezvous *meeting;
    struct meg_comm *world;
    bool is_open;
    pthread_t thread;

    /* between the threads */
    pthread_mutex_t lock;
    pthread_cond_t told;
    struct watchdog_rank_state place;
    int64_t wait, steps; /* how many there have been */
    struct watchdog_exit ends;
    bool is_ending, has_told, is_leaving;
    bool *has_come; /* [size] */
    int ncome;      /* how many of has_come are true */

    /* the thread's own */
    struct watchdog_conn *link;
    int nlinks;
    int64_t arrivals;
    double since_beat_s, waited_s, paused_s, since_pause_s;
    int64_t wait_seen;
    enum watchdog_exit_cause verdict; /* that is due in left_s */
    const struct watchdog_conn *lost;
    int ended_status;
    bool must_end;   /* a late verdict: also when everybody answers */
    bool has_warned; /* of a process that wanted to join a complete run */
    double left_s;
    volatile sig_atomic_t was_terminated;
};
extern struct watchdog watchdog;

static inline bool watchdog_is_server(void)
{
    return watchdog.rank == 0;
}

/* How long a wait may take; until the first step is done others may be busy setting up.  With the lock held. */
double watchdog_timeout_s(void);
/* Wake the thread. */
void watchdog_wake(void);
/* Take ranks in, as rank 0.  False with errno. */
bool watchdog_serve(bool is_local, int port);
/*
 * Join rank 0's board, which may not be there for patience_s.  False: errno, or link[0].fd where it is no board of
 * ours.
 */
bool watchdog_join(double patience_s);
/* ---- board_meet.c: ends the process where ranks do not meet ---- */
void watchdog_rendezvous(const struct meg_rendezvous *m);

/* Events of fd wake the thread and come with who: a link, &board.listening or &board.poke. */
bool watchdog_epoll_add(int fd, void *who);
/* The thread. */
void *watchdog_monitor(void *arg);

#endif
