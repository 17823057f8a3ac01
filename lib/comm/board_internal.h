/* What the files of the board share. */
#ifndef MEG_COMM_BOARD_INTERNAL_H
#define MEG_COMM_BOARD_INTERNAL_H
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "comm/board.h"

/* ---- where a rank is ---- */

struct board_place {
    int64_t step;                    /* -1: not training yet */
    int64_t number;                  /* of the operation in its group */
    int32_t is_waiting;
    char what[20], group[20];        /* of the wait */
};

/* ---- board_wire.c: frames over TCP ---- */

enum board_kind {
    BOARD_JOIN = 1,                  /* struct board_join: the first frame of a rank */
    BOARD_WELCOME,                   /* struct board_welcome: the answer to it */
    BOARD_PLACE,                     /* struct board_place: a heartbeat, and the answer to BOARD_ASK */
    BOARD_ASK,                       /* where are you? */
    BOARD_WAITED,                    /* to rank 0: my wait took too long */
    BOARD_ENDS,                      /* struct board_ends: I end, and this is why */
    BOARD_END,                       /* struct board_ends: everybody ends; the answer to a process that is refused */
    BOARD_NOTE,                      /* struct meg_board_note: to be kept by rank 0, or what was asked for */
    BOARD_WANT,                      /* struct meg_board_note, its name: asks for it */
    BOARD_BYE                        /* I am done, and close */
};

struct board_join {
    unsigned char token[16];
    int32_t rank, size;
    char host[64];
};

struct board_welcome {
    char host[64];
};

struct board_ends {
    int32_t status;
    int32_t is_abort;                /* who ends has the launcher end the others: they are in no hurry */
    char why[400];
};

/* One end of a connection. */
struct board_link {
    int fd;                          /* -1: none */
    int rank;                        /* of the other end, -1: not known yet */
    bool has_answered;               /* since it was asked */
    bool has_left;                   /* said goodbye */
    bool is_clogged;                 /* a frame went out in part: nothing more is sent */
    double silent_s;
    int64_t arrival;                 /* connections are numbered as they arrive */
    struct board_place place;
    char host[64];
    size_t have, taken;              /* bytes of in, and of its first frame where that was given */
    unsigned char in[sizeof(struct board_ends) + 8];
};

/* Where rank 0 listens, and the token. */
struct board_invite {
    int32_t is_open, port, naddrs;
    unsigned char token[16];
    char host[64];
    struct {
        int32_t family;
        unsigned char addr[16];
    } addr[8];
};

/* Listen on loopback only, or on all addresses of this host; port 0: any.  The socket, or -1 with errno. */
int board_listen(struct board_invite *to, bool is_local, int port);
/* Invite to a host by its name, or to loopback.  NULL, or what is wrong. */
const char *board_invite_to(struct board_invite *to, const struct meg_meeting *m);
int board_accept(int listening);
/* Copy a name that a peer sent, cap bytes, to to[cap]: with a zero at its end, and ? for every control character. */
void board_copy_name(char *to, const char *from, size_t cap);
/* Close *fd where it is one, leaving -1, and errno as it is. */
void board_shut(int *fd);
/* A connected socket, or -1 with errno. */
int board_connect(const struct board_invite *to);

/* Send a frame without waiting; a heartbeat that finds no room is left out. */
void board_send(struct board_link *l, enum board_kind kind, const void *payload, size_t n);

/*
 * Take the next whole frame out of what has arrived.  1: kind and *payload (in l) are set; 0: none yet;
 * -1: closed, or not a frame of ours.
 */
int board_recv(struct board_link *l, enum board_kind *kind, const void **payload);

/* ---- board_words.c: what is said ---- */

struct board_view {
    int size, rank;                  /* of the job; whose view this is */
    struct board_place mine;
    const char *host;                /* mine */
    const struct board_link *link;   /* to others; those without a rank are not looked at */
    int nlinks;
    double deadline_s;               /* that has passed */
};

/* The process at the other end is gone. */
void board_say_gone(struct meg_str *s, const struct board_view *v, const struct board_link *gone);
/* Time is up, and who has not answered is taken for stopped. */
void board_say_late(struct meg_str *s, const struct board_view *v);

/* Of n ranks these came, and the others did not. */
void board_say_absent(struct meg_str *s, const bool *has_come, int n);

/* ---- board_notes.c ---- */

/* A frame of a note; the thread's. */
void board_take_note(struct board_link *l, enum board_kind kind, const struct meg_board_note *note);
/* Send what there is to send; the thread's. */
void board_pass_notes(void);
void board_forget_notes(void);

/* ---- board.c and board_thread.c: the board of this process ---- */

enum board_verdict { BOARD_NONE, BOARD_GONE, BOARD_LATE, BOARD_TERMINATED, BOARD_ENDED };

struct board {
    /* set once */
    int rank, size, listening, epoll, poke[2];
    double deadline_s, beat_s;
    char host[64];
    struct board_invite invite;
    const struct meg_meeting *meeting;
    struct meg_comm *world;
    bool is_open;
    pthread_t thread;

    /* between the threads */
    pthread_mutex_t lock;
    pthread_cond_t told;
    struct board_place place;
    int64_t wait, steps;             /* how many there have been */
    struct board_ends ends;
    bool is_ending, has_told, is_leaving;
    bool *has_come;                  /* [size] */
    int ncome;                       /* how many of has_come are true */

    /* the thread's own */
    struct board_link *link;
    int nlinks;
    int64_t arrivals;
    double since_beat_s, waited_s, paused_s, since_pause_s;
    int64_t wait_seen;
    enum board_verdict verdict;      /* that is due in left_s */
    const struct board_link *lost;
    int ended_status;
    bool must_end;                   /* a late verdict: also when everybody answers */
    bool has_warned;                 /* of a process that wanted to join a complete run */
    double left_s;
    volatile sig_atomic_t was_terminated;
};
extern struct board board;

static inline bool board_is_host(void)
{
    return board.rank == 0;
}

/* How long a wait may take; until the first step is done others may be busy setting up.  With the lock held. */
double board_patience_s(void);
/* Wake the thread. */
void board_poke(void);
/* Take ranks in, as rank 0.  False with errno. */
bool board_serve(bool is_local, int port);
/*
 * Join rank 0's board, which may not be there for patience_s.  False: errno, or link[0].fd where it is no board of
 * ours.
 */
bool board_go_to(double patience_s);
/* ---- board_meet.c: ends the process where ranks do not meet ---- */
void board_meet(const struct meg_meeting *m);

/* Events of fd wake the thread and come with who: a link, &board.listening or &board.poke. */
bool board_listen_to(int fd, void *who);
/* The thread. */
void *board_watch(void *arg);

#endif
