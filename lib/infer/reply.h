/*
 * reply.h - what is answered to a prompt, as bytes to be written.
 */
#ifndef MEG_INFER_REPLY_H
#define MEG_INFER_REPLY_H
#include "infer/generate.h"
#include "infer/prompt.h"

MEG_BEGIN_DECLS

/*
 * One JSON line of a finished continuation: "text", "ids", "logprobs" (nats, where wanted) and
 * "finish", which is "stop" or "length".
 *   detok  has seen the prompt, if any: the text is what the ids add to the prompt's; NULL where
 *          there is no tokenizer and so no text
 *   held   what detok holds back of the prompt's text, as it were if the prompt ended there: where the
 *          text begins with it, it is left out
 */
int meg_reply_json(struct meg_str *out, const struct meg_continuation *c, struct meg_detok *detok,
                   const struct meg_str *held, bool with_logprobs, struct meg_err *e);

/* JSON arrays; floats with the nine significant digits that give them back. */
void meg_json_add_floats(struct meg_str *out, const float *x, int64_t n);
void meg_json_add_ids(struct meg_str *out, const int32_t *ids, int64_t n);

MEG_END_DECLS
#endif
