/*
 * GPT2BPETokenizer: byte-level BPE from vocab.json and merges.txt (Radford et al. 2019), equal to
 * Megatron-LM's to the id.  A text is split into pieces, and each piece that was not seen before is
 * merged.  Ids are the symbols throughout: a vocabulary whose merges it does not know is refused.
 */
#include <stdlib.h>
#include <string.h>

#include "text/bpe.h"
#include "text/gpt2_files.h"
#include "text/internal.h"
#include "text/split.h"
#include "text/wordcache.h"

struct gpt2 {
    struct meg_tokenizer base;
    struct meg_gpt2_files *files; /* the owner's; a share borrows it */
    bool is_share;
    struct meg_wordcache cache;
    struct meg_pieces pieces;
};

static int gpt2_open(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct gpt2 *t;
    struct meg_gpt2_files *files;
    int r;

    if (!c->vocab_file || !c->merge_file)
        return meg_fail(e, MEG_EUSAGE, "GPT2BPETokenizer needs --%s",
                        c->vocab_file ? "merge-file" : "vocab-file");
    if ((r = meg_gpt2_files_load(&files, c->vocab_file, c->merge_file, e)) < 0)
        return r;
    t = meg_new(sizeof *t);
    t->files = files;
    t->base.class = &meg_tok_gpt2;
    t->base.vocab_size = files->n;
    t->base.roles = meg_tok_no_roles;
    t->base.roles.eod = files->eod;
    meg_tok_set_description(&t->base, "_GPT2BPETokenizer",
                            (const char *const[]){ c->vocab_file, c->merge_file, NULL },
                            (const char *const[]){ NULL });
    *out = &t->base;
    return MEG_OK;
}

static void gpt2_close(struct meg_tokenizer *base)
{
    struct gpt2 *t = (struct gpt2 *)base;

    if (!t->is_share)
        meg_gpt2_files_free(t->files);
    meg_wordcache_free(&t->cache);
    meg_pieces_free(&t->pieces);
    free(t);
}

static struct meg_tokenizer *gpt2_share(const struct meg_tokenizer *base)
{
    struct gpt2 *t = meg_new(sizeof *t);

    t->files = ((const struct gpt2 *)base)->files;
    t->is_share = true;
    return &t->base;
}

/* The ids of a piece that is no short word of the cache, written to ids (room for n). */
static int64_t encode_piece(struct gpt2 *t, const char *s, int64_t n, int32_t *ids)
{
    const int32_t *known;
    int64_t nids = meg_wordcache_find_long(&t->cache, s, n, &known, NULL);

    if (nids > 0) {
        memcpy(ids, known, (size_t)nids * sizeof *ids);
        return nids;
    }
    for (int64_t i = 0; i < n; i++)
        ids[i] = t->files->byte_id[(unsigned char)s[i]];
    nids = meg_bpe_merge(&t->files->bpe, ids, n);
    for (int64_t i = 0; i < nids; i++)
        ids[i] = ids[i] < 0 ? 0 : ids[i]; /* a byte that is no token: id 0, as in Megatron */
    meg_wordcache_add(&t->cache, s, n, ids, nids, 0);
    return nids;
}

/* A piece on its way to be looked up. */
struct piece {
    uint64_t key[2];
    const struct meg_word *pair; /* NULL: too long for a short word */
    const char *s;
    int64_t n;
};
enum { BATCH = 32 };

/* Up to BATCH pieces; their places in the cache are on their way to the processor. */
static int next_pieces(const struct meg_wordcache *cache, struct meg_pieces *pieces,
                       struct piece *piece)
{
    int n = 0;

    for (struct piece *p = piece; n < BATCH && meg_pieces_next(pieces, &p->s, &p->n); p++, n++) {
        p->pair = NULL;
        if (p->n > MEG_WORD_BYTES)
            continue;
        if (pieces->end - p->s >= 16) {
            meg_word_key(p->key, p->s, p->n);
        } else {
            char last[16] = { 0 };

            memcpy(last, p->s, (size_t)p->n);
            meg_word_key(p->key, last, p->n);
        }
        p->pair = meg_wordcache_pair(cache, p->key);
        __builtin_prefetch(p->pair);
    }
    return n;
}

static int gpt2_encode(struct meg_tokenizer *base, const char *text, int64_t n, struct meg_ids *out,
                       struct meg_err *e)
{
    struct gpt2 *t = (struct gpt2 *)base;
    struct piece piece[BATCH];
    int32_t *ids;

    (void)e;
    if (!t->cache.word)
        meg_wordcache_init(&t->cache);
    meg_pieces_of(&t->pieces, MEG_SPLIT_GPT2, text, n);
    meg_ids_reserve(out, n + MEG_WORD_IDS);
    ids = out->v + out->n;
    for (int k; (k = next_pieces(&t->cache, &t->pieces, piece)) > 0;) {
        for (const struct piece *p = piece; p < piece + k; p++) {
            const struct meg_word *w = p->pair ? meg_wordcache_find(p->pair, p->key) : NULL;

            if (w) { /* three ids are copied, some of them to be written over */
                memcpy(ids, w->id, sizeof w->id);
                ids += w->n;
            } else {
                ids += encode_piece(t, p->s, p->n, ids);
            }
        }
    }
    out->n = ids - out->v;
    return MEG_OK;
}

static void gpt2_bytes(const struct meg_tokenizer *base, const int32_t *ids, int64_t n,
                       struct meg_str *out)
{
    const struct meg_gpt2_files *f = ((const struct gpt2 *)base)->files;

    for (int64_t i = 0; i < n; i++)
        meg_str_add(out, f->bytes.s + f->at[ids[i]], (size_t)(f->at[ids[i] + 1] - f->at[ids[i]]));
}

const struct meg_tok_class meg_tok_gpt2 = {
    "GPT2BPETokenizer", gpt2_open,  gpt2_close,           gpt2_share,
    gpt2_encode,        gpt2_bytes, meg_tok_decode_bytes,
};
