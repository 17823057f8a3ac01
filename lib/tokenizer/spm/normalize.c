/*
 * normalize.c - normalization by the rules of SentencePiece's Normalizer.  copy_run copies characters that cannot
 * belong to a key of the character map, a user-defined piece or an escaped space.  At each other position,
 * normalize_step does the first of these steps that is possible:
 * - copy the longest user-defined piece;
 * - replace the longest key of the character map;
 * - copy a character.
 */
#include "tokenizer/spm/normalize.h"
#include <string.h>
#include "unicode/utf8.h"

/*
 * Bits of byte_class[].  A byte of class 0 may begin a key of the character map, a user-defined piece or an escaped
 * space.  A byte of class 0 may also continue a key that begins with a BEGINS_KEY byte.
 */
enum {
    COPIED = 1,    /* the byte is copied unchanged, with the exceptions below */
    SPACE = 2,     /* with COPIED: the byte is not copied directly after another SPACE byte */
    BEGINS_KEY = 4 /* with COPIED: the byte is not copied directly before a byte of class 0; a key may contain both */
};

/* Classify an ASCII byte by the character map. */
static unsigned char class_of(const struct meg_charsmap *map, unsigned char c)
{
    uint32_t node = meg_charsmap_root(map), next;
    unsigned char class = COPIED;
    const char *to;

    if (!meg_charsmap_step(map, &node, c, &to))
        return COPIED;
    if (to && !(to[0] == (char)c && to[1] == 0))
        return 0;
    for (int second = 0; second < 256; second++) {
        next = node;
        if (!meg_charsmap_step(map, &next, (unsigned char)second, &to))
            continue;
        if (second < 0x80)
            return 0;
        class |= BEGINS_KEY;
    }
    return class;
}

/* Return true if some key begins with the bytes c and second. */
static bool has_longer_key(const struct meg_charsmap *map, unsigned char c, unsigned char second)
{
    uint32_t node = meg_charsmap_root(map);
    const char *to;

    return meg_charsmap_step(map, &node, c, &to) && meg_charsmap_step(map, &node, second, &to);
}

static bool is_space_symbol(const char *s, int64_t n)
{
    const int64_t nsymbol = (int64_t)strlen(MEG_SPM_SPACE_SYMBOL);

    return *s == MEG_SPM_SPACE_SYMBOL[0] && n >= nsymbol && memcmp(s, MEG_SPM_SPACE_SYMBOL, (size_t)nsymbol) == 0;
}

/* Return true if no key, user-defined piece or escaped space begins with the character. */
static bool is_unmapped_char(const struct meg_spm_normalizer *n, int32_t cp)
{
    uint32_t key_node = meg_charsmap_root(&n->spec->map), string = MEG_TRIE_ROOT;
    bool is_key = true, is_string = true;
    const char *to = NULL;
    int32_t value = -1;
    char s[4];
    int len = meg_utf8_encode(s, cp);

    for (int i = 0; i < len && !to && value < 0 && (is_key || is_string); i++) {
        is_key = is_key && meg_charsmap_step(&n->spec->map, &key_node, (unsigned char)s[i], &to);
        is_string = is_string && meg_trie_step(n->user_defined, &string, (unsigned char)s[i], &value);
    }
    return !is_key && !is_string && !(n->spec->escape_whitespaces && is_space_symbol(s, len));
}

void meg_spm_normalizer_init(struct meg_spm_normalizer *n, const struct meg_spm_normalizer_spec *spec,
                             const struct meg_trie *user_defined)
{
    n->spec = spec;
    n->user_defined = user_defined;
    for (int32_t cp = 0x80; cp < 0x10000; cp++)
        n->is_unmapped[cp / 64] |= (uint64_t)is_unmapped_char(n, cp) << cp % 64;
    for (int c = 0; c < 256; c++) {
        uint32_t root = meg_charsmap_root(&spec->map), node = MEG_TRIE_ROOT;
        const char *to;
        int32_t value;

        n->byte_class[c] = COPIED;
        if (c < 0x80)
            n->byte_class[c] = class_of(&spec->map, (unsigned char)c);
        else if (c >= 0xC0 && meg_charsmap_step(&spec->map, &root, (unsigned char)c, &to))
            n->byte_class[c] = 0;
        if (meg_trie_step(user_defined, &node, (unsigned char)c, &value))
            n->byte_class[c] = 0;
    }
    for (int c = 0; c < 0x80; c++) {
        for (int second = 0xC0; n->byte_class[c] & BEGINS_KEY && second < 256; second++) {
            if (has_longer_key(&spec->map, (unsigned char)c, (unsigned char)second))
                n->byte_class[second] = 0;
        }
    }
    if (spec->escape_whitespaces)
        n->byte_class[(unsigned char)MEG_SPM_SPACE_SYMBOL[0]] = 0;
    if (spec->remove_extra_whitespaces && n->byte_class[' '])
        n->byte_class[' '] |= SPACE;
}

/*
 * Match a user-defined piece, a key or a character at the beginning of text [n].  Set *to [*nto] to the replacement of
 * the match, and return the number of bytes matched.
 */
