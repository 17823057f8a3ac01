/* protobuf.c - a strict reader of the wire format of Protocol Buffers. */
#include "io/protobuf.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int meg_pb_fail(const struct meg_pb *m, const unsigned char *location, struct meg_err *e, const char *fmt, ...)
{
    char why[512];

    MEG_FORMAT_ARGS(why, fmt);
    return meg_fail(e, MEG_EFORMAT, "%s: byte %" PRId64 ": %s", m->name, (location - m->file), why);
}

static int read_varint(struct meg_pb *m, uint64_t *out, struct meg_err *e)
{
    const unsigned char *begin = m->p;

    *out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        unsigned char c;

        if (m->p == m->end)
            return meg_pb_fail(m, begin, e, "the message ends within a varint");
        c = *m->p++;
        if (shift == 63 && c > 1)
            break;
        *out |= (uint64_t)(c & 0x7F) << shift;
        if (c < 0x80)
            return 0;
    }
    return meg_pb_fail(m, begin, e, "the varint has more than 64 bits");
}

/* Read a little-endian integer of n bytes. */
static int read_fixed(struct meg_pb *m, int n, uint64_t *out, struct meg_err *e)
{
    if (m->end - m->p < n)
        return meg_pb_fail(m, m->p, e, "the value has %d bytes, but only %" PRId64 " are left in the message", n,
                           (m->end - m->p));
    *out = 0;
    for (int i = 0; i < n; i++)
        *out |= (uint64_t)*m->p++ << 8 * i;
    return 0;
}

static int read_bytes(struct meg_pb *m, struct meg_pb *out, struct meg_err *e)
{
    const unsigned char *begin = m->p;
    uint64_t n;
    int r = read_varint(m, &n, e);

    if (r < 0)
        return r;
    if (n > (uint64_t)(m->end - m->p))
        return meg_pb_fail(m, begin, e, "the value has %llu bytes, but only %" PRId64 " are left in the message",
                           (unsigned long long)n, (m->end - m->p));
    *out = (struct meg_pb){ m->p, m->p + n, m->file, m->name };
    m->p += n;
    return 0;
}

int meg_pb_next(struct meg_pb *m, struct meg_pb_field *f, struct meg_err *e)
{
    uint64_t tag;
    int r;

    if (m->p == m->end)
        return 0;
    f->tag = m->p;
    f->bytes = (struct meg_pb){ m->p, m->p, m->file, m->name };
    if ((r = read_varint(m, &tag, e)) < 0)
        return r;
    if (tag >> 3 < 1 || tag >> 3 >= 1 << 29)
        return meg_pb_fail(m, f->tag, e, "field number %llu is invalid", (unsigned long long)(tag >> 3));
    f->number = (int32_t)(tag >> 3);
    f->wire_type = tag & 7;
    switch (tag & 7) {
    case MEG_PB_VARINT: r = read_varint(m, &f->value, e); break;
    case MEG_PB_I64: r = read_fixed(m, 8, &f->value, e); break;
    case MEG_PB_LEN: r = read_bytes(m, &f->bytes, e); break;
    case MEG_PB_I32: r = read_fixed(m, 4, &f->value, e); break;
    default:
        return meg_pb_fail(m, f->tag, e, "field %d has wire type %d; it must be 0, 1, 2 or 5", f->number,
                           (int)(tag & 7));
    }
    return r < 0 ? r : 1;
}

int meg_pb_expect(const struct meg_pb_field *f, enum meg_pb_wire wire, const char *what, struct meg_err *e)
{
    if (f->wire_type == wire)
        return 0;
    return meg_pb_fail(&f->bytes, f->tag, e, "%s has wire type %d; it must be %d", what, f->wire_type, wire);
}

int meg_pb_float(const struct meg_pb_field *f, const char *what, float *out, struct meg_err *e)
{
    uint32_t bits = (uint32_t)f->value;
    int r = meg_pb_expect(f, MEG_PB_I32, what, e);

    memcpy(out, &bits, sizeof *out);
    return r;
}

int meg_pb_bool(const struct meg_pb_field *f, const char *what, bool *out, struct meg_err *e)
{
    *out = f->value != 0;
    return meg_pb_expect(f, MEG_PB_VARINT, what, e);
}

int meg_pb_int32(const struct meg_pb_field *f, const char *what, int32_t *out, struct meg_err *e)
{
    int64_t v = (int64_t)f->value;
    int r = meg_pb_expect(f, MEG_PB_VARINT, what, e);

    if (r == 0 && v != (int32_t)v)
        r = meg_pb_fail(&f->bytes, f->tag, e, "%s is %" PRId64 ", which is out of the range of int32", what, v);
    *out = (int32_t)v;
    return r;
}
