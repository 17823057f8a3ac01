/*
 * GPT2BPETokenizer and NullTokenizer: compare ids with those of Megatron-LM's classes on every line of the reference
 * vectors in MEG_SHARED, and test a vocabulary trained here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "file/file.h"
#include "tokenizer/bpe/train.h"
#include "tokenizer/tokenizer.h"
#include "tmp.h"

static struct meg_tokenizer *open_gpt2(const char *dir)
{
    struct meg_str vocab = { 0 }, merges = { 0 };
    struct meg_tok_conf c = { .type = "GPT2BPETokenizer", .vocab_size = MEG_UNSET };
    struct meg_tokenizer *t;
    struct meg_err e;

    meg_str_printf(&vocab, "%s/vocab.json", dir);
    meg_str_printf(&merges, "%s/merges.txt", dir);
    c.vocab_file = vocab.s;
    c.merge_file = merges.s;
    if (meg_tokenizer_open(&t, &c, &e) < 0)
        fail_msg("%s", e.msg);
    meg_str_free(&vocab);
    meg_str_free(&merges);
    return t;
}

/* Call fn for each line of a reference file; return the number of lines.  Skip the test without MEG_SHARED. */
static int for_each_line(const char *name, void (*fn)(struct meg_tokenizer *t, const json_t *text, const json_t *ids))
{
    const char *shared = getenv("MEG_SHARED");
    struct meg_str path = { 0 };
    struct meg_tokenizer *t;
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    FILE *f;

    if (!shared) {
        print_message("# MEG_SHARED is not set\n");
        skip();
    }
    meg_str_printf(&path, "%s/data/tokenizers/gpt2", shared);
    t = open_gpt2(path.s);
    path.n = 0;
    meg_str_printf(&path, "%s/golden/tokenizers/%s", shared, name);
    f = fopen(path.s, "r");
    assert_non_null(f);
    for (; getline(&line, &cap, f) > 0; n++) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);

        assert_non_null(j);
        fn(t, json_object_get(j, "text"), json_object_get(j, "ids"));
        json_decref(j);
    }
    fclose(f);
    free(line);
    meg_str_free(&path);
    meg_tokenizer_close(t);
    return n;
}

static void encodes_one(struct meg_tokenizer *t, const json_t *text, const json_t *ids)
{
    struct meg_ids got = { 0 };
    struct meg_err e;
    size_t n = json_string_length(text);
    char *exact = malloc(n + (n == 0)); /* an allocation of exact size, so that ASan detects reads beyond it */

    memcpy(exact, json_string_value(text), n);
    assert_int_equal(meg_tokenizer_encode(t, exact, (int64_t)n, &got, &e), MEG_OK);
    assert_int_equal(got.n, json_array_size(ids));
    for (int64_t i = 0; i < got.n; i++)
        assert_int_equal(got.v[i], json_integer_value(json_array_get(ids, (size_t)i)));
    free(exact);
    free(got.v);
}

