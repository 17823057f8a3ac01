/* TensorBoard event files, read back byte by byte: lengths, checksums, fields. */
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "file/file.h"
#include "logging/tensorboard.h"
#include "tmp.h"

struct event {
    int64_t step;
    char version[32], writer[16], tag[64], text[64], plugin[16];
    float value;
};

static uint64_t varint(const unsigned char **p)
{
    uint64_t v = 0;

    for (int shift = 0;; shift += 7) {
        v |= (uint64_t)(**p & 127) << shift;
        if (*(*p)++ < 128)
            return v;
    }
}

static void copy(char *to, size_t cap, const unsigned char *p, uint64_t n)
{
    assert_true(n < cap);
    memcpy(to, p, n);
    to[n] = '\0';
}

/*
 * Read the fields of a protobuf message to *ev; the decimal digits of path are the field numbers of the enclosing
 * messages.
 */
static void read_message(struct event *ev, int path, const unsigned char *p, const unsigned char *end)
{
    while (p < end) {
        uint64_t key = varint(&p), n;
        int field = path * 10 + (int)(key >> 3);

        switch (key & 7) {
        case 0:
            n = varint(&p);
            if (field == 2)
                ev->step = (int64_t)n;
            if (field == 5181)
                assert_int_equal(n, 7); /* DT_STRING */
            break;
        case 1:
            assert_int_equal(field, 1); /* wall_time */
            p += 8;
            break;
        case 2:
            n = varint(&p);
            if (field == 3)
                copy(ev->version, sizeof ev->version, p, n);
            else if (field == 101)
                copy(ev->writer, sizeof ev->writer, p, n);
            else if (field == 511)
                copy(ev->tag, sizeof ev->tag, p, n);
            else if (field == 5188)
                copy(ev->text, sizeof ev->text, p, n);
            else if (field == 51911)
                copy(ev->plugin, sizeof ev->plugin, p, n);
            else
                read_message(ev, field, p, p + n);
            p += n;
            break;
        case 5:
            assert_int_equal(field, 512); /* simple_value */
            memcpy(&ev->value, p, 4);
            p += 4;
            break;
        default: fail_msg("wire type %d", (int)(key & 7));
        }
    }
    assert_ptr_equal(p, end);
}

static int read_file(const char *path, struct event *ev, int max)
{
    struct meg_mmap m = { 0 };
    size_t at = 0;
    int n = 0;

    assert_int_equal(meg_mmap_open(&m, path, NULL), 0);
    while (at < m.n) {
        uint64_t len;
        uint32_t crc;

        memcpy(&len, m.p + at, 8);
        memcpy(&crc, m.p + at + 8, 4);
        assert_int_equal(crc, meg_tensorboard_crc(m.p + at, 8));
        memcpy(&crc, m.p + at + 12 + len, 4);
        assert_int_equal(crc, meg_tensorboard_crc(m.p + at + 12, len));
        assert_true(n < max);
        memset(&ev[n], 0, sizeof ev[n]);
        read_message(&ev[n++], 0, m.p + at + 12, m.p + at + 12 + len);
        at += 16 + len;
    }
    assert_int_equal(at, m.n);
    meg_mmap_close(&m);
    return n;
}

/* Read the only event file in dir; return the number of its events. */
static int read_events(const char *dir, struct event *ev, int max)
{
    char pattern[TMP_PATH + 32];
    glob_t g;
    int n;

    snprintf(pattern, sizeof pattern, "%s/events.out.tfevents.*", dir);
    assert_int_equal(glob(pattern, 0, NULL, &g), 0);
    assert_int_equal(g.gl_pathc, 1);
    n = read_file(g.gl_pathv[0], ev, max);
    globfree(&g);
    return n;
}

static void checksums_are_masked_crc32c(void **state)
{
    unsigned char zeros[32] = { 0 }, up[32];

    (void)state;
    for (int i = 0; i < 32; i++)
        up[i] = (unsigned char)i;
    /* CRC-32C of RFC 3720 appendix B.4 (0x8a9136aa, 0x46dd794e), then masked */
    assert_int_equal(meg_tensorboard_crc(zeros, 32), (uint32_t)((0x8a9136aau >> 15 | 0x8a9136aau << 17) + 0xa282ead8u));
    assert_int_equal(meg_tensorboard_crc(up, 32), (uint32_t)((0x46dd794eu >> 15 | 0x46dd794eu << 17) + 0xa282ead8u));
}

static void scalars_and_texts_are_read_back(void **state)
{
    char tmp[TMP_NAME], dir[TMP_PATH];
    struct meg_append_file t = { 0 };
    struct event ev[8];

    (void)state;
    assert_non_null(tmp_dir(tmp, "events"));
    snprintf(dir, sizeof dir, "%s/a/b", tmp);
    assert_int_equal(meg_tensorboard_open(&t, dir, 0, NULL), 0);
    assert_int_equal(meg_tensorboard_scalar(&t, "lm loss", 2.5, 301, NULL), 0);
    assert_int_equal(meg_tensorboard_text(&t, "seed", "1234", 300, NULL), 0);
    meg_append_file_close(&t);
    assert_int_equal(read_events(dir, ev, 8), 3);
    assert_string_equal(ev[0].version, "brain.Event:2");
    assert_string_equal(ev[0].writer, "meg-train");
    assert_string_equal(ev[1].tag, "lm loss");
    assert_true(ev[1].value == 2.5f);
    assert_int_equal(ev[1].step, 301);
    assert_string_equal(ev[2].tag, "seed/text_summary");
    assert_string_equal(ev[2].text, "1234");
    assert_string_equal(ev[2].plugin, "text");
    assert_int_equal(meg_remove_tree(tmp, NULL), 0);
}

