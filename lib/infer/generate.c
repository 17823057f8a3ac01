/* generate.c - autoregressive generation with continuous batching. */
#include "infer/generate.h"
#include <inttypes.h>
#include <stdlib.h>
#include "base/mem.h"

struct meg_generator {
    struct meg_model *g;
    struct meg_model_kv_cache *cache;
    int64_t slots, active, ntop;
    const struct meg_ids *eos_ids;
    struct meg_continuation **slot; /* [slots] NULL: free */
    int64_t *active_slot;           /* [slots] indices of the slots active in the current step */
    int32_t *input_token;           /* [slots] input token of each active slot */
    struct meg_sampling_args *args; /* [slots] arguments that sample the next token of each active slot */
    int32_t *heap;                  /* [v] scratch */
};

struct meg_generator *meg_generator_open(struct meg_model *g, int64_t unpadded_vocab, const struct meg_ids *eos_ids,
                                         int64_t slots, bool has_logprobs, int64_t ntop)
{
    const struct meg_decode_conf conf = { .returns_logits = ntop > 0,
                                          .unpadded_vocab = unpadded_vocab,
                                          .has_logprobs = has_logprobs };
    struct meg_generator *gen = meg_new(sizeof *gen);
    int64_t v = g->conf.vocab_size;

    MEG_ASSERT_LT(0, unpadded_vocab);
    MEG_ASSERT_LE(unpadded_vocab, v);
    MEG_ASSERT_LT(0, slots);
    MEG_ASSERT_LE(0, ntop);
    MEG_ASSERT(has_logprobs || ntop == 0);
    MEG_ASSERT_LE(ntop, v);
    gen->g = g;
    gen->slots = slots;
    gen->eos_ids = eos_ids;
    gen->ntop = ntop;
    gen->slot = meg_new((size_t)slots * sizeof *gen->slot);
    gen->active_slot = meg_new((size_t)slots * sizeof *gen->active_slot);
    gen->input_token = meg_new((size_t)slots * sizeof *gen->input_token);
    gen->args = meg_new((size_t)slots * sizeof *gen->args);
    gen->heap = meg_new((size_t)v * sizeof *gen->heap);
    gen->cache = meg_model_kv_cache_create(g, slots, &conf);
    return gen;
}

void meg_generator_close(struct meg_generator *gen)
{
    if (!gen)
        return;
    meg_model_kv_cache_close(gen->cache);
    free(gen->slot);
    free(gen->active_slot);
    free(gen->input_token);
    free(gen->args);
    free(gen->heap);
    free(gen);
}

int64_t meg_generator_active(const struct meg_generator *gen)
{
    return gen->active;
}

bool meg_generator_has_free_slot(const struct meg_generator *gen)
{
    return gen->active < gen->slots;
}

/* Append a token, which was sampled from logits [v], to c.  logits is read only if gen->ntop is above 0. */
static void append(struct meg_generator *gen, struct meg_continuation *c, const float *logits,
                   struct meg_sampled_token token)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        c->ids = meg_realloc_array(c->ids, (size_t)c->cap, sizeof *c->ids);
        c->logprob = meg_realloc_array(c->logprob, (size_t)c->cap, sizeof *c->logprob);
        c->top = meg_realloc_array(c->top, (size_t)(c->cap * gen->ntop), sizeof *c->top);
    }
    if (gen->ntop > 0)
        meg_top_logprobs(c->top + c->n * gen->ntop, gen->ntop, logits, gen->g->conf.vocab_size, token.id, token.logprob,
                         gen->heap);
    c->ids[c->n] = token.id;
    c->logprob[c->n++] = (float)token.logprob;
}

static void free_slot(struct meg_generator *gen, int64_t slot)
{
    gen->slot[slot] = NULL;
    gen->active--;
}

static bool is_eos(const struct meg_generator *gen, int32_t id)
{
    for (int64_t i = 0; gen->eos_ids && i < gen->eos_ids->n; i++)
        if (gen->eos_ids->v[i] == id)
            return true;
    return false;
}

static struct meg_sampling_args sampling_args(const struct meg_continuation *c)
{
    return meg_sampling_args_of(&c->request->sampling, c->request->has_seed ? 0 : c->prompt, c->n);
}

/*
 * Append token i of the output of a step to the continuation in a slot, unless the token is EOS.  Free the slot if the
 * continuation ends or the logits are not finite.
 */
static int append_next(struct meg_generator *gen, int64_t slot, const struct meg_decode_output *out, int64_t i,
                       struct meg_err *e)
{
    const struct meg_sampled_token token = out->token[i];
    struct meg_continuation *c = gen->slot[slot];
    int64_t len = meg_model_kv_cache_len(gen->cache, slot);
    int r = 0;

    if (token.id < 0) {
        r = meg_fail(e, MEG_EFAIL,
                     "logits are not finite after %" PRId64 " tokens; check the checkpoint for NaN or Inf", len);
    } else if (is_eos(gen, token.id)) {
        c->finish = MEG_FINISH_STOP;
    } else {
        append(gen, c, gen->ntop > 0 ? out->logits + i * gen->g->conf.vocab_size : NULL, token);
        if (c->n >= c->request->max_tokens || len + 1 == gen->g->conf.max_position_embeddings)
            c->finish = MEG_FINISH_LENGTH;
    }
    if (r < 0 || c->finish != MEG_FINISH_RUNNING)
        free_slot(gen, slot);
    return r;
}

int meg_generator_add(struct meg_generator *gen, const int32_t *ids, int64_t n, struct meg_continuation *c,
                      struct meg_err *e)
{
    const int64_t positions = gen->g->conf.max_position_embeddings, max_tokens = c->request->max_tokens;
    const struct meg_sampling_args args = sampling_args(c);
    struct meg_prefill prompt = { .tokens = ids, .n = n, .args = &args };
    struct meg_decode_output out;
    int r;

    MEG_ASSERT(meg_generator_has_free_slot(gen));
    MEG_ASSERT_LT(n, positions);
    prompt.s = max_tokens < positions - n ? n + max_tokens : positions;
    while (gen->slot[prompt.slot])
        prompt.slot++;
    if ((r = meg_model_prefill(gen->g, gen->cache, &prompt, &out, e)) < 0)
        return r;
    gen->slot[prompt.slot] = c;
    gen->active++;
    return append_next(gen, prompt.slot, &out, 0, e);
}

int meg_generator_step(struct meg_generator *gen, struct meg_err *e)
{
    struct meg_decode_output out;
    int64_t i, n = 0;
    int r;

    for (i = 0; i < gen->slots; i++)
        if (gen->slot[i]) {
            gen->active_slot[n] = i;
            gen->args[n] = sampling_args(gen->slot[i]);
            gen->input_token[n++] = gen->slot[i]->ids[gen->slot[i]->n - 1];
        }
    if (n == 0)
        return 0;
    out = meg_model_decode(gen->g, gen->cache, gen->active_slot, gen->input_token, n, gen->args);
    for (i = 0; i < n; i++)
        if ((r = append_next(gen, gen->active_slot[i], &out, i, e)) < 0)
            return r;
    return 0;
}

void meg_generator_stop(struct meg_generator *gen, struct meg_continuation *c)
{
    int64_t i;

    c->finish = MEG_FINISH_STOP;
    for (i = 0; i < gen->slots; i++)
        if (gen->slot[i] == c)
            free_slot(gen, i);
}

void meg_continuation_free(struct meg_continuation *c)
{
    free(c->ids);
    free(c->logprob);
    free(c->top);
    *c = (struct meg_continuation){ 0 };
}
