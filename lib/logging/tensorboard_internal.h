/*
 * tensorboard_internal.h - the fields of TensorBoard's Event message, and the truncation of event files before a run
 * resumes.
 */
#pragma once
#include <stdint.h>

/* Field numbers of an Event. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SOURCE = 10 };

/* The prefix of the file names, and the name of the writer in the first event of a file. */
#define EVENT_FILE_PREFIX "events.out.tfevents."
#define EVENT_FILE_WRITER "meg-train"

/*
 * Truncate each event file of meg-train in `dir` before the first event of an iteration after `iteration`.  Files of
 * other writers remain unchanged.  If a file cannot be read or truncated, print a warning.
 */
void meg_tensorboard_trim(const char *dir, int64_t iteration);
