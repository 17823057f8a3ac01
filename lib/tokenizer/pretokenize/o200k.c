/*
 * o200k.c - match the patterns of o200k_base and TikTokenizer's v2, in which an uppercase letter after a lowercase one
 * begins a word.  Characters are matched one at a time, with a table of character classes.
 */
#include <pthread.h>
#include <string.h>
#include "tokenizer/pretokenize/pretokenize.h"
#include "unicode/char_class.h"
#include "unicode/utf8.h"

enum {
    L = 1,      /* \p{L} */
    N = 2,      /* \p{N} */
    S = 4,      /* \s */
    EOL = 8,    /* \r or \n; also S */
    UPPER = 16, /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    LOWER = 32, /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
    SPACE = 64  /* U+0020; also S */
};

static unsigned char table[0x10000];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static unsigned char classes_of(int32_t cp)
{
    static const unsigned char of[] = {
        [MEG_CHAR_LETTER] = L, [MEG_CHAR_NUMBER] = N, [MEG_CHAR_SPACE] = S, [MEG_CHAR_OTHER] = 0
    };
    unsigned char c = of[meg_char_class_of(cp)];

    if (cp == '\r' || cp == '\n')
        return S | EOL;
    if (cp == ' ')
        return S | SPACE;
    if (meg_char_is_in(cp, MEG_CATEGORY(LM) | MEG_CATEGORY(LO) | MEG_MARKS))
        return c | UPPER | LOWER;
    return c | (meg_char_is_in(cp, MEG_CATEGORY(LU) | MEG_CATEGORY(LT)) ? UPPER : 0) |
           (meg_char_is_in(cp, MEG_CATEGORY(LL)) ? LOWER : 0);
}

static void fill(void)
{
    for (int32_t cp = 0; cp < 0x10000; cp++)
        table[cp] = classes_of(cp);
}

/* Return the classes of the character at s < end, and set *next to the next character. */
static inline unsigned class_at(const char *s, const char *end, const char **next)
{
    int32_t cp = (unsigned char)*s;

    if (cp < 0x80) {
        *next = s + 1;
        return table[cp];
    }
    *next = s + meg_utf8_decode(s, end - s, &cp);
    return cp < 0x10000 ? table[cp] : classes_of(cp);
}

/* Return the end of the run of characters, beginning at s, that have one of the classes or, if !has, none of them. */
static inline const char *run(const char *s, const char *end, unsigned classes, bool has)
{
    for (const char *next; s < end && !(class_at(s, end, &next) & classes) != has; s = next)
        ;
    return s;
}

/*
 * Match [UPPER]*[LOWER]+ at s, or [UPPER]+[LOWER]* if is_second.  Return the end of the match, or s if there is none.
 * In the first pattern, [UPPER]* matches as many characters as possible.  If no LOWER follows these characters, the
 * match ends after the last one that is both UPPER and LOWER.
 */
static const char *cased(const char *s, const char *end, bool is_second)
{
    const char *up = s, *both = NULL, *low;

    for (const char *next; up < end; up = next) {
        unsigned c = class_at(up, end, &next);

        if (!(c & UPPER))
            break;
        both = c & LOWER ? next : both;
    }
    low = run(up, end, LOWER, true);
    if (is_second)
        return up > s ? low : s;
    return low > up ? low : both ? both : s;
}

static const char *cased_word(const char *s, const char *end, bool may_contract)
{
    const char *next, *lead = s, *stop = s;

    if (!(class_at(s, end, &next) & (L | N | EOL)))
        lead = next;
    for (int second = 0; second < 2 && stop == s; second++) {
        stop = cased(lead, end, second);
        if (stop == lead && lead > s)
            stop = cased(s, end, second);
        else if (stop == lead)
            stop = s;
    }
    if (stop > s && may_contract && stop < end && *stop == '\'')
        stop += meg_pretok_contraction(stop, end - stop);
    return stop;
}

/* Return the end of the match of \s*[\r\n]+|\s+(?!\S)|\s+ at s. */
static const char *spaces(const char *s, const char *end)
{
    const char *line = NULL, *last = s, *p = s;

    for (const char *next; p < end; p = next) {
        unsigned c = class_at(p, end, &next);

        if (!(c & S))
            break;
        line = c & EOL ? next : line;
        last = p;
    }
    if (line)
        return line;
    return p == end || last == s ? p : last;
}

static const char *pretoken_end(enum meg_pretok pretok, const char *s, const char *end)
{
    const bool is_o200k = pretok == MEG_PRETOK_O200K;
    const char *stop = cased_word(s, end, is_o200k), *next;
    unsigned c;

    if (stop > s)
        return stop;
    c = class_at(s, end, &next);
    if (c & N) {
        for (int k = 1; k < (is_o200k ? 3 : 1) && next < end && (class_at(next, end, &stop) & N); k++)
            next = stop;
        return next;
    }
    stop = run(c & SPACE ? next : s, end, L | N | S, false);
    if (stop > (c & SPACE ? next : s)) {
        while (stop < end && (*stop == '\r' || *stop == '\n' || *stop == '/'))
            stop++;
        return stop;
    }
    return spaces(s, end);
}

void meg_pretok_o200k(enum meg_pretok pretok, const char *text, int64_t n, uint64_t *starts)
{
    pthread_once(&once, fill);
    memset(starts, 0, (size_t)(n / 64 + 1) * sizeof *starts);
    for (const char *s = text; s < text + n;) {
        int64_t at;

        s = pretoken_end(pretok, s, text + n);
        at = s - text;
        starts[at / 64] |= (uint64_t)1 << at % 64;
    }
    starts[n / 64] |= (uint64_t)1 << n % 64;
}
