/*
 * store.h - host collectives over the connections of the watchdog: gather, reduce or broadcast small values.
 *
 * Each rank of a group sends its value to rank 0 of the run.  When all values have arrived, rank 0 sends the result to
 * the ranks of the group: one message in each direction.  The monitor thread of rank 0 receives and sends these
 * messages.  The main thread of rank 0 may therefore be busy, and rank 0 need not belong to the group.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct meg_watchdog;

/*
 * Maximum size in bytes of one rank's value.  It is small because rank 0 stores the values of all ranks of a
 * collective.
 */
enum { MEG_STORE_MAX_NBYTES = 1 << 14 };

enum meg_store_op {
    MEG_STORE_GATHER,   /* the result contains the values of all ranks, in rank order */
    MEG_STORE_REDUCE,   /* the result is computed by `reduce` of struct meg_watchdog_bootstrap */
    MEG_STORE_BROADCAST /* the result is the value of `root` */
};

/* The arguments of one rank for a collective.  All ranks of the group pass equal values, except for `rank`. */
struct meg_store_collective {
    uint64_t group; /* (group, number) identifies the collective among all that are in progress in the run */
    int64_t number;
    int32_t op; /* enum meg_store_op */
    int32_t rank, size;
    int32_t root;           /* of a broadcast, else 0 */
    int32_t dtype, combine; /* passed to `reduce`; 0 in other collectives */
    int32_t nbytes;         /* size of a value in bytes, 0 to MEG_STORE_MAX_NBYTES */
};

/*
 * Start a collective without blocking; requires an open watchdog.  The value [nbytes] is copied.  In a broadcast, only
 * the root's value is read.
 */
void meg_store_start(struct meg_watchdog *w, const struct meg_store_collective *c, const void *value);
/*
 * If the result of a started collective has arrived, copy it to `result`, remove it and return true; else return false.
 * The result of a gather has size * nbytes bytes, the result of the other collectives nbytes.
 */
bool meg_store_take(struct meg_watchdog *w, const struct meg_store_collective *c, void *result);
