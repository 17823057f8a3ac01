#define _GNU_SOURCE /* memmem */
/* Pre-tokenisers of tokenizer.json, one after the other; and the patterns that several parts have. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "io/json.h"
#include "tokenizer/bert/basic_tokenizer.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/hf/internal.h"
#include "unicode/char_class.h"
#include "unicode/utf8.h"

/* What becomes of the matches and of what lies between them. */
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };

enum kind { BYTE_LEVEL, SPLIT, DIGITS, PUNCTUATION, WHITESPACE, WHITESPACE_SPLIT, BERT, DELIMITER, METASPACE };

static const char *const names[] = { "ByteLevel",  "Split",           "Digits",           "Punctuation",
                                     "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit",
                                     "Metaspace" };

struct step {
    enum kind kind;
    enum behavior behavior;
    bool invert, use_regex, individual, splits;
    enum { NEVER, FIRST, ALWAYS } prefix; /* of BYTE_LEVEL a blank, of METASPACE the replacement */
    struct meg_hf_pattern pattern;        /* of METASPACE the replacement, too */
};

struct meg_hf_pretokenizer {
    struct step *step;
    int64_t n;
};

/* ---- patterns ---- */

int meg_hf_pattern_load(struct meg_hf_pattern *p, const json_t *part, const char *from, struct meg_err *e)
{
    const json_t *v = json_object_get(part, "pattern"), *regex = json_object_get(v, "Regex");
    const json_t *literal = json_is_string(v) ? v : json_object_get(v, "String");
    struct meg_err inner;
    int r;

    p->split = -1;
    if (json_is_string(regex)) {
        const char *s = json_string_value(regex);

        if ((r = meg_regex_compile(&p->regex, s, &inner)) < 0)
            return meg_fail(e, r, "%s: %s", from, inner.msg);
        p->split = meg_pretok_from_pattern(s);
        return MEG_OK;
    }
    if (!json_is_string(literal) || json_string_length(literal) == 0)
        return meg_fail(e, MEG_EFORMAT, "%s: pattern must be {\"String\": ...} or {\"Regex\": ...}", from);
    meg_str_add(&p->literal, json_string_value(literal), json_string_length(literal));
    return MEG_OK;
}

void meg_hf_pattern_free(struct meg_hf_pattern *p)
{
    meg_str_free(&p->literal);
    meg_regex_free(p->regex);
}

static int find(const struct meg_hf_pattern *p, const char *s, int64_t n, struct meg_spans *out, struct meg_err *e)
{
    const char *end = s + n;

    if (p->regex)
        return meg_regex_find_all(p->regex, s, n, out, e);
    while ((s = memmem(s, (size_t)(end - s), p->literal.s, p->literal.n))) {
        meg_spans_add(out, s, (int64_t)p->literal.n);
        s += p->literal.n;
    }
    return MEG_OK;
}

int meg_hf_pattern_replace(const struct meg_hf_pattern *p, const char *s, int64_t n, const struct meg_str *to,
                           int64_t most, struct meg_str *out, struct meg_err *e)
{
    const char *end = s + n, *found;
    struct meg_spans m = { 0 };
    int r = p->regex ? find(p, s, n, &m, e) : MEG_OK;

    while (!p->regex && (int64_t)out->n <= most && (found = memmem(s, (size_t)(end - s), p->literal.s, p->literal.n))) {
        meg_str_add(out, s, (size_t)(found - s));
        meg_str_add(out, to->s, to->n);
        s = found + p->literal.n;
    }
    for (int64_t i = 0; i < m.n && (int64_t)out->n <= most; i++) {
        meg_str_add(out, s, (size_t)(m.v[i].s - s));
        meg_str_add(out, to->s, to->n);
        s = m.v[i].s + m.v[i].n;
    }
    meg_str_add(out, s, (size_t)(end - s));
    free(m.v);
    return r;
}

/* ---- loading ---- */

static int load_behavior(enum behavior *b, const json_t *part, const char *from, struct meg_err *e)
{
    static const char *const name[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
    const char *s = NULL;
    int r = meg_json_get_str(part, "behavior", MEG_JSON_OPTIONAL, &s, from, e);

    if (r < 0 || !s)
        return r;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        if (strcasecmp(s, name[i]) == 0) {
            *b = (enum behavior)i;
            return MEG_OK;
        }
    }
    return meg_fail(e, MEG_EFORMAT, "%s: behavior '%s' is not known here", from, s);
}

