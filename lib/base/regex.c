#include "base/regex.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/mem.h"

struct meg_regex {
    pcre2_code *code;
    char *pattern;
    bool matches_empty; /* perhaps */
};

enum { JIT_STACK = 8 << 20 };

/* White_Space, and all else, inside of brackets. */
#define WS                                                                                                             \
    "\\t-\\r "                                                                                                         \
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define NO_WS                                                                                                          \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}!-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}"                          \
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}"                                     \
    "\\x{3001}-\\x{10FFFF}"
#define HEX "0-9A-Fa-f"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define IN_WORD "[" WORD WORD_NUMBERS "]"
#define WORD_NUMBERS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}" /* outside of brackets */
#define GRAPH "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"

static int refuse(const char *pattern, size_t at, const char *why, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT, "regular expression '%.400s', byte %zu: %s", pattern, at + 1, why);
}

static pcre2_code *compile(const struct meg_str *own, int *error, size_t *at)
{
    return pcre2_compile((PCRE2_SPTR)(own->s ? own->s : ""), own->n,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT, error, at, NULL);
}

/* \p{name} or one of its kin, n bytes: of a script PCRE2 would add the characters that other scripts share. */
static void translate_property(const char *s, size_t n, struct meg_str *out)
{
    bool is_negated = s[3] == '^';
    const char *name = s + 3 + is_negated;
    struct meg_str script = { 0 };
    pcre2_code *code;
    size_t at;
    int error;

    meg_str_printf(&script, "\\%c{%ssc:%.*s", s[1], is_negated ? "^" : "", (int)(s + n - name), name);
    code = compile(&script, &error, &at);
    if (code)
        meg_str_add(out, script.s, script.n);
    else
        meg_str_add(out, s, n);
    pcre2_code_free(code);
    meg_str_free(&script);
}

/* An escape outside of brackets or inside; returns its length, or 0 with e. */
static size_t translate_escape(const char *pattern, size_t at, bool is_inside, struct meg_str *out, struct meg_err *e)
{
    static const struct {
        char letter;
        const char *set, *brackets;
    } own[] = { { 's', WS, "[" WS "]" },
                { 'S', NO_WS, "[^" WS "]" },
                { 'h', HEX, "[" HEX "]" },
                { 'H', NULL, "[^" HEX "]" },
                { 'w', WORD, IN_WORD },
                { 'W', NULL, "[^" WORD WORD_NUMBERS "]" },
                { 'v', "\\x{B}", "\\x{B}" },
                { 'b', "\\x{8}", "(?:(?<=" IN_WORD ")(?!" IN_WORD ")|(?<!" IN_WORD ")(?=" IN_WORD "))" },
                { 'B', NULL, "(?:(?<=" IN_WORD ")(?=" IN_WORD ")|(?<!" IN_WORD ")(?!" IN_WORD "))" } };
    const char *s = pattern + at, *end;
    size_t n = s[1] ? 2 : 1;

    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        const char *to = is_inside ? own[i].set : own[i].brackets;

        if (s[1] != own[i].letter)
            continue;
        if (!to) {
            refuse(pattern, at, "a negated class inside of a class is not supported", e);
            return 0;
        }
        meg_str_add(out, to, strlen(to));
        return n;
    }
    if (s[1] && strchr("CEGNQVX", s[1])) { /* they are others in PCRE2, or of where a search begins */
        refuse(pattern, at, "this escape is not supported", e);
        return 0;
    }
    if (s[1] && strchr("pPxkgo", s[1]) && s[2] == '{' && (end = strchr(s, '}')))
        n = (size_t)(end + 1 - s);
    if (s[1] == 'u' && strspn(s + 2, "0123456789ABCDEFabcdef") >= 4) {
        meg_str_printf(out, "\\x{%.4s}", s + 2);
        return 6;
    }
    if (n > 4 && (s[1] == 'p' || s[1] == 'P'))
        translate_property(s, n, out);
    else
        meg_str_add(out, s, n);
    return n;
}

/* [:name:] or [:^name:] inside of brackets; returns its length, or 0 with e. */
static size_t translate_posix(const char *pattern, size_t at, struct meg_str *out, struct meg_err *e)
{
    static const struct {
        const char *name, *set, *others;
    } own[] = { { "alpha", "\\p{Alphabetic}", "\\P{Alphabetic}" },
                { "lower", "\\p{Lowercase}", "\\P{Lowercase}" },
                { "upper", "\\p{Uppercase}", "\\P{Uppercase}" },
                { "space", WS, NO_WS },
                { "blank", "\\t\\p{Zs}", NULL },
                { "punct", "\\p{P}\\p{S}", NULL },
                { "graph", GRAPH, NULL },
                { "print", GRAPH "\\p{Zs}", NULL },
                { "word", WORD, NULL },
                { "alnum", "\\p{Alphabetic}\\p{Nd}", NULL } };
    const char *s = pattern + at;
    bool is_negated = s[2] == '^';
    size_t name = is_negated ? 3 : 2, n = (size_t)(strstr(s, ":]") - s);

    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        const char *to = is_negated ? own[i].others : own[i].set;

        if (n - name != strlen(own[i].name) || memcmp(s + name, own[i].name, n - name) != 0)
            continue;
        if (!to) {
            refuse(pattern, at, "a negated class inside of a class is not supported", e);
            return 0;
        }
        meg_str_add(out, to, strlen(to));
        return n + 2;
    }
    meg_str_add(out, s, n + 2);
    return n + 2;
}

