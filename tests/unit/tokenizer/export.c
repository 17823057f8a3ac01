/*
 * Exported tokenizer.json files: HuggingFaceTokenizer, opened with them, encodes to the same ids as the original
 * tokenizer and has the same tokens.
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
#include "io/base64.h"
#include "tokenizer/bpe/train.h"
#include "tokenizer/export/export.h"
#include "tmp.h"

static char dir[TMP_NAME];

static const char *path_in(char buf[TMP_PATH], const char *name)
{
    snprintf(buf, TMP_PATH, "%s/%s", dir, name);
    return buf;
}

static void put(const char *name, const struct meg_str *text)
{
    char path[TMP_PATH];
    struct meg_err e;

    assert_int_equal(meg_write_file(path_in(path, name), text->s, text->n, &e), 0);
}

static struct meg_tokenizer *open_tok(const struct meg_tok_conf *c)
{
    struct meg_tokenizer *t = NULL;
    struct meg_err e;

    if (meg_tokenizer_open(&t, c, &e) < 0)
        fail_msg("%s", e.msg);
    return t;
}

/* Export c, return the tokenizer opened with the exported files, and store the parsed JSON files. */
static struct meg_tokenizer *open_export(const struct meg_tok_conf *c, json_t **tokenizer, json_t **config)
{
    const struct meg_tok_conf written = { .name_or_path = dir, .vocab_size = MEG_UNSET, .vocab_extra_ids = MEG_UNSET };
    struct meg_tok_export_files x = { 0 };
    struct meg_err e;

    if (meg_tok_export(&x, c, &e) < 0)
        fail_msg("%s", e.msg);
    put("tokenizer.json", &x.tokenizer);
    put("tokenizer_config.json", &x.config);
    put("special_tokens_map.json", &x.special_map);
    *tokenizer = json_loads(x.tokenizer.s, JSON_ALLOW_NUL, NULL);
    *config = json_loads(x.config.s, 0, NULL);
    assert_non_null(*tokenizer);
    assert_non_null(*config);
    meg_tok_export_free(&x);
    return open_tok(&written);
}

/* Return true if text contains a special token, which only the exported tokenizer finds in text. */
static bool contains_special(const json_t *tokenizer, const char *text)
{
    size_t i;
    const json_t *t;

    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, t)
    {
        if (json_is_true(json_object_get(t, "special")) &&
            strstr(text, json_string_value(json_object_get(t, "content"))))
            return true;
    }
    return false;
}

static int compare_ids(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/*
 * Sort ids.  In a unigram model, the same tokens in a different order have equal scores, so the order that a tokenizer
 * selects depends on rounding.
 */
static void sort_ids(struct meg_ids *ids)
{
    if (ids->n > 0)
        qsort(ids->v, (size_t)ids->n, sizeof *ids->v, compare_ids);
}

static void same_ids(struct meg_tokenizer *a, struct meg_tokenizer *b, const char *text, size_t n, bool is_unigram)
{
    struct meg_ids x = { 0 }, y = { 0 };
    struct meg_err e;

    if (meg_tokenizer_encode(a, text, (int64_t)n, &x, &e) < 0 || meg_tokenizer_encode(b, text, (int64_t)n, &y, &e) < 0)
        fail_msg("%s", e.msg);
    if (is_unigram) {
        sort_ids(&x);
        sort_ids(&y);
    }
    if (x.n != y.n || (x.n > 0 && memcmp(x.v, y.v, (size_t)x.n * sizeof *x.v) != 0)) {
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < (k ? y : x).n; i++)
                print_message("%s%d", i ? " " : k ? "\n# tokenizer.json: " : "# tokenizer: ", (k ? y : x).v[i]);
        fail_msg("the ids of [%s] differ", text);
    }
    free(x.v);
    free(y.v);
}

static const char *const texts[] = {
    "",
    " ",
    "  ",
    "a",
    " a",
    "a ",
    "  two  spaces  ",
    "The quick brown fox jumps over the lazy dog.",
    "line\nbreak\n\n  and\ttab\r\n",
    "3.14159 and 1000000 of 12'345",
    "don't I'LL we've",
    ("Gr\xC3\xB6\xC3\x9F"
     "e \xE2\x82\xAC 5"),
    "\xCE\x9F\xCE\x94\xCE\x9F\xCE\xA3 \xCE\xA3\xCE\xBF\xCF\x86\xCE\xAF\xCE\xB1 \xCE\xA3.",
    "\xE4\xB8\xAD\xE6\x96\x87 and \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E",
    "\xF0\x9F\x98\x80\xF0\x9F\x98\x80 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA9",
    "aaaaaaaaaaaaa bbbb",
    "caf\xC3\xA9 cafe\xCC\x81",
    "\xE2\x96\x81mark\xE2\x96\x81",
    "it(is)[not]{a}<tag>; x!=y && z||w",
    "under_score-hyphen --flag=1",
};