static void decodes_one(struct meg_tokenizer *t, const json_t *text, const json_t *ids)
{
    struct meg_str got = { 0 };
    struct meg_ids in = { 0 };
    struct meg_err e;

    for (size_t i = 0; i < json_array_size(ids); i++) {
        meg_ids_reserve(&in, 1);
        in.v[in.n++] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
    assert_int_equal(meg_tokenizer_decode(t, in.v, in.n, &got, &e), MEG_OK);
    assert_int_equal(got.n, json_string_length(text));
    assert_memory_equal(got.s ? got.s : "", json_string_value(text), got.n);
    free(in.v);
    meg_str_free(&got);
}

static void encodes_as_megatron(void **state)
{
    (void)state;
    assert_int_equal(for_each_line("gpt2.jsonl", encodes_one), 440);
}

static void decodes_as_megatron(void **state)
{
    (void)state;
    assert_true(for_each_line("decode/gpt2.jsonl", decodes_one) > 50);
}

/* A vocabulary trained on this text, in a temporary directory. */
static char dir[TMP_NAME];
static const char training_text[] = "the cat sat on the mat; the other cats' mats weren't there \xC3\xA9\xC3\xA9";

static int learn(void **state)
{
    struct meg_bpe_trainer l = { 0 };
    struct meg_bpe_vocab v = { 0 };
    struct meg_err e;

    (void)state;
    if (!tmp_dir(dir, "gpt2"))
        return -1;
    meg_bpe_trainer_count(&l, training_text, (int64_t)strlen(training_text), &e);
    meg_bpe_trainer_run(&l, 280, 0, &v);
    if (meg_bpe_vocab_write(&v, dir, &e) < 0)
        return -1;
    meg_bpe_vocab_free(&v);
    meg_bpe_trainer_free(&l);
    return 0;
}

static int forget(void **state)
{
    (void)state;
    return meg_remove_tree(dir, NULL);
}

static uint64_t lcg(uint64_t *x)
{
    return (*x = *x * 6364136223846793005u + 1442695040888963407u) >> 33;
}

/* Ids do not depend on the texts encoded before, and decode to the text. */
static void ids_do_not_depend_on_the_word_cache(void **state)
{
    struct meg_tokenizer *warm = open_gpt2(dir), *clone = meg_tokenizer_clone(warm);
    uint64_t x = 3;

    (void)state;
    for (int round = 0; round < 300; round++) {
        struct meg_tokenizer *cold = open_gpt2(dir);
        struct meg_ids a = { 0 }, b = { 0 }, c = { 0 };
        struct meg_str text = { 0 }, back = { 0 };
        struct meg_err e;

        for (uint64_t n = lcg(&x) % 60; n > 0; n--) {
            static const char *const parts[] = {
                " the", "cat", "s'", "at ", "o", "\n", "\xC3\xA9", "12", "\xF0\x9F\x98\x80", "matmatmatmatmatmat", "?!"
            };
            const char *part = parts[lcg(&x) % (sizeof parts / sizeof *parts)];

            meg_str_add(&text, part, strlen(part));
        }
        meg_str_add(&text, "", 0);
        assert_int_equal(meg_tokenizer_encode(warm, text.s, (int64_t)text.n, &a, &e), MEG_OK);
        assert_int_equal(meg_tokenizer_encode(cold, text.s, (int64_t)text.n, &b, &e), MEG_OK);
        assert_int_equal(meg_tokenizer_encode(clone, text.s, (int64_t)text.n, &c, &e), MEG_OK);
        assert_int_equal(a.n, b.n);
        assert_int_equal(a.n, c.n);
        if (a.n > 0) {
            assert_memory_equal(a.v, b.v, (size_t)a.n * sizeof *a.v);
            assert_memory_equal(a.v, c.v, (size_t)a.n * sizeof *a.v);
        }
        assert_int_equal(meg_tokenizer_decode(cold, a.v, a.n, &back, &e), MEG_OK);
        assert_int_equal(back.n, text.n);
        assert_memory_equal(back.s ? back.s : "", text.s ? text.s : "", text.n);
        meg_tokenizer_close(cold);
        meg_str_free(&text);
        meg_str_free(&back);
        free(a.v);
        free(b.v);
        free(c.v);
    }
    meg_tokenizer_close(clone);
    meg_tokenizer_close(warm);
}

static void invalid_text_and_ids_are_rejected(void **state)
{
    struct meg_tokenizer *t = open_gpt2(dir);
    struct meg_ids ids = { 0 };
    struct meg_str text = { 0 };
    struct meg_err e;
    const int32_t beyond = (int32_t)meg_tokenizer_vocab_size(t), below = -1;

    (void)state;
    assert_int_equal(meg_tokenizer_encode(t, "ab\xC3", 3, &ids, &e), MEG_EFORMAT);
    assert_string_equal(e.msg, "invalid UTF-8 at byte offset 2 of the text: 0xc3");
    assert_int_equal(ids.n, 0);
    assert_int_equal(meg_tokenizer_decode(t, &beyond, 1, &text, &e), MEG_EFORMAT);
    assert_string_equal(e.msg, "token id 280 is not in the vocabulary, which has ids 0 to 279");
    assert_int_equal(meg_tokenizer_decode(t, &below, 1, &text, &e), MEG_EFORMAT);
    assert_int_equal(text.n, 0);
    assert_int_equal(meg_tokenizer_eod(t), 0);
    assert_int_equal(meg_tokenizer_special_ids(t)->bos, -1);
    assert_int_equal(meg_tokenizer_special_ids(t)->pad, -1);
    meg_tokenizer_close(t);
    meg_str_free(&text);
}

static void descriptions_equal_megatron(void **state)
{
    const struct meg_tok_conf c = { .type = "NullTokenizer", .vocab_size = 1000 };
    struct meg_tokenizer *t;
    struct meg_str want = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_OK);
    assert_string_equal(meg_tokenizer_description(t),
                        "{\n    \"class\": \"_NullTokenizer\",\n    \"tokenizer_path\": [\n"
                        "        null\n    ],\n    \"vocab_size\": \"1000\"\n}");
    assert_int_equal(meg_tokenizer_vocab_size(t), 1001);
    assert_int_equal(meg_tokenizer_eod(t), 1000);
    meg_tokenizer_close(t);
    t = open_gpt2(dir);
    meg_str_printf(&want,
                   "{\n    \"class\": \"_GPT2BPETokenizer\",\n    \"tokenizer_path\": [\n"
                   "        \"%s/vocab.json\",\n        \"%s/merges.txt\"\n    ]\n}",
                   dir, dir);
    assert_string_equal(meg_tokenizer_description(t), want.s);
    meg_tokenizer_close(t);
    meg_str_free(&want);
}