/* A class from its bracket on; returns its length, or 0 with e.  Classes inside of it are joined. */
static size_t translate_class(const char *pattern, size_t from, struct meg_str *out, struct meg_err *e)
{
    const char *s = pattern;
    size_t i = from + 1, n;
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
            if ((n = translate_escape(pattern, i, true, out, e)) == 0)
                return 0;
            i += n;
        } else if (s[i] == '[' && s[i + 1] == ':' && strstr(s + i, ":]")) {
            if ((n = translate_posix(pattern, i, out, e)) == 0)
                return 0;
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

/* {n}, {n,m}, {n,} or {,m}: Oniguruma takes a "+" behind it for a repetition of the whole, and so a "?" behind {n}.
 * Returns its length, with that, or 0 with e. */
static size_t translate_interval(const char *pattern, size_t at, struct meg_str *out, struct meg_err *e)
{
    const char *s = pattern + at + 1, *end;
    size_t digits = strspn(s, "0123456789"), more = s[digits] == ',' ? strspn(s + digits + 1, "0123456789") : 0;
    long least = strtol(s, NULL, 10), most = s[digits] != ',' ? least
                                             : more           ? strtol(s + digits + 1, NULL, 10)
                                                              : LONG_MAX;

    end = s + digits + (s[digits] == ',') + more;
    if (*end != '}' || digits + more == 0) { /* not an interval */
        meg_str_add(out, "{", 1);
        return 1;
    }
    end++;
    if (*end != '+' && (*end != '?' || s[digits] == ',')) {
        meg_str_add(out, digits ? "{" : "{0", digits ? 1 : 2);
        meg_str_add(out, s, (size_t)(end - s));
        return (size_t)(end - s) + 1;
    }
    if (least > 1 || most < 1 || (*end == '?' && least != 1)) {
        refuse(pattern, at, "the repetition of an interval is not supported", e);
        return 0;
    }
    meg_str_add(out, *end == '?' ? "?" : least == 0 ? "*" : "+", 1);
    return (size_t)(end - s) + 2;
}

/* Options like (?i) or (?m-i:, where m lets a dot match newlines; returns their length, or 0 with e. */
static size_t translate_options(const char *pattern, size_t at, struct meg_str *out, struct meg_err *e)
{
    const char *s = pattern + at;
    size_t n = 2 + strspn(s + 2, "imx-");

    for (size_t i = 0; i < n; i++)
        meg_str_add(out, s[i] == 'm' ? "s" : s + i, 1);
    if (s[n] == ':' || s[n] == ')')
        return n;
    refuse(pattern, at, "options other than i, m and x are not supported", e);
    return 0;
}

static bool are_options(const char *s)
{
    size_t n = s[0] == '(' && s[1] == '?' ? strcspn(s + 2, ":)(<>=!") : 0;

    return n > 0 && (s[2 + n] == ':' || s[2 + n] == ')') && s[2] != '#';
}

static int translate(const char *pattern, struct meg_str *out, struct meg_err *e)
{
    for (size_t i = 0, n; pattern[i]; i += n) {
        if (pattern[i] == '\\') {
            n = translate_escape(pattern, i, false, out, e);
        } else if (pattern[i] == '[') {
            n = translate_class(pattern, i, out, e);
        } else if (pattern[i] == '{') {
            n = translate_interval(pattern, i, out, e);
        } else if (are_options(pattern + i)) {
            n = translate_options(pattern, i, out, e);
        } else {
            n = 1;
            meg_str_add(out, pattern + i, 1);
        }
        if (n == 0)
            return MEG_EFORMAT;
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
    uint32_t empty;
    int error, rc;

    if ((rc = translate(pattern, &own, e)) < 0) {
        meg_str_free(&own);
        return rc;
    }
    code = compile(&own, &error, &at);
    if (!code) {
        pcre2_get_error_message(error, why, sizeof why);
        rc = meg_fail(e, MEG_EFORMAT, "regular expression '%.400s' (read as '%.400s'), byte %zu: %s", pattern,
                      own.s ? own.s : "", at, (const char *)why);
        meg_str_free(&own);
        return rc;
    }
    meg_str_free(&own);
    r = meg_new(sizeof *r);
    r->code = code;
    r->pattern = meg_strdup(pattern);
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
    r->matches_empty = empty;
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD); /* where there is none matching is slower */
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

/*
 * A search looks at a few bytes first and at more where these end in the middle of a possible match, so
 * that it is known how far it looked.  An expression such as [ab]+c|[ab] may look at the whole text from
 * every byte of it; PCRE2's own limit is for one start only.
 */
enum {
    LOOK = 256, /* bytes at first; from there on as often as the expression likes */
    RESCAN_FREE = 1 << 22,
    RESCAN_PER_BYTE = 1024 /* bytes that the searches in one text may look at again */
};

/* A search of one text; stack: made for JIT only when the machine's has not been enough, as it costs more
 * than most matches. */
struct search {
    const struct meg_regex *r;
    const char *text;
    size_t n;
    uint64_t looked; /* bytes, in starts that came to nothing so far */
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static pcre2_match_context *context_of(struct search *s)
{
    if (!s->context && !(s->context = pcre2_match_context_create(NULL)))
        meg_die(MEG_EFAIL, "out of memory");
    return s->context;
}

static int match(struct search *s, size_t end, size_t from, uint32_t options)
{
    int rc =
        pcre2_match(s->r->code, (PCRE2_SPTR)s->text, end, from, PCRE2_NO_UTF_CHECK | options, s->match, s->context);

    if (rc != PCRE2_ERROR_JIT_STACKLIMIT || s->stack)
        return rc;
    s->stack = pcre2_jit_stack_create(1 << 15, JIT_STACK, NULL);
    if (!s->stack)
        meg_die(MEG_EFAIL, "out of memory");
    pcre2_jit_stack_assign(context_of(s), NULL, s->stack);
    return match(s, end, from, options);
}

/* At from and nowhere else, with all of the text to look at. */
static int match_at(struct search *s, size_t from)
{
    int rc;

    pcre2_set_offset_limit(context_of(s), from);
    rc = match(s, s->n, from, 0);
    pcre2_set_offset_limit(s->context, PCRE2_UNSET);
    return rc;
}

/* The first character boundary at or behind byte i. */
static size_t boundary(const struct search *s, size_t i)
{
    while (i < s->n && (s->text[i] & 0xC0) == 0x80)
        i++;
    return i;
}

/* The first match from byte from on; returns as pcre2_match, PCRE2_ERROR_MATCHLIMIT where it looks too far. */
static int search(struct search *s, size_t from)
{
    const uint64_t most = RESCAN_FREE + (uint64_t)RESCAN_PER_BYTE * s->n;

    for (size_t look = LOOK; s->looked <= most;) {
        const size_t end = look < s->n - from ? boundary(s, from + look) : s->n;
        int rc;

        if (end < s->n)
            rc = match(s, end, from, PCRE2_PARTIAL_HARD);
        else if (look > LOOK)
            rc = match_at(s, from);
        else
            return match(s, end, from, 0);
        if (rc == PCRE2_ERROR_PARTIAL) {
            from = pcre2_get_startchar(s->match);
            look *= 4;
        } else if (rc == PCRE2_ERROR_NOMATCH) {
            from = end < s->n ? end : boundary(s, from + 1);
            look = LOOK;
            if (end < s->n)
                continue;
        } else {
            return rc;
        }
        s->looked += end - from;
    }
    return PCRE2_ERROR_MATCHLIMIT;
}

static int refuse_text(const struct search *s, int rc, struct meg_err *e)
{
    PCRE2_UCHAR why[256];

    pcre2_get_error_message(rc, why, sizeof why);
    return meg_fail(e, MEG_EFORMAT, "regular expression '%.400s', on a text of %zu bytes: %s%s", s->r->pattern, s->n,
                    (const char *)why,
                    rc == PCRE2_ERROR_MATCHLIMIT
                        ? "; it tries too much of the text again and again: make shorter lines of it"
                        : "");
}

int meg_regex_find_all(const struct meg_regex *r, const char *text, int64_t n, struct meg_spans *out, struct meg_err *e)
{
    struct search s = {
        .r = r, .text = text, .n = (size_t)n, .match = pcre2_match_data_create_from_pattern(r->code, NULL)
    };
    const PCRE2_SIZE *at;
    PCRE2_SIZE from = 0, last = PCRE2_UNSET; /* where the last match ended */
    int rc = 1, result = MEG_OK;

    if (!s.match)
        meg_die(MEG_EFAIL, "out of memory");
    at = pcre2_get_ovector_pointer(s.match);
    while (n > 0 && (from < s.n || (from == s.n && r->matches_empty)) && (rc = search(&s, from)) > 0) {
        if (at[1] > at[0] || at[1] != last) {
            meg_spans_add(out, text + at[0], (int64_t)(at[1] - at[0]));
            from = last = at[1];
            continue;
        }
        from = boundary(&s, from + 1);
    }
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        result = refuse_text(&s, rc, e);
    pcre2_match_data_free(s.match);
    pcre2_match_context_free(s.context);
    pcre2_jit_stack_free(s.stack);
    return result;
}
