/* append_file.h - a log file with unbuffered writes, so that a reader sees each record immediately. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct meg_append_file {
    int fd;
    char *path; /* NULL: not open */
};

/* Open or create the file `path` for appending.  Truncate it to `keep` bytes unless `keep` is -1. */
int meg_append_file_open(struct meg_append_file *a, const char *path, int64_t keep, struct meg_err *e);
int meg_append_file_write(struct meg_append_file *a, const void *bytes, size_t n, struct meg_err *e);
/* Close the file, if it is open. */
void meg_append_file_close(struct meg_append_file *a);
