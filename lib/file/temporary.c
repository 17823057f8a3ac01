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

void meg_host_name(char *out, size_t size)
{
    if (gethostname(out, size) < 0)
        snprintf(out, size, "localhost");
    out[size - 1] = 0;
    for (char *c = out; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("-._", *c))
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
        return MEG_OK;
    r = meg_fail(e, MEG_EIO, "%s: making the directory: %s", *out, strerror(errno));
    free(*out);
    *out = NULL;
    return r;
}

/* Whether name is that of a temporary file for base, made on this host by a process that is gone. */
static bool is_stale_name(const char *name, const char *base, const char *host)
{
    const size_t nbase = strlen(base), nhost = strlen(host);
    const char *at = name + nbase;
    char *end;
    long pid;

    if (strncmp(name, base, nbase))
        return false;
    if (!strncmp(at, MEG_COMMIT_JOURNAL, strlen(MEG_COMMIT_JOURNAL)))
        at += strlen(MEG_COMMIT_JOURNAL);
    if (strncmp(at, ".tmp.", 5) || !isdigit((unsigned char)at[5]))
        return false;
    errno = 0;
    pid = strtol(at + 5, &end, 10);
    if (errno || pid <= 0 || *end != '.' || strncmp(end + 1, host, nhost))
        return false;
    end += 1 + nhost;
    if (*end == '.' && isdigit((unsigned char)end[1]))
        end += 1 + strspn(end + 1, "0123456789");
    if (!strcmp(end, MEG_TEMPORARY_BACKUP))
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
            struct meg_str left = { 0 };

            meg_str_printf(&left, "%s%s", dir.n ? dir.s : "", f->d_name);
            meg_remove_tree(left.s, NULL);
            meg_str_free(&left);
        }
    if (d)
        closedir(d);
    meg_str_free(&dir);
}

/* ---- removal by a signal ---- */

static struct {
    atomic_bool is_taken, is_there;
    char path[4096];
} made[32];

void meg_temporary_unlink_all(void)
{
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (made[i].is_there)
            unlink(made[i].path);
}

void meg_temporary_exit(int status)
{
    meg_temporary_unlink_all();
    _exit(status);
}

static void unlink_on_signal(int sig)
{
    meg_temporary_unlink_all();
    raise(sig); /* by now what it does by default, once this handler has returned */
}

static void catch_signals(void)
{
    static const int signals[] = { SIGHUP, SIGINT, SIGTERM };
    struct sigaction now, ours = { .sa_handler = unlink_on_signal, .sa_flags = (int)SA_RESETHAND };
    static atomic_flag is_done = ATOMIC_FLAG_INIT;

    if (atomic_flag_test_and_set(&is_done))
        return;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            sigaction(signals[i], &ours, NULL);
}

int meg_temporary_register(const char *path)
{
    const int places = (int)(sizeof made / sizeof *made);

    catch_signals();
    for (int i = 0; i < places && strlen(path) < sizeof made->path; i++)
        if (!atomic_exchange(&made[i].is_taken, true)) {
            strcpy(made[i].path, path);
            made[i].is_there = true;
            return i + 1;
        }
    return 0;
}

void meg_temporary_unregister(int place)
{
    if (!place)
        return;
    made[place - 1].is_there = false;
    made[place - 1].is_taken = false;
}
