/*
 * fill_spans.h - predict the masked spans of a text, the task that T5 was trained for (Raffel et al. 2020).  Each
 * sentinel represents a span of any number of tokens.  The decoder predicts the spans in order, token by token.
 */
#pragma once
#include "eval/span_vocab.h"
#include "infer/model_load.h"
#include "infer/reply.h"
#include "model/decode.h"
#include "tensor/token_sampler.h"

/*
 * meg_fill_spans_predict - predict the spans of a text by greedy decoding
 *   m      ids that are at least m->unpadded_vocab and larger than every sentinel are padding, and never predicted
 *   cache  a cache for m->g; the contents of its slot 0 are replaced
 *   ids  in: the text, with the sentinels of its spans (meg_span_vocab_number); 1 to max_position_embeddings ids
 *        out: the text with the predicted tokens instead of the sentinels
 *   top  [spans,ntop]  out  for each span, the ntop most likely ids of its first token (meg_top_logprobs)
 * A span ends where the decoder predicts a sentinel or EOS, or when the decoder has max_position_embeddings tokens.
 * Returns MEG_EFORMAT if a span would begin after that, and MEG_EFAIL if the logits of the next token are not finite or
 * if memory is exhausted.
 */
int meg_fill_spans_predict(const struct meg_loaded_model *m, struct meg_model_kv_cache *cache,
                           const struct meg_span_vocab *v, struct meg_ids *ids, struct meg_token_logprob *top,
                           int64_t ntop, struct meg_err *e);
