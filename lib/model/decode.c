/* decode.c - decoding with a KV cache. */
#include "model/decode.h"
#include <stdlib.h>
#include "base/mem.h"
#include "model/kv_cache.h"

/*
 * A prompt is prefilled in chunks, so that the size of the activations is bounded.  A chunk has PREFILL_STEP rows if
 * more than PREFILL_ROWS remain, and all remaining rows otherwise.  The last of several chunks thus has more than 256
 * rows.  Matrix products of the CPU backend compute the rows of such a chunk in the same way as the rows of a longer
 * prompt.  PREFILL_STEP is a multiple of the 256 queries that attention computes at a time (cpu/attention.h), so the
 * queries of a prompt are divided in the same way as without chunks.
 */
enum { PREFILL_ROWS = 2048, PREFILL_STEP = 1792 };

/*
 * The arguments of a decoding step, and the key of its graph: a struct without padding.  `in` alternates between the
 * two inputs of the slot.  The other members change only with the buffers of the model, the number of sequences, the
 * memory of the first sequence, or the lengths of the longest sequence and encoder input, rounded up to
 * MODEL_KV_GRAPH_TOKENS.
 */
struct decode_pass {
    struct meg_call call;
    struct meg_model *g;
    int64_t num_moves; /* of g */
    const struct model_inputs *in;
};

/* Run the layers of the last stack, and the final norm. */
static void layers_fwd(const void *pass)
{
    const struct decode_pass *p = pass;
    struct model_slot *q = &p->g->state->slot[0];

    model_stack_fwd(p->g, 0, model_last_stack(p->g), q, NULL, NULL);
    model_final_norm_fwd(p->g, q);
}

/*
 * Append s tokens to each of the sequences of n slots.  Run the tokens of a batch through the layers of the last stack
 * and the final norm: first the rows of the sequences, in the order of struct meg_kv_step, then padding.
 */
static void forward_cached(struct meg_model *g, struct meg_model_kv_cache *c, const int64_t *slot, int64_t n, int64_t s,
                           const struct meg_batch *x)
{
    const bool is_graph = c->op->graph_begin && s == 1 && x->s == c->op->decode_rows;
    const struct meg_kv_step step = model_kv_step(c, g->state->ctx.stream, slot, n, s, is_graph);
    struct model_slot *q = &g->state->slot[0];
    struct decode_pass pass = { .g = g, .num_moves = g->num_moves };

    for (int64_t i = 0; i < n; i++) {
        struct model_kv_slot *sequence = &c->slot[slot[i]];

        MEG_ASSERT_LE(sequence->tokens.len + s, sequence->tokens.s);
        MEG_ASSERT(c->memory_nbytes == 0 || sequence->memory.len > 0);
        sequence->tokens.len += s;
    }
    model_load_batch(g, 0, x, NULL, false);
    model_set_current(g, q, model_last_stack(g));
    g->state->ctx.call.kv = step;
    pass.call = g->state->ctx.call;
    pass.in = q->in;
    if (is_graph)
        meg_graphs_run(&c->graphs, g->device, layers_fwd, &pass, sizeof pass);
    else
        layers_fwd(&pass);
}

