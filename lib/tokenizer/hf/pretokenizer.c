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

struct step {
    enum step_type type;
    enum behavior behavior;
    bool add_prefix_space, invert, use_regex, individual, splits;
    /* BYTE_LEVEL: where to prepend a space; METASPACE: where to prepend the replacement character */
    enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend_scheme;
    struct meg_hf_pattern pattern; /* text is split at its matches; METASPACE: the character that replaces spaces */
    const char *string, *scheme;   /* while loading: behavior or replacement; prepend_scheme */
};

/* ---- Loading ---- */

#define FIELD(f) offsetof(struct step, f)
static const struct meg_hf_step_type types[] = {
    [BYTE_LEVEL] = { "ByteLevel",
                     { { "add_prefix_space", MEG_HF_BOOL, FIELD(add_prefix_space), "true" },
                       { "use_regex", MEG_HF_BOOL, FIELD(use_regex), "true" } } },
    [SPLIT] = { "Split",
                { { "pattern", MEG_HF_PATTERN, FIELD(pattern), NULL },
                  { "behavior", MEG_HF_STRING, FIELD(string), "Removed" },
                  { "invert", MEG_HF_BOOL, FIELD(invert), NULL } } },
    [DIGITS] = { "Digits", { { "individual_digits", MEG_HF_BOOL, FIELD(individual), NULL } } },
    [PUNCTUATION] = { "Punctuation", { { "behavior", MEG_HF_STRING, FIELD(string), "Isolated" } } },
    [WHITESPACE] = { .name = "Whitespace" },
    [WHITESPACE_SPLIT] = { .name = "WhitespaceSplit" },
    [BERT] = { .name = "BertPreTokenizer" },
    [DELIMITER] = { "CharDelimiterSplit", { { "delimiter", MEG_HF_TEXT, FIELD(pattern.literal), NULL } } },
    [METASPACE] = { "Metaspace",
                    { { "replacement", MEG_HF_STRING, FIELD(string), "\xE2\x96\x81" },
                      { "add_prefix_space", MEG_HF_BOOL, FIELD(add_prefix_space), "true" },
                      { "prepend_scheme", MEG_HF_STRING, FIELD(scheme), NULL },
                      { "split", MEG_HF_BOOL, FIELD(splits), "true" } } },
};

static int finish_behavior(struct step *s, const char *where, struct meg_err *e)
{
    static const char *const name[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous" };

    while (s->behavior <= CONTIGUOUS && strcasecmp(s->string, name[s->behavior]) != 0)
        s->behavior++;
    return s->behavior <= CONTIGUOUS ? 0
                                     : meg_fail(e, MEG_EFORMAT, "%s: behavior '%s' is not supported", where, s->string);
}

static int finish_metaspace(struct step *s, const char *where, struct meg_err *e)
{
    static const char *const schemes[] = { "never", "first", "always" };
    const size_t n = strlen(s->string);
    int32_t cp;

    if (n == 0 || meg_utf8_decode(s->string, (int64_t)n, &cp) != (int)n)
        return meg_fail(e, MEG_EFORMAT, "%s: replacement is '%s', expected one character", where, s->string);
    meg_str_add(&s->pattern.literal, s->string, n);
    s->prepend_scheme = s->add_prefix_space ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (!s->scheme)
        return 0;
    for (s->prepend_scheme = PREPEND_NEVER; s->prepend_scheme <= PREPEND_ALWAYS; s->prepend_scheme++)
        if (strcmp(s->scheme, schemes[s->prepend_scheme]) == 0)
            return 0;
    return meg_fail(e, MEG_EFORMAT, "%s: prepend_scheme '%s' is not supported", where, s->scheme);
}

static int finish_step(void *step, int type, const char *where, struct meg_err *e)
{
    struct step *s = step;

    s->type = (enum step_type)type;
    switch (s->type) {
    case BYTE_LEVEL: s->prepend_scheme = s->add_prefix_space ? PREPEND_ALWAYS : PREPEND_NEVER; return 0;
    case SPLIT:
    case PUNCTUATION: return finish_behavior(s, where, e);
    case DIGITS: s->behavior = s->individual ? ISOLATED : CONTIGUOUS; return 0;
    case WHITESPACE: /* the regex matches words and runs of symbols; `invert` keeps the matches */
        s->invert = true;
        return meg_regex_compile(&s->pattern.regex,
                                 "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]+|"
                                 "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}\\s]+",
                                 e);
    case DELIMITER: return s->pattern.literal.n > 0 ? 0 : meg_fail(e, MEG_EFORMAT, "%s: delimiter is empty", where);
    case METASPACE: return finish_metaspace(s, where, e);
    default: return 0;
    }
}

static void free_step(void *step)
{
    meg_hf_pattern_free(&((struct step *)step)->pattern);
}

const struct meg_hf_step_class meg_hf_pretokenizer = { "pretokenizers",     types,       sizeof types / sizeof *types,
                                                       sizeof(struct step), finish_step, free_step };

bool meg_hf_pretokenizer_is_byte_level(const struct meg_hf_steps *p, enum meg_pretok *pretok, bool *add_prefix_space)
{
    const struct step *first = meg_hf_step(p, 0), *last = meg_hf_step(p, p ? p->n - 1 : 0);

    if (!last || p->n > 2 || last->type != BYTE_LEVEL)
        return false;
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

bool meg_hf_pretokenizer_splits_whitespace(const struct meg_hf_steps *p, bool *is_around_punctuation)
{
    const struct step *first = meg_hf_step(p, 0);

    *is_around_punctuation = first && first->type == BERT;
    return first && (first->type == BERT || first->type == WHITESPACE_SPLIT);
}

bool meg_hf_pretokenizer_splits_metaspace(const struct meg_hf_steps *p)
{
    const struct step *first = meg_hf_step(p, 0);

    return first && first->type == METASPACE && first->splits;
}

bool meg_hf_pretokenizer_is_metaspace(const struct meg_hf_steps *p, struct meg_span *mark)
{
    const struct step *s = meg_hf_step(p, 0);

    if (!s || p->n != 1 || s->type != METASPACE || s->splits || s->prepend_scheme == PREPEND_ALWAYS)
        return false;
    *mark = (struct meg_span){ s->pattern.literal.s, (int64_t)s->pattern.literal.n };
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

int meg_hf_pretokenizer_run(const struct meg_hf_steps *p, struct meg_hf_pretokens *pretokens,
                            struct meg_hf_pretokens *scratch, struct meg_err *e)
{
    static const struct step punctuation = { .type = PUNCTUATION, .behavior = ISOLATED };
    const struct step *s;
    int r = 0;

    for (int64_t i = 0; r == 0 && (s = meg_hf_step(p, i)); i++) {
        for (int half = 0; half < (s->type == BERT ? 2 : 1) && r == 0; half++) {
            struct meg_hf_pretokens was = *pretokens;

            r = run(half ? &punctuation : s, pretokens, scratch, e);
            *pretokens = *scratch;
            *scratch = was;
        }
    }
    return r;
}
