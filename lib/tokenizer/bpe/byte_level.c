/*
 * byte_level.c - byte-level BPE: split a text into pre-tokens and merge the bytes of each pre-token that is not cached.
 */
#include "tokenizer/bpe/byte_level.h"
#include <stdlib.h>
#include "tokenizer/internal.h"

void meg_bytebpe_free(struct meg_bytebpe *b)
{
    meg_bpe_free(&b->bpe);
    meg_strtab_free(&b->tokens);
    free(b->token_id);
}

void meg_bytebpe_encoder_free(struct meg_bytebpe_encoder *enc)
{
    meg_wordcache_free(&enc->cache);
    meg_pretokens_free(&enc->pretokens);
}

static int64_t merge(const struct meg_bytebpe *b, const char *s, int64_t n, int32_t *ids)
{
    int64_t k = meg_strtab_find(&b->tokens, s, n), nids, kept = 0;

    if (k >= 0) {
        ids[0] = b->token_id[k];
        return 1;
    }
    for (int64_t i = 0; i < n; i++)
        ids[i] = b->byte_id[(unsigned char)s[i]];
    nids = b->is_leftmost ? meg_bpe_merge_leftmost(&b->bpe, ids, n, NULL) : meg_bpe_merge(&b->bpe, ids, n);
    for (int64_t i = 0; i < nids; i++) {
        if (ids[i] >= 0 || b->unk >= 0)
            ids[kept++] = ids[i] < 0 ? b->unk : ids[i];
    }
    return kept;
}

/* Encode a pre-token that is not in the cache.  Write the ids to ids [n] and the cache, and return their number. */
static int64_t encode_pretoken(struct meg_bytebpe_encoder *enc, const char *s, int64_t n, int32_t *ids)
{
    int64_t nids = merge(enc->vocab, s, n, ids);

    meg_wordcache_add(&enc->cache, s, n, ids, nids, 0);
    return nids;
}

enum { BATCH = 128 };

/* Get up to BATCH pre-tokens, prefetch their cache entries, and return their number. */
static int next_pretokens(const struct meg_wordcache *cache, struct meg_pretokens *pretokens,
                          struct meg_wordcache_lookup *pretoken)
{
    const char *s;
    int64_t len;
    int n = 0;

    for (; n < BATCH && meg_pretokens_next(pretokens, &s, &len); n++)
        meg_wordcache_prefetch(cache, &pretoken[n], s, len, pretokens->end);
    meg_wordcache_prefetch_rest(cache, pretoken, n);
    return n;
}

/* A pre-token that is too long to be merged at once. */
struct long_pretoken {
    const struct meg_bytebpe *vocab;
    const char *s, *end;
    struct meg_ids *out;
    const struct meg_id_sink *sink;
};

static int64_t read_symbols(void *ctx, int32_t *sym, int64_t n)
{
    struct long_pretoken *p = ctx;

    n = n < p->end - p->s ? n : p->end - p->s;
    for (int64_t i = 0; i < n; i++)
        sym[i] = p->vocab->byte_id[(unsigned char)p->s[i]];
    p->s += n;
    return n;
}

static int put_ids(void *ctx, const int32_t *sym, int64_t n, struct meg_err *e)
{
    const struct long_pretoken *p = ctx;

    meg_ids_reserve(p->out, n);
    for (int64_t i = 0; i < n; i++) {
        if (sym[i] >= 0 || p->vocab->unk >= 0)
            p->out->v[p->out->n++] = sym[i] < 0 ? p->vocab->unk : sym[i];
    }
    return meg_ids_flush(p->out, p->sink, e);
}

static int encode_long(const struct meg_bytebpe *b, const char *s, int64_t n, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e)
{
    struct long_pretoken p = { b, s, s + n, out, sink };
    int64_t k = meg_strtab_find(&b->tokens, s, n);

    if (k >= 0) {
        meg_ids_add(out, b->token_id[k]);
        return 0;
    }
    return meg_bpe_stream(
        &(struct meg_bpe_stream){ &b->bpe, b->is_leftmost, read_symbols, put_ids, &p, MEG_BPE_WINDOW, n }, e);
}

static int encode_pretokens(struct meg_bytebpe_encoder *enc, const struct meg_wordcache_lookup *pretoken, int n,
                            struct meg_ids *out, const struct meg_id_sink *sink, struct meg_err *e)
{
    const struct meg_wordcache_lookup *last = &pretoken[n - 1];
    int r;

    meg_ids_reserve(out, last->s + last->n - pretoken->s + MEG_WORD_IDS);
    for (const struct meg_wordcache_lookup *p = pretoken; p <= last; p++) {
        const struct meg_wordcache_entry *known = meg_wordcache_find(&enc->cache, p);
        int32_t *ids = out->v + out->n;

        if (known)
            out->n += meg_word_copy(&enc->cache, known, ids);
        else if (p->n <= MEG_BPE_WINDOW)
            out->n += encode_pretoken(enc, p->s, p->n, ids);
        else if ((r = encode_long(enc->vocab, p->s, p->n, out, sink, e)) < 0)
            return r;
        else
            meg_ids_reserve(out, last->s + last->n - p->s + MEG_WORD_IDS);
    }
    return meg_ids_flush(out, sink, e);
}

int meg_bytebpe_encode(struct meg_bytebpe_encoder *enc, const char *text, int64_t n, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e)
{
    struct meg_wordcache_lookup pretoken[BATCH];
    int r = 0;

    if (!enc->cache.word)
        meg_wordcache_init(&enc->cache);
    meg_pretokens_split(&enc->pretokens, enc->vocab->pretok, text, n);
    for (int k; r == 0 && (k = next_pretokens(&enc->cache, &enc->pretokens, pretoken)) > 0;)
        r = encode_pretokens(enc, pretoken, k, out, sink, e);
    return r;
}
