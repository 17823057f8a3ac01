/*
 * Most of what a tokenizer.json asks for is slow to do and comes to the same for every occurrence of a word.
 * So a text is cut into stretches, before anything is done to it, at places where no part of the file looks
 * across; what a stretch is encoded to can be remembered.  There are two kinds of files:
 *
 * Those whose pre-tokeniser cuts at whitespace (BERT, T5): a seam before each blank, if the normaliser keeps
 * it apart from what is before it and leaves it whitespace.  Around punctuation and ideographs, too, where
 * those are cut off.  No added token may be sought in the normalised text.
 *
 * Those without pre-tokeniser whose normaliser puts a mark in place of each blank (Llama 2): BPE of the whole
 * text, which can be cut between two characters that no token has side by side.  An added token that is
 * sought in the normalised text holds together like a token, but may not look at what is around it.
 */
#include <string.h>

#include "tokenizer/bert/basic_tokenizer.h"
#include "tokenizer/hf/files.h"
#include "unicode/utf8.h"

static void set_safe_split(struct meg_hf_safe_split *s, int left, int right, bool is_safe)
{
    const char pair[2] = { (char)left, (char)right };
    uint16_t at;

    memcpy(&at, pair, sizeof at);
    s->at.is_safe[at] = is_safe;
}

/* A blank by itself: is it whitespace when normalised, and has it no pieces? */
static int check_space(const struct meg_hf_files *f, char c, bool *is_space, bool *is_nothing, struct meg_err *e)
{
    struct meg_hf_pretokens pieces = { 0 }, other = { 0 };
    struct meg_str normal = { 0 };
    int r = MEG_OK;

    if (f->norm)
        r = meg_hf_normalizer_run(f->norm, &c, 1, false, MEG_HF_MAX_UNSPLIT, &normal, e);
    else
        meg_str_add(&normal, &c, 1);
    *is_space = normal.n == 1 && memchr(" \t\n\r", *normal.s, 4);
    if (r == MEG_OK && *is_space) {
        meg_hf_pretokens_add(&pieces, normal.s, 1, false);
        r = meg_hf_pretokenizer_run(f->pre, &pieces, &other, e);
    }
    *is_nothing = *is_space && pieces.n == 0;
    meg_hf_pretokens_free(&pieces);
    meg_hf_pretokens_free(&other);
    meg_str_free(&normal);
    return r;
}

static bool is_punctuation(int byte)
{
    return byte < 0x80 && meg_bert_is_punctuation(byte);
}

/* Around punctuation, and before an ideograph: U+5000 to U+9FFF by its first byte. */
static void split_at_chars(struct meg_hf_safe_split *s, bool is_around_ideographs)
{
    for (int left = 0; left < 256; left++) {
        for (int right = 0; right < 256; right++) {
            if (is_punctuation(right) || (is_punctuation(left) && right > ' ' && right < 0x7F) ||
                (is_around_ideographs && right >= 0xE5 && right <= 0xE9))
                set_safe_split(s, left, right, true);
        }
    }
}

/* The first kind. */
static int split_at_spaces(struct meg_hf_files *f, bool is_by_space, bool is_by_char, bool is_around_ideographs,
                           struct meg_err *e)
{
    const char *blanks = is_by_space ? " \t\n\r" : " ";
    struct meg_hf_safe_split *s = f->seams = meg_new(sizeof *s);
    int r = MEG_OK;

    s->most = MEG_HF_MAX_CHUNK;
    memset(s->at.joined_hash, 0xFF, sizeof s->at.joined_hash);
    for (const char *c = blanks; r == MEG_OK && *c; c++) {
        bool is_space, is_nothing;

        if ((r = check_space(f, *c, &is_space, &is_nothing, e)) < 0 || !is_space)
            continue;
        s->is_nothing[(unsigned char)*c] = is_nothing;
        for (int left = 0; left < 256; left++)
            set_safe_split(s, left, *c, !(left == '\r' && *c == '\n'));
    }
    if (is_by_char)
        split_at_chars(s, is_around_ideographs);
    return r;
}

