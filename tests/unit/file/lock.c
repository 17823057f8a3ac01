/* Lock files: one holder at a time, which is named in the message; locks of dead processes are taken over. */
#define _GNU_SOURCE
#include "child.h"

#include <dirent.h>
#include <errno.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>

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

static long fs_type = EXT4_SUPER_MAGIC;

int statfs(const char *at, struct statfs *fs)
{
    (void)at;
    memset(fs, 0, sizeof *fs);
    fs->f_type = fs_type;
    return 0;
}

static const char *uptime_path; /* read instead of /proc/uptime, unless NULL */
static bool hides_processes;    /* /proc has no file PID/stat, as for processes of other users with hidepid=2 */

FILE *fopen(const char *name, const char *mode)
{
    int fd;

    if (uptime_path && strcmp(name, "/proc/uptime") == 0)
        name = uptime_path;
    if (hides_processes && strncmp(name, "/proc/", 6) == 0 && strstr(name, "/stat")) {
        errno = ENOENT;
        return NULL;
    }
    fd = open(name, *mode == 'r' ? O_RDONLY : O_WRONLY | O_CREAT | O_TRUNC, 0666);
    return fd < 0 ? NULL : fdopen(fd, mode);
}

static int make(void **state)
{
    (void)state;
    has_links = true;
    hides_processes = false;
    uptime_path = NULL;
    fs_type = EXT4_SUPER_MAGIC;
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

#define OTHER_BOOT "01234567-89ab-cdef-0123-456789abcdef"

static void a_lock_from_before_a_reboot_is_taken_over(void **state)
{
    struct child c;

    (void)state;
    leave_a_dead_lock(NULL);
    edit("boot", OTHER_BOOT);
    edit("host", "name-before-reboot");
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 0);
}

static void assert_refused_with_advice(void)
{
    struct child c;

    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 74);
    assert_non_null(strstr(c.err, "if that process is dead, remove "));
    assert_int_equal(access(path, F_OK), 0);
}

static void a_lock_of_a_machine_with_the_same_host_name_is_not_taken_over(void **state)
{
    struct meg_lock l = { 0 };

    (void)state;
    leave_a_dead_lock(NULL);
    edit("boot", OTHER_BOOT);
    fs_type = NFS_SUPER_MAGIC; /* the other machine may be running */
    assert_refused_with_advice();
    unlink(path);
    fs_type = EXT4_SUPER_MAGIC;
    assert_int_equal(meg_lock_acquire(&l, path, "out", NULL), 0);
    edit("boot", OTHER_BOOT); /* the process is running in spite of this */
    assert_refused_with_advice();
    meg_lock_release(&l);
}

static void take_as_another_user(void *unused)
{
    if (setgid(65534) < 0 || setuid(65534) < 0)
        _exit(1);
    take_and_say(unused);
}

static void a_lock_of_a_hidden_process_is_not_taken_over(void **state)
{
    struct meg_lock l = { 0 };
    struct child c;

    (void)state;
    assert_int_equal(meg_lock_acquire(&l, path, "out", NULL), 0);
    hides_processes = true;
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 74);
    if (geteuid() == 0) { /* kill(2) fails with EPERM */
        assert_int_equal(chmod(dir, 0777), 0);
        assert_int_equal(chmod(path, 0666), 0);
        child_run(&c, take_as_another_user, NULL);
        assert_int_equal(c.status, 74);
    }
    hides_processes = false;
    assert_int_equal(meg_lock_check(&l, NULL), 0);
    meg_lock_release(&l);
}

static void a_lock_of_another_host_is_not_taken_over(void **state)
{
    struct child c;

    (void)state;
    leave_a_dead_lock(NULL);
    edit("host", "node17.cluster");
    edit("boot", OTHER_BOOT);
    fs_type = NFS_SUPER_MAGIC;
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
    setenv("SLURM_RESTART_COUNT", "2", 1);
    leave_a_dead_lock("4711");
    edit("host", "node17");
    setenv("SLURM_RESTART_COUNT", "1", 1); /* an earlier run of the job, which still ends */
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 74);
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

