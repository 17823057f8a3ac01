/*
 * Text is normalised a part at a time, cut at seams into words, and each word that was not seen before
 * is segmented.
 */
#include "tokenizer/spm/spm.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/internal.h"
#include "tokenizer/spm/internal.h"

enum { PART = 1 << 16 }; /* bytes normalised at once */

/* ---- the model ---- */

static void build_surfaces(struct meg_spm *s)
{
    const struct meg_spm_model *m = s->model;
    struct spm_surfaces *t = &s->texts;

    t->at = meg_new((size_t)(m->n + 1) * sizeof *t->at);
    meg_str_add(&t->bytes, "", 0); /* a place to point to, even if no text can become any piece */
    for (int32_t id = 0; id < m->n; id++) {
        struct meg_str piece = meg_spm_piece_text(m, id);

        if (meg_spm_is_matched(m, id))
            meg_spm_normalizer_piece(&m->norm, piece.s, (int64_t)piece.n, &t->bytes);
        t->at[id + 1] = (int64_t)t->bytes.n;
    }
}

static int build_verbatim(struct meg_spm *s, struct meg_err *e)
{
    const struct meg_spm_model *m = s->model;
    struct meg_trie_key *key = meg_new((size_t)m->n * sizeof *key);
    int64_t n = 0;
    int r;

    for (int32_t id = 0; id < m->n; id++) {
        struct meg_str piece = meg_spm_piece_text(m, id);

        if (m->piece[id].type == MEG_SPM_USER_DEFINED)
            key[n++] = (struct meg_trie_key){ piece.s, (int64_t)piece.n, id };
    }
    r = meg_trie_build(&s->verbatim, key, n, e);
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
    s->is_cut = true;
    build_surfaces(s);
    if ((r = build_verbatim(s, &why)) < 0 ||
        (r = s->model->kind == MEG_SPM_BPE ? spm_bpe_init(s, &why) : spm_unigram_init(s, &why)) < 0) {
        r = meg_fail(e, r, "%s: %s", path, why.msg);
        goto out;
    }
    meg_spm_normalizer_init(&s->norm, &s->model->norm, &s->verbatim);
    meg_safe_split_init(&s->seams);
    for (int32_t id = 0; id < s->model->n; id++)
        meg_safe_split_add_token(&s->seams, s->texts.bytes.s + s->texts.at[id], spm_surface_length(&s->texts, id));
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
    meg_trie_free(&s->verbatim);
    meg_str_free(&s->texts.bytes);
    free(s->texts.at);
    spm_unigram_free(&s->unigram);
    spm_bpe_free(&s->bpe);
    free(s);
}

const struct meg_spm_model *meg_spm_get_model(const struct meg_spm *s)
{
    return s->model;
}

/* ---- encoding ---- */

struct meg_spm_encoder *meg_spm_encoder_new(const struct meg_spm *s)
{
    struct meg_spm_encoder *w = meg_new(sizeof *w);

    w->spm = s;
    meg_wordcache_init(&w->cache);
    if (!s->is_cut)
        w->seen = meg_new((size_t)s->model->n * sizeof *w->seen);
    return w;
}

void meg_spm_encoder_free(struct meg_spm_encoder *w)
{
    if (!w)
        return;
    meg_wordcache_free(&w->cache);
    meg_str_free(&w->text);
    free(w->seams);
    free(w->node);
    free(w->sym);
    free(w->seen);
    free(w);
}

int spm_reserve_ids(struct meg_spm_encoder *w, int64_t n, struct meg_err *e)
{
    struct meg_ids *out = w->out;
    int64_t before = w->begin - out->v;
    int r;

    out->n = w->ids - out->v;
    if (w->sink && out->n > MEG_IDS_FLUSH_COUNT && out->n > before + 1) {
        if (w->spm->model->kind == MEG_SPM_UNIGRAM)
            spm_unigram_update_score(w);
        if ((r = meg_ids_flush(out, w->sink, e)) < 0)
            return r;
        before = 0;
        w->sum.nids = out->n;
    }
    meg_ids_reserve(out, n);
    w->begin = out->v + before;
    w->ids = out->v + out->n;
    return 0;
}

