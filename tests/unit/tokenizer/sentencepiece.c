/*
 * SentencePieceTokenizer, GPTSentencePieceTokenizer and Llama2Tokenizer: ids and texts equal those of SentencePiece
 * 0.1.97 with random models (tests/data/spm, made by tests/peers/spm.py reference 1 16) and, with MEG_SHARED, those of
 * Megatron-LM's classes on every line of the golden vectors.  Also: refused models, special ids, word caching.
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

#include "file/file.h"
#include "tokenizer/tokenizer.h"
#include "tmp.h"

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

/* Open the tokenizer of one of the vectors; skip the test without MEG_SHARED. */
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

/* Call fn with every line of a file; return their number. */
static int for_each_line(const char *path, struct meg_tokenizer *t,
                         void (*fn)(struct meg_tokenizer *t, const json_t *line))
{
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    FILE *f = fopen(path, "r");

    assert_non_null(f);
    for (; getline(&line, &cap, f) > 0; n++) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);

        assert_non_null(j);
        fn(t, j);
        json_decref(j);
    }
    fclose(f);
    free(line);
    return n;
}

static int for_each_golden(const char *folder, const char *name, struct meg_tokenizer *t,
                           void (*fn)(struct meg_tokenizer *t, const json_t *line))
{
    char path[4096];

    snprintf(path, sizeof path, "%s/golden/tokenizers/%s%s.jsonl", getenv("MEG_SHARED"), folder, name);
    return for_each_line(path, t, fn);
}

static void check_encode(struct meg_tokenizer *t, const json_t *text, const json_t *ids)
{
    size_t n = json_string_length(text);
    struct meg_ids got = { 0 };
    char *exact = malloc(n + (n == 0)); /* allocated exactly, so that ASan reports reads past the end */
    struct meg_err e;

    memcpy(exact, json_string_value(text), n);
    assert_int_equal(meg_tokenizer_encode(t, exact, (int64_t)n, &got, &e), 0);
    for (int64_t i = 0; i < got.n && i < (int64_t)json_array_size(ids); i++) {
        if (got.v[i] != json_integer_value(json_array_get(ids, (size_t)i)))
            fail_msg("'%s': id %lld is %d, want %lld", json_string_value(text), (long long)i, got.v[i],
                     (long long)json_integer_value(json_array_get(ids, (size_t)i)));
    }
    assert_int_equal(got.n, json_array_size(ids));
    free(exact);
    free(got.v);
}

/* Decode all ids at once, and one by one; both results must equal text. */
static void check_decode(struct meg_tokenizer *t, const json_t *text, const json_t *ids)
{
    struct meg_str at_once = { 0 }, one_by_one = { 0 };
    struct meg_detok d = { .tok = t };
    struct meg_ids in = { 0 };
    struct meg_err e;

    for (size_t i = 0; i < json_array_size(ids); i++) {
        meg_ids_reserve(&in, 1);
        in.v[in.n++] = (int32_t)json_integer_value(json_array_get(ids, i));
        assert_int_equal(meg_detok_add(&d, in.v + i, 1, false, &one_by_one, &e), 0);
    }
    assert_int_equal(meg_detok_add(&d, NULL, 0, true, &one_by_one, &e), 0);
    assert_int_equal(meg_tokenizer_decode(t, in.v, in.n, &at_once, &e), 0);
    meg_str_add(&at_once, "", 0);
    meg_str_add(&one_by_one, "", 0);
    assert_string_equal(at_once.s, json_string_value(text));
    assert_int_equal(at_once.n, json_string_length(text));
    assert_int_equal(one_by_one.n, at_once.n);
    assert_memory_equal(one_by_one.s, at_once.s, at_once.n);
    meg_detok_free(&d);
    meg_str_free(&at_once);
    meg_str_free(&one_by_one);
    free(in.v);
}

static void encodes_one(struct meg_tokenizer *t, const json_t *line)
{
    check_encode(t, json_object_get(line, "text"), json_object_get(line, "ids"));
}

static void decodes_one(struct meg_tokenizer *t, const json_t *line)
{
    check_decode(t, json_object_get(line, "text"), json_object_get(line, "ids"));
}

