/*
 * Fault injection in checkpoint saves: each write, fsync, close and rename of a save fails in turn with ENOSPC or EIO,
 * or the process is killed there.  Afterwards a complete checkpoint is found in every case: the older one until the
 * commit, then the newer one.  This also holds for asynchronous saves, and if a call of one of several ranks fails.
 * The test preloads tests/fault/fault.c; each rank of each save is a separate process.  Some tests skip calls to save
 * time, except with FULL=1.
 */
#include <dirent.h>
#include <libgen.h>
#include <signal.h>
#include <sys/wait.h>
#include "base/log.h"
#include "child.h"
#include "ckpt_fixture.h"
#include "sanitized.h"
#include "shared_comm.h"

/*
 * Run f(arg) in a child process and return its wait status.  Unless at is 0, call number `at` to an intercepted
 * function fails with fault_errno, a value of MEG_FAULT_ERRNO in tests/fault/fault.c.
 */
static int in_child(void (*f)(const void *), const void *arg, const char *fault_errno, int at)
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
            setenv("MEG_FAULT_ERRNO", fault_errno, 1);
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
    bool is_async;
    int faulty; /* rank whose calls may fail */
};

static void save(const void *arg)
{
    const struct saving *s = arg;
    struct meg_err e;
    struct ckpt_fixture b;

    make_fixture(&b, 1, 8, s->seed);
    b.is_async = s->is_async;
    if (save_fixture(&b, "d", s->iteration, s->keep, -1, &e) < 0)
        exit(meg_exit_status(e.code));
    free_fixture(&b);
}

/*
 * Return a flat buffer of the shards that p describes, copied from numbers, the flat buffer of the unsharded
 * parameters.  The caller frees it.
 */
static float *shard_copy(const struct meg_params *p, const struct meg_params *unsharded, const float *numbers)
{
    float *v = meg_new((size_t)p->flat_numel * sizeof *v);

    for (int i = 0; i < p->n; i++)
        for (int64_t k = 0; k < meg_param_num_shard_ranges(&p->row[i]); k++) {
            const struct meg_param_shard_range run = meg_param_shard_range_at(&p->row[i], k);

            memcpy(v + p->row[i].offset + run.local,
                   numbers + meg_params_find(unsharded, p->row[i].name)->offset + run.global,
                   (size_t)run.n * sizeof *v);
        }
    return v;
}

/* Save as one of several tensor-parallel ranks. */
static void save_as(struct shared_comm *world, const struct saving *s)
{
    const struct meg_layout layout = {
        .tp = RANKS, .cp = 1, .dp = 1, .pp = 1, .ep = 1, .etp = RANKS, .vp = 1, .layers = 1
    };
    struct meg_mesh mesh;
    struct meg_err e;
    struct ckpt_fixture unsharded, b;

    meg_mesh_init_dry(&mesh, &layout, world->comm.rank);
    mesh.world = &world->comm;
    make_fixture(&unsharded, 1, 8, s->seed);
    b = unsharded;
    b.mesh = &mesh;
    b.is_async = s->is_async;
    meg_model_params(&b.p, &b.m, &mesh);
    b.w = shard_copy(&b.p, &unsharded.p, unsharded.w);
    b.exp_avg = shard_copy(&b.p, &unsharded.p, unsharded.exp_avg);
    b.exp_avg_sq = shard_copy(&b.p, &unsharded.p, unsharded.exp_avg_sq);
    if (save_fixture(&b, "d", s->iteration, s->keep, -1, &e) < 0)
        exit(meg_exit_status(e.code));
    free_fixture(&b);
    free_fixture(&unsharded);
}

/* Save with one process per rank.  Exit with their common exit status, or with 99 if they differ or one is killed. */
static void save_on_ranks(const void *arg)
{
    const struct saving *s = arg;
    static struct shared_comm *world; /* static, so that no leak is reported in ranks that exit on an error */
    int status[RANKS];
    pid_t pid[RANKS];

    world = shared_comm_new();
    for (int i = 0; i < RANKS; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            if (i != s->faulty) {
                unsetenv("MEG_FAULT_AT");
                unsetenv("MEG_FAULT_COUNT");
            }
            alarm(60); /* end a rank that waits for a rank that has ended */
            shared_comm_join(world, i);
            save_as(world, s);
            exit(0);
        }
    }
    unsetenv("MEG_FAULT_COUNT");
    for (int i = 0; i < RANKS; i++)
        if (waitpid(pid[i], &status[i], 0) != pid[i] || !WIFEXITED(status[i]) || status[i] != status[0])
            _exit(99);
    exit(WEXITSTATUS(status[0]));
}

