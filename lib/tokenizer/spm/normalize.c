/*
 * Most text is bytes, and characters, that stand for themselves, which are copied by runs; where a rule
 * may apply, one step is taken as SentencePiece's Normalizer does: a string that is copied verbatim, else the longest
 * one of the character map, else a character.
 */
#include "tokenizer/spm/normalize.h"

#include <string.h>

#include "unicode/utf8.h"

/* What plain[] says of a byte. */
enum {
    PLAIN = 1,
    BLANK = 2,      /* plain, but not after another one */
    BEGINS_RULE = 4 /* plain before what is plain; else a rule for more than this byte may apply */
};

/* Class of an ASCII byte as far as the character map goes. */
static unsigned char class_of(const struct meg_charsmap *map, unsigned char c)
{
    uint32_t node = meg_charsmap_root(map), next;
    unsigned char class = PLAIN;
    const char *to;

    if (!meg_charsmap_step(map, &node, c, &to))
        return PLAIN;
    if (to && !(to[0] == (char)c && to[1] == 0))
        return 0;
    for (int second = 0; second < 256; second++) {
        next = node;
        if (!meg_charsmap_step(map, &next, (unsigned char)second, &to))
            continue;
        if (second < 0x80)
            return 0;
        class |= BEGINS_RULE;
    }
    return class;
}

/* Whether a rule for the ASCII byte c goes on with byte second. */
static bool goes_on(const struct meg_charsmap *map, unsigned char c, unsigned char second)
{
    uint32_t node = meg_charsmap_root(map);
    const char *to;

    return meg_charsmap_step(map, &node, c, &to) && meg_charsmap_step(map, &node, second, &to);
}

static bool is_blank(const char *s, int64_t n)
{
    const int64_t blank = (int64_t)strlen(MEG_SPM_SPACE_SYMBOL);

    return *s == MEG_SPM_SPACE_SYMBOL[0] && n >= blank && memcmp(s, MEG_SPM_SPACE_SYMBOL, (size_t)blank) == 0;
}

/* Does no rule, no verbatim string and no escaped blank begin with the character? */
static bool stays(const struct meg_spm_normalizer *n, int32_t cp)
{
    uint32_t rule = meg_charsmap_root(&n->rules->map), string = MEG_TRIE_ROOT;
    bool is_rule = true, is_string = true;
    const char *to = NULL;
    int32_t value = -1;
    char s[4];
    int len = meg_utf8_encode(s, cp);

    for (int i = 0; i < len && !to && value < 0 && (is_rule || is_string); i++) {
        is_rule = is_rule && meg_charsmap_step(&n->rules->map, &rule, (unsigned char)s[i], &to);
        is_string = is_string && meg_trie_step(n->verbatim, &string, (unsigned char)s[i], &value);
    }
    return !is_rule && !is_string && !(n->rules->escape_whitespaces && is_blank(s, len));
}

void meg_spm_normalizer_init(struct meg_spm_normalizer *n, const struct meg_spm_normalizer_spec *rules,
                             const struct meg_trie *verbatim)
{
    n->rules = rules;
    n->verbatim = verbatim;
    for (int32_t cp = 0x80; cp < 0x10000; cp++)
        n->stays[cp / 64] |= (uint64_t)stays(n, cp) << cp % 64;
    for (int c = 0; c < 256; c++) {
        uint32_t root = meg_charsmap_root(&rules->map), node = MEG_TRIE_ROOT;
        const char *to;
        int32_t value;

        n->plain[c] = PLAIN;
        if (c < 0x80)
            n->plain[c] = class_of(&rules->map, (unsigned char)c);
        else if (c >= 0xC0 && meg_charsmap_step(&rules->map, &root, (unsigned char)c, &to))
            n->plain[c] = 0;
        if (meg_trie_step(verbatim, &node, (unsigned char)c, &value))
            n->plain[c] = 0;
    }
    for (int c = 0; c < 0x80; c++) {
        for (int second = 0xC0; n->plain[c] & BEGINS_RULE && second < 256; second++) {
            if (goes_on(&rules->map, (unsigned char)c, (unsigned char)second))
                n->plain[second] = 0;
        }
    }
    if (rules->escape_whitespaces)
        n->plain[(unsigned char)MEG_SPM_SPACE_SYMBOL[0]] = 0;
    if (rules->remove_extra_whitespaces && n->plain[' '])
        n->plain[' '] |= BLANK;
}

/* What text [n] begins with, and what replaces it. */
static int64_t match(const struct meg_spm_normalizer *norm, const char *text, int64_t n, const char **to, int64_t *nto)
{
    uint32_t node = MEG_TRIE_ROOT;
    int64_t longest = 0;
    int32_t value, cp;

    for (int64_t i = 0; i < n && meg_trie_step(norm->verbatim, &node, (unsigned char)text[i], &value); i++) {
        if (value >= 0)
            longest = i + 1;
    }
    *to = text;
    *nto = longest;
    if (longest > 0)
        return longest;
    if ((longest = meg_charsmap_longest(&norm->rules->map, text, n, to)) > 0) {
        *nto = (int64_t)strlen(*to);
        return longest;
    }
    return *nto = meg_utf8_decode_unchecked(text, &cp);
}

