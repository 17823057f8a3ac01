/* Files that appear complete or not at all, whichever system call fails (tests/fault/fault.c). */
#define _GNU_SOURCE /* sync_file_range */
#include "child.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "file/file.h"

#define NEW_BYTES (3 << 20) /* larger than the buffer */

static char dir[256], path[300];

static int make(void **state)
{
    (void)state;
    make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/file", dir);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    return meg_remove_tree(dir, NULL);
}

static void holds(const char *want)
{
    struct meg_str got = { 0 };
    struct meg_err e;

    if (meg_read_file(path, &got, &e) < 0)
        fail_msg("%s", e.msg);
    assert_string_equal(got.s, want);
    meg_str_free(&got);
}

/* Return the number of names in dir except . and .. */
static int names(void)
{
    DIR *d = opendir(dir);
    int n = -2;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void a_file_appears_when_committed(void **state)
{
    struct meg_file f = { 0 };

    (void)state;
    assert_int_equal(meg_file_create(&f, path, NULL), 0);
    assert_int_equal(meg_file_write(&f, "abc", 3, NULL), 0);
    assert_int_equal(meg_file_pwrite(&f, "X", 1, 5, NULL), 0);
    assert_int_equal(meg_file_write(&f, "de", 2, NULL), 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(meg_file_commit(&f, NULL), 0);
    holds("abcdeX");
    meg_file_abandon(&f);
    holds("abcdeX");
    assert_int_equal(names(), 1);
}

static void an_abandoned_file_leaves_the_old_one(void **state)
{
    struct meg_file f = { 0 }, g = { 0 };

    (void)state;
    assert_int_equal(meg_write_file(path, "old", 3, NULL), 0);
    assert_int_equal(meg_file_create(&f, path, NULL), 0);
    assert_int_equal(meg_file_create(&g, path, NULL), 0); /* two writers of the same file use different names */
    assert_int_equal(meg_file_write(&f, "new", 3, NULL), 0);
    assert_int_equal(names(), 3);
    meg_file_abandon(&f);
    meg_file_abandon(&f);
    meg_file_abandon(&g);
    meg_file_abandon(NULL);
    holds("old");
    assert_int_equal(names(), 1);
}

static void the_mode_follows_the_umask(void **state)
{
    mode_t was = umask(027);
    struct stat st;

    (void)state;
    assert_int_equal(meg_write_file(path, "x", 1, NULL), 0);
    umask(was);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
}

static void an_output_that_is_not_a_regular_file_is_not_replaced(void **state)
{
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_write_file(dir, "x", 1, &e), MEG_EIO);
    assert_non_null(strstr(e.msg, ": exists and is not a regular file"));
    assert_int_equal(meg_write_file("/dev/null", "x", 1, &e), MEG_EIO);
    assert_string_equal(e.msg, "/dev/null: exists and is not a regular file");
    assert_int_equal(meg_write_file("/nowhere/x", "x", 1, &e), MEG_EIO);
    assert_string_equal(e.msg, "/nowhere/x: cannot create this file: No such file or directory");
}

static void exceeding_the_file_size_limit_is_an_error(void **state)
{
    struct rlimit was, few;
    struct meg_err e;
    char *bytes = meg_new(NEW_BYTES);
    int r;

    (void)state;
    assert_int_equal(meg_write_file(path, "old", 3, NULL), 0);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    few = was;
    few.rlim_cur = NEW_BYTES / 2; /* the write that exceeds the limit is short, and the next one fails */
    setrlimit(RLIMIT_FSIZE, &few);
    r = meg_write_file(path, bytes, NEW_BYTES, &e);
    setrlimit(RLIMIT_FSIZE, &was);
    assert_int_equal(r, MEG_EIO);
    assert_non_null(strstr(e.msg, "/file: write failed: File too large"));
    holds("old");
    assert_int_equal(names(), 1);
    free(bytes);
}

/* ---- writeback ---- */

/* End of the ranges passed to sync_file_range below, which must be consecutive. */
static int64_t begun;

int sync_file_range(int fd, off64_t offset, off64_t n, unsigned flags)
{
    assert_true(fd >= 0);
    assert_int_equal(flags, SYNC_FILE_RANGE_WRITE); /* no flag that blocks */
    assert_int_equal(offset, begun);
    assert_true(n > 0);
    begun += n;
    return -1; /* a failure is not an error of the file */
}

static void writeback_begins_before_the_commit(void **state)
{
    enum { MIB = 1 << 20, PUT = 5 * MIB, ALL = 200 * MIB };
    struct meg_file f = { 0 };

    (void)state;
    begun = 0;
    assert_int_equal(meg_file_create(&f, path, NULL), 0);
    assert_int_equal(meg_file_pwrite(&f, "abc", 3, 0, NULL), 0);
    for (int64_t at = 0; at < ALL; at += PUT) {
        meg_file_writeback(&f, at, at + PUT);
        assert_true(begun <= at); /* writeback lags, since other writers may still write just before this range */
        assert_true(begun >= at - 24 * MIB);
    }
    assert_int_equal(meg_file_commit(&f, NULL), 0);
    holds("abc");
}

static void written_bytes_can_be_read_before_the_commit(void **state)
{
    struct meg_file f = { 0 };
    struct meg_err e;
    char got[8];

    (void)state;
    assert_int_equal(meg_file_create(&f, path, NULL), 0);
    assert_int_equal(meg_file_write(&f, "abcdef", 6, NULL), 0);
    assert_int_equal(meg_file_pread(&f, got, 3, 2, NULL), 0); /* from the buffer, which is flushed first */
    assert_memory_equal(got, "cde", 3);
    assert_int_equal(meg_file_write(&f, "gh", 2, NULL), 0);
    assert_int_equal(meg_file_pread(&f, got, 8, 0, NULL), 0);
    assert_memory_equal(got, "abcdefgh", 8);
    assert_int_equal(meg_file_pread(&f, got, 2, 7, &e), MEG_EIO);
    assert_non_null(strstr(e.msg, ": this temporary file now ends at byte 8, but more was written to it"));
    meg_file_abandon(&f);
    assert_int_equal(names(), 0);
}

/* ---- each call fails once: this program runs itself under fault.so as a writer ---- */

static int write_new(const char *to)
{
    char bytes[1000];
    struct meg_file f = { 0 };
    struct meg_err e;
    int r, i;

    memset(bytes, 'n', sizeof bytes);
    if ((r = meg_file_create(&f, to, &e)) == 0)
        for (i = 0; r == 0 && i < NEW_BYTES / (int)sizeof bytes; i++)
            r = meg_file_write(&f, bytes, sizeof bytes, &e);
    if (r == 0)
        r = meg_file_commit(&f, &e);
    meg_file_abandon(&f);
    if (r < 0)
        fprintf(stderr, "%s\n", e.msg);
    return meg_exit_status(r);
}

static char self[4096], so[4096];

static void run_writer(void *how)
{
    preload(so);
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
    putenv(how);
    execl(self, "file", path, (char *)NULL);
    perror(self);
    _exit(127);
}

static void a_file_is_complete_whichever_call_fails(void **state)
{
    static const char *const faults[] = { "ENOSPC", "EIO", "KILL", "SHORT" };
    char how[512], count[300];
    struct meg_str text = { 0 };
    struct child c;
    struct stat st;
    int n, at;
    size_t i;

    (void)state;
    n = (int)readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    snprintf(so, sizeof so, "%.*s/../../fault.so", (int)(strrchr(self, '/') - self), self);
    if (access(so, F_OK) < 0) {
        print_message("# fault.so is not built: run make check\n");
        skip();
    }
    snprintf(count, sizeof count, "%s/count", dir);
    snprintf(how, sizeof how, "MEG_FAULT_COUNT=%s", count);
    child_run(&c, run_writer, how);
    assert_int_equal(c.status, 0);
    assert_int_equal(meg_read_file(count, &text, NULL), 0);
    n = atoi(text.s);
    meg_str_free(&text);
    unlink(count);
    assert_in_range(n, 3 + 4, 3 + 6); /* 3 writes; fsync, close, rename, fsync and close of the directory */

    for (i = 0; i < sizeof faults / sizeof *faults; i++) {
        setenv("MEG_FAULT_ERRNO", faults[i], 1);
        for (at = 1; at <= n; at++) {
            assert_int_equal(meg_remove_tree(dir, NULL), 0);
            assert_int_equal(meg_mkdirs(dir, NULL), 0);
            assert_int_equal(meg_write_file(path, "old", 3, NULL), 0);
            snprintf(how, sizeof how, "MEG_FAULT_AT=%d", at);
            child_run(&c, run_writer, how);
            assert_int_equal(stat(path, &st), 0);
            assert_true(st.st_size == 3 || st.st_size == NEW_BYTES / 1000 * 1000);
            if (c.status == 0)
                assert_true(st.st_size != 3);
            if (strcmp(faults[i], "KILL") == 0) {
                assert_int_equal(c.status, 128 + SIGKILL);
            } else if (c.status) {
                assert_int_equal(c.status, 74);
                assert_non_null(strstr(c.err, dir));
                assert_non_null(
                    strstr(c.err, *faults[i] == 'E' && faults[i][1] == 'I' ? "Input/output error" : "No space left"));
            }
            if (strcmp(faults[i], "SHORT") == 0)
                assert_int_equal(c.status, 0);
            else if (at <= n - 1) /* the last one closes the directory, whose failure is ignored */
                assert_int_not_equal(c.status, 0);
            if (strcmp(faults[i], "KILL") != 0)
                assert_int_equal(names(), 1);
        }
    }
}

/* ---- a signal ends the process ---- */

/* Create 40 files, of which a signal removes the first 32, abandon one and commit one; then raise the signal. */
static void end_by(void *sig)
{
    struct meg_file f[40] = { 0 };
    char name[320];

    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "%s/%d", dir, i);
        if (meg_file_create(&f[i], name, NULL) < 0)
            _exit(1);
    }
    meg_file_abandon(&f[0]);
    if (meg_file_commit(&f[1], NULL) < 0)
        _exit(1);
    raise(*(int *)sig);
    _exit(2);
}

