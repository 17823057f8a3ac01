/*
 * SentencePieceTokenizer, GPTSentencePieceTokenizer and Llama2Tokenizer: the ids and texts of
 * SentencePiece 0.1.97 and of Megatron-LM's classes on every line of the golden vectors, where
 * MEG_SHARED has them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "text/tokenizer.h"

static const struct vectors {
    const char *name, *type, *model;
    int64_t extra_ids;
} vectors[] = {
    { "spm-t5", "GPTSentencePieceTokenizer", "t5/spiece.model", 0 },
    { "spm-llama2", "GPTSentencePieceTokenizer", "llama2/tokenizer.model", 0 },
    { "spm-mistral-v1", "GPTSentencePieceTokenizer", "mistral-v1/tokenizer.model", 0 },
    { "spm-mistral-v3", "GPTSentencePieceTokenizer", "mistral-v3/tokenizer.model", 0 },
    { "spm-test-unigram", "GPTSentencePieceTokenizer", "spm-test-unigram/tokenizer.model", 0 },
    { "spm-test-ja", "GPTSentencePieceTokenizer", "spm-test-ja/tokenizer.model", 0 },
    { "megatron-llama2", "Llama2Tokenizer", "llama2/tokenizer.model", 0 },
    { "megatron-sentencepiece-t5", "SentencePieceTokenizer", "t5/spiece.model", 100 },
    { "megatron-sentencepiece-llama2", "SentencePieceTokenizer", "llama2/tokenizer.model", 0 },
};
enum { VECTORS = sizeof vectors / sizeof *vectors };

static struct meg_tokenizer *open_model(const char *type, const char *path, int64_t extra_ids)
{
    const struct meg_tok_conf c = {
        .type = type, .tokenizer_model = path, .vocab_extra_ids = extra_ids, .vocab_size = MEG_UNSET
    };
    struct meg_tokenizer *t = NULL;
    struct meg_err e;

    if (meg_tokenizer_open(&t, &c, &e) < 0)
        fail_msg("%s", e.msg);
    return t;
}

/* The tokenizer of one of the vectors; skips where there are none. */
static struct meg_tokenizer *open_shared(const struct vectors *v)
{
    const char *shared = getenv("MEG_SHARED");
    char path[4096];

    if (!shared) {
        print_message("# MEG_SHARED is not set\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/data/tokenizers/%s", shared, v->model);
    return open_model(v->type, path, v->extra_ids);
}

/* Give every line of a golden file to fn; returns how many. */
static int for_each_line(const char *folder, const char *name, struct meg_tokenizer *t,
                         void (*fn)(struct meg_tokenizer *t, const json_t *text, const json_t *ids))
{
    char path[4096], *line = NULL;
    size_t cap = 0;
    int n = 0;
    FILE *f;

    snprintf(path, sizeof path, "%s/golden/tokenizers/%s%s.jsonl", getenv("MEG_SHARED"), folder,
             name);
    f = fopen(path, "r");
    assert_non_null(f);
    for (; getline(&line, &cap, f) > 0; n++) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);

        assert_non_null(j);
        fn(t, json_object_get(j, "text"), json_object_get(j, "ids"));
        json_decref(j);
    }
    fclose(f);
    free(line);
    return n;
}

static void encodes_one(struct meg_tokenizer *t, const json_t *text, const json_t *ids)
{
    size_t n = json_string_length(text);
    struct meg_ids got = { 0 };
    char *exact = malloc(n + (n == 0)); /* memory of its own: ASan sees reads behind it */
    struct meg_err e;

    memcpy(exact, json_string_value(text), n);
    assert_int_equal(meg_tokenizer_encode(t, exact, (int64_t)n, &got, &e), MEG_OK);
    for (int64_t i = 0; i < got.n && i < (int64_t)json_array_size(ids); i++) {
        if (got.v[i] != json_integer_value(json_array_get(ids, (size_t)i)))
            fail_msg("'%s': id %lld is %d, want %lld", json_string_value(text), (long long)i,
                     got.v[i], (long long)json_integer_value(json_array_get(ids, (size_t)i)));
    }
    assert_int_equal(got.n, json_array_size(ids));
    free(exact);
    free(got.v);
}

/* All at once and, without ever taking anything back, one id after the other. */
static void decodes_one(struct meg_tokenizer *t, const json_t *text, const json_t *ids)
{
    struct meg_str whole = { 0 }, grown = { 0 };
    struct meg_detok d = { .tok = t };
    struct meg_ids in = { 0 };
    struct meg_err e;

    for (size_t i = 0; i < json_array_size(ids); i++) {
        meg_ids_reserve(&in, 1);
        in.v[in.n++] = (int32_t)json_integer_value(json_array_get(ids, i));
        assert_int_equal(meg_detok_add(&d, in.v + i, 1, false, &grown, &e), MEG_OK);
    }
    assert_int_equal(meg_detok_add(&d, NULL, 0, true, &grown, &e), MEG_OK);
    assert_int_equal(meg_tokenizer_decode(t, in.v, in.n, &whole, &e), MEG_OK);
    meg_str_add(&whole, "", 0);
    meg_str_add(&grown, "", 0);
    assert_string_equal(whole.s, json_string_value(text));
    assert_int_equal(whole.n, json_string_length(text));
    assert_int_equal(grown.n, whole.n);
    assert_memory_equal(grown.s, whole.s, whole.n);
    meg_detok_free(&d);
    meg_str_free(&whole);
    meg_str_free(&grown);
    free(in.v);
}

static void encodes_as_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < VECTORS; i++) {
        struct meg_tokenizer *t = open_shared(&vectors[i]);

        print_message("# %s\n", vectors[i].name);
        assert_int_equal(for_each_line("", vectors[i].name, t, encodes_one), 440);
        /* and again, with every word remembered */
        assert_int_equal(for_each_line("", vectors[i].name, t, encodes_one), 440);
        meg_tokenizer_close(t);
    }
}

static void decodes_as_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < VECTORS; i++) {
        struct meg_tokenizer *t = open_shared(&vectors[i]);

        print_message("# %s\n", vectors[i].name);
        assert_true(for_each_line("decode/", vectors[i].name, t, decodes_one) > 50);
        meg_tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encodes_as_the_reference),
        cmocka_unit_test(decodes_as_the_reference),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
