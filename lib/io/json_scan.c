/* json_scan.c - a JSON scanner that works in place, without building a tree. */
#include "io/json_scan.h"
#include <inttypes.h>
#include <string.h>
#include "unicode/simd.h"
#include "unicode/utf8.h"

enum { MAX_DEPTH = 1000 };

int meg_json_scan_expected(const struct meg_json_scan *s, const char *what)
{
    const int64_t offset = s->p - s->begin + 1;
    unsigned char c;

    if (s->p == s->end)
        return meg_fail(s->e, MEG_EFORMAT, "%s %" PRId64 ": the text ends where %s is expected", s->offset_name, offset,
                        what);
    c = (unsigned char)*s->p;
    if (c > 0x20 && c < 0x7F)
        return meg_fail(s->e, MEG_EFORMAT, "%s %" PRId64 ": found '%c' where %s is expected", s->offset_name, offset, c,
                        what);
    return meg_fail(s->e, MEG_EFORMAT, "%s %" PRId64 ": found byte 0x%02x where %s is expected", s->offset_name, offset,
                    c, what);
}

void meg_json_scan_skip_space(struct meg_json_scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
        s->p++;
}

bool meg_json_scan_accept(struct meg_json_scan *s, char c)
{
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

/* Skip to the first quote, backslash or control character. */
static void skip_plain(struct meg_json_scan *s)
{
    const char *p = s->p;

    for (; s->end - p >= 16; p += 16) {
        uint64_t bits;
        v16 c;

        memcpy(&c, p, 16);
        if ((bits = meg_movemask((v16)((c == '"') | (c == '\\') | (c < 0x20))))) {
            s->p = p + __builtin_ctzll(bits);
            return;
        }
    }
    while (p < s->end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
        p++;
    s->p = p;
}

static int read_hex4(struct meg_json_scan *s, int32_t *v)
{
    *v = 0;
    for (int k = 0; k < 4; k++, s->p++) {
        int c = s->p < s->end ? *s->p : 0;

        if (c >= '0' && c <= '9')
            *v = 16 * *v + (c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            *v = 16 * *v + ((c | 0x20) - 'a' + 10);
        else
            return meg_json_scan_expected(s, "a hex digit of \\uXXXX");
    }
    return 0;
}

/* Read the rest of an escape after its backslash.  *cp is set to -1 for a lone surrogate. */
static int read_escape(struct meg_json_scan *s, int32_t *cp)
{
    static const char plain[128] = {
        ['"'] = '"', ['\\'] = '\\', ['/'] = '/', ['b'] = '\b', ['f'] = '\f', ['n'] = '\n', ['r'] = '\r', ['t'] = '\t'
    };
    int32_t low;
    int r;

    if (s->p < s->end && (unsigned char)*s->p < 128 && plain[(unsigned char)*s->p]) {
        *cp = plain[(unsigned char)*s->p++];
        return 0;
    }
    if (!meg_json_scan_accept(s, 'u'))
        return meg_json_scan_expected(s, "one of \"\\/bfnrtu after a backslash");
    if ((r = read_hex4(s, cp)) < 0)
        return r;
    if (*cp < 0xD800 || *cp > 0xDFFF)
        return 0;
    if (*cp < 0xDC00 && s->end - s->p >= 2 && s->p[0] == '\\' && s->p[1] == 'u') {
        const char *second = s->p;

        s->p += 2;
        if ((r = read_hex4(s, &low)) < 0)
            return r;
        if (low >= 0xDC00 && low <= 0xDFFF) {
            *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
            return 0;
        }
        s->p = second;
    }
    *cp = -1;
    return 0;
}

int meg_json_scan_string(struct meg_json_scan *s, struct meg_str *buf, struct meg_span *out,
                         const char **lone_surrogate)
{
    const char *begin;
    const size_t offset = buf ? buf->n : 0;
    bool has_escapes = false;
    int r;

    *lone_surrogate = NULL;
    if (!meg_json_scan_accept(s, '"'))
        return meg_json_scan_expected(s, "a string");
    for (begin = s->p;; begin = s->p) {
        int32_t cp = 0;
        char c[4];

        skip_plain(s);
        if (s->p == s->end)
            return meg_json_scan_expected(s, "the rest of a string");
        if ((unsigned char)*s->p < 0x20)
            return meg_fail(s->e, MEG_EFORMAT, "%s %" PRId64 ": unescaped control character 0x%02x in a string",
                            s->offset_name, (s->p - s->begin + 1), (unsigned char)*s->p);
        if (out && (has_escapes || *s->p == '\\'))
            meg_str_add(buf, begin, (size_t)(s->p - begin));
        if (*s->p == '"')
            break;
        has_escapes = true;
        begin = s->p++;
        if ((r = read_escape(s, &cp)) < 0)
            return r;
        if (cp < 0)
            *lone_surrogate = *lone_surrogate ? *lone_surrogate : begin;
        if (out)
            meg_str_add(buf, c, (size_t)meg_utf8_encode(c, cp < 0 ? 0xFFFD : cp));
    }
    if (out)
        *out = has_escapes ? (struct meg_span){ buf->s + offset, (int64_t)(buf->n - offset) }
                           : (struct meg_span){ begin, s->p - begin };
    s->p++;
    return 0;
}

int meg_json_scan_key(struct meg_json_scan *s, struct meg_str *buf, struct meg_span *out, const char **lone_surrogate)
{
    int r;

    meg_json_scan_skip_space(s);
    if ((r = meg_json_scan_string(s, buf, out, lone_surrogate)) < 0)
        return r;
    meg_json_scan_skip_space(s);
    if (!meg_json_scan_accept(s, ':'))
        return meg_json_scan_expected(s, "':'");
    meg_json_scan_skip_space(s);
    return 0;
}

int meg_json_scan_next(struct meg_json_scan *s, char close)
{
    meg_json_scan_skip_space(s);
    if (meg_json_scan_accept(s, close))
        return 0;
    return meg_json_scan_accept(s, ',') ? 1 : meg_json_scan_expected(s, close == '}' ? "',' or '}'" : "',' or ']'");
}

static int read_digits(struct meg_json_scan *s)
{
    const char *begin = s->p;

    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return s->p > begin ? 0 : meg_json_scan_expected(s, "a digit");
}

static bool accept_literal(struct meg_json_scan *s, const char *word)
{
    size_t n = strlen(word);

    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n) != 0)
        return false;
    s->p += n;
    return true;
}

static int read_number(struct meg_json_scan *s)
{
    int r;

    if (meg_json_scan_accept(s, '-') && accept_literal(s, "Infinity"))
        return 0;
    if (!meg_json_scan_accept(s, '0') && (r = read_digits(s)) < 0)
        return r;
    if (meg_json_scan_accept(s, '.') && (r = read_digits(s)) < 0)
        return r;
    if (meg_json_scan_accept(s, 'e') || meg_json_scan_accept(s, 'E')) {
        if (!meg_json_scan_accept(s, '+'))
            meg_json_scan_accept(s, '-');
        return read_digits(s);
    }
    return 0;
}

/* Skip the members or items up to and including the closing bracket; the caller has skipped the opening bracket. */
static int skip_container(struct meg_json_scan *s, char close, int depth)
{
    const char *lone_surrogate, *type_name;
    int r;

    if (depth > MAX_DEPTH)
        return meg_fail(s->e, MEG_EFORMAT, "%s %" PRId64 ": values are nested more than %d levels deep", s->offset_name,
                        (s->p - s->begin), MAX_DEPTH);
    meg_json_scan_skip_space(s);
    if (meg_json_scan_accept(s, close))
        return 0;
    do {
        if ((close == '}' && (r = meg_json_scan_key(s, NULL, NULL, &lone_surrogate)) < 0) ||
            (r = meg_json_scan_value(s, depth, &type_name)) < 0)
            return r;
    } while ((r = meg_json_scan_next(s, close)) > 0);
    return r;
}

int meg_json_scan_value(struct meg_json_scan *s, int depth, const char **type_name)
{
    const char *lone_surrogate;

    meg_json_scan_skip_space(s);
    switch (s->p < s->end ? *s->p : 0) {
    case '"': *type_name = "a string"; return meg_json_scan_string(s, NULL, NULL, &lone_surrogate);
    case '{':
        s->p++;
        *type_name = "an object";
        return skip_container(s, '}', depth + 1);
    case '[':
        s->p++;
        *type_name = "a list";
        return skip_container(s, ']', depth + 1);
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': *type_name = "a number"; return read_number(s);
    default:
        *type_name = "a number";
        if (accept_literal(s, "NaN") || accept_literal(s, "Infinity"))
            return 0;
        *type_name = "true or false";
        if (accept_literal(s, "true") || accept_literal(s, "false"))
            return 0;
        *type_name = "null";
        return accept_literal(s, "null") ? 0 : meg_json_scan_expected(s, "a value");
    }
}
