/*
 * punkt.c - Punkt sentence splitting.  A period, question mark or exclamation mark ("end mark") is a candidate for a
 * sentence boundary in two cases: punctuation follows, or whitespace and more text follow.  With keep_newlines, the
 * candidates are different (next_candidate_keep_newlines).  The context of a candidate is the text around it.  Punkt's
 * heuristics classify the words of the context.  NLTK finds candidates, contexts and words by regular expressions; the
 * functions below find the same candidates, contexts and words in linear time.
 */
#define _GNU_SOURCE /* memrchr */
#include "sentence/punkt.h"
#include <string.h>
#include "base/mem.h"
#include "sentence/internal.h"
#include "unicode/case_map.h"
#include "unicode/char_class.h"
#include "unicode/utf8.h"

enum { CHUNK_CHARS = 1000000 };

/* ---- characters --------------------------------------------------------------------------------- */

/* Return the length of the whitespace character at p (\s in Python's regular expressions), or 0. */
static int space_length(const char *p, const char *end)
{
    const unsigned char c = p < end ? (unsigned char)*p : 'x';
    int32_t cp;
    int len;

    if (c < 0x80)
        return (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= ' ');
    if (c != 0xC2 && c != 0xE1 && c != 0xE2 && c != 0xE3)
        return 0;
    len = meg_utf8_decode(p, end - p, &cp);
    return meg_char_is_space(cp) ? len : 0;
}

static const char *skip_space(const char *p, const char *end)
{
    for (int len; (len = space_length(p, end)) > 0;)
        p += len;
    return p;
}

/*
 * Skip to the next whitespace.  Advancing by bytes is safe because no continuation byte begins a whitespace character.
 */
static const char *skip_nonspace(const char *p, const char *end)
{
    while (p < end && ((*p > ' ' && *p < 0x7F) || space_length(p, end) == 0))
        p++;
    return p;
}

static bool is_ascii_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_end_mark(char c)
{
    return c == '.' || c == '?' || c == '!';
}

/*
 * Return whether c is one of the punctuation characters that cannot be part of a word (NLTK's _re_non_word_chars).  An
 * end mark that is directly followed by such a character is a candidate for a sentence boundary.
 */
static bool is_punctuation(char c)
{
    return c && strchr(")\";}]*:@'({[!?", c);
}

/* ---- words -------------------------------------------------------------------------------------- */

struct word {
    const char *s, *end;
    bool is_sentbreak, is_abbreviation, is_ellipsis; /* sentbreak, abbr and ellipsis of NLTK's tokens */
};

/* Return the length of multi-character punctuation at p (--, .., or ". . ."), or 0. */
static int64_t multi_char_punct(const char *p, const char *end)
{
    const char *q = p, *last = p;
    int pairs = 0;

    if (p == end || (*p != '-' && *p != '.'))
        return 0;
    while (q < end && *q == *p)
        q++;
    if (q - p >= 2)
        return q - p;
    for (q = p; q < end && *q == '.' && space_length(q + 1, end) > 0 && q[1] != '\n'; pairs++) {
        last = q;
        q += 1 + space_length(q + 1, end);
    }
    if (pairs >= 2 && q < end && *q == '.')
        return q + 1 - p;
    return pairs >= 3 ? last + 1 - p : 0;
}

/* Return whether a word ends before p: the text ends at p, or whitespace or punctuation begins at p. */
static bool ends_word(const char *p, const char *end)
{
    return p == end || space_length(p, end) > 0 || is_punctuation(*p) || multi_char_punct(p, end) > 0;
}

/* Get the next word at or after *pos, and set *pos to its end.  Returns false if there is none. */
static bool next_word(const char **pos, const char *end, struct word *w)
{
    const char *p = skip_space(*pos, end);
    int64_t len = multi_char_punct(p, end);
    int32_t cp;

    if (p == end)
        return false;
    *w = (struct word){ .s = p };
    if (len > 0) {
        p += len;
    } else if (*p && strchr("(\"`{[:;&#*@)}]-,", *p)) {
        p++;
    } else {
        do
            p += meg_utf8_decode(p, end - p, &cp);
        while (!ends_word(p, end) && !(*p == ',' && ends_word(p + 1, end)));
    }
    w->end = *pos = p;
    return true;
}

