#include "train/rank_config_check.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/hash.h"
#include "file/file.h"

enum { WHOLE = 16 << 20, PLACES = 256, PIECE = 4096 };

/* ---- which ranks differ ---- */

static bool all_same(struct meg_comm *world, int64_t hash)
{
    int64_t both[2] = { hash, ~hash };

    meg_all_reduce(world, both, 2, MEG_DTYPE_I64, MEG_REDUCE_MAX);
    return both[0] == ~both[1];
}

static int by_value(const void *x, const void *y)
{
    const int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;

    return (a > b) - (a < b);
}

int64_t meg_majority_value(const int64_t *v, int n)
{
    int64_t *sorted = meg_new((size_t)n * sizeof *sorted), best = v[0];
    int most = 0;

    memcpy(sorted, v, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    for (int i = 0, end; i < n; i = end) {
        end = i + 1;
        while (end < n && sorted[end] == sorted[i])
            end++;
        if (end - i > most || (end - i == most && sorted[i] == v[0])) {
            most = end - i;
            best = sorted[i];
        }
    }
    free(sorted);
    return best;
}

/* The text of rank root on all ranks. */
static char *text_of(struct meg_comm *world, const char *mine, int root)
{
    int32_t n = (int32_t)strlen(mine);
    char *text;

    meg_broadcast(world, &n, 1, MEG_DTYPE_I32, root);
    text = meg_new(((size_t)n / 4 + 1) * 4);
    if (world->rank == root)
        memcpy(text, mine, (size_t)n);
    meg_broadcast(world, text, n / 4 + 1, MEG_DTYPE_I32, root);
    return text;
}

/* ---- what differs ---- */

static size_t line_length(const char *line)
{
    return strcspn(line, "\n");
}

/* The line of text that begins with the n letters of name, or is all of them; NULL: none. */
static const char *find(const char *text, const char *name, size_t n)
{
    for (const char *line = text; *line; line += line_length(line) + (line[line_length(line)] == '\n'))
        if (!strncmp(line, name, n) && (line[n] == '\n' || line[n] == '\0' || line[n - 1] == '='))
            return line;
    return NULL;
}

static size_t name_length(const char *line)
{
    const char *equals = strstr(line, " =");

    return equals && equals < line + line_length(line) ? (size_t)(equals - line) + 2 : line_length(line);
}

/* The first line of a that b has not. */
static const char *first_other(const char *a, const char *b)
{
    for (const char *line = a; *line; line += line_length(line) + (line[line_length(line)] == '\n')) {
        const char *there = find(b, line, name_length(line));

        if (!there || line_length(there) != line_length(line) || strncmp(there, line, line_length(line)))
            return line;
    }
    return NULL;
}

static void append_line(struct meg_str *s, const char *line, const char *where)
{
    if (line)
        meg_str_printf(s, "%.*s %s", (int)line_length(line), line, where);
    else
        meg_str_printf(s, "nothing %s", where);
}

static void append_difference(struct meg_str *s, const char *mine, const char *theirs)
{
    const char *here = first_other(mine, theirs),
               *there = here ? find(theirs, here, name_length(here)) : first_other(theirs, mine);

    append_line(s, here, "here, ");
    append_line(s, there, "there");
}

int meg_rank_config_check(struct meg_comm *world, const char *lines, int code, const char *rule, struct meg_err *e)
{
    const int64_t mine = (int64_t)meg_xxh3_64(lines, strlen(lines));
    struct meg_str what = { 0 };
    char host[64] = "?", more[40] = "";
    int64_t *hash, right;
    char *theirs;
    int root = 0, first = -1, differing = 0;

    if (all_same(world, mine))
        return 0;
    hash = meg_new((size_t)world->size * sizeof *hash);
    meg_comm_wait(world, world->op->all_gather(world, hash, &mine, 1, MEG_DTYPE_I64));
    right = meg_majority_value(hash, world->size);
    while (hash[root] != right)
        root++;
    for (int i = world->size - 1; i >= 0; i--)
        if (hash[i] != right) {
            first = i;
            differing++;
        }
    theirs = text_of(world, lines, root);
    if (world->rank != first)
        meg_barrier(world); /* until the first one's meg_die */
    gethostname(host, sizeof host - 1);
    if (differing > 1)
        snprintf(more, sizeof more, ", as do %d others", differing - 1);
    append_difference(&what, lines, theirs);
    meg_fail(e, code, "rank %d of %d on %s differs from rank %d%s: %s; %s", first, world->size, host, root, more,
             what.s, rule);
    meg_str_free(&what);
    free(theirs);
    free(hash);
    return code;
}

/* ---- what is compared ---- */

void meg_rank_config_add_file(struct meg_str *lines, const char *path)
{
    unsigned char *sample;
    char hex[33];
    struct meg_mmap m = { 0 };
    size_t n;

    if (meg_mmap_open(&m, path, NULL) < 0) {
        meg_str_printf(lines, "%s = missing\n", path);
        return;
    }
    if (m.n <= WHOLE) {
        meg_xxh3_128_hex(hex, m.p, m.n);
    } else {
        sample = meg_new((size_t)PLACES * PIECE);
        for (n = 0; n < PLACES; n++)
            memcpy(sample + n * PIECE, m.p + (m.n - PIECE) / (PLACES - 1) * n, PIECE);
        meg_xxh3_128_hex(hex, sample, (size_t)PLACES * PIECE);
        free(sample);
    }
    meg_str_printf(lines, "%s = %zu bytes, XXH3 %s\n", path, m.n, hex);
    meg_mmap_close(&m);
}

/* Options that may differ: each rank may keep its own cache, and rank 0 alone writes the others. */
static bool is_own(const char *line, size_t n)
{
    static const char *const own[] = { "data-cache-path", "log-json", "tensorboard-dir" };

    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strlen(own[i]) == n && !strncmp(line, own[i], n))
            return true;
    return *line == '#';
}

int meg_rank_config_check_options(struct meg_comm *world, const struct meg_optgroup *groups, struct meg_err *e)
{
    struct meg_str program = { 0 }, dump = { 0 }, options = { 0 };
    int r;

    if (world->size == 1)
        return 0;
    meg_rank_config_add_file(&program, "/proc/self/exe");
    if ((r = meg_rank_config_check(world, program.s, MEG_EUSAGE, "all ranks run the same build", e)) < 0)
        goto out;
    meg_opt_dump(groups, &dump);
    for (const char *line = dump.s; *line; line += line_length(line) + 1)
        if (!is_own(line, strcspn(line, " ")))
            meg_str_printf(&options, "--%.*s\n", (int)line_length(line), line);
    r = meg_rank_config_check(world, options.s, MEG_EUSAGE, "all ranks take the same options", e);
out:
    meg_str_free(&program);
    meg_str_free(&dump);
    meg_str_free(&options);
    return r;
}
