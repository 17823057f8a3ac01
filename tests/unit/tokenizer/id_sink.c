/* meg_tokenizer_encode_to_sink: ids written to a sink, and its errors, for tokenizers of each implementation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "file/file.h"
#include "sanitized.h"
#include "tokenizer/bpe/train.h"
#include "tokenizer/tokenizer.h"
#include "tmp.h"

enum { NBYTES = 3 << 18, TIMES = 8 };

static char dir[TMP_NAME];
static char file[4][TMP_NAME + 32];
static char text[NBYTES];

static int setup(void **state)
{
    static const char words[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n##a\n##b\n##c\n";
    struct meg_bpe_trainer trainer = { 0 };
    struct meg_bpe_vocab v = { 0 };
    struct meg_err e;

    (void)state;
    if (!tmp_dir(dir, "id-sink"))
        return -1;
    for (int i = 0; i < 4; i++)
        snprintf(file[i], sizeof file[i], "%s/%s", dir,
                 ((const char *[]){ "vocab.json", "merges.txt", "vocab.txt", "tokenizer.json" })[i]);
    meg_bpe_trainer_count(&trainer, "a b c abc cab", 13, &e);
    meg_bpe_trainer_run(&trainer, 262, 0, &v);
    if (meg_bpe_vocab_write(&v, dir, &e) < 0 || meg_write_file(file[2], words, sizeof words - 1, &e) < 0)
        return -1;
    meg_bpe_vocab_free(&v);
    meg_bpe_trainer_free(&trainer);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return meg_remove_tree(dir, NULL);
}

/* A sink that appends to an array and fails at one call. */
struct collector {
    struct meg_ids ids;
    int calls, fail_at; /* fail_at: number of the call, from 1; 0: never */
};

static int collect(void *ctx, int32_t *ids, int64_t n, struct meg_err *e)
{
    struct collector *c = ctx;

    if (++c->calls == c->fail_at)
        return meg_fail(e, MEG_EIO, "the sink is full");
    meg_ids_reserve(&c->ids, n);
    memcpy(c->ids.v + c->ids.n, ids, (size_t)n * sizeof *ids);
    c->ids.n += n;
    memset(ids, 0xFF, (size_t)n * sizeof *ids); /* the sink may overwrite them */
    return 0;
}

/* Encode the text TIMES times; append all ids to out->ids. */
static int encode_all(struct meg_tokenizer *t, struct collector *out, struct meg_err *e)
{
    const struct meg_id_sink sink = { out, collect };
    struct meg_ids rest = { 0 };
    int r = 0;

    for (int i = 0; i < TIMES && r == 0; i++)
        r = meg_tokenizer_encode_to_sink(t, text, sizeof text, &rest, &sink, e);
    if (r == 0) {
        assert_true(rest.n > 0);
        meg_ids_reserve(&out->ids, rest.n);
        memcpy(out->ids.v + out->ids.n, rest.v, (size_t)rest.n * sizeof *rest.v);
        out->ids.n += rest.n;
    }
    free(rest.v);
    return r;
}

static void check(const struct meg_tok_conf *c)
{
    struct collector got = { 0 }, failed = { .fail_at = 2 };
    struct meg_tokenizer *t;
    struct meg_ids want = { 0 };
    struct meg_err e;

    if (meg_tokenizer_open(&t, c, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < TIMES; i++)
        if (meg_tokenizer_encode(t, text, sizeof text, &want, &e) < 0)
            fail_msg("%s %s: %s", c->type, c->tokenizer_model ? c->tokenizer_model : "", e.msg);
    if (encode_all(t, &got, &e) < 0)
        fail_msg("%s %s: %s", c->type, c->tokenizer_model ? c->tokenizer_model : "", e.msg);
    assert_true(want.n < 2 * MEG_IDS_FLUSH_COUNT || got.calls >= 2);
    assert_int_equal(got.ids.n, want.n);
    assert_memory_equal(got.ids.v, want.v, (size_t)want.n * sizeof *want.v);
    if (got.calls >= 2) {
        assert_int_equal(encode_all(t, &failed, &e), MEG_EIO);
        assert_string_equal(e.msg, "the sink is full");
        assert_int_equal(failed.calls, 2);
        want.n = 0;
        assert_int_equal(meg_tokenizer_encode(t, text, sizeof text, &want, &e), 0); /* the tokenizer is still usable */
        assert_int_equal(want.n, got.ids.n / TIMES);
        assert_memory_equal(got.ids.v, want.v, (size_t)want.n * sizeof *want.v);
    }
    meg_tokenizer_close(t);
    free(want.v);
    free(got.ids.v);
    free(failed.ids.v);
}

static struct meg_tok_conf conf_of(const char *type)
{
    return (struct meg_tok_conf){ .type = type, .vocab_extra_ids = MEG_UNSET, .vocab_size = MEG_UNSET };
}

/* Fill the text with random letters of "abc", each followed by a space if has_spaces, else as one long word. */
static void fill_text(bool has_spaces)
{
    uint32_t x = 1;

    for (int i = 0; i < NBYTES; i++) {
        x = x * 1664525 + 1013904223;
        text[i] = has_spaces && i % 2 ? ' ' : "abc"[(x >> 16) % 3];
    }
}

static void ids_of_a_null_tokenizer_equal_those_without_a_sink(void **state)
{
    struct meg_tok_conf c = conf_of("NullTokenizer");

    (void)state;
    for (int i = 0; i < NBYTES; i++)
        text[i] = i % 2 ? ' ' : (char)('0' + i / 2 % 10);
    text[NBYTES - 1] = '0'; /* a text ends with a digit */
    c.vocab_size = 99;
    check(&c);
}

static void ids_of_texts_equal_those_without_a_sink(void **state)
{
    (void)state;
    for (int has_spaces = 0; has_spaces < 2; has_spaces++) {
        struct meg_tok_conf c = conf_of("GPT2BPETokenizer");

        fill_text(has_spaces);
        c.vocab_file = file[0];
        c.merge_file = file[1];
        check(&c);
        c = conf_of("HuggingFaceTokenizer");
        c.tokenizer_model = file[3];
        check(&c);
        c = conf_of("BertWordPieceLowerCase");
        c.vocab_file = file[2];
        check(&c);
        for (int i = 0; i < 6; i += IS_SANITIZED ? 3 : 1) { /* 3 is a unigram model, the others are BPE */
            char path[64];

            snprintf(path, sizeof path, "tests/data/spm/%d.model", i);
            c = conf_of(i % 2 ? "Llama2Tokenizer" : "GPTSentencePieceTokenizer");
            c.tokenizer_model = path;
            check(&c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_of_a_null_tokenizer_equal_those_without_a_sink),
        cmocka_unit_test(ids_of_texts_equal_those_without_a_sink),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
