/*
 * BertWordPieceLowerCase and BertWordPieceCase, equal to Megatron-LM's _BertWordPieceTokenizer to the
 * id.  Words of ASCII are looked up as they stand.  What stands between two seams (see basic_tokenizer.h) and
 * holds anything else is read by the rules and remembered as a whole: a capital sigma looks as far.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/bert/basic_tokenizer.h"
#include "tokenizer/bert/vocab_file.h"
#include "tokenizer/internal.h"
#include "tokenizer/wordcache.h"
#include "unicode/utf8.h"

enum { BATCH = 128 };

struct bert {
    struct meg_tokenizer base;
    struct meg_bert_files *files; /* the owner's; a share borrows it */
    bool is_share;
    struct meg_wordcache cache;
    struct meg_wordcache_lookup word[BATCH]; /* words and stretches that wait for their ids, */
    int nwords;                              /* their places in the cache on the way to the processor */
    struct meg_bert_basic_tokenizer reader;
    struct meg_str words; /* some of one stretch */
};

static int open_any(struct meg_tokenizer **out, const struct meg_tok_conf *c, bool is_lower, struct meg_err *e)
{
    int64_t nextra = c->vocab_extra_ids == MEG_UNSET ? 0 : c->vocab_extra_ids;
    char extra[32];
    struct bert *t;
    struct meg_bert_files *files;
    int r;

    if (!meg_megatron_release_find(c->megatron_release)->has_bert)
        return meg_fail(e, MEG_EUSAGE,
                        "%s: --megatron-release %s splits words otherwise; 0.14 is the last that is "
                        "followed",
                        c->type, c->megatron_release);
    if (!c->vocab_file)
        return meg_fail(e, MEG_EUSAGE, "%s needs --vocab-file", c->type);
    if (nextra < 0 || nextra > 1000000)
        return meg_fail(e, MEG_EUSAGE, "--vocab-extra-ids: %lld is not in 0..1000000", (long long)nextra);
    if ((r = meg_bert_files_load(&files, c->vocab_file, nextra, e)) < 0)
        return r;
    t = meg_new(sizeof *t);
    t->files = files;
    t->reader.is_lower = is_lower;
    t->base.class = is_lower ? &meg_tok_bert_lower : &meg_tok_bert_case;
    t->base.vocab_size = files->tokens.n;
    t->base.special_ids = files->roles;
    snprintf(extra, sizeof extra, "%lld", (long long)nextra);
    meg_tok_set_description(
        &t->base, "_BertWordPieceTokenizer", (const char *const[]){ c->vocab_file, NULL },
        (const char *const[]){ "lower_case", is_lower ? "True" : "False", "vocab_extra_ids", extra, NULL });
    *out = &t->base;
    return MEG_OK;
}

static int open_lower(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    return open_any(out, c, true, e);
}

static int open_case(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    return open_any(out, c, false, e);
}

static void bert_close(struct meg_tokenizer *base)
{
    struct bert *t = (struct bert *)base;

    if (!t->is_share)
        meg_bert_files_free(t->files);
    meg_wordcache_free(&t->cache);
    meg_bert_basic_free(&t->reader);
    meg_str_free(&t->words);
    free(t);
}

static struct meg_tokenizer *bert_share(const struct meg_tokenizer *base)
{
    struct bert *t = meg_new(sizeof *t);

    t->files = ((const struct bert *)base)->files;
    t->reader.is_lower = ((const struct bert *)base)->reader.is_lower;
    t->is_share = true;
    return &t->base;
}

enum { LONG = 1 << 12 }; /* more bytes are not remembered; ASCII letters, they are an unknown word */

/* Append the ids of what is not remembered, by all rules. */
static int encode_uncached(struct bert *t, const char *s, int64_t n, struct meg_ids *out,
                           const struct meg_id_sink *sink, struct meg_err *e)
{
    int r;

    meg_bert_basic_start(&t->reader, s, n);
    while ((r = meg_bert_basic_next(&t->reader, &t->words, e)) > 0) {
        meg_ids_reserve(out, (int64_t)t->words.n);
        for (size_t at = 0, len; at < t->words.n; at += len + 1) {
            const char *word = t->words.s + at;

            len = strlen(word);
            out->n += meg_wordpiece_encode(&t->files->pieces, word, (int64_t)len, out->v + out->n);
        }
        if (n > LONG && (r = meg_ids_flush(out, sink, e)) < 0)
            break;
    }
    return r;
}

