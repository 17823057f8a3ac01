/* log.c - log messages and the progress line, on stderr. */
#include "base/log.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"

#define TTY_INTERVAL_S 0.1 /* minimum time between two drawings of a progress line */

static int level = MEG_LOG_INFO, rank;
static struct meg_progress *active_progress; /* the progress line that the terminal currently shows */

void meg_log_set_level(int l)
{
    level = l;
}

bool meg_log_is_on(int l)
{
    return l <= level;
}

void meg_log_set_rank(int r)
{
    rank = r;
}

int meg_log_rank(void)
{
    return rank;
}

void meg_log_rank0_first(void)
{
    if (rank != 0)
        sleep(3);
}

static bool is_filtered(int l)
{
    return l > level || (rank != 0 && l > MEG_LOG_WARN);
}

static void clear_progress(void)
{
    if (active_progress) {
        fputs("\r\033[K", stderr);
        active_progress->is_drawn = false;
        active_progress = NULL;
    }
}

void meg_log_sanitize(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        if ((*p < ' ' && *p != '\t') || *p == 0x7f)
            *p = '?';
        else if (*p == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0) /* U+0080 to U+009F in UTF-8 */
            p[0] = p[1] = '?';
}

void meg_log_lines(int l, const char *text)
{
    char line[4096];
    size_t n;

    if (is_filtered(l))
        return;
    if (rank)
        snprintf(line, sizeof line - 1, "%s[%d]: %s", meg_progname(), rank, text);
    else
        snprintf(line, sizeof line - 1, "%s: %s", meg_progname(), text);
    n = strlen(line);
    line[n++] = '\n';
    clear_progress();
    fwrite(line, 1, n, stderr);
}

static MEG_PRINTF(2, 0) void log_message(int l, const char *fmt, va_list ap)
{
    char text[4096];

    if (is_filtered(l))
        return;
    vsnprintf(text, sizeof text, fmt, ap);
    meg_log_sanitize(text);
    meg_log_lines(l, text);
}

#define LOG(l)                                                                                                         \
    do {                                                                                                               \
        va_list ap;                                                                                                    \
        va_start(ap, fmt);                                                                                             \
        log_message(l, fmt, ap);                                                                                       \
        va_end(ap);                                                                                                    \
    } while (0)

void meg_warn(const char *fmt, ...)
{
    LOG(MEG_LOG_WARN);
}

void meg_info(const char *fmt, ...)
{
    LOG(MEG_LOG_INFO);
}

void meg_debug(const char *fmt, ...)
{
    LOG(MEG_LOG_DEBUG);
}

void meg_progress_init(struct meg_progress *p, double interval_s)
{
    memset(p, 0, sizeof *p);
    p->interval_s = interval_s;
    p->is_tty = isatty(STDERR_FILENO);
    p->next_s = meg_now_s() + (p->is_tty ? 0 : interval_s);
}

/*
 * Return the maximum length of a progress line in bytes.  A longer line would wrap, and \r would then return only to
 * the beginning of its last row.
 */
static int columns(void)
{
    struct winsize w;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1 ? w.ws_col - 1 : 79;
}

void meg_progress_show(struct meg_progress *p, const char *fmt, ...)
{
    char line[512];
    double now = meg_now_s();
    va_list ap;

    if (now < p->next_s || is_filtered(MEG_LOG_INFO) || (!p->is_tty && p->interval_s <= 0))
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    meg_log_sanitize(line);
    if (!p->is_tty) {
        p->next_s = now + p->interval_s;
        meg_info("%s", line);
        return;
    }
    p->next_s = now + TTY_INTERVAL_S;
    fprintf(stderr, "\r\033[K%.*s", columns(), line);
    p->is_drawn = true;
    active_progress = p;
}

void meg_progress_end(struct meg_progress *p)
{
    if (p->is_drawn) {
        fputc('\n', stderr);
        p->is_drawn = false;
        active_progress = NULL;
    }
}
