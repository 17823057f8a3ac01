/*
 * bert.c - BertWordPieceLowerCase and BertWordPieceCase: the ids of Megatron-LM's _BertWordPieceTokenizer.
 *
 * A chunk is text between two safe split points (basic_tokenizer.h).  A fast loop splits ASCII text into words and
 * caches the ids of each word.  A chunk with a non-ASCII or control character is processed differently: its ids are
 * discarded, and the basic tokenizer splits the entire chunk.  The entire chunk is needed since the lowercase form of a
 * sigma can depend on it.  The ids of the chunk are cached like the ids of a word.  A chunk of more than
 * MAX_CACHED_WORD bytes of ASCII text also ends before the next word, or before the next punctuation character that is
 * not Case_Ignorable.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/log.h"
#include "tokenizer/bert/basic_tokenizer.h"
#include "tokenizer/bert/vocab_file.h"
#include "tokenizer/internal.h"
#include "tokenizer/wordcache.h"
#include "unicode/utf8.h"

enum { BATCH = 128 };

struct bert {
    struct meg_tokenizer base; /* files: struct meg_bert_files */
    struct meg_wordcache cache;
    struct meg_wordcache_lookup batch[BATCH]; /* lookups of words and chunks */
    int nbatch;
    struct meg_bert_basic_tokenizer basic;
    struct meg_str words; /* output of meg_bert_basic_next */
};

static int bert_open(struct meg_tokenizer *t, const struct meg_tok_conf *c, struct meg_err *e)
{
    const bool is_lower = t->type == &meg_tok_bert_lower;
    int64_t nextra = c->vocab_extra_ids == MEG_UNSET ? 0 : c->vocab_extra_ids;
    char extra[32];
    struct meg_bert_files *files;
    int r;

    if (!meg_megatron_release_find(c->megatron_release)->has_bert)
        return meg_fail(
            e, MEG_EUSAGE,
            "%s: not supported with --megatron-release %s, which splits words differently; use 0.14 or earlier",
            c->type, c->megatron_release);
    if (!c->vocab_file)
        return meg_fail(e, MEG_EUSAGE, "%s requires --vocab-file", c->type);
    if (nextra < 0 || nextra > 1000000)
        return meg_fail(e, MEG_EUSAGE, "--vocab-extra-ids %" PRId64 ": must be from 0 to 1000000", nextra);
    if ((r = meg_bert_files_load(&files, c->vocab_file, nextra, e)) < 0)
        return r;
    if (files->first_unused_line > 0)
        meg_warn("%s: line %" PRId64
                 " is empty or repeats an earlier token; each line counts, and the id of a token is "
                 "the number of its last line",
                 c->vocab_file, files->first_unused_line);
    t->files = files;
    t->vocab_size = files->tokens.n;
    t->num_appended = files->num_appended;
    t->special_ids = files->special_ids;
    snprintf(extra, sizeof extra, "%" PRId64, nextra);
    meg_tok_set_description(
        t, "_BertWordPieceTokenizer", (const char *const[]){ c->vocab_file, NULL },
        (const char *const[]){ "lower_case", is_lower ? "True" : "False", "vocab_extra_ids", extra, NULL });
    return 0;
}

static void bert_free_buffers(struct meg_tokenizer *base)
{
    struct bert *t = (struct bert *)base;

    meg_wordcache_free(&t->cache);
    meg_bert_basic_free(&t->basic);
    meg_str_free(&t->words);
}

enum { MAX_CACHED_WORD = 1 << 12 }; /* in bytes; longer ASCII words are truncated, longer chunks are not cached */

/* Encode a word or chunk with the basic tokenizer and WordPiece. */
static int encode_uncached(struct bert *t, const char *s, int64_t n, struct meg_ids *out,
                           const struct meg_id_sink *sink, struct meg_err *e)
{
    const struct meg_bert_files *files = t->base.files;
    int r;

    meg_bert_basic_start(&t->basic, s, n);
    while ((r = meg_bert_basic_next(&t->basic, &t->words, e)) > 0) {
        meg_ids_reserve(out, (int64_t)t->words.n);
        for (size_t at = 0, len; at < t->words.n; at += len + 1) {
            const char *word = t->words.s + at;

            len = strlen(word);
            out->n += meg_wordpiece_encode(&files->wordpiece, word, (int64_t)len, out->v + out->n);
        }
        if (n > MAX_CACHED_WORD && (r = meg_ids_flush(out, sink, e)) < 0)
            break;
    }
    return r;
}

