/* text.c - recognise formats that consist of text: pointers, markup, JSON documents, UTF-16. */
#define _GNU_SOURCE /* memmem */
#include <ctype.h>
#include <string.h>
#include <strings.h>
#include "base/num.h"
#include "foreign/internal.h"

static bool begins_with(const struct foreign_prefix *f, size_t at, const char *text)
{
    const size_t n = strlen(text);

    return f->n >= at && f->n - at >= n && strncasecmp((const char *)f->p + at, text, n) == 0;
}

size_t foreign_skip_space(const struct foreign_prefix *f)
{
    size_t at = f->n >= 3 && memcmp(f->p, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;

    while (at < f->n && isspace(f->p[at]))
        at++;
    return at;
}

bool foreign_has_control(const struct foreign_prefix *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->p[i] < ' ' && !memchr("\a\b\t\n\v\f\r\033", f->p[i], 8))
            return true;
    return false;
}

/* ---- pointers to files ---- */

bool foreign_is_lfs_pointer(const struct foreign_prefix *f)
{
    return begins_with(f, 0, "version https://git-lfs.github.com/spec/") ||
           begins_with(f, 0, "version https://hawser.github.com/spec/");
}

int64_t foreign_lfs_size(const struct foreign_prefix *f)
{
    const char *line = memmem(f->p, f->n, "\nsize ", 6);
    char digits[24];
    size_t n = 0;
    int64_t size;

    if (!line)
        return -1;
    for (line += 6; n < sizeof digits - 1 && line + n < (const char *)f->p + f->n && isdigit((unsigned char)line[n]);)
        n++;
    memcpy(digits, line, n);
    digits[n] = 0;
    return meg_parse_i64(digits, &size) ? size : -1;
}

/* The content of an unlocked file of git-annex is "/annex/objects/KEY". */
bool foreign_is_annex_pointer(const struct foreign_prefix *f)
{
    return begins_with(f, 0, "/annex/objects/");
}

/* ---- markup ---- */

bool foreign_is_html(const struct foreign_prefix *f)
{
    const size_t at = foreign_skip_space(f);

    return begins_with(f, at, "<!doctype html") || begins_with(f, at, "<html") || begins_with(f, at, "<head") ||
           (begins_with(f, at, "<?xml") && memmem(f->p, f->n, "<html", 5));
}

bool foreign_is_xml(const struct foreign_prefix *f)
{
    const size_t at = foreign_skip_space(f);

    return begins_with(f, at, "<?xml") || begins_with(f, at, "<mediawiki");
}

/* The Hub answers a failed request with one line, which a program such as curl stores in the file. */
bool foreign_is_hub_error(const struct foreign_prefix *f)
{
    static const char *const answers[] = { "Entry not found", "Repository not found", "Invalid username or password",
                                           "Access to model ", "Invalid credentials in Authorization header" };

    for (size_t i = 0; f->n < 300 && i < sizeof answers / sizeof *answers; i++)
        if (begins_with(f, 0, answers[i]))
            return true;
    return false;
}

bool foreign_is_warc(const struct foreign_prefix *f)
{
    return begins_with(f, 0, "WARC/1.") || begins_with(f, 0, "WARC/0.");
}

/* ---- UTF-16 and UTF-32 ---- */

/*
 * Return whether the first four code units of `width` bytes are ASCII characters, not NUL, whose byte is at index `at`
 * of the unit.
 */
static bool has_ascii_units(const struct foreign_prefix *f, size_t width, size_t at)
{
    if (f->n < 4 * width)
        return false;
    for (size_t i = 0; i < 4 * width; i++)
        if (i % width == at ? f->p[i] == 0 || f->p[i] >= 128 : f->p[i] != 0)
            return false;
    return true;
}

bool foreign_is_utf32(const struct foreign_prefix *f)
{
    return (f->n >= 4 && (memcmp(f->p, "\xFF\xFE\0\0", 4) == 0 || memcmp(f->p, "\0\0\xFE\xFF", 4) == 0)) ||
           has_ascii_units(f, 4, 0) || has_ascii_units(f, 4, 3);
}

bool foreign_is_utf16(const struct foreign_prefix *f)
{
    return (f->n >= 2 && (memcmp(f->p, "\xFF\xFE", 2) == 0 || memcmp(f->p, "\xFE\xFF", 2) == 0)) ||
           has_ascii_units(f, 2, 0) || has_ascii_units(f, 2, 1);
}

/* ---- JSON that is not one object per line ---- */

/* An array begins with a bracket, followed by a value or the end of the array. */
bool foreign_is_json_array(const struct foreign_prefix *f)
{
    size_t at = foreign_skip_space(f);

    if (at == f->n || f->p[at] != '[')
        return false;
    for (at++; at < f->n && isspace(f->p[at]);)
        at++;
    return at == f->n || memchr("{[\"]-0123456789", f->p[at], 15) != NULL;
}

/*
 * Return whether the text is a JSON object over several lines: the first line ends inside the object, not inside a
 * string, and another line follows, which does not begin another object.
 */
bool foreign_is_json_document(const struct foreign_prefix *f)
{
    const unsigned char *end = f->p + f->n, *p = f->p + foreign_skip_space(f);
    bool in_string = false;
    int depth = 0, last = 0;

    if (p == end || *p != '{')
        return false;
    for (; p < end && (*p != '\n' || in_string); p++) {
        if (in_string && *p == '\\' && p + 1 < end)
            p++;
        else if (*p == '"')
            in_string = !in_string;
        else if (!in_string && (*p == '{' || *p == '['))
            depth++;
        else if (!in_string && (*p == '}' || *p == ']'))
            depth--;
        if (p < end && !isspace(*p))
            last = *p;
    }
    if (p >= end || depth <= 0)
        return false;
    while (p < end && isspace(*p))
        p++;
    return p < end && (*p != '{' || last == ':' || last == '[');
}