static int load_metaspace(struct step *s, const json_t *part, const char *from, struct meg_err *e)
{
    const char *replacement = "\xE2\x96\x81", *scheme = NULL;
    bool add_prefix_space = true;
    int32_t cp;
    int r;

    s->splits = true;
    if ((r = meg_json_get_str(part, "replacement", MEG_JSON_OPTIONAL, &replacement, from, e)) < 0 ||
        (r = meg_json_get_bool(part, "add_prefix_space", MEG_JSON_OPTIONAL, &add_prefix_space, from, e)) < 0 ||
        (r = meg_json_get_str(part, "prepend_scheme", MEG_JSON_OPTIONAL, &scheme, from, e)) < 0 ||
        (r = meg_json_get_bool(part, "split", MEG_JSON_OPTIONAL, &s->splits, from, e)) < 0)
        return r;
    if (!*replacement || meg_utf8_decode(replacement, (int64_t)strlen(replacement), &cp) != (int)strlen(replacement))
        return meg_fail(e, MEG_EFORMAT, "%s: replacement '%s' is not one character", from, replacement);
    if (scheme && strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0 && strcmp(scheme, "never") != 0)
        return meg_fail(e, MEG_EFORMAT, "%s: prepend_scheme '%s' is not known here", from, scheme);
    s->prefix = scheme ? (*scheme == 'a'   ? ALWAYS
                          : *scheme == 'f' ? FIRST
                                           : NEVER)
                       : (add_prefix_space ? ALWAYS : NEVER);
    meg_str_add(&s->pattern.literal, replacement, strlen(replacement));
    return MEG_OK;
}

static int load_members(struct step *s, const json_t *part, const char *from, struct meg_err *e)
{
    bool add_prefix_space = true;
    const char *delimiter;
    int r;

    switch (s->kind) {
    case BYTE_LEVEL:
        s->use_regex = true;
        if ((r = meg_json_get_bool(part, "add_prefix_space", MEG_JSON_OPTIONAL, &add_prefix_space, from, e)) < 0)
            return r;
        s->prefix = add_prefix_space ? ALWAYS : NEVER;
        return meg_json_get_bool(part, "use_regex", MEG_JSON_OPTIONAL, &s->use_regex, from, e);
    case SPLIT:
        if ((r = meg_hf_pattern_load(&s->pattern, part, from, e)) < 0 ||
            (r = load_behavior(&s->behavior, part, from, e)) < 0)
            return r;
        return meg_json_get_bool(part, "invert", MEG_JSON_OPTIONAL, &s->invert, from, e);
    case DIGITS:
        r = meg_json_get_bool(part, "individual_digits", MEG_JSON_OPTIONAL, &s->individual, from, e);
        s->behavior = s->individual ? ISOLATED : CONTIGUOUS;
        return r;
    case PUNCTUATION: s->behavior = ISOLATED; return load_behavior(&s->behavior, part, from, e);
    case WHITESPACE: /* words are found, the rest is removed */
        s->invert = true;
        return meg_regex_compile(&s->pattern.regex,
                                 "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]+|"
                                 "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}\\s]+",
                                 e);
    case DELIMITER:
        if ((r = meg_json_get_str(part, "delimiter", MEG_JSON_REQUIRED, &delimiter, from, e)) < 0)
            return r;
        if (!*delimiter)
            return meg_fail(e, MEG_EFORMAT, "%s: delimiter is empty", from);
        meg_str_add(&s->pattern.literal, delimiter, strlen(delimiter));
        return MEG_OK;
    case METASPACE: return load_metaspace(s, part, from, e);
    default: return MEG_OK;
    }
}

static int add_step(void *to, int kind, const json_t *part, const char *from, struct meg_err *e)
{
    struct meg_hf_pretokenizer *p = to;

    p->step = meg_realloc_array(p->step, (size_t)p->n + 1, sizeof *p->step);
    p->step[p->n] = (struct step){ .kind = (enum kind)kind };
    return load_members(&p->step[p->n++], part, from, e);
}

static const struct meg_hf_sequence parts = { "pretokenizers", names, sizeof names / sizeof *names, add_step };

int meg_hf_pretokenizer_load(struct meg_hf_pretokenizer **out, const json_t *part, const char *from, struct meg_err *e)
{
    struct meg_hf_pretokenizer *p = meg_new(sizeof *p);
    int r = meg_hf_sequence_load(&parts, part, p, from, e);

    *out = p;
    if (r < 0) {
        meg_hf_pretokenizer_free(p);
        *out = NULL;
    }
    return r;
}

void meg_hf_pretokenizer_free(struct meg_hf_pretokenizer *p)
{
    if (!p)
        return;
    for (int64_t i = 0; i < p->n; i++)
        meg_hf_pattern_free(&p->step[i].pattern);
    free(p->step);
    free(p);
}

