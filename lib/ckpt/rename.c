/* rename.c - convert tensor names with the rename table of a format. */
#include <stdio.h>
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

bool ckpt_foreign_name(const struct ckpt_format *f, const struct ckpt_rename *row, const char *native, bool drop_prefix,
                       char buf[CKPT_NAME_CHARS])
{
    const char *foreign = row->foreign, *hash = strchr(foreign, '#');
    char digits[12];

    if (!match(row->native, native, digits))
        return false;
    if (drop_prefix && f->prefix && strncmp(foreign, f->prefix, strlen(f->prefix)) == 0)
        foreign += strlen(f->prefix);
    if (hash)
        snprintf(buf, CKPT_NAME_CHARS, "%.*s%s%s", (int)(hash - foreign), foreign, digits, hash + 1);
    else
        snprintf(buf, CKPT_NAME_CHARS, "%s", foreign);
    return true;
}

bool ckpt_is_ignored(const struct ckpt_format *f, const char *foreign)
{
    const size_t n = f->prefix ? strlen(f->prefix) : 0;
    char digits[12];

    for (const char *const *p = f->ignored; p && *p; p++)
        if (match(*p, foreign, digits) || (n && strncmp(*p, f->prefix, n) == 0 && match(*p + n, foreign, digits)))
            return true;
    return false;
}