/* Two accents on one letter, of which Hugging Face's Precompiled removes one: see tokenizer/export/spm.c. */
#define TWO_ACCENTS "\xCC\x81\xCC\xA3"

/*
 * Compare the ids of sample texts and, unless file is NULL, of the texts in a file of JSON lines; return the number of
 * texts.  Skip lines with special tokens or TWO_ACCENTS.
 */
static int same_texts(struct meg_tokenizer *a, struct meg_tokenizer *b, const json_t *tokenizer, const char *file)
{
    char *line = NULL;
    size_t cap = 0;
    const bool is_unigram =
        strcmp(json_string_value(json_object_get(json_object_get(tokenizer, "model"), "type")), "Unigram") == 0;
    int n = 0;
    FILE *f = file ? fopen(file, "r") : NULL;

    assert_int_equal(meg_tokenizer_vocab_size(a), meg_tokenizer_vocab_size(b));
    assert_int_equal(meg_tokenizer_eod(a), meg_tokenizer_eod(b));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++, n++)
        same_ids(a, b, texts[i], strlen(texts[i]), is_unigram);
    while (f && getline(&line, &cap, f) > 0) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);
        const json_t *text = json_object_get(j, "text");

        if (json_is_string(text) && !contains_special(tokenizer, json_string_value(text)) &&
            !strstr(json_string_value(text), TWO_ACCENTS)) {
            same_ids(a, b, json_string_value(text), json_string_length(text), is_unigram);
            n++;
        }
        json_decref(j);
    }
    if (f)
        fclose(f);
    free(line);
    return n;
}

/* ---- Byte-level BPE ---- */

/* Train a byte-level BPE vocabulary on LICENSE; write vocab.json, merges.txt and a tiktoken file called ranks. */
static void train(void)
{
    struct meg_bpe_trainer l = { 0 };
    struct meg_bpe_vocab v = { 0 };
    struct meg_str text = { 0 }, ranks = { 0 }, token = { 0 };
    struct meg_err e;

    assert_int_equal(meg_read_file("LICENSE", &text, &e), 0);
    meg_bpe_trainer_count(&l, text.s, (int64_t)text.n, &e);
    meg_bpe_trainer_run(&l, 600, 0, &v);
    assert_int_equal(meg_bpe_vocab_write(&v, dir, &e), 0);
    for (int64_t id = 1; id < v.tokens.n; id++) {
        const struct meg_str t = meg_strtab_get(&v.tokens, id);

        token.n = 0;
        meg_base64_encode(&token, t.s, (int64_t)t.n);
        meg_str_printf(&ranks, "%s %lld\n", token.s, (long long)id - 1);
    }
    put("ranks", &ranks);
    meg_bpe_trainer_free(&l);
    meg_bpe_vocab_free(&v);
    meg_str_free(&text);
    meg_str_free(&token);
    meg_str_free(&ranks);
}

static void vocab_and_merges_become_tokenizer_json(void **state)
{
    char vocab[TMP_PATH], merges[TMP_PATH];
    const struct meg_tok_conf c = { .type = "GPT2BPETokenizer",
                                    .vocab_file = path_in(vocab, "vocab.json"),
                                    .merge_file = path_in(merges, "merges.txt"),
                                    .vocab_size = MEG_UNSET,
                                    .vocab_extra_ids = MEG_UNSET };
    struct meg_tokenizer *a, *b;
    json_t *tokenizer, *config;

    (void)state;
    train();
    a = open_tok(&c);
    b = open_export(&c, &tokenizer, &config);
    assert_true(same_texts(a, b, tokenizer, NULL) > 15);
    assert_string_equal(json_string_value(json_object_get(config, "tokenizer_class")), "PreTrainedTokenizerFast");
    assert_string_equal(json_string_value(json_object_get(config, "eos_token")), "<|endoftext|>");
    assert_true(json_is_false(json_object_get(config, "add_bos_token")));
    assert_true(json_is_null(json_object_get(tokenizer, "post_processor")));
    json_decref(tokenizer);
    json_decref(config);
    meg_tokenizer_close(a);
    meg_tokenizer_close(b);
}

