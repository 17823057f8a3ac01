/* normalizer.c - normalizers of tokenizer.json.  Each step rewrites the text. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "io/base64.h"
#include "io/json.h"
#include "tokenizer/bert/basic_tokenizer.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/hf/internal.h"
#include "tokenizer/spm/precompiled_charsmap.h"
#include "unicode/char_class.h"
#include "unicode/codepoints.h"
#include "unicode/normal_form.h"
#include "unicode/utf8.h"

enum step_type {
    NFC,
    NFD,
    NFKC,
    NFKD,
    LOWERCASE,
    STRIP_ACCENTS,
    STRIP,
    REPLACE,
    PREPEND,
    BERT,
    PRECOMPILED,
    NMT,
    BYTE_LEVEL
};

struct step {
    enum step_type type;
    bool left, right; /* STRIP: remove whitespace at the start (left), at the end (right) */
    struct meg_hf_pattern pattern;
    struct meg_str content; /* REPLACE, PREPEND: the text to insert; PRECOMPILED: the map in base64 */
    struct meg_bert_normalizer bert;
    struct meg_charsmap map;
    struct meg_normal_form *form; /* set for NFC, NFD, NFKC and NFKD */
};

#define FIELD(f) offsetof(struct step, f)
static const struct meg_hf_step_type types[] = {
    [NFC] = { .name = "NFC" },
    [NFD] = { .name = "NFD" },
    [NFKC] = { .name = "NFKC" },
    [NFKD] = { .name = "NFKD" },
    [LOWERCASE] = { .name = "Lowercase" },
    [STRIP_ACCENTS] = { .name = "StripAccents" },
    [STRIP] = { "Strip",
                { { "strip_left", MEG_HF_BOOL, FIELD(left), "true" },
                  { "strip_right", MEG_HF_BOOL, FIELD(right), "true" } } },
    [REPLACE] = { "Replace",
                  { { "pattern", MEG_HF_PATTERN, FIELD(pattern), NULL },
                    { "content", MEG_HF_TEXT, FIELD(content), NULL } } },
    [PREPEND] = { "Prepend", { { "prepend", MEG_HF_TEXT, FIELD(content), NULL } } },
    [BERT] = { "BertNormalizer",
               { { "clean_text", MEG_HF_BOOL, FIELD(bert.clean_text), "true" },
                 { "handle_chinese_chars", MEG_HF_BOOL, FIELD(bert.handle_chinese_chars), "true" },
                 { "lowercase", MEG_HF_BOOL, FIELD(bert.lowercase), "true" },
                 { "lowercase", MEG_HF_BOOL, FIELD(bert.strip_accents), "true" }, /* the default of strip_accents */
                 { "strip_accents", MEG_HF_BOOL, FIELD(bert.strip_accents), NULL } } },
    [PRECOMPILED] = { "Precompiled", { { "precompiled_charsmap", MEG_HF_TEXT, FIELD(content), NULL } } },
    [NMT] = { .name = "Nmt" },
    [BYTE_LEVEL] = { .name = "ByteLevel" },
};

static int finish_precompiled(struct step *s, const char *where, struct meg_err *e)
{
    struct meg_str bytes = { 0 };
    struct meg_err inner;
    int r;

    if (meg_base64_decode(&bytes, s->content.s, (int64_t)s->content.n) < 0)
        r = meg_fail(e, MEG_EFORMAT, "%s: precompiled_charsmap is not valid base64", where);
    else if ((r = meg_charsmap_load(&s->map, bytes.s, (int64_t)bytes.n, &inner)) < 0)
        r = meg_fail(e, r, "%s: precompiled_charsmap: %s", where, inner.msg);
    meg_str_free(&bytes);
    meg_str_free(&s->content);
    return r;
}

static int finish_step(void *step, int type, const char *where, struct meg_err *e)
{
    struct step *s = step;

    s->type = (enum step_type)type;
    if (s->type == PRECOMPILED)
        return finish_precompiled(s, where, e);
    if (s->type <= NFKD) {
        s->form = meg_new(sizeof *s->form);
        meg_normal_form_init(s->form, s->type == NFC || s->type == NFKC, s->type == NFKC || s->type == NFKD);
    }
    return 0;
}

static void free_step(void *step)
{
    struct step *s = step;

    meg_hf_pattern_free(&s->pattern);
    meg_str_free(&s->content);
    meg_charsmap_free(&s->map);
    free(s->form);
}

const struct meg_hf_step_class meg_hf_normalizer = { "normalizers",       types,       sizeof types / sizeof *types,
                                                     sizeof(struct step), finish_step, free_step };

