/* meg-generate: continue prompts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "infer/lines.h"
#include "infer/load.h"
#include "infer/reply.h"

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
struct reply {
    struct reply *next;
    struct meg_continuation c;
    struct meg_detok detok;           /* what the prompt's ids leave behind goes on in the continuation */
    struct meg_str head;              /* text of the prompt, until it is printed; of JSON, what detok holds of it */
    int64_t shown;                    /* tokens already printed as text */
};

struct job {
    const struct conf *conf;
    const struct meg_loaded *m;
    struct meg_prompt_rule rule;
    struct meg_lines in;
    struct meg_generator *gen;
    struct reply *first, **last;      /* in the order of the input */
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
    struct reply *r = j->first;

    if (!(j->first = r->next))
        j->last = &j->first;
    meg_continuation_free(&r->c);
    meg_detok_free(&r->detok);
    meg_str_free(&r->head);
    free(r);
}

/* Print what can be printed: of the first reply, as far as it is; of those behind it, when it is done. */
static int print(struct job *j, struct meg_err *e)
{
    const bool is_text = strcmp(j->conf->format, "text") == 0;
    struct reply *r;
    int err = MEG_OK;

    while ((r = j->first)) {
        const bool is_done = r->c.finish != MEG_RUNNING;

        if (is_text) {
            meg_str_add(&j->out, r->head.s, r->head.n);
            r->head.n = 0;
            err = meg_detok_add(&r->detok, r->c.ids + r->shown, r->c.n - r->shown, is_done, &j->out, e);
            r->shown = r->c.n;
            if (is_done)
                meg_str_add(&j->out, "\n", 1);
        } else if (is_done) {
            err = meg_reply_json(&j->out, &r->c, j->m->tok ? &r->detok : NULL, &r->head,
                                 j->conf->return_log_probs, e);
        }
        if (err < 0 || (err = write_out(&j->out, e)) < 0 || !is_done)
            return err;
        j->tokens += r->c.n;
        drop_first(j);
    }
    return MEG_OK;
}

static int too_long(const struct job *j, int64_t positions, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT, "%s: line %lld: a prompt of %lld tokens; the model has %lld positions, and the "
                                    "prompt must leave one", j->in.name, (long long)j->in.line, (long long)j->ids.n,
                    (long long)positions);
}

/* In place of what is out of the prompt's text, the rest of it: some kinds hold back a word that may go on, or all. */
static void keep_rest(struct job *j, struct meg_str *head)
{
    struct meg_str whole = { 0 };
    size_t n = head->n;

    head->n = 0;
    if (meg_tokenizer_decode(j->m->tok, j->ids.v, j->ids.n, &whole, NULL) == MEG_OK && whole.n >= n &&
        (n == 0 || memcmp(whole.s, head->s, n) == 0))
        meg_str_add(head, whole.s + n, whole.n - n);
    meg_str_free(&whole);
}

/* Start the prompt of the next line; an empty one begins a document.  1, or 0 at the end of the input. */
static int start(struct job *j, struct meg_err *e)
{
    const int64_t positions = j->m->g->conf.max_position_embeddings;
    const bool is_text = strcmp(j->conf->format, "text") == 0;
    struct reply *r;
    char *text;
    size_t n;
    int err;

    j->ids.n = 0;
    if ((err = meg_lines_next(&j->in, &text, &n, e)) <= 0 ||
        (err = meg_prompt_ids(&j->rule, j->in.name, j->in.line, text, n, &j->ids, e)) < 0)
        return err;
    if (j->ids.n >= positions)
        return too_long(j, positions, e);
    if (j->ids.n == 0 && j->m->eod < 0)
        return meg_fail(e, MEG_EFORMAT, "%s: line %lld: an empty prompt, and no end-of-document id to begin from",
                        j->in.name, (long long)j->in.line);
    r = meg_new(sizeof *r);
    r->c.prompt = j->prompts++;
    r->detok.tok = j->m->tok;
    *j->last = r;
    j->last = &r->next;
    /* ids that are the model's alone have no text: what follows them is then decoded by itself */
    if (j->m->tok && (err = meg_detok_add(&r->detok, j->ids.v, j->ids.n, false, &r->head, e)) < 0 && is_text)
        return err;
    if (j->m->tok && !is_text)
        keep_rest(j, &r->head);
    err = j->ids.n > 0 ? meg_generator_add(j->gen, j->ids.v, j->ids.n, &r->c, e)
                       : meg_generator_add(j->gen, &j->m->eod, 1, &r->c, e);
    return err < 0 ? err : 1;
}

/*
 * Prompts are read as slots become free, and while others are under way only when a line is there:
 * whoever writes line by line gets each answer without writing the next.  After a line that cannot
 * be used, those before it are still answered.
 */
static int answer_all(struct job *j, struct meg_err *e)
{
    struct meg_err bad = { 0 };
    bool is_open = true;
    int r;

    while (is_open || meg_generator_active(j->gen) > 0) {
        while (is_open && meg_generator_has_room(j->gen) &&
               (meg_generator_active(j->gen) == 0 || meg_lines_is_ready(&j->in))) {
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
               struct meg_sampling *sampling, struct meg_err *e)
{
    const double began_s = meg_now_s();
    const bool is_seed_drawn = sampling->seed == -1;
    struct meg_loaded m = { 0 };
    struct job j = { .conf = conf, .m = &m, .last = &j.first };
    int r;

    if ((r = meg_lines_open(&j.in, conf->input, e)) < 0 ||
        (r = meg_load(&m, lc, tc, e)) < 0 ||
        (r = meg_sampling_check(sampling, m.drawable, e)) < 0)
        goto out;
    if (!m.tok && strcmp(conf->format, "text") == 0) {
        r = meg_fail(e, MEG_EUSAGE, "--format text: %s has no tokenizer, and none was given", lc->load);
        goto out;
    }
    if (is_seed_drawn)
        meg_note("--seed %lld", (long long)sampling->seed);
    j.rule = (struct meg_prompt_rule){ "prompt", true, m.tok, m.g->conf.vocab_size };
    if ((r = meg_generator_open(&j.gen, m.g, sampling, m.drawable, conf->tokens_to_generate, m.eod,
                                conf->max_batch_size, e)) < 0)
        goto out;
    r = answer_all(&j, e);
    meg_debug("%lld prompts, %lld tokens in %.2f s", (long long)j.prompts, (long long)j.tokens,
              meg_now_s() - began_s);
out:
    meg_generator_close(j.gen);
    while (j.first)
        drop_first(&j);
    meg_unload(&m);
    meg_lines_close(&j.in);
    free(j.ids.v);
    meg_str_free(&j.out);
    return r;
}

int main(int argc, char **argv)
{
    struct conf c = { 0 };
    struct meg_load_conf lc = { 0 };
    struct meg_tok_conf tc = { 0 };
    struct meg_sampling sampling = { 0 };
    const struct meg_optgroup groups[] = {
        { "generate", own_opts, &c },
        { "model", meg_load_opts, &lc },
        { "sampling", meg_sampling_opts, &sampling },
        { "tokenizer", meg_tok_opts, &tc },
        { 0 }
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
    if (run(&c, &lc, &tc, &sampling, &e) < 0)
        meg_die_err(&e);
    return meg_finish();
}