bool meg_hf_pretokenizer_is_byte_level(const struct meg_hf_pretokenizer *p, enum meg_pretok *split,
                                       bool *add_prefix_space)
{
    const struct step *first, *last;

    if (!p || p->n < 1 || p->n > 2 || p->step[p->n - 1].kind != BYTE_LEVEL)
        return false;
    first = p->step;
    last = &p->step[p->n - 1];
    *add_prefix_space = last->prefix == ALWAYS;
    *split = MEG_PRETOK_GPT2;
    if (p->n == 1)
        return last->use_regex;
    if (first->kind != SPLIT || first->pattern.split < 0 || first->behavior != ISOLATED || first->invert ||
        last->use_regex || last->prefix != NEVER)
        return false;
    *split = (enum meg_pretok)first->pattern.split;
    return true;
}

bool meg_hf_pretokenizer_splits_whitespace(const struct meg_hf_pretokenizer *p, bool *is_around_punctuation)
{
    *is_around_punctuation = p && p->n > 0 && p->step->kind == BERT;
    return p && p->n > 0 && (p->step->kind == BERT || p->step->kind == WHITESPACE_SPLIT);
}

bool meg_hf_pretokenizer_splits_metaspace(const struct meg_hf_pretokenizer *p)
{
    return p && p->n > 0 && p->step->kind == METASPACE && p->step->splits;
}

bool meg_hf_pretokenizer_is_metaspace(const struct meg_hf_pretokenizer *p, struct meg_span *mark)
{
    if (!p || p->n != 1 || p->step->kind != METASPACE || p->step->splits || p->step->prefix == ALWAYS)
        return false;
    *mark = (struct meg_span){ p->step->pattern.literal.s, (int64_t)p->step->pattern.literal.n };
    return true;
}

/* ---- at work ---- */

void meg_hf_pretokens_add(struct meg_hf_pretokens *p, const char *s, int64_t n, bool is_start)
{
    if (n == 0)
        return;
    MEG_ASSERT_LE((int64_t)p->text.n + n, INT32_MAX);
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 64;
        p->v = meg_realloc_array(p->v, (size_t)p->cap, sizeof *p->v);
    }
    p->v[p->n++] = (struct meg_hf_pretoken){ (int32_t)p->text.n, (int32_t)n, is_start };
    meg_str_add(&p->text, s, (size_t)n);
}

void meg_hf_pretokens_free(struct meg_hf_pretokens *p)
{
    meg_str_free(&p->text);
    free(p->v);
}

/* Characters that a step without a pattern looks for, each a match. */
static bool is_match(enum kind kind, int32_t cp)
{
    switch (kind) {
    case DIGITS: return meg_char_class_of(cp) == MEG_CHAR_NUMBER;
    case PUNCTUATION: return meg_bert_is_punctuation(cp);
    default: return meg_char_class_of(cp) == MEG_CHAR_SPACE;
    }
}

static int find_matches(const struct step *s, const char *text, int64_t n, struct meg_spans *out, struct meg_err *e)
{
    if (s->pattern.regex || s->pattern.literal.n > 0)
        return find(&s->pattern, text, n, out, e);
    for (int64_t i = 0; i < n;) {
        int32_t cp;
        int len = meg_utf8_decode(text + i, n - i, &cp);

        if (is_match(s->kind, cp))
            meg_spans_add(out, text + i, len);
        i += len;
    }
    return MEG_OK;
}

/* A stretch of a text: a match, or what lies between two. */
struct stretch {
    const char *s;
    int64_t n;
    bool is_match;
};

/* A text on its way to stretches. */
struct cut {
    const struct meg_spans *matches;
    bool invert;
    int64_t i; /* of matches, the next one */
    const char *at, *end;
};

static bool next_delimited(struct cut *c, struct stretch *out)
{
    const struct meg_span *m = c->i < c->matches->n ? &c->matches->v[c->i] : NULL;
    const char *stop = m ? m->s : c->end;

    if (c->at < stop) {
        *out = (struct stretch){ c->at, stop - c->at, c->invert };
    } else if (m) {
        *out = (struct stretch){ m->s, m->n, !c->invert };
        c->i++;
    } else {
        return false;
    }
    c->at += out->n;
    return true;
}

/* Does a stretch take in the one behind it? */
static bool joins(enum behavior behavior, const struct stretch *x, const struct stretch *next)
{
    switch (behavior) {
    case MERGED_WITH_PREVIOUS: return !x->is_match && next->is_match;
    case MERGED_WITH_NEXT: return x->is_match && !next->is_match;
    case CONTIGUOUS: return x->is_match == next->is_match;
    default: return false;
    }
}

/* Cut text at its matches; those may be joined by what they touch. */
static void cut(const struct meg_spans *m, enum behavior behavior, bool invert, const char *text, int64_t n,
                bool is_start, struct meg_hf_pretokens *out)
{
    struct cut c = { m, invert, 0, text, text + n };
    struct stretch x, next = { 0 };

    for (bool has = next_delimited(&c, &x); has; x = next) {
        while ((has = next_delimited(&c, &next)) && joins(behavior, &x, &next)) {
            x.n += next.n;
            x.is_match = next.is_match; /* of two that differ only one is joined */
        }
        if (behavior != REMOVED || !x.is_match)
            meg_hf_pretokens_add(out, x.s, x.n, is_start && x.s == text);
    }
}

