#define _GNU_SOURCE /* memmem */
#include "eval/fill_mask.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/fill_spans.h"
#include "infer/prompt.h"
#include "io/json.h"
#include "io/line_reader.h"
#include "model/family.h"

enum { DEFAULT_TOP = 5 };

/* ---- text to ids ------------------------------------------------------------------------------- */

/* Return the first occurrence of the text of a token in s [n], and set *len to its length; return NULL without one. */
static const char *find_token(const struct meg_tokenizer *tok, int32_t id, const char *s, int64_t n, int64_t *len)
{
    struct meg_str token = { 0 };
    const char *at = NULL;

    if (id >= 0 && meg_tokenizer_bytes(tok, &id, 1, &token, NULL) == 0 && token.n > 0)
        at = memmem(s, (size_t)n, token.s, token.n);
    *len = (int64_t)token.n;
    meg_str_free(&token);
    return at;
}

/* Append the ids of a text in which the texts of the mask and of the separator are encoded as these tokens. */
static int encode_masks(struct meg_tokenizer *tok, const char *text, int64_t n, struct meg_ids *ids, struct meg_err *e)
{
    const struct meg_tok_special_ids *special = meg_tokenizer_special_ids(tok);
    const char *const end = text + n;
    int64_t mask_len, sep_len;
    int r;

    for (;;) {
        const char *mask = find_token(tok, special->mask, text, end - text, &mask_len);
        const char *sep = find_token(tok, special->sep, text, end - text, &sep_len);
        const bool is_mask = mask && (!sep || mask < sep);
        const char *stop = is_mask ? mask : sep ? sep : end;

        if ((r = meg_tokenizer_encode(tok, text, stop - text, ids, e)) < 0)
            return r;
        if (stop == end)
            return 0;
        meg_ids_add(ids, is_mask ? special->mask : special->sep);
        text = stop + (is_mask ? mask_len : sep_len);
    }
}

int meg_fill_mask_encode(struct meg_tokenizer *tok, const char *text, int64_t n, struct meg_ids *ids, struct meg_err *e)
{
    const struct meg_tok_special_ids *special = meg_tokenizer_special_ids(tok);
    int r;

    if (special->cls >= 0)
        meg_ids_add(ids, special->cls);
    r = encode_masks(tok, text, n, ids, e);
    if (r == 0 && special->sep >= 0)
        meg_ids_add(ids, special->sep);
    return r;
}

/* Append the text of ids, without a CLS at the beginning and a SEP at the end. */
static int add_text(struct meg_str *out, const struct meg_tokenizer *tok, const struct meg_ids *ids, struct meg_err *e)
{
    const struct meg_tok_special_ids *special = meg_tokenizer_special_ids(tok);
    int64_t begin = 0, end = ids->n;

    if (begin < end && ids->v[begin] == special->cls)
        begin++;
    if (begin < end && ids->v[end - 1] == special->sep)
        end--;
    return meg_tokenizer_decode(tok, ids->v + begin, end - begin, out, e);
}

/* ---- prediction -------------------------------------------------------------------------------- */

/* Set the positions and the token types of a sequence. */
static void set_inputs(struct meg_batch *x, int32_t sep)
{
    int32_t type = 0;

    for (int64_t i = 0; i < x->s; i++) {
        x->position_ids[i] = (int32_t)i;
        x->token_types[i] = type;
        if (x->tokens[i] == sep)
            type = 1;
    }
}

int meg_fill_mask_predict(struct meg_model *g, int32_t *ids, int64_t n, const struct meg_tok_special_ids *special,
                          struct meg_token_logprob *top, int64_t ntop, struct meg_err *e)
{
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
    set_inputs(&x, special->sep);
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
        ids[i] = meg_most_likely(row, v);
        meg_top_logprobs(top, ntop, row, v, ids[i], (double)row[ids[i]] - lse, heap);
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

/* Check that a line has masks and is not too long and, for a T5, that there is a sentinel for each mask. */
static int check_line(const struct meg_loaded_model *m, const struct meg_masked_vocab *v, const struct meg_ids *ids,
                      struct meg_err *e)
{
    const int64_t positions = m->g->conf.max_position_embeddings;
    const int32_t mask = meg_tokenizer_special_ids(m->tok)->mask;
    struct meg_str name = { 0 };

