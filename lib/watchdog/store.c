/*
 * store.c - host collectives over the watchdog: rank 0 collects the values of a group's ranks, and sends them the
 * result.
 */
#include "watchdog/store.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "watchdog/internal.h"

/* A value that this rank has not sent to rank 0 yet, or a result that the main thread has not taken yet. */
struct watchdog_store_message {
    struct watchdog_store_message *next;
    struct meg_store_collective collective;
    size_t nbytes;
    unsigned char bytes[];
};

/* A collective that waits on rank 0 for the values of some ranks. */
struct watchdog_store_pending {
    struct watchdog_store_pending *next;
    struct meg_store_collective first; /* as passed by the rank whose value arrived first */
    int narrived;
    bool *has_arrived;           /* [size] */
    struct watchdog_conn **conn; /* [size] connections of the ranks; NULL for rank 0 */
    unsigned char *values;       /* [size * nbytes], or [nbytes] of the root of a broadcast */
};

static struct watchdog_store_message *message_new(const struct meg_store_collective *c, const void *bytes,
                                                  size_t nbytes)
{
    struct watchdog_store_message *m = meg_new(sizeof *m + nbytes);

    m->collective = *c;
    m->nbytes = nbytes;
    if (nbytes)
        memcpy(m->bytes, bytes, nbytes);
    return m;
}

static void append(struct watchdog_store_message **list, struct watchdog_store_message *m)
{
    while (*list)
        list = &(*list)->next;
    *list = m;
}

static bool is_same(const struct meg_store_collective *a, const struct meg_store_collective *b)
{
    return a->group == b->group && a->number == b->number;
}

static bool agree(const struct meg_store_collective *a, const struct meg_store_collective *b)
{
    return a->op == b->op && a->size == b->size && a->root == b->root && a->dtype == b->dtype &&
           a->combine == b->combine && a->nbytes == b->nbytes;
}

/* Return the size in bytes of the value that rank c->rank sends. */
static size_t value_nbytes(const struct meg_store_collective *c)
{
    return c->op == MEG_STORE_BROADCAST && c->rank != c->root ? 0 : (size_t)c->nbytes;
}

/* ---- rank 0 ---- */

static struct watchdog_store_pending *find_or_add(struct meg_watchdog *w, const struct meg_store_collective *c)
{
    const size_t size = (size_t)c->size;
    struct watchdog_store_pending *p = w->store_pending;

    while (p && !is_same(&p->first, c))
        p = p->next;
    if (p)
        return p;
    p = meg_new(sizeof *p);
    p->first = *c;
    p->has_arrived = meg_new(size * sizeof *p->has_arrived);
    p->conn = meg_new(size * sizeof *p->conn);
    p->values = meg_new((size_t)c->nbytes * (c->op == MEG_STORE_BROADCAST ? 1 : size) + 1);
    p->next = w->store_pending;
    w->store_pending = p;
    return p;
}

static void free_pending(struct meg_watchdog *w, struct watchdog_store_pending *p)
{
    struct watchdog_store_pending **link = &w->store_pending;

    while (*link != p)
        link = &(*link)->next;
    *link = p->next;
    free(p->has_arrived);
    free(p->conn);
    free(p->values);
    free(p);
}

static void add_result(struct meg_watchdog *w, const struct meg_store_collective *c, const void *bytes, size_t nbytes)
{
    struct watchdog_store_message *m = message_new(c, bytes, nbytes);

    pthread_mutex_lock(&w->lock);
    append(&w->store_results, m);
    pthread_mutex_unlock(&w->lock);
}

/* Compute the result of a collective after all values have arrived, send it to the ranks of the group, and free p. */
static void complete(struct meg_watchdog *w, struct watchdog_store_pending *p)
{
    const struct meg_store_collective *c = &p->first;
    const size_t nbytes = (size_t)c->nbytes * (c->op == MEG_STORE_GATHER ? (size_t)c->size : 1);

    if (c->op == MEG_STORE_REDUCE)
        w->bootstrap.reduce(p->values, c);
    for (int r = 0; r < c->size; r++) {
        if (p->conn[r])
            watchdog_send_two(p->conn[r], WATCHDOG_STORE_RESULT, c, sizeof *c, p->values, nbytes);
        else
            add_result(w, c, p->values, nbytes);
    }
    free_pending(w, p);
}