static void end_by_one_that_is_ignored(void *sig)
{
    signal(*(int *)sig, SIG_IGN);
    end_by(sig);
}

static void a_signal_removes_temporary_files(void **state)
{
    static int signals[] = { SIGHUP, SIGINT, SIGTERM };
    struct child c;

    (void)state;
    for (int i = 0; i < 3; i++) {
        child_run(&c, end_by, &signals[i]);
        assert_int_equal(c.status, 128 + signals[i]);
        assert_int_equal(access(dir, W_OK), 0);
        assert_int_equal(names(), 1 + 40 - 32); /* the committed file, and the files beyond 32 */
        assert_int_equal(meg_remove_tree(dir, NULL), 0);
        assert_int_equal(meg_mkdirs(dir, NULL), 0);
    }
    child_run(&c, end_by_one_that_is_ignored, &signals[0]);
    assert_int_equal(c.status, 2);
    assert_int_equal(names(), 39);
    assert_int_equal(meg_remove_tree(dir, NULL), 0);
    assert_int_equal(meg_mkdirs(dir, NULL), 0);
}

/* ---- reading, mapping, directories ---- */

static void files_are_mapped(void **state)
{
    struct meg_mmap m;
    struct meg_err e;
    char page[4096];

    (void)state;
    memset(page, 'p', sizeof page);
    assert_int_equal(meg_write_file(path, page, sizeof page, NULL), 0);
    assert_int_equal(meg_mmap_open(&m, path, NULL), 0);
    assert_int_equal(m.n, sizeof page);
    assert_memory_equal(m.p, page, sizeof page);
    meg_mmap_close(&m);
    meg_mmap_close(&m);
    meg_mmap_close(NULL);
    assert_int_equal(meg_write_file(path, "", 0, NULL), 0);
    assert_int_equal(meg_mmap_open(&m, path, NULL), 0);
    assert_int_equal(m.n, 0);
    assert_non_null(m.p);
    meg_mmap_close(&m);
    assert_int_equal(meg_mmap_open(&m, dir, &e), MEG_EIO);
    assert_non_null(strstr(e.msg, "expected a regular file"));
    assert_null(m.p);
    assert_int_equal(meg_mmap_open(&m, "/nowhere/x", &e), MEG_ENOENT);
}

