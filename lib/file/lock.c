/* lock.c - lock files: acquisition by link(2), and takeover from dead processes under flock(2). */
#define _GNU_SOURCE /* flock, program_invocation_short_name */
#include "file/lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "file/commit.h"
#include "file/file.h"
#include "file/temporary.h"

/* The keys of a lock file, which has one line "key value" for each, in this order. */
enum { PROGRAM, HOST, PID, STARTED, BOOT, PID_NAMESPACE, START_TICKS, SLURM_JOB, SLURM_RESTART, NKEYS };
static const char *const keys[NKEYS] = { "program",       "host",        "pid",       "started",      "boot",
                                         "pid-namespace", "start-ticks", "slurm-job", "slurm-restart" };

struct holder {
    char value[NKEYS][128]; /* value of each key; "" if the file lacks it */
};

/* ---- the identity of this process ---- */

/* Set out to the first line of a file in /proc, or to "" if the file cannot be read. */
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

/*
 * Set out to field 22 of /proc/PID/stat, the start time of a process in clock ticks after boot, or to "" if the process
 * has ended.  Returns false if the file cannot be read; /proc may hide the processes of other users (hidepid).
 */
static bool start_ticks(char out[128], const char *pid)
{
    char path[160], stat[1024] = "", *p;
    size_t n = 0;
    FILE *f;

    out[0] = 0;
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    if (!(f = fopen(path, "re")))
        return false;
    n = fread(stat, 1, sizeof stat - 1, f);
    fclose(f);
    stat[n] = 0;
    p = strrchr(stat, ')'); /* the program name in parentheses may contain spaces and parentheses */
    if (p && p[1] && p[2] != 'Z' && p[2] != 'X') {
        p += 2;
        for (int field = 3; p && field < 22; field++)
            p = (p = strchr(p, ' ')) ? p + 1 : NULL;
        if (p)
            snprintf(out, 128, "%.*s", (int)strspn(p, "0123456789"), p);
    }
    return p != NULL;
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

static void format_holder(const struct holder *h, struct meg_str *out)
{
    for (int i = 0; i < NKEYS; i++)
        meg_str_printf(out, "%s %s\n", keys[i], h->value[i]);
}

/* ---- the holder of a lock ---- */

/*
 * Read a lock file.  Returns false if it does not exist.  If it cannot be read or is not a lock file, the values are
 * empty.
 */
static bool read_holder(struct holder *h, const char *path)
{
    struct meg_str text = { 0 };
    struct stat st;
    const int r = meg_read_small(path, NKEYS * sizeof *h->value, &text, &st, NULL);

    memset(h, 0, sizeof *h);
    for (char *line = r == 0 ? text.s : NULL, *rest = NULL; line && (line = strtok_r(line, "\n", &rest)); line = rest)
        for (int i = 0; i < NKEYS; i++) {
            const size_t nkey = strlen(keys[i]);

            if (strncmp(line, keys[i], nkey) == 0 && line[nkey] == ' ')
                snprintf(h->value[i], sizeof *h->value, "%s", line + nkey + 1);
        }
    meg_str_free(&text);
    return r != MEG_ENOENT;
}

static bool same_key(const struct holder *a, const struct holder *b, int key)
{
    return *a->value[key] && strcmp(a->value[key], b->value[key]) == 0;
}

/*
 * Return whether this process can find the holder in /proc while the holder is alive, that is, whether both have the
 * same host, boot and PID namespace.
 */
static bool is_visible(const struct holder *h, const struct holder *self)
{
    return same_key(h, self, HOST) && same_key(h, self, BOOT) && same_key(h, self, PID_NAMESPACE);
}

/*
 * Return whether the process with the id of the holder has ended, or is a later process with the same id, if ids are
 * those of this process's namespace.
 */
static bool has_ended(const struct holder *h)
{
    char ticks[128];
    int64_t pid;

    if (!meg_parse_i64(h->value[PID], &pid) || pid <= 0)
        return false;
    if (kill((pid_t)pid, 0) < 0 && errno == ESRCH)
        return true;
    return *h->value[START_TICKS] && start_ticks(ticks, h->value[PID]) && strcmp(ticks, h->value[START_TICKS]) != 0;
}

/* Return whether only one running kernel at a time can mount the file system of path. */
static bool is_on_local_disk(const char *path)
{
    struct statfs fs;

    if (statfs(path, &fs) < 0)
        return false;
    switch ((uint32_t)fs.f_type) {
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC: return true;
    default: return false;
    }
}

/*
 * Return whether the holder is a process of an earlier boot of the machine that now has the disk of the lock file.  The
 * host name does not show this: several machines may have the same name.
 */
static bool is_from_earlier_boot(const struct holder *h, const struct holder *self, const char *path)
{
    return *h->value[BOOT] && *self->value[BOOT] && !same_key(h, self, BOOT) && is_on_local_disk(path) && has_ended(h);
}

static int64_t restart_count(const struct holder *h)
{
    int64_t n;

    return meg_parse_i64(h->value[SLURM_RESTART], &n) ? n : 0;
}

/* Return true if the holder is dead, and false if it is alive or this process cannot determine whether it is. */
static bool is_dead(const struct holder *h, const struct holder *self, const char *path)
{
    if (same_key(h, self, SLURM_JOB) && restart_count(h) < restart_count(self))
        return true; /* Slurm requeues a job after all of its processes have ended */
    return is_visible(h, self) ? has_ended(h) : is_from_earlier_boot(h, self, path);
}

static int fail_locked(const char *path, const char *output, const struct holder *h, const struct holder *self,
                       struct meg_err *e)
{
    const bool is_running = is_visible(h, self);

    if (!*h->value[PID])
        return meg_fail(
            e, MEG_EIO,
            "%s: the lock file %s is empty or unreadable, or was not written by meg; remove it if no process is "
            "writing to this output",
            output, path);
    return meg_fail(e, MEG_EIO,
                    "%s: %s on host %s, process %s, started %s, is writing to this output; wait until that process "
                    "ends, or choose a different output%s%s%s",
                    output, h->value[PROGRAM], h->value[HOST], h->value[PID], h->value[STARTED],
                    is_running ? "" : " (if that process is dead, remove ", is_running ? "" : path,
                    is_running ? "" : ")");
}

/* ---- acquisition and release ---- */

enum { MAX_TRIES = 100 };

/* The locks that this process holds.  They are released at exit. */
struct entry {
    char *path, *text; /* the lock file and its content; NULL if the entry is free */
    char *output;      /* the protected output, for messages */
    char *new_dir;     /* the directory that meg_lock_dir created, or NULL */
    int cleanup_slot;  /* slot returned by meg_temporary_register */
};
static struct entry *locks;
static int nlocks;

static bool is_ours(const struct entry *h)
{
    struct meg_str text = { 0 };
    struct holder now;
    bool is_equal;

    read_holder(&now, h->path);
    format_holder(&now, &text);
    is_equal = strcmp(text.s, h->text) == 0;
    meg_str_free(&text);
    return is_equal;
}

static void release(struct entry *h)
{
    if (!h->path)
        return;
    if (is_ours(h))
        unlink(h->path);
    if (h->new_dir)
        rmdir(h->new_dir);
    meg_temporary_unregister(h->cleanup_slot);
    free(h->path);
    free(h->text);
    free(h->output);
    free(h->new_dir);
    memset(h, 0, sizeof *h);
}

static void release_all(void)
{
    for (int i = 0; i < nlocks; i++)
        release(&locks[i]);
    free(locks);
    locks = NULL;
    nlocks = 0;
}

/* Add a lock to the table, which takes ownership of text. */
static void add_entry(struct meg_lock *l, const char *path, const char *output, char *text)
{
    int i = 0;

    while (i < nlocks && locks[i].path)
        i++;
    if (i == nlocks) {
        if (nlocks == 0)
            atexit(release_all);
        locks = meg_realloc_array(locks, (size_t)++nlocks, sizeof *locks);
    }
    locks[i] = (struct entry){ .path = meg_strdup(path),
                               .output = meg_strdup(output),
                               .text = text,
                               .cleanup_slot = meg_temporary_register(path) };
    l->slot = i + 1;
}

/*
 * Replace the lock file of a dead process by the lock file of this process.  flock serializes the processes that found
 * the lock file of the dead process.  The first process renames its own lock file to path.  The other processes find
 * that path is no longer the file that they opened, and leave *is_ours unchanged.
 */
static int take_over(const char *tmp, const char *path, const struct holder *self, bool *is_ours, struct meg_err *e)
{
    struct stat opened, named;
    struct holder h;
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    int r = 0;

    if (fd < 0)
        return errno == ENOENT ? 0 : meg_fail_errno(e, "%s: cannot open this lock file of a dead process", path);
    if (flock(fd, LOCK_EX) < 0)
        r = meg_fail(e, MEG_EIO,
                     "%s: flock failed: %s; the process that created this lock file is dead, so remove the file", path,
                     strerror(errno));
    else if (fstat(fd, &opened) == 0 && lstat(path, &named) == 0 && opened.st_ino == named.st_ino &&
             opened.st_dev == named.st_dev && read_holder(&h, path) && is_dead(&h, self, path)) {
        *is_ours = rename(tmp, path) == 0;
        if (*is_ours)
            meg_info("%s: this lock was taken over from %s on host %s, process %s, which is dead", path,
                     h.value[PROGRAM], h.value[HOST], h.value[PID]);
        else
            r = meg_fail_errno(e, "%s: rename from %s failed", path, tmp);
    }
    close(fd);
    return r;
}

/*
 * Create the lock file on a file system without hard links.  The file is empty until it is written; a process that
 * reads the empty file fails to acquire the lock.  If this process is killed before the write, the user must remove the
 * file.
 */
static bool create(const char *path, const struct holder *self)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    struct meg_str text = { 0 };
    bool is_written;

    if (fd < 0)
        return false;
    format_holder(self, &text);
    is_written = write(fd, text.s, text.n) == (ssize_t)text.n;
    is_written = close(fd) == 0 && is_written;
    meg_str_free(&text);
    if (!is_written) {
        unlink(path);
        errno = EIO;
    }
    return is_written;
}