/* ---- Normalizing ---- */

/* Return the value of the shortest key in the map that s [n] begins with, or NULL. */
static const char *shortest(const struct meg_charsmap *m, const char *s, int64_t n)
{
    uint32_t node = meg_charsmap_root(m);
    const char *to = NULL;

    for (int64_t i = 0; i < n && meg_charsmap_step(m, &node, (unsigned char)s[i], &to) && !to; i++)
        ;
    return to;
}

/* Return the end of the extended grapheme cluster that begins at s. */
static const char *cluster_end(const char *s, const char *end)
{
    utf8proc_int32_t state = 0;
    int32_t last, next;

    s += meg_utf8_decode(s, end - s, &last);
    while (s < end) {
        int n = meg_utf8_decode(s, end - s, &next);

        if (utf8proc_grapheme_break_stateful(last, next, &state))
            break;
        s += n;
        last = next;
    }
    return s;
}

/*
 * Apply SentencePiece's character map as Hugging Face does.  If a grapheme cluster of at most 5 bytes begins with a
 * key, replace the cluster by the value of the shortest such key.  Otherwise map each character of the cluster
 * separately.  Stop once out has more than max_bytes.
 */
static void precompiled(const struct meg_charsmap *m, const char *s, int64_t n, int64_t max_bytes, struct meg_str *out)
{
    const char *end = s + n;

    while (s < end && (int64_t)out->n <= max_bytes) {
        const char *stop = cluster_end(s, end), *to = NULL;

        if (stop - s < 6)
            to = shortest(m, s, stop - s);
        if (to) {
            meg_str_add(out, to, strlen(to));
            s = stop;
        }
        while (s < stop) {
            int32_t cp;
            int len = meg_utf8_decode(s, stop - s, &cp);

            if ((to = shortest(m, s, len)))
                meg_str_add(out, to, strlen(to));
            else
                meg_str_add(out, s, (size_t)len);
            s += len;
        }
    }
}

/* Map a character by SentencePiece's nmt rules; return -1 if it is removed. */
static int32_t nmt(int32_t cp)
{
    if ((cp >= 1 && cp <= 8) || cp == 0x0B || (cp >= 0x0E && cp <= 0x1F) || cp == 0x7F || cp == 0x8F || cp == 0x9F)
        return -1;
    if (cp == 9 || cp == 10 || cp == 0x0C || cp == 0x0D || cp == 0x1680 || (cp >= 0x200B && cp <= 0x200F) ||
        cp == 0x2028 || cp == 0x2029 || cp == 0x2581 || cp == 0xFEFF || cp == 0xFFFD)
        return ' ';
    return cp;
}

static void strip(const struct step *s, const char *text, int64_t n, struct meg_str *out)
{
    const char *end = text + n;
    int32_t cp;

    while (s->left && text < end) {
        int len = meg_utf8_decode(text, end - text, &cp);

        if (meg_char_class_of(cp) != MEG_CHAR_SPACE)
            break;
        text += len;
    }
    while (s->right && text < end) {
        const char *last = meg_utf8_prev(end, &cp);

        if (meg_char_class_of(cp) != MEG_CHAR_SPACE)
            break;
        end = last;
    }
    meg_str_add(out, text, (size_t)(end - text));
}

/* Run a step that maps characters independently of each other. */
static void map_chars(enum step_type type, const char *text, int64_t n, struct meg_str *out)
{
    struct meg_codepoints to = { 0 };

    for (int64_t i = 0; i < n;) {
        int32_t cp;

        i += meg_utf8_decode(text + i, n - i, &cp);
        if (type == LOWERCASE)
            meg_codepoints_add_lower(&to, cp);
        else if (type == NMT ? (cp = nmt(cp)) >= 0 : *utf8proc_category_string(cp) != 'M')
            meg_codepoints_add(&to, cp);
        if (i == n || to.n >= 4096) {
            meg_codepoints_to_utf8(&to, out);
            to.n = 0;
        }
    }
    free(to.v);
}

static int run_step(const struct step *s, const char *text, int64_t n, bool is_first_chunk, int64_t max_bytes,
                    struct meg_str *out, struct meg_err *e)
{
    switch (s->type) {
    case NFC:
    case NFD:
    case NFKC:
    case NFKD: return meg_normal_form_add(s->form, text, n, max_bytes, out, e);
    case LOWERCASE:
    case STRIP_ACCENTS:
    case NMT: map_chars(s->type, text, n, out); break;
    case STRIP: strip(s, text, n, out); break;
    case REPLACE: return meg_hf_pattern_replace(&s->pattern, text, n, &s->content, max_bytes, out, e);
    case PREPEND:
        if (n > 0 && is_first_chunk)
            meg_str_add(out, s->content.s, s->content.n);
        meg_str_add(out, text, (size_t)n);
        break;
    case BERT: meg_bert_normalize(&s->bert, text, n, out); break;
    case PRECOMPILED: precompiled(&s->map, text, n, max_bytes, out); break;
    case BYTE_LEVEL: meg_byte_alphabet_encode(out, text, n); break;
    }
    return 0;
}