void spm_add_unknown(struct meg_spm_encoder *w, const char *s, int64_t n)
{
    const struct meg_spm_model *m = w->spm->model;

    if (!m->byte_fallback) {
        if (w->ids == w->begin || w->ids[-1] != m->unk) /* a run of them is one */
            *w->ids++ = m->unk;
        return;
    }
    if (*s == ' ' && m->norm.escape_whitespaces) {
        s = MEG_SPM_SPACE_SYMBOL;
        n = (int64_t)strlen(MEG_SPM_SPACE_SYMBOL);
    }
    for (int64_t i = 0; i < n; i++)
        *w->ids++ = m->byte_id[(unsigned char)s[i]];
}

static uint16_t required_tag(struct meg_spm_encoder *w, int64_t nids)
{
    return w->spm->model->kind == MEG_SPM_UNIGRAM ? spm_unigram_required_tag(w, nids) : 1;
}

/* Remember a word for which is_known was returned when its ids, from `before` on, were written. */
static void remember(struct meg_spm_encoder *w, const char *s, int64_t n, int64_t before, bool is_known,
                     uint16_t required)
{
    const bool is_unigram = w->spm->model->kind == MEG_SPM_UNIGRAM;
    const struct spm_path_score sum = w->sum;
    uint16_t tag = !is_known ? 0 : is_unigram ? spm_unigram_cache_tag(w, s, n) : 1;
    int32_t *end = w->ids;

    if (tag > 0 && tag < required) { /* here rounding may have had a part in its ids */
        before = end - w->begin;
        w->sum.value = 0;
        spm_unigram_word(w, s, n);
    }
    meg_wordcache_add(&w->cache, s, n, w->begin + before, w->ids - w->begin - before, tag);
    w->ids = end;
    w->sum = sum;
}

/* A word that is not remembered, or not with the tag required. */
static int encode_word(struct meg_spm_encoder *w, const char *s, int64_t n, bool is_there, uint16_t required,
                       struct meg_err *e)
{
    const bool is_unigram = w->spm->model->kind == MEG_SPM_UNIGRAM;
    const int64_t before = w->ids - w->begin;
    bool is_known;
    int r;

    if (n > SPM_MAX_CACHED_WORD && is_unigram && w->spm->unigram.longest < 256)
        return spm_unigram_stream_word(w, s, n, e);
    if (is_unigram)
        is_known = spm_unigram_word(w, s, n);
    else if ((r = spm_bpe_word(w, s, n, &is_known, e)) < 0)
        return r;
    if (n <= SPM_MAX_CACHED_WORD && !is_there)
        remember(w, s, n, before, is_known, required);
    return 0;
}

enum { BATCH = 128 };

/* Where the text is cut; bits are those of seams[k] that are still to come. */
struct cut {
    const char *text, *begin, *end;
    const uint64_t *seams;
    uint64_t bits;
    int64_t k;
};

/* Up to BATCH words; their places in the cache are on their way to the processor.  16 bytes may be read
 * from where each begins. */
static int next_words(const struct meg_wordcache *cache, struct cut *c, struct meg_wordcache_lookup *word)
{
    int n = 0;

    for (; n < BATCH && c->begin < c->end; n++) {
        const char *stop;

        while (c->bits == 0)
            c->bits = c->seams[++c->k];
        stop = c->text + 64 * c->k + __builtin_ctzll(c->bits);
        c->bits &= c->bits - 1;
        meg_wordcache_prefetch(cache, &word[n], c->begin, stop - c->begin, c->end + 16);
        c->begin = stop;
    }
    meg_wordcache_prefetch_rest(cache, word, n);
    return n;
}

/* The words of text [n], n being a seam. */
static int encode_words(struct meg_spm_encoder *w, const char *text, int64_t n, struct meg_err *e)
{
    struct cut c = { .text = text, .begin = text, .end = text + n, .seams = w->seams };
    struct meg_wordcache_lookup word[BATCH];
    int r;

    c.bits = w->seams[0] & ~(uint64_t)1;
    for (int k; (k = next_words(&w->cache, &c, word)) > 0;) {
        uint16_t required = required_tag(w, BATCH * MEG_WORD_IDS);
        const char *end = word[k - 1].s + word[k - 1].n;

        if ((r = spm_reserve_ids(w, 3 * (end - word->s) + MEG_WORD_IDS, e)) < 0) /* an unknown blank has three bytes */
            return r;
        for (const struct meg_wordcache_lookup *p = word; p < word + k; p++) {
            const struct meg_wordcache_entry *known = meg_wordcache_find(&w->cache, p);

            if (known && known->tag >= required) {
                w->ids += meg_word_copy(&w->cache, known, w->ids);
            } else {
                if ((r = encode_word(w, p->s, p->n, known != NULL, required, e)) < 0)
                    return r;
                if (p->n > SPM_MAX_CACHED_WORD && (r = spm_reserve_ids(w, 3 * (end - p->s) + MEG_WORD_IDS, e)) < 0)
                    return r;
                required = required_tag(w, BATCH * MEG_WORD_IDS);
            }
        }
    }
    return 0;
}