/*
 * Link the complete file tmp to path, create path if the file system has no hard links, or take over the lock at path.
 * Removes tmp.
 */
static int acquire(const char *tmp, const char *path, const char *output, const struct holder *self, struct meg_err *e)
{
    bool is_ours = false;
    struct holder h;
    struct stat st;
    int r = 0;

    for (int i = 0; r == 0 && !is_ours && i < MAX_TRIES; i++) {
        /* If link fails because NFS lost the reply of the server, the link exists, so the link count of tmp is 2. */
        is_ours = link(tmp, path) == 0 || (stat(tmp, &st) == 0 && st.st_nlink == 2);
        if (!is_ours && (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS))
            is_ours = create(path, self);
        if (is_ours)
            break;
        if (errno != EEXIST)
            r = meg_fail_errno(e, "%s: cannot create this lock file", path);
        else if (read_holder(&h, path))
            r = is_dead(&h, self, path) ? take_over(tmp, path, self, &is_ours, e)
                                        : fail_locked(path, output, &h, self, e);
    }
    if (r == 0 && !is_ours)
        r = meg_fail(e, MEG_EIO, "%s: other processes created and removed this lock file %d times; try again later",
                     path, MAX_TRIES);
    unlink(tmp);
    return r;
}

/* Write text, the description of this process, to a temporary file, and acquire the lock with this file. */
static int write_lock(const char *path, const char *output, const struct holder *self, const struct meg_str *text,
                      struct meg_err *e)
{
    struct meg_file own = { 0 };
    struct holder h;
    int r;

