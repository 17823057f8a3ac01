/*
 * What a killed run wrote to TensorBoard beyond the checkpoint that is resumed is written again, and would be shown
 * twice.  A SessionLog START event is no remedy: it removes what has its step or a higher one from all tags, and the
 * tags over samples ("lm loss vs samples") have higher numbers than those over iterations.  So the files are cut.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "file/file.h"
#include "train/tensorboard_internal.h"

/* ---- protobuf: a message is fields, each a key (number << 3 | wire type) and a value ---- */

struct bytes {
    const unsigned char *p, *end;
};

struct field {
    int number;
    uint64_t v;          /* of a varint */
    struct bytes inside; /* of bytes */
};

static bool read_varint(struct bytes *b, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; b->p < b->end && shift < 64; shift += 7) {
        *v |= (uint64_t)(*b->p & 127) << shift;
        if (*b->p++ < 128)
            return true;
    }
    return false;
}

/* Read the next field; false at the end, and where b is no message. */
static bool next_field(struct bytes *b, struct field *f)
{
    uint64_t key, n;

    memset(f, 0, sizeof *f);
    if (!read_varint(b, &key))
        return false;
    f->number = (int)(key >> 3 & 0xffff);
    switch (key & 7) {
    case EVENTS_VARINT: return read_varint(b, &f->v);
    case EVENTS_64: n = 8; break;
    case EVENTS_32: n = 4; break;
    case EVENTS_BYTES:
        if (!read_varint(b, &n))
            return false;
        break;
    default: return false;
    }
    if (n > (uint64_t)(b->end - b->p))
        return false;
    f->inside = (struct bytes){ b->p, b->p + n };
    b->p += n;
    return true;
}

/* Find the first field of that number; what is inside it, empty where there is none. */
static struct bytes inside(struct bytes message, int number)
{
    struct field f;

    while (next_field(&message, &f))
        if (f.number == number)
            return f.inside;
    return (struct bytes){ message.end, message.end };
}

static int64_t step_of(struct bytes event)
{
    struct field f;

    while (next_field(&event, &f))
        if (f.number == EVENT_STEP)
            return (int64_t)f.v;
    return 0;
}

/* ---- files ---- */

/* Read the record at *at and move on to the next; false at the end, and at a record that is not complete. */
static bool next_record(const struct meg_mmap *m, size_t *at, struct bytes *event)
{
    const size_t left = m->n - *at, frame = 16; /* length, its checksum, and that of the event */
    uint64_t n;

    if (left < frame)
        return false;
    memcpy(&n, m->p + *at, sizeof n);
    if (n > left - frame)
        return false;
    event->p = m->p + *at + 12;
    event->end = event->p + n;
    *at += frame + (size_t)n;
    return true;
}

static bool is_ours(struct bytes event)
{
    const struct bytes writer = inside(inside(event, EVENT_SOURCE), 1);
    const size_t n = strlen(EVENT_FILE_WRITER);

    return (size_t)(writer.end - writer.p) == n && !memcmp(writer.p, EVENT_FILE_WRITER, n);
}

/* Whether an event is of an iteration after this one; a tag over samples says nothing about that. */
static bool is_after(struct bytes event, int64_t iteration)
{
    const struct bytes tag = inside(inside(inside(event, EVENT_SUMMARY), 1), 1);
    const size_t n = strlen(MEG_TENSORBOARD_VS_SAMPLES), length = (size_t)(tag.end - tag.p);

    return length && (length < n || memcmp(tag.end - n, MEG_TENSORBOARD_VS_SAMPLES, n)) && step_of(event) > iteration;
}

static int trim(const char *path, int64_t iteration, struct meg_err *e)
{
    struct bytes event;
    struct meg_mmap m;
    size_t at = 0, begin = 0;
    bool is_found = false;
    int r;

    if ((r = meg_mmap_open(&m, path, e)) < 0)
        return r;
    if (next_record(&m, &at, &event) && is_ours(event))
        for (begin = at; !is_found && next_record(&m, &at, &event); begin = is_found ? begin : at)
            is_found = is_after(event, iteration);
    meg_mmap_close(&m);
    if (is_found && truncate(path, (off_t)begin) < 0)
        r = meg_fail_errno(e, "%s", path);
    return r;
}

void meg_tensorboard_trim(const char *dir, int64_t iteration)
{
    struct meg_str path = { 0 };
    DIR *d = opendir(dir);
    struct dirent *f;
    struct meg_err e;

    while (d && (f = readdir(d))) {
        if (strncmp(f->d_name, EVENT_FILE_PREFIX, strlen(EVENT_FILE_PREFIX)))
            continue;
        path.n = 0;
        meg_str_printf(&path, "%s/%s", dir, f->d_name);
        if (trim(path.s, iteration, &e) < 0)
            meg_warn("%s; events after iteration %" PRId64 " stay in it", e.msg, iteration);
    }
    meg_str_free(&path);
    if (d)
        closedir(d);
}
