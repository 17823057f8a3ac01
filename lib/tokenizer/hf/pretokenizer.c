/* pretokenizer.c - pre-tokenizers of tokenizer.json.  Each step splits the pre-tokens of the previous step. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "io/json.h"
#include "tokenizer/bert/basic_tokenizer.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/hf/internal.h"
#include "unicode/char_class.h"
#include "unicode/utf8.h"

/* Ways to combine the matches of a pattern ("delimiters") with the text between the matches. */
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };

enum step_type { BYTE_LEVEL, SPLIT, DIGITS, PUNCTUATION, WHITESPACE, WHITESPACE_SPLIT, BERT, DELIMITER, METASPACE };

static const char *const names[] = { "ByteLevel",  "Split",           "Digits",           "Punctuation",
                                     "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit",
                                     "Metaspace" };

struct step {
    enum step_type type;
    enum behavior behavior;
    bool invert, use_regex, individual, splits;
    /* BYTE_LEVEL: where to prepend a space; METASPACE: where to prepend the replacement character */
    enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend_scheme;
    struct meg_hf_pattern pattern; /* text is split at its matches; METASPACE: the character that replaces spaces */
};

struct meg_hf_pretokenizer {
    struct step *step;
    int64_t n;
};

/* ---- Loading ---- */

static int load_behavior(enum behavior *b, const json_t *part, const char *where, struct meg_err *e)
{
    static const char *const name[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
    const char *s = NULL;
    int r = meg_json_get_str(part, "behavior", MEG_JSON_OPTIONAL, &s, where, e);

    if (r < 0 || !s)
        return r;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        if (strcasecmp(s, name[i]) == 0) {
            *b = (enum behavior)i;
            return 0;
        }
    }
    return meg_fail(e, MEG_EFORMAT, "%s: behavior '%s' is not supported", where, s);
}

static int load_metaspace(struct step *s, const json_t *part, const char *where, struct meg_err *e)
{
    const char *replacement = "\xE2\x96\x81", *scheme = NULL;
    bool add_prefix_space = true;
    int32_t cp;
    int r;

    s->splits = true;
    if ((r = meg_json_get_str(part, "replacement", MEG_JSON_OPTIONAL, &replacement, where, e)) < 0 ||
        (r = meg_json_get_bool(part, "add_prefix_space", MEG_JSON_OPTIONAL, &add_prefix_space, where, e)) < 0 ||
        (r = meg_json_get_str(part, "prepend_scheme", MEG_JSON_OPTIONAL, &scheme, where, e)) < 0 ||
        (r = meg_json_get_bool(part, "split", MEG_JSON_OPTIONAL, &s->splits, where, e)) < 0)
        return r;
    if (!*replacement || meg_utf8_decode(replacement, (int64_t)strlen(replacement), &cp) != (int)strlen(replacement))
        return meg_fail(e, MEG_EFORMAT, "%s: replacement is '%s', expected one character", where, replacement);
    if (scheme && strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0 && strcmp(scheme, "never") != 0)
        return meg_fail(e, MEG_EFORMAT, "%s: prepend_scheme '%s' is not supported", where, scheme);
    s->prepend_scheme = scheme ? (*scheme == 'a'   ? PREPEND_ALWAYS
                                  : *scheme == 'f' ? PREPEND_FIRST
                                                   : PREPEND_NEVER)
                               : (add_prefix_space ? PREPEND_ALWAYS : PREPEND_NEVER);
    meg_str_add(&s->pattern.literal, replacement, strlen(replacement));
    return 0;
}