/*
 * Load and verify the checkpoint in d, and write "ITERATION SEED" or the error message to the file "found".  SEED is
 * -1 if the weights and the optimizer state are not those of one seed.
 */
static void load(const void *arg)
{
    struct meg_ckpt *c = NULL;
    struct meg_err e;
    struct ckpt_fixture a, b;
    char text[40];
    int seed;

    (void)arg;
    make_fixture(&b, 1, 8, 0);
    if (meg_ckpt_open(&c, "d", MEG_UNSET, &e) < 0 || load_fixture(&b, c, &e) < 0 || meg_ckpt_verify(c, &e) < 0) {
        put_file("found", e.msg, strlen(e.msg));
        exit(0);
    }
    seed = (int)(b.w[0] / 65536);
    make_fixture(&a, 1, 8, seed);
    if (memcmp(a.w, b.w, (size_t)a.p.flat_numel * 4) != 0 ||
        memcmp(a.exp_avg, b.exp_avg, (size_t)a.p.flat_numel * 4) != 0 ||
        memcmp(a.exp_avg_sq, b.exp_avg_sq, (size_t)a.p.flat_numel * 4) != 0)
        seed = -1;
    snprintf(text, sizeof text, "%d %d", (int)meg_ckpt_iteration(c), seed);
    put_file("found", text, strlen(text));
    meg_ckpt_close(c);
    free_fixture(&a);
    free_fixture(&b);
}

static void assert_found(char *text, size_t n)
{
    struct meg_str s;

    assert_int_equal(in_child(load, NULL, NULL, 0), 0);
    s = read_bytes("found");
    snprintf(text, n, "%s", s.s);
    meg_str_free(&s);
}

/* Check that d has only checkpoints, the tracker and hidden files. */
static void assert_tidy(int at)
{
    DIR *d = opendir("d");
    struct dirent *ent;

    assert_non_null(d);
    while ((ent = readdir(d)))
        if (ent->d_name[0] != '.' && strcmp(ent->d_name, "latest_checkpointed_iteration.txt") != 0 &&
            (strncmp(ent->d_name, "iter_", 5) != 0 || strlen(ent->d_name) != 12))
            fail_msg("fault %d left d/%s", at, ent->d_name);
    closedir(d);
}

static void restart(void)
{
    const struct saving first = { .iteration = 10, .seed = 1 };
    struct meg_err e;

    assert_int_equal(meg_remove_tree("d", &e), 0);
    assert_int_equal(in_child(save, &first, NULL, 0), 0);
}

typedef void save_fn(const void *saving);

static int count_calls(save_fn *f, const struct saving *s)
{
    struct meg_str text;
    int n;

    restart();
    setenv("MEG_FAULT_COUNT", "count", 1);
    assert_int_equal(in_child(f, s, NULL, 0), 0);
    unsetenv("MEG_FAULT_COUNT");
    text = read_bytes("count");
    n = atoi(text.s);
    meg_str_free(&text);
    assert_true(n >= (s->faulty > 0 ? 12 : 60));
    return n;
}

/*
 * Fail call 1, 1 + stride, ... of a save f(s), one in each save.  A load then finds the older or the new checkpoint,
 * and only the new one from the commit on.  After a save that failed, the next save succeeds and leaves no other files.
 */
