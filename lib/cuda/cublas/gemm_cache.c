/* gemm_cache.c - the file of algorithms: find its path, read it at each look-up, and append lines to it. */
#include "cuda/cublas/gemm_cache.h"
#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "cuda/cublas/lib.h"
#include "cuda/internal.h"
#include "file/file.h"

/* Return the directory of the file, which the caller frees, or NULL if the environment defines none. */
static char *cache_dir(void)
{
    static const struct {
        const char *variable, *suffix;
    } dirs[] = { { "MEG_CACHE_DIR", "" }, { "XDG_CACHE_HOME", "/meg" }, { "HOME", "/.cache/meg" } };

    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        const char *value = getenv(dirs[i].variable);
        struct meg_str dir = { 0 };

        if (!value || !*value)
            continue;
        meg_str_printf(&dir, "%s%s", value, dirs[i].suffix);
        return dir.s;
    }
    return NULL;
}

/* Return the path of the file, which the caller frees, or NULL if there is no directory for it. */
static char *cache_path(void)
{
    char *dir = cache_dir();
    struct meg_str path = { 0 };
    size_t gpu;

    if (!dir)
        return NULL;
    meg_str_printf(&path, "%s/cublaslt-%zu-", dir, meg_cublaslt.version);
    gpu = path.n;
    meg_str_printf(&path, "%s.txt", meg_cuda_device.name);
    for (char *c = path.s + gpu; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '.')
            *c = '_';
    free(dir);
    return path.s;
}

/* Parse hexadecimal digits into 64-bit words.  Return false unless there are exactly n words. */
static bool parse_words(uint64_t *words, int n, const char *hex)
{
    for (int i = 0; i < n; i++, hex += 16) {
        char digits[17] = "";

        if (strspn(hex, "0123456789abcdef") < 16)
            return false;
        memcpy(digits, hex, 16);
        words[i] = strtoull(digits, NULL, 16);
    }
    return *hex == 0;
}

enum { WORDS = sizeof((cublasLtMatmulAlgo_t *)0)->data / sizeof(uint64_t) };

/* Split a line at its tabs, and parse it.  Return its key, or NULL if it is invalid. */
static const char *parse_line(struct meg_gemm_choice *out, char *line)
{
    char *epilogue = strchr(line, '\t'), *algo = epilogue ? strchr(epilogue + 1, '\t') : NULL;
    char *sum = algo ? strchr(algo + 1, '\t') : NULL;
    uint64_t stored;

    if (!sum || !parse_words(&stored, 1, sum + 1) || stored != meg_xxh3_64(line, (size_t)(sum - line)))
        return NULL;
    *epilogue = *algo = *sum = 0;
    out->epilogue = (cublasLtEpilogue_t)strtoul(epilogue + 1, NULL, 10);
    return parse_words(out->algo.data, WORDS, algo + 1) ? line : NULL;
}

/* Print a warning about an invalid line, once. */
static void warn_invalid(const char *path, int number)
{
    static bool is_warned;

    if (!is_warned)
        meg_warn("%s:%d: ignored invalid lines; matrix products are timed again if necessary; remove the file to "
                 "rewrite it",
                 path, number);
    is_warned = true;
}

/*
 * Set *out to the choice of the first valid line of text with this key, and return true.  Return false if there is
 * none.  text is modified, and *out is arbitrary on failure.
 */
static bool find_line(struct meg_gemm_choice *out, const char *path, char *text, const char *key)
{
    int number = 0;

    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        const char *found;

        *end = 0;
        number++;
        if (line == end)
            continue;
        found = parse_line(out, line);
        if (!found)
            warn_invalid(path, number);
        else if (!strcmp(found, key))
            return true;
    }
    return false;
}

bool meg_gemm_cache_find(struct meg_gemm_choice *out, const char *key)
{
    char *path = cache_path();
    struct meg_gemm_choice choice = { 0 };
    struct meg_str text = { 0 };
    bool is_found = false;

    if (path && access(path, R_OK) == 0 && meg_read_regular(path, &text, NULL) == 0)
        is_found = find_line(&choice, path, text.s, key);
    if (is_found)
        *out = choice;
    meg_str_free(&text);
    free(path);
    return is_found;
}

/* Append a line by one call of write, so that it does not mix with the lines of other processes. */
static int append(const char *path, const struct meg_str *line, struct meg_err *e)
{
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    ssize_t n;
    int r = 0;

    if (fd < 0)
        return meg_fail_errno(e, "%s", path);
    n = write(fd, line->s, line->n);
    if (n < 0)
        r = meg_fail_errno(e, "%s", path);
    else if ((size_t)n < line->n)
        r = meg_fail(e, MEG_EIO, "%s: no space is left", path);
    close(fd);
    return r;
}

void meg_gemm_cache_add(const char *key, const struct meg_gemm_choice *choice)
{
    static bool is_reported;
    char *path = cache_path();
    struct meg_str line = { 0 };
    struct meg_err e = { 0 };

    if (!path)
        return;
    /* The first newline ends a line that another process left incomplete.  Otherwise, it adds an empty line. */
    meg_str_printf(&line, "\n%s\t%u\t", key, (unsigned)choice->epilogue);
    for (int i = 0; i < WORDS; i++)
        meg_str_printf(&line, "%016" PRIx64, choice->algo.data[i]);
    meg_str_printf(&line, "\t%016" PRIx64 "\n", meg_xxh3_64(line.s + 1, line.n - 1));
    if ((meg_mkdirs_parent(path, &e) < 0 || append(path, &line, &e) < 0) && !is_reported) {
        is_reported = true;
        meg_info(
            "matrix products will be timed again in the next run, because the fastest algorithms cannot be stored: "
            "%s; set MEG_CACHE_DIR to a directory",
            e.msg);
    }
    meg_str_free(&line);
    free(path);
}
