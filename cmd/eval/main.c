/* meg-eval: how well a model predicts given tokens. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "eval/corpus.h"
#include "eval/ppl.h"
#include "infer/model_load.h"
#include "infer/prompt.h"
#include "infer/reply.h"
#include "io/json.h"
#include "io/line_reader.h"

struct conf {
    const char *task, *input, *data_path;
    int64_t seq_length, overlapping_eval;
};
static const struct meg_opt own_opts[] = {
    { "task", 0, MEG_STR(struct conf, task), "logprobs|ppl", NULL, "what is measured" },
    { "input", 0, MEG_STR(struct conf, input), "FILE", "-", "text or JSON lines; - is standard input" },
    { "data-path", 0, MEG_STR(struct conf, data_path), "PREFIX", NULL, "ppl: dataset PREFIX.bin, PREFIX.idx instead" },
    { "seq-length", 0, MEG_I64(struct conf, seq_length), "N", NULL, "ppl: tokens of a window (the model's positions)" },
    { "overlapping-eval", 0, MEG_I64(struct conf, overlapping_eval), "N", NULL,
      "ppl: tokens from one window to the next (--seq-length)" },
    { 0 }
};

static int write_out(struct meg_str *out, struct meg_err *e)
{
    if (fwrite(out->s, 1, out->n, stdout) != out->n || fflush(stdout) != 0)
        return meg_fail_errno(e, "standard output");
    out->n = 0;
    return MEG_OK;
}

/* ---- logprobs: a line for a line --------------------------------------------------------------- */

static void add_scores(struct meg_str *out, const struct meg_token_output_conf *report, const struct meg_tokenizer *tok,
                       const struct meg_ids *ids, const float *logprob, const struct meg_token_logprob *top)
{
    int64_t i, n = ids->n > 0 ? ids->n - 1 : 0;
    double sum = 0;

    for (i = 0; i < n; i++)
        sum += logprob[i];
    meg_json_begin(out, '{');
    meg_json_add_key(out, "ids");
    meg_json_add_ids(out, ids->v, ids->n);
    meg_reply_add_tokens(out, report, tok, ids->v, ids->n);
    meg_json_add_key(out, "logprobs");
    meg_json_add_floats(out, logprob, n);
    meg_reply_add_top_logprobs(out, report, tok, top, n);
    meg_json_set_f64(out, "sum", sum);
    meg_json_set_i64(out, "count", n);
    meg_json_end(out, '}');
    meg_str_add(out, "\n", 1);
}

static int logprobs(const struct conf *c, const struct meg_token_output_conf *report, const struct meg_loaded_model *m,
                    struct meg_err *e)
{
    const int64_t positions = m->g->conf.max_position_embeddings;
    const struct meg_prompt_format rule = { .key = "text", .tok = m->tok, .vocab_size = m->g->conf.vocab_size };
    struct meg_line_reader in = { 0 };
    struct meg_scorer s;
    struct meg_ids ids = { 0 };
    struct meg_str out = { 0 };
    float *logprob = meg_new((size_t)positions * sizeof *logprob);
    struct meg_token_logprob *top = NULL;
    char *text;
    size_t n;
    int r;

    meg_scorer_init(&s, m->g);
    if ((r = meg_token_output_check(report, m->tok, m->g->conf.vocab_size, e)) < 0 ||
        (r = meg_line_reader_open(&in, c->input, e)) < 0)
        goto out;
    top = meg_new((size_t)(positions * report->top_n_logprobs) * sizeof *top);
    while ((r = meg_line_reader_next(&in, &text, &n, e)) > 0) {
        ids.n = 0;
        if ((r = meg_prompt_read(&rule, in.name, in.line, text, n, &ids, NULL, e)) < 0)
            goto out;
        if (ids.n > positions + 1) {
            r = meg_fail(e, MEG_EFORMAT,
                         "%s: line %lld: %lld tokens; with %lld positions the model can score at most "
                         "%lld at once",
                         in.name, (long long)in.line, (long long)ids.n, (long long)positions, (long long)positions + 1);
            goto out;
        }
        if (ids.n > 1 && (r = meg_score_top(&s, ids.v, ids.n, logprob, top, report->top_n_logprobs, e)) < 0)
            goto out;
        add_scores(&out, report, m->tok, &ids, logprob, top);
        if ((r = write_out(&out, e)) < 0)
            goto out;
    }
out:
    meg_line_reader_close(&in);
    meg_scorer_free(&s);
    meg_str_free(&out);
    free(ids.v);
    free(logprob);
    free(top);
    return r;
}

/* ---- ppl: one object ---------------------------------------------------------------------------- */

struct progress {
    struct meg_progress line;
    int64_t targets;
};

static void show(void *ctx, const struct meg_ppl_result *p)
{
    struct progress *pr = ctx;

    meg_progress_show(&pr->line, "%lld of %lld tokens, loss %.4f", (long long)p->scored, (long long)pr->targets,
                      p->loss / (double)p->scored);
}

static void print_ppl(const struct meg_ppl_result *p, const struct conf *c, int64_t documents)
{
    struct meg_str out = { 0 };

    meg_json_begin(&out, '{');
    meg_json_set_str(&out, "task", "ppl");
    meg_json_set_i64(&out, "documents", documents);
    meg_json_set_i64(&out, "tokens", p->scored);
    meg_json_set_i64(&out, "windows", p->windows);
    meg_json_set_i64(&out, "seq_length", c->seq_length);
    meg_json_set_i64(&out, "overlapping_eval", c->overlapping_eval);
    meg_json_set_f64(&out, "loss_nats", p->loss / (double)p->scored);
    meg_json_set_f64(&out, "ppl", meg_ppl_value(p));
    if (p->bytes > 0) {
        meg_json_set_i64(&out, "bytes", p->bytes);
        meg_json_set_f64(&out, "bits_per_byte", p->loss / log(2) / (double)p->bytes);
    }
    meg_json_end(&out, '}');
    puts(out.s);
    meg_str_free(&out);
}

