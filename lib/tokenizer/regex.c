/* regex.c - regular expressions in the dialect of Oniguruma, which tokenizer.json files use. */
#include "tokenizer/regex.h"
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
    bool matches_empty; /* whether the pattern can match the empty string */
};

enum { JIT_STACK = 8 << 20 };

/* The Unicode property White_Space and its complement, as ranges for use inside brackets. */
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
#define WORD_NUMBERS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}" /* numbers that \w matches outside of brackets only */
#define GRAPH "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"

static int fail_pattern(const char *pattern, size_t offset, const char *why, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT, "regular expression '%.400s': byte %zu: %s", pattern, offset + 1, why);
}

/*
 * Append the translation of a class of n bytes inside of brackets, and return n.  NULL: the class is negated and cannot
 * be translated; return 0 with *e filled.
 */
static size_t add_class(const char *pattern, size_t offset, const char *translated, size_t n, struct meg_str *out,
                        struct meg_err *e)
{
    if (!translated) {
        fail_pattern(pattern, offset, "a negated class inside a class is not supported", e);
        return 0;
    }
    meg_str_add(out, translated, strlen(translated));
    return n;
}

static pcre2_code *compile(const struct meg_str *translated, int *error, size_t *offset)
{
    return pcre2_compile((PCRE2_SPTR)(translated->s ? translated->s : ""), translated->n,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT, error, offset, NULL);
}

/*
 * Translate \p{name}, \P{name} or \p{^name}, which is n bytes long.  PCRE2 matches a script name such as \p{Han}
 * against the property Script_Extensions instead of Script.  Therefore, \p{Han} is translated to \p{sc:Han}.  A
 * property that is not a script is copied unchanged.
 */
static void translate_property(const char *s, size_t n, struct meg_str *out)
{
    bool is_negated = s[3] == '^';
    const char *name = s + 3 + is_negated;
    struct meg_str script = { 0 };
    pcre2_code *code;
    size_t offset;
    int error;

    meg_str_printf(&script, "\\%c{%ssc:%.*s", s[1], is_negated ? "^" : "", (int)(s + n - name), name);
    code = compile(&script, &error, &offset);
    if (code)
        meg_str_add(out, script.s, script.n);
    else
        meg_str_add(out, s, n);
    pcre2_code_free(code);
    meg_str_free(&script);
}

/*
 * Translate the escape at `offset`.  is_inside states whether the escape is inside brackets.  Returns the length of the
 * escape, or 0 with *e filled.
 */
static size_t translate_escape(const char *pattern, size_t offset, bool is_inside, struct meg_str *out,
                               struct meg_err *e)
{
    static const struct {
        char letter;
        const char *set, *brackets;
    } classes[] = { { 's', WS, "[" WS "]" },
                    { 'S', NO_WS, "[^" WS "]" },
                    { 'h', HEX, "[" HEX "]" },
                    { 'H', NULL, "[^" HEX "]" },
                    { 'w', WORD, IN_WORD },
                    { 'W', NULL, "[^" WORD WORD_NUMBERS "]" },
                    { 'v', "\\x{B}", "\\x{B}" },
                    { 'b', "\\x{8}", "(?:(?<=" IN_WORD ")(?!" IN_WORD ")|(?<!" IN_WORD ")(?=" IN_WORD "))" },
                    { 'B', NULL, "(?:(?<=" IN_WORD ")(?=" IN_WORD ")|(?<!" IN_WORD ")(?!" IN_WORD "))" } };
    const char *s = pattern + offset, *end;
    size_t n = s[1] ? 2 : 1;

    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (s[1] == classes[i].letter)
            return add_class(pattern, offset, is_inside ? classes[i].set : classes[i].brackets, n, out, e);
    }
    if (s[1] && strchr("CEGNQVX", s[1])) { /* these escapes differ in PCRE2, or refer to the start of the search */
        fail_pattern(pattern, offset, "this escape is not supported", e);
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

/* Translate [:name:] or [:^name:] inside of brackets.  Returns the length of the class, or 0 with *e filled. */
static size_t translate_posix(const char *pattern, size_t offset, struct meg_str *out, struct meg_err *e)
{
    static const struct {
        const char *name, *set, *complement;
    } classes[] = { { "alpha", "\\p{Alphabetic}", "\\P{Alphabetic}" },
                    { "lower", "\\p{Lowercase}", "\\P{Lowercase}" },
                    { "upper", "\\p{Uppercase}", "\\P{Uppercase}" },
                    { "space", WS, NO_WS },
                    { "blank", "\\t\\p{Zs}", NULL },
                    { "punct", "\\p{P}\\p{S}", NULL },
                    { "graph", GRAPH, NULL },
                    { "print", GRAPH "\\p{Zs}", NULL },
                    { "word", WORD, NULL },
                    { "alnum", "\\p{Alphabetic}\\p{Nd}", NULL } };
    const char *s = pattern + offset;
    bool is_negated = s[2] == '^';
    size_t name = is_negated ? 3 : 2, n = (size_t)(strstr(s, ":]") - s);

    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (n - name == strlen(classes[i].name) && memcmp(s + name, classes[i].name, n - name) == 0)
            return add_class(pattern, offset, is_negated ? classes[i].complement : classes[i].set, n + 2, out, e);
    }
    meg_str_add(out, s, n + 2);
    return n + 2;
}