static void other_types_of_files_are_not_locks(void **state)
{
    struct child c;

    (void)state;
    assert_int_equal(symlink("nowhere", path), 0);
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 74);
    assert_non_null(strstr(c.err, "is empty or unreadable, or was not written by meg"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0666), 0);
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 74);
    assert_non_null(strstr(c.err, "is empty or unreadable, or was not written by meg"));
}

static void a_removed_lock_is_acquired_again(void **state)
{
    struct meg_lock l = { 0 };
    struct child c;

    (void)state;
    assert_int_equal(meg_lock_acquire(&l, path, "out", NULL), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(meg_lock_check(&l, NULL), 0);
    child_run(&c, take_and_say, NULL);
    assert_int_equal(c.status, 74);
    meg_lock_release(&l);
    assert_int_equal(count_names(), 0);
}

static void a_lock_lost_to_another_process_is_detected(void **state)
{
    struct meg_lock l = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_lock_acquire(&l, path, "out", NULL), 0);
    edit("host", "node17");
    assert_int_equal(meg_lock_check(&l, &e), MEG_EIO);
    assert_non_null(strstr(e.msg, "on host node17, process "));
    assert_non_null(strstr(e.msg, "the lock file of this process was removed"));
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

/* ---- directories ---- */

static const char *in_dir(const char *name)
{
    static char paths[8][400];
    static int i;

    i = (i + 1) % 8;
    snprintf(paths[i], sizeof paths[i], "%s/%s", dir, name);
    return paths[i];
}

static void writing_in_a_directory_and_replacing_it_exclude_each_other(void **state)
{
    struct meg_dir_lock replace = { 0 };
    struct meg_lock l = { 0 };

    (void)state;
    for (int exists = 0; exists <= 1; exists++) {
        if (exists)
            assert_int_equal(mkdir(in_dir("new"), 0777), 0);
        assert_int_equal(meg_lock_dir(&l, in_dir("new/"), NULL), 0);
        assert_int_equal(meg_lock_replaced_dir(&replace, in_dir("new"), NULL), MEG_EIO);
        meg_lock_release(&l);
        assert_int_equal(meg_lock_replaced_dir(&replace, in_dir("new"), NULL), 0);
        assert_int_equal(meg_lock_dir(&l, in_dir("new"), NULL), MEG_EIO);
        meg_lock_release_dir(&replace);
        assert_int_equal(count_names(), exists);
    }
}

static int accept_only_old(const char *at, const char *name, struct meg_err *e)
{
    char file[500];

    snprintf(file, sizeof file, "%s/mine", at);
    return access(file, F_OK) == 0 ? meg_fail(e, MEG_EUSAGE, "%s/mine would be removed", name) : 0;
}

static void a_directory_that_another_program_writes_to_is_not_replaced(void **state)
{
    struct meg_dir_lock replace = { 0 };
    struct meg_err e;

    (void)state;
    for (int was_empty = 0; was_empty <= 1; was_empty++) {
        assert_int_equal(meg_mkdirs(in_dir("out"), NULL), 0);
        assert_int_equal(meg_mkdirs(in_dir("out.tmp"), NULL), 0);
        if (!was_empty)
            assert_int_equal(meg_write_file(in_dir("out/old"), "", 0, NULL), 0);
        assert_int_equal(meg_lock_replaced_dir(&replace, in_dir("out"), NULL), 0);
        assert_int_equal(meg_write_file(in_dir("out/mine"), "", 0, NULL), 0);
        assert_int_equal(meg_lock_commit_dir(&replace, in_dir("out.tmp"), in_dir("out"), accept_only_old, &e),
                         was_empty ? MEG_EIO : MEG_EUSAGE);
        assert_non_null(
            strstr(e.msg, was_empty ? "another process wrote to this directory" : "/out/mine would be removed"));
        assert_int_equal(access(in_dir("out/mine"), F_OK), 0);
        assert_int_equal(access(in_dir("out.tmp"), F_OK), 0);
        meg_lock_release_dir(&replace);
        assert_int_equal(meg_remove_tree(in_dir("out"), NULL), 0);
    }
}

static void an_empty_directory_is_replaced_by_one_rename(void **state)
{
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_mkdirs(in_dir("out"), NULL), 0);
    assert_int_equal(meg_mkdirs(in_dir("out.tmp"), NULL), 0);
    assert_int_equal(meg_write_file(in_dir("out/mine"), "", 0, NULL), 0);
    assert_int_equal(meg_commit_new_dir(in_dir("out.tmp"), in_dir("out"), &e), MEG_EIO);
    assert_non_null(strstr(e.msg, "another process wrote to this directory"));
    assert_int_equal(unlink(in_dir("out/mine")), 0);
    assert_int_equal(meg_commit_new_dir(in_dir("out.tmp"), in_dir("out"), &e), 0);
    assert_int_equal(access(in_dir("out.tmp"), F_OK), -1);
}

