/* Atomic replacement of several files or of a directory when any system call fails or the process is killed. */
#define _GNU_SOURCE
#include "child.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "base/log.h"
#include "file/commit.h"
#include "file/file.h"
#include "file/temporary.h"

enum { N = 3 };
static const char *const names[N] = { "merges.txt", "tokenizer.json", "vocab.json" };

static char dir[256], self[4096], so[4096];

static const char *in_dir(const char *name)
{
    static char path[16][400];
    static int i;

    i = (i + 1) % 16;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}

/* ---- writers, which this program runs under fault.so ---- */

static int write_files(const char *content, struct meg_err *e)
{
    struct meg_file f[N] = { { 0 } }, *set[N];
    int r = 0;

    for (int i = 0; i < N && r == 0; i++) {
        set[i] = &f[i];
        if ((r = meg_file_create(&f[i], in_dir(names[i]), e)) == 0)
            r = meg_file_write(&f[i], content, strlen(content), e);
    }
    if (r == 0)
        r = meg_commit_files(set, N, e);
    for (int i = 0; i < N; i++)
        meg_file_abandon(&f[i]);
    return r;
}

static int write_directory(const char *content, struct meg_err *e)
{
    const char *directory = in_dir("directory");
    char *tmp = NULL, path[600];
    int r;

    if ((r = meg_commit_recover(directory, e)) < 0)
        return r;
    meg_temporary_remove_stale(directory);
    if ((r = meg_temporary_dir(&tmp, directory, e)) < 0)
        return r;
    for (int i = 0; i < N && r == 0; i++) {
        snprintf(path, sizeof path, "%s/%s", tmp, names[i]);
        r = meg_write_file(path, content, strlen(content), e);
    }
    if (r == 0)
        r = meg_commit_dir(tmp, directory, NULL, e);
    if (r < 0)
        meg_remove_tree(tmp, NULL);
    free(tmp);
    return r;
}

struct writer {
    const char *name;
    int (*write)(const char *content, struct meg_err *e);
    const char *directory; /* directory of the files, or "" */
};
static const struct writer writers[] = { { "files", write_files, "" }, { "directory", write_directory, "directory" } };

static int writer_main(char **argv)
{
    const struct writer *w = &writers[strcmp(argv[1], "files") != 0];
    struct meg_err e;
    int r;

    snprintf(dir, sizeof dir, "%s", argv[2]);
    if ((r = w->write(argv[3], &e)) < 0)
        fprintf(stderr, "%s\n", e.msg);
    return meg_exit_status(r);
}

struct run {
    const struct writer *w;
    const char *content;
    char env[3][320]; /* "" if not set */
};

static void exec_writer(void *arg)
{
    struct run *run = arg;

    preload(so);
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0", 1);
    setenv("MEG_FAULT_NAMES", "1", 1);
    for (int i = 0; i < 3; i++)
        if (*run->env[i])
            putenv(run->env[i]);
    execl(self, "commit", run->w->name, dir, run->content, (char *)NULL);
    _exit(127);
}

/* ---- the state afterwards ---- */

/* Read the files as meg's readers do: 'o' if all are old, 'n' if all are new, else 'x'. */
static char state_for_readers(const struct writer *w)
{
    char *at = meg_commit_resolve(in_dir(w->directory)), path[600], state = 0;
    struct meg_err e;

    if (!*w->directory)
        snprintf(path, sizeof path, "%s", dir);
    for (int i = 0; i < N; i++) {
        struct meg_str got = { 0 };
        char now;

        snprintf(path, sizeof path, "%s/%s", *w->directory ? at : dir, names[i]);
        now = meg_read_file(path, &got, &e) < 0 ? 'x' : !strcmp(got.s, "old") ? 'o' : !strcmp(got.s, "new") ? 'n' : 'x';
        state = !state || state == now ? now : 'x';
        meg_str_free(&got);
    }
    free(at);
    return state;
}

