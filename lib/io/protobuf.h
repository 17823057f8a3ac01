/*
 * protobuf.h - a strict reader of the wire format of Protocol Buffers: a message is a sequence of fields, each with a
 * number, a wire type and a value.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

/* A message.  The bytes [p, end) have not been read yet.  The file name and the bytes are borrowed. */
struct meg_pb {
    const unsigned char *p, *end;
    const unsigned char *file; /* beginning of the file, for offsets in messages */
    const char *name;
};

enum meg_pb_wire { MEG_PB_VARINT, MEG_PB_I64, MEG_PB_LEN, MEG_PB_I32 = 5 };

struct meg_pb_field {
    int32_t number;
    enum meg_pb_wire wire_type;
    uint64_t value;           /* value of a MEG_PB_VARINT, MEG_PB_I64 or MEG_PB_I32 field */
    struct meg_pb bytes;      /* content of a MEG_PB_LEN field: a string or a message */
    const unsigned char *tag; /* beginning of the field */
};

/*
 * meg_pb_next - read the next field
 * Returns 1, or 0 at the end of the message.  Returns MEG_EFORMAT, with file and offset, in these cases:
 *   - a varint is truncated or has more than 64 bits
 *   - a value extends beyond the end of the message
 *   - a wire type is not in enum meg_pb_wire
 *   - a field number is 0 or above 2^29 - 1
 */
int meg_pb_next(struct meg_pb *m, struct meg_pb_field *f, struct meg_err *e);

/* Return MEG_EFORMAT unless the field has this wire type.  `what` is the name of the field in the message. */
int meg_pb_expect(const struct meg_pb_field *f, enum meg_pb_wire wire, const char *what, struct meg_err *e);

/*
 * Convert a field of wire type 5 to a float, or a field of wire type 0 to a bool or an int32_t.  Returns MEG_EFORMAT if
 * the field has another wire type.  meg_pb_int32 returns MEG_EFORMAT for a value outside the range of int32_t.
 */
int meg_pb_float(const struct meg_pb_field *f, const char *what, float *out, struct meg_err *e);
int meg_pb_bool(const struct meg_pb_field *f, const char *what, bool *out, struct meg_err *e);
int meg_pb_int32(const struct meg_pb_field *f, const char *what, int32_t *out, struct meg_err *e);

/* Fail with MEG_EFORMAT and a message that begins with the file name and the offset. */
int meg_pb_fail(const struct meg_pb *m, const unsigned char *location, struct meg_err *e, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
