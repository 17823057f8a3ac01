/*
 * fill_mask.h - predict the masked tokens of a text, the task that BERT was trained for (Devlin et al. 2019).  Each mask
 * is predicted from all other tokens, while the other masks remain masked.
 */
#ifndef MEG_EVAL_FILL_MASK_H
#define MEG_EVAL_FILL_MASK_H
#include "infer/model_load.h"
#include "infer/reply.h"

MEG_BEGIN_DECLS

/*
 * meg_fill_mask_encode - append the ids of CLS text SEP
 *   text  [n]  UTF-8.  The text of the tokenizer's mask token (BERT: [MASK]) and of its separator is encoded as that
 *              token.  The separator divides the text into the two segments of BERT.
 * Returns the errors of meg_tokenizer_encode.
 */
int meg_fill_mask_encode(struct meg_tokenizer *tok, const char *text, int64_t n, struct meg_ids *ids,
                         struct meg_err *e);

/*
 * meg_fill_mask_predict - replace each mask by its most likely token, and list the most likely tokens
 *   ids  [n]     in/out  1 <= n <= max_position_embeddings
 *   special      ids of the mask and of the separator: tokens after the first separator have token type 1
 *   top  [m,ntop]  out   for each of the m masks, in order, the ntop most likely ids (meg_top_logprobs)
 * Returns MEG_EFAIL if a logit is not finite, or if memory is exhausted.
 */
int meg_fill_mask_predict(struct meg_model *g, int32_t *ids, int64_t n, const struct meg_tok_special_ids *special,
                          struct meg_token_logprob *top, int64_t ntop, struct meg_err *e);

/*
 * meg_fill_mask - fill the masks of each line of an input, and write a JSON line with the filled text, its ids and the
 * most likely tokens of each mask
 * Returns MEG_EUSAGE if the tokenizer has no mask token, MEG_EFORMAT for a line that is invalid, has no mask or is too
 * long, MEG_EFAIL if a logit is not finite, and MEG_EIO if reading or writing fails.
 */
int meg_fill_mask(const char *input, const struct meg_token_output_conf *output, const struct meg_loaded_model *m,
                  struct meg_err *e);

MEG_END_DECLS
#endif
