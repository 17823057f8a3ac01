/*
 * Every period, question or exclamation mark that something else follows may end a sentence: a
 * candidate.  The words around it, its context, are taken apart and judged; where the verdict is a
 * break, the text is cut.  What is a candidate, a context and a word are NLTK's regular expressions,
 * written out; none of them makes the work more than linear in the length of the text.
 */
#define _GNU_SOURCE /* memrchr */
#include "sentence/punkt.h"

#include <string.h>

#include <utf8proc.h>

#include "base/mem.h"
#include "sentence/internal.h"
#include "unicode/case_map.h"
#include "unicode/utf8.h"

enum { SLICE = 1000000 }; /* characters that are split at once */

/* ---- characters --------------------------------------------------------------------------------- */

/* Length of the blank at p, 0 when something else stands there: \s of Python's regular expressions. */
static int blank(const char *p, const char *end)
{
    const unsigned char c = p < end ? (unsigned char)*p : 'x';
    int32_t cp;
    int len;

    if (c < 0x80)
        return (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= ' ');
    if (c != 0xC2 && c != 0xE1 && c != 0xE2 && c != 0xE3)
        return 0;
    len = meg_utf8_decode(p, end - p, &cp);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
                   cp == 0x202F || cp == 0x205F || cp == 0x3000
               ? len
               : 0;
}

static const char *skip_blanks(const char *p, const char *end)
{
    for (int len; (len = blank(p, end)) > 0;)
        p += len;
    return p;
}

/* A byte inside of a character is no blank, so bytes will do. */
static const char *skip_nonspace(const char *p, const char *end)
{
    while (p < end && ((*p > ' ' && *p < 0x7F) || blank(p, end) == 0))
        p++;
    return p;
}

static bool is_ascii_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_end_mark(char c)
{
    return c == '.' || c == '?' || c == '!';
}

/* What may follow an end mark without a blank, and ends words. */
static bool is_punctuation(char c)
{
    return c && strchr(")\";}]*:@'({[!?", c);
}

/* ---- words -------------------------------------------------------------------------------------- */

struct word {
    const char *s, *end;
    bool is_break, is_abbreviation, is_ellipsis;
};

/* Length of what stands for itself though it has several characters: --, .., or ". . ."; or 0. */
static int64_t multi_char_punct(const char *p, const char *end)
{
    const char *q = p, *back = p;
    int pairs = 0;

    if (p == end || (*p != '-' && *p != '.'))
        return 0;
    while (q < end && *q == *p)
        q++;
    if (q - p >= 2)
        return q - p;
    for (q = p; q < end && *q == '.' && blank(q + 1, end) > 0 && q[1] != '\n'; pairs++) {
        back = q;
        q += 1 + blank(q + 1, end);
    }
    if (pairs >= 2 && q < end && *q == '.')
        return q + 1 - p;
    return pairs >= 3 ? back + 1 - p : 0;
}

/* Whether a word ends before p. */
static bool ends_word(const char *p, const char *end)
{
    return p == end || blank(p, end) > 0 || is_punctuation(*p) || multi_char_punct(p, end) > 0;
}

/* The next word at or after *at; *at moves behind it. */
static bool next_word(const char **at, const char *end, struct word *w)
{
    const char *p = skip_blanks(*at, end);
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
    w->end = *at = p;
    return true;
}

/* What judging words needs to keep: lower-case spellings, overwritten again and again. */
struct judge {
    const struct meg_punkt *p;
    struct meg_str first, second, both;
};

static bool has(const struct meg_strtab *table, const char *s, size_t n)
{
    return meg_strtab_find(table, s, (int64_t)n) >= 0;
}

/* -?[.,]?\d[\d,.-]* */
static bool is_number(const char *p, const char *end)
{
    int32_t cp;

    p += p < end && *p == '-';
    p += p < end && (*p == '.' || *p == ',');
    for (const char *begin = p; p < end;) {
        int len = meg_utf8_decode(p, end - p, &cp);

        if (utf8proc_category(cp) != UTF8PROC_CATEGORY_ND && (p == begin || (cp != ',' && cp != '.' && cp != '-')))
            return false;
        p += len;
        if (p == end)
            return true;
    }
    return false;
}

