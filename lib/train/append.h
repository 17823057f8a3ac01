/* A file that grows by whole records: logs, events.  What is written is there at once for others to read. */
#ifndef MEG_TRAIN_APPEND_H
#define MEG_TRAIN_APPEND_H
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

MEG_BEGIN_DECLS

struct meg_append_file {
    int fd;
    char *path;
};

/* Open or create path and cut it to keep bytes; -1 keeps all. */
int meg_append_file_open(struct meg_append_file *a, const char *path, int64_t keep, struct meg_err *e);
int meg_append_file_write(struct meg_append_file *a, const void *bytes, size_t n, struct meg_err *e);
/* Does nothing to a file whose path is NULL: one that was never opened, or is closed. */
void meg_append_file_close(struct meg_append_file *a);

MEG_END_DECLS
#endif
