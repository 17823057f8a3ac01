/*
 * generate.h - autoregressive generation with continuous batching.  Each of a fixed number of slots holds the KV cache
 * of one sequence.  A prompt can be prefilled into a free slot at any time, and each decode step generates one token
 * for every active slot.  A continuation depends on its prompt and its request, but not on the other slots.  If the
 * request sets no seed, the continuation also depends on the number of the prompt.
 */
#pragma once
#include "infer/request.h"
#include "model/decode.h"
#include "tensor/token_sampler.h"
#include "tokenizer/tokenizer.h"

enum meg_finish_reason {
    MEG_FINISH_RUNNING,
    MEG_FINISH_STOP,  /* an EOS id was sampled (it is not stored in ids), or meg_generator_stop was called */
    MEG_FINISH_LENGTH /* max_tokens or the model's last position was reached */
};

/* The continuation of a prompt. */
struct meg_continuation {
    int64_t prompt; /* number of the prompt; selects the random numbers unless the request sets a seed */
    const struct meg_request *request; /* borrowed */
    int32_t *ids;                      /* [n] generated ids */
    float *logprob;                /* [n] log p of each id given all ids before it, in nats; NAN without has_logprobs */
    struct meg_token_logprob *top; /* [n,ntop] the model's most likely ids at the position of each id */
    int64_t n, cap;
    enum meg_finish_reason finish;
};

/*
 * meg_generator_open - create a generator; the KV caches of its slots grow with the sequences
 *   g               created with is_training = false; borrowed until close
 *   unpadded_vocab  exclusive upper bound of the ids that may be sampled; at most the model's vocabulary size
 *   eos_ids         ids that end a continuation, borrowed until close; NULL: none
 *   slots           number of sequences generated concurrently
 *   has_logprobs    compute the log-probability of each id
 *   ntop            number of most likely ids to keep for each position, from 0 to the model's vocabulary size; above 0
 *                   only with has_logprobs
 * The device samples the tokens of a step.  On a CPU, each of min(threads, slots, 16) threads uses 16 bytes for each id
 * of the vocabulary.  If ntop is above 0, the logits are copied to the host, and the generator allocates 4 bytes of
 * pinned memory for each slot and id of the vocabulary: with 64 slots and 256k ids, 64 MiB.
 */
struct meg_generator;
struct meg_generator *meg_generator_open(struct meg_model *g, int64_t unpadded_vocab, const struct meg_ids *eos_ids,
                                         int64_t slots, bool has_logprobs, int64_t ntop);
void meg_generator_close(struct meg_generator *gen);

/* Return the number of active slots. */
int64_t meg_generator_active(const struct meg_generator *gen);
bool meg_generator_has_free_slot(const struct meg_generator *gen);

/*
 * meg_generator_add - prefill a prompt of n ids into a free slot, which must exist
 *   n  number of ids, 1 <= n < max_position_embeddings
 *   c  continuation; zero except for c->prompt and c->request, which the caller sets.  This call samples the first
 *      token, and each meg_generator_step samples one more.  c is finished when c->finish is not MEG_FINISH_RUNNING.
 *      Until c is finished, c must not move.
 * The memory of the slot and of the model grows to n + c->request->max_tokens tokens, but at most
 * max_position_embeddings.  Returns MEG_EFAIL if memory is exhausted; the generator and the model can then only be
 * closed.  Returns MEG_EFAIL if the model's logits are not finite; the slot is then free again, and c must not be
 * continued.
 */
int meg_generator_add(struct meg_generator *gen, const int32_t *ids, int64_t n, struct meg_continuation *c,
                      struct meg_err *e);
/*
 * Sample one token for each active slot, and free the slots of finished continuations.  Returns MEG_EFAIL if the logits
 * of a slot are not finite.  That slot is then free, and the slots after it have no new token.
 */
int meg_generator_step(struct meg_generator *gen, struct meg_err *e);
/* Set c->finish to MEG_FINISH_STOP, and free the slot of c, if c has one. */
void meg_generator_stop(struct meg_generator *gen, struct meg_continuation *c);

void meg_continuation_free(struct meg_continuation *c);
