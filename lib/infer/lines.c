/* lines.c - continue prompts that are lines of an input. */
#include "infer/lines.h"
#include <inttypes.h>
#include <stdlib.h>
#include "base/clock.h"
#include "base/log.h"
#include "infer/prompt.h"
#include "infer/scheduler.h"

enum { MAX_BATCH = 1024 };

const struct meg_opt meg_generate_opts[] = {
    { "input", 0, MEG_STR(struct meg_generate_conf, input), "FILE", "-",
      "read prompts from FILE, one per line; - is standard input" },
    MEG_ALIAS("sample-input-file", "input"),
    { "format", 0, MEG_ENUM(struct meg_generate_conf, format), "json|text", "json",
      "print each continuation as a JSON line or as text" },
    { "tokens-to-generate", 0, MEG_I64(struct meg_generate_conf, tokens_to_generate), "N", "64",
      "generate at most N tokens for each prompt" },
    MEG_ALIAS("num-tokens-to-generate", "tokens-to-generate"),
    MEG_ALIAS("out-seq-length", "tokens-to-generate"),
    { "return-log-probs", 0, MEG_BOOL(struct meg_generate_conf, return_log_probs), NULL, "no",
      "also print the log-probability of each token" },
    { "max-batch-size", 0, MEG_I64(struct meg_generate_conf, max_batch_size), "N", "8",
      "generate for at most N prompts at once" },
    { 0 }
};

int meg_generate_check(const struct meg_generate_conf *c, const struct meg_token_output_conf *output, struct meg_err *e)
{
    if (c->tokens_to_generate < 1)
        return meg_fail(e, MEG_EUSAGE,
                        "--tokens-to-generate %" PRId64
                        ": must be at least 1; to score a prompt without new tokens, use meg-eval --task logprobs",
                        c->tokens_to_generate);
    if (c->max_batch_size < 1 || c->max_batch_size > MAX_BATCH)
        return meg_fail(e, MEG_EUSAGE, "--max-batch-size %" PRId64 ": must be from 1 to %d", c->max_batch_size,
                        MAX_BATCH);
    if (c->format == MEG_REPLY_TEXT && (output->return_tokens || output->top_n_logprobs > 0))
        return meg_fail(e, MEG_EUSAGE, "--return-tokens and --top-n-logprobs require --format json");
    return 0;
}

/* The prompts of an input stream, and their replies. */
struct lines {
    const struct meg_generate_conf *conf;
    const struct meg_token_output_conf *output;
    struct meg_prompt_format format;
    struct meg_line_reader *in;
    struct meg_request defaults;
    struct meg_scheduler scheduler;
    struct meg_ids ids; /* ids of the prompt being read */
    struct meg_str out;
    int64_t tokens; /* number of tokens of the printed replies */
};

/*
 * Print the complete replies at the front of the queue.  In text format, also print the beginning of the first
 * incomplete reply: the text that later tokens cannot change.
 */
static int print_replies(struct lines *s, struct meg_err *e)
{
    const bool is_text = s->conf->format == MEG_REPLY_TEXT;
    struct meg_reply *reply;
    int r;

    if ((r = meg_scheduler_update(&s->scheduler, e)) < 0)
        return r;
    while (s->scheduler.first) {
        reply = &s->scheduler.first->reply;
        s->out.n = 0;
        if (is_text)
            meg_reply_add_text(&s->out, reply);
        else if (reply->is_complete)
            meg_reply_add_json(&s->out, reply, s->output, s->conf->return_log_probs);
        if (is_text && reply->is_complete)
            meg_str_add(&s->out, "\n", 1);
        if ((r = meg_write_stdout(s->out.s, s->out.n, e)) < 0 || !reply->is_complete)
            return r;
        s->tokens += reply->c.n;
        meg_scheduler_remove_first(&s->scheduler);
    }
    return 0;
}

/*
 * Read the next prompt into s->ids.  An empty prompt leaves s->ids empty; its continuation begins a new document.
 * Return 1, 0 at the end of the input, or an error code.
 */
