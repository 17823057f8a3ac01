/*
 * Text that is cut at safe split points has the same ids as uncut text.  Two tokenizers, one of which has its split
 * points removed, encode the same texts.  These are real texts, and random texts of characters that the components of a
 * tokenizer.json treat differently.
 */
#include "tok_golden.h"

#include <unistd.h>

#include "file/file.h"
#include "io/text_reader.h"
#include "tokenizer/hf/files.h"
#include "tokenizer/internal.h"
#include "tmp.h"

static uint32_t lcg(uint32_t *x)
{
    return (*x = *x * 1664525 + 1013904223) >> 8;
}

struct both {
    struct meg_tokenizer *cut, *uncut;
    int64_t nids;
};

static struct both open_both(const char *path)
{
    const struct meg_tok_conf c = { .name_or_path = path, .vocab_size = MEG_UNSET };
    struct both b = { 0 };
    struct meg_hf_files *files;
    struct meg_err e;

    if (meg_tokenizer_open(&b.cut, &c, &e) < 0 || meg_tokenizer_open(&b.uncut, &c, &e) < 0)
        fail_msg("%s", e.msg);
    files = b.uncut->files;
    assert_non_null(files->safe_split);
    free(files->safe_split);
    files->safe_split = NULL;
    return b;
}

static void close_both(struct both *b)
{
    assert_true(b->nids > 0);
    meg_tokenizer_close(b->cut);
    meg_tokenizer_close(b->uncut);
}

static void encodes_alike(struct both *b, const char *text, int64_t n)
{
    struct meg_ids cut = { 0 }, uncut = { 0 };
    struct meg_err e;

    if (meg_tokenizer_encode(b->cut, text, n, &cut, &e) < 0 || meg_tokenizer_encode(b->uncut, text, n, &uncut, &e) < 0)
        fail_msg("%s", e.msg);
    if (cut.n != uncut.n || (cut.n > 0 && memcmp(cut.v, uncut.v, (size_t)cut.n * sizeof *cut.v) != 0))
        fail_msg("'%.*s' has different ids when it is cut at safe split points", (int)n, text);
    b->nids += cut.n;
    free(cut.v);
    free(uncut.v);
}

/* Random texts are made of up to 40 of these. */
static const char *const parts[] = { " ",
                                     " ",
                                     " ",
                                     "  ",
                                     "\n",
                                     "\r",
                                     "\r\n",
                                     "\t",
                                     "\v",
                                     "\x01",
                                     "the",
                                     " of",
                                     "and",
                                     "A",
                                     "e",
                                     "E",
                                     "x",
                                     "1",
                                     "2026",
                                     ".",
                                     ",",
                                     "'",
                                     "-",
                                     "<",
                                     "=",
                                     "[",
                                     "]",
                                     "\xC2\xA0",
                                     "\xC2\xA8",
                                     "\xC3\xA9",
                                     "\xC3\x89",
                                     "\xCC\x81",
                                     "\xCC\xA3",
                                     "\xCC\xB8",
                                     "\xCE\xA3",
                                     "\xCF\x83",
                                     "\xD8\x80",
                                     "\xDB\x9D",
                                     "\xD9\x8E",
                                     "\xD0\xB4",
                                     "\xE2\x96\x81",
                                     "\xE2\x96\x81",
                                     "\xE2\x80\x8B",
                                     "\xE2\x80\x8D",
                                     "\xE2\x80\xA8",
                                     "\xE2\x80\x99",
                                     "\xE3\x80\x80",
                                     "\xE3\x82\x99",
                                     "\xE3\x81\x8B",
                                     "\xE4\xB7\x80",
                                     "\xE4\xB8\x80",
                                     "\xE5\x80\x8B",
                                     "\xE9\xBF\xBF",
                                     "\xEA\xB0\x80",
                                     "\xE1\x86\xA8",
                                     "\xEF\xBF\xBD",
                                     "\xEF\xB7\xBA",
                                     "\xEF\xBD\xB6",
                                     "\xEF\xBE\x9E",
                                     "\xF0\x9F\x98\x80",
                                     "\xF0\x9F\x87\xA9",
                                     "\xF0\x91\x82\xBD",
                                     "<s>",
                                     "</s>",
                                     "<unk>",
                                     "[MASK]",
                                     "[UNK]",
                                     "<extra_id_0>",
                                     "<|user|>",
                                     "\xE2\x96\x81<s>",
                                     "<0x41>" };

static void random_texts(struct both *b, int n)
{
    uint32_t x = 5;

    for (int i = 0; i < n; i++) {
        struct meg_str text = { 0 };

        for (uint32_t k = lcg(&x) % 40 + 1; k > 0; k--) {
            /* a small set results in more repetitions */
            uint32_t some = 4 + (uint32_t)i % 5 * 20;
            const char *part = parts[(lcg(&x) % some + (uint32_t)i) % (sizeof parts / sizeof *parts)];

            meg_str_add(&text, part, strlen(part));
        }
        encodes_alike(b, text.s, (int64_t)text.n);
        meg_str_free(&text);
    }
}