static void ranks_become_tokenizer_json(void **state)
{
    static const char *const pattern[] = { "v1", "v2", "cl100k", "o200k" };
    const char *special[] = { "<|begin_of_text|>", "<|end_of_text|>" };
    char ranks[TMP_PATH];

    (void)state;
    train();
    for (size_t i = 0; i < sizeof pattern / sizeof *pattern; i++) {
        const struct meg_tok_conf c = { .type = "TikTokenizer",
                                        .tokenizer_model = path_in(ranks, "ranks"),
                                        .tiktoken_pattern = pattern[i],
                                        .tiktoken_num_special_tokens = 1000,
                                        .tiktoken_special_tokens = { special, 2 },
                                        .vocab_size = MEG_UNSET,
                                        .vocab_extra_ids = MEG_UNSET };
        json_t *tokenizer, *config;
        struct meg_tokenizer *a = open_tok(&c), *b = open_export(&c, &tokenizer, &config);

        assert_true(same_texts(a, b, tokenizer, NULL) > 15);
        json_decref(tokenizer);
        json_decref(config);
        meg_tokenizer_close(a);
        meg_tokenizer_close(b);
    }
}

/* ---- WordPiece ---- */

static void vocab_txt_becomes_tokenizer_json(void **state)
{
    static const char *const type[] = { "BertWordPieceLowerCase", "BertWordPieceCase" };
    struct meg_str vocab = { 0 };
    char path[TMP_PATH];

    (void)state;
    meg_str_printf(&vocab, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nThe\nquick\nfox\n##es\nblank\ncafe\ncaf\xC3\xA9\n"
                           "\xCE\xBF\xCE\xB4\xCE\xBF\xCF\x82\n\xCF\x83\xCE\xBF\xCF\x86\xCE\xB9\xCE\xB1\n\xCF\x83\n\xE4"
                           "\xB8\xAD\n\xE6\x96\x87\n");
    for (char c = '!'; c < 0x7F; c++)
        meg_str_printf(&vocab, c >= 'A' && c <= 'z' ? "%c\n##%c\n" : "%c\n", c, c);
    put("vocab.txt", &vocab);
    for (int i = 0; i < 2; i++) {
        const struct meg_tok_conf c = {
            .type = type[i], .vocab_file = path_in(path, "vocab.txt"), .vocab_size = MEG_UNSET, .vocab_extra_ids = 3
        };
        json_t *tokenizer, *config;
        struct meg_tokenizer *a = open_tok(&c), *b = open_export(&c, &tokenizer, &config);

        assert_true(same_texts(a, b, tokenizer, NULL) > 15);
        assert_string_equal(json_string_value(json_object_get(config, "unk_token")), "[UNK]");
        json_decref(tokenizer);
        json_decref(config);
        meg_tokenizer_close(a);
        meg_tokenizer_close(b);
    }
    meg_str_free(&vocab);
}

/* ---- SentencePiece ---- */

/* Append a field of a Protocol Buffers message: bytes, a float or a small number. */
static void add_bytes(struct meg_str *out, int number, const void *bytes, size_t n)
{
    meg_str_add(out, &(const char){ (char)(number << 3 | 2) }, 1);
    for (size_t k = n;; k >>= 7) {
        meg_str_add(out, &(const char){ (char)((k & 127) | (k > 127 ? 128 : 0)) }, 1);
        if (k <= 127)
            break;
    }
    meg_str_add(out, bytes, n);
}

static void add_float(struct meg_str *out, int number, float v)
{
    meg_str_add(out, &(const char){ (char)(number << 3 | 5) }, 1);
    meg_str_add(out, &v, sizeof v);
}

static void add_number(struct meg_str *out, int number, int v)
{
    meg_str_add(out, (const char[]){ (char)(number << 3), (char)v }, 2);
}

static void add_piece(struct meg_str *out, const char *s, size_t n, float score, int type)
{
    struct meg_str piece = { 0 };

    add_bytes(&piece, 1, s, n);
    add_float(&piece, 2, score);
    add_number(&piece, 3, type);
    add_bytes(out, 1, piece.s, piece.n);
    meg_str_free(&piece);
}

/*
 * Write a SentencePiece BPE model of the ASCII tokens of a trained vocabulary, with byte pieces and, unless is_llama, a
 * user-defined piece.
 */
