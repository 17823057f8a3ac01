/* meg-generate: continue prompts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "infer/model_load.h"
#include "infer/prompt.h"
#include "infer/reply.h"
#include "io/line_reader.h"

enum { MAX_BATCH = 1024 };

struct conf {
    const char *input, *format;
    int64_t tokens_to_generate, max_batch_size;
    bool return_log_probs;
};
static const struct meg_opt own_opts[] = {
    { "input", 0, MEG_STR(struct conf, input), "FILE", "-", "prompts, a line each; - is standard input" },
    MEG_ALIAS("sample-input-file", "input"),
    { "format", 0, MEG_STR(struct conf, format), "json|text", "json", "how a continuation is printed" },
    { "tokens-to-generate", 0, MEG_I64(struct conf, tokens_to_generate), "N", "64",
      "most tokens to generate for a prompt" },
    MEG_ALIAS("num-tokens-to-generate", "tokens-to-generate"),
    MEG_ALIAS("out-seq-length", "tokens-to-generate"),
    { "return-log-probs", 0, MEG_BOOL(struct conf, return_log_probs), NULL, "no",
      "print the log-probability of each token, too" },
    { "max-batch-size", 0, MEG_I64(struct conf, max_batch_size), "N", "8", "prompts continued at once" },
    { 0 }
};

/* A prompt under way or waiting for those before it to be printed. */
struct waiting {
    struct waiting *next;
    struct meg_reply reply;
};

struct job {
    const struct conf *conf;
    const struct meg_token_output_conf *report;
    const struct meg_loaded_model *m;
    struct meg_prompt_format rule;
    struct meg_line_reader in;
    struct meg_request defaults;
    struct meg_generator *gen;
    struct waiting *first, **last; /* in the order of the input */
    struct meg_ids ids;
    struct meg_str out;
    int64_t prompts, tokens;
};

static int write_out(struct meg_str *out, struct meg_err *e)
{
    if (out->n > 0 && (fwrite(out->s, 1, out->n, stdout) != out->n || fflush(stdout) != 0))
        return meg_fail_errno(e, "standard output");
    out->n = 0;
    return MEG_OK;
}

/* The first reply is printed, or never will be. */
static void drop_first(struct job *j)
{
    struct waiting *w = j->first;

    if (!(j->first = w->next))
        j->last = &j->first;
    meg_reply_free(&w->reply);
    free(w);
}

/* Decode what was generated, and end the replies that have a stop string. */
static int update(struct job *j, struct meg_err *e)
{
    struct waiting *w;
    int r;

    for (w = j->first; w; w = w->next) {
        if ((r = meg_reply_update(&w->reply, e)) < 0)
            return r;
        if (r > 0)
            meg_generator_stop(j->gen, &w->reply.c);
    }
    return MEG_OK;
}

/* Print what can be printed: of the first reply, as far as it is; of those behind it, when it is done. */
static int print(struct job *j, struct meg_err *e)
{
    const bool is_text = strcmp(j->conf->format, "text") == 0;
    struct meg_reply *r;
    int err;

    if ((err = update(j, e)) < 0)
        return err;
    while (j->first) {
        r = &j->first->reply;
        if (is_text)
            meg_reply_add_text(&j->out, r);
        else if (r->is_complete)
            meg_reply_add_json(&j->out, r, j->report, j->conf->return_log_probs);
        if (is_text && r->is_complete)
            meg_str_add(&j->out, "\n", 1);
        if ((err = write_out(&j->out, e)) < 0 || !r->is_complete)
            return err;
        j->tokens += r->c.n;
        drop_first(j);
    }
    return MEG_OK;
}

static int too_long(const struct job *j, int64_t positions, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT,
                    "%s: line %lld: a prompt of %lld tokens; the model has %lld positions, and the "
                    "prompt must leave one",
                    j->in.name, (long long)j->in.line, (long long)j->ids.n, (long long)positions);
}

/* Read the prompt of the next line; an empty one begins a document.  1, or 0 at the end of the input. */
static int read_prompt(struct job *j, struct meg_request *request, struct meg_err *e)
{
    const int64_t positions = j->m->g->conf.max_position_embeddings;
    char *text;
    size_t n;
    int err;

    j->ids.n = 0;
    if ((err = meg_line_reader_next(&j->in, &text, &n, e)) <= 0 ||
        (err = meg_prompt_read(&j->rule, j->in.name, j->in.line, text, n, &j->ids, request, e)) < 0)
        return err;
    if (j->ids.n >= positions)
        return too_long(j, positions, e);
    if (j->ids.n == 0 && j->m->eod < 0)
        return meg_fail(e, MEG_EFORMAT, "%s: line %lld: an empty prompt, and no end-of-document id to begin from",
                        j->in.name, (long long)j->in.line);
    return 1;
}