static void byte_level(const struct step *s, const char *text, int64_t n, bool is_start, struct meg_hf_pretokens *out)
{
    struct meg_str prefixed = { 0 }, spelled = { 0 };
    struct meg_pretokens pieces = { 0 };
    const char *piece;
    int64_t len;

    if (s->prefix == ALWAYS && text[0] != ' ') {
        meg_str_add(&prefixed, " ", 1);
        meg_str_add(&prefixed, text, (size_t)n);
        text = prefixed.s;
        n++;
    }
    if (s->use_regex) {
        for (meg_pretokens_split(&pieces, MEG_PRETOK_GPT2, text, n); meg_pretokens_next(&pieces, &piece, &len);) {
            spelled.n = 0;
            meg_byte_alphabet_encode(&spelled, piece, len);
            meg_hf_pretokens_add(out, spelled.s, (int64_t)spelled.n, is_start && piece == text);
        }
        meg_pretokens_free(&pieces);
    } else {
        meg_byte_alphabet_encode(&spelled, text, n);
        meg_hf_pretokens_add(out, spelled.s, (int64_t)spelled.n, is_start);
    }
    meg_str_free(&prefixed);
    meg_str_free(&spelled);
}

static int metaspace(const struct step *s, const char *text, int64_t n, bool is_start, struct meg_hf_pretokens *out,
                     struct meg_err *e)
{
    const struct meg_str *mark = &s->pattern.literal;
    struct meg_str marked = { 0 };
    struct meg_spans m = { 0 };
    int r;

    for (int64_t i = 0; i < n; i++)
        meg_str_add(&marked, text[i] == ' ' ? mark->s : text + i, text[i] == ' ' ? mark->n : 1);
    if ((s->prefix == ALWAYS || (s->prefix == FIRST && is_start)) &&
        (marked.n < mark->n || memcmp(marked.s, mark->s, mark->n) != 0)) {
        struct meg_str whole = { 0 };

        meg_str_add(&whole, mark->s, mark->n);
        meg_str_add(&whole, marked.s, marked.n);
        meg_str_free(&marked);
        marked = whole;
    }
    r = s->splits ? find(&s->pattern, marked.s, (int64_t)marked.n, &m, e) : MEG_OK;
    cut(&m, MERGED_WITH_NEXT, false, marked.s, (int64_t)marked.n, is_start, out);
    free(m.v);
    meg_str_free(&marked);
    return r;
}

static int run_step(const struct step *s, const char *text, int64_t n, bool is_start, struct meg_hf_pretokens *out,
                    struct meg_err *e)
{
    struct meg_spans m = { 0 };
    int r;

    if (s->kind == BYTE_LEVEL) {
        byte_level(s, text, n, is_start, out);
        return MEG_OK;
    }
    if (s->kind == METASPACE)
        return metaspace(s, text, n, is_start, out, e);
    r = find_matches(s, text, n, &m, e);
    cut(&m, s->behavior, s->invert, text, n, is_start, out);
    free(m.v);
    return r;
}

static int run(const struct step *s, const struct meg_hf_pretokens *in, struct meg_hf_pretokens *out, struct meg_err *e)
{
    enum { MOST = 256 << 20 };
    int r = MEG_OK;

    out->n = 0;
    out->text.n = 0;
    for (int64_t i = 0; i < in->n && r == MEG_OK; i++) {
        r = run_step(s, in->text.s + in->v[i].at, in->v[i].n, in->v[i].is_start, out, e);
        if (r == MEG_OK && out->text.n > MOST)
            r = meg_fail(e, MEG_EFORMAT, "pre_tokenizer: more than %d MiB of one text; break it up", MOST >> 20);
    }
    return r;
}

int meg_hf_pretokenizer_run(const struct meg_hf_pretokenizer *p, struct meg_hf_pretokens *pieces,
                            struct meg_hf_pretokens *other, struct meg_err *e)
{
    static const struct step punctuation = { .kind = PUNCTUATION, .behavior = ISOLATED };
    int r = MEG_OK;

    for (int64_t i = 0; i < p->n && r == MEG_OK; i++) {
        for (int half = 0; half < (p->step[i].kind == BERT ? 2 : 1) && r == MEG_OK; half++) {
            struct meg_hf_pretokens was = *pieces;

            r = run(half ? &punctuation : &p->step[i], pieces, other, e);
            *pieces = *other;
            *other = was;
        }
    }
    return r;
}
