/* basic_tokenizer.c - BERT's BasicTokenizer: clean, split and lower-case a text. */
#include "tokenizer/bert/basic_tokenizer.h"
#include <stdlib.h>
#include <utf8proc.h>
#include "unicode/case_map.h"
#include "unicode/char_class.h"
#include "unicode/utf8.h"

struct range {
    int32_t lo, hi;
};

static bool is_in(int32_t cp, const struct range *r, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (cp >= r[i].lo && cp <= r[i].hi)
            return true;
    }
    return false;
}

/*
 * Return true for ideographs.  The blocks are from Devlin et al.  If is_hf, the block U+2B820 to U+2CEAF begins at
 * U+2B920, as in Hugging Face's list.
 */
static bool is_ideograph(int32_t cp, bool is_hf)
{
    static const struct range block[] = { { 0x4E00, 0x9FFF },   { 0x3400, 0x4DBF },   { 0x20000, 0x2A6DF },
                                          { 0x2A700, 0x2B73F }, { 0x2B740, 0x2B81F }, { 0xF900, 0xFAFF },
                                          { 0x2F800, 0x2FA1F } };

    return cp >= 0x3400 &&
           (is_in(cp, block, sizeof block / sizeof *block) || (cp >= (is_hf ? 0x2B920 : 0x2B820) && cp <= 0x2CEAF));
}

bool meg_bert_is_safe_split(int32_t cp)
{
    return cp == ' ' || cp == '\t' || cp == '\n' || cp == '\r' || is_ideograph(cp, false);
}

bool meg_bert_is_punctuation(int32_t cp)
{
    if (cp < 0x80)
        return (cp >= 0x21 && cp <= 0x2F) || (cp >= 0x3A && cp <= 0x40) || (cp >= 0x5B && cp <= 0x60) ||
               (cp >= 0x7B && cp <= 0x7E);
    return meg_char_is_in(cp, MEG_PUNCTUATION);
}

/*
 * Return true if the capital sigma at i is final: a cased letter precedes it, and no cased letter follows it.
 * Case-ignorable characters next to the sigma are skipped (Unicode 3.13, Final_Sigma).
 */
static bool is_final_sigma(const int32_t *word, int64_t n, int64_t i)
{
    int64_t before = i - 1, after = i + 1;

    while (before >= 0 && meg_char_is_case_ignorable(word[before]))
        before--;
    while (after < n && meg_char_is_case_ignorable(word[after]))
        after++;
    return before >= 0 && meg_char_is_cased(word[before]) && !(after < n && meg_char_is_cased(word[after]));
}

/* Lowercase and decompose a word, and remove nonspacing marks. */
static void lower(const int32_t *word, int64_t n, struct meg_codepoints *out)
{
    int64_t kept = 0;

    out->n = 0;
    for (int64_t i = 0; i < n; i++) {
        if (word[i] == 0x3A3 && is_final_sigma(word, n, i))
            meg_codepoints_add(out, 0x3C2);
        else
            meg_codepoints_add_lower(out, word[i]);
    }
    meg_codepoints_decompose(out, false);
    for (int64_t i = 0; i < out->n; i++) {
        if (!meg_char_is_nonspacing_mark(out->v[i]))
            out->v[kept++] = out->v[i];
    }
    out->n = kept;
}

static void end_partial(struct meg_str *partial, struct meg_str *out)
{
    if (partial->n == 0)
        return;
    meg_str_add(out, partial->s, partial->n);
    meg_str_add(out, "", 1);
    partial->n = 0;
}

/*
 * Split text before and after punctuation characters.  Append complete words to out, and the characters after the last
 * punctuation character to partial.  Truncate long words as meg_bert_basic_next does.
 */
static void split_at_punctuation(const struct meg_codepoints *chars, struct meg_str *partial, struct meg_str *out)
{
    for (int64_t i = 0; i < chars->n; i++) {
        bool is_punctuation = meg_bert_is_punctuation(chars->v[i]);

        if (is_punctuation)
            end_partial(partial, out);
        if (partial->n <= MEG_BERT_MAX_WORD) {
            char s[4];

            meg_str_add(partial, s, (size_t)meg_utf8_encode(s, chars->v[i]));
        }
        if (is_punctuation)
            end_partial(partial, out);
    }
}

/* Return U+0020 if cp is whitespace, -1 if cp must be removed from the text, and cp otherwise. */
static int32_t clean_char(int32_t cp)
{
    if (cp == '\t' || cp == '\n' || cp == '\r' || cp == ' ')
        return ' ';
    if (cp >= 0x21 && cp < 0x7F)
        return cp;
    if (cp == 0xFFFD)
        return -1;
    if (meg_char_is_in(cp, MEG_CATEGORY(CC) | MEG_CATEGORY(CF)))
        return -1;
    return meg_char_is_in(cp, MEG_CATEGORY(ZS) | MEG_CATEGORY(ZL) | MEG_CATEGORY(ZP)) ? ' ' : cp;
}

/*
 * Return true if the decomposition of cp begins with a character of combining class 0.  Canonical ordering does not
 * move such a character before an earlier one.
 */
