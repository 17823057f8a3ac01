/*
 * kv_store.h - a key-value store over the connections of the watchdog: one rank puts a value, others get it.
 *
 * It carries what ranks need to create a communicator (NCCL's unique id).  Rank 0 keeps an entry until all its readers
 * have it.
 */
#ifndef MEG_WATCHDOG_KV_STORE_H
#define MEG_WATCHDOG_KV_STORE_H
#include <stdbool.h>
#include <stdint.h>
#include "base/decls.h"

MEG_BEGIN_DECLS

struct meg_watchdog;

/* The key is (group, from, to). */
struct meg_kv_store_entry {
    uint64_t group;
    int32_t from, to;
    int32_t nreaders; /* gets until the entry is dropped */
    unsigned char value[128];
};

/* Both take an open watchdog.  Neither blocks. */
void meg_kv_store_put(struct meg_watchdog *w, const struct meg_kv_store_entry *entry);
/*
 * Look up entry's key: true and the value if it has arrived; otherwise request it from rank 0 once and return false, so
 * that a later call succeeds.
 */
bool meg_kv_store_get(struct meg_watchdog *w, struct meg_kv_store_entry *entry);

MEG_END_DECLS
#endif