static int64_t match(const struct meg_spm_normalizer *norm, const char *text, int64_t n, const char **to, int64_t *nto)
{
    int32_t value, cp;
    int64_t longest = meg_trie_longest(norm->user_defined, text, n, &value);

    *to = text;
    *nto = longest;
    if (longest > 0)
        return longest;
    if ((longest = meg_charsmap_longest(&norm->spec->map, text, n, to)) > 0) {
        *nto = (int64_t)strlen(*to);
        return longest;
    }
    return *nto = meg_utf8_decode_unchecked(text, &cp);
}

static void add_escaped(const struct meg_spm_normalizer_spec *spec, struct meg_str *out, const char *s, int64_t n)
{
    const int64_t nsymbol = (int64_t)strlen(MEG_SPM_SPACE_SYMBOL);

    for (int64_t i = 0, stop; i < n; i = stop) {
        for (stop = i; stop < n && !(spec->escape_whitespaces && is_space_symbol(s + stop, n - stop));)
            stop++;
        meg_str_add(out, s + i, (size_t)(stop - i));
        if (stop < n) {
            meg_str_add(out, " ", 1);
            stop += nsymbol;
        }
    }
}

static void normalize_step(const struct meg_spm_normalizer *norm, struct meg_spm_normalizer_stream *t,
                           struct meg_str *out)
{
    const char *to;
    int64_t nto;

    t->offset += match(norm, t->text + t->offset, t->n - t->offset, &to, &nto);
    for (; t->is_after_space && nto > 0 && *to == ' '; nto--)
        to++;
    if (nto > 0) {
        add_escaped(norm->spec, out, to, nto);
        t->is_after_space = norm->spec->remove_extra_whitespaces && to[nto - 1] == ' ';
    }
}

/* Return the length of the character at s if it is unmapped, else 0. */
static inline int unmapped_length(const struct meg_spm_normalizer *norm, const unsigned char *s)
{
    int32_t cp;
    int len = meg_utf8_decode_unchecked((const char *)s, &cp);

    return cp < 0x10000 && norm->is_unmapped[cp / 64] >> cp % 64 & 1 ? len : 0;
}

/* Copy up to max bytes that normalization does not change, and return their number. */
static int64_t copy_run(const struct meg_spm_normalizer *norm, struct meg_spm_normalizer_stream *t, int64_t max,
                        struct meg_str *out)
{
    const unsigned char *s = (const unsigned char *)t->text + t->offset;
    int64_t n = t->n - t->offset, run = 0, stop = n < max ? n : max;
    unsigned char before = t->is_after_space ? SPACE : 0;

    for (int len; run < stop; run += len) {
        unsigned char class = norm->byte_class[s[run]];

        len = class != 0 ? 1 : before & BEGINS_KEY ? 0 : unmapped_length(norm, s + run);
        if (len == 0 || run + len > stop || (class & before & SPACE))
            break;
        before = class;
    }
    if (run < n && run > 0 && norm->byte_class[s[run]] == 0 && norm->byte_class[s[run - 1]] & BEGINS_KEY)
        run--;
    while (run > 0 && run < n && (s[run] & 0xC0) == 0x80)
        run--; /* do not split a character at max */
    if (run > 0) {
        meg_str_add(out, s, (size_t)run);
        t->offset += run;
        t->is_after_space = norm->byte_class[s[run - 1]] & SPACE;
    }
    return run;
}

/* Skip leading spaces and append the dummy prefix, if the spec says so.  Return false if no text is left. */
static bool begin(const struct meg_spm_normalizer *norm, struct meg_spm_normalizer_stream *t, struct meg_str *out)
{
    const struct meg_spm_normalizer_spec *spec = norm->spec;

    while (spec->remove_extra_whitespaces && t->offset < t->n) {
        const char *to;
        int64_t nto, n = match(norm, t->text + t->offset, t->n - t->offset, &to, &nto);

        if (nto != 1 || *to != ' ')
            break;
        t->offset += n;
    }
    if (t->offset == t->n)
        return false;
    t->has_begun = true;
    t->is_after_space = spec->remove_extra_whitespaces;
    if (spec->add_dummy_prefix && !spec->treat_whitespace_as_suffix)
        meg_str_add(out, " ", 1);
    return true;
}

void meg_spm_normalizer_next(const struct meg_spm_normalizer *norm, struct meg_spm_normalizer_stream *t, int64_t want,
                             struct meg_str *out)
{
    const struct meg_spm_normalizer_spec *spec = norm->spec;

    if (!t->has_begun && !begin(norm, t, out))
        return;
    while (t->offset < t->n && (int64_t)out->n < want) {
        if (copy_run(norm, t, want - (int64_t)out->n + 4, out) == 0)
            normalize_step(norm, t, out);
    }
    if (t->offset < t->n)
        return;
    while (spec->remove_extra_whitespaces && out->n > 0 && out->s[out->n - 1] == ' ')
        out->n--;
    if (spec->add_dummy_prefix && spec->treat_whitespace_as_suffix)
        meg_str_add(out, " ", 1);
}

bool meg_spm_normalizer_piece(const struct meg_spm_normalizer_spec *spec, const char *s, int64_t n, struct meg_str *out)
{
    if (spec->escape_whitespaces && memchr(s, ' ', (size_t)n))
        return false;
    add_escaped(spec, out, s, n);
    return true;
}