/* Check a line of tests/data/spm. */
static void does_one(struct meg_tokenizer *t, const json_t *line)
{
    const json_t *text = json_object_get(line, "encode"), *ids = json_object_get(line, "decode");

    if (text)
        check_encode(t, text, json_object_get(line, "ids"));
    else
        check_decode(t, json_object_get(line, "text"), ids);
}

static void random_models_equal_sentencepiece(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        char path[64];
        struct meg_tokenizer *t;

        snprintf(path, sizeof path, "tests/data/spm/%d.model", i);
        t = open_model("GPTSentencePieceTokenizer", path, MEG_UNSET);
        snprintf(path, sizeof path, "tests/data/spm/%d.jsonl", i);
        assert_int_equal(for_each_line(path, t, does_one), 60);
        assert_int_equal(for_each_line(path, t, does_one), 60);
        meg_tokenizer_close(t);
    }
}

static void real_models_encode_as_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < VECTORS; i++) {
        struct meg_tokenizer *t = open_shared(&vectors[i]);

        print_message("# %s\n", vectors[i].name);
        assert_int_equal(for_each_golden("", vectors[i].name, t, encodes_one), 440);
        /* again, with every word in the cache */
        assert_int_equal(for_each_golden("", vectors[i].name, t, encodes_one), 440);
        meg_tokenizer_close(t);
    }
}

static void real_models_decode_as_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < VECTORS; i++) {
        struct meg_tokenizer *t = open_shared(&vectors[i]);

        print_message("# %s\n", vectors[i].name);
        assert_true(for_each_golden("decode/", vectors[i].name, t, decodes_one) > 50);
        meg_tokenizer_close(t);
    }
}

/* ---- Small models ---- */

/* Append fields of a Protocol Buffers message. */
static void add_varint(struct meg_str *m, uint64_t n)
{
    for (; n > 127; n >>= 7)
        meg_str_add(m, (const char[]){ (char)(n | 128) }, 1);
    meg_str_add(m, (const char[]){ (char)n }, 1);
}

static void add_number(struct meg_str *m, int field, uint64_t n)
{
    add_varint(m, (uint64_t)field << 3);
    add_varint(m, n);
}

static void add_bytes(struct meg_str *m, int field, const void *bytes, size_t n)
{
    add_varint(m, (uint64_t)field << 3 | 2);
    add_varint(m, n);
    meg_str_add(m, bytes, n);
}

static void add_piece(struct meg_str *m, const char *text, float score, int type)
{
    struct meg_str piece = { 0 };

    add_bytes(&piece, 1, text, strlen(text));
    add_varint(&piece, 2 << 3 | 5);
    meg_str_add(&piece, &score, 4);
    if (type != 1)
        add_number(&piece, 3, (uint64_t)type);
    add_bytes(m, 1, piece.s, piece.n);
    meg_str_free(&piece);
}

static char dir[TMP_NAME];