int meg_hf_normalizer_run(const struct meg_hf_steps *norm, const char *text, int64_t n, bool is_first_chunk,
                          int64_t max_bytes, struct meg_str *out, struct meg_err *e)
{
    struct meg_str buf[2] = { { 0 }, { 0 } };
    int r = 0;

    out->n = 0;
    if (norm->n == 0)
        meg_str_add(out, text, (size_t)n);
    for (int64_t i = 0; i < norm->n && r == 0; i++) {
        struct meg_str *to = i + 1 < norm->n ? &buf[i % 2] : out;

        to->n = 0;
        meg_str_add(to, "", 0); /* allocate: text must not be NULL, even if it is empty */
        if ((r = run_step(meg_hf_step(norm, i), text, n, is_first_chunk, max_bytes, to, e)) == 0)
            r = meg_normal_form_check_size(to, 0, max_bytes, e);
        text = to->s;
        n = (int64_t)to->n;
    }
    meg_str_free(&buf[0]);
    meg_str_free(&buf[1]);
    return r;
}

bool meg_hf_normalizer_strips_start(const struct meg_hf_steps *norm, const char *text, int64_t n)
{
    const struct step *s;
    int32_t cp;

    if (n == 0 || meg_utf8_decode(text, n, &cp) < 0 || meg_char_class_of(cp) != MEG_CHAR_SPACE)
        return false;
    for (int64_t i = 0; (s = meg_hf_step(norm, i)) && s->type != PREPEND; i++) {
        if (s->type == STRIP && s->left)
            return true;
    }
    return false;
}

/* ---- Points at which text can be cut before it is normalized ---- */

/*
 * Return true if the map does not change spaces: no key begins with a space or with a character that forms one grapheme
 * cluster with a following space.
 */
static bool keeps_spaces(const struct meg_charsmap *m)
{
    const char *to;
    uint32_t node = meg_charsmap_root(m);

    if (meg_charsmap_step(m, &node, ' ', &to))
        return false;
    for (int32_t cp = 0x80; cp < 0x20000; cp++) { /* Grapheme_Cluster_Break = Prepend: U+0600 to U+11F02 */
        char s[4];
        int n, i = 0;

        if (utf8proc_get_property(cp)->boundclass != UTF8PROC_BOUNDCLASS_PREPEND)
            continue;
        node = meg_charsmap_root(m);
        n = meg_utf8_encode(s, cp);
        while (i < n && meg_charsmap_step(m, &node, (unsigned char)s[i], &to))
            i++;
        if (i == n)
            return false;
    }
    return true;
}

bool meg_hf_normalizer_can_split_at_space(const struct meg_hf_steps *n, bool *is_by_char, bool *is_around_ideographs)
{
    const struct step *s = meg_hf_step(n, 0);

    *is_by_char = true;
    *is_around_ideographs = s && n->n == 1 && s->type == BERT && s->bert.handle_chinese_chars;
    for (int64_t i = 0; (s = meg_hf_step(n, i)); i++) {
        switch (s->type) {
        case LOWERCASE:
        case STRIP_ACCENTS:
        case BERT: break;
        case NFC: /* "<" and U+0338 compose to U+226E, which is not punctuation */
        case NFD:
        case NFKC:
        case NFKD:
        case NMT: *is_by_char = false; break;
        case PRECOMPILED:
            *is_by_char = false;
            if (!keeps_spaces(&s->map))
                return false;
            break;
        default: return false;
        }
    }
    return true;
}

bool meg_hf_normalizer_is_metaspace(const struct meg_hf_steps *n, struct meg_span *mark)
{
    const struct step *first = meg_hf_step(n, 0), *last = meg_hf_step(n, n ? n->n - 1 : 0);

    if (!last || n->n > 2 || (n->n == 2 && first->type != PREPEND) || last->type != REPLACE || last->pattern.regex ||
        last->pattern.literal.n != 1 || *last->pattern.literal.s != ' ')
        return false;
    *mark = (struct meg_span){ last->content.s, (int64_t)last->content.n };
    return true;
}