/* The characters of a token of normalised text hold together, as text may spell them: a mark is that, or a
 * blank. */
static void join(struct meg_hf_safe_split *s, const struct meg_str *token, const struct meg_span *mark)
{
    const char *at = token->s, *end = at + token->n;
    struct meg_span left[2] = { { NULL, 0 }, { NULL, 0 } };

    while (at < end) {
        bool is_mark = end - at >= mark->n && memcmp(at, mark->s, (size_t)mark->n) == 0;
        int64_t n = 1;
        struct meg_span right[2];

        while (at + n < end && ((unsigned char)at[n] & 0xC0) == 0x80)
            n++;
        right[0] = right[1] = (struct meg_span){ at, n };
        if (is_mark)
            right[1] = (struct meg_span){ " ", 1 };
        for (int i = 0; left->s && i < 4; i++) {
            struct meg_str both = { 0 };

            meg_str_add(&both, left[i / 2].s, (size_t)left[i / 2].n);
            meg_str_add(&both, right[i % 2].s, (size_t)right[i % 2].n);
            meg_safe_split_add_token(&s->at, both.s, (int64_t)both.n);
            meg_str_free(&both);
        }
        memcpy(left, right, sizeof left);
        at += n;
    }
}

/* The second kind; the mark is one character. */
static int split_between_chars(struct meg_hf_files *f, const struct meg_span *mark, struct meg_err *e)
{
    struct meg_hf_safe_split *s;
    struct meg_str normal = { 0 };
    int r = MEG_OK;

    for (int64_t i = 0; i < f->nadded; i++) {
        const struct meg_hf_added_token *a = &f->added[i];

        if (a->normalized && (a->lstrip || a->rstrip || a->single_word))
            return MEG_OK;
    }
    s = f->seams = meg_new(sizeof *s);
    s->most = 5 * MEG_HF_MAX_CHUNK; /* a mark has up to four bytes, and one may be put in front */
    meg_safe_split_init(&s->at);
    for (int64_t k = 0; k < f->model.vocab.tokens.n; k++) {
        struct meg_str token = meg_strtab_get(&f->model.vocab.tokens, k);

        join(s, &token, mark);
    }
    for (int64_t i = 0; i < f->nadded && r == MEG_OK; i++) {
        const struct meg_str *content = &f->added[i].content;

        if (!f->added[i].normalized)
            continue;
        if (f->norm)
            r = meg_hf_normalizer_run(f->norm, content->s, (int64_t)content->n, true, MEG_HF_MAX_UNSPLIT, &normal, e);
        join(s, f->norm ? &normal : content, mark);
    }
    meg_str_free(&normal);
    return r;
}

static bool is_one_character(const struct meg_span *s)
{
    int32_t cp;

    return s->n > 0 && meg_utf8_decode(s->s, s->n, &cp) == s->n;
}

int meg_hf_safe_split_build(struct meg_hf_files *f, struct meg_err *e)
{
    bool is_by_char, is_around_ideographs, is_around_punctuation = false;
    bool is_by_space = meg_hf_pretokenizer_splits_whitespace(f->pre, &is_around_punctuation);
    struct meg_span mark;

    if (f->is_bytes)
        return MEG_OK;
    if ((is_by_space || meg_hf_pretokenizer_splits_metaspace(f->pre)) && f->normal.nbegins == 0 &&
        meg_hf_normalizer_can_split_at_space(f->norm, &is_by_char, &is_around_ideographs))
        return split_at_spaces(f, is_by_space, is_by_char && is_around_punctuation, is_around_ideographs, e);
    if (meg_hf_bpe_has_safe_splits(&f->model) &&
        ((!f->pre && meg_hf_normalizer_is_metaspace(f->norm, &mark)) ||
         (!f->norm && meg_hf_pretokenizer_is_metaspace(f->pre, &mark))) &&
        is_one_character(&mark))
        return split_between_chars(f, &mark, e);
    return MEG_OK;
}