/* Append the ids of a word or chunk. */
static int add_ids(struct bert *t, const struct meg_wordcache_lookup *w, struct meg_ids *out,
                   const struct meg_id_sink *sink, struct meg_err *e)
{
    const struct meg_wordcache_entry *known;
    const int32_t *ids;
    int64_t first = out->n, nids;
    int r;

    if (w->n > MAX_CACHED_WORD)
        return encode_uncached(t, w->s, w->n, out, sink, e);
    if ((known = meg_wordcache_find(&t->cache, w))) {
        if (out->cap - out->n < (nids = meg_word_ids(&t->cache, known, &ids)) + MEG_WORD_IDS)
            meg_ids_reserve(out, nids + MEG_WORD_IDS);
        out->n += meg_word_copy(&t->cache, known, out->v + out->n);
        return 0;
    }
    if ((r = encode_uncached(t, w->s, w->n, out, sink, e)) == 0 && out->n > first)
        meg_wordcache_add(&t->cache, w->s, w->n, out->v + first, out->n - first, 0);
    return r;
}

/* The current chunk.  If it contains a character that requires the basic tokenizer, the chunk's ids are discarded. */
struct chunk {
    const char *begin;
    const char *end; /* end of the text, up to which all bytes are readable */
    int nth;         /* index of the chunk's first word in the batch */
    int64_t first;   /* index of the chunk's first id in `out`; -1: no ids yet */
};

static int encode_batch(struct bert *t, struct chunk *x, struct meg_ids *out, const struct meg_id_sink *sink,
                        struct meg_err *e)
{
    int r = 0;

    meg_wordcache_prefetch_rest(&t->cache, t->batch, t->nbatch);
    for (int i = 0; i < t->nbatch && r == 0; i++) {
        if (i == x->nth && x->first < 0)
            x->first = out->n;
        r = add_ids(t, &t->batch[i], out, sink, e);
    }
    t->nbatch = x->nth = 0;
    return r;
}

/* Add a word or chunk s [n] to the batch.  If the batch is full, encode the batch first. */
static int add_word(struct bert *t, struct chunk *x, const char *s, int64_t n, struct meg_ids *out,
                    const struct meg_id_sink *sink, struct meg_err *e)
{
    struct meg_wordcache_lookup *w;
    int r;

    if (t->nbatch == BATCH && (r = encode_batch(t, x, out, sink, e)) < 0)
        return r;
    w = &t->batch[t->nbatch++];
    if (n > MAX_CACHED_WORD)
        *w = (struct meg_wordcache_lookup){ .bucket = t->cache.word, .s = s, .n = n };
    else
        meg_wordcache_prefetch(&t->cache, w, s, n, x->end);
    return 0;
}

static int begin_chunk(struct bert *t, struct chunk *x, const char *s, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e)
{
    *x = (struct chunk){ s, x->end, t->nbatch, -1 };
    return meg_ids_flush(out, sink, e);
}

static void undo_chunk(struct bert *t, const struct chunk *x, struct meg_ids *out)
{
    t->nbatch = x->nth;
    if (x->first >= 0)
        out->n = x->first;
}

/* Classes of bytes in the fast loop.  A byte of class BYTE_SLOW_PATH requires the basic tokenizer for its chunk. */
enum byte_class { BYTE_LETTER, BYTE_PUNCTUATION, BYTE_SPACE, BYTE_SLOW_PATH };

static const unsigned char *byte_classes(void)
{
    static const unsigned char class[256] = { [0 ... 8] = BYTE_SLOW_PATH,
                                              ['\t'] = BYTE_SPACE,
                                              ['\n'] = BYTE_SPACE,
                                              [0x0B ... 0x0C] = BYTE_SLOW_PATH,
                                              ['\r'] = BYTE_SPACE,
                                              [0x0E ... 0x1F] = BYTE_SLOW_PATH,
                                              [' '] = BYTE_SPACE,
                                              [0x21 ... 0x2F] = BYTE_PUNCTUATION,
                                              [0x3A ... 0x40] = BYTE_PUNCTUATION,
                                              [0x5B ... 0x60] = BYTE_PUNCTUATION,
                                              [0x7B ... 0x7E] = BYTE_PUNCTUATION,
                                              [0x7F ... 0xFF] = BYTE_SLOW_PATH };

    return class;
}

