/*
 * generate.h - continuing prompts token by token: a fixed number of slots, each with the keys and
 * values of one sequence; a prompt enters a free slot at any time, and every step gives all
 * sequences in slots one token more.  What a prompt becomes depends on its own tokens, its request
 * and, unless the request has a seed, its number, and not on what is in the other slots.
 */
#ifndef MEG_INFER_GENERATE_H
#define MEG_INFER_GENERATE_H
#include "infer/request.h"
#include "model/gpt.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

enum meg_finish_reason {
    MEG_FINISH_RUNNING,
    MEG_FINISH_STOP,  /* an id that ends it was drawn, which is not among the ids, or meg_generator_stop
                                    was called */
    MEG_FINISH_LENGTH /* as many tokens as asked for, or as the model has positions */
};

/* One continuation. */
struct meg_continuation {
    int64_t prompt;                    /* number of the prompt, which its draws depend on */
    const struct meg_request *request; /* borrowed */
    int32_t *ids;                      /* [n] what was generated */
    float *logprob;                    /* [n] log p of each id given all before it, in nats */
    struct meg_token_logprob *top;     /* [n,ntop] the likeliest at the position of each id, of all ids of the model */
    int64_t n, cap;
    enum meg_finish_reason finish;
};

/*
 * meg_generator_open - g is borrowed until close
 *   drawable   ids below it may be drawn, at most the model's vocabulary
 *   ends       ids that end a continuation, borrowed until close; NULL: none does
 *   slots      sequences under way at once
 *   ntop       likeliest ids that are kept of each position, at most the model's vocabulary
 * g must have been created for is_training = false.
 */
struct meg_generator;
int meg_generator_open(struct meg_generator **out, struct meg_gpt *g, int64_t unpadded_vocab,
                       const struct meg_ids *ends, int64_t slots, int64_t ntop, struct meg_err *e);
void meg_generator_close(struct meg_generator *gen);

/* Sequences under way. */
int64_t meg_generator_active(const struct meg_generator *gen);
bool meg_generator_has_free_slot(const struct meg_generator *gen);

/*
 * meg_generator_add - start the prompt of n >= 1 ids, fewer than the model has positions; needs room
 *   c  filled with the first token here and with the others by meg_generator_step, until its
 *      finish is not MEG_FINISH_RUNNING; c->prompt and c->request are the caller's; stays where it is until then
 * MEG_EFAIL when the model's logits are not finite.
 */
int meg_generator_add(struct meg_generator *gen, const int32_t *ids, int64_t n, struct meg_continuation *c,
                      struct meg_err *e);
/* One token for each sequence under way. */
int meg_generator_step(struct meg_generator *gen, struct meg_err *e);
/* End c as MEG_FINISH_STOP, and free its slot where it has one. */
void meg_generator_stop(struct meg_generator *gen, struct meg_continuation *c);

void meg_continuation_free(struct meg_continuation *c);

MEG_END_DECLS
#endif