/* Parameters and reusable buffers for the classification of words. */
struct scratch {
    const struct meg_punkt *p;
    struct meg_str first, second, both;
};

static bool contains(const struct meg_strtab *table, const char *s, size_t n)
{
    return meg_strtab_find(table, s, (int64_t)n) >= 0;
}

/* Return whether [p, end) is a number: it matches the regular expression -?[.,]?\d[\d,.-]* . */
static bool is_number(const char *p, const char *end)
{
    int32_t cp;

    p += p < end && *p == '-';
    p += p < end && (*p == '.' || *p == ',');
    for (const char *begin = p; p < end;) {
        int len = meg_utf8_decode(p, end - p, &cp);

        if (!meg_char_is_in(cp, MEG_CATEGORY(ND)) && (p == begin || (cp != ',' && cp != '.' && cp != '-')))
            return false;
        p += len;
        if (p == end)
            return true;
    }
    return false;
}

/*
 * Return whether the word is one character, followed by one more byte.  The character must be a letter, an underscore,
 * or a number of category Nl or No.  Such a word is an initial if it ends with a period.
 */
static bool is_initial(const struct word *w)
{
    int32_t cp;
    int len = meg_utf8_decode(w->s, w->end - w->s, &cp);

    if (w->end - w->s != len + 1)
        return false;
    return cp == '_' || meg_char_is_in(cp, MEG_LETTERS | MEG_CATEGORY(NL) | MEG_CATEGORY(NO));
}

static bool ends_with_period(const struct word *w)
{
    return w->end[-1] == '.';
}

/* Classify a word without its context, as NLTK's _first_pass_annotation does. */
static void first_pass_annotation(struct scratch *j, struct word *w)
{
    const struct meg_strtab *known = &j->p->abbreviations;
    const int64_t n = w->end - w->s;
    const char *s, *hyphen;

    if (n == 1) {
        w->is_sentbreak = is_end_mark(*w->s);
    } else if (ends_with_period(w) && w->end[-2] == '.') {
        w->is_ellipsis = true;
    } else if (ends_with_period(w)) {
        j->first.n = 0;
        meg_utf8_add_lower(&j->first, w->s, n - 1);
        s = j->first.s;
        hyphen = memrchr(s, '-', j->first.n);
        w->is_abbreviation = contains(known, s, j->first.n) ||
                             (hyphen && contains(known, hyphen + 1, (size_t)(s + j->first.n - (hyphen + 1))));
        w->is_sentbreak = !w->is_abbreviation;
    }
}

/*
 * Set *type to the key of a word in the parameters: the word in lower case, or ##number## for a number.  If
 * drops_period is true, remove a period at the end of the key, unless the key is only a period.
 */
static void set_type(struct meg_str *type, const struct word *w, bool drops_period)
{
    type->n = 0;
    if (is_number(w->s, w->end))
        meg_str_printf(type, "##number##");
    else
        meg_utf8_add_lower(type, w->s, w->end - w->s);
    if (drops_period && type->n > 1 && type->s[type->n - 1] == '.')
        type->n--;
}

enum sentence_start { NO, YES, UNKNOWN };

/*
 * Decide whether w, with first character `first`, begins a sentence according to its orthographic contexts, as NLTK's
 * _ortho_heuristic does.
 */