/* Append the ids of a word or stretch. */
static int add_ids(struct bert *t, const struct meg_wordcache_lookup *w, struct meg_ids *out,
                   const struct meg_id_sink *sink, struct meg_err *e)
{
    const struct meg_wordcache_entry *known;
    const int32_t *ids;
    int64_t first = out->n, nids;
    int r;

    if (w->n > LONG)
        return encode_uncached(t, w->s, w->n, out, sink, e);
    if ((known = meg_wordcache_find(&t->cache, w))) {
        if (out->cap - out->n < (nids = meg_word_ids(&t->cache, known, &ids)) + MEG_WORD_IDS)
            meg_ids_reserve(out, nids + MEG_WORD_IDS);
        out->n += meg_word_copy(&t->cache, known, out->v + out->n);
        return MEG_OK;
    }
    if ((r = encode_uncached(t, w->s, w->n, out, sink, e)) == MEG_OK && out->n > first)
        meg_wordcache_add(&t->cache, w->s, w->n, out->v + first, out->n - first, 0);
    return r;
}

/* Where the stretch begins that is encoded again, by all rules, when a character is met that asks for them. */
struct stretch {
    const char *begin;
    int nth;       /* of the words that wait, its first one */
    int64_t first; /* of its ids; -1: none has been added */
};

static int encode_batch(struct bert *t, struct stretch *x, struct meg_ids *out, const struct meg_id_sink *sink,
                        struct meg_err *e)
{
    int r = MEG_OK;

    meg_wordcache_prefetch_rest(&t->cache, t->word, t->nwords);
    for (int i = 0; i < t->nwords && r == MEG_OK; i++) {
        if (i == x->nth && x->first < 0)
            x->first = out->n;
        r = add_ids(t, &t->word[i], out, sink, e);
    }
    t->nwords = x->nth = 0;
    return r;
}

/* A word or stretch of n bytes; what is before end may be read. */
static int add_word(struct bert *t, struct stretch *x, const char *s, int64_t n, const char *end, struct meg_ids *out,
                    const struct meg_id_sink *sink, struct meg_err *e)
{
    struct meg_wordcache_lookup *w;
    int r;

    if (t->nwords == BATCH && (r = encode_batch(t, x, out, sink, e)) < 0)
        return r;
    w = &t->word[t->nwords++];
    if (n > LONG)
        *w = (struct meg_wordcache_lookup){ .bucket = t->cache.word, .s = s, .n = n };
    else
        meg_wordcache_prefetch(&t->cache, w, s, n, end);
    return MEG_OK;
}

static int begin_chunk(struct bert *t, struct stretch *x, const char *s, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e)
{
    *x = (struct stretch){ s, t->nwords, -1 };
    return meg_ids_flush(out, sink, e);
}

static void undo_chunk(struct bert *t, const struct stretch *x, struct meg_ids *out)
{
    t->nwords = x->nth;
    if (x->first >= 0)
        out->n = x->first;
}

/* What a byte is to the fast loop. */
enum kind { LETTER, PUNCTUATION, BLANK, RULES };

static const unsigned char *kinds(void)
{
    static const unsigned char kind[256] = { [0 ... 8] = RULES,
                                             ['\t'] = BLANK,
                                             ['\n'] = BLANK,
                                             [0x0B ... 0x0C] = RULES,
                                             ['\r'] = BLANK,
                                             [0x0E ... 0x1F] = RULES,
                                             [' '] = BLANK,
                                             [0x21 ... 0x2F] = PUNCTUATION,
                                             [0x3A ... 0x40] = PUNCTUATION,
                                             [0x5B ... 0x60] = PUNCTUATION,
                                             [0x7B ... 0x7E] = PUNCTUATION,
                                             [0x7F ... 0xFF] = RULES };

    return kind;
}

/* The end of what stands between seams and begins at s; an ideograph is a stretch of its own. */
static const char *safe_chunk_end(const char *s, const char *end)
{
    const char *p = s;
    int32_t cp;

    do
        p += meg_utf8_decode_unchecked(p, &cp);
    while (!meg_bert_is_safe_split(cp) && p < end);
    if (!meg_bert_is_safe_split(cp))
        return p;
    p = meg_utf8_prev(p, &cp);
    return p > s ? p : p + meg_utf8_decode_unchecked(p, &cp);
}

