/*
 * sigbus.h - SIGBUS in mapped files: a page that cannot be read any more, because the file was truncated or its disk
 * fails, is reported with the name of the file.
 */
#ifndef MEG_FILE_SIGBUS_H
#define MEG_FILE_SIGBUS_H

#include <stddef.h>

#include "base/decls.h"
#include "base/err.h"

MEG_BEGIN_DECLS

/*
 * Register n bytes at p as a mapping of path, and unregister it before it is unmapped.  Any thread may call these.
 * meg_mmap_open and meg_mmap_close do; a mapping made otherwise is none of ours.
 */
struct meg_sigbus_range;
struct meg_sigbus_range *meg_sigbus_register(const void *p, size_t n, const char *path);
void meg_sigbus_unregister(struct meg_sigbus_range *m); /* accepts NULL */

/*
 * Return read(arg, e), or MEG_EIO with the name of the file where this thread meets such a page in it.  What read had
 * allocated by then is lost, and what it had locked stays locked, so it does neither around its reads of mapped files.
 * Outside of such a call the process removes its temporary files, prints the same message and ends with status 74.
 */
int meg_sigbus_guard(int (*read)(void *arg, struct meg_err *e), void *arg, struct meg_err *e);

MEG_END_DECLS

#endif
