/*
 * task.c - the evaluations of meg-eval: log-probabilities of given tokens, perplexity of a corpus, and masked tokens.
 */
#include "eval/task.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "eval/corpus.h"
#include "eval/fill_mask.h"
#include "eval/ppl.h"
#include "infer/prompt.h"
#include "io/json.h"
#include "io/line_reader.h"

const struct meg_opt meg_eval_opts[] = {
    { "task", 0, MEG_ENUM(struct meg_eval_conf, task), "logprobs|ppl|fill-mask", NULL,
      "logprobs: print the log-probabilities of the tokens of each input line; ppl: print the perplexity of the "
      "complete input; fill-mask: predict the masked tokens of each input line" },
    { "input", 0, MEG_STR(struct meg_eval_conf, input), "FILE", "-",
      "read text or JSON lines from FILE; - is standard input" },
    { "data-path", 0, MEG_STR(struct meg_eval_conf, data_path), "PREFIX", NULL,
      "with --task ppl: read the dataset PREFIX.bin and PREFIX.idx instead of --input" },
    { "seq-length", 0, MEG_I64(struct meg_eval_conf, seq_length), "N", NULL,
      "with --task ppl: window length in tokens; default: the maximum sequence length of the model" },
    { "overlapping-eval", 0, MEG_I64(struct meg_eval_conf, overlapping_eval), "N", NULL,
      "with --task ppl: stride between windows in tokens; default: --seq-length" },
    { 0 }
};

int meg_eval_check(const struct meg_eval_conf *c, const struct meg_token_output_conf *output, struct meg_err *e)
{
    const bool is_ppl = c->task == MEG_EVAL_PPL;

    if (c->data_path && !is_ppl)
        return meg_fail(e, MEG_EUSAGE, "--data-path requires --task ppl");
    if (c->data_path && meg_opt_was_given(&c->input))
        return meg_fail(e, MEG_EUSAGE, "--data-path cannot be combined with --input; use only one of them");
    if (!is_ppl && (c->seq_length != MEG_UNSET || c->overlapping_eval != MEG_UNSET))
        return meg_fail(e, MEG_EUSAGE, "--seq-length and --overlapping-eval require --task ppl");
    if (is_ppl && (output->return_tokens || output->top_n_logprobs > 0))
        return meg_fail(e, MEG_EUSAGE, "--return-tokens and --top-n-logprobs require --task logprobs or fill-mask");
    return 0;
}

enum meg_prediction meg_eval_prediction(const struct meg_eval_conf *c)
{
    return c->task == MEG_EVAL_FILL_MASK ? MEG_PREDICT_MASKED : MEG_PREDICT_NEXT;
}

/* ---- logprobs ---------------------------------------------------------------------------------- */

/* A model that scores tokens, and the log-probabilities of a line. */
struct logprobs {
    const struct meg_token_output_conf *output;
    const struct meg_tokenizer *tok;
    struct meg_scorer scorer;
    float *logprob;
    struct meg_token_logprob *top;
};

/* Score the tokens of an input line, and append a JSON line. */
static int score_line(void *arg, struct meg_ids *ids, struct meg_str *out, struct meg_err *e)
{
    struct logprobs *x = arg;
    const int64_t positions = x->scorer.g->conf.max_position_embeddings, ntop = x->output->top_n_logprobs;
    const int64_t n = ids->n > 0 ? ids->n - 1 : 0;
    double sum = 0;
    int r;

    if (ids->n > positions + 1)
        return meg_fail(e, MEG_EFORMAT,
                        "the line has %" PRId64 " tokens; with a maximum sequence length of %" PRId64
                        ", the model can score at most %" PRId64 " tokens at once",
                        ids->n, positions, positions + 1);
    x->logprob = meg_realloc_array(x->logprob, (size_t)ids->n, sizeof *x->logprob);
    x->top = meg_realloc_array(x->top, (size_t)(ids->n * ntop), sizeof *x->top);
    if (ids->n > 1 && (r = meg_score_top(&x->scorer, ids->v, ids->n, x->logprob, x->top, ntop, e)) < 0)
        return r;
    for (int64_t i = 0; i < n; i++)
        sum += x->logprob[i];
    meg_json_begin(out, '{');
    meg_json_add_key(out, "ids");
    meg_json_add_ids(out, ids->v, ids->n);
    meg_reply_add_tokens(out, x->output, x->tok, ids->v, ids->n);
    meg_json_add_key(out, "logprobs");
    meg_json_add_floats(out, x->logprob, n);
    meg_reply_add_top_logprobs(out, x->output, x->tok, x->top, n);
    meg_json_set_f64(out, "sum", sum);
    meg_json_set_i64(out, "count", n);
    meg_json_end(out, '}');
    meg_str_add(out, "\n", 1);
    return 0;
}

