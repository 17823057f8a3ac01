/*
 * Every write, fsync, close and rename of a save fails once: by ENOSPC, by EIO, by the death of the
 * process.  Whatever the place, a whole checkpoint is found afterwards: the older one up to the
 * moment of the commit, the newer one from then on.  The same in the background and where one of several
 * ranks fails.  Runs under tests/fault/fault.c, which it puts before itself; each save is a process of
 * its own, and each of its ranks.  FULL=1: no call is left out.
 */
#include <dirent.h>
#include <libgen.h>
#include <signal.h>
#include <sys/wait.h>
#include "base/log.h"
#include "child.h"
#include "ckpt_box.h"
#include "shared_comm.h"

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
    bool is_async;
    int faulty; /* with several ranks, the one whose calls count */
};

static void save(const void *arg)
{
    const struct saving *s = arg;
    struct meg_err e;
    struct box b;

    make_box(&b, 1, 8, s->seed);
    b.is_async = s->is_async;
    if (save_box(&b, "d", s->iteration, s->keep, -1, &e) < 0)
        exit(meg_exit_status(e.code));
    free_box(&b);
}

/* The part of numbers of the whole model that a rank has. */
static float *part(const struct meg_params *p, const struct meg_params *whole, const float *numbers)
{
    float *v = meg_new((size_t)p->flat_numel * sizeof *v);

    for (int i = 0; i < p->n; i++)
        for (int64_t k = 0; k < meg_param_num_shard_ranges(&p->row[i]); k++) {
            const struct meg_param_shard_range run = meg_param_shard_range_at(&p->row[i], k);

            memcpy(v + p->row[i].offset + run.local,
                   numbers + meg_params_find(whole, p->row[i].name)->offset + run.global, (size_t)run.n * sizeof *v);
        }
    return v;
}

/* What one of tensor-parallel ranks does of a save. */
static void save_as(struct shared_comm *world, const struct saving *s)
{
    const struct meg_layout layout = { .tp = RANKS,
                                       .cp = 1,
                                       .dp = 1,
                                       .pp = 1,
                                       .vp = 1,
                                       .layers = 1,
                                       .first_layers = MEG_UNSET,
                                       .last_layers = MEG_UNSET };
    struct meg_mesh mesh;
    struct meg_err e;
    struct box whole, b;

    meg_mesh_init_dry(&mesh, &layout, world->comm.rank);
    mesh.world = &world->comm;
    make_box(&whole, 1, 8, s->seed);
    b = whole;
    b.mesh = &mesh;
    b.is_async = s->is_async;
    meg_gpt_params(&b.p, &b.m, &mesh);
    b.w = part(&b.p, &whole.p, whole.w);
    b.exp_avg = part(&b.p, &whole.p, whole.exp_avg);
    b.exp_avg_sq = part(&b.p, &whole.p, whole.exp_avg_sq);
    if (save_box(&b, "d", s->iteration, s->keep, -1, &e) < 0)
        exit(meg_exit_status(e.code));
    free_box(&b);
    free_box(&whole);
}

/* A save by several processes; ends with their status, which has to be the same of all. */
static void save_on_ranks(const void *arg)
{
    const struct saving *s = arg;
    struct shared_comm *world = shared_comm_new();
    int status[RANKS];
    pid_t pid[RANKS];

    for (int i = 0; i < RANKS; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            if (i != s->faulty) {
                unsetenv("MEG_FAULT_AT");
                unsetenv("MEG_FAULT_COUNT");
            }
            alarm(60); /* one that waits for a rank that ended */
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
    if (meg_ckpt_open(&c, "d", MEG_UNSET, &e) < 0 || load_box(&b, c, &e) < 0 || meg_ckpt_verify(c, &e) < 0) {
        put("found", e.msg, strlen(e.msg));
        exit(0);
    }
    seed = (int)(b.w[0] / 65536);
    make_box(&a, 1, 8, seed);
    if (memcmp(a.w, b.w, (size_t)a.p.flat_numel * 4) || memcmp(a.exp_avg, b.exp_avg, (size_t)a.p.flat_numel * 4) ||
        memcmp(a.exp_avg_sq, b.exp_avg_sq, (size_t)a.p.flat_numel * 4))
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

    begin_anew();
    setenv("MEG_FAULT_COUNT", "count", 1);
    assert_int_equal(in_child(f, s, NULL, 0), 0);
    unsetenv("MEG_FAULT_COUNT");
    text = slurp("count");
    n = atoi(text.s);
    meg_str_free(&text);
    assert_true(n >= (s->faulty > 0 ? 12 : 60));
    return n;
}

/* Fail every stride-th call of a save. */
static void sweep_by(save_fn *f, const struct saving *s, const char *kind, int stride)
{
    const struct saving again = { .iteration = 30, .seed = 3 };
    const int n = count_calls(f, s);
    char now[2100], new[40];
    bool is_committed = false;

    snprintf(new, sizeof new, "%d %d", (int)s->iteration, s->seed);
    for (int at = 1; at <= n; at += stride) {
        int status;

        begin_anew();
        status = in_child(f, s, kind, at);
        if (!strcmp(kind, "KILL"))
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else if (!strcmp(kind, "SHORT"))
            assert_int_equal(status, 0);
        else
            assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 74 || WEXITSTATUS(status) == 0));
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
    if (stride == 1)
        assert_int_equal(is_committed, strcmp(kind, "SHORT") != 0 && s->faulty == 0);
}

