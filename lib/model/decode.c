/* decode.c - decoding with a KV cache. */
#include <stdlib.h>
#include "base/mem.h"
#include "model/decode.h"
#include <inttypes.h>
#include "model/internal.h"

struct meg_model_kv_cache {
    const struct meg_ops *op;
    int64_t s, b, L;
    size_t layer_nbytes; /* bytes of one layer's keys and values in a slot */
    char *kv;            /* [L, b, s, g, 2, d] */
    int64_t *len;        /* [b] number of tokens in each slot */
};

/* Return the number of elements that the cache of the widest layer has for each token. */
static int64_t cache_width(const struct meg_model_state *st)
{
    int64_t width = 0;

    for (int i = 0; i < st->desc.nblocks; i++) {
        const struct meg_block *block = &st->desc.block[i];

        if (block->type->cache_width && block->type->cache_width(block->conf, st->dim.tp) > width)
            width = block->type->cache_width(block->conf, st->dim.tp);
    }
    return width;
}

int meg_model_kv_cache_create(struct meg_model_kv_cache **out, struct meg_model *g, int64_t s, int64_t b,
                              struct meg_err *e)
{
    struct meg_model_kv_cache *c = meg_new(sizeof *c);
    size_t nbytes;

    MEG_ASSERT_LE(s, g->conf.max_position_embeddings);
    MEG_ASSERT(!g->run.is_training);
    c->op = g->op;
    c->s = s;
    c->b = b;
    c->L = g->conf.num_layers;
    c->layer_nbytes = (size_t)(s * cache_width(g->state)) * meg_dtype_size(g->run.dtype);
    c->len = meg_new((size_t)b * sizeof *c->len);
    nbytes = (size_t)(c->L * b) * c->layer_nbytes;
    c->kv = g->op->alloc(nbytes);
    if (!c->kv) {
        meg_model_kv_cache_close(c);
        return meg_fail(e, MEG_EFAIL,
                        "out of memory: the KV cache of %" PRId64 " sequences of %" PRId64
                        " tokens requires %.1f MiB; use a smaller --max-batch-size",
                        b, s, (double)nbytes / 0x1p20);
    }
    *out = c;
    return 0;
}

void meg_model_kv_cache_close(struct meg_model_kv_cache *c)
{
    if (!c)
        return;
    c->op->release(c->kv);
    free(c->len);
    free(c);
}

void meg_model_kv_cache_clear(struct meg_model_kv_cache *c, int64_t slot)
{
    c->len[slot] = 0;
}

int64_t meg_model_kv_cache_len(const struct meg_model_kv_cache *c, int64_t slot)
{
    return c->len[slot];
}

/*
 * Run `rows` tokens through all layers and the final norm.  kv [nkv] assigns rows to sequences; rows of no sequence are
 * padding.  Append the keys and values of each sequence's rows to the cache of the sequence.
 */
static void forward_cached(struct meg_model *g, const struct meg_kv_cache_seq *kv, int64_t nkv, const int32_t *tokens,
                           const int32_t *position, int64_t rows)
{
    struct meg_model_state *st = g->state;
    struct meg_ctx *c = &st->ctx;
    /* the model only reads the batch, so casting away const is safe */
    const struct meg_batch x = { .s = rows, .b = 1, .tokens = (int32_t *)tokens, .position_ids = (int32_t *)position };

    const struct meg_loss_factors factors = { { 0 }, { 0 } };

    model_load_batch(g, 0, &x, &factors, false);
    c->kv = kv;
    c->nkv = nkv;
    model_embed_fwd(g, 0);
    model_layers_fwd(g, 0, 0, NULL);
    model_final_norm_fwd(g, 0);
    c->kv = NULL;
}

static struct meg_kv_cache_seq append(struct meg_model_kv_cache *c, int64_t slot, int64_t row, int64_t rows)
{
    const struct meg_kv_cache_seq kv = { row, rows, c->len[slot], c->kv + (size_t)slot * c->layer_nbytes,
                                         (size_t)c->b * c->layer_nbytes };

    MEG_ASSERT_LE(0, slot);
    MEG_ASSERT_LT(slot, c->b);
    MEG_ASSERT_LE(c->len[slot] + rows, c->s);
    c->len[slot] += rows;
    return kv;
}

void meg_model_prefill(struct meg_model *g, struct meg_model_kv_cache *c, int64_t slot, const int32_t *tokens,
                       int64_t n, float *logits)
{
    int32_t *position = meg_new((size_t)n * sizeof *position);
    struct meg_kv_cache_seq kv;

    MEG_ASSERT_LT(0, n);
    MEG_ASSERT_LE(n, g->run.s * g->run.b);
    MEG_ASSERT_EQ(c->len[slot], 0);
    for (int64_t j = 0; j < n; j++)
        position[j] = (int32_t)j;
    kv = append(c, slot, 0, n);
    forward_cached(g, &kv, 1, tokens, position, n);
    if (logits)
        model_logits_to_host(g, n - 1, 1, 1, logits);
    free(position);
}

void meg_model_decode(struct meg_model *g, struct meg_model_kv_cache *c, const int64_t *slot, const int32_t *tokens,
                      int64_t n, float *logits)
{
    const int64_t v = model_vocab(g);

    for (int64_t i = 0; i < n; i += DECODE_ROWS) {
        const int64_t rows = DECODE_ROWS < n - i ? DECODE_ROWS : n - i;
        int32_t token[DECODE_ROWS] = { 0 }, position[DECODE_ROWS] = { 0 };
        struct meg_kv_cache_seq kv[DECODE_ROWS];

        for (int64_t j = 0; j < rows; j++) {
            kv[j] = append(c, slot[i + j], j, 1);
            token[j] = tokens[i + j];
            position[j] = (int32_t)kv[j].position0;
        }
        forward_cached(g, kv, rows, token, position, DECODE_ROWS);
        model_logits_to_host(g, 0, DECODE_ROWS, rows, logits + i * v);
    }
}
