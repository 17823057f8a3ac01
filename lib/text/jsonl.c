#include "text/jsonl.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"

enum { MAX_DEPTH = 1000 };

/* Where the reader is.  All reading functions return 0 or what meg_fail returned. */
struct scan {
    const char *begin, *p, *end;
    struct meg_err *e;
};

static int expected(const struct scan *s, const char *what)
{
    long long column = s->p - s->begin + 1;
    unsigned char c;

    if (s->p == s->end)
        return meg_fail(s->e, MEG_EFORMAT, "column %lld: the line ends where %s is expected",
                        column, what);
    c = (unsigned char)*s->p;
    if (c > 0x20 && c < 0x7F)
        return meg_fail(s->e, MEG_EFORMAT, "column %lld: found '%c' where %s is expected", column,
                        c, what);
    return meg_fail(s->e, MEG_EFORMAT, "column %lld: found byte 0x%02x where %s is expected",
                    column, c, what);
}

static void skip_blanks(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
        s->p++;
}

static bool take(struct scan *s, char c)
{
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

typedef unsigned char v16 __attribute__((vector_size(16)));

/* To the first byte that is not simply part of a string: quote, backslash or control. */
static void skip_plain(struct scan *s)
{
    const char *p = s->p;

    for (; s->end - p >= 16; p += 16) {
        v16 c, m;
        uint64_t w[2];

        memcpy(&c, p, 16);
        m = (v16)((c == '"') | (c == '\\') | (c < 0x20));
        memcpy(w, &m, 16);
        if (w[0] | w[1])
            break;
    }
    while (p < s->end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
        p++;
    s->p = p;
}

static int read_hex4(struct scan *s, int32_t *v)
{
    *v = 0;
    for (int k = 0; k < 4; k++, s->p++) {
        int c = s->p < s->end ? *s->p : 0;

        if (c >= '0' && c <= '9')
            *v = 16 * *v + (c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            *v = 16 * *v + ((c | 0x20) - 'a' + 10);
        else
            return expected(s, "a hex digit of \\uXXXX");
    }
    return 0;
}

/* What follows a backslash.  *cp is -1 for a lone surrogate. */
static int read_escape(struct scan *s, int32_t *cp)
{
    static const char letter[] = "\"\\/bfnrt", value[] = "\"\\/\b\f\n\r\t";
    const char *k = s->p < s->end && *s->p ? strchr(letter, *s->p) : NULL;
    int32_t low;
    int r;

    if (k) {
        s->p++;
        *cp = value[k - letter];
        return 0;
    }
    if (!take(s, 'u'))
        return expected(s, "one of \"\\/bfnrtu after a backslash");
    if ((r = read_hex4(s, cp)) < 0)
        return r;
    if (*cp < 0xD800 || *cp > 0xDFFF)
        return 0;
    if (*cp < 0xDC00 && s->end - s->p >= 2 && s->p[0] == '\\' && s->p[1] == 'u') {
        const char *was = s->p;

        s->p += 2;
        if ((r = read_hex4(s, &low)) < 0)
            return r;
        if (low >= 0xDC00 && low <= 0xDFFF) {
            *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
            return 0;
        }
        s->p = was;
    }
    *cp = -1;
    return 0;
}

/*
 * A string, from its opening quote.  With out, *out is its text: in the line where nothing is
 * escaped, else behind what buf holds (which has the room).  Without, it is only checked.
 * *lone is set to where a lone surrogate begins, or NULL.
 */
static int read_string(struct scan *s, struct meg_str *buf, struct meg_span *out, const char **lone)
{
    const char *begin;
    size_t at = buf ? buf->n : 0;
    bool escaped = false;
    int r;

    *lone = NULL;
    if (!take(s, '"'))
        return expected(s, "a string");
    for (begin = s->p;; begin = s->p) {
        int32_t cp = 0;
        char c[4];

        skip_plain(s);
        if (s->p == s->end || (unsigned char)*s->p < 0x20)
            return expected(s, "more of a string");
        if (out && (escaped || *s->p == '\\'))
            meg_str_add(buf, begin, (size_t)(s->p - begin));
        if (*s->p == '"')
            break;
        escaped = true;
        begin = s->p++;
        if ((r = read_escape(s, &cp)) < 0)
            return r;
        if (cp < 0)
            *lone = *lone ? *lone : begin;
        else if (out)
            meg_str_add(buf, c, (size_t)meg_utf8_put(c, cp));
    }
    if (out)
        *out = escaped ? (struct meg_span){ buf->s + at, (int64_t)(buf->n - at) }
                       : (struct meg_span){ begin, s->p - begin };
    s->p++;
    return 0;
}

static int read_digits(struct scan *s)
{
    const char *was = s->p;

    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return s->p > was ? 0 : expected(s, "a digit");
}

static bool take_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);

    if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n) != 0)
        return false;
    s->p += n;
    return true;
}

