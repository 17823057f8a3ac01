/*
 * reply.h - the answer to a prompt: incremental detokenization of its continuation, stop strings, and the
 * bytes that are printed.
 */
#ifndef MEG_INFER_REPLY_H
#define MEG_INFER_REPLY_H
#include "infer/generate.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

/* What is printed of each token beside its id. */
struct meg_token_output_conf {
    bool return_tokens;     /* --return-tokens */
    int64_t top_n_logprobs; /* --top-n-logprobs */
};
extern const struct meg_opt meg_token_output_opts[];

/* Refuse what the model (of v ids) or the tokenizer (or NULL) cannot give: MEG_EUSAGE. */
int meg_token_output_check(const struct meg_token_output_conf *c, const struct meg_tokenizer *tok, int64_t v,
                           struct meg_err *e);

/* Starts as { 0 }; c.prompt and request are the caller's, and c.request points to request. */
struct meg_reply {
    struct meg_request request;
    struct meg_continuation c;
    struct meg_detok detok; /* of the prompt's ids and then of c.ids; without a tokenizer there is no text */
    struct meg_str head;    /* text of the prompt that no later id changes */
    struct meg_str held;    /* the rest of it, as it would be if the prompt ended there */
    struct meg_str text;    /* what c.ids add to head: of a running reply what no later id changes, of a
                                    complete one all of it, up to the stop string */
    int64_t ndecoded;       /* ids of c that are in text */
    size_t nprinted;        /* bytes of text that meg_reply_add_text gave */
    bool is_complete;
};
void meg_reply_free(struct meg_reply *r);

/* Decode the prompt's ids [n].  MEG_EFORMAT when the tokenizer lacks one: c.ids are then decoded by themselves. */
int meg_reply_begin(struct meg_reply *r, const struct meg_tokenizer *tok, const int32_t *ids, int64_t n,
                    struct meg_err *e);

/*
 * meg_reply_update - decode what was generated since the last call
 * 1 when the text has a stop string of the request, and is now cut before it: the caller calls
 * meg_generator_stop; 0 when it has none.  A reply is complete after that, or once c.finish is not MEG_FINISH_RUNNING.
 */
int meg_reply_update(struct meg_reply *r, struct meg_err *e);

/* Append the text of prompt and continuation that earlier calls did not give, as far as no stop string may reach. */
void meg_reply_add_text(struct meg_str *out, struct meg_reply *r);

/*
 * meg_reply_add_json - append a complete reply as a JSON line: "text" (the continuation's, where there is a
 * tokenizer), "ids", "tokens", "logprobs" (nats) and "top_logprobs" where wanted, and "finish", which is "stop" or
 * "length".
 */
void meg_reply_add_json(struct meg_str *out, const struct meg_reply *r, const struct meg_token_output_conf *report,
                        bool with_logprobs);

/*
 * meg_reply_add_tokens - append "tokens":[...], the text of each of ids [n] by itself, null for one that tok lacks,
 * where report wants it
 * meg_reply_add_top_logprobs - append "top_logprobs":[[{"id":1,"token":"a","logprob":-0.5},...],...] of n positions, with
 * "token" where tokens are wanted, where report wants it
 *   top  [n,report->top_n_logprobs]
 */
void meg_reply_add_tokens(struct meg_str *out, const struct meg_token_output_conf *report,
                          const struct meg_tokenizer *tok, const int32_t *ids, int64_t n);
void meg_reply_add_top_logprobs(struct meg_str *out, const struct meg_token_output_conf *report,
                                const struct meg_tokenizer *tok, const struct meg_token_logprob *top, int64_t n);

MEG_END_DECLS
#endif
