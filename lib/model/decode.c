/* decode.c - decoding with a KV cache. */
#include "model/decode.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "model/internal.h"

/*
 * A prompt is prefilled in chunks, so that the size of the activations is bounded.  A chunk has PREFILL_STEP rows if
 * more than PREFILL_ROWS remain, and all remaining rows otherwise.  The last of several chunks thus has more than 256
 * rows.  Matrix products of the CPU backend compute the rows of such a chunk in the same way as the rows of a longer
 * prompt.  PREFILL_STEP is a multiple of the 256 queries that attention computes at a time (cpu/attention.c), so the
 * queries of a prompt are divided in the same way as without chunks.
 */
enum { PREFILL_ROWS = 2048, PREFILL_STEP = 1792 };

/* Keys and values of tokens in the layers of the last stack. */
struct kv_buffer {
    char *kv;    /* [L, s, width]; NULL before the first sequence */
    int64_t s;   /* number of tokens for which memory is allocated */
    int64_t len; /* number of tokens stored */
};

/* The keys and values of one sequence: of its tokens and, in a model with an encoder, of the output of the encoder. */
struct cache_slot {
    struct kv_buffer tokens, memory;
};

/*
 * The key of the graph of a decoding step (device/graph.h).  It has no padding bytes, so that keys can be compared as
 * bytes.  `in` alternates between the two inputs of the slot.  The other members change only with the buffers of the
 * model, the number of sequences, the memory of the first sequence, or the lengths of the longest sequence and encoder
 * input, rounded up to GRAPH_TOKENS.
 */
enum { GRAPH_TOKENS = 256 };
struct step_key {
    struct meg_kv_step step;
    int64_t num_moves; /* num_moves of the model */
    const struct model_inputs *in;
};

/* The arrays of offsets of struct meg_kv_step, in the order in which they are uploaded. */
enum { TOKENS_OFFSET, ADDED_OFFSET, MEMORY_OFFSET, NUM_OFFSETS };

struct meg_model_kv_cache {
    const struct meg_device *device;
    const struct meg_ops *op; /* device->op */
    struct meg_decode_conf conf;
    enum meg_dtype dtype;
    int64_t b, L;
    size_t token_nbytes, memory_nbytes; /* bytes of the keys and values of one token in one layer, by buffer */
    struct cache_slot *slot;            /* [b] */
    /*
     * The arrays of a step of n sequences, n <= op->decode_rows: [NUM_OFFSETS,L,n] i64 offsets, [2,n] i32 positions
     * and lengths of the encoder's input; on the host, and in device memory
     */
    int64_t *host_arrays;
    void *arrays;
    /*
     * Arguments and results [min(b, op->decode_rows)] of the operation `sample`, and its workspace, in device memory.
     */
    struct meg_sampling_args *args;
    struct meg_sampled_token *sampled;
    struct meg_workspace workspace;
    void *device_memory; /* the allocation that contains the arrays in device memory; NULL before the first sequence */
    float *logits;       /* [b,v] next logits, in pinned memory; NULL if not requested, or before the first sequence */
    struct meg_sampled_token *token; /* [b] next tokens; NULL if not requested */
    int32_t *input, *position;       /* [op->decode_rows] inputs of a decoding step, on the host */
    struct meg_graphs graphs;        /* of decoding steps */
};

/* Return the size in bytes of the arrays of a step of n sequences. */
static size_t arrays_nbytes(const struct meg_model_kv_cache *c, int64_t n)
{
    return (size_t)n * ((size_t)(NUM_OFFSETS * c->L) * sizeof(int64_t) + 2 * sizeof(int32_t));
}

/* Set the width of a cache to the width of a block.  All blocks have the same width. */
static void set_width(int64_t *width, int64_t of_block)
{
    MEG_ASSERT(*width == 0 || *width == of_block);
    *width = of_block;
}

