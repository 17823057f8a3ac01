/* lock_holder.c - the process that holds a lock: the content of lock files, and whether the process has ended. */
#include <errno.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>
#include "base/num.h"
#include "file/file.h"
#include "file/lock_internal.h"
#include "file/temporary.h"

static const char *const keys[MEG_LOCK_NKEYS] = { "program",       "host",        "pid",       "started",      "boot",
                                                  "pid-namespace", "start-ticks", "slurm-job", "slurm-restart" };

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
 * Set out to field 22 of /proc/MEG_LOCK_PID/stat, the start time of a process in clock ticks after boot, or to "" if
 * the process has ended.  Returns false if the file cannot be read; /proc may hide the processes of other users
 * (hidepid).
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

void meg_lock_holder_self(struct meg_lock_holder *h)
{
    ssize_t n;

    memset(h, 0, sizeof *h);
    snprintf(h->value[MEG_LOCK_PROGRAM], sizeof *h->value, "%s", meg_progname());
    meg_host_name(h->value[MEG_LOCK_HOST], sizeof *h->value);
    snprintf(h->value[MEG_LOCK_PID], sizeof *h->value, "%ld", (long)getpid());
    start_ticks(h->value[MEG_LOCK_START_TICKS], h->value[MEG_LOCK_PID]);
    describe_start(h->value[MEG_LOCK_STARTED], h->value[MEG_LOCK_START_TICKS]);
    read_line(h->value[MEG_LOCK_BOOT], "/proc/sys/kernel/random/boot_id");
    n = readlink("/proc/self/ns/pid", h->value[MEG_LOCK_PID_NAMESPACE], sizeof *h->value - 1);
    h->value[MEG_LOCK_PID_NAMESPACE][n < 0 ? 0 : n] = 0;
    copy_env(h->value[MEG_LOCK_SLURM_JOB], "SLURM_JOB_ID");
    copy_env(h->value[MEG_LOCK_SLURM_RESTART], "SLURM_RESTART_COUNT");
}

void meg_lock_holder_format(const struct meg_lock_holder *h, struct meg_str *out)
{
    for (int i = 0; i < MEG_LOCK_NKEYS; i++)
        meg_str_printf(out, "%s %s\n", keys[i], h->value[i]);
}

/* ---- the holder of a lock ---- */

bool meg_lock_holder_read(struct meg_lock_holder *h, const char *path)
{
    struct meg_str text = { 0 };
    struct stat st;
    const int r = meg_read_small(path, MEG_LOCK_NKEYS * sizeof *h->value, &text, &st, NULL);

    memset(h, 0, sizeof *h);
    for (char *line = r == 0 ? text.s : NULL, *rest = NULL; line && (line = strtok_r(line, "\n", &rest)); line = rest)
        for (int i = 0; i < MEG_LOCK_NKEYS; i++) {
            const size_t nkey = strlen(keys[i]);

            if (strncmp(line, keys[i], nkey) == 0 && line[nkey] == ' ')
                snprintf(h->value[i], sizeof *h->value, "%s", line + nkey + 1);
        }
    meg_str_free(&text);
    return r != MEG_ENOENT;
}

static bool same_key(const struct meg_lock_holder *a, const struct meg_lock_holder *b, int key)
{
    return *a->value[key] && strcmp(a->value[key], b->value[key]) == 0;
}

/*
 * Return whether this process can find the holder in /proc while the holder is alive, that is, whether both have the
 * same host, boot and MEG_LOCK_PID namespace.
 */
static bool is_visible(const struct meg_lock_holder *h, const struct meg_lock_holder *self)
{
    return same_key(h, self, MEG_LOCK_HOST) && same_key(h, self, MEG_LOCK_BOOT) &&
           same_key(h, self, MEG_LOCK_PID_NAMESPACE);
}

/*
 * Return whether the process with the id of the holder has ended, or is a later process with the same id, if ids are
 * those of this process's namespace.
 */
static bool has_ended(const struct meg_lock_holder *h)
{
    char ticks[128];
    int64_t pid;

    if (!meg_parse_i64(h->value[MEG_LOCK_PID], &pid) || pid <= 0)
        return false;
    if (kill((pid_t)pid, 0) < 0 && errno == ESRCH)
        return true;
    return *h->value[MEG_LOCK_START_TICKS] && start_ticks(ticks, h->value[MEG_LOCK_PID]) &&
           strcmp(ticks, h->value[MEG_LOCK_START_TICKS]) != 0;
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
static bool is_from_earlier_boot(const struct meg_lock_holder *h, const struct meg_lock_holder *self, const char *path)
{
    return *h->value[MEG_LOCK_BOOT] && *self->value[MEG_LOCK_BOOT] && !same_key(h, self, MEG_LOCK_BOOT) &&
           is_on_local_disk(path) && has_ended(h);
}

static int64_t restart_count(const struct meg_lock_holder *h)
{
    int64_t n;

    return meg_parse_i64(h->value[MEG_LOCK_SLURM_RESTART], &n) ? n : 0;
}

bool meg_lock_holder_is_dead(const struct meg_lock_holder *h, const struct meg_lock_holder *self, const char *path)
{
    if (same_key(h, self, MEG_LOCK_SLURM_JOB) && restart_count(h) < restart_count(self))
        return true; /* Slurm requeues a job after all of its processes have ended */
    return is_visible(h, self) ? has_ended(h) : is_from_earlier_boot(h, self, path);
}

int meg_lock_holder_fail(const char *path, const char *output, const struct meg_lock_holder *h,
                         const struct meg_lock_holder *self, struct meg_err *e)
{
    const bool is_running = is_visible(h, self);

    if (!*h->value[MEG_LOCK_PID])
        return meg_fail(
            e, MEG_EIO,
            "%s: the lock file %s is empty or unreadable, or was not written by meg; remove it if no process is "
            "writing to this output",
            output, path);
    return meg_fail(e, MEG_EIO,
                    "%s: %s on host %s, process %s, started %s, is writing to this output; wait until that process "
                    "ends, or choose a different output%s%s%s",
                    output, h->value[MEG_LOCK_PROGRAM], h->value[MEG_LOCK_HOST], h->value[MEG_LOCK_PID],
                    h->value[MEG_LOCK_STARTED], is_running ? "" : " (if that process is dead, remove ",
                    is_running ? "" : path, is_running ? "" : ")");
}