/* Return the end of the chunk that begins at s.  A chunk ends before and after whitespace and ideographs. */
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

/*
 * Return true if the ASCII punctuation character c is not Case_Ignorable.  Whether a sigma on one side of c is final
 * then does not depend on the text on the other side.
 */
static bool not_case_ignorable(char c)
{
    return !memchr("'.:^`", c, 5);
}

static int bert_encode(struct meg_tokenizer *base, const char *text, int64_t n, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e)
{
    struct bert *t = (struct bert *)base;
    const unsigned char *class = byte_classes();
    const char *end = text + n;
    struct chunk x = { .end = end };
    int r;

    if (!t->cache.word)
        meg_wordcache_init(&t->cache);
    t->basic.is_lower = base->type == &meg_tok_bert_lower;
    t->nbatch = 0;
    r = begin_chunk(t, &x, text, out, sink, e);
    for (const char *s = text, *p; s < end && r == 0; s = p) {
        p = s + 1;
        switch (class[(unsigned char)*s]) {
        case BYTE_SPACE: r = begin_chunk(t, &x, p, out, sink, e); break;
        case BYTE_LETTER:
            while (p < end && class[(unsigned char)*p] == BYTE_LETTER)
                p++;
            if (p == end || class[(unsigned char)*p] != BYTE_SLOW_PATH) {
                if (s - x.begin > MAX_CACHED_WORD && (r = begin_chunk(t, &x, s, out, sink, e)) < 0)
                    break;
                r = add_word(t, &x, s, p - s > MAX_CACHED_WORD ? MAX_CACHED_WORD : p - s, out, sink,
                             e); /* a truncated word is encoded as unknown, like the complete word */
                break;
            }
            /* fall through */
        case BYTE_SLOW_PATH:
            undo_chunk(t, &x, out);
            p = safe_chunk_end(x.begin, end);
            if ((r = add_word(t, &x, x.begin, p - x.begin, out, sink, e)) == 0)
                r = begin_chunk(t, &x, p, out, sink, e);
            break;
        case BYTE_PUNCTUATION:
            if (s - x.begin > MAX_CACHED_WORD && not_case_ignorable(*s) &&
                (r = begin_chunk(t, &x, s, out, sink, e)) < 0)
                break;
            r = s - x.begin > MEG_BERT_MAX_RUN ? meg_bert_run_error(e) : add_word(t, &x, s, 1, out, sink, e);
            break;
        }
    }
    return r < 0 ? r : encode_batch(t, &x, out, sink, e);
}

static void bert_bytes(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out)
{
    meg_tok_add_strings(&((const struct meg_bert_files *)t->files)->tokens, ids, n, out);
}

/*
 * Return the last offset at which the text can be cut, or 0 if there is none.  meg_tok_clean_up can process the parts
 * before and after the cut separately, since the byte at this offset is a space that no pattern of the clean-up
 * matches.
 */
static size_t last_safe_cut(const struct meg_str *s)
{
    for (size_t i = s->n > 2 ? s->n - 2 : 0; i > 0; i--) {
        if (s->s[i] == ' ' && s->s[i - 1] != ' ' && s->s[i - 1] != '\'' && !strchr(".?!,'n ", s->s[i + 1]))
            return i;
    }
    return 0;
}

static void bert_decode(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out)
{
    const struct meg_strtab *tokens = &((const struct meg_bert_files *)d->tok->files)->tokens;
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
    end = is_last ? d->pending.n : last_safe_cut(&d->pending);
    meg_str_add(&part, d->pending.s, end);
    meg_tok_clean_up(&part, false);
    meg_str_add(out, part.s, part.n);
    meg_str_remove_prefix(&d->pending, end);
    meg_str_free(&part);
}

#define BERT(type_name)                                                                                                \
    {                                                                                                                  \
        .name = type_name, .origin = MEG_TOK_LIB_MEGATRON, .has_extra_ids = true, .size = sizeof(struct bert),         \
        .open = bert_open, .free_files = meg_bert_files_free, .free_buffers = bert_free_buffers,                       \
        .encode = bert_encode, .bytes = bert_bytes, .decode = bert_decode                                              \
    }
const struct meg_tok_class meg_tok_bert_lower = BERT("BertWordPieceLowerCase");
const struct meg_tok_class meg_tok_bert_case = BERT("BertWordPieceCase");
