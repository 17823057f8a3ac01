/* tensorboard.c - TensorBoard event files in TensorFlow's record and event formats. */
#include "logging/tensorboard.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/mem.h"
#include "file/file.h"
#include "io/protobuf.h"
#include "logging/tensorboard_internal.h"

static uint32_t crc32c(const unsigned char *p, size_t n)
{
    uint32_t crc = ~0u;

    while (n--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

uint32_t meg_tensorboard_crc(const void *bytes, size_t n)
{
    uint32_t crc = crc32c(bytes, n);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ---- protobuf writer: a field is (number << 3 | wire type) as a varint, then its value ---- */

static void put_varint(struct meg_str *s, uint64_t v)
{
    unsigned char b[10];
    size_t n = 0;

    do {
        b[n++] = (unsigned char)((v & 127) | (v > 127 ? 128 : 0));
        v >>= 7;
    } while (v);
    meg_str_add(s, b, n);
}

static void put_int(struct meg_str *s, int field, int64_t v)
{
    put_varint(s, (uint64_t)field << 3 | MEG_PB_VARINT);
    put_varint(s, (uint64_t)v);
}

static void put_bytes(struct meg_str *s, int field, const void *bytes, size_t n)
{
    put_varint(s, (uint64_t)field << 3 | MEG_PB_LEN);
    put_varint(s, n);
    meg_str_add(s, bytes, n);
}

static void put_message(struct meg_str *s, int field, struct meg_str *inner)
{
    put_bytes(s, field, inner->s, inner->n);
    meg_str_free(inner);
}

/* Append the source metadata (the name of the writer).  The first event of a file contains the metadata. */
static void put_source_metadata(struct meg_str *event)
{
    struct meg_str source = { 0 };

    put_bytes(&source, 1, EVENT_FILE_WRITER, strlen(EVENT_FILE_WRITER));
    put_message(event, EVENT_SOURCE, &source);
}

/* Write an event with `body`, an encoded message or a string, as field number `field`.  Frees `body`. */
static int write_event(struct meg_append_file *a, int64_t step, int field, struct meg_str *body, struct meg_err *e)
{
    struct meg_str event = { 0 }, record = { 0 };
    struct timespec now;
    double wall;
    uint64_t n;
    uint32_t crc;
    int r;

    clock_gettime(CLOCK_REALTIME, &now);
    wall = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_varint(&event, EVENT_WALL_TIME << 3 | MEG_PB_I64);
    meg_str_add(&event, &wall, sizeof wall);
    put_int(&event, EVENT_STEP, step);
    put_message(&event, field, body);
    if (field == EVENT_FILE_VERSION)
        put_source_metadata(&event);

    n = event.n;
    meg_str_add(&record, &n, sizeof n);
    crc = meg_tensorboard_crc(&n, sizeof n);
    meg_str_add(&record, &crc, sizeof crc);
    meg_str_add(&record, event.s, event.n);
    crc = meg_tensorboard_crc(event.s, event.n);
    meg_str_add(&record, &crc, sizeof crc);
    r = meg_append_file_write(a, record.s, record.n, e);
    meg_str_free(&event);
    meg_str_free(&record);
    return r;
}

int meg_tensorboard_scalar(struct meg_append_file *a, const char *tag, double value, int64_t step, struct meg_err *e)
{
    struct meg_str item = { 0 }, summary = { 0 };
    float v = (float)value;

    put_bytes(&item, 1, tag, strlen(tag));
    put_varint(&item, 2 << 3 | MEG_PB_I32); /* simple_value */
    meg_str_add(&item, &v, sizeof v);
    put_message(&summary, 1, &item);
    return write_event(a, step, EVENT_SUMMARY, &summary, e);
}

int meg_tensorboard_text(struct meg_append_file *a, const char *tag, const char *text, int64_t step, struct meg_err *e)
{
    struct meg_str item = { 0 }, summary = { 0 }, tensor = { 0 }, shape = { 0 }, dim = { 0 }, plugin = { 0 },
                   meta = { 0 };
    struct meg_str name = { 0 };

    meg_str_printf(&name, "%s/text_summary", tag);
    put_bytes(&item, 1, name.s, name.n);
    meg_str_free(&name);

    put_int(&tensor, 1, 7); /* dtype: DT_STRING */
    put_int(&dim, 1, 1);
    put_message(&shape, 2, &dim);
    put_message(&tensor, 2, &shape);
    put_bytes(&tensor, 8, text, strlen(text)); /* string_val */
    put_message(&item, 8, &tensor);

    put_bytes(&plugin, 1, "text", 4); /* plugin_name */
    put_message(&meta, 1, &plugin);
    put_message(&item, 9, &meta);
    put_message(&summary, 1, &item);
    return write_event(a, step, EVENT_SUMMARY, &summary, e);
}

int meg_tensorboard_open(struct meg_append_file *a, const char *dir, int64_t resumed, struct meg_err *e)
{
    struct meg_str body = { 0 }, path = { 0 };
    char host[256] = "localhost";
    int r;

    if ((r = meg_mkdirs(dir, e)) < 0)
        return r;
    if (resumed > 0)
        meg_tensorboard_trim(dir, resumed);
    gethostname(host, sizeof host - 1);
    meg_str_printf(&path, "%s/" EVENT_FILE_PREFIX "%" PRId64 ".%s.%ld", dir, (int64_t)time(NULL), host, (long)getpid());
    meg_str_printf(&body, "brain.Event:2");
    if ((r = meg_append_file_open(a, path.s, -1, e)) == 0)
        r = write_event(a, 0, EVENT_FILE_VERSION, &body, e);
    meg_str_free(&path);
    meg_str_free(&body);
    return r;
}
