/* unpack.h - a file as it was before gzip, zstd or xz. */
#ifndef MEG_TEXT_UNPACK_H
#define MEG_TEXT_UNPACK_H

#include <stdint.h>

#include "base/err.h"

struct meg_unpack;

/* Read from fd, which is borrowed; name is for messages and must stay. */
int meg_unpack_open(struct meg_unpack **out, int fd, const char *name, struct meg_err *e);

/* Up to n bytes, n > 0; returns how many, 0 at the end.  MEG_EFORMAT for corrupt or cut input. */
int64_t meg_unpack_read(struct meg_unpack *u, char *to, int64_t n, struct meg_err *e);
void meg_unpack_close(struct meg_unpack *u); /* accepts NULL */

#endif
