/* Reading a mapped file that is truncated during use returns an error with its name, or ends the process. */
#include "child.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "file/file.h"
#include "file/sigbus.h"

#define PAGES 3

static char dir[256], path[300];
static size_t page;

static int make(void **state)
{
    (void)state;
    page = (size_t)sysconf(_SC_PAGESIZE);
    make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/data", dir);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    return meg_remove_tree(dir, NULL);
}

/* Restore the default action of SIGBUS in a child process, because cmocka installs a handler. */
static void begin_child(void)
{
    signal(SIGBUS, SIG_DFL);
}

/* Map a file of PAGES pages and truncate it to the first one. */
static void map_and_truncate(struct meg_mmap *m)
{
    char *bytes = meg_new(PAGES * page);

    memset(bytes, 'x', PAGES * page);
    if (meg_write_file(path, bytes, PAGES * page, NULL) < 0 || meg_mmap_open(m, path, NULL) < 0 ||
        truncate(path, (off_t)page) < 0)
        _exit(99);
    free(bytes);
}

static int sum(void *arg, struct meg_err *e)
{
    const struct meg_mmap *m = arg;
    volatile int r = 0; /* volatile, so that each byte is read */

    (void)e;
    for (size_t i = 0; i < m->n; i += page / 2)
        r += m->p[i] == 'x';
    return r;
}

static void a_guarded_read_returns_an_error(void **state)
{
    struct meg_mmap m, other;
    struct meg_err e;
    char want[sizeof path + 200];

    (void)state;
    map_and_truncate(&m);
    snprintf(want, sizeof want,
             "%s: byte %zu cannot be read: the file was truncated, or its disk failed, while it was in use", path,
             page);
    for (int i = 0; i < 2; i++) { /* the second read also fails */
        assert_int_equal(meg_sigbus_guard(sum, &m, &e), MEG_EIO);
        assert_string_equal(e.msg, want);
    }
    assert_int_equal(truncate(path, (off_t)(PAGES * page)), 0);
    assert_int_equal(meg_sigbus_guard(sum, &m, &e), 2); /* the truncated part is zero now */
    meg_mmap_close(&m);
    assert_int_equal(meg_mmap_open(&other, path, NULL), 0); /* reuses the entry of the closed mapping */
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(meg_sigbus_guard(sum, &other, &e), MEG_EIO);
    meg_mmap_close(&other);
}

static void read_it(void *arg)
{
    struct meg_file f = { 0 };
    struct meg_mmap m;
    char name[320];

    (void)arg;
    begin_child();
    map_and_truncate(&m);
    snprintf(name, sizeof name, "%s/output", dir);
    if (meg_file_create(&f, name, NULL) < 0)
        _exit(99);
    sum(&m, NULL);
}

static void an_unguarded_read_ends_the_process_with_the_name(void **state)
{
    struct child c;
    char want[sizeof path + 200];

    (void)state;
    child_run(&c, read_it, NULL);
    assert_int_equal(c.status, 74);
    snprintf(want, sizeof want,
             "sigbus: %s: byte %zu cannot be read: the file was truncated, or its disk failed, while it was in "
             "use\n",
             path, page);
    assert_string_equal(c.err, want);
    assert_int_equal(meg_remove_tree(path, NULL), 0);
    assert_int_equal(rmdir(dir), 0); /* the temporary file is removed */
    assert_int_equal(mkdir(dir, 0777), 0);
}

static void read_a_mapping_of_others(void *arg)
{
    struct meg_mmap m;
    const unsigned char *p;

    (void)arg;
    begin_child();
    map_and_truncate(&m);
    p = mmap(NULL, PAGES * page, PROT_READ, MAP_PRIVATE, open(path, O_RDONLY), 0);
    (void)*(volatile const unsigned char *)(p + page);
}

static void be_sent_one(void *arg)
{
    struct meg_mmap m;

    (void)arg;
    begin_child();
    map_and_truncate(&m);
    kill(getpid(), SIGBUS);
    _exit(1);
}

static void other_faults_keep_the_previous_handler(void **state)
{
    struct child c;

    (void)state;
    child_run(&c, read_a_mapping_of_others, NULL);
    assert_int_equal(c.status, 128 + SIGBUS);
    assert_string_equal(c.err, "");
    child_run(&c, be_sent_one, NULL);
    assert_int_equal(c.status, 128 + SIGBUS);
}

int main(void)
{
    /* The last test installs the handler in this process; the other tests install it in child processes. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_unguarded_read_ends_the_process_with_the_name, make, clear),
        cmocka_unit_test_setup_teardown(other_faults_keep_the_previous_handler, make, clear),
        cmocka_unit_test_setup_teardown(a_guarded_read_returns_an_error, make, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