static size_t size_of(const char *path)
{
    struct meg_str text = { 0 };
    size_t n;

    assert_int_equal(meg_read_file(path, &text, NULL), 0);
    n = text.n;
    meg_str_free(&text);
    return n;
}

/* Write a file as another program would: the version, and a scalar named a at step 9. */
static void write_foreign(const char *path)
{
    static const unsigned char version[] = "\x1a\x0d"
                                           "brain.Event:2",
                               scalar[] = "\x10\x09\x2a\x05\x0a\x03\x0a\x01"
                                          "a";
    struct meg_str s = { 0 };

    for (int i = 0; i < 2; i++) {
        const unsigned char *event = i ? scalar : version;
        const uint64_t n = i ? sizeof scalar - 1 : sizeof version - 1;
        const uint32_t crc = meg_tensorboard_crc(&n, sizeof n), crc_event = meg_tensorboard_crc(event, n);

        meg_str_add(&s, &n, sizeof n);
        meg_str_add(&s, &crc, sizeof crc);
        meg_str_add(&s, event, n);
        meg_str_add(&s, &crc_event, sizeof crc_event);
    }
    assert_int_equal(meg_write_file(path, s.s, s.n, NULL), 0);
    meg_str_free(&s);
}

/* Write events of iterations resumed + 1 to last, of four samples each; rename the file, and store its path. */
static void write_run(const char *dir, int64_t resumed, int64_t last, char path[TMP_PATH])
{
    struct meg_append_file t = { 0 };
    char to[TMP_PATH];
    glob_t g;

    assert_int_equal(meg_tensorboard_open(&t, dir, resumed, NULL), 0);
    assert_int_equal(meg_tensorboard_text(&t, "seed", "1234", resumed, NULL), 0);
    for (int64_t i = resumed + 1; i <= last; i++) {
        assert_int_equal(meg_tensorboard_scalar(&t, "lm loss", 2.5, i, NULL), 0);
        assert_int_equal(meg_tensorboard_scalar(&t, "lm loss vs samples", 2.5, 4 * i, NULL), 0);
    }
    meg_append_file_close(&t);
    snprintf(to, sizeof to, "%s/events.out.tfevents.[0-9]*", dir);
    assert_int_equal(glob(to, 0, NULL, &g), 0);
    assert_int_equal(g.gl_pathc, 1);
    snprintf(path, TMP_PATH, "%s/events.out.tfevents.x%d", dir, (int)last);
    /* without this, the next run of this process in the same second would choose the same name */
    assert_int_equal(rename(g.gl_pathv[0], path), 0);
    globfree(&g);
}

static void a_resumed_run_removes_what_it_writes_again(void **state)
{
    char dir[TMP_NAME], foreign[TMP_PATH], text[TMP_PATH], first[TMP_PATH], second[TMP_PATH], third[TMP_PATH];
    struct event ev[32];
    size_t foreign_nbytes;
    FILE *f;

    (void)state;
    assert_non_null(tmp_dir(dir, "events"));
    snprintf(foreign, sizeof foreign, "%s/events.out.tfevents.foreign", dir);
    snprintf(text, sizeof text, "%s/events.out.tfevents.text", dir);
    write_foreign(foreign);
    assert_int_equal(meg_write_file(text, "no events", 9, NULL), 0);
    foreign_nbytes = size_of(foreign);
    write_run(dir, 0, 8, first);
    f = fopen(first, "a"); /* as if the run was killed while writing a record */
    fputs("torn", f);
    fclose(f);
    write_run(dir, 7, 9, second);
    write_run(dir, 5, 6, third);
    assert_int_equal(size_of(foreign), foreign_nbytes);
    assert_int_equal(size_of(text), 9);
    assert_int_equal(remove(foreign) | remove(text), 0);

    assert_int_equal(read_file(second, ev, 32),
                     1); /* only the version remains: all other events were after iteration 5 */
    assert_string_equal(ev[0].version, "brain.Event:2");
    assert_int_equal(read_file(first, ev, 32), 12); /* version, text, and five iterations with two tags */
    assert_int_equal(ev[10].step, 5);
    assert_int_equal(ev[11].step, 20);
    assert_string_equal(ev[11].tag, "lm loss vs samples");
    assert_int_equal(meg_remove_tree(dir, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(checksums_are_masked_crc32c),
                                        cmocka_unit_test(scalars_and_texts_are_read_back),
                                        cmocka_unit_test(a_resumed_run_removes_what_it_writes_again) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