/* Return whether the members of a collective are in range, and the value has the size that they require. */
static bool is_valid(const struct meg_watchdog *w, const struct meg_store_collective *c, size_t nbytes)
{
    return c->size >= 1 && c->size <= w->size && c->rank >= 0 && c->rank < c->size && c->root >= 0 &&
           c->root < c->size && c->op >= MEG_STORE_GATHER && c->op <= MEG_STORE_BROADCAST && c->nbytes >= 0 &&
           c->nbytes <= MEG_STORE_MAX_NBYTES && nbytes == value_nbytes(c);
}

/*
 * On rank 0, store the value of rank c->rank, and complete the collective after the last value.  conn is the connection
 * of that rank, or NULL if it is rank 0 of the run.  Return false if the value is invalid.  End the run if two ranks of
 * the group pass different collectives, or one rank passes two values.
 */
static bool receive_value(struct meg_watchdog *w, struct watchdog_conn *conn, const struct meg_store_collective *c,
                          const void *value, size_t nbytes)
{
    struct watchdog_store_pending *p;

    if (!is_valid(w, c, nbytes))
        return false;
    p = find_or_add(w, c);
    if (!agree(&p->first, c) || p->has_arrived[c->rank])
        watchdog_exit_all(w, meg_exit_status(MEG_EFAIL),
                          "rank %d of %d calls host collective %" PRId64 " of its group with operation %d on %d bytes, "
                          "another rank with operation %d on %d bytes; this is a bug",
                          c->rank, c->size, c->number, c->op, c->nbytes, p->first.op, p->first.nbytes);
    p->has_arrived[c->rank] = true;
    p->conn[c->rank] = conn;
    if (nbytes)
        memcpy(p->values + (c->op == MEG_STORE_BROADCAST ? 0 : nbytes * (size_t)c->rank), value, nbytes);
    if (++p->narrived == c->size)
        complete(w, p);
    return true;
}

/* ---- all ranks ---- */

bool watchdog_store_receive(struct meg_watchdog *w, struct watchdog_conn *conn, enum watchdog_frame_type type,
                            const void *payload, size_t nbytes)
{
    const unsigned char *bytes = payload;
    struct meg_store_collective c;

    if (watchdog_is_server(w) != (type == WATCHDOG_STORE_VALUE))
        return false;
    memcpy(&c, bytes, sizeof c);
    bytes += sizeof c;
    nbytes -= sizeof c;
    if (type == WATCHDOG_STORE_VALUE)
        return receive_value(w, conn, &c, bytes, nbytes);
    add_result(w, &c, bytes, nbytes);
    return true;
}

void watchdog_store_flush(struct meg_watchdog *w)
{
    struct watchdog_store_message *m, *next;

    pthread_mutex_lock(&w->lock);
    m = w->store_values;
    w->store_values = NULL;
    pthread_mutex_unlock(&w->lock);
    for (; m; m = next) {
        next = m->next;
        if (watchdog_is_server(w))
            MEG_ASSERT(receive_value(w, NULL, &m->collective, m->bytes, m->nbytes));
        else
            watchdog_send_two(&w->conn[0], WATCHDOG_STORE_VALUE, &m->collective, sizeof m->collective, m->bytes,
                              m->nbytes);
        free(m);
    }
}

static void free_messages(struct watchdog_store_message *m)
{
    while (m) {
        struct watchdog_store_message *next = m->next;

        free(m);
        m = next;
    }
}

void watchdog_store_clear(struct meg_watchdog *w)
{
    while (w->store_pending)
        free_pending(w, w->store_pending);
    free_messages(w->store_values);
    free_messages(w->store_results);
    w->store_values = w->store_results = NULL;
}

void meg_store_start(struct meg_watchdog *w, const struct meg_store_collective *c, const void *value)
{
    MEG_ASSERT(w && w->is_open);
    MEG_ASSERT_LE(c->nbytes, MEG_STORE_MAX_NBYTES);
    pthread_mutex_lock(&w->lock);
    append(&w->store_values, message_new(c, value, value_nbytes(c)));
    pthread_mutex_unlock(&w->lock);
    watchdog_wake(w);
}

bool meg_store_take(struct meg_watchdog *w, const struct meg_store_collective *c, void *result)
{
    struct watchdog_store_message **link, *m;

    pthread_mutex_lock(&w->lock);
    for (link = &w->store_results; *link && !is_same(&(*link)->collective, c);)
        link = &(*link)->next;
    m = *link;
    if (m)
        *link = m->next;
    pthread_mutex_unlock(&w->lock);
    if (!m)
        return false;
    if (m->nbytes)
        memcpy(result, m->bytes, m->nbytes);
    free(m);
    return true;
}
