#include "text/regex.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/mem.h"

struct meg_regex {
    pcre2_code *code;
    char *pattern;
};

enum { JIT_STACK = 8 << 20 };

/* White_Space, and all else, inside of brackets. */
#define WS                                                                                         \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define NO_WS                                                                                      \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}!-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}"      \
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}"                 \
    "\\x{3001}-\\x{10FFFF}"
#define HEX "0-9A-Fa-f"

static int refuse(const char *pattern, size_t at, const char *why, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT, "regular expression '%.400s', byte %zu: %s", pattern, at + 1, why);
}

/* An escape at s, outside of brackets or inside; returns its length. */
static size_t translate_escape(const char *s, bool is_inside, struct meg_str *out)
{
    static const struct {
        char letter;
        const char *set, *brackets;
    } own[] = { { 's', WS, "[" WS "]" },
                { 'S', NO_WS, "[^" WS "]" },
                { 'h', HEX, "[" HEX "]" },
                { 'H', NULL, "[^" HEX "]" } };

    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        const char *to = is_inside ? own[i].set : own[i].brackets;

        if (s[1] == own[i].letter && to) {
            meg_str_add(out, to, strlen(to));
            return 2;
        }
    }
    meg_str_add(out, s, s[1] ? 2 : 1);
    return s[1] ? 2 : 1;
}

/* A class from its bracket on; returns its length, or 0 with e.  Classes inside of it are joined. */
static size_t translate_class(const char *pattern, size_t from, struct meg_str *out,
                              struct meg_err *e)
{
    const char *s = pattern;
    size_t i = from + 1;
    int depth = 1;

    meg_str_add(out, "[", 1);
    if (s[i] == '^')
        meg_str_add(out, s + i++, 1);
    if (s[i] == ']') {
        meg_str_add(out, "\\]", 2);
        i++;
    }
    while (s[i] && depth > 0) {
        if (s[i] == '\\') {
            i += translate_escape(s + i, true, out);
        } else if (s[i] == '[' && s[i + 1] == ':' && strstr(s + i, ":]")) {
            size_t n = (size_t)(strstr(s + i, ":]") + 2 - (s + i));

            meg_str_add(out, s + i, n);
            i += n;
        } else if (s[i] == '[' && s[i + 1] == '^') {
            refuse(pattern, i, "a negated class inside of a class is not supported", e);
            return 0;
        } else if (s[i] == '&' && s[i + 1] == '&') {
            refuse(pattern, i, "the intersection of classes, &&, is not supported", e);
            return 0;
        } else if (s[i] == '[') {
            depth++;
            i++;
        } else if (s[i] == ']') {
            depth--;
            i++;
        } else {
            meg_str_add(out, s + i++, 1);
        }
    }
    if (depth > 0) {
        refuse(pattern, from, "a class that does not end", e);
        return 0;
    }
    meg_str_add(out, "]", 1);
    return i - from;
}

static int translate(const char *pattern, struct meg_str *out, struct meg_err *e)
{
    for (size_t i = 0, n; pattern[i]; i += n) {
        if (pattern[i] == '\\') {
            n = translate_escape(pattern + i, false, out);
        } else if (pattern[i] == '[') {
            if ((n = translate_class(pattern, i, out, e)) == 0)
                return MEG_EFORMAT;
        } else {
            n = 1;
            meg_str_add(out, pattern + i, 1);
        }
    }
    return MEG_OK;
}

int meg_regex_compile(struct meg_regex **out, const char *pattern, struct meg_err *e)
{
    struct meg_str own = { 0 };
    struct meg_regex *r;
    pcre2_code *code;
    PCRE2_UCHAR why[256];
    PCRE2_SIZE at;
    int error, rc;

    if ((rc = translate(pattern, &own, e)) < 0) {
        meg_str_free(&own);
        return rc;
    }
    code = pcre2_compile((PCRE2_SPTR)(own.s ? own.s : ""), own.n, PCRE2_UTF | PCRE2_UCP, &error,
                         &at, NULL);
    if (!code) {
        pcre2_get_error_message(error, why, sizeof why);
        rc = meg_fail(e, MEG_EFORMAT, "regular expression '%.400s' (read as '%.400s'), byte %zu: %s",
                      pattern, own.s ? own.s : "", at, (const char *)why);
        meg_str_free(&own);
        return rc;
    }
    meg_str_free(&own);
    r = meg_new(sizeof *r);
    r->code = code;
    r->pattern = meg_strdup(pattern);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where there is none matching is slower */
    *out = r;
    return MEG_OK;
}

void meg_regex_free(struct meg_regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    free(r->pattern);
    free(r);
}

/* A stack of its own is made for JIT only when the machine's has not been enough: it costs more than
 * most matches. */
struct room {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static int match_from(const struct meg_regex *r, const char *text, int64_t n, PCRE2_SIZE from,
                      struct room *room)
{
    int rc = pcre2_match(r->code, (PCRE2_SPTR)text, (PCRE2_SIZE)n, from, PCRE2_NO_UTF_CHECK,
                         room->match, room->context);

    if (rc != PCRE2_ERROR_JIT_STACKLIMIT || room->stack)
        return rc;
    room->context = pcre2_match_context_create(NULL);
    room->stack = pcre2_jit_stack_create(1 << 15, JIT_STACK, NULL);
    if (!room->context || !room->stack)
        meg_die(MEG_EFAIL, "out of memory");
    pcre2_jit_stack_assign(room->context, NULL, room->stack);
    return match_from(r, text, n, from, room);
}

int meg_regex_find(const struct meg_regex *r, const char *text, int64_t n, struct meg_spans *out,
                   struct meg_err *e)
{
    struct room room = { .match = pcre2_match_data_create_from_pattern(r->code, NULL) };
    const PCRE2_SIZE *at;
    PCRE2_SIZE from = 0;
    int rc = 1, result = MEG_OK;

    if (!room.match)
        meg_die(MEG_EFAIL, "out of memory");
    at = pcre2_get_ovector_pointer(room.match);
    while (from < (PCRE2_SIZE)n && (rc = match_from(r, text, n, from, &room)) > 0) {
        if (at[1] > at[0])
            meg_spans_add(out, text + at[0], (int64_t)(at[1] - at[0]));
        from = at[1] > from ? at[1] : from + 1;
        while (from < (PCRE2_SIZE)n && (text[from] & 0xC0) == 0x80)
            from++;
    }
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR why[256];

        pcre2_get_error_message(rc, why, sizeof why);
        result = meg_fail(e, MEG_EFORMAT, "regular expression '%.400s', on a text of %lld bytes: %s",
                          r->pattern, (long long)n, (const char *)why);
    }
    pcre2_match_data_free(room.match);
    pcre2_match_context_free(room.context);
    pcre2_jit_stack_free(room.stack);
    return result;
}
