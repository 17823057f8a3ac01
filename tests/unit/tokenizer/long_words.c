/*
 * Encoding and decoding of long texts without a split point take O(n) or O(n log n) time.  A text of four times the
 * length may need ten times the CPU time plus one second for a busy machine; a quadratic algorithm would need sixteen
 * times several seconds.
 */
#include "tok_golden.h"

#include <time.h>

enum { NBYTES = 200000 };

/* Return a text of at least nbytes, of random strings out of `some` [n]. */
static struct meg_str make_text(size_t nbytes, const char *const *some, uint32_t n)
{
    struct meg_str s = { 0 };
    uint32_t x = 1;

    while (s.n < nbytes) {
        x = x * 1664525 + 1013904223;
        meg_str_printf(&s, "%s", some[(x >> 16) % n]);
    }
    return s;
}

static const char *const letters[] = { "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m",
                                       "n", "o", "p", "q", "r", "s", "t", "u", "v", "w", "x", "y", "z" };
static const char *const spaces[] = { " ", "\n", "\t", "\xC2\xA0" };
static const char *const emoji[] = { "\xF0\x9F\x98\x80", "\xF0\x9F\x98\x81",
                                     "\xF0\x9F\x98\x82", "\xF0\x9F\x91\xA9\xE2\x80\x8D",
                                     "\xF0\x9F\x8F\xBD", "\xEF\xB8\x8F" };
static const struct {
    const char *what;
    const char *const *some;
    uint32_t n;
} texts[] = {
    { "one letter", letters, 1 },
    { "random letters", letters, 26 },
    { "spaces", spaces, 1 },
    { "newlines", spaces + 1, 1 },
    { "mixed spaces", spaces, 4 },
    { "hyphens", (const char *const[]){ "-" }, 1 },
    { "one emoji", emoji, 1 },
    { "emoji", emoji, 6 },
    { "one accent", (const char *const[]){ "\xCC\x81" }, 1 },
    { "ligatures", (const char *const[]){ "\xEF\xB7\xBA" }, 1 }, /* NFKC expands it to 18 characters */
};
enum { TEXTS = sizeof texts / sizeof *texts };

/*
 * Encode nbytes of text i and decode it at once and token by token; return the CPU seconds.  Both results are equal
 * and, if is_lossless, equal the text.
 */
static double seconds_of(struct meg_tokenizer *t, int i, size_t nbytes, bool is_lossless)
{
    struct meg_str text = make_text(nbytes, texts[i].some, texts[i].n), complete = { 0 }, parts = { 0 };
    struct meg_detok detok = { .tok = t };
    struct meg_ids ids = { 0 };
    const clock_t start = clock();
    struct meg_err e;
    double s;

    if (meg_tokenizer_encode(t, text.s, (int64_t)text.n, &ids, &e) < 0 ||
        meg_tokenizer_decode(t, ids.v, ids.n, &complete, &e) < 0)
        fail_msg("%s: %s", texts[i].what, e.msg);
    for (int64_t k = 0; k < ids.n; k++)
        assert_int_equal(meg_detok_add(&detok, &ids.v[k], 1, false, &parts, &e), MEG_OK);
    assert_int_equal(meg_detok_add(&detok, NULL, 0, true, &parts, &e), MEG_OK);
    s = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_int_equal(parts.n, complete.n);
    assert_memory_equal(parts.s ? parts.s : "", complete.s ? complete.s : "", complete.n);
    if (is_lossless) {
        assert_int_equal(complete.n, text.n);
        assert_memory_equal(complete.s, text.s, text.n);
    }
    meg_str_free(&text);
    meg_str_free(&complete);
    meg_str_free(&parts);
    meg_detok_free(&detok);
    free(ids.v);
    return s;
}