static int read_number(struct scan *s)
{
    int r;

    if (take(s, '-') && take_word(s, "Infinity"))
        return 0;
    if (!take(s, '0') && (r = read_digits(s)) < 0)
        return r;
    if (take(s, '.') && (r = read_digits(s)) < 0)
        return r;
    if (take(s, 'e') || take(s, 'E')) {
        if (!take(s, '+'))
            take(s, '-');
        return read_digits(s);
    }
    return 0;
}

static int skip_value(struct scan *s, int depth, const char **kind);

/* Members up to the closing bracket; the opening one has been read. */
static int skip_members(struct scan *s, char close, int depth)
{
    const char *lone, *kind;
    int r;

    if (depth > MAX_DEPTH)
        return meg_fail(s->e, MEG_EFORMAT, "column %lld: values nested more than %d deep",
                        (long long)(s->p - s->begin), MAX_DEPTH);
    skip_blanks(s);
    if (take(s, close))
        return 0;
    for (;;) {
        if (close == '}') {
            skip_blanks(s);
            if ((r = read_string(s, NULL, NULL, &lone)) < 0)
                return r;
            skip_blanks(s);
            if (!take(s, ':'))
                return expected(s, "':'");
        }
        if ((r = skip_value(s, depth, &kind)) < 0)
            return r;
        skip_blanks(s);
        if (take(s, close))
            return 0;
        if (!take(s, ','))
            return expected(s, close == '}' ? "',' or '}'" : "',' or ']'");
    }
}

static int skip_value(struct scan *s, int depth, const char **kind)
{
    const char *lone;

    skip_blanks(s);
    switch (s->p < s->end ? *s->p : 0) {
    case '"':
        *kind = "a string";
        return read_string(s, NULL, NULL, &lone);
    case '{':
        s->p++;
        *kind = "an object";
        return skip_members(s, '}', depth + 1);
    case '[':
        s->p++;
        *kind = "a list";
        return skip_members(s, ']', depth + 1);
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
    case '9':
        *kind = "a number";
        return read_number(s);
    default:
        *kind = "a number";
        if (take_word(s, "NaN") || take_word(s, "Infinity"))
            return 0;
        *kind = "true or false";
        if (take_word(s, "true") || take_word(s, "false"))
            return 0;
        *kind = "null";
        return take_word(s, "null") ? 0 : expected(s, "a value");
    }
}

/* One text of a key's value. */
static int read_text(struct scan *s, struct meg_jsonl *j, struct meg_jsonl_value *v)
{
    const char *lone;
    int r;

    if (v->n == v->cap) {
        v->cap = v->cap ? 2 * v->cap : 8;
        v->v = meg_realloc_array(v->v, (size_t)v->cap, sizeof *v->v);
    }
    if ((r = read_string(s, &j->unescaped, &v->v[v->n++], &lone)) < 0)
        return r;
    if (lone)
        return meg_fail(s->e, MEG_EFORMAT,
                        "column %lld: \\u escape of half a surrogate pair, which is no character",
                        (long long)(lone - s->begin + 1));
    return 0;
}

