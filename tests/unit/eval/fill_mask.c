/*
 * eval/fill_mask.h and eval/fill_text.h: text with masks is encoded as BERT expects it, and the predictions of a small
 * BERT equal an independent float64 implementation (tests/data/golden/README.md).
 */
#include "golden_model.h"
#include "eval/fill_mask.h"
#include "eval/fill_text.h"

enum { S = 32, B = 4, PADDING = 60 };

/* Ids of tests/data/tokenizers/bert-lower.txt; the special ids are those of the reference, too. */
enum { CLS = 2, SEP, MASK, DOT = 18 };

/* ---- text ---- */

static struct meg_tokenizer *open_bert(void)
{
    const struct meg_tok_conf c = { .type = "BertWordPieceLowerCase",
                                    .vocab_file = golden("../tokenizers/bert-lower.txt"),
                                    .vocab_size = MEG_UNSET,
                                    .vocab_extra_ids = MEG_UNSET };
    struct meg_tokenizer *tok;
    struct meg_err e;

    if (meg_tokenizer_open(&tok, &c, &e) < 0)
        fail_msg("%s", e.msg);
    return tok;
}

static void encodes(const struct meg_fill_text *x, const char *text, const int32_t *want, int64_t n)
{
    struct meg_ids ids = { 0 };
    struct meg_err e;

    if (meg_fill_text_encode(x, text, (int64_t)strlen(text), &ids, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.v, want, (size_t)n * sizeof *want);
    free(ids.v);
}

static void masks_and_separators_are_tokens(void **state)
{
    struct meg_tokenizer *tok = open_bert();
    struct meg_fill_text x;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_fill_text_open(&x, tok, NULL, &e), 0);
    encodes(&x, "", (int32_t[]){ CLS, SEP }, 2);
    encodes(&x, "[MASK]", (int32_t[]){ CLS, MASK, SEP }, 3);
    encodes(&x, ". [MASK][MASK].", (int32_t[]){ CLS, DOT, MASK, MASK, DOT, SEP }, 6);
    encodes(&x, ".[SEP].[MASK]", (int32_t[]){ CLS, DOT, SEP, DOT, MASK, SEP }, 6);
    encodes(&x, "[MASK] [SEP] [MASK]", (int32_t[]){ CLS, MASK, SEP, MASK, SEP }, 5);
    meg_fill_text_close(&x);
    meg_tokenizer_close(tok);
}

static void invalid_text_is_an_error(void **state)
{
    struct meg_tokenizer *tok = open_bert();
    struct meg_ids ids = { 0 };
    struct meg_fill_text x;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_fill_text_open(&x, tok, NULL, &e), 0);
    assert_int_equal(meg_fill_text_encode(&x, "[MASK] \xff", 8, &ids, &e), MEG_EFORMAT);
    free(ids.v);
    meg_fill_text_close(&x);
    meg_tokenizer_close(tok);
}

/* ---- predictions ---- */

/* Compare the log-probabilities of all ids except padding at a mask with the reference logits [v]. */
static void check_top(const struct meg_token_logprob *top, const float *logits, int64_t v, double most)
{
    double sum = 0;

    for (int64_t k = 0; k < v; k++)
        sum += exp((double)logits[k]);
    for (int64_t k = 0; k < v - PADDING; k++) {
        assert_in_range(top[k].id, 0, v - PADDING - 1);
        close_to(top[k].logprob, (double)logits[top[k].id] - log(sum), most, "log-probability");
    }
}

static void predictions_equal_the_reference(void **state)
{
    static const char dir[] = "bert-tiny";
    const struct meg_tok_special_ids special = { .mask = MASK, .sep = SEP };
    const struct meg_tok_conf tc = { .vocab_size = MEG_UNSET, .vocab_extra_ids = MEG_UNSET };
    struct golden_file in = golden_open(in_dir(dir, "inputs.safetensors"));
    struct golden_file expected = golden_open(in_dir(dir, "expected.safetensors"));
    json_t *want = golden_json(in_dir(dir, "expected.json"));
    char *path = strdup(golden(in_dir(dir, "")));
    const struct meg_load_conf lc = { .load = path, .ckpt_step = MEG_UNSET, .device = golden_device_conf() };
    const double most = 20 * number(json_object_get(want, "f32_vs_f64_output_max_abs"), "logits");
    struct meg_token_logprob *top;
    struct meg_loaded_model m;
    int64_t n, v, nmasks = 0, npadding = 0; /* npadding: masks whose most likely id is padding */
    const int64_t *tokens = golden_tensor(&in, "tokens", "I64", &n), *is_token;
    const float *logits = golden_tensor(&expected, "logits", "F32", &n);
    struct meg_err e;

    (void)state;
    is_token = golden_tensor(&in, "padding_mask", "I64", &n);
    if (meg_load_model(&m, &lc, MEG_PREDICT_MASKED, &tc, &e) < 0)
        fail_msg("%s", e.msg);
    v = m.g->conf.vocab_size;
    m.unpadded_vocab = v - PADDING;
    top = malloc((size_t)(S * v) * sizeof *top);
    for (int i = 0; i < B; i++) {
        const struct meg_token_logprob *next = top;
        int32_t ids[S];
        int64_t len = 0;

        for (; len < S && is_token[i * S + len]; len++)
            ids[len] = (int32_t)tokens[i * S + len];
        assert_int_equal(meg_fill_mask_predict(&m, ids, len, &special, top, m.unpadded_vocab, &e), 0);
        for (int64_t t = 0; t < len; t++) {
            if (tokens[i * S + t] != MASK) {
                assert_int_equal(ids[t], tokens[i * S + t]);
                continue;
            }
            assert_int_equal(ids[t], next[0].id);
            assert_in_range(ids[t], 0, m.unpadded_vocab - 1);
            check_top(next, logits + (i * S + t) * v, v, most);
            next += m.unpadded_vocab;
            nmasks++;
            npadding += meg_most_likely(logits + (i * S + t) * v, v) >= m.unpadded_vocab;
        }
    }
    assert_true(nmasks > B);
    assert_true(npadding > 0);
    free(top);
    free(path);
    meg_unload_model(&m);
    json_decref(want);
    golden_close(&expected);
    golden_close(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_and_separators_are_tokens),
        cmocka_unit_test(invalid_text_is_an_error),
        cmocka_unit_test(predictions_equal_the_reference),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