/* One character that is a letter, or like one, and a period. */
static bool is_initial(const struct word *w)
{
    int32_t cp;
    int len = meg_utf8_decode(w->s, w->end - w->s, &cp);

    if (w->end - w->s != len + 1)
        return false;
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return true;
    default: return cp == '_';
    }
}

static bool ends_with_period(const struct word *w)
{
    return w->end[-1] == '.';
}

/* What a word says on its own. */
static void first_pass_annotation(struct judge *j, struct word *w)
{
    const struct meg_strtab *known = &j->p->abbreviations;
    const int64_t n = w->end - w->s;
    const char *s, *hyphen;

    if (n == 1) {
        w->is_break = is_end_mark(*w->s);
    } else if (ends_with_period(w) && w->end[-2] == '.') {
        w->is_ellipsis = true;
    } else if (ends_with_period(w)) {
        j->first.n = 0;
        meg_utf8_add_lower(&j->first, w->s, n - 1);
        s = j->first.s;
        hyphen = memrchr(s, '-', j->first.n);
        w->is_abbreviation =
            has(known, s, j->first.n) || (hyphen && has(known, hyphen + 1, (size_t)(s + j->first.n - (hyphen + 1))));
        w->is_break = !w->is_abbreviation;
    }
}

/* The spelling under which a word is known. */
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

enum verdict { NO, YES, UNKNOWN };

/* Whether w, spelled type, begins a sentence, by how it was seen elsewhere. */
static enum verdict ortho_heuristic(unsigned seen, const struct word *w, int32_t first)
{
    if (w->end - w->s == 1 && *w->s && strchr(";:,.!?", *w->s))
        return NO;
    if (meg_char_is_upper(first) && (seen & PUNKT_ORTHO_LC) && !(seen & PUNKT_ORTHO_MID_UC))
        return YES;
    if (meg_char_is_lower(first) && ((seen & PUNKT_ORTHO_UC) || !(seen & PUNKT_ORTHO_BEG_LC)))
        return NO;
    return UNKNOWN;
}

/* What the word behind it says of w. */
static void second_pass_annotation(struct judge *j, struct word *w, const struct word *next)
{
    const struct meg_punkt *p = j->p;
    const bool initial = is_initial(w);
    enum verdict begins;
    unsigned seen = 0;
    int32_t first;
    int64_t k;

    if (!ends_with_period(w))
        return;
    set_type(&j->first, w, true);
    set_type(&j->second, next, next->is_break);
    j->both.n = 0;
    meg_str_add(&j->both, j->first.s, j->first.n);
    meg_str_add(&j->both, "\t", 1);
    meg_str_add(&j->both, j->second.s, j->second.n);
    if (has(&p->collocations, j->both.s, j->both.n)) {
        w->is_break = false;
        return;
    }
    if ((k = meg_strtab_find(&p->words, j->second.s, (int64_t)j->second.n)) >= 0)
        seen = p->context[k];
    meg_utf8_decode(next->s, next->end - next->s, &first);
    begins = ortho_heuristic(seen, next, first);
    if ((w->is_abbreviation || w->is_ellipsis) && !initial &&
        (begins == YES || (meg_char_is_upper(first) && has(&p->starters, j->second.s, j->second.n)))) {
        w->is_break = true;
        return;
    }
    if (initial || (j->first.n == 10 && memcmp(j->first.s, "##number##", 10) == 0)) {
        if (begins == NO || (begins == UNKNOWN && initial && meg_char_is_upper(first) && !(seen & PUNKT_ORTHO_LC)))
            w->is_break = false;
    }
}

/* Whether a sentence ends among these words, and another word follows. */
static bool contains_sentbreak(struct judge *j, const char *s, const char *end)
{
    struct word last, next;

    if (!next_word(&s, end, &last))
        return false;
    first_pass_annotation(j, &last);
    while (next_word(&s, end, &next)) {
        first_pass_annotation(j, &next);
        second_pass_annotation(j, &last, &next);
        if (last.is_break)
            return true;
        last = next;
    }
    return false;
}

/* ---- candidates --------------------------------------------------------------------------------- */

struct candidate {
    const char *begin, *end; /* end: of the sentence, if it ends here */
    const char *next;        /* where the next one would begin */
    const char *context, *context_end;
};