static bool is_starter(int32_t cp)
{
    utf8proc_int32_t part[32];

    return cp < 0x300 || (utf8proc_decompose_char(cp, part, 32, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL) > 0 &&
                          utf8proc_get_property(part[0])->combining_class == 0);
}

/*
 * Return true if a text can be split between the adjacent characters a and b without changing the result of lowercasing
 * and decomposition.  Return false if this is not certain.
 */
static bool can_split_between(int32_t a, int32_t b)
{
    return a != 0x3A3 && b != 0x3A3 && !meg_char_is_case_ignorable(a) && !meg_char_is_case_ignorable(b) &&
           is_starter(b);
}

void meg_bert_basic_free(struct meg_bert_basic_tokenizer *r)
{
    free(r->word.v);
    free(r->lowered.v);
    meg_str_free(&r->partial);
}

void meg_bert_basic_start(struct meg_bert_basic_tokenizer *r, const char *text, int64_t n)
{
    r->text = text;
    r->end = text + n;
    r->word.n = 0;
    r->partial.n = 0;
}

/*
 * Lowercase the buffered characters if is_lower is set, and split them into words.  The text after the last punctuation
 * character remains in r->partial, since it may be the beginning of a word that later characters continue.
 */
static void flush(struct meg_bert_basic_tokenizer *r, struct meg_str *out)
{
    if (r->is_lower)
        lower(r->word.v, r->word.n, &r->lowered);
    split_at_punctuation(r->is_lower ? &r->lowered : &r->word, &r->partial, out);
    r->word.n = 0;
}

static void end_word(struct meg_bert_basic_tokenizer *r, struct meg_str *out)
{
    flush(r, out);
    end_partial(&r->partial, out);
}

int meg_bert_run_error(struct meg_err *e)
{
    return meg_fail(
        e, MEG_EFORMAT,
        "the text has more than %d consecutive characters that must be encoded together, for example combining "
        "marks, apostrophes or periods; split the document",
        MEG_BERT_MAX_RUN);
}

int meg_bert_basic_next(struct meg_bert_basic_tokenizer *r, struct meg_str *out, struct meg_err *e)
{
    enum { CHUNK_CHARS = 4096 };

    out->n = 0;
    while (r->text < r->end && out->n < CHUNK_CHARS) {
        int32_t cp;

        r->text += meg_utf8_decode(r->text, r->end - r->text, &cp);
        cp = clean_char(cp);
        if (cp < 0)
            continue;
        if (cp == ' ') {
            end_word(r, out);
        } else if (is_ideograph(cp, false)) {
            end_word(r, out);
            meg_codepoints_add(&r->word, cp);
            end_word(r, out);
        } else {
            if (r->word.n >= CHUNK_CHARS && can_split_between(r->word.v[r->word.n - 1], cp))
                flush(r, out);
            meg_codepoints_add(&r->word, cp);
        }
        if (r->word.n > MEG_BERT_MAX_RUN)
            return meg_bert_run_error(e);
    }
    if (r->text == r->end)
        end_word(r, out);
    return out->n > 0;
}

/*
 * Apply strip_accents and lowercase, if set, to the buffered characters and append them to out.  The caller ensures
 * that the next characters do not affect the result.
 */
static void flush_normalized(const struct meg_bert_normalizer *b, struct meg_codepoints *c, struct meg_codepoints *d,
                             struct meg_str *out)
{
    d->n = 0;
    if (b->strip_accents)
        meg_codepoints_decompose(c, false);
    for (int64_t i = 0; i < c->n; i++) {
        if (b->strip_accents && meg_char_is_nonspacing_mark(c->v[i]))
            continue;
        if (b->lowercase)
            meg_codepoints_add_lower(d, c->v[i]);
        else
            meg_codepoints_add(d, c->v[i]);
    }
    meg_codepoints_to_utf8(d, out);
    c->n = 0;
}

void meg_bert_normalize(const struct meg_bert_normalizer *b, const char *text, int64_t n, struct meg_str *out)
{
    enum { CHUNK_CHARS = 4096, CONTROL = MEG_CATEGORY(CC) | MEG_CATEGORY(CF) | MEG_CATEGORY(CS) | MEG_CATEGORY(CO) };
    struct meg_codepoints c = { 0 }, d = { 0 };

    for (int64_t i = 0; i < n;) {
        int32_t cp;

        i += meg_utf8_decode(text + i, n - i, &cp);
        if (b->clean_text) {
            bool is_space = cp == '\t' || cp == '\n' || cp == '\r';

            if (!is_space && (cp == 0xFFFD || meg_char_is_in(cp, CONTROL)))
                continue;
            if (is_space || meg_char_class_of(cp) == MEG_CHAR_SPACE)
                cp = ' ';
        }
        if (c.n >= CHUNK_CHARS && is_starter(cp))
            flush_normalized(b, &c, &d, out);
        if (b->handle_chinese_chars && is_ideograph(cp, true)) {
            meg_codepoints_add(&c, ' ');
            meg_codepoints_add(&c, cp);
            cp = ' ';
        }
        meg_codepoints_add(&c, cp);
    }
    flush_normalized(b, &c, &d, out);
    free(c.v);
    free(d.v);
}
