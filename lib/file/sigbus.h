/*
 * sigbus.h - a SIGBUS handler for mapped files.  A page cannot be read if the file was truncated or its disk fails.  In
 * this case, the error message names the file.
 */
#pragma once
#include <stddef.h>
#include "base/err.h"

/*
 * Register n bytes at p as a mapping of path; unregister the mapping before munmap.  Any thread may call both
 * functions.  meg_mmap_open and meg_mmap_close call them.
 */
struct meg_sigbus_range;
struct meg_sigbus_range *meg_sigbus_register(const void *p, size_t n, const char *path);
void meg_sigbus_unregister(struct meg_sigbus_range *m); /* accepts NULL */

/*
 * meg_sigbus_guard - call read(arg, e) and return its result
 * Returns MEG_EIO, with a message that names the file, if this thread faults in a registered mapping during the call.
 * The fault ends the callback by longjmp.  Memory that the callback allocated would leak, and its locks would stay
 * locked.  Therefore, the callback must neither allocate nor lock while it reads mapped files.
 * Outside of meg_sigbus_guard, a fault in a registered mapping prints the same message, removes the registered
 * temporary files of the process and exits with status 74.
 */
int meg_sigbus_guard(int (*read)(void *arg, struct meg_err *e), void *arg, struct meg_err *e);
