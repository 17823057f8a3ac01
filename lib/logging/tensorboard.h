/*
 * tensorboard.h - TensorBoard event files in TensorFlow's record and event formats.  A file is a sequence of records
 *   u64 n, u32 crc(those 8 bytes), n bytes of a protobuf Event, u32 crc(those n bytes)
 * little-endian, where crc is the masked CRC-32C (tensorflow/core/lib/io/record_writer.h, core/util/event.proto).  A
 * run that resumes starts a new file and truncates the earlier ones where it will write again, so that no step is
 * there twice.
 */
#ifndef MEG_LOGGING_TENSORBOARD_H
#define MEG_LOGGING_TENSORBOARD_H
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

MEG_BEGIN_DECLS

struct meg_tensorboard;

/*
 * Create dir unless it exists, and in it events.out.tfevents.TIME.HOST.PID.  With resumed > 0 remove the events after
 * that iteration from the files that meg-train wrote to dir before.
 */
int meg_tensorboard_open(struct meg_tensorboard **out, const char *dir, int64_t resumed, struct meg_err *e);

/* The end of a tag whose steps are samples and not iterations. */
#define MEG_TENSORBOARD_VS_SAMPLES " vs samples"

/* Append one value or text.  The record is written unbuffered, so that it survives the process. */
int meg_tensorboard_scalar(struct meg_tensorboard *t, const char *tag, double value, int64_t step, struct meg_err *e);
int meg_tensorboard_text(struct meg_tensorboard *t, const char *tag, const char *text, int64_t step, struct meg_err *e);

void meg_tensorboard_close(struct meg_tensorboard *t);

/*
 * Compute the CRC-32C (Castagnoli) of n bytes, masked as the record format requires: rotated right by 15, plus a
 * constant.
 */
uint32_t meg_tensorboard_crc(const void *bytes, size_t n);

MEG_END_DECLS
#endif
