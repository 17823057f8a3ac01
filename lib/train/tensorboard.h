/*
 * TensorBoard event files, as TensorFlow's record and event formats have them: a file is records
 *   u64 n, u32 crc(those 8 bytes), n bytes of a protobuf Event, u32 crc(those n bytes)
 * little-endian, crc being the masked CRC-32C.  A run that resumes starts a new file, and removes from the earlier ones
 * what it will write again, so that each step is there once.
 */
#ifndef MEG_TRAIN_TENSORBOARD_H
#define MEG_TRAIN_TENSORBOARD_H
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

MEG_BEGIN_DECLS

struct meg_tensorboard;

/*
 * Make dir where it is missing, and in it events.out.tfevents.TIME.HOST.PID.  With resumed > 0 remove the events after
 * that iteration from the files that were written to dir in this way.
 */
int meg_tensorboard_open(struct meg_tensorboard **out, const char *dir, int64_t resumed, struct meg_err *e);

/* How the name of a tag ends whose steps are samples and not iterations. */
#define MEG_TENSORBOARD_VS_SAMPLES " vs samples"

/* Add one value.  The record is written at once, so that what was added survives the process. */
int meg_tensorboard_scalar(struct meg_tensorboard *t, const char *tag, double value, int64_t step, struct meg_err *e);
int meg_tensorboard_text(struct meg_tensorboard *t, const char *tag, const char *text, int64_t step, struct meg_err *e);

void meg_tensorboard_close(struct meg_tensorboard *t);

/* CRC-32C (Castagnoli) of n bytes, masked as the record format wants it. */
uint32_t meg_tensorboard_crc(const void *bytes, size_t n);

MEG_END_DECLS
#endif
