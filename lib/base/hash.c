#include "base/hash.h"

#include <stdio.h>
#include <xxhash.h>

uint64_t meg_xxh3_64(const void *bytes, size_t n)
{
    return XXH3_64bits(bytes, n);
}

void meg_xxh3_128_hex(char hex[33], const void *bytes, size_t n)
{
    const XXH128_hash_t h = XXH3_128bits(bytes, n);

    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}
