/* base64.h - RFC 4648, section 4. */
#ifndef MEG_IO_BASE64_H
#define MEG_IO_BASE64_H

#include <stdint.h>

#include "base/mem.h"

/* Append the bytes that n characters stand for; -1, and nothing appended, where they are no base64. */
int meg_base64_decode(struct meg_str *out, const char *s, int64_t n);
/* Append the characters of n bytes, padded with "=" to a multiple of four. */
void meg_base64_encode(struct meg_str *out, const char *bytes, int64_t n);

#endif