    if (read_holder(&h, path) && !is_dead(&h, self, path))
        return fail_locked(path, output, &h, self, e);
    if ((r = meg_file_create(&own, path, e)) == 0 && (r = meg_file_write(&own, text->s, text->n, e)) == 0 &&
        (r = meg_file_sync(&own, e)) == 0)
        r = acquire(own.tmp, path, output, self, e);
    meg_file_abandon(&own);
    return r;
}

int meg_lock_acquire(struct meg_lock *l, const char *path, const char *output, struct meg_err *e)
{
    struct meg_str text = { 0 };
    struct holder self;
    int r;

    l->slot = 0;
    describe_self(&self);
    format_holder(&self, &text);
    if ((r = write_lock(path, output, &self, &text, e)) == 0)
        add_entry(l, path, output, text.s);
    else
        meg_str_free(&text);
    return r;
}

int meg_lock_check(const struct meg_lock *l, struct meg_err *e)
{
    struct entry *h = l->slot ? &locks[l->slot - 1] : NULL;
    struct meg_str text = { 0 };
    struct meg_err unused;
    struct holder self;
    int r;

    if (!h || is_ours(h))
        return 0;
    e = e ? e : &unused;
    describe_self(&self);
    meg_str_add(&text, h->text, strlen(h->text));
    if ((r = write_lock(h->path, h->output, &self, &text, e)) == 0) {
        meg_warn("%s: this lock file was removed while this process used it, and has been created again", h->path);
    } else {
        struct meg_err busy = *e;

        meg_fail(e, r, "%.1800s; the lock file of this process was removed", busy.msg);
        meg_temporary_unregister(h->cleanup_slot); /* a signal must not remove the lock of another process */
        h->cleanup_slot = 0;
    }
    meg_str_free(&text);
    return r;
}

