/*
 * queue.h - a device for tests: the CPU's operations, queued per stream and run later, in an order that a seed selects.
 *
 * It finds errors that would otherwise appear on a GPU only.  Device memory is inaccessible to the host except while
 * queued work runs, so that a host access is a segmentation fault.  Streams advance in a random order within what their
 * events allow, so that a missing event can change the numbers.  The target of a download is NaN until the copy runs.
 * Freed memory is NaN, gradients are NaN after an update, and a workspace is NaN when its operation begins.  upload
 * copies host memory at once; upload_pinned copies pinned memory when it runs.
 *
 * MEG_QUEUE_SEED=N in the environment selects the device and the order; without it, programs use the CPU as usual.
 * MEG_QUEUE_LOGITS_ROWS=N: the language-model head computes N rows of logits at a time, on the queue device and on the
 * CPU, whose results are then comparable bit for bit.
 * MEG_QUEUE_COUNTS=FILE: each process appends its number of downloads and of events that the host waited for.
 */
#ifndef QUEUE_H
#define QUEUE_H
#include "comm/comm.h"
#include "device/device.h"

/* Return the device; NULL if MEG_QUEUE_SEED is not set. */
const struct meg_device *queue_device(void);

/*
 * Append work to a stream: run is called with a copy of the nbytes at args, and called again until it returns true.
 * Device memory is accessible while it runs.
 */
void queue_push(struct meg_stream *st, bool (*run)(void *args), const void *args, size_t nbytes);
struct meg_stream *queue_stream_create(const char *name);
void queue_stream_destroy(struct meg_stream *st); /* runs the queued work of all streams; accepts NULL */

/* Return a copy of nbytes of host memory.  It exists until the task that is pushed next has run. */
void *queue_keep(const void *bytes, size_t nbytes);

/* Return a table of operations that queue calls of the operations of base. */
const struct meg_ops *queue_ops(const struct meg_ops *base);

/* Run a random number of queued tasks, at most 3. */
void queue_progress(void);

/*
 * Make device memory accessible to the host, or undo this; pairs of calls may be nested.  They enclose tasks, and host
 * collectives, which may also make progress on tensor collectives.
 */
void queue_unlock_memory(void);
void queue_lock_memory(void);

#endif
