/* hash.c - hash functions: XXH3 (xxHash) for tables and checksums, MD5 (RFC 1321) for the names of cache files. */
#include "base/hash.h"
#include <stdio.h>
#include <xxhash.h>
#include "base/err.h"

uint64_t meg_xxh3_64(const void *bytes, size_t n)
{
    return XXH3_64bits(bytes, n);
}

static void print_128(char hex[33], XXH128_hash_t h)
{
    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

void meg_xxh3_128_hex(char hex[33], const void *bytes, size_t n)
{
    print_128(hex, XXH3_128bits(bytes, n));
}

struct meg_xxh3_128 *meg_xxh3_128_begin(void)
{
    XXH3_state_t *state = XXH3_createState();

    if (!state)
        meg_die(MEG_EFAIL, "out of memory: cannot allocate the state of a hash");
    XXH3_128bits_reset(state);
    return (struct meg_xxh3_128 *)state;
}

void meg_xxh3_128_add(struct meg_xxh3_128 *state, const void *bytes, size_t n)
{
    XXH3_128bits_update((XXH3_state_t *)state, bytes, n);
}

void meg_xxh3_128_end(struct meg_xxh3_128 *state, char hex[33])
{
    print_128(hex, XXH3_128bits_digest((XXH3_state_t *)state));
    XXH3_freeState((XXH3_state_t *)state);
}