static void dropped_pages_are_read_again(void **state)
{
    static char bytes[5 * 4096 + 7];
    struct meg_mmap m;
    char outside[4096];

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * i % 251);
    assert_int_equal(meg_write_file(path, bytes, sizeof bytes, NULL), 0);
    assert_int_equal(meg_mmap_open(&m, path, NULL), 0);
    for (size_t begin = 0; begin < sizeof bytes; begin += 1000) {
        assert_memory_equal(m.p, bytes, sizeof bytes);
        meg_mmap_drop(&m, m.p + begin, sizeof bytes - begin);
    }
    assert_memory_equal(m.p, bytes, sizeof bytes);

    /* memory outside of the mapping keeps its contents */
    memset(outside, 'o', sizeof outside);
    meg_mmap_drop(&m, outside, sizeof outside);
    assert_int_equal(outside[2048], 'o');
    meg_mmap_close(&m);
    meg_mmap_drop(&m, bytes, sizeof bytes);
    assert_int_equal(bytes[4096 + 2], (char)((4096 + 2) * (4096 + 2) % 251));
}

static void reading_a_missing_file_or_a_directory_is_an_error(void **state)
{
    struct meg_str s = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_read_file("/nowhere/x", &s, &e), MEG_ENOENT);
    assert_int_equal(meg_read_file(dir, &s, &e), MEG_EIO);
    assert_int_equal(meg_read_file("/dev/null", &s, &e), 0);
    assert_string_equal(s.s, "");
    meg_str_free(&s);
}