/* Write m to a file, and return its name. */
static const char *write_model(const struct meg_str *m)
{
    static char path[TMP_PATH];
    FILE *f;

    snprintf(path, sizeof path, "%s/model", dir);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(m->s, 1, m->n, f), m->n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static int make_dir(void **state)
{
    (void)state;
    return tmp_dir(dir, "spm") ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return meg_remove_tree(dir, NULL);
}

/*
 * The scores of the two segmentations of "xy" differ by less than the rounding error of a large score, so its ids
 * depend on the text before it.  They must not depend on texts that were encoded earlier.
 */
static void rounding_does_not_enter_the_cache(void **state)
{
    struct meg_str m = { 0 }, text = { 0 };
    struct meg_tokenizer *t;
    struct meg_ids alone = { 0 }, ids = { 0 };
    struct meg_err e;
    int differs = 0;

    (void)state;
    add_piece(&m, "<unk>", 0, 2);
    add_piece(&m, "\xE2\x96\x81", -1, 1);
    add_piece(&m, "x", -20.03125f, 1);
    add_piece(&m, "y", -20.015625f, 1);
    add_piece(&m, "xy", -40.0625f, 1);
    add_piece(&m, "z", -39.f, 1);
    t = open_model("GPTSentencePieceTokenizer", write_model(&m), MEG_UNSET);
    for (int i = 0; i < 40000; i++)
        meg_str_add(&text, "z ", 2);
    meg_str_add(&text, "xy", 2);
    for (size_t k = 0; k < 4; k++) { /* the score is about -1600000, where floats are 1/8 apart */
        ids.n = alone.n = 0;
        assert_int_equal(meg_tokenizer_encode(t, text.s + k * 2, (int64_t)(text.n - k * 2), &ids, &e), 0);
        differs += ids.v[ids.n - 1] == 4;
        assert_int_equal(meg_tokenizer_encode(t, "xy", 2, &alone, &e), 0);
        assert_int_equal(alone.n, 3);
        assert_int_equal(alone.v[1], 2);
        assert_int_equal(alone.v[2], 3);
    }
    assert_true(differs > 0);
    meg_tokenizer_close(t);
    meg_str_free(&m);
    meg_str_free(&text);
    free(ids.v);
    free(alone.v);
}

/* Check that model m is refused with a message that contains the text `words`. */
static void is_refused(const struct meg_str *m, const char *words)
{
    const struct meg_tok_conf c = { .type = "GPTSentencePieceTokenizer",
                                    .tokenizer_model = write_model(m),
                                    .vocab_extra_ids = MEG_UNSET,
                                    .vocab_size = MEG_UNSET };
    struct meg_tokenizer *t = NULL;
    struct meg_err e;

    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_EFORMAT);
    if (strncmp(e.msg, c.tokenizer_model, strlen(c.tokenizer_model)) != 0 || !strstr(e.msg, words))
        fail_msg("'%s' does not say '%s'", e.msg, words);
}