static void stays_fast(const struct meg_tok_conf *c, bool is_lossless)
{
    struct meg_tokenizer *t;
    struct meg_err e;

    if (meg_tokenizer_open(&t, c, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < TEXTS; i++) {
        const double part = seconds_of(t, i, NBYTES / 4, is_lossless), all = seconds_of(t, i, NBYTES, is_lossless);

        if (all > 10 * part + 1)
            fail_msg("%s: %g s of CPU for %d bytes, and %g for a quarter", texts[i].what, all, NBYTES, part);
    }
    meg_tokenizer_close(t);
}

static struct meg_tok_conf conf_of(const char *type)
{
    return (struct meg_tok_conf){
        .type = type, .vocab_extra_ids = MEG_UNSET, .vocab_size = MEG_UNSET, .tiktoken_num_special_tokens = 1000
    };
}

static void small_sentencepiece_models(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) { /* unigram and BPE */
        struct meg_tok_conf c = conf_of("GPTSentencePieceTokenizer");
        char path[64];

        snprintf(path, sizeof path, "tests/data/spm/%d.model", i);
        c.tokenizer_model = path;
        print_message("# %s\n", path);
        stays_fast(&c, false);
    }
}

static void real_model(const char *type, const char *name, bool is_lossless)
{
    struct meg_tok_conf c = conf_of(type);
    char *file = tok_file(name);

    c.tokenizer_model = file;
    stays_fast(&c, is_lossless);
    free(file);
}

#define MODEL(id, type, name, is_lossless)                                                                             \
    static void id(void **state)                                                                                       \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        real_model(type, name, is_lossless);                                                                           \
    }
MODEL(hf_gpt2, "HuggingFaceTokenizer", "gpt2", true)
MODEL(hf_llama3, "HuggingFaceTokenizer", "llama3", false) /* prepends <|begin_of_text|> */
MODEL(hf_qwen2, "HuggingFaceTokenizer", "qwen2", false)   /* normalizes to NFC */
MODEL(hf_falcon, "HuggingFaceTokenizer", "falcon", true)
MODEL(hf_llama2, "HuggingFaceTokenizer", "llama2", false)
MODEL(hf_t5, "HuggingFaceTokenizer", "t5", false)
MODEL(hf_bert, "HuggingFaceTokenizer", "bert-base-uncased", false)
MODEL(tiktoken_llama3, "TikTokenizer", "llama3/tokenizer.model", true)
MODEL(spm_t5, "GPTSentencePieceTokenizer", "t5/spiece.model", false)
MODEL(spm_llama2, "Llama2Tokenizer", "llama2/tokenizer.model", false)
MODEL(megatron_t5, "SentencePieceTokenizer", "t5/spiece.model", false)

static void gpt2(void **state)
{
    struct meg_tok_conf c = conf_of("GPT2BPETokenizer");
    char *vocab = tok_file("gpt2/vocab.json"), *merges = tok_file("gpt2/merges.txt");

    (void)state;
    c.vocab_file = vocab;
    c.merge_file = merges;
    stays_fast(&c, true);
    free(vocab);
    free(merges);
}

static void bert(void **state)
{
    struct meg_tok_conf c = conf_of("BertWordPieceLowerCase");
    char *vocab = tok_file("bert-base-uncased/vocab.txt");

    (void)state;
    c.vocab_file = vocab;
    stays_fast(&c, false);
    free(vocab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_sentencepiece_models),
        cmocka_unit_test(gpt2),
        cmocka_unit_test(bert),
        cmocka_unit_test(hf_gpt2),
        cmocka_unit_test(hf_llama3),
        cmocka_unit_test(hf_qwen2),
        cmocka_unit_test(hf_falcon),
        cmocka_unit_test(hf_llama2),
        cmocka_unit_test(hf_t5),
        cmocka_unit_test(hf_bert),
        cmocka_unit_test(tiktoken_llama3),
        cmocka_unit_test(spm_t5),
        cmocka_unit_test(spm_llama2),
        cmocka_unit_test(megatron_t5),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
