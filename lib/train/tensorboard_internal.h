/* What writing and trimming of TensorBoard event files share. */
#ifndef MEG_TRAIN_TENSORBOARD_INTERNAL_H
#define MEG_TRAIN_TENSORBOARD_INTERNAL_H
#include "train/tensorboard.h"

/* Wire types of protobuf. */
enum { EVENTS_VARINT, EVENTS_64, EVENTS_BYTES, EVENTS_32 = 5 };

/* Fields of an Event; wall_time is 1. */
enum { EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SOURCE = 10 };

/* How the names of our files begin, and who their first event says has written them. */
#define EVENT_FILE_PREFIX "events.out.tfevents."
#define EVENT_FILE_WRITER "meg-train"

/*
 * Cut the event files in dir that meg-train wrote where the first event of an iteration after this one begins.
 * Files of other writers stay as they are; one that cannot be read or cut is warned of.
 */
void meg_tensorboard_trim(const char *dir, int64_t iteration);

#endif