static void write_bpe_model(const char *name, bool is_llama)
{
    struct meg_bpe_trainer l = { 0 };
    struct meg_bpe_vocab v = { 0 };
    struct meg_str text = { 0 }, model = { 0 }, piece = { 0 }, spec = { 0 };
    struct meg_err e;
    char byte[8];

    assert_int_equal(meg_read_file("LICENSE", &text, &e), 0);
    meg_bpe_trainer_count(&l, text.s, (int64_t)text.n, &e);
    meg_bpe_trainer_run(&l, 900, 0, &v);
    add_piece(&model, "<unk>", 5, 0, 2);
    add_piece(&model, "<s>", 3, 0, 3);
    add_piece(&model, "</s>", 4, 0, 3);
    if (!is_llama)
        add_piece(&model, "<tool>", 6, 0, 4);
    for (int i = 0; i < 256; i++)
        add_piece(&model, byte, (size_t)snprintf(byte, sizeof byte, "<0x%02X>", i), 0, 6);
    for (int64_t id = MEG_BPE_MIN_VOCAB_SIZE - 256; id < v.tokens.n; id++) {
        const struct meg_str t = meg_strtab_get(&v.tokens, id);
        bool is_ascii = true;

        piece.n = 0;
        for (size_t i = 0; i < t.n; i++) {
            is_ascii &= t.s[i] >= ' ' && t.s[i] < 0x7F;
            meg_str_add(&piece, t.s[i] == ' ' ? "\xE2\x96\x81" : t.s + i, t.s[i] == ' ' ? 3 : 1);
        }
        if (is_ascii)
            add_piece(&model, piece.s, piece.n, -(float)id, 1);
    }
    add_number(&spec, 3, 2);               /* model_type: BPE */
    meg_str_add(&spec, "\x98\x02\x01", 3); /* byte_fallback, field 35: true */
    add_bytes(&model, 2, spec.s, spec.n);
    spec.n = 0;
    add_number(&spec, 4, !is_llama); /* remove_extra_whitespaces */
    add_bytes(&model, 3, spec.s, spec.n);
    put(name, &model);
    meg_bpe_trainer_free(&l);
    meg_bpe_vocab_free(&v);
    meg_str_free(&text);
    meg_str_free(&model);
    meg_str_free(&piece);
    meg_str_free(&spec);
}

static void bpe_model_becomes_tokenizer_json(void **state)
{
    static const char *const tools[] = { "a<tool>b", "<tool> a", "two <tool><tool>", "<tool" };
    char path[TMP_PATH];

    (void)state;
    for (int is_llama = 0; is_llama < 2; is_llama++) {
        const struct meg_tok_conf c = { .type = is_llama ? "Llama2Tokenizer" : "GPTSentencePieceTokenizer",
                                        .tokenizer_model = path_in(path, "bpe.model"),
                                        .vocab_size = MEG_UNSET,
                                        .vocab_extra_ids = MEG_UNSET };
        struct meg_tokenizer *a, *b;
        json_t *tokenizer, *config;

        write_bpe_model("bpe.model", is_llama);
        a = open_tok(&c);
        b = open_export(&c, &tokenizer, &config);
        assert_true(same_texts(a, b, tokenizer, NULL) > 15);
        for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
            same_ids(a, b, tools[i], strlen(tools[i]), false);
        assert_string_equal(json_string_value(json_object_get(config, "bos_token")), "<s>");
        json_decref(tokenizer);
        json_decref(config);
        meg_tokenizer_close(a);
        meg_tokenizer_close(b);
    }
}

/* Export the random models of tests/data/spm; those that tokenizer.json cannot represent are refused with a reason. */
static void sentencepiece_becomes_tokenizer_json(void **state)
{
    static const char *const type[] = { "GPTSentencePieceTokenizer", "Llama2Tokenizer", "SentencePieceTokenizer" };
    int expressed = 0, compared = 0;

    (void)state;
    for (int i = 0; i < 16; i++) {
        char model[TMP_PATH], lines[TMP_PATH];
        struct meg_tok_conf c = { .tokenizer_model = model, .vocab_size = MEG_UNSET, .vocab_extra_ids = MEG_UNSET };

        snprintf(model, sizeof model, "tests/data/spm/%d.model", i);
        snprintf(lines, sizeof lines, "tests/data/spm/%d.jsonl", i);
        for (size_t k = 0; k < sizeof type / sizeof *type; k++) {
            struct meg_tok_export_files x = { 0 };
            struct meg_tokenizer *a = NULL, *b;
            json_t *tokenizer, *config;
            struct meg_err e;

            c.type = type[k];
            if (meg_tokenizer_open(&a, &c, &e) < 0)
                continue; /* Llama2Tokenizer requires a BOS piece */
            if (meg_tok_export(&x, &c, &e) < 0) {
                assert_int_equal(e.code, MEG_EUSAGE);
                assert_non_null(strstr(e.msg, "tokenizer.json cannot represent"));
                assert_null(x.tokenizer.s);
                assert_non_null(strstr(x.config.s, "\"tokenizer_class\": \"PreTrainedTokenizerFast\""));
                meg_tok_export_free(&x);
                meg_tokenizer_close(a);
                continue;
            }
            meg_tok_export_free(&x);
            b = open_export(&c, &tokenizer, &config);
            /* only Llama2Tokenizer prepends <s> */
            assert_int_equal(!json_is_null(json_object_get(tokenizer, "post_processor")), k == 1);
            assert_int_equal(json_is_true(json_object_get(config, "add_bos_token")), k == 1);
            compared += same_texts(a, b, tokenizer, lines);
            expressed++;
            json_decref(tokenizer);
            json_decref(config);
            meg_tokenizer_close(a);
            meg_tokenizer_close(b);
        }
    }
    print_message("# %d models and types, %d texts\n", expressed, compared);
    assert_int_equal(expressed, 9);
    assert_true(compared > 400);
}

