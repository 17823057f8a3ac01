#include "text/bytebpe.h"

#include <stdlib.h>
#include <string.h>

void meg_bytebpe_free(struct meg_bytebpe *b)
{
    meg_bpe_free(&b->bpe);
    meg_strtab_free(&b->whole);
    free(b->whole_id);
}

void meg_bytebpe_coder_free(struct meg_bytebpe_coder *c)
{
    meg_wordcache_free(&c->cache);
    meg_pieces_free(&c->pieces);
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
    nids = b->is_one_by_one ? meg_bpe_merge_one(&b->bpe, ids, n, NULL)
                            : meg_bpe_merge(&b->bpe, ids, n);
    for (int64_t i = 0; i < nids; i++) {
        if (ids[i] >= 0 || b->missing >= 0)
            ids[kept++] = ids[i] < 0 ? b->missing : ids[i];
    }
    return kept;
}

/* The ids of a piece that is not remembered yet, written to ids (room for n). */
static int64_t encode_piece(struct meg_bytebpe_coder *c, const char *s, int64_t n, int32_t *ids)
{
    int64_t nids = merge(c->rules, s, n, ids);

    meg_wordcache_add(&c->cache, s, n, ids, nids, 0);
    return nids;
}

enum { BATCH = 128 };

/* Up to BATCH pieces; their places in the cache are on their way to the processor. */
static int next_pieces(const struct meg_wordcache *cache, struct meg_pieces *pieces,
                       struct meg_sought *piece)
{
    const char *s;
    int64_t len;
    int n = 0;

    for (; n < BATCH && meg_pieces_next(pieces, &s, &len); n++)
        meg_wordcache_seek(cache, &piece[n], s, len, pieces->end);
    return n;
}

void meg_bytebpe_encode(struct meg_bytebpe_coder *c, const char *text, int64_t n,
                        struct meg_ids *out)
{
    struct meg_sought piece[BATCH];
    int32_t *ids;

    if (!c->cache.word)
        meg_wordcache_init(&c->cache);
    meg_pieces_of(&c->pieces, c->rules->split, text, n);
    meg_ids_reserve(out, n + MEG_WORD_IDS);
    ids = out->v + out->n;
    for (int k; (k = next_pieces(&c->cache, &c->pieces, piece)) > 0;) {
        for (const struct meg_sought *p = piece; p < piece + k; p++) {
            const struct meg_word *known = meg_wordcache_find(&c->cache, p);

            ids += known ? meg_word_copy(&c->cache, known, ids) : encode_piece(c, p->s, p->n, ids);
        }
    }
    out->n = ids - out->v;
}
