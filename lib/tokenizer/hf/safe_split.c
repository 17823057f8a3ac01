/*
 * safe_split.c - find the safe split points of a tokenizer.json.  At a safe split point, text can be cut before
 * normalization without changing the ids of the text.  hf.c caches the ids of the chunks between safe split points,
 * since running the components is slow.  Two families of files have safe split points.
 *
 * Split at spaces (BERT, T5): the pre-tokenizer splits at whitespace, or before each replacement character of
 * Metaspace.  The normalizer does not combine a space with the character before the space.  No added token is matched
 * in normalized text.  The split points are
 * - before each space and, if the pre-tokenizer splits at whitespace, before tabs, newlines and carriage returns, but
 *   not inside \r\n;
 * - before ASCII punctuation, and between ASCII punctuation and a printable ASCII character after it, if the
 *   pre-tokenizer isolates punctuation and the normalizer processes these characters separately;
 * - before U+5000 to U+9FFF, if the pre-tokenizer isolates punctuation and the normalizer surrounds ideographs with
 *   spaces.
 *
 * Split between characters (Llama 2): either the normalizer or the pre-tokenizer replaces each space by a replacement
 * character (usually U+2581, called `mark` below), and the other component is absent.  BPE runs on the entire text.
 * The text can be cut between two characters that are not adjacent in any token.  An added token that is matched in
 * normalized text counts as a token.  It must not have lstrip, rstrip or single_word, since these options depend on the
 * text around the token.
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
    s->table.is_safe[at] = is_safe;
}

/*
 * Set *is_space to whether c is normalized to one whitespace character.  Set *is_tokenless to whether the pre-tokenizer
 * removes the whitespace character.  In that case, a chunk of c alone has no ids.
 */
static int check_space(const struct meg_hf_files *f, char c, bool *is_space, bool *is_tokenless, struct meg_err *e)
{
    struct meg_hf_pretokens pretokens = { 0 }, scratch = { 0 };
    struct meg_str normalized = { 0 };
    int r = 0;

    if (f->normalizer)
        r = meg_hf_normalizer_run(f->normalizer, &c, 1, false, MEG_HF_MAX_UNSPLIT, &normalized, e);
    else
        meg_str_add(&normalized, &c, 1);
    *is_space = normalized.n == 1 && memchr(" \t\n\r", *normalized.s, 4);
    if (r == 0 && *is_space) {
        meg_hf_pretokens_add(&pretokens, normalized.s, 1, false);
        r = meg_hf_pretokenizer_run(f->pretokenizer, &pretokens, &scratch, e);
    }
    *is_tokenless = *is_space && pretokens.n == 0;
    meg_hf_pretokens_free(&pretokens);
    meg_hf_pretokens_free(&scratch);
    meg_str_free(&normalized);
    return r;
}

static bool is_punctuation(int byte)
{
    return byte < 0x80 && meg_bert_is_punctuation(byte);
}

/*
 * Allow splits before ASCII punctuation, and between ASCII punctuation and a printable ASCII character after it.  If
 * is_around_ideographs, allow splits before U+5000 to U+9FFF (first UTF-8 bytes E5 to E9).
 */
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

/*
 * Build the table of split points for the family "split at spaces".  is_by_space adds split points before tabs,
 * newlines and carriage returns, but not inside \r\n.  is_by_char adds split points around ASCII punctuation and, if
 * is_around_ideographs, before ideographs.
 */
static int split_at_spaces(struct meg_hf_files *f, bool is_by_space, bool is_by_char, bool is_around_ideographs,
                           struct meg_err *e)
{
    const char *spaces = is_by_space ? " \t\n\r" : " ";
    struct meg_hf_safe_split *s = f->safe_split = meg_new(sizeof *s);
    int r = 0;

    s->max_gap = MEG_HF_MAX_CHUNK;
    memset(s->table.joined_hash, 0xFF, sizeof s->table.joined_hash);
    for (const char *c = spaces; r == 0 && *c; c++) {
        bool is_space, is_tokenless;

        if ((r = check_space(f, *c, &is_space, &is_tokenless, e)) < 0 || !is_space)
            continue;
        s->is_tokenless[(unsigned char)*c] = is_tokenless;
        for (int left = 0; left < 256; left++)
            set_safe_split(s, left, *c, !(left == '\r' && *c == '\n'));
    }
    if (is_by_char)
        split_at_chars(s, is_around_ideographs);
    return r;
}

/* Forbid splits inside a token.  A mark in the token may come from a space or from a mark in the original text. */
static void add_token(struct meg_hf_safe_split *s, const struct meg_str *token, const struct meg_span *mark)
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
            meg_safe_split_add_token(&s->table, both.s, (int64_t)both.n);
            meg_str_free(&both);
        }
        memcpy(left, right, sizeof left);
        at += n;
    }
}

/*
 * Build the table of split points for the family "split between characters".  `mark` is one character.  Leave
 * f->safe_split NULL if an added token that is matched in normalized text has lstrip, rstrip or single_word.
 */
static int split_between_chars(struct meg_hf_files *f, const struct meg_span *mark, struct meg_err *e)
{
    const struct meg_hf_added_patterns *const patterns[] = { &f->added.special, &f->added.other };
    struct meg_hf_safe_split *s;
    struct meg_str normalized = { 0 };
    int r = 0;

    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < patterns[side]->n; i++) {
            const struct meg_hf_token_flags *a = &f->added.v[patterns[side]->v[i].token].flags;

            if (patterns[side]->v[i].normalized && (a->lstrip || a->rstrip || a->single_word))
                return 0;
        }
    }
    s = f->safe_split = meg_new(sizeof *s);
    /* normalization replaces a byte by at most 4 bytes (a space by a mark), and Prepend may add a string */
    s->max_gap = 5 * MEG_HF_MAX_CHUNK;
    meg_safe_split_init(&s->table);
    for (int64_t k = 0; k < f->model.vocab.tokens.n; k++) {
        struct meg_str token = meg_strtab_get(&f->model.vocab.tokens, k);

        add_token(s, &token, mark);
    }
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < patterns[side]->n && r == 0; i++) {
            const struct meg_hf_added_pattern *p = &patterns[side]->v[i];
            const struct meg_str *content = &f->added.v[p->token].content;

            if (!p->normalized)
                continue;
            if (f->normalizer)
                r = meg_hf_normalizer_run(f->normalizer, content->s, (int64_t)content->n, true, MEG_HF_MAX_UNSPLIT,
                                          &normalized, e);
            add_token(s, f->normalizer ? &normalized : content, mark);
        }
    }
    meg_str_free(&normalized);
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
    bool is_by_space = meg_hf_pretokenizer_splits_whitespace(f->pretokenizer, &is_around_punctuation);
    struct meg_span mark;

    if (f->is_byte_level)
        return 0;
    if ((is_by_space || meg_hf_pretokenizer_splits_metaspace(f->pretokenizer)) &&
        f->added.normalized.nfirst_bytes == 0 &&
        meg_hf_normalizer_can_split_at_space(f->normalizer, &is_by_char, &is_around_ideographs))
        return split_at_spaces(f, is_by_space, is_by_char && is_around_punctuation, is_around_ideographs, e);
    if (meg_hf_bpe_has_safe_splits(&f->model) &&
        ((!f->pretokenizer && meg_hf_normalizer_is_metaspace(f->normalizer, &mark)) ||
         (!f->normalizer && meg_hf_pretokenizer_is_metaspace(f->pretokenizer, &mark))) &&
        is_one_character(&mark))
        return split_between_chars(f, &mark, e);
    return 0;
}
