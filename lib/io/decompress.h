/* decompress.h - a file as it was before gzip, zstd or xz. */
#ifndef MEG_IO_DECOMPRESS_H
#define MEG_IO_DECOMPRESS_H

#include <stdint.h>

#include "base/err.h"

struct meg_decompressor;

/*
 * meg_decompressor_open - read from fd, which is borrowed; name is for messages and must stay
 * MEG_EFORMAT for bzip2, lz4, ZIP, Parquet and Arrow, with what to do.
 */
int meg_decompressor_open(struct meg_decompressor **out, int fd, const char *name, struct meg_err *e);

/* Up to n bytes, n > 0; returns how many, 0 at the end.  MEG_EFORMAT for corrupt or cut input,
 * MEG_EFAIL where there is not the memory that it needs.  Zeros behind gzip and xz data are passed over. */
int64_t meg_decompressor_read(struct meg_decompressor *u, char *to, int64_t n, struct meg_err *e);
void meg_decompressor_close(struct meg_decompressor *u); /* accepts NULL */

#endif
