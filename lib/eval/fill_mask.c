/* fill_mask.c - predict the masked tokens of a text, the task that BERT was trained for. */
#include "eval/fill_mask.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include "eval/fill_spans.h"
#include "eval/fill_text.h"
#include "infer/prompt.h"
#include "io/json.h"
#include "model/family.h"

enum { DEFAULT_TOP = 5 };

/* A model, and the vocabulary and cache with which meg_fill_mask fills the masks of a text. */
struct filler {
    const struct meg_loaded_model *m;
    struct meg_token_output_conf output;
    struct meg_fill_text text;
    struct meg_span_vocab spans;      /* T5 */
    struct meg_model_kv_cache *cache; /* T5: with one slot */
};

/* ---- prediction of tokens -------------------------------------------------------------------------------- */

/* Set the positions and the token types of a sequence, for a model with `types` token types. */
static void set_inputs(struct meg_batch *x, int32_t sep, int64_t types)
{
    int32_t type = 0;

    for (int64_t i = 0; i < x->s; i++) {
        x->position_ids[i] = (int32_t)i;
        x->token_types[i] = type;
        if (x->tokens[i] == sep && types > 1)
            type = 1;
    }
}

int meg_fill_mask_predict(const struct meg_loaded_model *m, int32_t *ids, int64_t n,
                          const struct meg_tok_special_ids *special, struct meg_token_logprob *top, int64_t ntop,
                          struct meg_err *e)
{
    struct meg_model *g = m->g;
    const int64_t v = g->conf.vocab_size;
    struct meg_batch x = { .s = n, .b = 1, .tokens = ids };
    float *logits = NULL;
    int32_t *heap = NULL;
    int r;

    if ((r = meg_model_reserve(g, n, n, e)) < 0)
        return r;
    x.position_ids = meg_new((size_t)n * sizeof *x.position_ids);
    x.token_types = meg_new((size_t)n * sizeof *x.token_types);
    logits = meg_realloc_array(NULL, (size_t)(n * v), sizeof *logits);
    heap = meg_new((size_t)v * sizeof *heap);
    set_inputs(&x, special->sep, g->conf.num_tokentypes);
    meg_model_logits(g, &x, logits);
    for (int64_t i = 0; i < n; i++) {
        const float *row = logits + i * v;
        const double lse = ids[i] == special->mask ? meg_logsumexp(row, v) : 0;

        if (ids[i] != special->mask)
            continue;
        if (!isfinite(lse)) {
            r = meg_fail(e, MEG_EFAIL,
                         "the logits of token %" PRId64
                         " (counted from 0) are not finite; check the checkpoint for NaN or Inf",
                         i);
            break;
        }
        ids[i] = meg_most_likely(row, m->unpadded_vocab);
        meg_top_logprobs(top, ntop, row, m->unpadded_vocab, ids[i], (double)row[ids[i]] - lse, heap);
        top += ntop;
    }
    free(x.position_ids);
    free(x.token_types);
    free(logits);
    free(heap);
    return r;
}

static bool is_t5(const struct meg_loaded_model *m)
{
    return meg_family_of(&m->g->conf)->samples == MEG_SAMPLES_T5;
}

/* ---- lines ------------------------------------------------------------------------------------- */

static int64_t count_masks(const struct meg_ids *ids, int32_t mask)
{
    int64_t n = 0;

    for (int64_t i = 0; i < ids->n; i++)
        n += ids->v[i] == mask;
    return n;
}

/* Append the notation of masks, for the message about a line without masks. */
static void add_mask_name(struct meg_str *out, const struct filler *f)
{
    const int32_t mask = meg_tokenizer_special_ids(f->m->tok)->mask;

    if (mask < 0)
        meg_str_printf(out, "<extra_id_0>, <extra_id_1> and so on in place of the spans");
    else if (meg_tokenizer_token_text(f->m->tok, mask, out, NULL) == 0)
        meg_str_printf(out, " in place of each token");
}

/*
 * Check that a line has masks and is not too long, and set *nmasks to their number.  For a T5, replace the masks by
 * sentinels.
 */
static int check_line(const struct filler *f, struct meg_ids *ids, int64_t *nmasks, struct meg_err *e)
{
    const int64_t positions = f->m->g->conf.max_position_embeddings;
    struct meg_str name = { 0 };
    int r = 0;

    if (ids->n > positions)
        return meg_fail(e, MEG_EFORMAT,
                        "the line has %" PRId64
                        " tokens, including those that begin and end it; the maximum sequence length of the model is "
                        "%" PRId64,
                        ids->n, positions);
    *nmasks = count_masks(ids, meg_tokenizer_special_ids(f->m->tok)->mask);
    if (is_t5(f->m) && (r = meg_span_vocab_number(&f->spans, ids, nmasks, e)) < 0)
        return r;
    if (*nmasks > 0)
        return 0;
    add_mask_name(&name, f);
    meg_fail(e, MEG_EFORMAT, "the line has no mask; write %.*s to predict", (int)name.n, name.s);
    meg_str_free(&name);
    return MEG_EFORMAT;
}

