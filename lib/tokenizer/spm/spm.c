/*
 * spm.c - encode text with a SentencePiece model.  The text is normalized in chunks and cut into words at safe split
 * points.  Each word that is not in the cache is segmented.
 */
#include "tokenizer/spm/spm.h"
#include <stdlib.h>
#include <string.h>
#include "tokenizer/internal.h"
#include "tokenizer/spm/internal.h"

enum { CHUNK = 1 << 16 }; /* bytes of normalized text per chunk; doubled if a chunk has no safe split point */

/* ---- Model ---- */

static void build_surfaces(struct meg_spm *s)
{
    const struct meg_spm_model *m = s->model;
    struct meg_str surface = { 0 };

    meg_strtab_reserve(&s->surfaces, m->n);
    meg_str_add(&s->surfaces.bytes, "", 0); /* bytes.s must not be NULL, even if all surfaces are empty */
    meg_str_add(&surface, "", 0);
    for (int32_t id = 0; id < m->n; id++) {
        struct meg_str piece = meg_spm_piece_text(m, id);

        surface.n = 0;
        if (meg_spm_is_matched(m, id))
            meg_spm_normalizer_piece(&m->normalizer_spec, piece.s, (int64_t)piece.n, &surface);
        meg_strtab_append(&s->surfaces, surface.s, (int64_t)surface.n);
    }
    meg_str_free(&surface);
}

int spm_build_trie(struct meg_trie *out, const struct meg_spm *s, unsigned types, bool is_surface, struct meg_err *e)
{
    const struct meg_spm_model *m = s->model;
    struct meg_trie_key *key = meg_new((size_t)m->n * sizeof *key);
    int64_t n = 0;
    int r;

    for (int32_t id = 0; id < m->n; id++) {
        struct meg_str t = is_surface ? meg_strtab_get(&s->surfaces, id) : meg_spm_piece_text(m, id);

        if ((types >> m->piece[id].type & 1) && t.n > 0)
            key[n++] = (struct meg_trie_key){ t.s, (int64_t)t.n, id };
    }
    r = meg_trie_build(out, key, n, e);
    free(key);
    return r;
}

int meg_spm_open(struct meg_spm **out, const char *path, struct meg_err *e)
{
    struct meg_spm *s = meg_new(sizeof *s);
    struct meg_err why;
    int r;

    if ((r = meg_spm_model_load(&s->model, path, e)) < 0)
        goto out;
    s->has_safe_splits = true;
    build_surfaces(s);
    if ((r = spm_build_trie(&s->user_defined, s, 1 << MEG_SPM_USER_DEFINED, false, &why)) < 0 ||
        (r = s->model->type == MEG_SPM_BPE ? spm_bpe_init(s, &why) : spm_unigram_init(s, &why)) < 0) {
        r = meg_fail(e, r, "%s: %s", path, why.msg);
        goto out;
    }
    meg_spm_normalizer_init(&s->normalizer, &s->model->normalizer_spec, &s->user_defined);
    meg_safe_split_init(&s->safe_split);
    for (int32_t id = 0; id < s->model->n; id++) {
        struct meg_str surface = meg_strtab_get(&s->surfaces, id);

        meg_safe_split_add_token(&s->safe_split, surface.s, (int64_t)surface.n);
    }
    *out = s;
    s = NULL;
out:
    meg_spm_close(s);
    return r;
}

void meg_spm_close(struct meg_spm *s)
{
    if (!s)
        return;
    meg_spm_model_free(s->model);
    meg_trie_free(&s->user_defined);
    meg_strtab_free(&s->surfaces);
    spm_unigram_free(&s->unigram);
    spm_bpe_free(&s->bpe);
    free(s);
}

const struct meg_spm_model *meg_spm_get_model(const struct meg_spm *s)
{
    return s->model;
}

/* ---- Encoding ---- */

struct meg_spm_encoder *meg_spm_encoder_new(const struct meg_spm *s)
{
    struct meg_spm_encoder *enc = meg_new(sizeof *enc);

    enc->spm = s;
    meg_wordcache_init(&enc->cache);
    if (!s->has_safe_splits)
        enc->rev_merge = meg_new((size_t)s->model->n * sizeof *enc->rev_merge);
    return enc;
}

void meg_spm_encoder_free(struct meg_spm_encoder *enc)
{
    if (!enc)
        return;
    meg_wordcache_free(&enc->cache);
    meg_str_free(&enc->text);
    meg_pretokens_free(&enc->words);
    free(enc->node);
    free(enc->sym);
    free(enc->rev_merge);
    free(enc);
}