static int load_step(void *step, int type, const json_t *part, const char *where, struct meg_err *e)
{
    struct step *s = step;
    bool add_prefix_space = true;
    const char *delimiter;
    int r;

    s->type = (enum step_type)type;
    switch (s->type) {
    case BYTE_LEVEL:
        s->use_regex = true;
        if ((r = meg_json_get_bool(part, "add_prefix_space", MEG_JSON_OPTIONAL, &add_prefix_space, where, e)) < 0)
            return r;
        s->prepend_scheme = add_prefix_space ? PREPEND_ALWAYS : PREPEND_NEVER;
        return meg_json_get_bool(part, "use_regex", MEG_JSON_OPTIONAL, &s->use_regex, where, e);
    case SPLIT:
        if ((r = meg_hf_pattern_load(&s->pattern, part, where, e)) < 0 ||
            (r = load_behavior(&s->behavior, part, where, e)) < 0)
            return r;
        return meg_json_get_bool(part, "invert", MEG_JSON_OPTIONAL, &s->invert, where, e);
    case DIGITS:
        r = meg_json_get_bool(part, "individual_digits", MEG_JSON_OPTIONAL, &s->individual, where, e);
        s->behavior = s->individual ? ISOLATED : CONTIGUOUS;
        return r;
    case PUNCTUATION: s->behavior = ISOLATED; return load_behavior(&s->behavior, part, where, e);
    case WHITESPACE: /* the regex matches words and runs of symbols; `invert` keeps the matches */
        s->invert = true;
        return meg_regex_compile(&s->pattern.regex,
                                 "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]+|"
                                 "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}\\s]+",
                                 e);
    case DELIMITER:
        if ((r = meg_json_get_str(part, "delimiter", MEG_JSON_REQUIRED, &delimiter, where, e)) < 0)
            return r;
        if (!*delimiter)
            return meg_fail(e, MEG_EFORMAT, "%s: delimiter is empty", where);
        meg_str_add(&s->pattern.literal, delimiter, strlen(delimiter));
        return 0;
    case METASPACE: return load_metaspace(s, part, where, e);
    default: return 0;
    }
}

static void free_step(void *step)
{
    meg_hf_pattern_free(&((struct step *)step)->pattern);
}

static const struct meg_hf_step_class step_class = { "pretokenizers",     names,     sizeof names / sizeof *names,
                                                     sizeof(struct step), load_step, free_step };

int meg_hf_pretokenizer_load(struct meg_hf_pretokenizer **out, const json_t *part, const char *where, struct meg_err *e)
{
    struct meg_hf_steps steps;
    int r = meg_hf_steps_load(&steps, &step_class, part, where, e);

    if (r < 0)
        return r;
    *out = meg_new(sizeof **out);
    (*out)->step = steps.v;
    (*out)->n = steps.n;
    return 0;
}

void meg_hf_pretokenizer_free(struct meg_hf_pretokenizer *p)
{
    if (!p)
        return;
    meg_hf_steps_free(p->step, p->n, &step_class);
    free(p);
}

bool meg_hf_pretokenizer_is_byte_level(const struct meg_hf_pretokenizer *p, enum meg_pretok *pretok,
                                       bool *add_prefix_space)
{
    const struct step *first, *last;

    if (!p || p->n < 1 || p->n > 2 || p->step[p->n - 1].type != BYTE_LEVEL)
        return false;
    first = p->step;
    last = &p->step[p->n - 1];
    *add_prefix_space = last->prepend_scheme == PREPEND_ALWAYS;
    *pretok = MEG_PRETOK_GPT2;
    if (p->n == 1)
        return last->use_regex;
    if (first->type != SPLIT || first->pattern.pretok < 0 || first->behavior != ISOLATED || first->invert ||
        last->use_regex || last->prepend_scheme != PREPEND_NEVER)
        return false;
    *pretok = (enum meg_pretok)first->pattern.pretok;
    return true;
}

bool meg_hf_pretokenizer_splits_whitespace(const struct meg_hf_pretokenizer *p, bool *is_around_punctuation)
{
    *is_around_punctuation = p && p->n > 0 && p->step->type == BERT;
    return p && p->n > 0 && (p->step->type == BERT || p->step->type == WHITESPACE_SPLIT);
}

bool meg_hf_pretokenizer_splits_metaspace(const struct meg_hf_pretokenizer *p)
{
    return p && p->n > 0 && p->step->type == METASPACE && p->step->splits;
}

bool meg_hf_pretokenizer_is_metaspace(const struct meg_hf_pretokenizer *p, struct meg_span *mark)
{
    if (!p || p->n != 1 || p->step->type != METASPACE || p->step->splits || p->step->prepend_scheme == PREPEND_ALWAYS)
        return false;
    *mark = (struct meg_span){ p->step->pattern.literal.s, (int64_t)p->step->pattern.literal.n };
    return true;
}

