/* Other formats' names against ours, driven by a format's table. */
#include <stdio.h>
#include <string.h>

#include "ckpt/internal.h"

/* Whether name is pattern with a number in place of #; the number is left in digits. */
static bool match(const char *pattern, const char *name, char digits[12])
{
    const char *hash = strchr(pattern, '#');
    size_t before = hash ? (size_t)(hash - pattern) : strlen(pattern), n;

    if (!hash)
        return !strcmp(pattern, name);
    if (strncmp(pattern, name, before))
        return false;
    n = strspn(name + before, "0123456789");
    if (n < 1 || n > 11 || strcmp(hash + 1, name + before + n))
        return false;
    memcpy(digits, name + before, n);
    digits[n] = 0;
    return true;
}

bool ckpt_foreign_name(const struct ckpt_format *f, const struct ckpt_rename *row, const char *ours, bool drop_prefix,
                       char buf[CKPT_NAME_CHARS])
{
    const char *theirs = row->foreign, *hash = strchr(theirs, '#');
    char digits[12];

    if (!match(row->native, ours, digits))
        return false;
    if (drop_prefix && f->prefix && !strncmp(theirs, f->prefix, strlen(f->prefix)))
        theirs += strlen(f->prefix);
    if (hash)
        snprintf(buf, CKPT_NAME_CHARS, "%.*s%s%s", (int)(hash - theirs), theirs, digits, hash + 1);
    else
        snprintf(buf, CKPT_NAME_CHARS, "%s", theirs);
    return true;
}

bool ckpt_is_ignored(const struct ckpt_format *f, const char *theirs)
{
    const size_t n = f->prefix ? strlen(f->prefix) : 0;
    char digits[12];

    for (const char *const *p = f->ignored; p && *p; p++)
        if (match(*p, theirs, digits) || (n && !strncmp(*p, f->prefix, n) && match(*p + n, theirs, digits)))
            return true;
    return false;
}