static void null_tokenizer_round_trips_ids(void **state)
{
    const struct meg_tok_conf c = { .type = "NullTokenizer", .vocab_size = 9 };
    struct meg_tokenizer *t;
    struct meg_detok detok = { 0 };
    struct meg_ids ids = { 0 };
    struct meg_str text = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_OK);
    detok.tok = t;
    assert_int_equal(meg_tokenizer_encode(t, "0 9 007", 7, &ids, &e), MEG_OK);
    assert_int_equal(ids.n, 3);
    assert_int_equal(meg_tokenizer_decode(t, ids.v, ids.n, &text, &e), MEG_OK);
    assert_string_equal(text.s, "0 9 7");
    text.n = 0;
    for (int i = 0; i < 3; i++)
        assert_int_equal(meg_detok_add(&detok, ids.v + i, 1, i == 2, &text, &e), MEG_OK);
    assert_string_equal(text.s, "0 9 7");
    meg_detok_free(&detok);
    assert_int_equal(meg_tokenizer_encode(t, "1 10", 4, &ids, &e), MEG_EFORMAT);
    assert_string_equal(e.msg, "token id 10 is not in the vocabulary, which has ids 0 to 9");
    assert_int_equal(ids.n, 3);
    for (size_t i = 0; i < 6; i++) {
        static const char *const bad[] = { " 1", "1 ", "1  2", "-1", "1\t2", "x" };

        assert_int_equal(meg_tokenizer_encode(t, bad[i], (int64_t)strlen(bad[i]), &ids, &e), MEG_EFORMAT);
    }
    meg_tokenizer_close(t);
    meg_str_free(&text);
    free(ids.v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encodes_as_megatron),
        cmocka_unit_test(decodes_as_megatron),
        cmocka_unit_test(ids_do_not_depend_on_the_word_cache),
        cmocka_unit_test(invalid_text_and_ids_are_rejected),
        cmocka_unit_test(descriptions_equal_megatron),
        cmocka_unit_test(null_tokenizer_round_trips_ids),
    };

    return cmocka_run_group_tests(tests, learn, forget);
}