void meg_lock_release(struct meg_lock *l)
{
    if (l->slot)
        release(&locks[l->slot - 1]);
    l->slot = 0;
}

/* ---- directories ---- */

static bool is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int acquire_content(struct meg_lock *l, const char *dir, struct meg_err *e)
{
    struct meg_str path = { 0 };
    int r;

    meg_str_printf(&path, "%s/" MEG_LOCK_DIR_FILE, dir);
    r = meg_lock_acquire(l, path.s, dir, e);
    meg_str_free(&path);
    return r;
}

/* Acquire DIR.lock for a path without a trailing slash, and complete or undo an interrupted replacement of DIR. */
static int acquire_name(struct meg_lock *l, const char *dir, struct meg_err *e)
{
    struct meg_str path = { 0 };
    int r;

    meg_str_printf(&path, "%s.lock", dir);
    if ((r = meg_mkdirs_parent(dir, e)) == 0 && (r = meg_lock_acquire(l, path.s, dir, e)) == 0 &&
        (r = meg_commit_recover(dir, e)) < 0)
        meg_lock_release(l);
    meg_str_free(&path);
    return r;
}

int meg_lock_dir(struct meg_lock *l, const char *dir, struct meg_err *e)
{
    char *real = meg_real_dir(dir);
    struct meg_lock name = { 0 };
    bool is_new = false;
    int r = 0;

    l->slot = 0;
    if (!is_dir(real) || meg_commit_is_pending(real))
        r = acquire_name(&name, real, e);
    if (r == 0) {
        is_new = !is_dir(real);
        r = meg_mkdirs(dir, e);
    }
    if (r == 0 && (r = acquire_content(l, dir, e)) < 0 && is_new)
        rmdir(dir);
    if (r == 0 && is_new)
        locks[l->slot - 1].new_dir = meg_strdup(dir);
    meg_lock_release(&name);
    free(real);
    return r;
}

bool meg_lock_dir_is_empty(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    bool is_empty = true;

    while (d && (f = readdir(d)))
        is_empty = is_empty && (strcmp(f->d_name, ".") == 0 || strcmp(f->d_name, "..") == 0 ||
                                strncmp(f->d_name, MEG_LOCK_DIR_FILE, strlen(MEG_LOCK_DIR_FILE)) == 0);
    if (d)
        closedir(d);
    return is_empty;
}

int meg_lock_replaced_dir(struct meg_dir_lock *l, const char *dir, struct meg_err *e)
{
    int r = acquire_name(&l->name, dir, e);

    l->content.slot = 0;
    if (r == 0 && is_dir(dir) && (r = acquire_content(&l->content, dir, e)) < 0)
        meg_lock_release(&l->name);
    l->was_empty = meg_lock_dir_is_empty(dir);
    return r;
}

int meg_lock_check_dir(const struct meg_dir_lock *l, struct meg_err *e)
{
    const int r = meg_lock_check(&l->name, e);

    return r < 0 ? r : meg_lock_check(&l->content, e);
}

int meg_lock_commit_dir(struct meg_dir_lock *l, const char *tmp, const char *dir, meg_commit_check *check,
                        struct meg_err *e)
{
    int r = meg_lock_check_dir(l, e);

    if (r < 0)
        return r;
    if (!l->was_empty)
        return meg_commit_dir(tmp, dir, check, e);
    meg_lock_release(&l->content); /* the last file in the directory */
    return meg_commit_new_dir(tmp, dir, e);
}

void meg_lock_release_dir(struct meg_dir_lock *l)
{
    meg_lock_release(&l->content);
    meg_lock_release(&l->name);
}
