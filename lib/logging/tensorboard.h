/*
 * tensorboard.h - TensorBoard event files in TensorFlow's record and event formats.  A file is a sequence of records
 *   u64 n, u32 crc(those 8 bytes), n bytes of a protobuf Event, u32 crc(those n bytes)
 * little-endian, where crc is the masked CRC-32C (tensorflow/core/lib/io/record_writer.h, core/util/event.proto).  A
 * run that resumes starts a new file and truncates the earlier files at the first step that it will write again, so
 * that no step of a scalar occurs twice.
 */
#ifndef MEG_LOGGING_TENSORBOARD_H
#define MEG_LOGGING_TENSORBOARD_H
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

MEG_BEGIN_DECLS

struct meg_tensorboard;

/*
 * Create dir if it does not exist, and the file events.out.tfevents.TIME.HOST.PID in it.  If resumed > 0, remove the
 * events after that iteration from the files of earlier runs of meg-train in dir.
 */
int meg_tensorboard_open(struct meg_tensorboard **out, const char *dir, int64_t resumed, struct meg_err *e);

/* Suffix of a tag whose steps count samples instead of iterations. */
#define MEG_TENSORBOARD_VS_SAMPLES " vs samples"

/* Append one value or text.  The record is written unbuffered, so that it survives a crash of the process. */
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
