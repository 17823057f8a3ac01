/* base64.h - Base64 (RFC 4648, section 4). */
#pragma once
#include <stdint.h>
#include "base/mem.h"

/*
 * Decode s [n] and append the bytes to `out`.  Returns 0, or -1 with `out` unchanged if s is not valid Base64 or is not
 * padded to a multiple of four characters.
 */
int meg_base64_decode(struct meg_str *out, const char *s, int64_t n);
/* Encode n bytes and append the characters to `out`, padded with = to a multiple of four. */
void meg_base64_encode(struct meg_str *out, const char *bytes, int64_t n);