/* Start the prompt of the next line.  1, or 0 at the end of the input. */
static int start(struct job *j, struct meg_err *e)
{
    const bool is_text = strcmp(j->conf->format, "text") == 0;
    struct waiting *w = meg_new(sizeof *w);
    struct meg_reply *r = &w->reply;
    struct meg_err why;
    int err;

    meg_request_init(&r->request, &j->defaults);
    err = read_prompt(j, &r->request, e);
    if (err > 0 && meg_reply_begin(r, j->m->tok, j->ids.v, j->ids.n, &why) < 0 && is_text) {
        *e = why; /* a JSON reply has no text of the prompt */
        err = why.code;
    }
    if (err <= 0) {
        meg_reply_free(r);
        free(w);
        return err;
    }
    *j->last = w;
    j->last = &w->next;
    r->c.prompt = j->prompts++;
    r->c.request = &r->request;
    err = j->ids.n > 0 ? meg_generator_add(j->gen, j->ids.v, j->ids.n, &r->c, e)
                       : meg_generator_add(j->gen, &j->m->eod, 1, &r->c, e);
    return err < 0 ? err : 1;
}

/*
 * Prompts are read as slots become free, and while others are under way only when a line is there:
 * whoever writes line by line gets each answer without writing the next.  After a line that cannot
 * be used, those before it are still answered.
 */
static int generate_all(struct job *j, struct meg_err *e)
{
    struct meg_err bad = { 0 };
    bool is_open = true;
    int r;

    while (is_open || meg_generator_active(j->gen) > 0) {
        while (is_open && meg_generator_has_free_slot(j->gen) &&
               (meg_generator_active(j->gen) == 0 || meg_line_reader_is_ready(&j->in))) {
            is_open = start(j, &bad) > 0;
            if ((r = print(j, e)) < 0)
                return r;
        }
        if ((r = meg_generator_step(j->gen, e)) < 0 || (r = print(j, e)) < 0)
            return r;
    }
    *e = bad;
    return bad.code;
}

static int run(const struct conf *conf, const struct meg_load_conf *lc, const struct meg_tok_conf *tc,
               const struct meg_token_output_conf *report, struct meg_sampling *sampling, struct meg_err *e)
{
    const double began_s = meg_now_s();
    const bool is_seed_drawn = sampling->seed == -1;
    struct meg_loaded_model m = { 0 };
    struct job j = { .conf = conf, .report = report, .m = &m, .last = &j.first };
    int r;

    if ((r = meg_line_reader_open(&j.in, conf->input, e)) < 0 || (r = meg_load_model(&m, lc, tc, e)) < 0 ||
        (r = meg_sampling_check(sampling, m.unpadded_vocab, e)) < 0 ||
        (r = meg_token_output_check(report, m.tok, m.g->conf.vocab_size, e)) < 0)
        goto out;
    if (!m.tok && strcmp(conf->format, "text") == 0) {
        r = meg_fail(e, MEG_EUSAGE, "--format text: %s has no tokenizer, and none was given", lc->load);
        goto out;
    }
    if (is_seed_drawn)
        meg_info("--seed %lld", (long long)sampling->seed);
    j.rule = (struct meg_prompt_format){ "prompt", true, m.tok, m.g->conf.vocab_size, m.unpadded_vocab, false };
    j.defaults = (struct meg_request){ .max_tokens = conf->tokens_to_generate, .sampling = *sampling };
    if ((r = meg_generator_open(&j.gen, m.g, m.unpadded_vocab, &m.ends, conf->max_batch_size, report->top_n_logprobs,
                                e)) < 0)
        goto out;
    r = generate_all(&j, e);
    meg_debug("%lld prompts, %lld tokens in %.2f s", (long long)j.prompts, (long long)j.tokens, meg_now_s() - began_s);
out:
    meg_generator_close(j.gen);
    while (j.first)
        drop_first(&j);
    meg_unload_model(&m);
    meg_line_reader_close(&j.in);
    free(j.ids.v);
    meg_str_free(&j.out);
    return r;
}

int main(int argc, char **argv)
{
    struct conf c = { 0 };
    struct meg_load_conf lc = { 0 };
    struct meg_tok_conf tc = { 0 };
    struct meg_token_output_conf report = { 0 };
    struct meg_sampling sampling = { 0 };
    const struct meg_optgroup groups[] = {
        { "generate", own_opts, &c },       { "report", meg_token_output_opts, &report },
        { "model", meg_load_opts, &lc },    { "sampling", meg_sampling_opts, &sampling },
        { "tokenizer", meg_tok_opts, &tc }, { 0 }
    };
    struct meg_err e;

    meg_opt_parse(groups, "[options] --load DIR < PROMPTS", "Continue prompts with a trained model.", argc, argv);
    if (!lc.load)
        meg_usage("--load is required");
    if (c.tokens_to_generate < 1)
        meg_usage("--tokens-to-generate %lld: it must be at least 1; meg-eval --task logprobs scores a prompt as it is",
                  (long long)c.tokens_to_generate);
    if (c.max_batch_size < 1 || c.max_batch_size > MAX_BATCH)
        meg_usage("--max-batch-size %lld: it must be from 1 to %d", (long long)c.max_batch_size, MAX_BATCH);
    if (strcmp(c.format, "text") == 0 && (report.return_tokens || report.top_n_logprobs > 0))
        meg_usage("--return-tokens and --top-n-logprobs go with --format json");
    if (run(&c, &lc, &tc, &report, &sampling, &e) < 0)
        meg_die_err(&e);
    return meg_close_stdout();
}
