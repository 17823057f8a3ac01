/* Event files, read back byte by byte: lengths, checksums, fields. */
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/file.h"
#include "train/tensorboard.h"
#include "tmp.h"

struct event {
    int64_t step;
    char version[32], tag[64], text[64], plugin[16];
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

/* Read the fields of a message; path is the numbers of the messages around it, in decimal digits. */
static void read_message(struct event *ev, int path, const unsigned char *p,
                         const unsigned char *end)
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
        default:
            fail_msg("wire type %d", (int)(key & 7));
        }
    }
    assert_ptr_equal(p, end);
}

static int read_events(const char *dir, struct event *ev, int max)
{
    char pattern[TMP_PATH + 32];
    struct meg_map m = { 0 };
    size_t at = 0;
    glob_t g;
    int n = 0;

    snprintf(pattern, sizeof pattern, "%s/events.out.tfevents.*", dir);
    assert_int_equal(glob(pattern, 0, NULL, &g), 0);
    assert_int_equal(g.gl_pathc, 1);
    assert_int_equal(meg_map_open(&m, g.gl_pathv[0], NULL), 0);
    while (at < m.n) {
        uint64_t len;
        uint32_t crc;

        memcpy(&len, m.p + at, 8);
        memcpy(&crc, m.p + at + 8, 4);
        assert_int_equal(crc, meg_events_crc(m.p + at, 8));
        memcpy(&crc, m.p + at + 12 + len, 4);
        assert_int_equal(crc, meg_events_crc(m.p + at + 12, len));
        assert_true(n < max);
        memset(&ev[n], 0, sizeof ev[n]);
        read_message(&ev[n++], 0, m.p + at + 12, m.p + at + 12 + len);
        at += 16 + len;
    }
    assert_int_equal(at, m.n);
    meg_map_close(&m);
    globfree(&g);
    return n;
}

static void checksums(void **state)
{
    unsigned char zeros[32] = { 0 }, up[32];

    (void)state;
    for (int i = 0; i < 32; i++)
        up[i] = (unsigned char)i;
    /* CRC-32C of RFC 3720 appendix B.4 (0x8a9136aa, 0x46dd794e), then masked */
    assert_int_equal(meg_events_crc(zeros, 32),
                     (uint32_t)((0x8a9136aau >> 15 | 0x8a9136aau << 17) + 0xa282ead8u));
    assert_int_equal(meg_events_crc(up, 32),
                     (uint32_t)((0x46dd794eu >> 15 | 0x46dd794eu << 17) + 0xa282ead8u));
}

static void written_and_read(void **state)
{
    char tmp[TMP_NAME], dir[TMP_PATH];
    struct meg_events *t;
    struct event ev[8];

    (void)state;
    assert_non_null(tmp_dir(tmp, "events"));
    snprintf(dir, sizeof dir, "%s/a/b", tmp);
    assert_int_equal(meg_events_open(&t, dir, NULL), 0);
    assert_int_equal(meg_events_scalar(t, "lm loss", 2.5, 301, NULL), 0);
    assert_int_equal(meg_events_text(t, "seed", "1234", 300, NULL), 0);
    meg_events_close(t);
    assert_int_equal(read_events(dir, ev, 8), 3);
    assert_string_equal(ev[0].version, "brain.Event:2");
    assert_string_equal(ev[1].tag, "lm loss");
    assert_true(ev[1].value == 2.5f);
    assert_int_equal(ev[1].step, 301);
    assert_string_equal(ev[2].tag, "seed/text_summary");
    assert_string_equal(ev[2].text, "1234");
    assert_string_equal(ev[2].plugin, "text");
    assert_int_equal(meg_remove_tree(tmp, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(checksums),
                                        cmocka_unit_test(written_and_read) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
