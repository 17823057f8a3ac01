/*
 * Notes lie at rank 0 until all their readers have them.  Every process has a list: of what it holds, of
 * what is asked for, and (other ranks) of what is still to be sent to rank 0.
 */
#include <stdlib.h>
#include <string.h>
#include "comm/board_internal.h"

struct entry {
    struct meg_board_note note;
    bool is_wanted;                  /* else it is held */
    bool is_told;                    /* to rank 0, or came from there */
    struct board_link *asker;        /* NULL: this process */
};

/* With the board's lock held. */
static struct entry *list;
static int count;

static struct entry *find(const struct meg_board_note *name, bool is_wanted, const struct board_link *asker)
{
    for (int i = 0; i < count; i++) {
        const struct meg_board_note *n = &list[i].note;

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

void meg_board_put(const struct meg_board_note *note)
{
    MEG_ASSERT(board.is_open);
    pthread_mutex_lock(&board.lock);
    add((struct entry){ .note = *note });
    pthread_mutex_unlock(&board.lock);
    board_poke();
}

bool meg_board_get(struct meg_board_note *note)
{
    struct entry *held;

    MEG_ASSERT(board.is_open);
    pthread_mutex_lock(&board.lock);
    held = find(note, false, NULL);
    if (held) {
        *note = held->note;
        read_once(held);
        drop(find(note, true, NULL));
    } else if (!find(note, true, NULL)) {
        add((struct entry){ .note = *note, .is_wanted = true });
        board_poke();
    }
    pthread_mutex_unlock(&board.lock);
    return held != NULL;
}

void board_take_note(struct board_link *l, enum board_kind kind, const struct meg_board_note *note)
{
    struct entry e = { .note = *note, .is_told = true };

    if (kind == BOARD_WANT) {
        e.is_wanted = true;
        e.asker = l;
    } else if (!board_is_host()) {
        e.note.readers = 1;
    }
    pthread_mutex_lock(&board.lock);
    add(e);
    pthread_mutex_unlock(&board.lock);
    board_pass_notes();
}

/* Rank 0 gives what it holds to who asked. */
static void answer(void)
{
    for (int i = 0; i < count; i++) {
        struct entry asked = list[i], *held = asked.asker ? find(&asked.note, false, NULL) : NULL;

        if (!held)
            continue;
        board_send(asked.asker, BOARD_NOTE, &held->note, sizeof held->note);
        drop(&list[i--]);
        read_once(find(&asked.note, false, NULL));
    }
}

static void tell(void)
{
    for (int i = 0; i < count; i++) {
        if (list[i].is_told)
            continue;
        board_send(&board.link[0], list[i].is_wanted ? BOARD_WANT : BOARD_NOTE, &list[i].note, sizeof list[i].note);
        list[i].is_told = true;
        if (!list[i].is_wanted)
            drop(&list[i--]);
    }
}

void board_pass_notes(void)
{
    pthread_mutex_lock(&board.lock);
    if (board_is_host())
        answer();
    else
        tell();
    pthread_mutex_unlock(&board.lock);
}

void board_forget_notes(void)
{
    free(list);
    list = NULL;
    count = 0;
}