static void add_escaped(const struct meg_spm_normalizer_spec *rules, struct meg_str *out, const char *s, int64_t n)
{
    const int64_t blank = (int64_t)strlen(MEG_SPM_SPACE_SYMBOL);

    for (int64_t i = 0, stop; i < n; i = stop) {
        for (stop = i; stop < n && !(rules->escape_whitespaces && is_blank(s + stop, n - stop));)
            stop++;
        meg_str_add(out, s + i, (size_t)(stop - i));
        if (stop < n) {
            meg_str_add(out, " ", 1);
            stop += blank;
        }
    }
}

static void normalize_step(const struct meg_spm_normalizer *norm, struct meg_spm_normalizer_stream *t,
                           struct meg_str *out)
{
    const char *to;
    int64_t nto;

    t->at += match(norm, t->text + t->at, t->n - t->at, &to, &nto);
    for (; t->is_after_blank && nto > 0 && *to == ' '; nto--)
        to++;
    if (nto > 0) {
        add_escaped(norm->rules, out, to, nto);
        t->is_after_blank = norm->rules->remove_extra_whitespaces && to[nto - 1] == ' ';
    }
}

/* Length of the character at s where it is one that stays, else 0. */
static inline int unmapped_length(const struct meg_spm_normalizer *norm, const unsigned char *s)
{
    int32_t cp;
    int len = meg_utf8_decode_unchecked((const char *)s, &cp);

    return cp < 0x10000 && norm->stays[cp / 64] >> cp % 64 & 1 ? len : 0;
}

/* Copy what stands for itself, at most max bytes of it; returns how many that were. */
static int64_t copy_run(const struct meg_spm_normalizer *norm, struct meg_spm_normalizer_stream *t, int64_t max,
                        struct meg_str *out)
{
    const unsigned char *s = (const unsigned char *)t->text + t->at;
    int64_t n = t->n - t->at, run = 0, stop = n < max ? n : max;
    unsigned char before = t->is_after_blank ? BLANK : 0;

    for (int len; run < stop; run += len) {
        unsigned char class = norm->plain[s[run]];

        len = class != 0 ? 1 : before & BEGINS_RULE ? 0 : unmapped_length(norm, s + run);
        if (len == 0 || run + len > stop || (class & before & BLANK))
            break;
        before = class;
    }
    if (run < n && run > 0 && norm->plain[s[run]] == 0 && norm->plain[s[run - 1]] & BEGINS_RULE)
        run--;
    while (run > 0 && run < n && (s[run] & 0xC0) == 0x80)
        run--; /* max cut a character */
    if (run > 0) {
        meg_str_add(out, s, (size_t)run);
        t->at += run;
        t->is_after_blank = norm->plain[s[run - 1]] & BLANK;
    }
    return run;
}

/* What comes before the first character that is no blank; false where none is left. */
static bool begin(const struct meg_spm_normalizer *norm, struct meg_spm_normalizer_stream *t, struct meg_str *out)
{
    const struct meg_spm_normalizer_spec *rules = norm->rules;

    while (rules->remove_extra_whitespaces && t->at < t->n) {
        const char *to;
        int64_t nto, n = match(norm, t->text + t->at, t->n - t->at, &to, &nto);

        if (nto != 1 || *to != ' ')
            break;
        t->at += n;
    }
    if (t->at == t->n)
        return false;
    t->has_begun = true;
    t->is_after_blank = rules->remove_extra_whitespaces;
    if (rules->add_dummy_prefix && !rules->treat_blank_as_suffix)
        meg_str_add(out, " ", 1);
    return true;
}

void meg_spm_normalizer_next(const struct meg_spm_normalizer *norm, struct meg_spm_normalizer_stream *t, int64_t want,
                             struct meg_str *out)
{
    const struct meg_spm_normalizer_spec *rules = norm->rules;

    if (!t->has_begun && !begin(norm, t, out))
        return;
    while (t->at < t->n && (int64_t)out->n < want) {
        if (copy_run(norm, t, want - (int64_t)out->n + 4, out) == 0)
            normalize_step(norm, t, out);
    }
    if (t->at < t->n)
        return;
    while (rules->remove_extra_whitespaces && out->n > 0 && out->s[out->n - 1] == ' ')
        out->n--;
    if (rules->add_dummy_prefix && rules->treat_blank_as_suffix)
        meg_str_add(out, " ", 1);
}

bool meg_spm_normalizer_piece(const struct meg_spm_normalizer_spec *rules, const char *s, int64_t n,
                              struct meg_str *out)
{
    if (rules->escape_whitespaces && memchr(s, ' ', (size_t)n))
        return false;
    add_escaped(rules, out, s, n);
    return true;
}
