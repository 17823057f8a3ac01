/* kv_cache.c - the memory of a KV cache, and the arrays of a decoding step. */
#include "model/kv_cache.h"
#include <inttypes.h>
#include <stdlib.h>
#include "base/int64.h"
#include "base/mem.h"

/* Return the size in bytes of the arrays of a step of n sequences. */
static size_t arrays_nbytes(const struct meg_model_kv_cache *c, int64_t n)
{
    return (size_t)n * ((size_t)(MODEL_KV_NUM_OFFSETS * c->L) * sizeof(int64_t) + 2 * sizeof(int32_t));
}

/* Set the width of a cache to the width of a block, unless it is 0.  All other blocks have the same width. */
static void set_width(int64_t *width, int64_t of_block)
{
    MEG_ASSERT(*width == 0 || of_block == 0 || *width == of_block);
    *width = meg_max64(*width, of_block);
}

/* Set the bytes per token. */
static void set_widths(struct meg_model_kv_cache *c, const struct meg_model *g)
{
    const struct meg_model_state *st = g->state;
    int64_t token = 0, memory = 0;

    for (int i = 0; i < st->desc.nblocks; i++) {
        const struct meg_block *block = &st->desc.block[i];
        const struct meg_block_cache x =
            block->type->cache ? block->type->cache(block->conf, st->dim.tp) : (struct meg_block_cache){ 0 };

        set_width(&token, x.token);
        set_width(&memory, x.memory_token);
    }
    c->token_nbytes = (size_t)token * meg_dtype_size(g->run.dtype);
    c->memory_nbytes = (size_t)memory * meg_dtype_size(g->run.dtype);
}

struct meg_model_kv_cache *meg_model_kv_cache_create(const struct meg_model *g, int64_t b,
                                                     const struct meg_decode_conf *conf)
{
    const struct meg_stack *last = &g->state->desc.stack[model_last_stack(g)];
    struct meg_model_kv_cache *c = meg_new(sizeof *c);

    MEG_ASSERT(!g->run.is_training);
    MEG_ASSERT_LE(conf->unpadded_vocab, g->conf.vocab_size);
    c->device = g->device;
    c->op = g->op;
    c->conf = *conf;
    c->dtype = g->run.dtype;
    c->b = b;
    c->L = last->end - last->begin;
    c->short_positions = g->state->rope[MEG_ROPE_FULL].short_positions;
    set_widths(c, g);
    if (conf->unpadded_vocab > 0)
        c->token = meg_new((size_t)b * sizeof *c->token);
    c->slot = meg_new((size_t)b * sizeof *c->slot);
    c->host_arrays = meg_new(arrays_nbytes(c, c->op->decode_rows));
    c->input = meg_new((size_t)c->op->decode_rows * sizeof *c->input);
    c->position = meg_new((size_t)c->op->decode_rows * sizeof *c->position);
    return c;
}

void meg_model_kv_cache_close(struct meg_model_kv_cache *c)
{
    if (!c)
        return;
    for (int64_t i = 0; i < c->b; i++) {
        c->op->release(c->slot[i].tokens.kv);
        c->op->release(c->slot[i].memory.kv);
        free(c->slot[i].ids);
    }
    meg_graphs_free(&c->graphs, c->device);
    c->op->release(c->device_memory);
    if (c->logits)
        c->op->release_pinned(c->logits);
    free(c->token);
    free(c->host_arrays);
    free(c->input);
    free(c->position);
    free(c->slot);
    free(c);
}

int64_t meg_model_kv_cache_len(const struct meg_model_kv_cache *c, int64_t slot)
{
    return c->slot[slot].tokens.len;
}

/*
 * Set the addresses of the arrays in the device memory that begins at base, and return the total size of the arrays in
 * bytes.  If base is NULL, only compute the size.
 */
static size_t divide_device_memory(struct meg_model_kv_cache *c, void *base)
{
    const int64_t rows = c->op->decode_rows, n = c->b < rows ? c->b : rows;
    struct meg_suballoc mem = { .base = base };

    c->arrays = meg_suballoc(&mem, arrays_nbytes(c, rows));
    if (c->conf.unpadded_vocab > 0) {
        c->args = meg_suballoc(&mem, (size_t)n * sizeof *c->args);
        c->sampled = meg_suballoc(&mem, (size_t)n * sizeof *c->sampled);
        c->workspace.nbytes = c->op->sample_nbytes(n, c->conf.unpadded_vocab);
        c->workspace.p = meg_suballoc(&mem, c->workspace.nbytes);
    }
    return mem.used;
}

/* Allocate the memory that all sequences use, unless it exists. */
static int alloc_shared(struct meg_model *g, struct meg_model_kv_cache *c, struct meg_err *e)
{
    const size_t logits_nbytes = c->conf.returns_logits ? (size_t)(c->b * model_vocab(g)) * sizeof *c->logits : 0;

    if (!c->device_memory) {
        const size_t nbytes = divide_device_memory(c, NULL);

        c->device_memory = c->op->alloc(nbytes);
        c->logits = logits_nbytes > 0 ? c->op->alloc_pinned(logits_nbytes) : NULL;
        if (!c->device_memory || (logits_nbytes > 0 && !c->logits))
            return meg_fail(e, MEG_EFAIL,
                            "out of memory: computing the next tokens of %" PRId64
                            " sequences requires %.1f MiB; with meg-generate, use a smaller --max-batch-size",
                            c->b, (double)(nbytes + logits_nbytes) / 0x1p20);
        divide_device_memory(c, c->device_memory);
    }
    return 0;
}

