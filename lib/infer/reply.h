/*
 * reply.h - build the reply to a prompt: detokenize its continuation incrementally, find stop strings, and print text
 * or JSON.
 */
#pragma once
#include "infer/generate.h"
#include "tokenizer/tokenizer.h"

/* Options that select what is printed for each token in addition to its id. */
struct meg_token_output_conf {
    bool return_tokens;     /* --return-tokens */
    int64_t top_n_logprobs; /* --top-n-logprobs */
};
extern const struct meg_opt meg_token_output_opts[];

/*
 * Return MEG_EUSAGE if top_n_logprobs is not in [0, v], or if return_tokens is set and tok is NULL.  v is the
 * number of ids that may be listed.
 */
int meg_token_output_check(const struct meg_token_output_conf *c, const struct meg_tokenizer *tok, int64_t v,
                           struct meg_err *e);

/* A reply.  Initialize with { 0 }, then set `request`, c.prompt and c.request, a pointer to `request`. */
struct meg_reply {
    struct meg_request request;
    struct meg_continuation c;
    struct meg_detok detok;     /* decodes the prompt's ids, then c.ids; unused without a tokenizer */
    struct meg_str prompt_text; /* text of the prompt that no later id can change; meg_reply_add_text clears it */
    struct meg_str pending;     /* rest of the prompt's text, decoded as if no id followed */
    /*
     * text that follows prompt_text.  During generation, `text` contains only the part that no later id can change.
     * When the reply is complete, `text` contains everything up to the stop string, if one was found.
     */
    struct meg_str text;
    int64_t ndecoded; /* number of ids of c decoded into text */
    size_t nprinted;  /* bytes of text that meg_reply_add_text has appended */
    bool is_complete;
};
void meg_reply_free(struct meg_reply *r);

/*
 * Set the tokenizer of r, and decode the prompt's ids [n].  If tok is NULL, the reply has no text.  Returns MEG_EFORMAT
 * if the tokenizer lacks one of the prompt's ids.  After this error, c.ids are decoded without the prompt.
 */
int meg_reply_begin(struct meg_reply *r, const struct meg_tokenizer *tok, const int32_t *ids, int64_t n,
                    struct meg_err *e);

/*
 * meg_reply_update - decode the ids generated since the last call and search the text for stop strings
 * Returns 1 if it found a stop string.  The text then ends before the stop string, and the caller must call
 * meg_generator_stop.  Returns 0 if it found no stop string, or the error of the detokenizer.  The reply is complete
 * after a return of 1, or once c.finish is not MEG_FINISH_RUNNING.
 */
int meg_reply_update(struct meg_reply *r, struct meg_err *e);

/*
 * Append the text that earlier calls have not appended: text of the prompt and of the continuation.  Hold back a suffix
 * that may be the beginning of a stop string.
 */
void meg_reply_add_text(struct meg_str *out, struct meg_reply *r);

/*
 * meg_reply_add_json - append a complete reply as a JSON line with the members
 *   "text"                    the continuation, if there is a tokenizer
 *   "ids"                     the generated ids
 *   "tokens", "top_logprobs"  if `output` requests them
 *   "logprobs"                in nats, if with_logprobs is true
 *   "finish"                  "stop" or "length"
 */
void meg_reply_add_json(struct meg_str *out, const struct meg_reply *r, const struct meg_token_output_conf *output,
                        bool with_logprobs);

/*
 * Append a member to an open JSON object if `output` requests the member:
 * meg_reply_add_tokens - "tokens":[...], the text of each id in ids [n], decoded separately; null if tok lacks the id
 * meg_reply_add_top_logprobs - "top_logprobs":[[{"id":1,"token":"a","logprob":-0.5},...],...] for n positions; "token"
 * is present if output->return_tokens is set
 *   top  [n,output->top_n_logprobs]
 */
void meg_reply_add_tokens(struct meg_str *out, const struct meg_token_output_conf *output,
                          const struct meg_tokenizer *tok, const int32_t *ids, int64_t n);
void meg_reply_add_top_logprobs(struct meg_str *out, const struct meg_token_output_conf *output,
                                const struct meg_tokenizer *tok, const struct meg_token_logprob *top, int64_t n);