int spm_reserve_ids(struct meg_spm_encoder *enc, int64_t n, struct meg_err *e)
{
    struct meg_ids *out = enc->out;
    int64_t before = enc->ids_begin - out->v;
    int r;

    out->n = enc->ids_end - out->v;
    if (enc->sink && out->n > MEG_IDS_FLUSH_COUNT && out->n > before + 1) {
        if (enc->spm->model->type == MEG_SPM_UNIGRAM)
            spm_unigram_update_score(enc);
        if ((r = meg_ids_flush(out, enc->sink, e)) < 0)
            return r;
        before = 0;
        enc->score.nids = out->n;
    }
    meg_ids_reserve(out, n);
    enc->ids_begin = out->v + before;
    enc->ids_end = out->v + out->n;
    return 0;
}

void spm_add_unknown(struct meg_spm_encoder *enc, const char *s, int64_t n)
{
    const struct meg_spm_model *m = enc->spm->model;

    if (!m->byte_fallback) {
        /* a run of unknown characters has one id */
        if (enc->ids_end == enc->ids_begin || enc->ids_end[-1] != m->unk)
            *enc->ids_end++ = m->unk;
        return;
    }
    if (*s == ' ' && m->normalizer_spec.escape_whitespaces) {
        s = MEG_SPM_SPACE_SYMBOL;
        n = (int64_t)strlen(MEG_SPM_SPACE_SYMBOL);
    }
    for (int64_t i = 0; i < n; i++)
        *enc->ids_end++ = m->byte_id[(unsigned char)s[i]];
}

static uint16_t get_required_tag(struct meg_spm_encoder *enc, int64_t nids)
{
    return enc->spm->model->type == MEG_SPM_UNIGRAM ? spm_unigram_required_tag(enc, nids) : 1;
}

/*
 * Cache the word s [n] with the ids from ids_begin[before] on.  is_known is false if the word has an unknown character.
 */
static void cache_word(struct meg_spm_encoder *enc, const char *s, int64_t n, int64_t before, bool is_known,
                       uint16_t required_tag)
{
    const bool is_unigram = enc->spm->model->type == MEG_SPM_UNIGRAM;
    const struct spm_path_score sum = enc->score;
    uint16_t tag = !is_known ? 0 : is_unigram ? spm_unigram_cache_tag(enc, s, n) : 1;
    int32_t *end = enc->ids_end;

    if (tag > 0 && tag < required_tag) { /* rounding may have changed the ids: encode the word again from score 0 */
        before = end - enc->ids_begin;
        enc->score.value = 0;
        spm_unigram_word(enc, s, n);
    }
    meg_wordcache_add(&enc->cache, s, n, enc->ids_begin + before, enc->ids_end - enc->ids_begin - before, tag);
    enc->ids_end = end;
    enc->score = sum;
}

/* Encode a word that is not cached, or is cached with a tag below the required tag. */
static int encode_word(struct meg_spm_encoder *enc, const char *s, int64_t n, bool is_cached, uint16_t required_tag,
                       struct meg_err *e)
{
    const bool is_unigram = enc->spm->model->type == MEG_SPM_UNIGRAM;
    const int64_t before = enc->ids_end - enc->ids_begin;
    bool is_known;
    int r;

    if (n > SPM_MAX_CACHED_WORD && is_unigram && enc->spm->unigram.max_piece_bytes < 256)
        return spm_unigram_stream_word(enc, s, n, e);
    if (is_unigram)
        is_known = spm_unigram_word(enc, s, n);
    else if ((r = spm_bpe_word(enc, s, n, &is_known, e)) < 0)
        return r;
    if (n <= SPM_MAX_CACHED_WORD && !is_cached)
        cache_word(enc, s, n, before, is_known, required_tag);
    return 0;
}

enum { BATCH = 128 };

/*
 * Collect up to BATCH words, prefetch their cache entries, and return their number.  The 16 bytes after the last word
 * must be readable.
 */
static int next_words(struct meg_spm_encoder *enc, struct meg_wordcache_lookup *word)
{
    const char *s;
    int64_t len;
    int n = 0;

    for (; n < BATCH && meg_pretokens_next(&enc->words, &s, &len); n++)
        meg_wordcache_prefetch(&enc->cache, &word[n], s, len, enc->words.end + 16);
    meg_wordcache_prefetch_rest(&enc->cache, word, n);
    return n;
}