/*
 * Read the files by their final names only: '-' if the last file, which readers open first, is missing, 'o' if all are
 * old, 'n' if all are new, else 'x'.  Missing files before the first existing one are ignored.
 */
static char state_for_others(const struct writer *w)
{
    char state = 0;

    for (int i = 0; i < N; i++) {
        char path[600], text[8] = "";
        FILE *f;

        snprintf(path, sizeof path, "%s%s%s/%s", dir, *w->directory ? "/" : "", w->directory, names[i]);
        f = fopen(path, "r");
        if (f) {
            (void)!fread(text, 1, 3, f);
            fclose(f);
        } else if (i == N - 1) {
            return '-';
        }
        state = !state || state == text[0] ? text[0] : 'x';
    }
    return state;
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

static void start_with_old(const struct writer *w)
{
    struct meg_err e;

    assert_int_equal(meg_remove_tree(dir, NULL), 0);
    assert_int_equal(meg_mkdirs(dir, NULL), 0);
    if (w->write("old", &e) < 0)
        fail_msg("%s", e.msg);
}

static int count_calls(struct run *run)
{
    struct meg_str text = { 0 };
    struct child c;
    int n;

    start_with_old(run->w);
    snprintf(run->env[0], sizeof run->env[0], "MEG_FAULT_COUNT=%s.n", dir);
    child_run(&c, exec_writer, run);
    assert_int_equal(c.status, 0);
    assert_int_equal(state_for_readers(run->w), 'n');
    assert_int_equal(meg_read_file(run->env[0] + strlen("MEG_FAULT_COUNT="), &text, NULL), 0);
    unlink(run->env[0] + strlen("MEG_FAULT_COUNT="));
    n = atoi(text.s);
    meg_str_free(&text);
    assert_in_range(n, 10, 200);
    return n;
}

/* Let each call in turn fail or kill the process.  Readers find all old or all new files, and the next run succeeds. */
static void sweep(const struct writer *w, bool has_exchange)
{
    static const char *const faults[] = { "ENOSPC", "EIO", "KILL" };
    struct run run = { .w = w, .content = "new" };
    int was[128] = { 0 }, n;
    struct child c;
    struct meg_err e;

    if (!has_exchange)
        strcpy(run.env[2], "MEG_FAULT_NO_EXCHANGE=1");
    n = count_calls(&run);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        for (int at = 1; at <= n; at++) {
            char state;

            start_with_old(w);
            snprintf(run.env[0], sizeof run.env[0], "MEG_FAULT_AT=%d", at);
            snprintf(run.env[1], sizeof run.env[1], "MEG_FAULT_ERRNO=%s", faults[i]);
            child_run(&c, exec_writer, &run);
            state = state_for_readers(w);
            if (state != 'o' && state != 'n')
                fail_msg("%s at call %d of %d: a mixture or nothing is left", faults[i], at, n);
            if (state_for_others(w) == 'x')
                fail_msg("%s at call %d of %d: others see a mixture", faults[i], at, n);
            was[(int)state]++;
            if (c.status == 0)
                assert_int_equal(state, 'n');
            if (!strcmp(faults[i], "KILL"))
                assert_int_equal(c.status, 128 + SIGKILL);
            else if (c.status)
                assert_non_null(strstr(c.err, dir));
            /* the next run must succeed and remove the files of the killed run */
            if (w->write("new", &e) < 0)
                fail_msg("%s at call %d of %d: the next run: %s", faults[i], at, n, e.msg);
            assert_int_equal(state_for_others(w), 'n');
            if (count_names() != (*w->directory ? 1 : N))
                fail_msg("%s at call %d of %d: the next run leaves more than the files", faults[i], at, n);
        }
    assert_true(was['o'] > 0 && was['n'] > 0);
}

static void files_are_all_old_or_all_new_whichever_call_fails(void **state)
{
    (void)state;
    sweep(&writers[0], true);
}

static void a_directory_is_old_or_new_whichever_call_fails(void **state)
{
    (void)state;
    sweep(&writers[1], true);
}

static void a_directory_is_old_or_new_without_renameat2_exchange(void **state)
{
    (void)state;
    sweep(&writers[1], false);
}

/* ---- single cases ---- */

static void a_journal_without_a_commit_record_changes_nothing(void **state)
{
    const char *vocab = in_dir("vocab.json"), *list = in_dir("vocab.json.commit"), *tmp = in_dir("vocab.json.tmp.1.h");
    const char text[] = "meg-commit 1 merges.txt.tmp.1.h\nmerges.txt\tmerges.txt.tmp.1.h\n"
                        "vocab.json\tvocab.json.tmp.1.h\n";
    char *at;

    (void)state;
    start_with_old(&writers[0]);
    assert_int_equal(meg_write_file(list, text, strlen(text), NULL), 0);
    assert_int_equal(meg_write_file(tmp, "new", 3, NULL), 0);
    at = meg_commit_resolve(vocab);
    assert_string_equal(at, vocab);
    free(at);
    assert_int_equal(meg_write_file(in_dir("merges.txt.commit"), text, strlen(text), NULL), 0);
    at = meg_commit_resolve(vocab);
    assert_string_equal(at, tmp);
    free(at);
}

static void a_file_that_is_not_a_journal_is_not_removed(void **state)
{
    struct meg_err e;

    (void)state;
    start_with_old(&writers[0]);
    assert_int_equal(meg_write_file(in_dir("vocab.json.commit"), "mine\n", 5, NULL), 0);
    assert_int_equal(write_files("new", &e), MEG_EIO);
    assert_non_null(strstr(e.msg, "vocab.json.commit"));
    assert_int_equal(access(in_dir("vocab.json.commit"), F_OK), 0);
    assert_int_equal(state_for_others(&writers[0]), 'o');
}

static void a_journal_cannot_name_files_outside_its_directory(void **state)
{
    const char *vocab = in_dir("vocab.json");
    const char text[] = "meg-commit 1 x\nvocab.json\t../../etc/passwd\n";
    char *at;

    (void)state;
    start_with_old(&writers[0]);
    assert_int_equal(meg_write_file(in_dir("vocab.json.commit"), text, strlen(text), NULL), 0);
    at = meg_commit_resolve(vocab);
    assert_string_equal(at, vocab);
    free(at);
}

/* Write a journal with this text, unless it is NULL, and call meg_commit_recover, which must refuse the journal. */
static void assert_refuses(const char *text, const char *message)
{
    const char *vocab = in_dir("vocab.json"), *journal = in_dir("vocab.json.commit");
    struct meg_err e;
    char *at;

    if (text)
        assert_int_equal(meg_write_file(journal, text, strlen(text), NULL), 0);
    at = meg_commit_resolve(vocab);
    assert_string_equal(at, vocab);
    free(at);
    assert_int_equal(meg_commit_recover(vocab, &e), MEG_EIO);
    if (!strstr(e.msg, message))
        fail_msg("%s", e.msg);
    assert_int_equal(access(vocab, F_OK), 0);
    assert_int_equal(unlink(journal), 0);
}

static void a_journal_names_only_temporary_files_of_its_members(void **state)
{
    const char *const texts[] = {
        "first line\nvocab.json\tvocab.json.tmp.1.h\n",           /* a table of the user */
        "meg-commit 1 draft\nthesis\tdraft\n",                    /* files of the user */
        "meg-commit 1 draft\nthesis\tdraft\nvocab.json\tdraft\n", /* the same, with the file itself */
        "meg-commit 1 thesis.tmp.1.h\nthesis\tthesis.tmp.1.h\n",  /* does not contain the file itself */
        "meg-commit 1 vocab.json.tmp.1.h\n",                      /* no members */
        "meg-commit 1 x\nvocab.json\tvocab.json.tmp.1.h\n",       /* a different first member */
        "meg-commit 1 vocab.json.tmp.0.h\nvocab.json\tvocab.json.tmp.0.h\n",
        "meg-commit 1 vocab.json.tmp.1\nvocab.json\tvocab.json.tmp.1\n",
        "meg-commit 1 vocab.json.tmp.1.h h\nvocab.json\tvocab.json.tmp.1.h h\n",
        "meg-commit 1 vocab.json.tmp.1.h\nvocab.json\tvocab.json.tmp.1.h\nmore\n",
    };

    (void)state;
    assert_int_equal(meg_write_file(in_dir("vocab.json"), "old", 3, NULL), 0);
    assert_int_equal(meg_write_file(in_dir("thesis"), "thesis", 6, NULL), 0);
    assert_int_equal(meg_write_file(in_dir("draft"), "draft", 5, NULL), 0);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_refuses(texts[i], "has the name of a commit journal but is not one");
    assert_int_equal(count_names(), 3); /* with vocab.json */
}

static void other_types_of_files_are_not_journals(void **state)
{
    const char *journal = in_dir("vocab.json.commit");

    (void)state;
    assert_int_equal(meg_write_file(in_dir("vocab.json"), "old", 3, NULL), 0);
    assert_int_equal(mkfifo(journal, 0666), 0);
    assert_refuses(NULL, "has the name of a commit journal but is not one");
    assert_int_equal(symlink("/dev/zero", journal), 0);
    assert_refuses(NULL, "has the name of a commit journal but is not one");
    assert_int_equal(meg_write_file(journal, "", 0, NULL), 0);
    assert_int_equal(truncate(journal, (off_t)1 << 40), 0);
    assert_refuses(NULL, "has the name of a commit journal but is not one");
}

enum { VICTIM = 65533, ATTACKER = 65534 };

static void become(uid_t user)
{
    if (setgid(user) < 0 || setuid(user) < 0)
        _exit(1);
}

/* Write files and a committed journal of the set { vocab.json }, all owned by the attacker. */
static void forge(void *unused)
{
    const char text[] = "meg-commit 1 vocab.json.tmp.1.h\nvocab.json\tvocab.json.tmp.1.h\n"
                        "vocab.json.idx\tvocab.json.idx.tmp.1.h\n";

    (void)unused;
    become(ATTACKER);
    if (meg_write_file(in_dir("vocab.json.tmp.1.h"), "forged", 6, NULL) < 0 ||
        meg_write_file(in_dir("vocab.json.commit"), text, strlen(text), NULL) < 0)
        _exit(1);
}

static void recover_as_victim(void *unused)
{
    struct meg_err e;
    char *at;

    (void)unused;
    become(VICTIM);
    at = meg_commit_resolve(in_dir("vocab.json"));
    printf("%s\n", at);
    free(at);
    if (meg_commit_recover(in_dir("vocab.json"), &e) < 0) {
        fprintf(stderr, "%s\n", e.msg);
        exit(meg_exit_status(e.code));
    }
}

static void a_journal_of_another_user_is_not_followed(void **state)
{
    struct child c;

    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can run as two users */
    for (int is_sticky = 0; is_sticky <= 1; is_sticky++) {
        assert_int_equal(chmod(dir, is_sticky ? 01777 : 0777), 0);
        assert_int_equal(meg_write_file(in_dir("vocab.json"), "old", 3, NULL), 0);
        child_run(&c, forge, NULL);
        assert_int_equal(c.status, 0);
        child_run(&c, recover_as_victim, NULL);
        assert_int_equal(c.status, is_sticky ? 74 : 0);
        assert_non_null(strstr(c.out, "/vocab.json\n"));
        assert_non_null(strstr(c.err, "this commit journal of another user is ignored"));
        assert_non_null(strstr(c.err, is_sticky ? "belongs to another user, and cannot be removed"
                                                : "removed this commit journal of another user"));
        assert_int_equal(access(in_dir("vocab.json.tmp.1.h"), F_OK), 0);
        assert_int_equal(access(in_dir("vocab.json.commit"), F_OK), is_sticky ? 0 : -1);
        assert_int_equal(unlink(in_dir("vocab.json.tmp.1.h")), 0);
    }
}

static void a_temporary_file_of_another_user_is_not_renamed(void **state)
{
    const char text[] = "meg-commit 1 vocab.json.tmp.1.h\nvocab.json\tvocab.json.tmp.1.h\nx\tx.tmp.1.h\n";
    struct meg_err e;
    char *at;

    (void)state;
    if (geteuid() != 0)
        skip(); /* only root can create a file of another user */
    assert_int_equal(meg_write_file(in_dir("vocab.json.commit"), text, strlen(text), NULL), 0);
    assert_int_equal(meg_write_file(in_dir("vocab.json.tmp.1.h"), "forged", 6, NULL), 0);
    assert_int_equal(chown(in_dir("vocab.json.tmp.1.h"), ATTACKER, ATTACKER), 0);
    at = meg_commit_resolve(in_dir("vocab.json"));
    assert_string_equal(at, in_dir("vocab.json"));
    free(at);
    assert_int_equal(meg_commit_recover(in_dir("vocab.json"), &e), MEG_EIO);
    assert_non_null(strstr(e.msg, "this temporary file belongs to another user"));
}

static void recovery_does_not_remove_an_existing_directory(void **state)
{
    const char text[] = "meg-commit 1 out.tmp.1.h\nout\tout.tmp.1.h\n";
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_mkdirs(in_dir("out"), NULL), 0);
    assert_int_equal(meg_mkdirs(in_dir("out.tmp.1.h"), NULL), 0);
    assert_int_equal(meg_write_file(in_dir("out/later"), "", 0, NULL), 0);
    assert_int_equal(meg_write_file(in_dir("out.commit"), text, strlen(text), NULL), 0);
    if (meg_commit_recover(in_dir("out"), &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(access(in_dir("out/later"), F_OK), 0);
    assert_int_equal(access(in_dir("out.commit"), F_OK), -1);
}

static int make(void **state)
{
    (void)state;
    make_dir(dir, sizeof dir);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    return meg_remove_tree(dir, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_journal_without_a_commit_record_changes_nothing, make, clear),
        cmocka_unit_test_setup_teardown(a_file_that_is_not_a_journal_is_not_removed, make, clear),
        cmocka_unit_test_setup_teardown(a_journal_cannot_name_files_outside_its_directory, make, clear),
        cmocka_unit_test_setup_teardown(a_journal_names_only_temporary_files_of_its_members, make, clear),
        cmocka_unit_test_setup_teardown(other_types_of_files_are_not_journals, make, clear),
        cmocka_unit_test_setup_teardown(a_journal_of_another_user_is_not_followed, make, clear),
        cmocka_unit_test_setup_teardown(a_temporary_file_of_another_user_is_not_renamed, make, clear),
        cmocka_unit_test_setup_teardown(recovery_does_not_remove_an_existing_directory, make, clear),
        cmocka_unit_test_setup_teardown(files_are_all_old_or_all_new_whichever_call_fails, make, clear),
        cmocka_unit_test_setup_teardown(a_directory_is_old_or_new_whichever_call_fails, make, clear),
        cmocka_unit_test_setup_teardown(a_directory_is_old_or_new_without_renameat2_exchange, make, clear),
    };
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    meg_log_set_level(MEG_LOG_WARN);
    if (argc == 4)
        return writer_main(argv);
    snprintf(so, sizeof so, "%.*s/../../fault.so", n > 0 ? (int)(strrchr(self, '/') - self) : 0, self);
    return cmocka_run_group_tests_name("commit", tests, NULL, NULL);
}