/* Rules look as far as the next letter, digit or sign that is none of these (Case_Ignorable). */
static bool not_case_ignorable(char c)
{
    return !memchr("'.:^`", c, 5);
}

static int bert_encode(struct meg_tokenizer *base, const char *text, int64_t n, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e)
{
    struct bert *t = (struct bert *)base;
    const unsigned char *kind = kinds();
    const char *end = text + n;
    struct stretch x;
    int r;

    if (!t->cache.word)
        meg_wordcache_init(&t->cache);
    t->nwords = 0;
    r = begin_chunk(t, &x, text, out, sink, e);
    for (const char *s = text, *p; s < end && r == MEG_OK; s = p) {
        p = s + 1;
        switch (kind[(unsigned char)*s]) {
        case BLANK: r = begin_chunk(t, &x, p, out, sink, e); break;
        case LETTER:
            while (p < end && kind[(unsigned char)*p] == LETTER)
                p++;
            if (p == end || kind[(unsigned char)*p] != RULES) {
                if (s - x.begin > LONG && (r = begin_chunk(t, &x, s, out, sink, e)) < 0)
                    break;
                r = add_word(t, &x, s, p - s > LONG ? LONG : p - s, end, out, sink, e); /* unknown */
                break;
            }
            /* fall through */
        case RULES:
            undo_chunk(t, &x, out);
            p = safe_chunk_end(x.begin, end);
            if ((r = add_word(t, &x, x.begin, p - x.begin, end, out, sink, e)) == MEG_OK)
                r = begin_chunk(t, &x, p, out, sink, e);
            break;
        case PUNCTUATION:
            if (s - x.begin > LONG && not_case_ignorable(*s) && (r = begin_chunk(t, &x, s, out, sink, e)) < 0)
                break;
            r = s - x.begin > MEG_BERT_MAX_RUN ? meg_bert_run_error(e) : add_word(t, &x, s, 1, end, out, sink, e);
            break;
        }
    }
    return r < 0 ? r : encode_batch(t, &x, out, sink, e);
}

static void bert_bytes(const struct meg_tokenizer *base, const int32_t *ids, int64_t n, struct meg_str *out)
{
    const struct meg_strtab *tokens = &((const struct bert *)base)->files->tokens;

    for (int64_t i = 0; i < n; i++) {
        struct meg_str t = meg_strtab_get(tokens, ids[i]);

        meg_str_add(out, t.s, t.n);
    }
}

/* Where the text may be cut in two that are cleaned up apart: before a blank that no rule looks at. */
static size_t last_cut(const struct meg_str *s)
{
    for (size_t i = s->n > 2 ? s->n - 2 : 0; i > 0; i--) {
        if (s->s[i] == ' ' && s->s[i - 1] != ' ' && s->s[i - 1] != '\'' && !strchr(".?!,'n ", s->s[i + 1]))
            return i;
    }
    return 0;
}

static void bert_decode(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out)
{
    const struct meg_strtab *tokens = &((const struct bert *)d->tok)->files->tokens;
    struct meg_str part = { 0 };
    size_t end;

    for (int64_t i = 0; i < n; i++) {
        struct meg_str t = meg_strtab_get(tokens, ids[i]);

        if (d->n + i > 0 && t.n >= 2 && memcmp(t.s, "##", 2) == 0) {
            meg_str_add(&d->pending, t.s + 2, t.n - 2);
        } else {
            if (d->n + i > 0)
                meg_str_add(&d->pending, " ", 1);
            meg_str_add(&d->pending, t.s, t.n);
        }
    }
    end = is_last ? d->pending.n : last_cut(&d->pending);
    meg_str_add(&part, d->pending.s, end);
    meg_tok_clean_up(&part, false);
    meg_str_add(out, part.s, part.n);
    meg_str_remove_prefix(&d->pending, end);
    meg_str_free(&part);
}

const struct meg_tok_class meg_tok_bert_lower = {
    "BertWordPieceLowerCase", open_lower, bert_close, bert_share, bert_encode, bert_bytes, bert_decode, true,
    MEG_TOK_LIB_MEGATRON,
};

const struct meg_tok_class meg_tok_bert_case = {
    "BertWordPieceCase", open_case,   bert_close, bert_share,           bert_encode,
    bert_bytes,          bert_decode, true,       MEG_TOK_LIB_MEGATRON,
};