static int logprobs(const struct meg_eval_conf *c, const struct meg_token_output_conf *output,
                    const struct meg_loaded_model *m, struct meg_err *e)
{
    const struct meg_prompt_format format = { .key = "text", .tok = m->tok, .vocab_size = m->g->conf.vocab_size };
    struct logprobs x = { .output = output, .tok = m->tok };
    int r;

    meg_scorer_init(&x.scorer, m->g);
    if ((r = meg_token_output_check(output, m->tok, m->g->conf.vocab_size, e)) == 0)
        r = meg_prompt_answer_lines(c->input, &format, score_line, &x, e);
    meg_scorer_free(&x.scorer);
    free(x.logprob);
    free(x.top);
    return r;
}

/* ---- ppl --------------------------------------------------------------------------------------- */

/* The corpus of a perplexity evaluation. */
struct corpus {
    const char *name; /* name used in messages */
    struct meg_token_stream tokens;
    int64_t documents;
    const struct meg_tokenizer *tok; /* used to count the bytes of the text; NULL: bytes are not reported */
};

struct ppl_progress {
    struct meg_progress line;
    int64_t targets;
};

static void show_progress(void *ctx, const struct meg_ppl_result *p)
{
    struct ppl_progress *progress = ctx;

    meg_progress_show(&progress->line, "%" PRId64 " of %" PRId64 " tokens, loss %.4f", p->num_targets,
                      progress->targets, p->loss / (double)p->num_targets);
}

static int write_ppl(const struct meg_eval_conf *c, int64_t documents, const struct meg_ppl_result *p,
                     struct meg_err *e)
{
    struct meg_str out = { 0 };
    int r;

    meg_json_begin(&out, '{');
    meg_json_set_str(&out, "task", "ppl");
    meg_json_set_i64(&out, "documents", documents);
    meg_json_set_i64(&out, "tokens", p->num_targets);
    meg_json_set_i64(&out, "windows", p->windows);
    meg_json_set_i64(&out, "seq_length", c->seq_length);
    meg_json_set_i64(&out, "overlapping_eval", c->overlapping_eval);
    meg_json_set_f64(&out, "loss_nats", p->loss / (double)p->num_targets);
    meg_json_set_f64(&out, "ppl", meg_ppl_value(p));
    if (p->bytes > 0) {
        meg_json_set_i64(&out, "bytes", p->bytes);
        meg_json_set_f64(&out, "bits_per_byte", p->loss / log(2) / (double)p->bytes);
    }
    meg_json_end(&out, '}');
    meg_str_add(&out, "\n", 1);
    r = meg_write_stdout(out.s, out.n, e);
    meg_str_free(&out);
    return r;
}

static int ppl_of_corpus(const struct meg_eval_conf *c, const struct meg_loaded_model *m, const struct corpus *corpus,
                         struct meg_err *e)
{
    const double began_s = meg_now_s();
    struct ppl_progress progress = { .targets = corpus->tokens.n - 1 };
    const struct meg_ppl_conf ppl = { c->seq_length, c->overlapping_eval, corpus->tok, show_progress, &progress };
    struct meg_scorer s;
    struct meg_ppl_result p;
    int r;