/* Compute the keys and values of the cross-attention from the output of the encoder, and store them in the cache. */
static void cache_memory(struct meg_model *g, const struct meg_kv_step *kv)
{
    struct meg_model_state *st = g->state;
    const int last = model_last_stack(g);
    const struct model_segment *x = &st->chunk[0].segment[last];

    model_set_current(g, &st->slot[0], last);
    st->ctx.call.kv = *kv;
    for (int64_t i = x->begin; i < x->end; i++)
        for (int k = 0; k < st->layer[i].desc->n; k++) {
            const struct model_block *block = &st->layer[i].block[k];

            if (block->desc->type->cache_memory)
                block->desc->type->cache_memory(&st->ctx, block->weights);
        }
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
    struct model_kv_buffer *q = &c->slot[slot].memory;
    struct meg_kv_step kv;
    int32_t *position;
    int r;

    MEG_ASSERT_LT(0, n);
    MEG_ASSERT_LT(0, c->memory_nbytes);
    if ((r = meg_model_reserve(g, n, n, e)) < 0 || (r = model_kv_begin_sequence(g, c, q, c->memory_nbytes, n, e)) < 0)
        return r;
    q->len = n;
    kv = model_kv_step(c, g->state->ctx.stream, &slot, 1, 0, false);
    position = positions(n);
    model_load_batch(
        g, 0, &(struct meg_batch){ .s_enc = n, .b = 1, .enc_tokens = (int32_t *)tokens, .enc_position_ids = position },
        NULL, false);
    model_set_current(g, &g->state->slot[0], 0);
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
        MEG_CALL(c->op, st, sample, .token = c->sampled, .logits = logits, .unpadded_vocab = c->conf.unpadded_vocab,
                 .args = c->args, .has_logprobs = c->conf.has_logprobs, .workspace = c->workspace);
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

/* Return the row of the rotary tables of a position in a sequence of n tokens. */
static int32_t position_row(const struct meg_model_kv_cache *c, int64_t position, int64_t n)
{
    return (int32_t)(position + (n > c->short_positions ? c->short_positions : 0));
}

/* Run n tokens, with which the sequence of a slot begins, and return the number of rows of the last chunk. */
static int64_t run_prompt(struct meg_model *g, struct meg_model_kv_cache *c, int64_t slot, const int32_t *tokens,
                          int64_t n)
{
    struct meg_batch x = { .b = 1 };
    int32_t *position = meg_new((size_t)n * sizeof *position);
    int64_t rows = 0;

    for (int64_t j = 0; j < n; j++)
        position[j] = position_row(c, j, n);
    for (int64_t j = 0; j < n; j += rows) {
        rows = x.s = chunk_rows(n - j);
        x.tokens = (int32_t *)tokens + j; /* the model only reads the batch, so casting away const is safe */
        x.position_ids = position + j;
        forward_cached(g, c, &slot, 1, rows, &x);
    }
    free(position);
    return rows;
}

/* With LongRoPE, keep the first tokens of a sequence: n tokens that follow the first `len`. */
static void keep_ids(struct meg_model_kv_cache *c, int64_t slot, int64_t len, const int32_t *tokens, int64_t n)
{
    struct model_kv_slot *q = &c->slot[slot];

    if (c->short_positions > 0 && !q->ids)
        q->ids = meg_new((size_t)(c->short_positions + 1) * sizeof *q->ids);
    for (int64_t i = 0; i < n && len + i <= c->short_positions && q->ids; i++)
        q->ids[len + i] = tokens[i];
}

int meg_model_prefill(struct meg_model *g, struct meg_model_kv_cache *c, const struct meg_prefill *prompt,
                      struct meg_decode_output *out, struct meg_err *e)
{
    const int64_t n = prompt->n, s = prompt->s;
    const int64_t again = c->short_positions < s ? c->short_positions + 1 : 0; /* tokens of recompute_prompt */
    const int64_t most = c->short_positions > 0 && again > n ? again : n;
    int64_t rows;
    int r;

    MEG_ASSERT_LT(0, n);
    MEG_ASSERT_LE(n, s);
    if ((r = meg_model_reserve(g, most < PREFILL_ROWS ? most : PREFILL_ROWS, s, e)) < 0 ||
        (r = model_kv_begin_sequence(g, c, &c->slot[prompt->slot].tokens, c->token_nbytes, s, e)) < 0)
        return r;
    keep_ids(c, prompt->slot, 0, prompt->tokens, n);
    rows = run_prompt(g, c, prompt->slot, prompt->tokens, n);
    if (out) {
        compute_next(g, c, 0, 1, rows - 1, 1, prompt->args);
        *out = output_of(c);
    }
    return 0;
}

/*
 * Append a token to a sequence that thereby gets other rotary tables: compute all keys and values again.  Compute the
 * next token i of the step.
 */
static void recompute_prompt(struct meg_model *g, struct meg_model_kv_cache *c, int64_t slot, int64_t i,
                             const struct meg_sampling_args *args)
{
    struct model_kv_slot *q = &c->slot[slot];
    int64_t rows;

    q->tokens.len = 0;
    rows = run_prompt(g, c, slot, q->ids, c->short_positions + 1);
    compute_next(g, c, i, 1, rows - 1, 1, args);
}

/* Return whether the next token of a sequence is the first that exceeds c->short_positions. */
static bool exceeds_short(const struct meg_model_kv_cache *c, int64_t slot)
{
    return c->short_positions > 0 && meg_model_kv_cache_len(c, slot) == c->short_positions;
}

struct meg_decode_output meg_model_decode(struct meg_model *g, struct meg_model_kv_cache *c, const int64_t *slot,
                                          const int32_t *tokens, int64_t n, const struct meg_sampling_args *args)
{
    const int64_t most = c->op->decode_rows;
    int64_t rows = 0;

    for (int64_t i = 0; i < n; i++)
        keep_ids(c, slot[i], meg_model_kv_cache_len(c, slot[i]), tokens + i, 1);
    for (int64_t i = 0; i < n; i += rows) {
        int64_t computed;
        struct meg_batch x = { .b = 1, .tokens = c->input, .position_ids = c->position };

        for (rows = 0; rows < most && i + rows < n && !exceeds_short(c, slot[i + rows]);)
            rows++;
        if (rows == 0) {
            recompute_prompt(g, c, slot[i], i, args);
            rows = 1;
            continue;
        }
        computed = x.s = c->op->pads_decode_steps ? most : rows;
        for (int64_t j = 0; j < computed; j++) {
            const int64_t len = j < rows ? meg_model_kv_cache_len(c, slot[i + j]) : 0;

            c->input[j] = j < rows ? tokens[i + j] : 0;
            c->position[j] = position_row(c, len, len + 1);
        }
        forward_cached(g, c, slot + i, rows, 1, &x);
        compute_next(g, c, i, rows, 0, computed, args);
    }
    return output_of(c);
}
