/*
 * Every write, fsync, close and rename of a save fails once: by ENOSPC, by EIO, by the death of the
 * process.  Whatever the place, a whole checkpoint is found afterwards: the older one up to the
 * moment of the commit, the newer one from then on.  Runs under tests/fault/fault.c, which it
 * puts before itself; each save is a process of its own.
 */
#include <dirent.h>
#include <libgen.h>
#include <signal.h>
#include <sys/wait.h>
#include "base/log.h"
#include "ckpt_box.h"

/* Run f in a child, with fault number at of a kind (0: none); its status as wait gives it. */
static int in_child(void (*f)(const void *), const void *arg, const char *kind, int at)
{
    int status = -1;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        char number[16];

        snprintf(number, sizeof number, "%d", at);
        if (at) {
            setenv("MEG_FAULT_AT", number, 1);
            setenv("MEG_FAULT_ERRNO", kind, 1);
        }
        meg_log_set_level(-1);
        f(arg);
        exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

struct saving {
    int64_t iteration;
    int seed;
    int64_t keep;
};

static void save(const void *arg)
{
    const struct saving *s = arg;
    struct meg_err e;
    struct box b;

    make_box(&b, 1, 8, s->seed);
    if (save_box(&b, "d", s->iteration, s->keep, -1, &e) < 0)
        exit(meg_exit_status(e.code));
    free_box(&b);
}

/* Leaves "ITERATION SEED" of the checkpoint in the file found, once every byte of it is checked. */
static void load(const void *arg)
{
    struct meg_ckpt *c = NULL;
    struct meg_err e;
    struct box a, b;
    char text[40];
    int seed;

    (void)arg;
    make_box(&b, 1, 8, 0);
    if (meg_ckpt_open(&c, "d", MEG_UNSET, &e) < 0 || load_box(&b, c, &e) < 0 ||
        meg_ckpt_verify(c, &e) < 0) {
        put("found", e.msg, strlen(e.msg));
        exit(0);
    }
    seed = (int)(b.w[0] / 65536);
    make_box(&a, 1, 8, seed);
    if (memcmp(a.w, b.w, (size_t)a.p.flat * 4) ||
        memcmp(a.exp_avg, b.exp_avg, (size_t)a.p.flat * 4) ||
        memcmp(a.exp_avg_sq, b.exp_avg_sq, (size_t)a.p.flat * 4))
        seed = -1;
    snprintf(text, sizeof text, "%d %d", (int)meg_ckpt_iteration(c), seed);
    put("found", text, strlen(text));
    meg_ckpt_close(c);
    free_box(&a);
    free_box(&b);
}

static void found(char *text, size_t n)
{
    struct meg_str s;

    assert_int_equal(in_child(load, NULL, NULL, 0), 0);
    s = slurp("found");
    snprintf(text, n, "%s", s.s);
    meg_str_free(&s);
}

/* Nothing in d but checkpoints and the tracker. */
static void assert_tidy(int at)
{
    DIR *d = opendir("d");
    struct dirent *ent;

    assert_non_null(d);
    while ((ent = readdir(d)))
        if (ent->d_name[0] != '.' && strcmp(ent->d_name, "latest_checkpointed_iteration.txt") &&
            (strncmp(ent->d_name, "iter_", 5) || strlen(ent->d_name) != 12))
            fail_msg("fault %d left d/%s", at, ent->d_name);
    closedir(d);
}

static void begin_anew(void)
{
    const struct saving first = { 10, 1, 0 };
    struct meg_err e;

    assert_int_equal(meg_remove_tree("d", &e), 0);
    assert_int_equal(in_child(save, &first, NULL, 0), 0);
}

static int count_calls(const struct saving *s)
{
    struct meg_str text;
    int n;

    begin_anew();
    setenv("MEG_FAULT_COUNT", "count", 1);
    assert_int_equal(in_child(save, s, NULL, 0), 0);
    unsetenv("MEG_FAULT_COUNT");
    text = slurp("count");
    n = atoi(text.s);
    meg_str_free(&text);
    assert_true(n > 60);
    return n;
}

static void sweep(const struct saving *s, const char *kind)
{
    const struct saving again = { 30, 3, 0 };
    const int n = count_calls(s);
    char now[2100], new[40];
    bool is_committed = false;

    snprintf(new, sizeof new, "%d %d", (int)s->iteration, s->seed);
    for (int at = 1; at <= n; at++) {
        int status;

        begin_anew();
        status = in_child(save, s, kind, at);
        if (!strcmp(kind, "KILL"))
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else if (!strcmp(kind, "SHORT"))
            assert_int_equal(status, 0);
        else
            assert_true(WIFEXITED(status) &&
                        (WEXITSTATUS(status) == 74 || WEXITSTATUS(status) == 0));
        found(now, sizeof now);
        if (status != 0 && !strcmp(now, new))
            is_committed = true;
        else if (strcmp(now, status == 0 || is_committed ? new : "10 1"))
            fail_msg("%s at call %d of %d, status %x: found '%s'", kind, at, n, status, now);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 74)
            assert_tidy(at);
        if (status == 0)
            continue;
        assert_int_equal(in_child(save, &again, NULL, 0), 0);
        found(now, sizeof now);
        assert_string_equal(now, "30 3");
        assert_tidy(at);
    }
    assert_int_equal(is_committed, strcmp(kind, "SHORT") != 0);
}

static const struct saving next = { 20, 2, 1 }; /* a later one, the older is removed */
static const struct saving same = { 10, 2, 0 }; /* the same iteration is replaced */

static void survives_enospc(void **state)
{
    (void)state;
    sweep(&next, "ENOSPC");
}

static void survives_eio(void **state)
{
    (void)state;
    sweep(&same, "EIO");
}

static void survives_kill(void **state)
{
    (void)state;
    sweep(&next, "KILL");
}

static void survives_kill_while_replacing(void **state)
{
    (void)state;
    sweep(&same, "KILL");
}

static void finishes_short_writes(void **state)
{
    (void)state;
    sweep(&next, "SHORT");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survives_enospc),       cmocka_unit_test(survives_eio),
        cmocka_unit_test(survives_kill),         cmocka_unit_test(survives_kill_while_replacing),
        cmocka_unit_test(finishes_short_writes),
    };

    (void)argc;
    if (!getenv("MEG_FAULT_LIBRARY")) {
        char *self = meg_strdup(argv[0]);
        struct meg_str so = { 0 };

        meg_str_printf(&so, "%s/../fault.so", dirname(self));
        setenv("MEG_FAULT_LIBRARY", so.s, 1);
        setenv("LD_PRELOAD", so.s, 1);
        setenv("OMP_NUM_THREADS", "1", 1); /* calls come in the same order each time */
        setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
        execv("/proc/self/exe", argv);
        return 1;
    }
    if (access("/dev/shm", W_OK) == 0)
        memcpy(folder, "/dev/shm/meg.XXXXXX", sizeof "/dev/shm/meg.XXXXXX");
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
