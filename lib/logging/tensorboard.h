/*
 * tensorboard.h - TensorBoard event files in TensorFlow's record and event formats.  A file is a sequence of records:
 *   u64 n, u32 crc(n), n bytes of a protobuf Event, u32 crc(Event)
 * The integers are little-endian.  crc is the masked CRC-32C of the encoded bytes
 * (tensorflow/core/lib/io/record_writer.h, core/util/event.proto).
 *
 * A run that resumes starts a new file.  The run also truncates each earlier file of meg-train before the first event
 * of a later iteration.  Otherwise, TensorBoard would show the repeated iterations twice.
 */
#pragma once
#include "logging/append_file.h"

/*
 * Create the file events.out.tfevents.TIME.HOST.PID in dir, and dir itself if it does not exist.  If `resumed` is above
 * 0, first truncate the files of earlier runs (meg_tensorboard_trim in tensorboard_internal.h).
 * Close the file with meg_append_file_close, even after a failure.
 */
int meg_tensorboard_open(struct meg_append_file *a, const char *dir, int64_t resumed, struct meg_err *e);

/* Suffix of the tags whose step is the number of consumed samples instead of the iteration. */
#define MEG_TENSORBOARD_VS_SAMPLES " vs samples"

/* Append one value or text.  Writes are unbuffered: a crash of the process does not lose the event. */
int meg_tensorboard_scalar(struct meg_append_file *a, const char *tag, double value, int64_t step, struct meg_err *e);
int meg_tensorboard_text(struct meg_append_file *a, const char *tag, const char *text, int64_t step, struct meg_err *e);

/* Compute the masked CRC-32C (Castagnoli) of n bytes: the CRC, rotated right by 15 bits, plus a constant. */
uint32_t meg_tensorboard_crc(const void *bytes, size_t n);