/* If the machine had run for a day longer, this process would have started a day earlier. */
static void the_start_in_a_lock_is_that_of_the_process(void **state)
{
    char uptime[300], text[64];
    struct meg_str content = { 0 };
    const time_t now = time(NULL);
    struct tm utc = { 0 };
    double uptime_s = 0;
    struct meg_lock l;
    struct meg_err e;
    FILE *f = fopen("/proc/uptime", "r");

    (void)state;
    assert_int_equal(fscanf(f, "%lf", &uptime_s), 1);
    fclose(f);
    snprintf(uptime, sizeof uptime, "%s/uptime", dir);
    snprintf(text, sizeof text, "%.2f 1.00\n", uptime_s + 86400);
    assert_int_equal(meg_write_file(uptime, text, strlen(text), &e), 0);
    uptime_path = uptime;
    assert_int_equal(meg_lock_acquire(&l, path, "out", &e), 0);
    assert_int_equal(meg_read_file(path, &content, &e), 0);
    meg_lock_release(&l);
    assert_non_null(strstr(content.s, "\nstarted "));
    assert_non_null(strptime(strstr(content.s, "\nstarted ") + 9, "%Y-%m-%d %H:%M:%S UTC", &utc));
    /* the test has run for less than 10 minutes */
    assert_in_range(now - timegm(&utc), 86400 - 2, 86400 + 600);
    meg_str_free(&content);
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
        cmocka_unit_test_setup_teardown(other_types_of_files_are_not_locks, make, clear),
        cmocka_unit_test_setup_teardown(a_removed_lock_is_acquired_again, make, clear),
        cmocka_unit_test_setup_teardown(a_lock_lost_to_another_process_is_detected, make, clear),
        cmocka_unit_test_setup_teardown(writing_in_a_directory_and_replacing_it_exclude_each_other, make, clear),
        cmocka_unit_test_setup_teardown(a_directory_that_another_program_writes_to_is_not_replaced, make, clear),
        cmocka_unit_test_setup_teardown(an_empty_directory_is_replaced_by_one_rename, make, clear),
        cmocka_unit_test_setup_teardown(a_lock_of_a_machine_with_the_same_host_name_is_not_taken_over, make, clear),
        cmocka_unit_test_setup_teardown(a_lock_of_a_hidden_process_is_not_taken_over, make, clear),
        cmocka_unit_test_setup_teardown(the_start_in_a_lock_is_that_of_the_process, make, clear),
        cmocka_unit_test_setup_teardown(exit_releases_the_locks, make, clear),
        cmocka_unit_test_setup_teardown(one_of_many_processes_takes_over_a_dead_lock, make, clear),
    };
    return cmocka_run_group_tests_name("lock", tests, NULL, NULL);
}
