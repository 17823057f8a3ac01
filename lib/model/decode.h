/*
 * decode.h - token-by-token decoding with a KV cache.  The cache has b slots; a slot holds the keys and values of
 * one sequence of up to s tokens.  The logits of a slot do not depend on the other slots, bit for bit, because rows are
 * computed in blocks of a fixed size.
 */
#ifndef MEG_MODEL_DECODE_H
#define MEG_MODEL_DECODE_H
#include "model/model.h"

MEG_BEGIN_DECLS

struct meg_model_kv_cache;
/*
 * Allocate an empty cache for g, whose run.is_training must be false.  s must be at most
 * g->conf.max_position_embeddings.  Fail with MEG_EFAIL if memory is exhausted.
 */
int meg_model_kv_cache_create(struct meg_model_kv_cache **out, struct meg_model *g, int64_t s, int64_t b,
                              struct meg_err *e);
void meg_model_kv_cache_close(struct meg_model_kv_cache *c);
/* Remove all tokens from a slot. */
void meg_model_kv_cache_clear(struct meg_model_kv_cache *c, int64_t slot);
/* Return the number of tokens in a slot. */
int64_t meg_model_kv_cache_len(const struct meg_model_kv_cache *c, int64_t slot);
/*
 * Run n tokens, 1 to run.s * run.b, through the model, and store their keys and values in an empty slot.  Write the
 * logits [v] f32 (host) of the last token, unless logits is NULL.
 */
void meg_model_prefill(struct meg_model *g, struct meg_model_kv_cache *c, int64_t slot, const int32_t *tokens,
                       int64_t n, float *logits);
/* Append one token to each of n different slots, and write the n tokens' logits [n,v] f32 (host). */
void meg_model_decode(struct meg_model *g, struct meg_model_kv_cache *c, const int64_t *slot, const int32_t *tokens,
                      int64_t n, float *logits);

MEG_END_DECLS
#endif
