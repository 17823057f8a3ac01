/*
 * kv_store.h - a key-value store over the connections of the watchdog: one rank puts a value, and other ranks get it.
 *
 * Ranks exchange the data that creates a communicator (NCCL's unique id).  Rank 0 stores an entry until the entry has
 * been read nreaders times.
 */
#ifndef MEG_WATCHDOG_KV_STORE_H
#define MEG_WATCHDOG_KV_STORE_H
#include <stdbool.h>
#include <stdint.h>
#include "base/decls.h"

MEG_BEGIN_DECLS

struct meg_watchdog;

/* The key is (group, from, to); the store only compares these numbers. */
struct meg_kv_store_entry {
    uint64_t group;
    int32_t from, to;
    int32_t nreaders; /* number of reads after which the entry is removed */
    unsigned char value[128];
};

/* Store an entry without blocking.  This function and meg_kv_store_get require an open watchdog. */
void meg_kv_store_put(struct meg_watchdog *w, const struct meg_kv_store_entry *entry);
/*
 * Look up an entry by its key without blocking.  If the value has arrived, set entry->value and return true.
 * Otherwise, return false, and request the value from rank 0 unless a request is pending.
 */
bool meg_kv_store_get(struct meg_watchdog *w, struct meg_kv_store_entry *entry);

MEG_END_DECLS
#endif
