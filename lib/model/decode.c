/* decode.c - decoding with a KV cache. */
#include <stdlib.h>
#include "base/mem.h"
#include "model/decode.h"
#include <inttypes.h>
#include "model/internal.h"

/*
 * A prompt is prefilled in chunks, so that the size of the activations is bounded.  A chunk has PREFILL_STEP rows if
 * more than PREFILL_ROWS remain, and all remaining rows otherwise.  The last of several chunks thus has more than 256
 * rows, which the matrix products of the CPU backend compute as they compute those of longer prompts.  PREFILL_STEP is
 * a multiple of the 256 queries that attention computes at a time (cpu/attention.c), so the queries of a prompt are
 * divided in the same way as without chunks.
 */
enum { PREFILL_ROWS = 2048, PREFILL_STEP = 1792 };

/* The keys and values of one sequence. */
struct cache_slot {
    char *kv;    /* [L, s, g, 2, d]; NULL before the first sequence */
    int64_t s;   /* number of tokens for which memory is allocated */
    int64_t len; /* number of tokens stored */
};

struct meg_model_kv_cache {
    const struct meg_ops *op;
    int64_t b, L;
    size_t token_nbytes;     /* bytes of the keys and values of one token in one layer */
    struct cache_slot *slot; /* [b] */
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

struct meg_model_kv_cache *meg_model_kv_cache_create(const struct meg_model *g, int64_t b)
{
    struct meg_model_kv_cache *c = meg_new(sizeof *c);

    MEG_ASSERT(!g->run.is_training);
    c->op = g->op;
    c->b = b;
    c->L = g->conf.num_layers;
    c->token_nbytes = (size_t)cache_width(g->state) * meg_dtype_size(g->run.dtype);
    c->slot = meg_new((size_t)b * sizeof *c->slot);
    return c;
}

void meg_model_kv_cache_close(struct meg_model_kv_cache *c)
{
    if (!c)
        return;
    for (int64_t i = 0; i < c->b; i++)
        c->op->release(c->slot[i].kv);
    free(c->slot);
    free(c);
}

int64_t meg_model_kv_cache_len(const struct meg_model_kv_cache *c, int64_t slot)
{
    return c->slot[slot].len;
}

/* Remove all tokens from a slot, and allocate memory for a sequence of s tokens unless the slot has enough. */
static int begin_sequence(struct meg_model_kv_cache *c, int64_t slot, int64_t s, struct meg_err *e)
{
    struct cache_slot *q = &c->slot[slot];
    const size_t nbytes = (size_t)(c->L * s) * c->token_nbytes;

    q->len = 0;
    if (s <= q->s)
        return 0;
    c->op->release(q->kv);
    q->s = 0;
    q->kv = c->op->alloc(nbytes);
    if (!q->kv)
        return meg_fail(e, MEG_EFAIL,
                        "out of memory: the KV cache of a sequence of %" PRId64
                        " tokens requires %.1f MiB; generate fewer tokens, or use a smaller --max-batch-size",
                        s, (double)nbytes / 0x1p20);
    q->s = s;
    return 0;
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
    model_chunk_fwd(g, 0, &st->slot[0], NULL, NULL);
    model_final_norm_fwd(g, &st->slot[0]);
    c->kv = NULL;
}

/*
 * Append rows [row, row + rows) of a batch to the sequence of a cache slot: reserve their positions, and return them.
 */
static struct meg_kv_cache_seq append(struct meg_model_kv_cache *c, int64_t slot, int64_t row, int64_t rows)
{
    struct cache_slot *q = &c->slot[slot];
    const struct meg_kv_cache_seq kv = { row, rows, q->len, q->kv, (size_t)q->s * c->token_nbytes };

    MEG_ASSERT_LE(0, slot);
    MEG_ASSERT_LT(slot, c->b);
    MEG_ASSERT_LE(q->len + rows, q->s);
    q->len += rows;
    return kv;
}

/* Return the number of rows of the next chunk of a prompt of which n tokens remain. */
static int64_t chunk_rows(int64_t n)
{
    return n > PREFILL_ROWS ? PREFILL_STEP : n;
}

int meg_model_prefill(struct meg_model *g, struct meg_model_kv_cache *c, int64_t slot, const int32_t *tokens, int64_t n,
                      int64_t s, float *logits, struct meg_err *e)
{
    int32_t *position;
    int64_t rows = 0;
    int r;

    MEG_ASSERT_LT(0, n);
    MEG_ASSERT_LE(n, s);
    if ((r = meg_model_reserve(g, n < PREFILL_ROWS ? n : PREFILL_ROWS, s, e)) < 0 ||
        (r = begin_sequence(c, slot, s, e)) < 0)
        return r;
    position = meg_new((size_t)n * sizeof *position);
    for (int64_t j = 0; j < n; j++)
        position[j] = (int32_t)j;
    for (int64_t j = 0; j < n; j += rows) {
        struct meg_kv_cache_seq kv;

        rows = chunk_rows(n - j);
        kv = append(c, slot, 0, rows);
        forward_cached(g, &kv, 1, tokens + j, position + j, rows);
    }
    if (logits)
        model_logits_to_host(g, rows - 1, 1, 1, logits);
    free(position);
    return 0;
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