static void fail_every_nth_call(save_fn *f, const struct saving *s, const char *fault_errno, int stride)
{
    const struct saving again = { .iteration = 30, .seed = 3 };
    const int n = count_calls(f, s);
    char now[2100], new[40];
    bool is_committed = false;

    snprintf(new, sizeof new, "%d %d", (int)s->iteration, s->seed);
    for (int at = 1; at <= n; at += stride) {
        int status;

        restart();
        status = in_child(f, s, fault_errno, at);
        if (strcmp(fault_errno, "KILL") == 0)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else if (strcmp(fault_errno, "SHORT") == 0)
            assert_int_equal(status, 0);
        else
            assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 74 || WEXITSTATUS(status) == 0));
        assert_found(now, sizeof now);
        if (status != 0 && strcmp(now, new) == 0)
            is_committed = true;
        else if (strcmp(now, status == 0 || is_committed ? new : "10 1") != 0)
            fail_msg("%s at call %d of %d, status %x: found '%s'", fault_errno, at, n, status, now);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 74)
            assert_tidy(at);
        if (status == 0)
            continue;
        assert_int_equal(in_child(save, &again, NULL, 0), 0);
        assert_found(now, sizeof now);
        assert_string_equal(now, "30 3");
        assert_tidy(at);
    }
    if (stride == 1)
        assert_int_equal(is_committed, strcmp(fault_errno, "SHORT") != 0 && s->faulty == 0);
}

/*
 * Test fewer calls under a sanitizer: a forked process takes twenty times as long, and the sanitizer does not detect
 * the errors tested here.
 */
enum { STRIDE = IS_SANITIZED ? 29 : 1, PART_STRIDE = IS_SANITIZED ? 53 : 7 };

static void fail_each_call(const struct saving *s, const char *fault_errno)
{
    fail_every_nth_call(save, s, fault_errno, getenv("FULL") ? 1 : STRIDE);
}

/* Return the stride for tests whose calls mostly fail in other tests too. */
static int stride(void)
{
    return getenv("FULL") ? 1 : PART_STRIDE;
}

static const struct saving next = { .iteration = 20, .seed = 2, .keep = 1 }; /* removes the older checkpoint */
static const struct saving same = { .iteration = 10, .seed = 2 };            /* replaces the older checkpoint */

static void survives_enospc(void **state)
{
    (void)state;
    fail_each_call(&next, "ENOSPC");
}

static void survives_eio(void **state)
{
    (void)state;
    fail_each_call(&same, "EIO");
}

static void survives_kill(void **state)
{
    (void)state;
    fail_each_call(&next, "KILL");
}

static void survives_kill_while_replacing(void **state)
{
    (void)state;
    fail_each_call(&same, "KILL");
}

static void finishes_short_writes(void **state)
{
    (void)state;
    fail_each_call(&next, "SHORT");
}

static void survives_a_fault_in_an_async_save(void **state)
{
    static const char *const faults[] = { "ENOSPC", "EIO", "KILL", "SHORT" };
    struct saving s = next;

    (void)state;
    s.is_async = true;
    for (int i = 0; i < 4; i++)
        fail_every_nth_call(save, &s, faults[i], stride());
}

static void survives_a_fault_of_one_rank(void **state)
{
    static const char *const faults[] = { "ENOSPC", "EIO" };
    struct saving s = next;

    (void)state;
    for (s.faulty = 0; s.faulty < RANKS; s.faulty++)
        for (int i = 0; i < 2; i++) {
            s.is_async = i != s.faulty;
            fail_every_nth_call(save_on_ranks, &s, faults[i], stride());
        }
}

/* ---- reading back for checksums ---- */

static void save_or_print_error(const void *arg)
{
    const struct saving *s = arg;
    struct meg_err e;
    struct ckpt_fixture b;

    make_fixture(&b, 1, 8, s->seed);
    b.is_async = s->is_async;
    if (save_fixture(&b, "d", s->iteration, s->keep, -1, &e) == 0)
        exit(0);
    put_file("message", e.msg, strlen(e.msg));
    exit(meg_exit_status(e.code));
}

