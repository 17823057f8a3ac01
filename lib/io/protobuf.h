/*
 * protobuf.h - the wire format of Protocol Buffers, read strictly: fields one after the other, each a
 * number, a wire type and a value.
 */
#ifndef MEG_IO_PROTOBUF_H
#define MEG_IO_PROTOBUF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* A message, or what is left of it.  name and the bytes are borrowed. */
struct meg_pb {
    const unsigned char *p, *end;
    const unsigned char *file; /* the first byte of the file, for offsets in messages */
    const char *name;
};

enum meg_pb_wire { MEG_PB_VARINT, MEG_PB_I64, MEG_PB_LEN, MEG_PB_I32 = 5 };

struct meg_pb_field {
    int32_t number;
    enum meg_pb_wire wire;
    uint64_t value;          /* of MEG_PB_VARINT, MEG_PB_I64 and MEG_PB_I32 */
    struct meg_pb bytes;     /* of MEG_PB_LEN: text, or a message */
    const unsigned char *at; /* where it begins */
};

/*
 * meg_pb_next - the next field
 * Returns 1, or 0 at the end; MEG_EFORMAT, naming file and offset, for a number cut or longer than 64
 * bits, a length beyond the end of the message, a wire type that is not one of the four, or a field
 * number that is none.
 */
int meg_pb_next(struct meg_pb *m, struct meg_pb_field *f, struct meg_err *e);

/* MEG_OK when the field has that wire type; else MEG_EFORMAT, what being its name. */
int meg_pb_expect(const struct meg_pb_field *f, enum meg_pb_wire wire, const char *what, struct meg_err *e);

/* A field of wire type 5 as a float, and one of type 0 as a truth or a number that fits. */
int meg_pb_float(const struct meg_pb_field *f, const char *what, float *out, struct meg_err *e);
int meg_pb_bool(const struct meg_pb_field *f, const char *what, bool *out, struct meg_err *e);
int meg_pb_int32(const struct meg_pb_field *f, const char *what, int32_t *out, struct meg_err *e);

/* MEG_EFORMAT with file and offset in front of the message. */
int meg_pb_fail(const struct meg_pb *m, const unsigned char *at, struct meg_err *e, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
