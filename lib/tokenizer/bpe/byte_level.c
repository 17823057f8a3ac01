#include "tokenizer/bpe/byte_level.h"

#include <stdlib.h>

#include "tokenizer/internal.h"

void meg_bytebpe_free(struct meg_bytebpe *b)
{
    meg_bpe_free(&b->bpe);
    meg_strtab_free(&b->whole);
    free(b->whole_id);
}

void meg_bytebpe_encoder_free(struct meg_bytebpe_encoder *c)
{
    meg_wordcache_free(&c->cache);
    meg_pretokens_free(&c->pieces);
}

static int64_t merge(const struct meg_bytebpe *b, const char *s, int64_t n, int32_t *ids)
{
    int64_t k = meg_strtab_find(&b->whole, s, n), nids, kept = 0;

    if (k >= 0) {
        ids[0] = b->whole_id[k];
        return 1;
    }
    for (int64_t i = 0; i < n; i++)
        ids[i] = b->byte_id[(unsigned char)s[i]];
    nids = b->is_leftmost ? meg_bpe_merge_leftmost(&b->bpe, ids, n, NULL) : meg_bpe_merge(&b->bpe, ids, n);
    for (int64_t i = 0; i < nids; i++) {
        if (ids[i] >= 0 || b->missing >= 0)
            ids[kept++] = ids[i] < 0 ? b->missing : ids[i];
    }
    return kept;
}

/* The ids of a piece that is not remembered yet, written to ids (room for n). */
static int64_t encode_piece(struct meg_bytebpe_encoder *c, const char *s, int64_t n, int32_t *ids)
{
    int64_t nids = merge(c->rules, s, n, ids);

    meg_wordcache_add(&c->cache, s, n, ids, nids, 0);
    return nids;
}

enum { BATCH = 128 };

/* Up to BATCH pieces; their places in the cache are on their way to the processor. */
static int next_pretokens(const struct meg_wordcache *cache, struct meg_pretokens *pieces,
                          struct meg_wordcache_lookup *piece)
{
    const char *s;
    int64_t len;
    int n = 0;

    for (; n < BATCH && meg_pretokens_next(pieces, &s, &len); n++)
        meg_wordcache_prefetch(cache, &piece[n], s, len, pieces->end);
    meg_wordcache_prefetch_rest(cache, piece, n);
    return n;
}

/* A piece that is too long to be merged at once. */
struct long_piece {
    const struct meg_bytebpe *rules;
    const char *s, *end;
    struct meg_ids *out;
    const struct meg_id_sink *sink;
};

static int64_t read_symbols(void *of, int32_t *sym, int64_t n)
{
    struct long_piece *p = of;

    n = n < p->end - p->s ? n : p->end - p->s;
    for (int64_t i = 0; i < n; i++)
        sym[i] = p->rules->byte_id[(unsigned char)p->s[i]];
    p->s += n;
    return n;
}

static int put_ids(void *of, const int32_t *sym, int64_t n, struct meg_err *e)
{
    const struct long_piece *p = of;

    meg_ids_reserve(p->out, n);
    for (int64_t i = 0; i < n; i++) {
        if (sym[i] >= 0 || p->rules->missing >= 0)
            p->out->v[p->out->n++] = sym[i] < 0 ? p->rules->missing : sym[i];
    }
    return meg_ids_flush(p->out, p->sink, e);
}

static int encode_long(const struct meg_bytebpe *b, const char *s, int64_t n, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e)
{
    struct long_piece p = { b, s, s + n, out, sink };
    int64_t k = meg_strtab_find(&b->whole, s, n);

    if (k >= 0) {
        meg_ids_reserve(out, 1);
        out->v[out->n++] = b->whole_id[k];
        return MEG_OK;
    }
    return meg_bpe_stream(
        &(struct meg_bpe_stream){ &b->bpe, b->is_leftmost, read_symbols, put_ids, &p, MEG_BPE_WINDOW, n }, e);
}

static int encode_pretokens(struct meg_bytebpe_encoder *c, const struct meg_wordcache_lookup *piece, int n,
                            struct meg_ids *out, const struct meg_id_sink *sink, struct meg_err *e)
{
    const struct meg_wordcache_lookup *last = &piece[n - 1];
    int r;

    meg_ids_reserve(out, last->s + last->n - piece->s + MEG_WORD_IDS);
    for (const struct meg_wordcache_lookup *p = piece; p <= last; p++) {
        const struct meg_wordcache_entry *known = meg_wordcache_find(&c->cache, p);
        int32_t *ids = out->v + out->n;

        if (known)
            out->n += meg_word_copy(&c->cache, known, ids);
        else if (p->n <= MEG_BPE_WINDOW)
            out->n += encode_piece(c, p->s, p->n, ids);
        else if ((r = encode_long(c->rules, p->s, p->n, out, sink, e)) < 0)
            return r;
        else
            meg_ids_reserve(out, last->s + last->n - p->s + MEG_WORD_IDS);
    }
    return meg_ids_flush(out, sink, e);
}

int meg_bytebpe_encode(struct meg_bytebpe_encoder *c, const char *text, int64_t n, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e)
{
    struct meg_wordcache_lookup piece[BATCH];
    int r = MEG_OK;

    if (!c->cache.word)
        meg_wordcache_init(&c->cache);
    meg_pretokens_split(&c->pieces, c->rules->split, text, n);
    for (int k; r == MEG_OK && (k = next_pretokens(&c->cache, &c->pieces, piece)) > 0;)
        r = encode_pretokens(c, piece, k, out, sink, e);
    return r;
}
