/* Lock files: one holder at a time, which is named in the message; locks of dead processes are taken over. */
#define _GNU_SOURCE
#include "child.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "file/file.h"
#include "file/lock.h"

static char dir[256], path[300];

static bool has_links = true; /* the file system has hard links */

int link(const char *from, const char *to)
{
    if (has_links)
        return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
    errno = EPERM;
    return -1;
}

static int make(void **state)
{
    (void)state;
    has_links = true;
    make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/out.lock", dir);
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_RESTART_COUNT");
    return 0;
}

static int clear(void **state)
{
    (void)state;
    return meg_remove_tree(dir, NULL);
}

static int count_names(void)
{
    DIR *d = opendir(dir);
    int n = -2;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Acquire the lock, as Slurm job `job` unless it is NULL, and end by SIGKILL, so that the file remains. */
static void take_and_die(void *job)
{
    struct meg_lock l;

    if (job)
        setenv("SLURM_JOB_ID", job, 1);
    if (meg_lock_acquire(&l, path, "out", NULL) == 0)
        kill(getpid(), SIGKILL);
}

static void leave_a_dead_lock(char *job)
{
    struct child c;

    child_run(&c, take_and_die, job);
    assert_int_equal(c.status, 128 + SIGKILL);
    assert_int_equal(access(path, F_OK), 0);
}

/* Replace the value of a key in the lock file. */
static void edit(const char *key, const char *value)
{
    struct meg_str text = { 0 }, out = { 0 };

    assert_int_equal(meg_read_file(path, &text, NULL), 0);
    for (char *line = text.s, *rest = NULL; (line = strtok_r(line, "\n", &rest)); line = NULL) {
        const bool is_it = !strncmp(line, key, strlen(key)) && line[strlen(key)] == ' ';

        meg_str_printf(&out, "%s%s%s\n", is_it ? key : line, is_it ? " " : "", is_it ? value : "");
    }
    assert_string_not_equal(text.s, out.s);
    assert_int_equal(meg_write_file(path, out.s, out.n, NULL), 0);
    meg_str_free(&text);
    meg_str_free(&out);
}

static void take_and_say(void *unused)
{
    struct meg_lock l;
    struct meg_err e;

    (void)unused;
    if (meg_lock_acquire(&l, path, "directory out", &e) < 0) {
        fprintf(stderr, "%s", e.msg);
        _exit(meg_exit_status(e.code));
    }
    meg_lock_release(&l);
}

static void a_held_lock_fails_with_the_name_of_its_holder(void **state)
{
    struct meg_lock l = { 0 };
    struct meg_err e;
    struct child c;
    char pid[64], host[64];

    (void)state;
    assert_int_equal(meg_lock_acquire(&l, path, "out", &e), 0);
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 74);
    snprintf(pid, sizeof pid, "process %ld,", (long)getpid());
    gethostname(host, sizeof host);
    assert_non_null(strstr(c.err, "directory out: "));
    assert_non_null(strstr(c.err, pid));
    assert_non_null(strstr(c.err, host));
    assert_non_null(strstr(c.err, " UTC, is writing to this output"));
    assert_int_equal(meg_lock_check(&l, &e), 0);
    meg_lock_release(&l);
    assert_int_equal(count_names(), 0);
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 0);
    assert_int_equal(count_names(), 0);
}

static void a_lock_of_a_dead_process_is_taken_over(void **state)
{
    struct child c;

    (void)state;
    leave_a_dead_lock(NULL);
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.err, "which is dead"));
    assert_int_equal(count_names(), 0);
}

static void a_reused_process_id_is_not_the_holder(void **state)
{
    char pid[32];
    struct child c;

    (void)state;
    leave_a_dead_lock(NULL);
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    edit("pid", pid);
    edit("start-ticks", "1"); /* this process is alive, but did not start then */
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 0);
}

static void a_lock_from_before_a_reboot_is_taken_over(void **state)
{
    struct meg_lock l = { 0 };
    struct child c;

    (void)state;
    assert_int_equal(meg_lock_acquire(&l, path, "out", NULL), 0);
    edit("boot", "01234567-89ab-cdef-0123-456789abcdef");
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 0);
    meg_lock_release(&l);
}

static void a_lock_of_another_host_is_not_taken_over(void **state)
{
    struct child c;

    (void)state;
    leave_a_dead_lock(NULL);
    edit("host", "node17.cluster");
    edit("boot", "01234567-89ab-cdef-0123-456789abcdef");
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 74);
    assert_non_null(strstr(c.err, "on host node17.cluster, process "));
    assert_non_null(strstr(c.err, "if that process is dead, remove "));
    assert_non_null(strstr(c.err, path));
}

static void a_lock_of_another_container_is_not_taken_over(void **state)
{
    struct child c;

    (void)state;
    leave_a_dead_lock(NULL);
    edit("pid-namespace", "pid:[1]");
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 74);
    assert_non_null(strstr(c.err, "if that process is dead, remove "));
    assert_non_null(strstr(c.err, path));
}

static void a_requeued_slurm_job_takes_over_its_own_lock(void **state)
{
    struct child c;

    (void)state;
    leave_a_dead_lock("4711");
    edit("host", "node17");
    setenv("SLURM_JOB_ID", "4711", 1);
    child_run(&c, take_and_say, NULL); /* the same run of the job, whose other steps may hold the lock */
    assert_int_equal(c.status, 74);
    setenv("SLURM_RESTART_COUNT", "1", 1);
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 0);
}

