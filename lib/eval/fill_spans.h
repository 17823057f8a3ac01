/*
 * fill_spans.h - predict the masked spans of a text, the task that T5 was trained for (Raffel et al. 2020).  Each mask
 * represents a span of any number of tokens.  The decoder predicts the spans in order, token by token.
 */
#ifndef MEG_EVAL_FILL_SPANS_H
#define MEG_EVAL_FILL_SPANS_H
#include "data/masked/masked_vocab.h"
#include "infer/model_load.h"
#include "infer/reply.h"

MEG_BEGIN_DECLS

/*
 * meg_fill_spans_predict - predict the spans of a text by greedy decoding
 *   ids  the text, with the id of the mask instead of each of the m spans; at most max_position_embeddings ids
 *   v    BOS, EOS, the mask, and at least m sentinels
 *   filled  out  appended: the text with the predicted tokens instead of the masks
 *   top  [m,ntop]  out  for each span, the ntop most likely ids of its first token (meg_top_logprobs)
 * A span ends where the decoder predicts a sentinel or EOS, or when the decoder has max_position_embeddings tokens.
 * Returns MEG_EFORMAT if a span would begin after that, and MEG_EFAIL if the logits of the next token are not finite or
 * if memory is exhausted.
 */
int meg_fill_spans_predict(struct meg_model *g, const struct meg_ids *ids, const struct meg_masked_vocab *v,
                           struct meg_ids *filled, struct meg_token_logprob *top, int64_t ntop, struct meg_err *e);

MEG_END_DECLS
#endif
