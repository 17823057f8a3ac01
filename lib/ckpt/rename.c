/* rename.c - convert tensor names with the rename table of a format. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/internal.h"

/* Match name against pattern, in which # matches a number; copy the number to digits. */
static bool match(const char *pattern, const char *name, char digits[12])
{
    const char *hash = strchr(pattern, '#');
    size_t before = hash ? (size_t)(hash - pattern) : strlen(pattern), n;

    if (!hash)
        return strcmp(pattern, name) == 0;
    if (strncmp(pattern, name, before) != 0)
        return false;
    n = strspn(name + before, "0123456789");
    if (n < 1 || n > 11 || strcmp(hash + 1, name + before + n) != 0)
        return false;
    memcpy(digits, name + before, n);
    digits[n] = 0;
    return true;
}

bool ckpt_foreign_name(const struct ckpt_format *f, const struct ckpt_rename *row, const char *native,
                       int64_t num_layers, bool drop_prefix, char buf[CKPT_NAME_CHARS])
{
    const char *foreign = row->foreign, *hash = strchr(foreign, '#');
    const bool is_before = hash && strncmp(hash, "#-1", 3) == 0;
    int64_t layer = num_layers;
    char digits[12];

    if (!match(row->native, native, digits))
        return false;
    if (strchr(row->native, '#'))
        layer = strtoll(digits, NULL, 10);
    layer -= is_before;
    if (layer < 0)
        return false;
    if (drop_prefix && f->prefix && strncmp(foreign, f->prefix, strlen(f->prefix)) == 0)
        foreign += strlen(f->prefix);
    if (hash)
        snprintf(buf, CKPT_NAME_CHARS, "%.*s%" PRId64 "%s", (int)(hash - foreign), foreign, layer,
                 hash + (is_before ? 3 : 1));
    else
        snprintf(buf, CKPT_NAME_CHARS, "%s", foreign);
    return true;
}

/* Match `foreign` against a pattern with or without the prefix of the format. */
static bool is_match(const struct ckpt_format *f, const char *pattern, const char *foreign)
{
    const size_t n = f->prefix ? strlen(f->prefix) : 0;
    char digits[12];

    return match(pattern, foreign, digits) ||
           (n && strncmp(pattern, f->prefix, n) == 0 && match(pattern + n, foreign, digits));
}

bool ckpt_is_ignored(const struct ckpt_format *f, const char *foreign)
{
    for (const char *const *p = f->ignored; p && *p; p++)
        if (is_match(f, *p, foreign))
            return true;
    return false;
}

const char *ckpt_copied_name(const struct ckpt_format *f, const char *foreign)
{
    for (const struct ckpt_rename *row = f->copies; row && row->native; row++)
        if (is_match(f, row->foreign, foreign))
            return row->native;
    return NULL;
}