/* ---- Splitting ---- */

void meg_hf_pretokens_add(struct meg_hf_pretokens *p, const char *s, int64_t n, bool is_text_start)
{
    if (n == 0)
        return;
    MEG_ASSERT_LE((int64_t)p->text.n + n, INT32_MAX);
    p->v = meg_grow(p->v, p->n, &p->cap, sizeof *p->v);
    p->v[p->n++] = (struct meg_hf_pretoken){ (int32_t)p->text.n, (int32_t)n, is_text_start };
    meg_str_add(&p->text, s, (size_t)n);
}

void meg_hf_pretokens_free(struct meg_hf_pretokens *p)
{
    meg_str_free(&p->text);
    free(p->v);
}

/* Return true if cp is a delimiter of a step without a pattern. */
static bool is_match(enum step_type type, int32_t cp)
{
    switch (type) {
    case DIGITS: return meg_char_class_of(cp) == MEG_CHAR_NUMBER;
    case PUNCTUATION: return meg_bert_is_punctuation(cp);
    default: return meg_char_class_of(cp) == MEG_CHAR_SPACE;
    }
}

static int find_matches(const struct step *s, const char *text, int64_t n, struct meg_spans *out, struct meg_err *e)
{
    if (s->pattern.regex || s->pattern.literal.n > 0)
        return meg_hf_pattern_find(&s->pattern, text, n, out, e);
    for (int64_t i = 0; i < n;) {
        int32_t cp;
        int len = meg_utf8_decode(text + i, n - i, &cp);

        if (is_match(s->type, cp))
            meg_spans_add(out, text + i, len);
        i += len;
    }
    return 0;
}

/* A match, or the text between two matches. */
struct delimited {
    const char *s;
    int64_t n;
    bool is_match;
};

/* An iterator over the matches in a text and the text between the matches. */
struct delimited_iter {
    const struct meg_spans *matches;
    bool invert;
    int64_t i; /* index of the next match */
    const char *at, *end;
};

static bool next_delimited(struct delimited_iter *c, struct delimited *out)
{
    const struct meg_span *m = c->i < c->matches->n ? &c->matches->v[c->i] : NULL;
    const char *stop = m ? m->s : c->end;

    if (c->at < stop) {
        *out = (struct delimited){ c->at, stop - c->at, c->invert };
    } else if (m) {
        *out = (struct delimited){ m->s, m->n, !c->invert };
        c->i++;
    } else {
        return false;
    }
    c->at += out->n;
    return true;
}

/* Return true if x and next, which follows x, belong to one pre-token. */
static bool merges_with_next(enum behavior behavior, const struct delimited *x, const struct delimited *next)
{
    switch (behavior) {
    case MERGED_WITH_PREVIOUS: return !x->is_match && next->is_match;
    case MERGED_WITH_NEXT: return x->is_match && !next->is_match;
    case CONTIGUOUS: return x->is_match == next->is_match;
    default: return false;
    }
}

/*
 * Split text at the matches m, and keep, merge or remove the matches according to `behavior`.  If `invert` is set,
 * exchange the matches with the text between the matches.
 */
static void split(const struct meg_spans *m, enum behavior behavior, bool invert, const char *text, int64_t n,
                  bool is_text_start, struct meg_hf_pretokens *out)
{
    struct delimited_iter c = { m, invert, 0, text, text + n };
    struct delimited x, next = { 0 };

    for (bool has = next_delimited(&c, &x); has; x = next) {
        while ((has = next_delimited(&c, &next)) && merges_with_next(behavior, &x, &next)) {
            x.n += next.n;
            x.is_match = next.is_match; /* only the last part of x decides whether the part after it is merged */
        }
        if (behavior != REMOVED || !x.is_match)
            meg_hf_pretokens_add(out, x.s, x.n, is_text_start && x.s == text);
    }
}

static void byte_level(const struct step *s, const char *text, int64_t n, bool is_text_start,
                       struct meg_hf_pretokens *out)
{
    struct meg_str prefixed = { 0 }, encoded = { 0 };
    struct meg_pretokens pretokens = { 0 };
    const char *pretoken;
    int64_t len;