/* The FIFO has no writer: a reader that blocks is ended by the alarm. */
static void only_regular_files_are_read_from_directories(void **state)
{
    struct meg_str s = { 0 };
    struct meg_mmap m;
    struct meg_err e;

    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20);
    assert_int_equal(meg_mmap_open(&m, path, &e), MEG_EIO);
    assert_non_null(strstr(e.msg, "expected a regular file"));
    assert_int_equal(meg_read_regular(path, &s, &e), MEG_EIO);
    assert_non_null(strstr(e.msg, path));
    assert_int_equal(meg_read_regular("/dev/zero", &s, &e), MEG_EIO);
    assert_int_equal(meg_read_regular("/nowhere/x", &s, &e), MEG_ENOENT);
    alarm(0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(meg_write_file(path, "abc", 3, NULL), 0);
    assert_int_equal(meg_read_regular(path, &s, &e), 0);
    assert_string_equal(s.s, "abc");
    meg_str_free(&s);
}

static void directories_are_made_and_removed(void **state)
{
    char deep[400], below[500];
    struct meg_err e;
    struct stat st;

    (void)state;
    snprintf(deep, sizeof deep, "%s/a//b/c/", dir);
    assert_int_equal(meg_mkdirs(deep, NULL), 0);
    assert_int_equal(meg_mkdirs(deep, NULL), 0);
    assert_int_equal(stat(deep, &st), 0);
    snprintf(below, sizeof below, "%s/f", deep);
    assert_int_equal(meg_write_file(below, "x", 1, NULL), 0);
    assert_int_equal(meg_mkdirs(below, &e), MEG_EIO);
    assert_non_null(strstr(e.msg, "exists and is not a directory"));
    snprintf(below, sizeof below, "%s/f/g", deep);
    assert_true(meg_mkdirs(below, &e) < 0);
    assert_int_equal(meg_fsync_dir(deep, NULL), 0);
    assert_true(meg_fsync_dir(below, &e) < 0);

    snprintf(deep, sizeof deep, "%s/a", dir);
    snprintf(below, sizeof below, "%s/z", dir);
    assert_int_equal(meg_rename(deep, below, NULL), 0);
    assert_int_equal(meg_rename(deep, below, &e), MEG_ENOENT);
    snprintf(deep, sizeof deep, "%s/link", dir);
    assert_int_equal(symlink("..", deep), 0); /* the link is removed, not followed */
    assert_int_equal(meg_remove_tree(below, NULL), 0);
    assert_int_equal(meg_remove_tree(below, NULL), 0);
    assert_int_equal(meg_remove_tree(deep, NULL), 0);
    assert_int_equal(names(), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_appears_when_committed, make, clear),
        cmocka_unit_test_setup_teardown(an_abandoned_file_leaves_the_old_one, make, clear),
        cmocka_unit_test_setup_teardown(the_mode_follows_the_umask, make, clear),
        cmocka_unit_test_setup_teardown(an_output_that_is_not_a_regular_file_is_not_replaced, make, clear),
        cmocka_unit_test_setup_teardown(exceeding_the_file_size_limit_is_an_error, make, clear),
        cmocka_unit_test_setup_teardown(writeback_begins_before_the_commit, make, clear),
        cmocka_unit_test_setup_teardown(written_bytes_can_be_read_before_the_commit, make, clear),
        cmocka_unit_test_setup_teardown(a_file_is_complete_whichever_call_fails, make, clear),
        cmocka_unit_test_setup_teardown(a_signal_removes_temporary_files, make, clear),
        cmocka_unit_test_setup_teardown(files_are_mapped, make, clear),
        cmocka_unit_test_setup_teardown(dropped_pages_are_read_again, make, clear),
        cmocka_unit_test_setup_teardown(reading_a_missing_file_or_a_directory_is_an_error, make, clear),
        cmocka_unit_test_setup_teardown(only_regular_files_are_read_from_directories, make, clear),
        cmocka_unit_test_setup_teardown(directories_are_made_and_removed, make, clear),
    };

    if (argc > 1)
        return write_new(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