static int ppl_of(const struct conf *c, const struct meg_loaded_model *m, const struct meg_token_stream *src,
                  const char *name, int64_t documents, bool is_text, struct meg_err *e)
{
    const double began_s = meg_now_s();
    struct progress progress = { .targets = src->n - 1 };
    struct meg_scorer s;
    struct meg_ppl_result p;
    int r;

    if (src->n < 2)
        return meg_fail(e, MEG_EFORMAT, "%s: %lld token%s; the first is given, so it takes two to score one", name,
                        (long long)src->n, src->n == 1 ? "" : "s");
    meg_scorer_init(&s, m->g);
    meg_progress_init(&progress.line, 0);
    r = meg_ppl(&p, &s, src, c->seq_length, c->overlapping_eval, is_text ? m->tok : NULL, show, &progress, e);
    meg_progress_end(&progress.line);
    meg_scorer_free(&s);
    if (r < 0)
        return r;
    print_ppl(&p, c, documents);
    meg_debug("%.0f tokens/s", (double)p.scored / (meg_now_s() - began_s));
    return MEG_OK;
}

static int ppl_dataset(const struct conf *c, const struct meg_loaded_model *m, struct meg_err *e)
{
    struct meg_indexed *d = NULL;
    struct meg_dataset_reader reader;
    struct meg_token_stream src;
    int r;

    if ((r = meg_indexed_open(&d, c->data_path, e)) < 0)
        return r;
    src = meg_token_stream_from_dataset(&reader, d, m->g->conf.vocab_size);
    r = ppl_of(c, m, &src, c->data_path, meg_indexed_documents(d), false, e);
    meg_indexed_close(d);
    return r;
}

static int ppl_text(const struct conf *c, const struct meg_loaded_model *m, struct meg_err *e)
{
    struct meg_block_reader *in = NULL;
    struct meg_ids ids = { 0 };
    struct meg_token_stream src;
    int64_t documents;
    int r;

    if ((r = meg_block_reader_open(&in, &c->input, 1, e)) == MEG_OK &&
        (r = meg_tokenize_corpus(in, m->tok, m->g->conf.vocab_size, &ids, &documents, e)) == MEG_OK) {
        src = meg_token_stream_from_ids(&ids);
        r = ppl_of(c, m, &src, strcmp(c->input, "-") == 0 ? "standard input" : c->input, documents, true, e);
    }
    meg_block_reader_close(in);
    free(ids.v);
    return r;
}

static int check_windows(struct conf *c, int64_t positions, struct meg_err *e)
{
    if (c->seq_length == MEG_UNSET)
        c->seq_length = positions;
    if (c->seq_length < 1 || c->seq_length > positions)
        return meg_fail(e, MEG_EUSAGE, "--seq-length %lld: it must be from 1 to %lld, the positions of the model",
                        (long long)c->seq_length, (long long)positions);
    if (c->overlapping_eval == MEG_UNSET)
        c->overlapping_eval = c->seq_length;
    if (c->overlapping_eval < 1 || c->overlapping_eval > c->seq_length)
        return meg_fail(e, MEG_EUSAGE, "--overlapping-eval %lld: it must be from 1 to %lld, the --seq-length",
                        (long long)c->overlapping_eval, (long long)c->seq_length);
    return MEG_OK;
}

static int run(struct conf *c, const struct meg_token_output_conf *report, const struct meg_load_conf *lc,
               const struct meg_tok_conf *tc, struct meg_err *e)
{
    struct meg_loaded_model m = { 0 };
    int r;

    if ((r = meg_load_model(&m, lc, tc, e)) < 0)
        goto out;
    if (strcmp(c->task, "logprobs") == 0)
        r = logprobs(c, report, &m, e);
    else if ((r = check_windows(c, m.g->conf.max_position_embeddings, e)) == MEG_OK)
        r = c->data_path ? ppl_dataset(c, &m, e) : ppl_text(c, &m, e);
out:
    meg_unload_model(&m);
    return r;
}

int main(int argc, char **argv)
{
    struct conf c = { 0 };
    struct meg_token_output_conf report = { 0 };
    struct meg_load_conf lc = { 0 };
    struct meg_tok_conf tc = { 0 };
    const struct meg_optgroup groups[] = { { "eval", own_opts, &c },
                                           { "report", meg_token_output_opts, &report },
                                           { "model", meg_load_opts, &lc },
                                           { "tokenizer", meg_tok_opts, &tc },
                                           { 0 } };
    struct meg_err e;

    meg_opt_parse(groups, "[options] --task TASK --load DIR", "Measure how well a model predicts tokens.", argc, argv);
    if (!c.task || !lc.load)
        meg_usage("--task and --load are required");
    if (c.data_path && (meg_opt_was_given(&c.input) || strcmp(c.task, "ppl") != 0))
        meg_usage("--data-path goes with --task ppl, and not with --input");
    if (strcmp(c.task, "ppl") != 0 && (c.seq_length != MEG_UNSET || c.overlapping_eval != MEG_UNSET))
        meg_usage("--seq-length and --overlapping-eval go with --task ppl");
    if (strcmp(c.task, "ppl") == 0 && (report.return_tokens || report.top_n_logprobs > 0))
        meg_usage("--return-tokens and --top-n-logprobs go with --task logprobs");
    if (run(&c, &report, &lc, &tc, &e) < 0)
        meg_die_err(&e);
    return meg_close_stdout();
}