    if (s->prepend_scheme == PREPEND_ALWAYS && text[0] != ' ') {
        meg_str_add(&prefixed, " ", 1);
        meg_str_add(&prefixed, text, (size_t)n);
        text = prefixed.s;
        n++;
    }
    if (s->use_regex) {
        for (meg_pretokens_split(&pretokens, MEG_PRETOK_GPT2, text, n);
             meg_pretokens_next(&pretokens, &pretoken, &len);) {
            encoded.n = 0;
            meg_byte_alphabet_encode(&encoded, pretoken, len);
            meg_hf_pretokens_add(out, encoded.s, (int64_t)encoded.n, is_text_start && pretoken == text);
        }
        meg_pretokens_free(&pretokens);
    } else {
        meg_byte_alphabet_encode(&encoded, text, n);
        meg_hf_pretokens_add(out, encoded.s, (int64_t)encoded.n, is_text_start);
    }
    meg_str_free(&prefixed);
    meg_str_free(&encoded);
}

static int metaspace(const struct step *s, const char *text, int64_t n, bool is_text_start,
                     struct meg_hf_pretokens *out, struct meg_err *e)
{
    const struct meg_str *mark = &s->pattern.literal;
    struct meg_str marked = { 0 };
    struct meg_spans m = { 0 };
    int r;

    for (int64_t i = 0; i < n; i++)
        meg_str_add(&marked, text[i] == ' ' ? mark->s : text + i, text[i] == ' ' ? mark->n : 1);
    if ((s->prepend_scheme == PREPEND_ALWAYS || (s->prepend_scheme == PREPEND_FIRST && is_text_start)) &&
        (marked.n < mark->n || memcmp(marked.s, mark->s, mark->n) != 0)) {
        struct meg_str prepended = { 0 };

        meg_str_add(&prepended, mark->s, mark->n);
        meg_str_add(&prepended, marked.s, marked.n);
        meg_str_free(&marked);
        marked = prepended;
    }
    r = s->splits ? meg_hf_pattern_find(&s->pattern, marked.s, (int64_t)marked.n, &m, e) : 0;
    split(&m, MERGED_WITH_NEXT, false, marked.s, (int64_t)marked.n, is_text_start, out);
    free(m.v);
    meg_str_free(&marked);
    return r;
}

static int run_step(const struct step *s, const char *text, int64_t n, bool is_text_start, struct meg_hf_pretokens *out,
                    struct meg_err *e)
{
    struct meg_spans m = { 0 };
    int r;

    if (s->type == BYTE_LEVEL) {
        byte_level(s, text, n, is_text_start, out);
        return 0;
    }
    if (s->type == METASPACE)
        return metaspace(s, text, n, is_text_start, out, e);
    r = find_matches(s, text, n, &m, e);
    split(&m, s->behavior, s->invert, text, n, is_text_start, out);
    free(m.v);
    return r;
}

static int run(const struct step *s, const struct meg_hf_pretokens *in, struct meg_hf_pretokens *out, struct meg_err *e)
{
    enum { MAX_BYTES = 256 << 20 };
    int r = 0;

    out->n = 0;
    out->text.n = 0;
    for (int64_t i = 0; i < in->n && r == 0; i++) {
        r = run_step(s, in->text.s + in->v[i].offset, in->v[i].n, in->v[i].is_text_start, out, e);
        if (r == 0 && out->text.n > MAX_BYTES)
            r = meg_fail(e, MEG_EFORMAT, "pre_tokenizer: the text grows to more than %d MiB; split the document",
                         MAX_BYTES >> 20);
    }
    return r;
}

int meg_hf_pretokenizer_run(const struct meg_hf_pretokenizer *p, struct meg_hf_pretokens *pretokens,
                            struct meg_hf_pretokens *scratch, struct meg_err *e)
{
    static const struct step punctuation = { .type = PUNCTUATION, .behavior = ISOLATED };
    int r = 0;

    for (int64_t i = 0; i < p->n && r == 0; i++) {
        for (int half = 0; half < (p->step[i].type == BERT ? 2 : 1) && r == 0; half++) {
            struct meg_hf_pretokens was = *pretokens;

            r = run(half ? &punctuation : &p->step[i], pretokens, scratch, e);
            *pretokens = *scratch;
            *scratch = was;
        }
    }
    return r;
}