/*
 * Translate a bracketed class, and merge nested classes into it.  Returns the length of the class, or 0 with *e filled.
 */
static size_t translate_class(const char *pattern, size_t begin, struct meg_str *out, struct meg_err *e)
{
    const char *s = pattern;
    size_t i = begin + 1, n;
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
            fail_pattern(pattern, i, "a negated class inside a class is not supported", e);
            return 0;
        } else if (s[i] == '&' && s[i + 1] == '&') {
            fail_pattern(pattern, i, "the intersection of classes, &&, is not supported", e);
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
        fail_pattern(pattern, begin, "the class has no closing bracket", e);
        return 0;
    }
    meg_str_add(out, "]", 1);
    return i - begin;
}

/*
 * Translate {n}, {n,m}, {n,} or {,m}, or copy a { that begins no interval.  In Oniguruma, a + after any interval, or a
 * ? after {n}, is a second quantifier.  A second quantifier is supported only if the two quantifiers together are
 * equivalent to ?, * or +.  Returns the number of bytes of `pattern` that were translated, including a second
 * quantifier, or 0 with *e filled.
 */
static size_t translate_interval(const char *pattern, size_t offset, struct meg_str *out, struct meg_err *e)
{
    const char *s = pattern + offset + 1, *end;
    size_t digits = strspn(s, "0123456789"), more = s[digits] == ',' ? strspn(s + digits + 1, "0123456789") : 0;
    long min = strtol(s, NULL, 10), max = s[digits] != ',' ? min : more ? strtol(s + digits + 1, NULL, 10) : LONG_MAX;

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
    if (min > 1 || max < 1 || (*end == '?' && min != 1)) {
        fail_pattern(pattern, offset, "a + or ? after this quantifier, {m,n}, is not supported", e);
        return 0;
    }
    meg_str_add(out, *end == '?' ? "?" : min == 0 ? "*" : "+", 1);
    return (size_t)(end - s) + 2;
}

/*
 * Translate options such as (?i) or "(?m-i:".  In Oniguruma, m means that a dot matches newlines; in PCRE2, s does.
 * Returns the length of the options, or 0 with *e filled.
 */
static size_t translate_options(const char *pattern, size_t offset, struct meg_str *out, struct meg_err *e)
{
    const char *s = pattern + offset;
    size_t n = 2 + strspn(s + 2, "imx-");

    for (size_t i = 0; i < n; i++)
        meg_str_add(out, s[i] == 'm' ? "s" : s + i, 1);
    if (s[n] == ':' || s[n] == ')')
        return n;
    fail_pattern(pattern, offset, "inline options other than i, m and x are not supported", e);
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
    return 0;
}

int meg_regex_compile(struct meg_regex **out, const char *pattern, struct meg_err *e)
{
    struct meg_str translated = { 0 };
    struct meg_regex *r;
    pcre2_code *code;
    PCRE2_UCHAR why[256];
    PCRE2_SIZE offset;
    uint32_t empty;
    int error, rc;

    if ((rc = translate(pattern, &translated, e)) < 0) {
        meg_str_free(&translated);
        return rc;
    }
    code = compile(&translated, &error, &offset);
    if (!code) {
        pcre2_get_error_message(error, why, sizeof why);
        rc = meg_fail(e, MEG_EFORMAT,
                      "regular expression '%.400s': PCRE2 rejects its translation '%.400s' at byte offset %zu: %s",
                      pattern, translated.s ? translated.s : "", offset, (const char *)why);
        meg_str_free(&translated);
        return rc;
    }
    meg_str_free(&translated);
    r = meg_new(sizeof *r);
    r->code = code;
    r->pattern = meg_strdup(pattern);
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
    r->matches_empty = empty;
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD); /* failure only makes matching slower */
    *out = r;
    return 0;
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
 * An expression such as [ab]+c|[ab] may examine the rest of the text from every starting offset, in quadratic time.
 * PCRE2's match limit applies to one starting offset, so it does not prevent quadratic time.  Therefore, the searches
 * of a text of n bytes may together re-examine at most RESCAN_FREE + RESCAN_PER_BYTE * n bytes.  To count these
 * bytes, a search first matches against a small window of the text.  After a partial match, the search enlarges the
 * window.
 */
enum { FIRST_WINDOW = 256, RESCAN_FREE = 1 << 22, RESCAN_PER_BYTE = 1024 };

