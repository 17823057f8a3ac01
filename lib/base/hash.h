/* hash.h - hash functions: XXH3 (xxHash) for tables and checksums, MD5 (RFC 1321) for the names of cache files. */
#pragma once
#include <stddef.h>
#include <stdint.h>

uint64_t meg_xxh3_64(const void *bytes, size_t n);

/* Write the XXH3-128 hash of bytes [n] to hex as 32 hexadecimal digits, high half first, and a zero byte. */
void meg_xxh3_128_hex(char hex[33], const void *bytes, size_t n);

/*
 * Compute the XXH3-128 hash of bytes that arrive in blocks.  meg_xxh3_128_end writes the hash of the concatenated
 * blocks to hex, as meg_xxh3_128_hex does, and frees the state.
 */
struct meg_xxh3_128;
struct meg_xxh3_128 *meg_xxh3_128_begin(void);
void meg_xxh3_128_add(struct meg_xxh3_128 *state, const void *bytes, size_t n);
void meg_xxh3_128_end(struct meg_xxh3_128 *state, char hex[33]);

/* Write the MD5 hash of bytes [n] to hex as 32 hexadecimal digits and a zero byte. */
void meg_md5_hex(char hex[33], const void *bytes, size_t n);