    if (ids->n > positions)
        return meg_fail(e, MEG_EFORMAT,
                        "the line has %" PRId64
                        " tokens, including those that begin and end it; the maximum sequence length of the model is "
                        "%" PRId64,
                        ids->n, positions);
    if (count_masks(ids, mask) == 0) {
        meg_tokenizer_bytes(m->tok, &mask, 1, &name, NULL);
        meg_fail(e, MEG_EFORMAT, "the line has no mask; write %.*s in place of each token to predict", (int)name.n,
                 name.s);
        meg_str_free(&name);
        return MEG_EFORMAT;
    }
    if (is_t5(m) && count_masks(ids, mask) > v->nsentinel)
        return meg_fail(e, MEG_EFORMAT,
                        "the line has %" PRId64 " masks, but the vocabulary has only %" PRId64
                        " sentinels (--vocab-extra-ids of the training)",
                        count_masks(ids, mask), v->nsentinel);
    return 0;
}

/* Replace the ids of a text with masks by those of the filled text (meg_fill_spans_predict). */
static int fill_spans(struct meg_model *g, struct meg_ids *ids, const struct meg_masked_vocab *v,
                      struct meg_token_logprob *top, int64_t ntop, struct meg_err *e)
{
    struct meg_ids filled = { 0 };
    const int r = meg_fill_spans_predict(g, ids, v, &filled, top, ntop, e);

    free(ids->v);
    *ids = filled;
    return r;
}

/* Fill the masks of a sequence, and append a JSON line. */
static int fill_line(const struct meg_loaded_model *m, const struct meg_masked_vocab *v,
                     const struct meg_token_output_conf *output, struct meg_ids *ids, struct meg_str *out,
                     struct meg_err *e)
{
    const struct meg_tok_special_ids *special = meg_tokenizer_special_ids(m->tok);
    const struct meg_token_output_conf with_tokens = { true, output->top_n_logprobs };
    struct meg_token_logprob *top = NULL;
    struct meg_str text = { 0 };
    int64_t nmasks;
    int r;

    if ((r = check_line(m, v, ids, e)) < 0)
        return r;
    nmasks = count_masks(ids, special->mask);
    top = meg_realloc_array(NULL, (size_t)(nmasks * output->top_n_logprobs), sizeof *top);
    if (is_t5(m))
        r = fill_spans(m->g, ids, v, top, output->top_n_logprobs, e);
    else
        r = meg_fill_mask_predict(m->g, ids->v, ids->n, special, top, output->top_n_logprobs, e);
    if (r < 0 || (r = add_text(&text, m->tok, ids, e)) < 0)
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

static int check_tokenizer(const struct meg_loaded_model *m, struct meg_err *e)
{
    if (!m->tok)
        return meg_fail(e, MEG_EUSAGE,
                        "--task fill-mask requires a tokenizer, and the model has none; specify one with "
                        "--tokenizer-type and its files");
    if (meg_tokenizer_special_ids(m->tok)->mask < 0)
        return meg_fail(e, MEG_EUSAGE,
                        "--task fill-mask requires a tokenizer with a mask token, and this one has none; specify the "
                        "tokenizer that the model was trained with");
    if (is_t5(m) && (meg_tokenizer_special_ids(m->tok)->bos < 0 || meg_tokenizer_special_ids(m->tok)->eos < 0))
        return meg_fail(
            e, MEG_EUSAGE,
            "--task fill-mask requires a tokenizer with BOS and EOS for a T5; specify the tokenizer that the "
            "model was trained with");
    return 0;
}

int meg_fill_mask(const char *input, const struct meg_token_output_conf *given, const struct meg_loaded_model *m,
                  struct meg_err *e)
{
    const struct meg_prompt_format format = { .key = "text",
                                              .is_plain_allowed = true,
                                              .tok = m->tok,
                                              .encode = is_t5(m) ? encode_masks : meg_fill_mask_encode,
                                              .vocab_size = m->g->conf.vocab_size,
                                              .is_corpus = true };
    struct meg_token_output_conf output = *given;
    struct meg_masked_vocab v = { 0 };
    struct meg_line_reader in = { 0 };
    struct meg_ids ids = { 0 };
    struct meg_str out = { 0 };
    struct meg_err why;
    char *text;
    size_t n;
    int r;

    if (!meg_opt_was_given(&given->top_n_logprobs))
        output.top_n_logprobs = DEFAULT_TOP < m->g->conf.vocab_size ? DEFAULT_TOP : m->g->conf.vocab_size;
    if ((r = check_tokenizer(m, e)) < 0 ||
        (r = meg_token_output_check(&output, m->tok, m->g->conf.vocab_size, e)) < 0 ||
        (r = meg_line_reader_open(&in, input, e)) < 0)
        goto out;
    meg_masked_vocab_make(&v, m->tok);
    while ((r = meg_line_reader_next(&in, &text, &n, e)) > 0) {
        ids.n = 0;
        out.n = 0;
        if ((r = meg_prompt_read(&format, in.name, in.line, text, n, &ids, NULL, e)) < 0)
            break;
        if ((r = fill_line(m, &v, &output, &ids, &out, &why)) < 0) {
            r = meg_fail(e, r, "%s: line %" PRId64 ": %s", in.name, in.line, why.msg);
            break;
        }
        if ((r = meg_write_stdout(out.s, out.n, e)) < 0)
            break;
    }
out:
    meg_line_reader_close(&in);
    meg_masked_vocab_free(&v);
    meg_str_free(&out);
    free(ids.v);
    return r;
}
