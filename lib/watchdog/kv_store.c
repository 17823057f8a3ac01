/*
 * Notes lie at rank 0 until all their readers have them.  Every process has a list: of what it holds, of
 * what is asked for, and (other ranks) of what is still to be sent to rank 0.
 */
#include <stdlib.h>
#include <string.h>
#include "watchdog/internal.h"

struct entry {
    struct meg_kv_store_entry note;
    bool is_wanted;              /* else it is held */
    bool is_told;                /* to rank 0, or came from there */
    struct watchdog_conn *asker; /* NULL: this process */
};

/* With the board's lock held. */
static struct entry *list;
static int count;

static struct entry *find(const struct meg_kv_store_entry *name, bool is_wanted, const struct watchdog_conn *asker)
{
    for (int i = 0; i < count; i++) {
        const struct meg_kv_store_entry *n = &list[i].note;

        if (n->group == name->group && n->from == name->from && n->to == name->to && list[i].is_wanted == is_wanted &&
            list[i].asker == asker)
            return &list[i];
    }
    return NULL;
}

static void add(struct entry e)
{
    list = meg_realloc_array(list, (size_t)count + 1, sizeof *list);
    list[count++] = e;
}

static void drop(struct entry *e)
{
    if (e)
        *e = list[--count];
}

/* One of its readers has it. */
static void read_once(struct entry *held)
{
    if (--held->note.readers == 0)
        drop(held);
}

void meg_kv_store_put(const struct meg_kv_store_entry *note)
{
    MEG_ASSERT(watchdog.is_open);
    pthread_mutex_lock(&watchdog.lock);
    add((struct entry){ .note = *note });
    pthread_mutex_unlock(&watchdog.lock);
    watchdog_wake();
}

bool meg_kv_store_get(struct meg_kv_store_entry *note)
{
    struct entry *held;

    MEG_ASSERT(watchdog.is_open);
    pthread_mutex_lock(&watchdog.lock);
    held = find(note, false, NULL);
    if (held) {
        *note = held->note;
        read_once(held);
        drop(find(note, true, NULL));
    } else if (!find(note, true, NULL)) {
        add((struct entry){ .note = *note, .is_wanted = true });
        watchdog_wake();
    }
    pthread_mutex_unlock(&watchdog.lock);
    return held != NULL;
}

void watchdog_kv_receive(struct watchdog_conn *l, enum watchdog_frame_type kind, const struct meg_kv_store_entry *note)
{
    struct entry e = { .note = *note, .is_told = true };

    if (kind == WATCHDOG_KV_GET) {
        e.is_wanted = true;
        e.asker = l;
    } else if (!watchdog_is_server()) {
        e.note.readers = 1;
    }
    pthread_mutex_lock(&watchdog.lock);
    add(e);
    pthread_mutex_unlock(&watchdog.lock);
    watchdog_kv_flush();
}

/* Rank 0 gives what it holds to who asked. */
static void answer(void)
{
    for (int i = 0; i < count; i++) {
        struct entry asked = list[i], *held = asked.asker ? find(&asked.note, false, NULL) : NULL;

        if (!held)
            continue;
        watchdog_send(asked.asker, WATCHDOG_KV_ENTRY, &held->note, sizeof held->note);
        drop(&list[i--]);
        read_once(find(&asked.note, false, NULL));
    }
}

static void tell(void)
{
    for (int i = 0; i < count; i++) {
        if (list[i].is_told)
            continue;
        watchdog_send(&watchdog.link[0], list[i].is_wanted ? WATCHDOG_KV_GET : WATCHDOG_KV_ENTRY, &list[i].note,
                      sizeof list[i].note);
        list[i].is_told = true;
        if (!list[i].is_wanted)
            drop(&list[i--]);
    }
}

void watchdog_kv_flush(void)
{
    pthread_mutex_lock(&watchdog.lock);
    if (watchdog_is_server())
        answer();
    else
        tell();
    pthread_mutex_unlock(&watchdog.lock);
}

void watchdog_kv_clear(void)
{
    free(list);
    list = NULL;
    count = 0;
}
