/*
 * tensorboard_trim.c - truncate event files before the events that a resumed run will write again.  A killed run may
 * have logged iterations after its last checkpoint.  TensorBoard would show such iterations twice.
 *
 * A SessionLog START event cannot replace the truncation.  TensorBoard drops all events whose step is at least the step
 * of the START event, whatever their tag.  The step of most tags is the iteration.  The step of tags such as "lm loss
 * vs samples" is the number of samples, which is larger.  No step of the START event is right for both.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "file/file.h"
#include "io/protobuf.h"
#include "logging/tensorboard.h"
#include "logging/tensorboard_internal.h"

/* ---- events ---- */

/* Return the first field with this number, or an empty field if it is absent or the message is malformed. */
static struct meg_pb_field find_field(struct meg_pb message, int number)
{
    const struct meg_pb empty = { message.end, message.end, message.file, message.name };
    struct meg_pb_field f;
    struct meg_err e;

    while (meg_pb_next(&message, &f, &e) > 0)
        if (f.number == number)
            return f;
    memset(&f, 0, sizeof f);
    f.bytes = empty;
    return f;
}

static struct meg_pb find_message(struct meg_pb message, int number)
{
    return find_field(message, number).bytes;
}

/* ---- files ---- */

/* Set *event to the event at *offset, and advance *offset.  Return false at the end and at a truncated record. */
static bool next_record(const struct meg_mmap *m, const char *path, size_t *offset, struct meg_pb *event)
{
    const size_t left = m->n - *offset, frame = 16; /* bytes of the length, its checksum and the event's checksum */
    uint64_t n;

    if (left < frame)
        return false;
    memcpy(&n, m->p + *offset, sizeof n);
    if (n > left - frame)
        return false;
    event->p = m->p + *offset + 12;
    event->end = event->p + n;
    event->file = m->p;
    event->name = path;
    *offset += frame + (size_t)n;
    return true;
}

static bool is_own_file(struct meg_pb first_event)
{
    const struct meg_pb writer = find_message(find_message(first_event, EVENT_SOURCE), 1);
    const size_t n = strlen(EVENT_FILE_WRITER);

    return (size_t)(writer.end - writer.p) == n && memcmp(writer.p, EVENT_FILE_WRITER, n) == 0;
}

/*
 * Return whether an event belongs to an iteration after `iteration`.  Return false if the event has no tag, or if the
 * step of the tag is a number of samples.
 */
static bool is_after(struct meg_pb event, int64_t iteration)
{
    const struct meg_pb tag = find_message(find_message(find_message(event, EVENT_SUMMARY), 1), 1);
    const size_t n = strlen(MEG_TENSORBOARD_VS_SAMPLES), length = (size_t)(tag.end - tag.p);
    const bool is_over_samples = length >= n && memcmp(tag.end - n, MEG_TENSORBOARD_VS_SAMPLES, n) == 0;

    return length && !is_over_samples && (int64_t)find_field(event, EVENT_STEP).value > iteration;
}

static int trim_file(const char *path, int64_t iteration, struct meg_err *e)
{
    struct meg_pb event;
    struct meg_mmap m;
    size_t next = 0, begin = 0;
    bool is_found = false;
    int r;

    if ((r = meg_mmap_open(&m, path, e)) < 0)
        return r;
    if (next_record(&m, path, &next, &event) && is_own_file(event))
        for (begin = next; !is_found && next_record(&m, path, &next, &event); begin = is_found ? begin : next)
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
        if (strncmp(f->d_name, EVENT_FILE_PREFIX, strlen(EVENT_FILE_PREFIX)) != 0)
            continue;
        path.n = 0;
        meg_str_printf(&path, "%s/%s", dir, f->d_name);
        if (trim_file(path.s, iteration, &e) < 0)
            meg_warn("%s; TensorBoard may show events after iteration %" PRId64 " twice", e.msg, iteration);
    }
    meg_str_free(&path);
    if (d)
        closedir(d);
}