static void locks_work_without_hard_links(void **state)
{
    struct meg_lock l = { 0 };
    struct meg_err e;
    struct child c;

    (void)state;
    has_links = false;
    if (meg_lock_acquire(&l, path, "out", &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(meg_lock_check(&l, &e), 0);
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 74);
    assert_non_null(strstr(c.err, " UTC, is writing to this output"));
    meg_lock_release(&l);
    assert_int_equal(count_names(), 0);
    leave_a_dead_lock(NULL);
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 0);
    assert_int_equal(count_names(), 0);
}

static void a_file_that_is_not_a_lock_is_not_removed(void **state)
{
    struct child c;

    (void)state;
    assert_int_equal(meg_write_file(path, "notes of mine\n", 14, NULL), 0);
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 74);
    assert_non_null(strstr(c.err, "is empty or unreadable, or was not written by meg"));
    assert_int_equal(access(path, F_OK), 0);
}

static void a_lost_lock_is_detected(void **state)
{
    struct meg_lock l = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_lock_acquire(&l, path, "out", NULL), 0);
    edit("pid", "1");
    assert_int_equal(meg_lock_check(&l, &e), MEG_EIO);
    meg_lock_release(&l);
    assert_int_equal(access(path, F_OK), 0); /* the lock of another process is not removed */
}

static void exit_while_holding(void *how)
{
    struct meg_lock l;

    meg_lock_acquire(&l, path, "out", NULL);
    if (how)
        kill(getpid(), SIGTERM);
    exit(3);
}

static void exit_releases_the_locks(void **state)
{
    char with_signal[] = "";
    struct child c;

    (void)state;
    child_run(&c, exit_while_holding, NULL);
    assert_int_equal(c.status, 3);
    assert_int_equal(count_names(), 0);
    child_run(&c, exit_while_holding, with_signal);
    assert_int_equal(c.status, 128 + SIGTERM);
    assert_int_equal(count_names(), 0);
}

enum { RACERS = 8, ROUNDS = 25 };

/*
 * Counters shared by the racing processes, which wait for each other before they acquire the lock and before they
 * release it.  So exactly one of them must acquire the lock, and `inside` must not exceed 1.
 */
struct shared {
    int ready, tried, inside, wins, overlaps;
};

static void race_once(struct shared *s)
{
    struct meg_lock l = { 0 };

    __atomic_add_fetch(&s->ready, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&s->ready, __ATOMIC_SEQ_CST) < RACERS)
        usleep(50);
    if (meg_lock_acquire(&l, path, "out", NULL) == 0) {
        __atomic_add_fetch(&s->wins, 1, __ATOMIC_SEQ_CST);
        if (__atomic_add_fetch(&s->inside, 1, __ATOMIC_SEQ_CST) != 1)
            __atomic_add_fetch(&s->overlaps, 1, __ATOMIC_SEQ_CST);
    }
    __atomic_add_fetch(&s->tried, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&s->tried, __ATOMIC_SEQ_CST) < RACERS)
        usleep(50);
    meg_lock_release(&l);
}

static void one_of_many_processes_takes_over_a_dead_lock(void **state)
{
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    (void)state;
    assert_ptr_not_equal(s, MAP_FAILED);
    for (int round = 0; round < ROUNDS; round++) {
        memset(s, 0, sizeof *s);
        if (round % 2)
            leave_a_dead_lock(NULL);
        for (int i = 0; i < RACERS; i++)
            if (fork() == 0) {
                if (!freopen("/dev/null", "w", stderr))
                    _exit(1);
                race_once(s);
                _exit(0);
            }
        while (wait(NULL) > 0)
            ;
        assert_int_equal(s->tried, RACERS);
        assert_int_equal(s->wins, 1);
        assert_int_equal(s->overlaps, 0);
        assert_int_equal(count_names(), 0);
    }
    munmap(s, sizeof *s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_held_lock_fails_with_the_name_of_its_holder, make, clear),
        cmocka_unit_test_setup_teardown(a_lock_of_a_dead_process_is_taken_over, make, clear),
        cmocka_unit_test_setup_teardown(a_reused_process_id_is_not_the_holder, make, clear),
        cmocka_unit_test_setup_teardown(a_lock_from_before_a_reboot_is_taken_over, make, clear),
        cmocka_unit_test_setup_teardown(a_lock_of_another_host_is_not_taken_over, make, clear),
        cmocka_unit_test_setup_teardown(a_lock_of_another_container_is_not_taken_over, make, clear),
        cmocka_unit_test_setup_teardown(a_requeued_slurm_job_takes_over_its_own_lock, make, clear),
        cmocka_unit_test_setup_teardown(locks_work_without_hard_links, make, clear),
        cmocka_unit_test_setup_teardown(a_file_that_is_not_a_lock_is_not_removed, make, clear),
        cmocka_unit_test_setup_teardown(a_lost_lock_is_detected, make, clear),
        cmocka_unit_test_setup_teardown(exit_releases_the_locks, make, clear),
        cmocka_unit_test_setup_teardown(one_of_many_processes_takes_over_a_dead_lock, make, clear),
    };
    return cmocka_run_group_tests_name("lock", tests, NULL, NULL);
}