static enum sentence_start ortho_heuristic(unsigned contexts, const struct word *w, int32_t first)
{
    if (w->end - w->s == 1 && *w->s && strchr(";:,.!?", *w->s))
        return NO;
    if (meg_char_is_upper(first) && (contexts & PUNKT_ORTHO_LC) && !(contexts & PUNKT_ORTHO_MID_UC))
        return YES;
    if (meg_char_is_lower(first) && ((contexts & PUNKT_ORTHO_UC) || !(contexts & PUNKT_ORTHO_BEG_LC)))
        return NO;
    return UNKNOWN;
}

/* Revise the classification of w based on the next word, as NLTK's _second_pass_annotation does. */
static void second_pass_annotation(struct scratch *j, struct word *w, const struct word *next)
{
    const struct meg_punkt *p = j->p;
    const bool initial = is_initial(w);
    enum sentence_start begins;
    unsigned contexts = 0;
    int32_t first;
    int64_t k;

    if (!ends_with_period(w))
        return;
    set_type(&j->first, w, true);
    set_type(&j->second, next, next->is_sentbreak);
    j->both.n = 0;
    meg_str_add(&j->both, j->first.s, j->first.n);
    meg_str_add(&j->both, "\t", 1);
    meg_str_add(&j->both, j->second.s, j->second.n);
    if (contains(&p->collocations, j->both.s, j->both.n)) {
        w->is_sentbreak = false;
        return;
    }
    if ((k = meg_strtab_find(&p->words, j->second.s, (int64_t)j->second.n)) >= 0)
        contexts = p->ortho_context[k];
    meg_utf8_decode(next->s, next->end - next->s, &first);
    begins = ortho_heuristic(contexts, next, first);
    if ((w->is_abbreviation || w->is_ellipsis) && !initial &&
        (begins == YES || (meg_char_is_upper(first) && contains(&p->sent_starters, j->second.s, j->second.n)))) {
        w->is_sentbreak = true;
        return;
    }
    if (initial || (j->first.n == 10 && memcmp(j->first.s, "##number##", 10) == 0)) {
        if (begins == NO || (begins == UNKNOWN && initial && meg_char_is_upper(first) && !(contexts & PUNKT_ORTHO_LC)))
            w->is_sentbreak = false;
    }
}

/* Return whether any word in [s, end), except the last one, ends a sentence. */
static bool contains_sentbreak(struct scratch *j, const char *s, const char *end)
{
    struct word last, next;

    if (!next_word(&s, end, &last))
        return false;
    first_pass_annotation(j, &last);
    while (next_word(&s, end, &next)) {
        first_pass_annotation(j, &next);
        second_pass_annotation(j, &last, &next);
        if (last.is_sentbreak)
            return true;
        last = next;
    }
    return false;
}

/* ---- candidates --------------------------------------------------------------------------------- */

struct candidate {
    const char *begin;
    const char *end;  /* end of the sentence, if the candidate is a boundary */
    const char *next; /* beginning of the next sentence, if the candidate is a boundary */
    const char *context, *context_end;
};

/* Find the next candidate: an end mark that is followed by punctuation, or by whitespace and other text. */
static bool next_candidate(const char *p, const char *end, struct candidate *c)
{
    for (; p < end; p++) {
        const char *next;

        if (!is_end_mark(*p))
            continue;
        next = skip_space(p + 1, end);
        if (next == end || (next == p + 1 && !is_punctuation(*next)))
            continue;
        *c = (struct candidate){ .begin = p, .end = p + 1, .next = next };
        c->context_end = next == p + 1 ? next + 1 : skip_nonspace(next, end);
        return true;
    }
    return false;
}

/*
 * Find the next candidate if keep_newlines is set.  A candidate is a word up to and including an end mark, and any
 * whitespace directly after this mark.  The mark is the last one in the word that is followed by more text.
 */
static bool next_candidate_keep_newlines(const char *p, const char *end, struct candidate *c)
{
    while ((p = skip_space(p, end)) < end) {
        const char *word_end = skip_nonspace(p, end);

        for (const char *mark = word_end; mark-- > p;) {
            const char *next;

            if (!is_end_mark(*mark) || (next = skip_space(mark + 1, end)) == end)
                continue;
            *c = (struct candidate){ .begin = p, .end = next, .next = next };
            c->context_end = is_punctuation(*next) ? next + 1 : skip_nonspace(next, end);
            return true;
        }
        p = word_end;
    }
    return false;
}

