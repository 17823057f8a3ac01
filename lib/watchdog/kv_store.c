/*
 * The key-value store.  Every process has one list of items.  An item is a stored entry or a pending request.  Rank 0
 * stores the entries of all ranks.  The other ranks forward their entries and requests to rank 0, and remove an entry
 * once it is sent.  A value that rank 0 returns is stored until it is read.
 */
#include "watchdog/kv_store.h"
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "watchdog/internal.h"

struct watchdog_kv_item {
    struct meg_kv_store_entry entry;
    bool is_request;                 /* the item requests the value of entry's key; otherwise, entry has a value */
    bool is_sent;                    /* do not send the item to rank 0: it was already sent, or a peer sent it */
    struct watchdog_conn *requester; /* connection of the requesting rank; NULL for this process */
};

/* The caller of the functions below holds the lock. */

static struct watchdog_kv_item *find(struct meg_watchdog *w, const struct meg_kv_store_entry *key, bool is_request,
                                     const struct watchdog_conn *requester)
{
    for (int i = 0; i < w->nkv; i++) {
        const struct meg_kv_store_entry *e = &w->kv[i].entry;

        if (e->group == key->group && e->from == key->from && e->to == key->to && w->kv[i].is_request == is_request &&
            w->kv[i].requester == requester)
            return &w->kv[i];
    }
    return NULL;
}

static void add(struct meg_watchdog *w, struct watchdog_kv_item item)
{
    w->kv = meg_realloc_array(w->kv, (size_t)w->nkv + 1, sizeof *w->kv);
    w->kv[w->nkv++] = item;
}

static void drop(struct meg_watchdog *w, struct watchdog_kv_item *item)
{
    if (item)
        *item = w->kv[--w->nkv];
}

/* Count a read of an entry, and remove the entry after its last read. */
static void count_read(struct meg_watchdog *w, struct watchdog_kv_item *item)
{
    if (--item->entry.nreaders == 0)
        drop(w, item);
}

/* On rank 0, send the entries that have arrived to the ranks that requested them. */
static void send_replies(struct meg_watchdog *w)
{
    for (int i = 0; i < w->nkv; i++) {
        struct watchdog_kv_item request = w->kv[i];
        struct watchdog_kv_item *found = request.requester ? find(w, &request.entry, false, NULL) : NULL;

        if (!found)
            continue;
        watchdog_send(request.requester, WATCHDOG_KV_ENTRY, &found->entry, sizeof found->entry);
        drop(w, &w->kv[i--]);
        count_read(w, find(w, &request.entry, false, NULL));
    }
}

/* On other ranks, forward entries and requests to rank 0. */
static void send_to_server(struct meg_watchdog *w)
{
    for (int i = 0; i < w->nkv; i++) {
        struct watchdog_kv_item *item = &w->kv[i];

        if (item->is_sent)
            continue;
        watchdog_send(&w->conn[0], item->is_request ? WATCHDOG_KV_GET : WATCHDOG_KV_ENTRY, &item->entry,
                      sizeof item->entry);
        item->is_sent = true;
        if (!item->is_request)
            drop(w, &w->kv[i--]);
    }
}

/* ---- public functions and functions of the monitor thread, which acquire the lock ---- */

void meg_kv_store_put(struct meg_watchdog *w, const struct meg_kv_store_entry *entry)
{
    MEG_ASSERT(w && w->is_open);
    pthread_mutex_lock(&w->lock);
    add(w, (struct watchdog_kv_item){ .entry = *entry });
    pthread_mutex_unlock(&w->lock);
    watchdog_wake(w);
}

bool meg_kv_store_get(struct meg_watchdog *w, struct meg_kv_store_entry *entry)
{
    struct watchdog_kv_item *found;

    MEG_ASSERT(w && w->is_open);
    pthread_mutex_lock(&w->lock);
    found = find(w, entry, false, NULL);
    if (found) {
        *entry = found->entry;
        count_read(w, found);
        drop(w, find(w, entry, true, NULL));
    } else if (!find(w, entry, true, NULL)) {
        add(w, (struct watchdog_kv_item){ .entry = *entry, .is_request = true });
        watchdog_wake(w);
    }
    pthread_mutex_unlock(&w->lock);
    return found != NULL;
}

void watchdog_kv_receive(struct meg_watchdog *w, struct watchdog_conn *c, enum watchdog_frame_type type,
                         const struct meg_kv_store_entry *entry)
{
    struct watchdog_kv_item item = { .entry = *entry, .is_sent = true };

    if (type == WATCHDOG_KV_GET) {
        item.is_request = true;
        item.requester = c;
    } else if (!watchdog_is_server(w)) {
        item.entry.nreaders = 1;
    }
    pthread_mutex_lock(&w->lock);
    add(w, item);
    pthread_mutex_unlock(&w->lock);
    watchdog_kv_flush(w);
}

void watchdog_kv_flush(struct meg_watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    if (watchdog_is_server(w))
        send_replies(w);
    else
        send_to_server(w);
    pthread_mutex_unlock(&w->lock);
}

void watchdog_kv_clear(struct meg_watchdog *w)
{
    free(w->kv);
    w->kv = NULL;
    w->nkv = 0;
}
