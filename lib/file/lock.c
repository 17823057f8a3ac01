/* Lock files: acquisition by link(2), takeover from dead processes under flock(2). */
#define _GNU_SOURCE /* flock, program_invocation_short_name */
#include "file/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "file/file.h"
#include "file/temporary.h"

/* The lines of a lock file, "key value" each, in this order. */
enum { PROGRAM, HOST, PID, STARTED, BOOT, PID_NAMESPACE, START_TICKS, SLURM_JOB, SLURM_RESTART, NKEYS };
static const char *const keys[NKEYS] = { "program",       "host",        "pid",       "started",      "boot",
                                         "pid-namespace", "start-ticks", "slurm-job", "slurm-restart" };

struct holder {
    char value[NKEYS][128]; /* "" where the file has no such line */
};

/* ---- who this process is ---- */

/* The first line of a file of the kernel's, or "". */
static void read_line(char out[128], const char *path)
{
    FILE *f = fopen(path, "re");

    out[0] = 0;
    if (!f)
        return;
    if (fgets(out, 128, f))
        out[strcspn(out, "\n")] = 0;
    fclose(f);
}

/* Field 22 of /proc/PID/stat, the clock tick after boot at which the process started; "" where it does not run. */
static void start_ticks(char out[128], const char *pid)
{
    char path[160], stat[1024] = "", *at;
    size_t n = 0;
    FILE *f;

    out[0] = 0;
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    if (!(f = fopen(path, "re")))
        return;
    n = fread(stat, 1, sizeof stat - 1, f);
    fclose(f);
    stat[n] = 0;
    at = strrchr(stat, ')'); /* the name of the program may hold anything */
    if (at && at[1] && at[2] != 'Z' && at[2] != 'X') {
        at += 2;
        for (int field = 3; at && field < 22; field++)
            at = (at = strchr(at, ' ')) ? at + 1 : NULL;
        if (at)
            snprintf(out, 128, "%.*s", (int)strspn(at, "0123456789"), at);
    }
}

static void describe_start(char out[128], const char *ticks)
{
    char line[128];
    double uptime_s = 0, age_s;
    struct tm utc;
    time_t start;

    read_line(line, "/proc/uptime");
    sscanf(line, "%lf", &uptime_s);
    age_s = uptime_s - strtod(ticks, NULL) / (double)sysconf(_SC_CLK_TCK);
    start = time(NULL) - (time_t)(age_s > 0 ? age_s : 0);
    gmtime_r(&start, &utc);
    strftime(out, 128, "%Y-%m-%d %H:%M:%S UTC", &utc);
}

static void copy_env(char out[128], const char *name)
{
    const char *value = getenv(name);

    snprintf(out, 128, "%.*s", value ? (int)strcspn(value, "\n") : 0, value ? value : "");
}

static void describe_self(struct holder *h)
{
    ssize_t n;

    memset(h, 0, sizeof *h);
    snprintf(h->value[PROGRAM], sizeof *h->value, "%s", meg_progname());
    meg_host_name(h->value[HOST], sizeof *h->value);
    snprintf(h->value[PID], sizeof *h->value, "%ld", (long)getpid());
    start_ticks(h->value[START_TICKS], h->value[PID]);
    describe_start(h->value[STARTED], h->value[START_TICKS]);
    read_line(h->value[BOOT], "/proc/sys/kernel/random/boot_id");
    n = readlink("/proc/self/ns/pid", h->value[PID_NAMESPACE], sizeof *h->value - 1);
    h->value[PID_NAMESPACE][n < 0 ? 0 : n] = 0;
    copy_env(h->value[SLURM_JOB], "SLURM_JOB_ID");
    copy_env(h->value[SLURM_RESTART], "SLURM_RESTART_COUNT");
}

static void spell(const struct holder *h, struct meg_str *out)
{
    for (int i = 0; i < NKEYS; i++)
        meg_str_printf(out, "%s %s\n", keys[i], h->value[i]);
}

/* ---- who holds a lock ---- */