static void sweep(const struct saving *s, const char *kind)
{
    sweep_by(save, s, kind, 1);
}

/* Of sweeps that say much the same as another one, a part in each run of the suite. */
static int stride(void)
{
    return getenv("FULL") ? 1 : 7;
}

static const struct saving next = { .iteration = 20, .seed = 2, .keep = 1 }; /* the older is removed */
static const struct saving same = { .iteration = 10, .seed = 2 };            /* which is replaced */

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

static void survives_a_fault_in_the_background(void **state)
{
    static const char *const kinds[] = { "ENOSPC", "EIO", "KILL", "SHORT" };
    struct saving s = next;

    (void)state;
    s.is_async = true;
    for (int i = 0; i < 4; i++)
        sweep_by(save, &s, kinds[i], stride());
}

static void survives_a_fault_of_one_rank(void **state)
{
    static const char *const kinds[] = { "ENOSPC", "EIO" };
    struct saving s = next;

    (void)state;
    for (s.faulty = 0; s.faulty < RANKS; s.faulty++)
        for (int i = 0; i < 2; i++) {
            s.is_async = i != s.faulty;
            sweep_by(save_on_ranks, &s, kinds[i], stride());
        }
}

/* ---- what is read back for its checksum ---- */

static void save_or_say(const void *arg)
{
    const struct saving *s = arg;
    struct meg_err e;
    struct box b;

    make_box(&b, 1, 8, s->seed);
    b.is_async = s->is_async;
    if (save_box(&b, "d", s->iteration, s->keep, -1, &e) == 0)
        exit(0);
    put("said", e.msg, strlen(e.msg));
    exit(meg_exit_status(e.code));
}

static void survives_a_tensor_that_cannot_be_read_back(void **state)
{
    static const struct {
        const char *kind, *says;
    } fault[] = { { "EIO", "d/iter_0000020.tmp.|.safetensors: reading back: Input/output error" },
                  { "END", "d/iter_0000020.tmp.|.safetensors: reading back ends at byte " } };
    struct saving s = next;
    struct meg_str said;
    char now[2100], at[16];

    (void)state;
    for (int i = 0; i < 2; i++)
        for (int k = 1; k < 40; k += 19) {
            s.is_async = k > 1;
            begin_anew();
            snprintf(at, sizeof at, "%d", k);
            setenv("MEG_FAULT_PREAD", at, 1);
            setenv("MEG_FAULT_ERRNO", fault[i].kind, 1);
            assert_int_equal(in_child(save_or_say, &s, NULL, 0), 74 << 8);
            unsetenv("MEG_FAULT_PREAD");
            unsetenv("MEG_FAULT_ERRNO");
            said = slurp("said");
            assert_says(said.s, fault[i].says);
            meg_str_free(&said);
            found(now, sizeof now);
            assert_string_equal(now, "10 1");
            assert_tidy(k);
        }
}

/* ---- what is on the disk ---- */

/* Which files each process has written to since it last called fsync on them. */
struct unsynced {
    struct {
        int pid;
        char path[200];
    } v[100];
    int n;
};

static void note_call(struct unsynced *u, int pid, const char *call, const char *path)
{
    int i = 0;

    while (i < u->n && (u->v[i].pid != pid || strcmp(u->v[i].path, path)))
        i++;
    if (strstr(call, "write") && i == u->n) {
        assert_true(u->n < 100);
        u->v[i].pid = pid;
        snprintf(u->v[u->n++].path, sizeof u->v[i].path, "%s", path);
    } else if (strstr(call, "sync") && i < u->n) {
        u->v[i] = u->v[--u->n];
    }
}

/* Each rank puts what it writes on the disk before rank 0 gives the checkpoint its name. */
static void assert_synced_before_commit(save_fn *f, const struct saving *s, int ranks)
{
    struct unsynced u = { .n = 0 };
    struct meg_str text;
    int ncommits = 0, nwrites = 0;

    begin_anew();
    setenv("MEG_FAULT_LOG", "calls", 1);
    assert_int_equal(in_child(f, s, NULL, 0), 0);
    unsetenv("MEG_FAULT_LOG");
    text = slurp("calls");
    unlink("calls");
    for (char *save = NULL, *l = strtok_r(text.s, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        char call[20], path[200], to[200] = "";
        int pid;

        assert_in_range(sscanf(l, "%d %19s %199s %199s", &pid, call, path, to), 3, 4);
        nwrites += !strcmp(call, "pwrite") && strstr(path, "/optim-1-layer-00000.safetensors");
        note_call(&u, pid, call, path);
        if (strcmp(call, "rename") || strcmp(to, "d/iter_0000020"))
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

static void all_is_on_the_disk_before_the_commit(void **state)
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
        cmocka_unit_test(survives_a_fault_in_the_background),
        cmocka_unit_test(survives_a_fault_of_one_rank),
        cmocka_unit_test(survives_a_tensor_that_cannot_be_read_back),
        cmocka_unit_test(all_is_on_the_disk_before_the_commit),
    };

    (void)argc;
    if (!getenv("MEG_FAULT_LIBRARY")) {
        char *self = meg_strdup(argv[0]);
        struct meg_str so = { 0 };

        meg_str_printf(&so, "%s/../../fault.so", dirname(self));
        setenv("MEG_FAULT_LIBRARY", so.s, 1);
        preload(so.s);
        setenv("OMP_NUM_THREADS", "1", 1); /* calls come in the same order each time */
        setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
        execv("/proc/self/exe", argv);
        return 1;
    }
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
