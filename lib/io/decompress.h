/* decompress.h - streaming decompression of text in gzip, zstd and xz files, or in plain files. */
#pragma once
#include <stdint.h>
#include "base/err.h"

struct meg_decompressor;

/*
 * meg_decompressor_open - detect the format of a file by its first bytes
 *   fd    descriptor of the file; borrowed
 *   name  name of the file in messages; borrowed
 * Reads the first MEG_FOREIGN_PREFIX bytes of text, or all if the file is shorter.
 * Returns MEG_EFORMAT if this text is not text but in a known binary format, for example a tar archive in gzip data;
 * the message says how to convert the file (foreign/foreign.h).  Otherwise fails as meg_decompressor_read does.
 */
int meg_decompressor_open(struct meg_decompressor **out, int fd, const char *name, struct meg_err *e);

/*
 * meg_decompressor_read - decompress at most n > 0 bytes into `out`
 * Returns the number of bytes, or 0 at the end of the file.  Concatenated streams are decoded as one file; zeros after
 * a gzip or xz stream are skipped.
 * Returns MEG_EFORMAT if the data is corrupt or truncated, or if zstd data requires a window of more than 128 MiB.
 * Returns MEG_EFAIL if memory is exhausted, and MEG_EIO if reading fails.
 */
int64_t meg_decompressor_read(struct meg_decompressor *u, char *out, int64_t n, struct meg_err *e);
void meg_decompressor_close(struct meg_decompressor *u); /* accepts NULL */