    if (corpus->tokens.n < 2)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: %" PRId64 " token%s; perplexity requires at least 2, because the first is not scored",
                        corpus->name, corpus->tokens.n, corpus->tokens.n == 1 ? "" : "s");
    meg_scorer_init(&s, m->g);
    meg_progress_init(&progress.line, 0);
    r = meg_ppl(&p, &s, &corpus->tokens, &ppl, e);
    meg_progress_end(&progress.line);
    meg_scorer_free(&s);
    if (r < 0 || (r = write_ppl(c, corpus->documents, &p, e)) < 0)
        return r;
    meg_debug("%.0f tokens/s", (double)p.num_targets / (meg_now_s() - began_s));
    return 0;
}

static int ppl_of_dataset(const struct meg_eval_conf *c, const struct meg_loaded_model *m, struct meg_err *e)
{
    struct meg_indexed *d = NULL;
    struct meg_dataset_reader reader;
    struct corpus corpus = { .name = c->data_path };
    int r;

    if ((r = meg_indexed_open(&d, c->data_path, e)) < 0)
        return r;
    corpus.tokens = meg_token_stream_from_dataset(&reader, d, m->g->conf.vocab_size);
    corpus.documents = d->documents;
    r = ppl_of_corpus(c, m, &corpus, e);
    meg_indexed_close(d);
    return r;
}

static int ppl_of_input(const struct meg_eval_conf *c, const struct meg_loaded_model *m, struct meg_err *e)
{
    struct meg_block_reader *in = NULL;
    struct meg_ids ids = { 0 };
    struct corpus corpus = { .name = strcmp(c->input, "-") == 0 ? "standard input" : c->input, .tok = m->tok };
    const char *input = c->input;
    int r;

    if ((r = meg_block_reader_open(&in, &input, 1, e)) == 0 &&
        (r = meg_tokenize_corpus(in, m->tok, m->g->conf.vocab_size, &ids, &corpus.documents, e)) == 0) {
        corpus.tokens = meg_token_stream_from_ids(&ids);
        r = ppl_of_corpus(c, m, &corpus, e);
    }
    meg_block_reader_close(in);
    free(ids.v);
    return r;
}

/*
 * Set the defaults of --seq-length and --overlapping-eval, and check their ranges.  The maximum sequence length of the
 * model is `positions`.
 */
static int resolve_windows(struct meg_eval_conf *c, int64_t positions, struct meg_err *e)
{
    if (c->seq_length == MEG_UNSET)
        c->seq_length = positions;
    if (c->seq_length < 1 || c->seq_length > positions)
        return meg_fail(e, MEG_EUSAGE,
                        "--seq-length %" PRId64 ": must be from 1 to %" PRId64
                        ", the maximum sequence length of the model",
                        c->seq_length, positions);
    if (c->overlapping_eval == MEG_UNSET)
        c->overlapping_eval = c->seq_length;
    if (c->overlapping_eval < 1 || c->overlapping_eval > c->seq_length)
        return meg_fail(e, MEG_EUSAGE,
                        "--overlapping-eval %" PRId64 ": must be from 1 to %" PRId64 ", the value of --seq-length",
                        c->overlapping_eval, c->seq_length);
    return 0;
}

int meg_eval_run(const struct meg_eval_conf *given, const struct meg_token_output_conf *output,
                 const struct meg_loaded_model *m, struct meg_err *e)
{
    struct meg_eval_conf c = *given;
    int r;

    if (c.task == MEG_EVAL_LOGPROBS)
        return logprobs(&c, output, m, e);
    if (c.task == MEG_EVAL_FILL_MASK)
        return meg_fill_mask(c.input, output, m, e);
    if ((r = resolve_windows(&c, m->g->conf.max_position_embeddings, e)) < 0)
        return r;
    return c.data_path ? ppl_of_dataset(&c, m, e) : ppl_of_input(&c, m, e);
}