/* The value of a key that is asked for. */
static int read_value(struct scan *s, struct meg_jsonl *j, struct meg_jsonl_value *v)
{
    int r;

    v->n = 0;
    skip_blanks(s);
    if (s->p < s->end && *s->p == '"') {
        v->kind = "a string";
        return read_text(s, j, v);
    }
    if (s->p == s->end || *s->p != '[')
        return skip_value(s, 1, &v->kind);
    s->p++;
    v->kind = "a list of strings";
    skip_blanks(s);
    if (take(s, ']'))
        return 0;
    for (;;) {
        const char *kind;

        skip_blanks(s);
        if (s->p < s->end && *s->p == '"') {
            r = read_text(s, j, v);
        } else {
            v->kind = "a list of other things than strings";
            r = skip_value(s, 2, &kind);
        }
        if (r < 0)
            return r;
        skip_blanks(s);
        if (take(s, ']'))
            return 0;
        if (!take(s, ','))
            return expected(s, "',' or ']'");
    }
}

static int read_object(struct scan *s, struct meg_jsonl *j)
{
    int r;

    skip_blanks(s);
    if (!take(s, '{'))
        return expected(s, "'{' of an object");
    skip_blanks(s);
    if (take(s, '}'))
        return 0;
    for (;;) {
        struct meg_span key;
        const char *lone, *kind;
        int k = 0;

        skip_blanks(s);
        if ((r = read_string(s, &j->unescaped, &key, &lone)) < 0)
            return r;
        skip_blanks(s);
        if (!take(s, ':'))
            return expected(s, "':'");
        while (k < j->nkeys &&
               (lone || strlen(j->keys[k]) != (size_t)key.n ||
                memcmp(j->keys[k], key.s, (size_t)key.n) != 0))
            k++;
        r = k < j->nkeys ? read_value(s, j, &j->value[k]) : skip_value(s, 1, &kind);
        if (r < 0)
            return r;
        skip_blanks(s);
        if (take(s, '}'))
            return 0;
        if (!take(s, ','))
            return expected(s, "',' or '}'");
    }
}

static int read_line(struct meg_jsonl *j, const char *line, int64_t n, struct meg_err *e)
{
    struct scan s = { line, line, line + n, e };
    int64_t bad = meg_utf8_bad(line, n);
    int r;

    if (bad >= 0)
        return meg_fail(e, MEG_EFORMAT, "column %lld: invalid UTF-8: byte 0x%02x",
                        (long long)bad + 1, (unsigned char)line[bad]);
    if ((r = read_object(&s, j)) < 0)
        return r;
    skip_blanks(&s);
    return s.p == s.end ? 0 : expected(&s, "the end of the line");
}

int meg_jsonl_read(struct meg_jsonl *j, const char *line, int64_t n, struct meg_err *e)
{
    int r;

    if (!j->value)
        j->value = meg_new((size_t)j->nkeys * sizeof *j->value);
    for (int k = 0; k < j->nkeys; k++)
        j->value[k].kind = NULL;
    /* Unescaped text is no longer than the line: with this room the buffer never moves. */
    if (j->unescaped.cap <= (size_t)n) {
        j->unescaped.n = 0;
        meg_str_add(&j->unescaped, line, (size_t)n);
    }
    j->unescaped.n = 0;
    if ((r = read_line(j, line, n, e)) < 0)
        return r;
    for (int k = 0; k < j->nkeys; k++) {
        const char *kind = j->value[k].kind;

        if (!kind)
            return meg_fail(e, MEG_EFORMAT, "no key \"%s\"", j->keys[k]);
        if (strcmp(kind, "a string") != 0 && strcmp(kind, "a list of strings") != 0)
            return meg_fail(e, MEG_EFORMAT,
                            "key \"%s\" holds %s; a string or a list of strings is expected",
                            j->keys[k], kind);
    }
    return MEG_OK;
}

int meg_jsonl_is_object(const char *line, int64_t n)
{
    struct meg_jsonl j = { 0 };
    int is = read_line(&j, line, n, NULL) == 0;

    meg_jsonl_free(&j);
    return is;
}

void meg_jsonl_free(struct meg_jsonl *j)
{
    for (int k = 0; j->value && k < j->nkeys; k++)
        free(j->value[k].v);
    free(j->value);
    meg_str_free(&j->unescaped);
}