/* Fill the masks of a sequence, and append a JSON line. */
static int fill_line(void *filler, struct meg_ids *ids, struct meg_str *out, struct meg_err *e)
{
    const struct filler *f = filler;
    const struct meg_token_output_conf *output = &f->output;
    const struct meg_token_output_conf with_tokens = { true, output->top_n_logprobs };
    const struct meg_loaded_model *m = f->m;
    const int64_t ntop = output->top_n_logprobs;
    struct meg_token_logprob *top = NULL;
    struct meg_str text = { 0 };
    int64_t nmasks;
    int r;

    if ((r = check_line(f, ids, &nmasks, e)) < 0)
        return r;
    top = meg_realloc_array(NULL, (size_t)(nmasks * ntop), sizeof *top);
    if (is_t5(m))
        r = meg_fill_spans_predict(m, f->cache, &f->spans, ids, top, ntop, e);
    else
        r = meg_fill_mask_predict(m, ids->v, ids->n, meg_tokenizer_special_ids(m->tok), top, ntop, e);
    if (r < 0 || (r = meg_fill_text_decode(&f->text, ids, &text, e)) < 0)
        goto out;
    meg_json_begin(out, '{');
    meg_json_add_key(out, "text");
    meg_json_add_string(out, text.n > 0 ? text.s : "", text.n);
    meg_json_add_key(out, "ids");
    meg_json_add_ids(out, ids->v, ids->n);
    meg_reply_add_tokens(out, output, m->tok, ids->v, ids->n);
    meg_reply_add_top_logprobs(out, &with_tokens, m->tok, top, nmasks);
    meg_json_end(out, '}');
    meg_str_add(out, "\n", 1);
out:
    meg_str_free(&text);
    free(top);
    return r;
}

/* Prepare to fill masks.  Free f with filler_close, even after a failure. */
static int filler_open(struct filler *f, const struct meg_loaded_model *m, const struct meg_token_output_conf *output,
                       struct meg_err *e)
{
    int r;

    *f = (struct filler){ .m = m, .output = *output };
    if (!meg_opt_was_given(&output->top_n_logprobs))
        f->output.top_n_logprobs = DEFAULT_TOP < m->unpadded_vocab ? DEFAULT_TOP : m->unpadded_vocab;
    if (!m->tok)
        return meg_fail(e, MEG_EUSAGE,
                        "--task fill-mask requires a tokenizer, and the model has none; specify one with "
                        "--tokenizer-type and its files");
    if (is_t5(m)) {
        f->cache = meg_model_kv_cache_create(m->g, 1, &(struct meg_decode_conf){ .returns_logits = true });
        return (r = meg_span_vocab_make(&f->spans, m, e)) < 0 ? r : meg_fill_text_open(&f->text, m->tok, &f->spans, e);
    }
    if (meg_tokenizer_special_ids(m->tok)->mask < 0)
        return meg_fail(e, MEG_EUSAGE,
                        "--task fill-mask requires a tokenizer with a mask token, and this one has none; "
                        "specify the tokenizer that the model was trained with");
    return meg_fill_text_open(&f->text, m->tok, NULL, e);
}

static void filler_close(struct filler *f)
{
    meg_fill_text_close(&f->text);
    meg_span_vocab_free(&f->spans);
    meg_model_kv_cache_close(f->cache);
}

static int encode(void *x, const char *text, int64_t n, struct meg_ids *ids, struct meg_err *e)
{
    return meg_fill_text_encode(x, text, n, ids, e);
}

int meg_fill_mask(const char *input, const struct meg_token_output_conf *output, const struct meg_loaded_model *m,
                  struct meg_err *e)
{
    struct filler f;
    const struct meg_prompt_format format = { .key = "text",
                                              .is_plain_allowed = true,
                                              .tok = m->tok,
                                              .encode = encode,
                                              .encode_arg = &f.text,
                                              .vocab_size = m->g->conf.vocab_size,
                                              .is_corpus = true };
    int r;

    if ((r = filler_open(&f, m, output, e)) == 0 &&
        (r = meg_token_output_check(&f.output, m->tok, m->unpadded_vocab, e)) == 0)
        r = meg_prompt_answer_lines(input, &format, fill_line, &f, e);
    filler_close(&f);
    return r;
}
