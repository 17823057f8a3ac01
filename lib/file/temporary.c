/* temporary.c - names of files and directories that are being written. */
#include "file/temporary.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "file/file.h"

/* ---- names ---- */

static bool is_host_char(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("-._", c));
}

void meg_host_name(char *out, size_t size)
{
    if (gethostname(out, size) < 0)
        snprintf(out, size, "localhost");
    out[size - 1] = 0;
    for (char *c = out; *c; c++)
        if (!is_host_char(*c))
            *c = '_';
}

char *meg_temporary_name(const char *path, int i)
{
    struct meg_str name = { 0 };
    char host[64];

    meg_host_name(host, sizeof host);
    meg_str_printf(&name, "%s.tmp.%ld.%s", path, (long)getpid(), host);
    if (i > 0)
        meg_str_printf(&name, ".%d", i);
    return name.s;
}

int meg_temporary_dir(char **out, const char *path, struct meg_err *e)
{
    int i = 0, r;

    *out = NULL;
    do {
        free(*out);
        *out = meg_temporary_name(path, i++);
    } while ((r = mkdir(*out, 0777)) < 0 && errno == EEXIST);
    if (r == 0)
        return 0;
    r = meg_fail(e, MEG_EIO, "%s: cannot create this directory: %s", *out, strerror(errno));
    free(*out);
    *out = NULL;
    return r;
}

/*
 * Return the host name and the rest of a temporary name for base, and set *pid; return NULL for any other name.
 */
static const char *parse_name(const char *name, const char *base, long *pid)
{
    const size_t nbase = strlen(base);
    const char *p = name + nbase;
    char *end;

    if (strncmp(name, base, nbase) != 0 || strncmp(p, ".tmp.", 5) != 0 || !isdigit((unsigned char)p[5]))
        return NULL;
    errno = 0;
    *pid = strtol(p + 5, &end, 10);
    return errno || *pid <= 0 || *end != '.' ? NULL : end + 1;
}

bool meg_temporary_is_name(const char *name, const char *base)
{
    long pid;
    const char *host = parse_name(name, base, &pid);

    for (; host && *host; host++)
        if (!is_host_char(*host))
            return false;
    return host && *base;
}

/*
 * Return whether a dead process on this host created name, a temporary name for base or for its journal, or a backup of
 * base.
 */
static bool is_stale_name(const char *name, const char *base, const char *host)
{
    const size_t nhost = strlen(host);
    struct meg_str journal = { 0 };
    const char *end;
    long pid;

    meg_str_printf(&journal, "%s" MEG_COMMIT_JOURNAL, base);
    if (!(end = parse_name(name, base, &pid)))
        end = parse_name(name, journal.s, &pid);
    meg_str_free(&journal);
    if (!end || strncmp(end, host, nhost) != 0)
        return false;
    end += nhost;
    if (*end == '.' && isdigit((unsigned char)end[1]))
        end += 1 + strspn(end + 1, "0123456789");
    if (strcmp(end, MEG_TEMPORARY_BACKUP) == 0)
        end += strlen(MEG_TEMPORARY_BACKUP);
    return !*end && kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

void meg_temporary_remove_stale(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    struct meg_str dir = { 0 };
    char host[64];
    struct dirent *f;
    DIR *d;

    meg_str_add(&dir, path, (size_t)(base - path));
    d = opendir(dir.n ? dir.s : ".");
    meg_host_name(host, sizeof host);
    while (d && (f = readdir(d)))
        if (is_stale_name(f->d_name, base, host)) {
            struct meg_str stale = { 0 };

            meg_str_printf(&stale, "%s%s", dir.n ? dir.s : "", f->d_name);
            meg_remove_tree(stale.s, NULL);
            meg_str_free(&stale);
        }
    if (d)
        closedir(d);
    meg_str_free(&dir);
}

/* ---- removal by a signal ---- */

static struct {
    atomic_bool is_used, is_ready; /* is_used: the slot is allocated; is_ready: path is complete */
    char path[4096];
} registered[32];

void meg_temporary_unlink_all(void)
{
    for (size_t i = 0; i < sizeof registered / sizeof *registered; i++)
        if (registered[i].is_ready)
            unlink(registered[i].path);
}

void meg_temporary_exit(int status)
{
    meg_temporary_unlink_all();
    _exit(status);
}

static void unlink_on_signal(int sig)
{
    meg_temporary_unlink_all();
    raise(sig); /* SA_RESETHAND has restored the default action, which ends the process after this handler */
}

static void catch_signals(void)
{
    static const int signals[] = { SIGHUP, SIGINT, SIGTERM };
    struct sigaction current, ours = { .sa_handler = unlink_on_signal, .sa_flags = (int)SA_RESETHAND };
    static atomic_flag is_done = ATOMIC_FLAG_INIT;

    if (atomic_flag_test_and_set(&is_done))
        return;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &current) == 0 && current.sa_handler == SIG_DFL)
            sigaction(signals[i], &ours, NULL);
}

int meg_temporary_register(const char *path)
{
    const int nslots = (int)(sizeof registered / sizeof *registered);

    catch_signals();
    for (int i = 0; i < nslots && strlen(path) < sizeof registered->path; i++)
        if (!atomic_exchange(&registered[i].is_used, true)) {
            strcpy(registered[i].path, path);
            registered[i].is_ready = true;
            return i + 1;
        }
    return 0;
}

void meg_temporary_unregister(int slot)
{
    if (!slot)
        return;
    registered[slot - 1].is_ready = false;
    registered[slot - 1].is_used = false;
}
