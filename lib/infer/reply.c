/*
 * reply.c - build the reply to a prompt: detokenize its continuation incrementally, find stop strings, and print text
 * or JSON.
 */
#define _GNU_SOURCE /* memmem */
#include "infer/reply.h"
#include <inttypes.h>
#include <string.h>
#include "io/json.h"
#include "unicode/utf8.h"

const struct meg_opt meg_token_output_opts[] = {
    { "return-tokens", 0, MEG_BOOL(struct meg_token_output_conf, return_tokens), NULL, "no",
      "also print the text of each token" },
    MEG_ALIAS("return-segments", "return-tokens"),
    { "top-n-logprobs", 0, MEG_I64(struct meg_token_output_conf, top_n_logprobs), "N", "0",
      "also print the N most likely token ids at each position, with their log-probabilities" },
    { 0 }
};

int meg_token_output_check(const struct meg_token_output_conf *c, const struct meg_tokenizer *tok, int64_t v,
                           struct meg_err *e)
{
    if (c->top_n_logprobs < 0 || c->top_n_logprobs > v)
        return meg_fail(e, MEG_EUSAGE,
                        "--top-n-logprobs %" PRId64 ": must be from 0 to %" PRId64 ", the size of the vocabulary",
                        c->top_n_logprobs, v);
    if (c->return_tokens && !tok)
        return meg_fail(e, MEG_EUSAGE,
                        "--return-tokens requires a tokenizer, and the model has none; specify one with "
                        "--tokenizer-type and its files");
    return 0;
}

static void add_token(struct meg_str *out, const struct meg_tokenizer *tok, int32_t id)
{
    struct meg_str bytes = { 0 }, text = { 0 };

    if (meg_tokenizer_token_text(tok, id, &bytes, NULL) < 0) {
        meg_json_add_null(out);
    } else {
        meg_utf8_add_replaced(&text, bytes.s, (int64_t)bytes.n);
        meg_json_add_string(out, text.n > 0 ? text.s : "", text.n);
    }
    meg_str_free(&bytes);
    meg_str_free(&text);
}

void meg_reply_add_tokens(struct meg_str *out, const struct meg_token_output_conf *output,
                          const struct meg_tokenizer *tok, const int32_t *ids, int64_t n)
{
    if (!output->return_tokens)
        return;
    meg_json_add_key(out, "tokens");
    meg_json_begin(out, '[');
    for (int64_t i = 0; i < n; i++)
        add_token(out, tok, ids[i]);
    meg_json_end(out, ']');
}

static void add_logprob(struct meg_str *out, const struct meg_token_output_conf *output,
                        const struct meg_tokenizer *tok, const struct meg_token_logprob *x)
{
    meg_json_begin(out, '{');
    meg_json_set_i64(out, "id", x->id);
    if (output->return_tokens) {
        meg_json_add_key(out, "token");
        add_token(out, tok, x->id);
    }
    meg_json_set_f64(out, "logprob", (double)x->logprob);
    meg_json_end(out, '}');
}

void meg_reply_add_top_logprobs(struct meg_str *out, const struct meg_token_output_conf *output,
                                const struct meg_tokenizer *tok, const struct meg_token_logprob *top, int64_t n)
{
    const int64_t ntop = output->top_n_logprobs;

    if (ntop == 0)
        return;
    meg_json_add_key(out, "top_logprobs");
    meg_json_begin(out, '[');
    for (int64_t i = 0; i < n; i++) {
        meg_json_begin(out, '[');
        for (int64_t k = 0; k < ntop; k++)
            add_logprob(out, output, tok, &top[i * ntop + k]);
        meg_json_end(out, ']');
    }
    meg_json_end(out, ']');
}

void meg_reply_free(struct meg_reply *r)
{
    meg_request_free(&r->request);
    meg_continuation_free(&r->c);
    meg_detok_free(&r->detok);
    meg_str_free(&r->prompt_text);
    meg_str_free(&r->pending);
    meg_str_free(&r->text);
}

static bool begins_with(const struct meg_str *s, const struct meg_str *with)
{
    return s->n >= with->n && (with->n == 0 || memcmp(s->s, with->s, with->n) == 0);
}

int meg_reply_begin(struct meg_reply *r, const struct meg_tokenizer *tok, const int32_t *ids, int64_t n,
                    struct meg_err *e)
{
    struct meg_str all = { 0 };
    int err;

    r->detok.tok = tok;
    if (!tok)
        return 0;
    if ((err = meg_detok_add(&r->detok, ids, n, false, &r->prompt_text, e)) == 0 &&
        (err = meg_tokenizer_decode(tok, ids, n, &all, e)) == 0 && begins_with(&all, &r->prompt_text))
        meg_str_add(&r->pending, all.s + r->prompt_text.n, all.n - r->prompt_text.n);
    meg_str_free(&all);
    return err;
}