int model_kv_begin_sequence(struct meg_model *g, struct meg_model_kv_cache *c, struct model_kv_buffer *q,
                            size_t token_nbytes, int64_t s, struct meg_err *e)
{
    const size_t nbytes = (size_t)(c->L * s) * token_nbytes;
    int r;

    if ((r = alloc_shared(g, c, e)) < 0)
        return r;
    q->len = 0;
    if (s <= q->s)
        return 0;
    c->op->release(q->kv);
    q->s = 0;
    if (!(q->kv = c->op->alloc(nbytes)))
        return meg_fail(e, MEG_EFAIL,
                        "out of memory: the KV cache of a sequence of %" PRId64
                        " tokens requires %.1f MiB; use shorter sequences, --params-dtype bf16 or, with meg-generate, "
                        "a smaller --max-batch-size",
                        s, (double)nbytes / 0x1p20);
    q->s = s;
    return 0;
}

/* Return the distance in elements between two addresses, which may be in different allocations. */
static int64_t distance(const struct meg_model_kv_cache *c, const char *from, const char *to)
{
    return ((intptr_t)to - (intptr_t)from) / (intptr_t)meg_dtype_size(c->dtype);
}

/* Return the address of the keys and values of a token in a layer. */
static const char *token_at(const struct model_kv_buffer *q, size_t token_nbytes, int64_t layer, int64_t token)
{
    return q->kv + (size_t)(layer * q->s + token) * token_nbytes;
}

/* Compute the arrays of a step of n sequences on the host. */
static void fill_arrays(struct meg_model_kv_cache *c, const int64_t *slot, int64_t n)
{
    const struct model_kv_slot *first = &c->slot[slot[0]];
    int64_t *tokens = c->host_arrays + MODEL_KV_TOKENS_OFFSET * c->L * n,
            *added = c->host_arrays + MODEL_KV_ADDED_OFFSET * c->L * n;
    int64_t *memory = c->host_arrays + MODEL_KV_MEMORY_OFFSET * c->L * n;
    int32_t *position = (int32_t *)(c->host_arrays + MODEL_KV_NUM_OFFSETS * c->L * n), *length = position + n;

    for (int64_t i = 0; i < n; i++) {
        const struct model_kv_slot *q = &c->slot[slot[i]];

        position[i] = (int32_t)q->tokens.len;
        length[i] = (int32_t)q->memory.len;
        for (int64_t l = 0; l < c->L; l++) {
            const char *from = token_at(&first->tokens, c->token_nbytes, l, 0);

            tokens[l * n + i] = distance(c, from, token_at(&q->tokens, c->token_nbytes, l, 0));
            added[l * n + i] = distance(c, from, token_at(&q->tokens, c->token_nbytes, l, q->tokens.len));
            if (c->memory_nbytes > 0)
                memory[l * n + i] = distance(c, token_at(&first->memory, c->memory_nbytes, l, 0),
                                             token_at(&q->memory, c->memory_nbytes, l, 0));
        }
    }
}

/* Upload the arrays of a step of several sequences. */
static void set_arrays(struct meg_model_kv_cache *c, struct meg_stream *st, const int64_t *slot, struct meg_kv_step *x)
{
    const int64_t *offset = c->arrays, n = x->b;
    const int32_t *position = (const int32_t *)(offset + MODEL_KV_NUM_OFFSETS * c->L * n);

    fill_arrays(c, slot, n);
    c->op->upload(st, c->arrays, c->host_arrays, arrays_nbytes(c, n));
    x->tokens_offset = offset + MODEL_KV_TOKENS_OFFSET * c->L * n;
    x->added_offset = offset + MODEL_KV_ADDED_OFFSET * c->L * n;
    x->position = position;
    if (c->memory_nbytes == 0)
        return;
    x->memory_offset = offset + MODEL_KV_MEMORY_OFFSET * c->L * n;
    x->memory_length = position + n;
}

struct meg_kv_step model_kv_step(struct meg_model_kv_cache *c, struct meg_stream *st, const int64_t *slot, int64_t n,
                                 int64_t s, bool is_graph)
{
    const struct model_kv_slot *first = &c->slot[slot[0]];
    struct meg_kv_step x = { .s = s,
                             .b = n,
                             .position0 = first->tokens.len,
                             .tokens = { first->tokens.kv, (size_t)first->tokens.s * c->token_nbytes },
                             .memory = { first->memory.kv, (size_t)first->memory.s * c->memory_nbytes } };

    for (int64_t i = 0; i < n; i++) {
        MEG_ASSERT_LE(0, slot[i]);
        MEG_ASSERT_LT(slot[i], c->b);
        x.len = meg_max64(x.len, c->slot[slot[i]].tokens.len + s);
        x.memory_len = meg_max64(x.memory_len, c->slot[slot[i]].memory.len);
    }
    if (n > 1 || is_graph)
        set_arrays(c, st, slot, &x);
    if (!is_graph)
        return x;
    x.position0 = 0;
    x.len = meg_round_up(x.len, MODEL_KV_GRAPH_TOKENS);
    x.memory_len = meg_round_up(x.memory_len, MODEL_KV_GRAPH_TOKENS);
    return x;
}