/* ---- Published tokenizers, with MEG_SHARED ---- */

static void published_tokenizers_become_tokenizer_json(void **state)
{
    static const struct {
        const char *type, *model, *vocab, *merges, *texts;
    } known[] = {
        { "GPT2BPETokenizer", NULL, "gpt2/vocab.json", "gpt2/merges.txt", "hf-gpt2" },
        { "TikTokenizer", "llama3/tokenizer.model", NULL, NULL, "hf-llama3" },
        { "TikTokenizer", "tik-megatron/vocab.json", NULL, NULL, "hf-llama3" },
        { "BertWordPieceLowerCase", NULL, "bert-base-uncased/vocab.txt", NULL, "hf-bert-base-uncased" },
        { "BertWordPieceCase", NULL, "bert-base-cased/vocab.txt", NULL, "hf-bert-base-cased" },
        { "Llama2Tokenizer", "llama2/tokenizer.model", NULL, NULL, "spm-llama2" },
        { "GPTSentencePieceTokenizer", "mistral-v1/tokenizer.model", NULL, NULL, "spm-mistral-v1" },
        { "GPTSentencePieceTokenizer", "mistral-v3/tokenizer.model", NULL, NULL, "spm-mistral-v3" },
        { "SentencePieceTokenizer", "llama2/tokenizer.model", NULL, NULL, "spm-llama2" },
        { "GPTSentencePieceTokenizer", "spm-test-unigram/tokenizer.model", NULL, NULL, "spm-test-unigram" },
        { "GPTSentencePieceTokenizer", "spm-test-ja/tokenizer.model", NULL, NULL, "spm-test-ja" },
        { "SentencePieceTokenizer", "t5/spiece.model", NULL, NULL, "spm-t5" },
    };
    const char *shared = getenv("MEG_SHARED");

    (void)state;
    if (!shared) {
        print_message("# MEG_SHARED is not set\n");
        skip();
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char path[4][4096];
        const char *const name[] = { known[i].model, known[i].vocab, known[i].merges };
        struct meg_tok_conf c = { .type = known[i].type,
                                  .vocab_size = MEG_UNSET,
                                  .vocab_extra_ids = MEG_UNSET,
                                  .tiktoken_num_special_tokens = 1000 };
        const char **const to[] = { &c.tokenizer_model, &c.vocab_file, &c.merge_file };
        struct meg_tokenizer *a, *b;
        json_t *tokenizer, *config;
        int n;

        for (int k = 0; k < 3; k++) {
            snprintf(path[k], sizeof path[k], "%s/data/tokenizers/%s", shared, name[k] ? name[k] : "");
            *to[k] = name[k] ? path[k] : NULL;
        }
        snprintf(path[3], sizeof path[3], "%s/golden/tokenizers/%s.jsonl", shared, known[i].texts);
        a = open_tok(&c);
        b = open_export(&c, &tokenizer, &config);
        n = same_texts(a, b, tokenizer, path[3]);
        print_message("# %s %s: %d texts\n", known[i].type, known[i].texts, n);
        assert_true(n > 100);
        json_decref(tokenizer);
        json_decref(config);
        meg_tokenizer_close(a);
        meg_tokenizer_close(b);
    }
}

static int enter(void **state)
{
    (void)state;
    return tmp_dir(dir, "export") ? 0 : -1;
}

static int leave(void **state)
{
    (void)state;
    return meg_remove_tree(dir, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vocab_and_merges_become_tokenizer_json),
        cmocka_unit_test(ranks_become_tokenizer_json),
        cmocka_unit_test(vocab_txt_becomes_tokenizer_json),
        cmocka_unit_test(bpe_model_becomes_tokenizer_json),
        cmocka_unit_test(sentencepiece_becomes_tokenizer_json),
        cmocka_unit_test(published_tokenizers_become_tokenizer_json),
    };

    return cmocka_run_group_tests(tests, enter, leave);
}