/* The end mark itself. */
static bool next_mark(const char *p, const char *end, struct candidate *c)
{
    for (; p < end; p++) {
        const char *next;

        if (!is_end_mark(*p))
            continue;
        next = skip_blanks(p + 1, end);
        if (next == end || (next == p + 1 && !is_punctuation(*next)))
            continue;
        *c = (struct candidate){ .begin = p, .end = p + 1, .next = next };
        c->context_end = next == p + 1 ? next + 1 : skip_nonspace(next, end);
        return true;
    }
    return false;
}

/* All of a run without blanks up to its last end mark that something follows, and those blanks. */
static bool next_run(const char *p, const char *end, struct candidate *c)
{
    while ((p = skip_blanks(p, end)) < end) {
        const char *run_end = skip_nonspace(p, end);

        for (const char *mark = run_end; mark-- > p;) {
            const char *next;

            if (!is_end_mark(*mark) || (next = skip_blanks(mark + 1, end)) == end)
                continue;
            *c = (struct candidate){ .begin = p, .end = next, .next = next };
            c->context_end = is_punctuation(*next) ? next + 1 : skip_nonspace(next, end);
            return true;
        }
        p = run_end;
    }
    return false;
}

/* A context begins behind the last blank between a candidate and the one before it. */
static const char *context_of(const struct candidate *c, const char *before, const char *otherwise)
{
    for (const char *p = c->begin; p > before + 1; p--)
        if (is_ascii_blank(p[-1]))
            return p;
    return otherwise;
}

/* ---- sentences ---------------------------------------------------------------------------------- */

/* A sentence waits for the one behind it, which may give it closing quotes and brackets. */
struct sentences {
    struct meg_spans *out;
    const char *begin, *end; /* the one that waits; begin is NULL before the first */
};

/*
 * Closing marks that begin a sentence belong to the one before: the shortest run of them that a blank,
 * two dashes or the end of a line follow.  Returns its end, or NULL.
 */
static const char *closing_marks(const char *p, const char *end)
{
    while (p < end && *p && strchr("\"')]}", *p)) {
        p++;
        if (p == end || blank(p, end) > 0 || (end - p >= 2 && p[0] == '-' && p[1] == '-'))
            return p;
    }
    return NULL;
}

static void put(struct meg_spans *out, const char *begin, const char *end)
{
    if (begin < end)
        meg_spans_add(out, begin, end - begin);
}

static void add_sentence(struct sentences *z, const char *begin, const char *end)
{
    const char *marks = closing_marks(begin, end);

    if (z->begin)
        put(z->out, z->begin, marks ? marks : z->end);
    z->begin = marks && z->begin ? skip_blanks(marks, end) : begin;
    z->end = end;
}

static const char *trim_trailing_space(const char *s, const char *end)
{
    const char *p = end;

    while (p > s) {
        int32_t cp;
        const char *last = meg_utf8_prev(p, &cp);

        if (blank(last, end) == 0)
            break;
        p = last;
    }
    return p;
}

static void split(struct judge *j, const char *s, const char *end, struct meg_spans *out)
{
    bool (*next)(const char *, const char *, struct candidate *) = j->p->keep_newlines ? next_run : next_mark;
    struct candidate c = { 0 }, after = { 0 };
    struct sentences z = { .out = out };
    const char *begin = s;
    bool has_more = next(s, end, &c);

    if (has_more)
        c.context = context_of(&c, s, s);
    while (has_more) {
        if ((has_more = next(c.end, end, &after)))
            after.context = context_of(&after, c.begin, c.context);
        /* One whose context the next shares leaves the judgement to it. */
        if ((!has_more || c.begin <= after.context) && contains_sentbreak(j, c.context, c.context_end)) {
            add_sentence(&z, begin, c.end);
            begin = c.next;
        }
        c = after;
    }
    add_sentence(&z, begin, trim_trailing_space(s, end));
    put(out, z.begin, z.end);
}

static const char *chunk_end(const char *s, const char *end)
{
    if (end - s <= SLICE)
        return end;
    for (int64_t n = 0; s < end && n < SLICE; n++)
        do
            s++;
        while (s < end && (*s & 0xC0) == 0x80);
    return s;
}

int64_t meg_punkt_split(const struct meg_punkt *p, const char *text, int64_t n, struct meg_spans *out)
{
    struct judge j = { .p = p };
    const char *end = chunk_end(text, text + n);

    split(&j, text, end, out);
    meg_str_free(&j.first);
    meg_str_free(&j.second);
    meg_str_free(&j.both);
    return end - text;
}