static void malformed_messages_are_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *words;
    } bad[] = {
        { "", 0, ": the file has no pieces" },
        { "\x0A", 1, ": byte 1: the message ends within a varint" },
        { "\x0A\x05"
          "abc",
          5, ": byte 1: the value has 5 bytes, but only 3 are left in the message" },
        { "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", 11, ": byte 1: the varint has more than 64 bits" },
        { "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 11, "the value has 18446744073709551615 bytes" },
        { "\x0B", 1, ": byte 0: field 1 has wire type 3" },
        { "\x02\x00", 2, ": byte 0: field number 0 is invalid" },
        { "\x08\x01", 2, "a piece has wire type 0; it must be 2" },
        { "\x0A\x02\x08\x01", 4, ": byte 2: the text of a piece has wire type 0; it must be 2" },
        { "\x0A\x04\x15\x00\x00\x00", 6, ": byte 3: the value has 4 bytes, but only 3 are left in the message" },
        { "\x0A\x03\x0A\x01\xFF", 5, ": byte 4: the text of a piece is not UTF-8" },
        { "\x0A\x03\x0A\x01\x00", 5, "the text of a piece contains a zero byte" },
        { "\x0A\x00", 2, "piece 0 has 0 bytes" },
        { "\x0A\x05\x0A\x01"
          "a\x18\x07",
          7, "piece 0 has type 7; expected 1 to 6" },
        { "\x0A\x0E\x0A\x01"
          "a\x18\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01",
          16, "piece 0 has type -1" },
        { "\x0A\x08\x0A\x01"
          "a\x15\x00\x00\x80\x7F",
          10, "piece 0 has score inf" },
        { "\x12\x02\x18\x03", 4, ": byte 2: model type 3 (words) is not supported" },
        { "\x1A\x06\x12\x04\x04\x00\x00\x00", 8, "precompiled_charsmap: byte 0: the trie has 4" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct meg_str m = { 0 };

        meg_str_add(&m, bad[i].bytes, bad[i].n);
        is_refused(&m, bad[i].words);
        meg_str_free(&m);
    }
}

static void invalid_models_are_refused(void **state)
{
    struct meg_str m = { 0 }, trainer = { 0 };

    (void)state;
    add_piece(&m, "a", -1, 1);
    is_refused(&m, "none of the 1 pieces has type UNKNOWN");
    add_piece(&m, "<unk>", 0, 2);
    add_piece(&m, "a", -2, 4);
    is_refused(&m, ": byte 28: piece 2 has the text 'a' of an earlier piece");
    m.n = 0;
    add_piece(&m, "<unk>", 0, 2);
    add_piece(&m, "<unk2>", 0, 2);
    is_refused(&m, "pieces 0 and 1 are both of type UNKNOWN");
    m.n = 0;
    add_piece(&m, "<unk>", 0, 2);
    add_piece(&m, "<s>", 0, 3);
    is_refused(&m, "none of the 2 pieces has type NORMAL, USER_DEFINED or UNUSED");
    add_piece(&m, "a", 0, 1);
    add_piece(&m, "<0x4G>", 0, 6);
    is_refused(&m, "its text '<0x4G>' is not of the form <0xNN>");
    m.n = 0;
    add_piece(&m, "<unk>", 0, 2);
    add_piece(&m, "a", 0, 1);
    add_piece(&m, "<0x41>", 0, 6);
    is_refused(&m, "byte_fallback is not set");
    add_number(&trainer, 35, 1);
    add_bytes(&m, 2, trainer.s, trainer.n);
    is_refused(&m, "there is no piece <0x00>");
    meg_str_free(&m);
    meg_str_free(&trainer);
}

/*
 * Append a precompiled character map: a trie of 256 units, of which unit `at` is as given and the others are 0, and the
 * replacements texts [ntexts].
 */
static void add_map(struct meg_str *m, int at, uint32_t unit, const char *texts, size_t ntexts)
{
    uint32_t block[257] = { 1024 };
    struct meg_str map = { 0 }, rules = { 0 };

    block[1 + at] = unit;
    meg_str_add(&map, block, sizeof block);
    meg_str_add(&map, texts, ntexts);
    add_bytes(&rules, 2, map.s, map.n);
    add_bytes(m, 3, rules.s, rules.n);
    meg_str_free(&map);
    meg_str_free(&rules);
}

static void invalid_character_maps_are_refused(void **state)
{
    struct meg_str m = { 0 };

    (void)state;
    add_map(&m, 7, 1 << 10 | 1 << 9, "x", 2);
    is_refused(&m, "byte 32: unit 7 refers to unit 263, but the trie has 256");
    m.n = 0;
    add_map(&m, 0, 1u << 31 | 2, "x", 2);
    is_refused(&m, "byte 4: unit 0 refers to offset 2, where no replacement begins");
    m.n = 0;
    add_map(&m, 0, 1u << 31 | 1, "\xC3\xA9", 3);
    is_refused(&m, "refers to offset 1, where no replacement begins");
    m.n = 0;
    add_map(&m, 0, 0, "x", 1);
    is_refused(&m, "expected the zero byte that ends the last replacement");
    m.n = 0;
    add_map(&m, 0, 0, "\xC3", 2);
    is_refused(&m, "byte 1028: invalid UTF-8 in a replacement");
    meg_str_free(&m);
}

/* Compare special ids, vocabulary size, description, and the encoding and decoding of added tokens. */
static void special_tokens_equal_megatron(void **state)
{
    struct meg_str m = { 0 }, text = { 0 };
    struct meg_tokenizer *t;
    const struct meg_tok_special_ids *r;
    struct meg_ids ids = { 0 };
    struct meg_err e;

    (void)state;
    add_piece(&m, "<pad>", 0, 3);
    add_piece(&m, "<unk>", 0, 2);
    add_piece(&m, "</s>", 0, 3);
    add_piece(&m, "\xE2\x96\x81", -1, 1);
    add_piece(&m, "a", -1, 1);
    t = open_model("SentencePieceTokenizer", write_model(&m), 2);
    r = meg_tokenizer_special_ids(t);
    assert_int_equal(r->cls, 5);
    assert_int_equal(r->sep, 6);
    assert_int_equal(r->eod, 7);
    assert_int_equal(r->mask, 8);
    assert_int_equal(r->pad, 0);
    assert_int_equal(r->bos, 9);
    assert_int_equal(r->eos, 2);
    assert_int_equal(meg_tokenizer_vocab_size(t), 12);
    assert_int_equal(meg_tokenizer_encode(t, "a</s><extra_id_1>a <EOD", 23, &ids, &e), 0);
    assert_memory_equal(ids.v, ((const int32_t[]){ 3, 4, 2, 11, 3, 4, 3, 1 }), 8 * sizeof *ids.v);
    assert_int_equal(ids.n, 8);
    assert_int_equal(meg_tokenizer_decode(t, ids.v, ids.n, &text, &e), 0);
    assert_string_equal(text.s, "a </s>  <extra_id_1> a  \xE2\x81\x87 ");
    assert_non_null(strstr(meg_tokenizer_description(t), "\"class\": \"_SentencePieceTokenizer\""));
    assert_non_null(strstr(meg_tokenizer_description(t), "\"vocab_extra_ids\": \"2\""));
    meg_tokenizer_close(t);

    t = open_model("GPTSentencePieceTokenizer", write_model(&m), MEG_UNSET);
    r = meg_tokenizer_special_ids(t);
    assert_int_equal(r->eod, 2);
    assert_int_equal(r->pad, 0);
    assert_int_equal(r->bos, -1);
    assert_int_equal(r->cls, -1);
    assert_int_equal(meg_tokenizer_vocab_size(t), 5);
    meg_tokenizer_close(t);
    meg_str_free(&m);
    meg_str_free(&text);
    free(ids.v);
}

static void the_trainer_spec_names_the_special_pieces(void **state)
{
    struct meg_str m = { 0 }, trainer = { 0 };
    struct meg_tokenizer *t;
    const struct meg_tok_special_ids *r;
    struct meg_ids ids = { 0 };
    struct meg_err e;

    (void)state;
    add_piece(&m, "<unk>", 0, 2);
    add_piece(&m, "[B]", 0, 3);
    add_piece(&m, "[E]", 0, 3);
    add_piece(&m, "[P]", 0, 3);
    add_piece(&m, "\xE2\x96\x81", -1, 1);
    add_piece(&m, "a", -1, 1);
    add_number(&trainer, 24, 1); /* treat_whitespace_as_suffix */
    add_bytes(&trainer, 46, "[B]", 3);
    add_bytes(&trainer, 47, "[E]", 3);
    add_bytes(&trainer, 48, "[P]", 3);
    add_bytes(&m, 2, trainer.s, trainer.n);
    t = open_model("GPTSentencePieceTokenizer", write_model(&m), MEG_UNSET);
    r = meg_tokenizer_special_ids(t);
    assert_int_equal(r->bos, 1);
    assert_int_equal(r->eos, 2);
    assert_int_equal(r->pad, 3);
    assert_int_equal(meg_tokenizer_encode(t, "a", 1, &ids, &e), 0);
    assert_int_equal(ids.n, 2); /* the dummy prefix follows the text */
    assert_int_equal(ids.v[0], 5);
    assert_int_equal(ids.v[1], 4);
    meg_tokenizer_close(t);
    meg_str_free(&m);
    meg_str_free(&trainer);
    free(ids.v);
}

static void llama2_needs_a_bos_piece(void **state)
{
    struct meg_tok_conf c = { .type = "Llama2Tokenizer", .vocab_extra_ids = MEG_UNSET, .vocab_size = MEG_UNSET };
    struct meg_str m = { 0 };
    struct meg_tokenizer *t = NULL;
    struct meg_ids ids = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "Llama2Tokenizer requires --tokenizer-model");
    add_piece(&m, "<unk>", 0, 2);
    add_piece(&m, "a", -1, 1);
    c.tokenizer_model = write_model(&m);
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_EFORMAT);
    assert_non_null(strstr(e.msg, "no BOS piece"));
    add_piece(&m, "<s>", 0, 3);
    c.tokenizer_model = write_model(&m);
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), 0);
    assert_int_equal(meg_tokenizer_encode(t, "", 0, &ids, &e), 0);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.v[0], 2);
    assert_int_equal(meg_tokenizer_special_ids(t)->pad, -1);
    meg_tokenizer_close(t);
    meg_str_free(&m);
    free(ids.v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_models_equal_sentencepiece),
        cmocka_unit_test(real_models_encode_as_the_reference),
        cmocka_unit_test(real_models_decode_as_the_reference),
        cmocka_unit_test(rounding_does_not_enter_the_cache),
        cmocka_unit_test(malformed_messages_are_refused),
        cmocka_unit_test(invalid_models_are_refused),
        cmocka_unit_test(invalid_character_maps_are_refused),
        cmocka_unit_test(special_tokens_equal_megatron),
        cmocka_unit_test(the_trainer_spec_names_the_special_pieces),
        cmocka_unit_test(llama2_needs_a_bos_piece),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
