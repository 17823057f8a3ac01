/* block_reader.c - read files, shell patterns and standard input as blocks of complete lines. */
#define _GNU_SOURCE /* memrchr */
#include "io/block_reader.h"
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "foreign/foreign.h"
#include "io/decompress.h"

struct meg_block_reader {
    char **path;
    int64_t npaths;
    int64_t file_index; /* index of the current file in path */
    int fd;             /* descriptor of the current file; -1 between files */
    struct meg_decompressor *file;
    int64_t first_line_in_file, first_line; /* line numbers of the next block, as in struct meg_line_block */
    struct meg_str partial_line;            /* bytes after the last complete line; they begin the next block */
};

static void add_path(struct meg_block_reader *in, const char *path)
{
    in->path = meg_realloc_array(in->path, (size_t)in->npaths + 1, sizeof *in->path);
    in->path[in->npaths++] = meg_strdup(path);
}

static int compare_bytewise(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_pattern(struct meg_block_reader *in, const char *pattern, struct meg_err *e)
{
    struct stat st;
    glob_t found;

    if (strcmp(pattern, "-") == 0 || stat(pattern, &st) == 0) {
        add_path(in, pattern);
        return 0;
    }
    if (!strpbrk(pattern, "*?["))
        return meg_fail_errno(e, "%s", pattern);
    switch (glob(pattern, GLOB_NOSORT, NULL, &found)) {
    case 0:
        qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, compare_bytewise);
        for (size_t i = 0; i < found.gl_pathc; i++)
            add_path(in, found.gl_pathv[i]);
        globfree(&found);
        return 0;
    case GLOB_NOMATCH: return meg_fail(e, MEG_ENOENT, "%s: no file matches this pattern", pattern);
    default: return meg_fail_errno(e, "%s", pattern);
    }
}

int meg_block_reader_open(struct meg_block_reader **out, const char *const *patterns, int n, struct meg_err *e)
{
    struct meg_block_reader *in = meg_new(sizeof *in);

    in->fd = -1;
    in->first_line_in_file = 1;
    for (int i = 0; i < n; i++) {
        int r = add_pattern(in, patterns[i], e);

        if (r < 0) {
            meg_block_reader_close(in);
            return r;
        }
    }
    *out = in;
    return 0;
}

int64_t meg_block_reader_files(const struct meg_block_reader *in, const char *const **paths)
{
    *paths = (const char *const *)in->path;
    return in->npaths;
}

static const char *name_of(const struct meg_block_reader *in)
{
    return strcmp(in->path[in->file_index], "-") == 0 ? "standard input" : in->path[in->file_index];
}

static void close_file(struct meg_block_reader *in)
{
    meg_decompressor_close(in->file);
    in->file = NULL;
    if (in->fd > STDIN_FILENO)
        close(in->fd);
    in->fd = -1;
}

static int open_file(struct meg_block_reader *in, struct meg_err *e)
{
    const char *path = in->path[in->file_index];
    struct stat st;
    int r;

    in->fd = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0)
        return meg_fail_errno(e, "%s", path);
    if (fstat(in->fd, &st) == 0 && (r = meg_foreign_check_mode(name_of(in), st.st_mode, true, e)) < 0)
        return r;
    return meg_decompressor_open(&in->file, in->fd, name_of(in), e);
}

static void reserve(struct meg_line_block *b, int64_t cap)
{
    if (cap <= b->cap)
        return;
    b->s = meg_realloc_array(b->s, (size_t)cap, 1);
    b->cap = cap;
}

/* Return the number of bytes in s [n] up to and including the last \n, or 0 if there is none. */
static int64_t complete_lines(const char *s, int64_t n)
{
    const char *nl = memrchr(s, '\n', (size_t)n);

    return nl ? nl + 1 - s : 0;
}

/* Fail with MEG_EFORMAT because line `index` of the next block, counted from 0, is too long. */
static int fail_long_line(const struct meg_block_reader *in, int64_t index, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT, "%s: line %" PRId64 ": the line is longer than %d MiB; split the line", name_of(in),
                    (in->first_line_in_file + index), MEG_MAX_LINE_BYTES >> 20);
}

/*
 * Fill b with complete lines.  Returns 1 if the file may have more lines, 0 if b ends at the end of the file, or an
 * error code.
 */