static void real_texts(struct both *b)
{
    static const char *const files[] = { "udhr.jsonl", "botchan.txt", "us_presidents.jsonl" };

    for (int i = 0; i < 3; i++) {
        struct meg_str path = { 0 };
        const char *key[] = { "text" }, *name[1];
        struct meg_text_reader_conf c = { .json_keys = { key, 1 } };
        struct meg_text_reader *t;
        struct meg_span text;
        struct meg_err e;
        int64_t n = 0;
        int r;

        meg_str_printf(&path, "%s/data/corpus/%s", getenv("MEG_SHARED"), files[i]);
        name[0] = path.s;
        c.input.v = name;
        c.input.n = 1;
        if (meg_text_reader_open(&t, &c, &e) < 0)
            fail_msg("%s", e.msg);
        while (n < 300000 && (r = meg_text_reader_next(t, &text, &e)) > 0) {
            encodes_alike(b, text.s, text.n);
            n += text.n;
        }
        if (n < 300000 && r < 0)
            fail_msg("%s", e.msg);
        meg_text_reader_close(t);
        meg_str_free(&path);
    }
}

#define KNOWN(id, name)                                                                                                \
    static void id##_encodes_alike(void **state)                                                                       \
    {                                                                                                                  \
        char *path = tok_file(name);                                                                                   \
        struct both b = open_both(path);                                                                               \
                                                                                                                       \
        (void)state;                                                                                                   \
        random_texts(&b, 20000);                                                                                       \
        real_texts(&b);                                                                                                \
        close_both(&b);                                                                                                \
        free(path);                                                                                                    \
    }
KNOWN(t5, "t5")
KNOWN(llama2, "llama2")
KNOWN(phi3, "phi3")
KNOWN(bert_uncased, "bert-base-uncased")
KNOWN(bert_cased, "bert-base-cased")

/* ---- Small files ---- */

static const char *dir;

static void write_json(const char *json)
{
    struct meg_str path = { 0 };
    struct meg_err e;

    meg_str_printf(&path, "%s/tokenizer.json", dir);
    if (meg_write_file(path.s, json, strlen(json), &e) < 0)
        fail_msg("%s", e.msg);
    meg_str_free(&path);
}

#define WORDS                                                                                                          \
    "\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"u\", \"vocab\": {\"u\": 0, \"a\": 1, \"the\": 2, "          \
    "\"\xE2\x96\x81the\": 3, \"<\": 4, \"e\": 5, \"\xE2\x96\x81\": 6, \"\xE2\x96\x81of\": 7, \".\": 8}}"
#define METASPACE(scheme)                                                                                              \
    "{\"type\": \"Metaspace\", \"replacement\": \"\xE2\x96\x81\", \"prepend_scheme\": \"" scheme "\"}"

static void small_files_encode_alike(void **state)
{
    static const char *const json[] = {
        "{\"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"}, " WORDS "}",
        "{\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, " WORDS "}",
        "{\"normalizer\": {\"type\": \"NFKC\"}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, " WORDS "}",
        "{\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, " WORDS "}",
        "{\"normalizer\": {\"type\": \"Nmt\"}, \"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"}, " WORDS "}",
        "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}, {\"type\": "
        "\"StripAccents\"}, {\"type\": \"NFC\"}]}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, " WORDS "}",
        "{\"pre_tokenizer\": " METASPACE("always") ", " WORDS "}",
        "{\"pre_tokenizer\": " METASPACE("first") ", " WORDS "}",
        "{\"pre_tokenizer\": " METASPACE("never") ", " WORDS "}",
        "{\"normalizer\": {\"type\": \"NFD\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": "
        "[{\"type\": \"WhitespaceSplit\"}, " METASPACE("first") "]}, " WORDS "}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof json / sizeof *json; i++) {
        struct both b;

        write_json(json[i]);
        b = open_both(dir);
        random_texts(&b, 5000);
        close_both(&b);
    }
}

/* If a component depends on text across spaces, there are no split points. */
static void files_that_depend_on_context_have_no_split_points(void **state)
{
    static const char *const json[] = {
        "{\"normalizer\": {\"type\": \"Strip\"}, \"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"}, " WORDS "}",
        "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \" {2,}\"}, \"content\": \"x\"}, "
        "\"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"}, " WORDS "}",
        "{\"pre_tokenizer\": {\"type\": \"Digits\", \"individual_digits\": true}, " WORDS "}",
        "{\"added_tokens\": [{\"id\": 9, \"content\": \"a e\", \"normalized\": true}], "
        "\"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"}, " WORDS "}",
        "{" WORDS "}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof json / sizeof *json; i++) {
        const struct meg_tok_conf c = { .name_or_path = dir, .vocab_size = MEG_UNSET };
        struct meg_tokenizer *t;
        struct meg_err e;

        write_json(json[i]);
        if (meg_tokenizer_open(&t, &c, &e) < 0)
            fail_msg("%s", e.msg);
        assert_null(((struct meg_hf_files *)t->files)->safe_split);
        meg_tokenizer_close(t);
    }
}

static int make_dir(void **state)
{
    static char name[TMP_NAME];

    (void)state;
    dir = tmp_dir(name, "split");
    return dir ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    write_json("");
    chdir(dir);
    unlink("tokenizer.json");
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t5_encodes_alike),
        cmocka_unit_test(llama2_encodes_alike),
        cmocka_unit_test(phi3_encodes_alike),
        cmocka_unit_test(bert_uncased_encodes_alike),
        cmocka_unit_test(bert_cased_encodes_alike),
        cmocka_unit_test(small_files_encode_alike),
        cmocka_unit_test(files_that_depend_on_context_have_no_split_points),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
