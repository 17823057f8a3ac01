/* rank_config_check.c - check that all ranks run the same program with the same options on the same files. */
#include "train/rank_config_check.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/hash.h"
#include "file/file.h"

enum { FULL_HASH_NBYTES = 16 << 20, SAMPLES = 256, SAMPLE_NBYTES = 4096 };

/* ---- the ranks that differ ---- */

static bool is_equal_on_all(struct meg_comm *world, int64_t hash)
{
    int64_t both[2] = { hash, ~hash };

    meg_host_all_reduce(world, both, 2, MEG_DTYPE_I64, MEG_REDUCE_MAX);
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

/* ---- the line that differs ---- */

static size_t line_length(const char *line)
{
    return strcspn(line, "\n");
}

/*
 * Return the line of text that begins with name [n], or NULL.  Unless name ends with "=", the complete line must be
 * equal to name.
 */
static const char *find_line(const char *text, const char *name, size_t n)
{
    for (const char *line = text; *line; line += line_length(line) + (line[line_length(line)] == '\n'))
        if (strncmp(line, name, n) == 0 && (line[n] == '\n' || line[n] == '\0' || line[n - 1] == '='))
            return line;
    return NULL;
}

static size_t name_length(const char *line)
{
    const char *equals = strstr(line, " =");

    return equals && equals < line + line_length(line) ? (size_t)(equals - line) + 2 : line_length(line);
}

/* Return the first line of a that is not in b, or NULL. */
static const char *first_difference(const char *a, const char *b)
{
    for (const char *line = a; *line; line += line_length(line) + (line[line_length(line)] == '\n')) {
        const char *other = find_line(b, line, name_length(line));

        if (!other || line_length(other) != line_length(line) || strncmp(other, line, line_length(line)) != 0)
            return line;
    }
    return NULL;
}

static void append_line(struct meg_str *s, const char *line, int rank)
{
    if (line)
        meg_str_printf(s, "%.*s on rank %d", (int)line_length(line), line, rank);
    else
        meg_str_printf(s, "nothing on rank %d", rank);
}

static void append_difference(struct meg_str *s, const char *own, int own_rank, const char *expected, int expected_rank)
{
    const char *own_line = first_difference(own, expected);
    const char *expected_line =
        own_line ? find_line(expected, own_line, name_length(own_line)) : first_difference(expected, own);

    append_line(s, own_line, own_rank);
    meg_str_printf(s, ", ");
    append_line(s, expected_line, expected_rank);
}

int meg_rank_config_check(struct meg_comm *world, const char *lines, int code, const char *rule, struct meg_err *e)
{
    const int64_t mine = (int64_t)meg_xxh3_64(lines, strlen(lines));
    struct meg_str expected = { 0 }, difference = { 0 };
    char host[64] = "?", others[40] = "";
    int64_t *hash, majority;
    int root = 0, first = -1, differing = 0;

    if (is_equal_on_all(world, mine))
        return 0;
    hash = meg_new((size_t)world->size * sizeof *hash);
    meg_host_all_gather(world, hash, &mine, 1, MEG_DTYPE_I64);
    majority = meg_majority_value(hash, world->size);
    while (hash[root] != majority)
        root++;
    for (int i = world->size - 1; i >= 0; i--)
        if (hash[i] != majority) {
            first = i;
            differing++;
        }
    if (world->rank == root)
        meg_str_add(&expected, lines, strlen(lines));
    meg_host_broadcast_str(world, &expected, root);
    if (world->rank != first)
        meg_host_barrier(world); /* blocks until the meg_die of the first rank that differs ends this process */
    gethostname(host, sizeof host - 1);
    if (differing > 1)
        snprintf(others, sizeof others, ", as do %d others", differing - 1);
    append_difference(&difference, lines, world->rank, expected.s, root);
    meg_fail(e, code, "rank %d of %d on %s differs from rank %d%s: %s; %s", first, world->size, host, root, others,
             difference.s, rule);
    meg_str_free(&difference);
    meg_str_free(&expected);
    free(hash);
    return code;
}

/* ---- files and options ---- */

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
    if (m.n <= FULL_HASH_NBYTES) {
        meg_xxh3_128_hex(hex, m.p, m.n);
    } else {
        sample = meg_new((size_t)SAMPLES * SAMPLE_NBYTES);
        for (n = 0; n < SAMPLES; n++)
            memcpy(sample + n * SAMPLE_NBYTES, m.p + (m.n - SAMPLE_NBYTES) / (SAMPLES - 1) * n, SAMPLE_NBYTES);
        meg_xxh3_128_hex(hex, sample, (size_t)SAMPLES * SAMPLE_NBYTES);
        free(sample);
    }
    meg_str_printf(lines, "%s = %zu bytes, XXH3 %s\n", path, m.n, hex);
    meg_mmap_close(&m);
}

/*
 * Return whether a line of an option dump may differ between ranks.  The option name has n bytes.  These lines may
 * differ: comments, the cache directory (it may be local to a host), and logs (only rank 0 writes logs).
 */
static bool may_differ(const char *line, size_t n)
{
    static const char *const names[] = { "data-cache-path", "log-json", "tensorboard-dir" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && strncmp(line, names[i], n) == 0)
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
    if ((r = meg_rank_config_check(world, program.s, MEG_EUSAGE, "all ranks must run the same build", e)) < 0)
        goto out;
    meg_opt_dump(groups, &dump);
    for (const char *line = dump.s; *line; line += line_length(line) + 1)
        if (!may_differ(line, strcspn(line, " ")))
            meg_str_printf(&options, "--%.*s\n", (int)line_length(line), line);
    r = meg_rank_config_check(world, options.s, MEG_EUSAGE, "all ranks must have the same options", e);
out:
    meg_str_free(&program);
    meg_str_free(&dump);
    meg_str_free(&options);
    return r;
}