/* State of the searches of one text. */
struct search {
    const struct meg_regex *r;
    const char *text;
    size_t n;
    uint64_t rescanned; /* number of bytes that were re-examined so far */
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack; /* NULL until a match overflows the default stack; creating a stack is slow */
};

static pcre2_match_context *context_of(struct search *s)
{
    if (!s->context && !(s->context = pcre2_match_context_create(NULL)))
        meg_die(MEG_EFAIL, "out of memory");
    return s->context;
}

static int match(struct search *s, size_t end, size_t begin, uint32_t options)
{
    int rc =
        pcre2_match(s->r->code, (PCRE2_SPTR)s->text, end, begin, PCRE2_NO_UTF_CHECK | options, s->match, s->context);

    if (rc != PCRE2_ERROR_JIT_STACKLIMIT || s->stack)
        return rc;
    s->stack = pcre2_jit_stack_create(1 << 15, JIT_STACK, NULL);
    if (!s->stack)
        meg_die(MEG_EFAIL, "out of memory");
    pcre2_jit_stack_assign(context_of(s), NULL, s->stack);
    return match(s, end, begin, options);
}

/* Match at offset `begin` only, against the complete text. */
static int match_at(struct search *s, size_t begin)
{
    int rc;

    pcre2_set_offset_limit(context_of(s), begin);
    rc = match(s, s->n, begin, 0);
    pcre2_set_offset_limit(s->context, PCRE2_UNSET);
    return rc;
}

/* Return the offset of the first character boundary at or after byte i. */
static size_t char_boundary(const struct search *s, size_t i)
{
    while (i < s->n && (s->text[i] & 0xC0) == 0x80)
        i++;
    return i;
}

/*
 * Find the next match at or after byte `begin`.  Returns the result of pcre2_match, or PCRE2_ERROR_MATCHLIMIT if too
 * many bytes were re-examined.
 */
static int find_next(struct search *s, size_t begin)
{
    const uint64_t max_rescanned = RESCAN_FREE + (uint64_t)RESCAN_PER_BYTE * s->n;

    for (size_t window = FIRST_WINDOW; s->rescanned <= max_rescanned;) {
        const size_t end = window < s->n - begin ? char_boundary(s, begin + window) : s->n;
        int rc;

        if (end < s->n)
            rc = match(s, end, begin, PCRE2_PARTIAL_HARD);
        else if (window > FIRST_WINDOW)
            rc = match_at(s, begin);
        else
            return match(s, end, begin, 0);
        if (rc == PCRE2_ERROR_PARTIAL) {
            begin = pcre2_get_startchar(s->match);
            window *= 4;
        } else if (rc == PCRE2_ERROR_NOMATCH) {
            begin = end < s->n ? end : char_boundary(s, begin + 1);
            window = FIRST_WINDOW;
            if (end < s->n)
                continue;
        } else {
            return rc;
        }
        s->rescanned += end - begin;
    }
    return PCRE2_ERROR_MATCHLIMIT;
}

static int fail_match(const struct search *s, int rc, struct meg_err *e)
{
    PCRE2_UCHAR why[256];

    pcre2_get_error_message(rc, why, sizeof why);
    return meg_fail(e, MEG_EFORMAT, "regular expression '%.400s' failed on a text of %zu bytes: %s%s", s->r->pattern,
                    s->n, (const char *)why,
                    rc == PCRE2_ERROR_MATCHLIMIT
                        ? "; the expression backtracks too often on this text; split the text into shorter lines"
                        : "");
}

int meg_regex_find_all(const struct meg_regex *r, const char *text, int64_t n, struct meg_spans *out, struct meg_err *e)
{
    struct search s = {
        .r = r, .text = text, .n = (size_t)n, .match = pcre2_match_data_create_from_pattern(r->code, NULL)
    };
    const PCRE2_SIZE *ovector;
    PCRE2_SIZE begin = 0, last_end = PCRE2_UNSET; /* last_end: end of the previous match */
    int rc = 1, result = 0;

    if (!s.match)
        meg_die(MEG_EFAIL, "out of memory");
    ovector = pcre2_get_ovector_pointer(s.match);
    while (n > 0 && (begin < s.n || (begin == s.n && r->matches_empty)) && (rc = find_next(&s, begin)) > 0) {
        if (ovector[1] > ovector[0] || ovector[1] != last_end) {
            meg_spans_add(out, text + ovector[0], (int64_t)(ovector[1] - ovector[0]));
            begin = last_end = ovector[1];
            continue;
        }
        begin = char_boundary(&s, begin + 1);
    }
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        result = fail_match(&s, rc, e);
    pcre2_match_data_free(s.match);
    pcre2_match_context_free(s.context);
    pcre2_jit_stack_free(s.stack);
    return result;
}