/* Set the bytes per token. */
static void set_widths(struct meg_model_kv_cache *c, const struct meg_model *g)
{
    const struct meg_model_state *st = g->state;
    int64_t token = 0, memory = 0;

    for (int i = 0; i < st->desc.nblocks; i++) {
        const struct meg_block *block = &st->desc.block[i];

        if (block->type->cache_width)
            set_width(&token, block->type->cache_width(block->conf, st->dim.tp));
        if (block->type->memory_cache_width)
            set_width(&memory, block->type->memory_cache_width(block->conf, st->dim.tp));
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

/* Remove all tokens from a buffer, and allocate memory for s tokens unless the buffer has enough. */
static int begin_sequence(struct meg_model *g, struct meg_model_kv_cache *c, struct kv_buffer *q, size_t token_nbytes,
                          int64_t s, struct meg_err *e)
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
static const char *token_at(const struct kv_buffer *q, size_t token_nbytes, int64_t layer, int64_t token)
{
    return q->kv + (size_t)(layer * q->s + token) * token_nbytes;
}

/* Compute the arrays of a step of n sequences on the host. */
static void fill_arrays(struct meg_model_kv_cache *c, const int64_t *slot, int64_t n)
{
    const struct cache_slot *first = &c->slot[slot[0]];
    int64_t *tokens = c->host_arrays + TOKENS_OFFSET * c->L * n, *added = c->host_arrays + ADDED_OFFSET * c->L * n;
    int64_t *memory = c->host_arrays + MEMORY_OFFSET * c->L * n;
    int32_t *position = (int32_t *)(c->host_arrays + NUM_OFFSETS * c->L * n), *length = position + n;

    for (int64_t i = 0; i < n; i++) {
        const struct cache_slot *q = &c->slot[slot[i]];

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
    const int32_t *position = (const int32_t *)(offset + NUM_OFFSETS * c->L * n);

    fill_arrays(c, slot, n);
    c->op->upload(st, c->arrays, c->host_arrays, arrays_nbytes(c, n));
    x->tokens_offset = offset + TOKENS_OFFSET * c->L * n;
    x->added_offset = offset + ADDED_OFFSET * c->L * n;
    x->position = position;
    if (c->memory_nbytes == 0)
        return;
    x->memory_offset = offset + MEMORY_OFFSET * c->L * n;
    x->memory_length = position + n;
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/*
 * Return the step that appends s tokens to each of the sequences of n slots.  If is_graph is set, round the lengths up,
 * so that many steps can launch the same graph.
 */
static struct meg_kv_step step_of(struct meg_model_kv_cache *c, struct meg_stream *st, const int64_t *slot, int64_t n,
                                  int64_t s, bool is_graph)
{
    const struct cache_slot *first = &c->slot[slot[0]];
    struct meg_kv_step x = { .s = s,
                             .b = n,
                             .position0 = first->tokens.len,
                             .tokens = { first->tokens.kv, (size_t)first->tokens.s * c->token_nbytes },
                             .memory = { first->memory.kv, (size_t)first->memory.s * c->memory_nbytes } };

    for (int64_t i = 0; i < n; i++) {
        MEG_ASSERT_LE(0, slot[i]);
        MEG_ASSERT_LT(slot[i], c->b);
        x.len = larger(x.len, c->slot[slot[i]].tokens.len + s);
        x.memory_len = larger(x.memory_len, c->slot[slot[i]].memory.len);
    }
    if (n > 1 || is_graph)
        set_arrays(c, st, slot, &x);
    if (!is_graph)
        return x;
    x.position0 = 0;
    x.len = round_up(x.len, GRAPH_TOKENS);
    x.memory_len = round_up(x.memory_len, GRAPH_TOKENS);
    return x;
}

/* The arguments of a decoding step. */
struct decode_pass {
    struct meg_model *g;
    const struct meg_kv_step *step;
};

/* Run the layers of the last stack, and the final norm. */
static void layers_fwd(const void *pass)
{
    const struct decode_pass *p = pass;
    struct meg_model *g = p->g;
    struct model_slot *q = &g->state->slot[0];

    g->state->ctx.kv = p->step;
    model_stack_fwd(g, 0, model_last_stack(g), q, NULL, NULL);
    model_final_norm_fwd(g, q);
    g->state->ctx.kv = NULL;
}

/*
 * Append s tokens to each of the sequences of n slots.  Run `rows` tokens through the layers of the last stack and the
 * final norm: first the rows of the sequences, in the order of struct meg_kv_step, then padding.
 */
static void forward_cached(struct meg_model *g, struct meg_model_kv_cache *c, const int64_t *slot, int64_t n, int64_t s,
                           const int32_t *tokens, const int32_t *position, int64_t rows)
{
    const bool is_graph = c->op->graph_begin && s == 1 && rows == c->op->decode_rows;
    const struct meg_kv_step step = step_of(c, g->state->ctx.stream, slot, n, s, is_graph);
    const struct decode_pass pass = { g, &step };
    /* the model only reads the batch, so casting away const is safe */
    const struct meg_batch x = { .s = rows, .b = 1, .tokens = (int32_t *)tokens, .position_ids = (int32_t *)position };

    for (int64_t i = 0; i < n; i++) {
        struct cache_slot *sequence = &c->slot[slot[i]];

        MEG_ASSERT_LE(sequence->tokens.len + s, sequence->tokens.s);
        MEG_ASSERT(c->memory_nbytes == 0 || sequence->memory.len > 0);
        sequence->tokens.len += s;
    }
    model_load_batch(g, 0, &x, NULL, false);
    if (is_graph) {
        const struct step_key key = { step, g->num_moves, g->state->slot[0].in };

        meg_graphs_run(&c->graphs, g->device, &key, sizeof key, layers_fwd, &pass);
    } else {
        layers_fwd(&pass);
    }
}

/* Compute the keys and values of the cross-attention from the output of the encoder, and store them in the cache. */
static void cache_memory(struct meg_model *g, const struct meg_kv_step *kv)
{
    struct meg_model_state *st = g->state;
    const int last = model_last_stack(g);
    const struct model_segment *x = &st->chunk[0].segment[last];

    model_set_current(g, &st->slot[0], last);
    st->ctx.kv = kv;
    for (int64_t i = x->begin; i < x->end; i++)
        for (int k = 0; k < st->layer[i].desc->n; k++) {
            const struct model_block *block = &st->layer[i].block[k];

            if (block->desc->type->cache_memory)
                block->desc->type->cache_memory(&st->ctx, block->weights);
        }
    st->ctx.kv = NULL;
}

/* Return new positions 0 .. n-1; free them with free. */
static int32_t *positions(int64_t n)
{
    int32_t *position = meg_new((size_t)n * sizeof *position);

    for (int64_t i = 0; i < n; i++)
        position[i] = (int32_t)i;
    return position;
}

int meg_model_encode(struct meg_model *g, struct meg_model_kv_cache *c, int64_t slot, const int32_t *tokens, int64_t n,
                     struct meg_err *e)
{
    struct kv_buffer *q = &c->slot[slot].memory;
    struct meg_kv_step kv;
    int32_t *position;
    int r;

    MEG_ASSERT_LT(0, n);
    MEG_ASSERT_LT(0, c->memory_nbytes);
    if ((r = meg_model_reserve(g, n, n, e)) < 0 || (r = begin_sequence(g, c, q, c->memory_nbytes, n, e)) < 0)
        return r;
    q->len = n;
    kv = step_of(c, g->state->ctx.stream, &slot, 1, 0, false);
    position = positions(n);
    model_load_batch(
        g, 0, &(struct meg_batch){ .s_enc = n, .b = 1, .enc_tokens = (int32_t *)tokens, .enc_position_ids = position },
        NULL, false);
    model_stack_fwd(g, 0, 0, &g->state->slot[0], NULL, NULL);
    cache_memory(g, &kv);
    free(position);
    return 0;
}

/*
 * Compute the next tokens of sequences [i, i + n) of a step, whose last hidden states are rows [first, first + n) of
 * lnf.  Logits are computed for `rows` rows, of which those after the first n are padding.
 */
static void compute_next(struct meg_model *g, struct meg_model_kv_cache *c, int64_t i, int64_t n, int64_t first,
                         int64_t rows, const struct meg_sampling_args *args)
{
    struct meg_stream *st = g->state->ctx.stream;
    const struct meg_mat logits = meg_mat_rows(model_logits(g, first, rows), 0, n);

    if (c->token) {
        c->op->upload(st, c->args, args + i, (size_t)n * sizeof *args);
        c->op->sample(st, c->sampled, logits, c->conf.unpadded_vocab, c->args, c->conf.has_logprobs, c->workspace);
    }
    if (c->logits)
        meg_device_download_mat(g->device, st, c->logits + i * model_vocab(g), logits);
    if (c->token)
        meg_device_read(g->device, st, c->token + i, c->sampled, (size_t)n * sizeof *c->token);
}

static struct meg_decode_output output_of(const struct meg_model_kv_cache *c)
{
    return (struct meg_decode_output){ .logits = c->logits, .token = c->token };
}

/* Return the number of rows of the next chunk of a prompt of which n tokens remain. */
static int64_t chunk_rows(int64_t n)
{
    return n > PREFILL_ROWS ? PREFILL_STEP : n;
}

int meg_model_prefill(struct meg_model *g, struct meg_model_kv_cache *c, int64_t slot, const int32_t *tokens, int64_t n,
                      int64_t s, const struct meg_sampling_args *args, struct meg_decode_output *out, struct meg_err *e)
{
    int32_t *position;
    int64_t rows = 0;
    int r;

    MEG_ASSERT_LT(0, n);
    MEG_ASSERT_LE(n, s);
    if ((r = meg_model_reserve(g, n < PREFILL_ROWS ? n : PREFILL_ROWS, s, e)) < 0 ||
        (r = begin_sequence(g, c, &c->slot[slot].tokens, c->token_nbytes, s, e)) < 0)
        return r;
    position = positions(n);
    for (int64_t j = 0; j < n; j += rows) {
        rows = chunk_rows(n - j);
        forward_cached(g, c, &slot, 1, rows, tokens + j, position + j, rows);
    }
    if (out) {
        compute_next(g, c, 0, 1, rows - 1, 1, args);
        *out = output_of(c);
    }
    free(position);
    return 0;
}

struct meg_decode_output meg_model_decode(struct meg_model *g, struct meg_model_kv_cache *c, const int64_t *slot,
                                          const int32_t *tokens, int64_t n, const struct meg_sampling_args *args)
{
    const int64_t most = c->op->decode_rows;

    for (int64_t i = 0; i < n; i += most) {
        const int64_t rows = most < n - i ? most : n - i, computed = c->op->pads_decode_steps ? most : rows;

        for (int64_t j = 0; j < computed; j++) {
            c->input[j] = j < rows ? tokens[i + j] : 0;
            c->position[j] = j < rows ? (int32_t)meg_model_kv_cache_len(c, slot[i + j]) : 0;
        }
        forward_cached(g, c, slot + i, rows, 1, c->input, c->position, computed);
        compute_next(g, c, i, rows, 0, computed, args);
    }
    return output_of(c);
}