/*
 * Return the beginning of the context of a candidate: the byte after the last ASCII whitespace between the previous
 * candidate and this one, or `fallback` if there is no such whitespace.
 */
static const char *context_of(const struct candidate *c, const char *previous, const char *fallback)
{
    for (const char *p = c->begin; p > previous + 1; p--)
        if (is_ascii_space(p[-1]))
            return p;
    return fallback;
}

/* ---- sentences ---------------------------------------------------------------------------------- */

/*
 * The last sentence found, which is not appended to `out` yet.  Closing quotes and brackets at the beginning of the
 * following text can still be added to the sentence.
 */
struct pending {
    struct meg_spans *out;
    const char *begin, *end; /* begin is NULL before the first sentence */
};

/*
 * Return the end of the quotes and closing brackets at p that belong to the previous sentence.  They are the shortest
 * sequence that ends before whitespace, two dashes or the end of the text.  Returns NULL if there is no such sequence.
 */
static const char *closing_marks(const char *p, const char *end)
{
    while (p < end && *p && strchr("\"')]}", *p)) {
        p++;
        if (p == end || space_length(p, end) > 0 || (end - p >= 2 && p[0] == '-' && p[1] == '-'))
            return p;
    }
    return NULL;
}

static void append_span(struct meg_spans *out, const char *begin, const char *end)
{
    if (begin < end)
        meg_spans_add(out, begin, end - begin);
}

static void add_sentence(struct pending *z, const char *begin, const char *end)
{
    const char *marks = closing_marks(begin, end);

    if (z->begin)
        append_span(z->out, z->begin, marks ? marks : z->end);
    z->begin = marks && z->begin ? skip_space(marks, end) : begin;
    z->end = end;
}

static const char *trim_trailing_space(const char *s, const char *end)
{
    const char *p = end;

    while (p > s) {
        int32_t cp;
        const char *last = meg_utf8_prev(p, &cp);

        if (space_length(last, end) == 0)
            break;
        p = last;
    }
    return p;
}

static void split_text(struct scratch *j, const char *s, const char *end, struct meg_spans *out)
{
    bool (*next)(const char *, const char *, struct candidate *) =
        j->p->keep_newlines ? next_candidate_keep_newlines : next_candidate;
    struct candidate c = { 0 }, following = { 0 };
    struct pending z = { .out = out };
    const char *begin = s;
    bool has_more = next(s, end, &c);

    if (has_more)
        c.context = context_of(&c, s, s);
    while (has_more) {
        if ((has_more = next(c.end, end, &following)))
            following.context = context_of(&following, c.begin, c.context);
        /* If the context of the next candidate includes this one, classify only the next one. */
        if ((!has_more || c.begin <= following.context) && contains_sentbreak(j, c.context, c.context_end)) {
            add_sentence(&z, begin, c.end);
            begin = c.next;
        }
        c = following;
    }
    add_sentence(&z, begin, trim_trailing_space(s, end));
    append_span(out, z.begin, z.end);
}

static const char *chunk_end(const char *s, const char *end)
{
    if (end - s <= CHUNK_CHARS)
        return end;
    for (int64_t n = 0; s < end && n < CHUNK_CHARS; n++)
        do
            s++;
        while (s < end && (*s & 0xC0) == 0x80);
    return s;
}

int64_t meg_punkt_split(const struct meg_punkt *p, const char *text, int64_t n, struct meg_spans *out)
{
    struct scratch j = { .p = p };
    const char *end = chunk_end(text, text + n);

    split_text(&j, text, end, out);
    meg_str_free(&j.first);
    meg_str_free(&j.second);
    meg_str_free(&j.both);
    return end - text;
}