/* Return how many bytes at the beginning of text belong to the prompt. */
static size_t prompt_bytes(const struct meg_reply *r, const struct meg_str *text)
{
    return begins_with(text, &r->pending) ? r->pending.n : 0;
}

static size_t longest_stop(const struct meg_request *q)
{
    size_t most = 0;

    for (size_t i = 0; i < q->nstop; i++)
        most = q->stop[i].n > most ? q->stop[i].n : most;
    return most;
}

/* Return the offset of the first stop string in text at or after offset `from`, or text->n if there is none. */
static size_t find_stop(const struct meg_request *q, const struct meg_str *text, size_t from)
{
    size_t first = text->n;

    for (size_t i = 0; i < q->nstop && from < text->n; i++) {
        const char *at = memmem(text->s + from, text->n - from, q->stop[i].s, q->stop[i].n);

        if (at && (size_t)(at - text->s) < first)
            first = (size_t)(at - text->s);
    }
    return first;
}

/* Append the text that detok still buffers, as if no id followed. */
static int add_pending(struct meg_str *out, const struct meg_detok *detok, struct meg_err *e)
{
    struct meg_detok copy = *detok;
    int err;

    copy.pending = (struct meg_str){ 0 };
    meg_str_add(&copy.pending, detok->pending.s, detok->pending.n);
    err = meg_detok_add(&copy, NULL, 0, true, out, e);
    meg_detok_free(&copy);
    return err;
}

/*
 * Truncate the text before the first stop string, and return 1.  Return 0 if there is no stop string.  Earlier calls
 * have searched the text up to offset `was`.  The search includes the text that the detokenizer still buffers.
 */
static int end_at_stop(struct meg_reply *r, size_t was, struct meg_err *e)
{
    const size_t reach = longest_stop(&r->request) - 1;
    struct meg_str now = { 0 };
    size_t from, at;
    int err = 0;

    meg_str_add(&now, r->text.s, r->text.n);
    if (!r->is_complete && (err = add_pending(&now, &r->detok, e)) < 0)
        goto out;
    from = prompt_bytes(r, &now);
    if (was > reach && was - reach > from)
        from = was - reach;
    at = find_stop(&r->request, &now, from);
    if (at < now.n) {
        r->text.n = 0;
        meg_str_add(&r->text, now.s, at);
        r->is_complete = true;
        err = 1;
    }
out:
    meg_str_free(&now);
    return err;
}

int meg_reply_update(struct meg_reply *r, struct meg_err *e)
{
    const size_t was = r->text.n;
    int err;

    if (r->is_complete)
        return 0;
    r->is_complete = r->c.finish != MEG_FINISH_RUNNING;
    if (!r->detok.tok)
        return 0;
    err = meg_detok_add(&r->detok, r->c.ids + r->ndecoded, r->c.n - r->ndecoded, r->is_complete, &r->text, e);
    if (err < 0)
        return err;
    r->ndecoded = r->c.n;
    return r->request.nstop > 0 ? end_at_stop(r, was, e) : 0;
}

void meg_reply_add_text(struct meg_str *out, struct meg_reply *r)
{
    const size_t reach = r->is_complete || r->request.nstop == 0 ? 0 : longest_stop(&r->request) - 1;
    size_t end = r->text.n > reach ? r->text.n - reach : 0;

    while (end > 0 && end < r->text.n && (r->text.s[end] & 0xC0) == 0x80)
        end--; /* do not split a UTF-8 character */
    meg_str_add(out, r->prompt_text.s, r->prompt_text.n);
    r->prompt_text.n = 0;
    if (end > r->nprinted) {
        meg_str_add(out, r->text.s + r->nprinted, end - r->nprinted);
        r->nprinted = end;
    }
}

void meg_reply_add_json(struct meg_str *out, const struct meg_reply *r, const struct meg_token_output_conf *output,
                        bool with_logprobs)
{
    const struct meg_continuation *c = &r->c;
    const size_t skip = prompt_bytes(r, &r->text);

    MEG_ASSERT(r->is_complete);
    meg_json_begin(out, '{');
    if (r->detok.tok) {
        meg_json_add_key(out, "text");
        meg_json_add_string(out, r->text.n > 0 ? r->text.s + skip : "", r->text.n - skip);
    }
    meg_json_add_key(out, "ids");
    meg_json_add_ids(out, c->ids, c->n);
    meg_reply_add_tokens(out, output, r->detok.tok, c->ids, c->n);
    if (with_logprobs) {
        meg_json_add_key(out, "logprobs");
        meg_json_add_floats(out, c->logprob, c->n);
    }
    meg_reply_add_top_logprobs(out, output, r->detok.tok, c->top, c->n);
    meg_json_set_str(out, "finish", c->finish == MEG_FINISH_STOP ? "stop" : "length");
    meg_json_end(out, '}');
    meg_str_add(out, "\n", 1);
}