/* Encode the words of the text up to byte n, which must be a safe split point. */
static int encode_words(struct meg_spm_encoder *enc, int64_t n, struct meg_err *e)
{
    struct meg_wordcache_lookup word[BATCH];
    int r;

    enc->words.end = enc->text.s + n;
    for (int k; (k = next_words(enc, word)) > 0;) {
        uint16_t required_tag = get_required_tag(enc, BATCH * MEG_WORD_IDS);
        const char *end = word[k - 1].s + word[k - 1].n;

        if ((r = spm_reserve_ids(enc, 3 * (end - word->s) + MEG_WORD_IDS, e)) < 0) /* a space can become 3 ids */
            return r;
        for (const struct meg_wordcache_lookup *p = word; p < word + k; p++) {
            const struct meg_wordcache_entry *known = meg_wordcache_find(&enc->cache, p);

            if (known && known->tag >= required_tag) {
                enc->ids_end += meg_word_copy(&enc->cache, known, enc->ids_end);
            } else {
                if ((r = encode_word(enc, p->s, p->n, known != NULL, required_tag, e)) < 0)
                    return r;
                if (p->n > SPM_MAX_CACHED_WORD && (r = spm_reserve_ids(enc, 3 * (end - p->s) + MEG_WORD_IDS, e)) < 0)
                    return r;
                required_tag = get_required_tag(enc, BATCH * MEG_WORD_IDS);
            }
        }
    }
    return 0;
}

/*
 * Return the last safe split point in text [n], or 0 if there is none.  Ignore points after the last non-space
 * character, since more text will follow and the normalizer may still remove trailing spaces.
 */
static int64_t last_safe_split(const struct meg_spm_encoder *enc, const char *text, int64_t n)
{
    for (n--; n > 0 && text[n] == ' ';)
        n--;
    for (int64_t k = n / 64; k >= 0; k--) {
        uint64_t bits = enc->words.starts[k] & (k == n / 64 ? ~(uint64_t)0 >> (63 - n % 64) : ~(uint64_t)0);

        if (bits)
            return 64 * k + 63 - __builtin_clzll(bits);
    }
    return 0;
}

static void split_words(struct meg_spm_encoder *enc)
{
    static const char padding[16] = { 0 };

    meg_str_add(&enc->text, padding, sizeof padding);
    enc->text.n -= sizeof padding;
    meg_pretokens_safe_split(&enc->words, enc->spm->has_safe_splits ? &enc->spm->safe_split : NULL, enc->text.s,
                             (int64_t)enc->text.n);
}

/* Return MEG_EFORMAT if n bytes of text, which may be one word, exceed the limit for a word. */
static int check_word(const struct meg_spm_encoder *enc, int64_t n, struct meg_err *e)
{
    bool is_buffered =
        enc->rev_merge || (enc->spm->model->type == MEG_SPM_UNIGRAM && enc->spm->unigram.max_piece_bytes > UINT8_MAX);
    int max_bytes = is_buffered ? MEG_SPM_MAX_BUFFERED_WORD : MEG_SPM_MAX_WORD;

    if (n <= max_bytes)
        return 0;
    return meg_fail(
        e, MEG_EFORMAT,
        "the text is too long without a point, such as a blank, at which it can be split without changing its "
        "tokens; at most %d MiB can be encoded at once with this model; split the document",
        max_bytes >> 20);
}

int meg_spm_encode(struct meg_spm_encoder *enc, const char *text, int64_t n, struct meg_ids *out,
                   const struct meg_id_sink *sink, struct meg_err *e)
{
    struct meg_spm_normalizer_stream in = { .text = text, .n = n };
    int64_t want = CHUNK, began = out->n;
    int r = 0;

    enc->text.n = 0;
    enc->score = (struct spm_path_score){ 0 };
    enc->out = out;
    enc->sink = sink;
    meg_ids_reserve(out, 1); /* out->v must not be NULL */
    do {
        int64_t have, end;

        meg_spm_normalizer_next(&enc->spm->normalizer, &in, want, &enc->text);
        have = end = (int64_t)enc->text.n;
        if (have > CHUNK && (r = check_word(enc, have, e)) < 0)
            break;
        split_words(enc);
        if (in.offset < n && (end = last_safe_split(enc, enc->text.s, have)) == 0) {
            want = 2 * have;
            continue;
        }
        enc->ids_begin = out->v + began;
        enc->ids_end = out->v + out->n;
        if ((r = encode_words(enc, end, e)) < 0)
            break;
        out->n = enc->ids_end - out->v;
        began = enc->ids_begin - out->v;
        meg_str_remove_prefix(&enc->text, (size_t)end);
        want = CHUNK;
    } while (in.offset < n);
    if (enc->text.cap > 16 * CHUNK) { /* free the buffers of a long word, since long words are rare */
        meg_str_free(&enc->text);
        meg_pretokens_free(&enc->words);
        enc->words = (struct meg_pretokens){ 0 };
    }
    return r;
}