/* Read a lock file; false where there is none.  What meg did not write leaves the values empty. */
static bool read_holder(struct holder *h, const char *path)
{
    char text[NKEYS * 160];
    FILE *f = fopen(path, "re");
    size_t n;

    memset(h, 0, sizeof *h);
    if (!f)
        return errno != ENOENT;
    n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    for (char *line = text, *rest = NULL; (line = strtok_r(line, "\n", &rest)); line = NULL)
        for (int i = 0; i < NKEYS; i++) {
            const size_t nkey = strlen(keys[i]);

            if (!strncmp(line, keys[i], nkey) && line[nkey] == ' ')
                snprintf(h->value[i], sizeof *h->value, "%s", line + nkey + 1);
        }
    return true;
}

static bool same(const struct holder *a, const struct holder *b, int key)
{
    return *a->value[key] && !strcmp(a->value[key], b->value[key]);
}

/* Whether the holder's process, while it runs, can be seen from here: not on another host, nor in another container. */
static bool is_visible(const struct holder *h, const struct holder *self)
{
    return same(h, self, HOST) && same(h, self, BOOT) && same(h, self, PID_NAMESPACE);
}

/* Whether the holder is known to be gone; false where that cannot be known from here. */
static bool is_gone(const struct holder *h, const struct holder *self)
{
    char ticks[128];

    if (same(h, self, SLURM_JOB) && strcmp(h->value[SLURM_RESTART], self->value[SLURM_RESTART]))
        return true; /* Slurm requeues a job when no process of it is left */
    if (same(h, self, HOST) && !same(h, self, BOOT))
        return *h->value[BOOT] && *self->value[BOOT]; /* this host was booted again since */
    if (!is_visible(h, self))
        return false;
    start_ticks(ticks, h->value[PID]);
    return strcmp(ticks, h->value[START_TICKS]) != 0;
}

static int refuse(const char *path, const char *output, const struct holder *h, const struct holder *self,
                  struct meg_err *e)
{
    const bool is_running = is_visible(h, self);

    if (!*h->value[PID])
        return meg_fail(e, MEG_EIO, "%s: %s is no lock file that meg wrote; remove it if nothing writes here", output,
                        path);
    return meg_fail(e, MEG_EIO,
                    "%s: %s on host %s, process %s, started %s, is writing here; wait for it or name "
                    "another output%s%s%s",
                    output, h->value[PROGRAM], h->value[HOST], h->value[PID], h->value[STARTED],
                    is_running ? "" : " (if that process is gone, remove ", is_running ? "" : path,
                    is_running ? "" : ")");
}

/* ---- taking and releasing ---- */

/* What this process holds, which is released at exit. */
struct held {
    char *path, *text; /* the lock file and what this process wrote into it; NULL: free */
    char *folder;      /* that meg_lock_dir created, or NULL */
    int made;          /* of meg_temporary_register */
};
static struct held *held;
static int nheld;

static bool is_ours(const struct held *h)
{
    struct meg_str text = { 0 };
    struct holder now;
    bool is;

    read_holder(&now, h->path);
    spell(&now, &text);
    is = !strcmp(text.s, h->text);
    meg_str_free(&text);
    return is;
}

static void release(struct held *h)
{
    if (!h->path)
        return;
    if (is_ours(h))
        unlink(h->path);
    if (h->folder)
        rmdir(h->folder);
    meg_temporary_unregister(h->made);
    free(h->path);
    free(h->text);
    free(h->folder);
    memset(h, 0, sizeof *h);
}

static void release_all(void)
{
    for (int i = 0; i < nheld; i++)
        release(&held[i]);
    free(held);
    held = NULL;
    nheld = 0;
}

/* Takes over text. */
static void hold(struct meg_lock *l, const char *path, char *text)
{
    int i = 0;

    while (i < nheld && held[i].path)
        i++;
    if (i == nheld) {
        if (nheld == 0)
            atexit(release_all);
        held = meg_realloc_array(held, (size_t)++nheld, sizeof *held);
    }
    held[i] = (struct held){ .path = meg_strdup(path), .text = text, .made = meg_temporary_register(path) };
    l->i = i + 1;
}

/*
 * Put our lock file in place of one whose holder is gone.  Processes that find the same one come here
 * one after another: the first renames, those behind it see another file under the name.
 */
