/*
 * fill_mask.h - predict the masked tokens of a text, the task that BERT was trained for (Devlin et al. 2019).  Each
 * mask is predicted from all other tokens, while the other masks remain masked.  With a T5, meg_fill_mask predicts a
 * span for each mask instead (fill_spans.h).
 */
#pragma once
#include "infer/model_load.h"
#include "infer/reply.h"
#include "tensor/token_sampler.h"

/*
 * meg_fill_mask_predict - replace each mask by its most likely token, and list the most likely tokens
 *   m            ids from m->unpadded_vocab on are padding, and neither predicted nor listed
 *   ids  [n]     in/out  1 <= n <= max_position_embeddings
 *   special      ids of the mask and of the separator: tokens after the first separator have token type 1
 *   top  [masks,ntop]  out   for each mask, in order, the ntop most likely ids (meg_top_logprobs)
 * Returns MEG_EFAIL if the logits of a mask are not finite, or if memory is exhausted.
 */
int meg_fill_mask_predict(const struct meg_loaded_model *m, int32_t *ids, int64_t n,
                          const struct meg_tok_special_ids *special, struct meg_token_logprob *top, int64_t ntop,
                          struct meg_err *e);

/*
 * meg_fill_mask - fill the masks of each line of an input, and write a JSON line to standard output with the filled
 * text, its ids and the most likely tokens of each mask (T5: of the first token of each span)
 *   input   path of the file; "-" is standard input
 *   output  if top_n_logprobs was not given, 5 tokens are listed for each mask
 * Returns MEG_EUSAGE if there is no tokenizer or it has no mask token (T5: see meg_span_vocab_make), or `output` is
 * invalid (meg_token_output_check); MEG_EFORMAT for a line that is invalid, is too long, has no mask or, for T5, has
 * more masks than sentinels; MEG_EFAIL if the logits of a mask are not finite or memory is exhausted; MEG_ENOENT or
 * MEG_EIO if reading or writing fails.
 */
int meg_fill_mask(const char *input, const struct meg_token_output_conf *output, const struct meg_loaded_model *m,
                  struct meg_err *e);