/* The last seam before the end of text [n], n > 0, and before blanks there, which may go yet; 0: there
 * is none. */
static int64_t last_safe_split(const struct meg_spm_encoder *w, const char *text, int64_t n)
{
    for (n--; n > 0 && text[n] == ' ';)
        n--;
    for (int64_t k = n / 64; k >= 0; k--) {
        uint64_t bits = w->seams[k] & (k == n / 64 ? ~(uint64_t)0 >> (63 - n % 64) : ~(uint64_t)0);

        if (bits)
            return 64 * k + 63 - __builtin_clzll(bits);
    }
    return 0;
}

static void find_safe_splits(struct meg_spm_encoder *w)
{
    static const char padding[16] = { 0 };
    int64_t n = (int64_t)w->text.n;

    meg_str_add(&w->text, padding, sizeof padding);
    w->text.n = (size_t)n;
    if (meg_safe_split_mask_words(n) > w->nseams) {
        w->nseams = meg_safe_split_mask_words(n) + n / 128;
        free(w->seams);
        w->seams = meg_realloc_array(NULL, (size_t)w->nseams, sizeof *w->seams);
    }
    if (w->spm->is_cut) {
        meg_safe_split_find(&w->spm->seams, w->text.s, n, w->seams);
    } else {
        memset(w->seams, 0, (size_t)meg_safe_split_mask_words(n) * sizeof *w->seams);
        w->seams[n / 64] |= (uint64_t)1 << n % 64;
        w->seams[0] |= 1;
    }
}

/* Whether a word of n bytes, the first in a text, can be held. */
static int check_word(const struct meg_spm_encoder *w, int64_t n, struct meg_err *e)
{
    bool is_whole = w->seen || (w->spm->model->kind == MEG_SPM_UNIGRAM && w->spm->unigram.longest > UINT8_MAX);
    int most = is_whole ? MEG_SPM_MAX_BUFFERED_WORD : MEG_SPM_MAX_WORD;

    if (n <= most)
        return MEG_OK;
    return meg_fail(e, MEG_EFORMAT,
                    "more than %d MiB of text without a point where this model allows to split it; split the document",
                    most >> 20);
}

int meg_spm_encode(struct meg_spm_encoder *w, const char *text, int64_t n, struct meg_ids *out,
                   const struct meg_id_sink *sink, struct meg_err *e)
{
    struct meg_spm_normalizer_stream in = { .text = text, .n = n };
    int64_t want = PART, began = out->n;
    int r = MEG_OK;

    w->text.n = 0;
    w->sum = (struct spm_path_score){ 0 };
    w->out = out;
    w->sink = sink;
    meg_ids_reserve(out, 1); /* ids are pointed at, also where there are none yet */
    do {
        int64_t have, end;

        meg_spm_normalizer_next(&w->spm->norm, &in, want, &w->text);
        have = end = (int64_t)w->text.n;
        if (have > PART && (r = check_word(w, have, e)) < 0)
            break;
        find_safe_splits(w);
        if (in.at < n && (end = last_safe_split(w, w->text.s, have)) == 0) {
            want = 2 * have;
            continue;
        }
        w->begin = out->v + began;
        w->ids = out->v + out->n;
        if ((r = encode_words(w, w->text.s, end, e)) < 0)
            break;
        out->n = w->ids - out->v;
        began = w->begin - out->v;
        meg_str_remove_prefix(&w->text, (size_t)end);
        want = PART;
    } while (in.at < n);
    if (w->text.cap > 16 * PART) { /* such texts are rare */
        meg_str_free(&w->text);
        free(w->seams);
        w->seams = NULL;
        w->nseams = 0;
    }
    return r;
}
