/* io/line_reader.h: lines of pipes and files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "io/line_reader.h"
#include "tmp.h"

/* Open a reader of a pipe whose write end is *to. */
static void open_pipe(struct meg_line_reader *in, int *to)
{
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    meg_line_reader_init(in, ends[0], "pipe");
    *to = ends[1];
}

static void put(int to, const char *s)
{
    assert_int_equal(write(to, s, strlen(s)), (ssize_t)strlen(s));
}

static void expect(struct meg_line_reader *in, const char *want)
{
    struct meg_err e;
    char *text;
    size_t n;

    assert_true(meg_line_reader_is_ready(in));
    assert_int_equal(meg_line_reader_next(in, &text, &n, &e), 1);
    assert_string_equal(text, want);
    assert_int_equal(n, strlen(want));
}

static void a_line_is_ready_when_its_newline_has_arrived(void **state)
{
    struct meg_line_reader in;
    struct meg_err e;
    char *text;
    size_t n;
    int to;

    (void)state;
    open_pipe(&in, &to);
    assert_false(meg_line_reader_is_ready(&in));
    put(to, "on");
    assert_false(meg_line_reader_is_ready(&in));
    put(to, "e\ntwo\r\n\nthr");
    expect(&in, "one");
    expect(&in, "two");
    expect(&in, "");
    assert_int_equal(in.offset, strlen("one\ntwo\r\n\n"));
    assert_true(in.has_newline);
    assert_false(meg_line_reader_is_ready(&in));
    put(to, "ee");
    close(to);
    expect(&in, "three");
    assert_int_equal(in.line, 4);
    assert_int_equal(in.offset, strlen("one\ntwo\r\n\nthree"));
    assert_false(in.has_newline);
    assert_true(meg_line_reader_is_ready(&in));
    assert_int_equal(meg_line_reader_next(&in, &text, &n, &e), 0);
    assert_int_equal(meg_line_reader_next(&in, &text, &n, &e), 0);
    meg_line_reader_close(&in);
}

static void lines_longer_than_the_buffer_are_returned_complete(void **state)
{
    enum { LONG = 1000000 };
    char name[TMP_NAME], *text;
    struct meg_line_reader in;
    struct meg_err e;
    size_t n;
    int fd = tmp_file(name, "lines");
    FILE *f = fdopen(fd, "w");

    (void)state;
    assert_non_null(f);
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < LONG + i; j++)
            putc('a' + i, f);
        fputs("\nshort\n", f);
    }
    fclose(f);
    assert_int_equal(meg_line_reader_open(&in, name, &e), MEG_OK);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(meg_line_reader_next(&in, &text, &n, &e), 1);
        assert_int_equal(n, LONG + i);
        assert_true(text[0] == 'a' + i && text[n - 1] == 'a' + i && text[n] == 0);
        expect(&in, "short");
    }
    assert_int_equal(meg_line_reader_next(&in, &text, &n, &e), 0);
    meg_line_reader_close(&in);
    unlink(name);
    assert_int_equal(meg_line_reader_open(&in, name, &e), MEG_ENOENT);
    assert_non_null(strstr(e.msg, name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_ready_when_its_newline_has_arrived),
        cmocka_unit_test(lines_longer_than_the_buffer_are_returned_complete),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