static int read_prompt(struct lines *s, struct meg_request *request, struct meg_err *e)
{
    const int64_t positions = s->scheduler.m->g->conf.max_position_embeddings;
    char *text;
    size_t n;
    int r;

    s->ids.n = 0;
    if ((r = meg_line_reader_next(s->in, &text, &n, e)) <= 0)
        return r;
    r = meg_prompt_read(&s->format, &(struct meg_prompt_line){ s->in->name, s->in->line, text, n }, &s->ids, request,
                        e);
    if ((r = meg_line_reader_explain(r, s->in, e)) < 0)
        return r;
    if (s->ids.n >= positions)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: line %" PRId64 ": the prompt has %" PRId64
                        " tokens; it must be shorter than the maximum sequence length of the model, %" PRId64,
                        s->in->name, s->in->line, s->ids.n, positions);
    if (s->ids.n == 0 && s->scheduler.m->eod < 0)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: line %" PRId64
                        ": the prompt is empty, and the model has no end-of-document id to start from",
                        s->in->name, s->in->line);
    return 1;
}

/*
 * Read the next prompt, append a reply to the queue and prefill the prompt.  Return 1, 0 at the end of the input, or an
 * error code.
 */
static int start_reply(struct lines *s, struct meg_err *e)
{
    struct meg_queued_reply *q = meg_scheduler_new_reply(&s->defaults);
    struct meg_err undecodable;
    int r = read_prompt(s, &q->reply.request, e);

    if (r > 0 && meg_reply_begin(&q->reply, s->scheduler.m->tok, s->ids.v, s->ids.n, &undecodable) < 0 &&
        s->conf->format == MEG_REPLY_TEXT) {
        *e = undecodable; /* JSON replies do not contain the prompt's text */
        r = undecodable.code;
    }
    if (r <= 0) {
        meg_scheduler_discard(q);
        return r;
    }
    r = meg_scheduler_add(&s->scheduler, q, &s->ids, e);
    return r < 0 ? r : 1;
}

static int answer_all(struct lines *s, struct meg_err *e)
{
    struct meg_generator *gen = s->scheduler.gen;
    struct meg_err input_error = { 0 };
    bool is_open = true;
    int r;

    while (is_open || meg_generator_active(gen) > 0) {
        while (is_open && meg_generator_has_free_slot(gen) &&
               (meg_generator_active(gen) == 0 || meg_line_reader_is_ready(s->in))) {
            is_open = start_reply(s, &input_error) > 0;
            if ((r = print_replies(s, e)) < 0)
                return r;
        }
        if ((r = meg_generator_step(gen, e)) < 0 || (r = print_replies(s, e)) < 0)
            return r;
    }
    *e = input_error;
    return input_error.code;
}

int meg_generate_lines(const struct meg_generate_conf *c, const struct meg_token_output_conf *output,
                       const struct meg_sampling *sampling, const struct meg_loaded_model *m,
                       struct meg_line_reader *in, struct meg_err *e)
{
    const double began_s = meg_now_s();
    struct lines s = {
        .conf = c,
        .output = output,
        .format = { .key = "prompt",
                    .is_plain_allowed = true,
                    .tok = m->tok,
                    .vocab_size = m->g->conf.vocab_size,
                    .unpadded_vocab = m->unpadded_vocab },
        .in = in,
        .defaults = { .max_tokens = c->tokens_to_generate, .sampling = *sampling },
    };
    int r;

    meg_scheduler_init(&s.scheduler, m, c->max_batch_size, c->return_log_probs || output->top_n_logprobs > 0,
                       output->top_n_logprobs);
    r = answer_all(&s, e);
    meg_debug("%" PRId64 " prompts, %" PRId64 " tokens in %.2f s", s.scheduler.prompts, s.tokens,
              meg_now_s() - began_s);
    meg_scheduler_free(&s.scheduler);
    free(s.ids.v);
    meg_str_free(&s.out);
    return r;
}
