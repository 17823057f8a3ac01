/*
 * sigbus.h - a SIGBUS handler for mapped files: if a page cannot be read because the file was truncated or its disk
 * fails, the error message names the file.
 */
#ifndef MEG_FILE_SIGBUS_H
#define MEG_FILE_SIGBUS_H

#include <stddef.h>

#include "base/decls.h"
#include "base/err.h"

MEG_BEGIN_DECLS

/*
 * Register n bytes at p as a mapping of path; unregister them before munmap.  Any thread may call these functions.
 * meg_mmap_open and meg_mmap_close call them.
 */
struct meg_sigbus_range;
struct meg_sigbus_range *meg_sigbus_register(const void *p, size_t n, const char *path);
void meg_sigbus_unregister(struct meg_sigbus_range *m); /* accepts NULL */

/*
 * meg_sigbus_guard - call read(arg, e) and return its result, or MEG_EIO if this thread faults in a registered mapping
 * The message names the file.  A fault leaves the callback by longjmp, which would leak its memory and leave its locks
 * locked.  Therefore, the callback must neither allocate nor lock while it reads mapped files.
 * A fault outside of such a call prints the same message, removes the temporary files of the process and exits with
 * status 74.
 */
int meg_sigbus_guard(int (*read)(void *arg, struct meg_err *e), void *arg, struct meg_err *e);

MEG_END_DECLS

#endif
