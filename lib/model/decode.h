/*
 * decode.h - token-by-token decoding with a KV cache, by a GPT or by the decoder of a T5.  The cache has b slots; a
 * slot holds the keys and values of one sequence and, for the cross-attention of a T5, the keys and values of the
 * encoder's output.  The memory of a slot grows to the longest sequence that the slot has held.  On CPUs, the logits of
 * a slot do not depend on the other slots, bit for bit, because rows are computed in blocks of a fixed size.
 */
#pragma once
#include "model/model.h"

/* The results that meg_model_prefill and meg_model_decode compute for each next token. */
struct meg_decode_conf {
    bool returns_logits;    /* return logits in host memory */
    int64_t unpadded_vocab; /* sample ids below this number, at most the vocabulary size; 0: sample no token */
    bool has_logprobs;      /* compute the log-probability of each sampled id */
};

/*
 * The next tokens of n sequences, in host memory, and their logits; v is the vocabulary size, with padding.  The arrays
 * belong to the cache, and are valid until the next prefill or decode.  An array that is not requested is NULL.
 */
struct meg_decode_output {
    const float *logits;                   /* [n,v] */
    const struct meg_sampled_token *token; /* [n] */
};

struct meg_model_kv_cache;
/*
 * Create a cache of b empty slots for g, whose run.is_training must be false.  Slots have no memory yet.  *conf is
 * copied.
 */
struct meg_model_kv_cache *meg_model_kv_cache_create(const struct meg_model *g, int64_t b,
                                                     const struct meg_decode_conf *conf);
void meg_model_kv_cache_close(struct meg_model_kv_cache *c);
/* Return the number of tokens in a slot. */
int64_t meg_model_kv_cache_len(const struct meg_model_kv_cache *c, int64_t slot);
/*
 * Run the encoder of a T5 over a text of n tokens, 1 <= n <= max_position_embeddings, and store in a slot the keys and
 * values that the decoder's cross-attention computes from the output.  All sequences that begin in the slot until the
 * next call read them.  Fail like meg_model_prefill.
 */
int meg_model_encode(struct meg_model *g, struct meg_model_kv_cache *c, int64_t slot, const int32_t *tokens, int64_t n,
                     struct meg_err *e);
/* A prompt, with which a sequence of at most s tokens begins in a slot; 1 <= n <= s <= max_position_embeddings. */
struct meg_prefill {
    int64_t slot;
    const int32_t *tokens; /* [n] for a T5, the input of the decoder */
    int64_t n, s;
    const struct meg_sampling_args *args; /* [1] in host memory; read only if a token is sampled */
};
/*
 * Remove all tokens from the slot of a prompt, and begin its sequence there.  Grow the slot and the buffers of g
 * (meg_model_reserve) if they are too small for the sequence.  Run the prompt through the model, and store its keys and
 * values.  Unless out is NULL, compute *out for the token that follows.  For a T5, call meg_model_encode first.  Fail
 * with MEG_EFAIL if memory is exhausted; g and c can then only be closed.
 */
int meg_model_prefill(struct meg_model *g, struct meg_model_kv_cache *c, const struct meg_prefill *prompt,
                      struct meg_decode_output *out, struct meg_err *e);
/*
 * Append one token to each of n different slots, which have been prefilled, and return the tokens that follow.
 * args [n], in host memory, in the order of the slots, is read only if tokens are sampled.
 */
struct meg_decode_output meg_model_decode(struct meg_model *g, struct meg_model_kv_cache *c, const int64_t *slot,
                                          const int32_t *tokens, int64_t n, const struct meg_sampling_args *args);