static void survives_a_tensor_that_cannot_be_read_back(void **state)
{
    static const struct {
        const char *fault_errno, *message;
    } fault[] = { { "EIO", "d/iter_0000020.tmp.|.safetensors: read failed: Input/output error" },
                  { "END", "d/iter_0000020.tmp.|.safetensors: this file now ends at byte " } };
    struct saving s = next;
    struct meg_str message;
    char now[2100], at[16];

    (void)state;
    for (int i = 0; i < 2; i++)
        for (int k = 1; k < 40; k += 19) {
            s.is_async = k > 1;
            restart();
            snprintf(at, sizeof at, "%d", k);
            setenv("MEG_FAULT_PREAD", at, 1);
            setenv("MEG_FAULT_ERRNO", fault[i].fault_errno, 1);
            assert_int_equal(in_child(save_or_print_error, &s, NULL, 0), 74 << 8);
            unsetenv("MEG_FAULT_PREAD");
            unsetenv("MEG_FAULT_ERRNO");
            message = read_bytes("message");
            assert_contains(message.s, fault[i].message);
            meg_str_free(&message);
            assert_found(now, sizeof now);
            assert_string_equal(now, "10 1");
            assert_tidy(k);
        }
}

/* ---- syncing ---- */

/* The files that each process has written and not synced. */
struct unsynced {
    struct {
        int pid;
        char path[200];
    } v[100];
    int n;
};

static void record_call(struct unsynced *u, int pid, const char *call, const char *path)
{
    int i = 0;

    while (i < u->n && (u->v[i].pid != pid || strcmp(u->v[i].path, path) != 0))
        i++;
    if (strstr(call, "write") && i == u->n) {
        assert_true(u->n < 100);
        u->v[i].pid = pid;
        snprintf(u->v[u->n++].path, sizeof u->v[i].path, "%s", path);
    } else if (strstr(call, "sync") && i < u->n) {
        u->v[i] = u->v[--u->n];
    }
}

/* Check that all ranks have synced all of their files when rank 0 renames the checkpoint directory. */
static void assert_synced_before_commit(save_fn *f, const struct saving *s, int ranks)
{
    struct unsynced u = { .n = 0 };
    struct meg_str text;
    int ncommits = 0, nwrites = 0;

    restart();
    setenv("MEG_FAULT_LOG", "calls", 1);
    assert_int_equal(in_child(f, s, NULL, 0), 0);
    unsetenv("MEG_FAULT_LOG");
    text = read_bytes("calls");
    unlink("calls");
    for (char *save = NULL, *l = strtok_r(text.s, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        char call[20], path[200], to[200] = "";
        int pid;

        assert_in_range(sscanf(l, "%d %19s %199s %199s", &pid, call, path, to), 3, 4);
        nwrites += strcmp(call, "pwrite") == 0 && strstr(path, "/optim-1-layer-00000.safetensors");
        record_call(&u, pid, call, path);
        if (strcmp(call, "rename") != 0 || strcmp(to, "d/iter_0000020") != 0)
            continue;
        ncommits++;
        if (u.n)
            fail_msg("the checkpoint has its name, and process %d has not called fsync on %s", u.v[0].pid, u.v[0].path);
    }
    assert_int_equal(ncommits, 1);
    assert_true(nwrites > ranks);
    assert_int_equal(u.n, 0);
    meg_str_free(&text);
}

static void all_files_are_synced_before_the_commit(void **state)
{
    struct saving s = next;

    (void)state;
    for (int i = 0; i < 2; i++) {
        s.is_async = i;
        assert_synced_before_commit(save, &s, 1);
        assert_synced_before_commit(save_on_ranks, &s, RANKS);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survives_enospc),
        cmocka_unit_test(survives_eio),
        cmocka_unit_test(survives_kill),
        cmocka_unit_test(survives_kill_while_replacing),
        cmocka_unit_test(finishes_short_writes),
        cmocka_unit_test(survives_a_fault_in_an_async_save),
        cmocka_unit_test(survives_a_fault_of_one_rank),
        cmocka_unit_test(survives_a_tensor_that_cannot_be_read_back),
        cmocka_unit_test(all_files_are_synced_before_the_commit),
    };

    (void)argc;
    if (!getenv("MEG_FAULT_LIBRARY")) {
        char *self = meg_strdup(argv[0]);
        struct meg_str so = { 0 };

        meg_str_printf(&so, "%s/../../fault.so", dirname(self));
        setenv("MEG_FAULT_LIBRARY", so.s, 1);
        preload(so.s);
        setenv("OMP_NUM_THREADS", "1", 1); /* makes the order of calls reproducible */
        setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
        execv("/proc/self/exe", argv);
        return 1;
    }
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