static int read_lines(struct meg_block_reader *in, struct meg_line_block *b, int64_t target_bytes, struct meg_err *e)
{
    int64_t complete = 0;

    reserve(b, target_bytes + (int64_t)in->partial_line.n);
    memcpy(b->s, in->partial_line.s ? in->partial_line.s : "", in->partial_line.n);
    b->n = (int64_t)in->partial_line.n;
    in->partial_line.n = 0;
    while (complete == 0 || b->n < target_bytes) {
        int64_t got;

        if (complete == 0 && b->n > MEG_MAX_LINE_BYTES && (complete = complete_lines(b->s, b->n)) == 0)
            return fail_long_line(in, 0, e);
        if (b->n == b->cap)
            reserve(b, 2 * b->cap);
        if ((got = meg_decompressor_read(in->file, b->s + b->n, b->cap - b->n, e)) < 0)
            return (int)got;
        if (got == 0)
            return 0;
        if (b->n + got >= target_bytes || complete > 0) {
            int64_t more = complete_lines(b->s + b->n, got);

            complete = more > 0 ? b->n + more : complete;
        }
        b->n += got;
    }
    meg_str_add(&in->partial_line, b->s + complete, (size_t)(b->n - complete));
    b->n = complete;
    return 1;
}

int meg_block_reader_next(struct meg_block_reader *in, struct meg_line_block *b, int64_t target_bytes,
                          struct meg_err *e)
{
    int64_t offset = 0, n;
    const char *line;
    int r;

    if (in->file_index == in->npaths)
        return 0;
    if (!in->file && (r = open_file(in, e)) < 0)
        return r;
    if ((r = read_lines(in, b, target_bytes, e)) < 0)
        return r;
    b->name = name_of(in);
    b->first_line_in_file = in->first_line_in_file;
    b->first_line = in->first_line;
    for (b->nlines = 0; meg_line_block_next(b, &offset, &line, &n); b->nlines++)
        if (n > MEG_MAX_LINE_BYTES)
            return fail_long_line(in, b->nlines, e);
    in->first_line_in_file += b->nlines;
    in->first_line += b->nlines;
    if (r == 0) {
        close_file(in);
        in->file_index++;
        in->first_line_in_file = 1;
    }
    return 1;
}

int64_t meg_block_reader_lines(const struct meg_block_reader *in)
{
    return in->first_line;
}

/*
 * Return the first \n or \r in s [n], or NULL.  The search proceeds in chunks of growing size.  With a single
 * chunk, each search for \n would scan the entire block if all lines end with \r.
 */
static const char *line_end(const char *s, int64_t n)
{
    for (int64_t part = 256, k; n > 0; s += k, n -= k, part *= 2) {
        const char *nl, *cr;

        k = n < part ? n : part;
        nl = memchr(s, '\n', (size_t)k);
        cr = memchr(s, '\r', (size_t)(nl ? nl - s : k));
        if (cr || nl)
            return cr ? cr : nl;
    }
    return NULL;
}

bool meg_line_block_next(const struct meg_line_block *b, int64_t *offset, const char **line, int64_t *n)
{
    const char *s = b->s + *offset, *end = line_end(s, b->n - *offset);
    int64_t left = b->n - *offset;

    if (left == 0)
        return false;
    *line = s;
    *n = end ? end - s : left;
    *offset += *n;
    if (end)
        *offset += *end == '\r' && *n + 1 < left && end[1] == '\n' ? 2 : 1;
    return true;
}

int meg_line_block_explain(int r, const struct meg_line_block *b, struct meg_err *e)
{
    return b->first_line_in_file > 1 ? r
                                     : meg_foreign_explain(r, b->name, b->s, (size_t)b->n, MEG_EXPECT_JSON_LINES, e);
}

bool meg_line_is_blank(const char *line, int64_t n)
{
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t'))
        n--;
    return n == 0;
}

void meg_block_reader_close(struct meg_block_reader *in)
{
    if (!in)
        return;
    close_file(in);
    for (int64_t i = 0; i < in->npaths; i++)
        free(in->path[i]);
    free(in->path);
    meg_str_free(&in->partial_line);
    free(in);
}