static int take_over(const char *tmp, const char *path, const struct holder *self, bool *is_ours, struct meg_err *e)
{
    struct stat opened, named;
    struct holder h;
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    int r = MEG_OK;

    if (fd < 0)
        return errno == ENOENT ? MEG_OK : meg_fail_errno(e, "%s: opening the lock that a dead process left", path);
    if (flock(fd, LOCK_EX) < 0)
        r = meg_fail_errno(e, "%s: the process that held this lock is gone; remove the file: flock", path);
    else if (fstat(fd, &opened) == 0 && stat(path, &named) == 0 && opened.st_ino == named.st_ino &&
             opened.st_dev == named.st_dev && read_holder(&h, path) && is_gone(&h, self)) {
        *is_ours = rename(tmp, path) == 0;
        if (*is_ours)
            meg_info("%s: taken over from %s on host %s, process %s, which is gone", path, h.value[PROGRAM],
                     h.value[HOST], h.value[PID]);
        else
            r = meg_fail_errno(e, "%s: rename from %s", path, tmp);
    }
    close(fd);
    return r;
}

/*
 * Create the lock file on a file system without hard links.  It is empty for an instant: who reads it then is
 * refused, and a process killed then leaves a file that the user removes.
 */
static bool create(const char *path, const struct holder *self)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    struct meg_str text = { 0 };
    bool is_written;

    if (fd < 0)
        return false;
    spell(self, &text);
    is_written = write(fd, text.s, text.n) == (ssize_t)text.n;
    is_written = close(fd) == 0 && is_written;
    meg_str_free(&text);
    if (!is_written) {
        unlink(path);
        errno = EIO;
    }
    return is_written;
}

/* tmp, complete under a name of its own, becomes the lock file or is removed. */
static int acquire(const char *tmp, const char *path, const char *output, const struct holder *self, struct meg_err *e)
{
    bool is_ours = false;
    struct holder h;
    struct stat st;
    int r = MEG_OK;

    while (r == MEG_OK && !is_ours) {
        is_ours = link(tmp, path) == 0 || (stat(tmp, &st) == 0 && st.st_nlink == 2); /* NFS may lose the reply */
        if (!is_ours && (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS))
            is_ours = create(path, self);
        if (is_ours)
            break;
        if (errno != EEXIST)
            r = meg_fail_errno(e, "%s: creating the lock file", path);
        else if (read_holder(&h, path))
            r = is_gone(&h, self) ? take_over(tmp, path, self, &is_ours, e) : refuse(path, output, &h, self, e);
    }
    unlink(tmp);
    return r;
}

int meg_lock_acquire(struct meg_lock *l, const char *path, const char *output, struct meg_err *e)
{
    struct meg_str text = { 0 };
    struct meg_file own = { 0 };
    struct holder self;
    int r;

    l->i = 0;
    describe_self(&self);
    spell(&self, &text);
    if ((r = meg_file_create(&own, path, e)) < 0 || (r = meg_file_write(&own, text.s, text.n, e)) < 0 ||
        (r = meg_file_sync(&own, e)) < 0 || (r = acquire(own.tmp, path, output, &self, e)) < 0)
        goto out;
    hold(l, path, text.s);
    text.s = NULL;
out:
    meg_file_abandon(&own);
    meg_str_free(&text);
    return r;
}

int meg_lock_dir(struct meg_lock *l, const char *folder, struct meg_err *e)
{
    const bool is_new = access(folder, F_OK) < 0;
    struct meg_str path = { 0 };
    int r;

    l->i = 0;
    meg_str_printf(&path, "%s/" MEG_LOCK_DIR_FILE, folder);
    if ((r = meg_mkdirs(folder, e)) == MEG_OK && (r = meg_lock_acquire(l, path.s, folder, e)) < 0 && is_new)
        rmdir(folder);
    if (r == MEG_OK && is_new)
        held[l->i - 1].folder = meg_strdup(folder);
    meg_str_free(&path);
    return r;
}

int meg_lock_check(const struct meg_lock *l, struct meg_err *e)
{
    const struct held *h = &held[l->i - 1];

    if (is_ours(h))
        return MEG_OK;
    return meg_fail(e, MEG_EIO,
                    "%s: this process's lock was removed; another may be writing here, so nothing is replaced",
                    h->path);
}

void meg_lock_release(struct meg_lock *l)
{
    if (l->i)
        release(&held[l->i - 1]);
    l->i = 0;
}
