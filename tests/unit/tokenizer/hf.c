/* HuggingFaceTokenizer: ids and texts equal those of Hugging Face's tokenizers; small files check each component. */
#include "tok_golden.h"

#include <sys/stat.h>
#include <unistd.h>

#include "file/file.h"
#include "sanitized.h"
#include "tmp.h"

static struct meg_tokenizer *open_hf(const char *path)
{
    const struct meg_tok_conf c = { .name_or_path = path, .vocab_size = MEG_UNSET };
    struct meg_tokenizer *t;
    struct meg_err e;

    if (meg_tokenizer_open(&t, &c, &e) < 0)
        fail_msg("%s", e.msg);
    return t;
}

static void equals_reference(const char *name, int64_t size)
{
    char *dir = tok_file(name), golden_name[64];
    struct meg_tokenizer *t = open_hf(dir);

    assert_int_equal(meg_tokenizer_vocab_size(t), size);
    snprintf(golden_name, sizeof golden_name, "hf-%s", name);
    tok_both_golden(t, golden_name);
    meg_tokenizer_close(t);
    free(dir);
}

#define REFERENCE(id, name, size)                                                                                      \
    static void equals_##id(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        equals_reference(name, size);                                                                                  \
    }
REFERENCE(gpt2, "gpt2", 50257)
REFERENCE(bert_uncased, "bert-base-uncased", 30522)
REFERENCE(bert_cased, "bert-base-cased", 28996)
REFERENCE(llama2, "llama2", 32000)
REFERENCE(t5, "t5", 32100)
REFERENCE(phi2, "phi2", 50295)
REFERENCE(phi3, "phi3", 32011)
REFERENCE(falcon, "falcon", 65024)
REFERENCE(roberta, "roberta", 50265)
REFERENCE(llama3, "llama3", 128256)
REFERENCE(qwen2, "qwen2", 151646)

static char dir[TMP_NAME];

static void write_in(const char *name, const char *text)
{
    char path[TMP_PATH];
    struct meg_err e;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(meg_write_file(path, text, strlen(text), &e), 0);
}

static void encodes(struct meg_tokenizer *t, const char *text, const int32_t *want, int64_t n)
{
    struct meg_ids got = { 0 };
    struct meg_err e;

    if (meg_tokenizer_encode(t, text, (int64_t)strlen(text), &got, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.v, want, (size_t)n * sizeof *want);
    free(got.v);
}

static const char words[] = "\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"u\", \"vocab\": "
                            "{\"u\": 0, \"a\": 1, \"b\": 2, "
                            "\"1\": 3, \"-\": 4, \"A\": 5, \"_a\": 6, \"12\": 7}}";

/* Open a tokenizer.json with these members and a WordLevel model. */
static struct meg_tokenizer *open_words(const char *members)
{
    struct meg_str file = { 0 };

    meg_str_printf(&file, "{%s%s}", members, words);
    write_in("tokenizer.json", file.s);
    meg_str_free(&file);
    return open_hf(dir);
}

static void encodes_with(const char *members, const char *text, const int32_t *want, int64_t n)
{
    struct meg_tokenizer *t = open_words(members);

    encodes(t, text, want, n);
    encodes(t, text, want, n);
    meg_tokenizer_close(t);
}
#define WITH(members, text, ...)                                                                                       \
    encodes_with(members, text, (const int32_t[]){ __VA_ARGS__ },                                                      \
                 (int64_t)(sizeof(int32_t[]){ __VA_ARGS__ } / sizeof(int32_t)))

static void pretokenizers_and_normalizers_split_as_specified(void **state)
{
    (void)state;
    WITH("\"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"},", " a  b a", 1, 2, 1);
    WITH("\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": []},", "a", 1);
    WITH("\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": []},", "a", 1);
    WITH("\"pre_tokenizer\": {\"type\": \"Whitespace\"},", "a-b -", 1, 4, 2, 4);
    WITH("\"pre_tokenizer\": {\"type\": \"Punctuation\", \"behavior\": \"Removed\"},", "a-b", 1, 2);
    WITH("\"pre_tokenizer\": {\"type\": \"Digits\", \"individual_digits\": false},", "a12b", 1, 7, 2);
    WITH("\"pre_tokenizer\": {\"type\": \"Digits\", \"individual_digits\": true},", "a11", 1, 3, 3);
    WITH("\"pre_tokenizer\": {\"type\": \"CharDelimiterSplit\", \"delimiter\": \"-\"},", "a-b", 1, 2);
    WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"-\"}, \"behavior\": "
         "\"Isolated\", \"invert\": false},",
         "a-b", 1, 4, 2);
    WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[ab]\"}, "
         "\"behavior\": "
         "\"Removed\", \"invert\": true},",
         "1a2b", 1, 2);
    WITH("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": "
         "\"always\"},",
         "a a", 6, 6);
    WITH("\"normalizer\": {\"type\": \"Lowercase\"},", "A", 1);
    WITH("\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Strip\"}, "
         "{\"type\": "
         "\"Replace\", \"pattern\": {\"Regex\": \"b+\"}, \"content\": \"a\"}]},",
         " bbb ", 1);
    WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?=b)\"}, \"behavior\": "
         "\"Isolated\"},",
         "ab", 1, 2);
    WITH("\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"$\"}, \"content\": \"a\"},", "_", 6);
}

static void added_tokens_are_matched_and_numbered(void **state)
{
#define ADDED(flags)                                                                                                   \
    "\"added_tokens\": [{\"id\": 8, \"content\": \"<x>\", \"normalized\": false" flags "}],"                           \
    "\"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"},"
    (void)state;
    WITH(ADDED(""), "a<x>b", 1, 8, 2);
    WITH(ADDED(", \"single_word\": true"), "a<x>", 0);
    WITH(ADDED(", \"single_word\": true"), "a <x> b", 1, 8, 2);
    WITH(ADDED(", \"lstrip\": true, \"rstrip\": true"), "a  <x> b", 1, 8, 2);
    /* a token without lstrip may begin in the whitespace that rstrip of the previous token includes */
    WITH(ADDED(", \"rstrip\": true}, {\"id\": 9, \"content\": \" b\", \"normalized\": false"), "<x>  b a b", 8, 9, 1,
         9);
    WITH(ADDED(", \"rstrip\": true}, {\"id\": 9, \"content\": \"\\n\", \"normalized\": false"), "<x>\n\n", 8, 9, 9);
    /* a token with lstrip is ignored inside the whitespace that rstrip of the previous token includes */
    WITH(ADDED("}, {\"id\": 9, \"content\": \"\\n\", \"normalized\": false, \"lstrip\": true, \"rstrip\": true"),
         "a\n\nb", 1, 9, 2);
    /* new ids follow the vocabulary, in the order of tokenizer.json, or by id in tokenizer_config.json */
    WITH("\"added_tokens\": [{\"id\": 20, \"content\": \"x\"}, {\"id\": 3, \"content\": \"a\"}, {\"id\": 10, "
         "\"content\": "
         "\"y\"}, {\"id\": 10, \"content\": \"z\"}],",
         "axyz", 1, 8, 9, 10);
    write_in("tokenizer_config.json", "{\"added_tokens_decoder\": {\"9\": {\"content\": \"y\"}, \"8\": {\"content\": "
                                      "\"x\"}, \"10\": {\"content\": \"z\"}}}");
    WITH("", "axyz", 1, 8, 9, 10);
    write_in("tokenizer_config.json", "{}");
}

/* A byte without a token is dropped, and its neighbors are merged. */
static void unknown_bytes_are_dropped(void **state)
{
    struct meg_tokenizer *t;

    (void)state;
    write_in(
        "tokenizer.json",
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": {\"type\": \"BPE\", "
        "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}}");
    t = open_hf(dir);
    encodes(t, "acb", (const int32_t[]){ 2 }, 1);
    meg_tokenizer_close(t);
}

static void byte_fallback_encodes_unknown_characters(void **state)
{
    struct meg_tokenizer *t;

    (void)state;
    write_in("tokenizer.json",
             "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"continuing_subword_prefix\": \"#\", "
             "\"end_of_word_suffix\": \"/\", \"vocab\": {\"a\": 0, \"#b\": 1, \"<0x23>\": 2, \"<0x63>\": 3, "
             "\"<0x2F>\": 4}, \"merges\": []}}");
    t = open_hf(dir);
    encodes(t, "acbc", (const int32_t[]){ 0, 2, 3, 1, 2, 3, 4 }, 7);
    encodes(t, "cc", (const int32_t[]){ 3, 2, 3, 4 }, 4);
    meg_tokenizer_close(t);
}

/* A byte token that is not UTF-8 decodes to U+FFFD; a token that is not a byte token decodes to itself. */
static void byte_fallback_decodes_byte_tokens(void **state)
{
    static const struct {
        const char *token, *text;
        size_t n;
    } cases[] = { { "<0x41>", "A", 1 },
                  { "<0x+9>", "\t", 1 },
                  { "<0xfF>", "\xEF\xBF\xBD", 1 },
                  { "<0x4G>", "<0x4G>", 6 },
                  { "<0x4\\u0000>", "<0x4", 6 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int32_t id = 1;
        struct meg_str file = { 0 }, got = { 0 };
        struct meg_tokenizer *t;
        struct meg_err e;

        meg_str_printf(&file,
                       "{\"decoder\": {\"type\": \"ByteFallback\"}, \"model\": {\"type\": \"WordLevel\", "
                       "\"unk_token\": \"u\", \"vocab\": {\"u\": 0, \"%s\": 1}}}",
                       cases[i].token);
        write_in("tokenizer.json", file.s);
        t = open_hf(dir);
        assert_int_equal(meg_tokenizer_decode(t, &id, 1, &got, &e), 0);
        assert_string_equal(got.s, cases[i].text);
        got.n = 0;
        assert_int_equal(meg_tokenizer_bytes(t, &id, 1, &got, &e), 0);
        assert_int_equal(got.n, cases[i].n);
        meg_tokenizer_close(t);
        meg_str_free(&file);
        meg_str_free(&got);
    }
}

/* The text of a single token has no space that decoding adds; a space of the token itself remains. */
static void a_token_alone_has_no_added_space(void **state)
{
    static const struct {
        const char *decoder;
        int32_t id;
        const char *text, *bytes;
    } cases[] = {
        { "{\"type\": \"WordPiece\"}", 1, "a", " a" },
        { "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"WordPiece\", \"prefix\": \"_\"}]}", 6, "_a", "a" },
        { "null", 2, "b", " b" },
        { "{\"type\": \"Metaspace\", \"replacement\": \"_\"}", 6, " a", " a" },
        { "{\"type\": \"Fuse\"}", 6, "_a", "_a" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct meg_str members = { 0 }, text = { 0 }, bytes = { 0 };
        struct meg_tokenizer *t, *clone;
        struct meg_err e;

        meg_str_printf(&members, "\"decoder\": %s,", cases[i].decoder);
        t = open_words(members.s);
        clone = meg_tokenizer_clone(t);
        assert_int_equal(meg_tokenizer_token_text(clone, cases[i].id, &text, &e), 0);
        assert_int_equal(meg_tokenizer_bytes(t, &cases[i].id, 1, &bytes, &e), 0);
        assert_string_equal(text.s, cases[i].text);
        assert_string_equal(bytes.s, cases[i].bytes);
        assert_int_equal(meg_tokenizer_token_text(t, 8, &text, &e), MEG_EFORMAT);
        meg_tokenizer_close(clone);
        meg_tokenizer_close(t);
        meg_str_free(&members);
        meg_str_free(&text);
        meg_str_free(&bytes);
    }
}

/* Decoders with one step, and the text of the tokens "_xxaxx" and "_xxaxx". */
static void decoder_steps_have_their_options(void **state)
{
    static const struct {
        const char *step, *text;
    } cases[] = {
        { "\"Metaspace\", \"replacement\": \"_\"", "xxaxx xxaxx" },
        { "\"Metaspace\", \"replacement\": \"_\", \"add_prefix_space\": true", "xxaxx xxaxx" },
        { "\"Metaspace\", \"replacement\": \"_\", \"add_prefix_space\": false", " xxaxx xxaxx" },
        { "\"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"never\"", " xxaxx xxaxx" },
        { "\"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"first\"", "xxaxx xxaxx" },
        { "\"Strip\", \"content\": \"x\", \"start\": 0, \"stop\": 1", "_xxax_xxax" },
        { "\"Strip\", \"content\": \"x\", \"start\": 1, \"stop\": 0", "_xxaxx_xxaxx" },
        { "\"Strip\", \"content\": \"_\", \"start\": 1, \"stop\": 0", "xxaxxxxaxx" },
    };
    const int32_t ids[] = { 1, 1 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct meg_str file = { 0 }, got = { 0 };
        struct meg_tokenizer *t;
        struct meg_err e;

        meg_str_printf(&file,
                       "{\"decoder\": {\"type\": %s}, \"model\": {\"type\": \"WordLevel\", \"unk_token\": \"u\", "
                       "\"vocab\": {\"u\": 0, \"_xxaxx\": 1}}}",
                       cases[i].step);
        write_in("tokenizer.json", file.s);
        t = open_hf(dir);
        assert_int_equal(meg_tokenizer_decode(t, ids, 2, &got, &e), 0);
        assert_string_equal(got.s, cases[i].text);
        meg_tokenizer_close(t);
        meg_str_free(&file);
        meg_str_free(&got);
    }
}

/* Tokens that a decoder step joins are one token for the next step. */
static void decoder_steps_see_joined_bytes(void **state)
{
    static const struct {
        const char *step, *text;
    } decoder[] = { { "ByteFallback", "ab c a" }, { "ByteLevel", "<0x61><0x62>c<0x61>" } };

    (void)state;
    for (size_t i = 0; i < sizeof decoder / sizeof *decoder; i++) {
        const int32_t ids[] = { 1, 2, 3, 1 };
        struct meg_str file = { 0 }, got = { 0 };
        struct meg_tokenizer *t;
        struct meg_err e;

        meg_str_printf(&file,
                       "{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"%s\"}, {\"type\": "
                       "\"WordPiece\"}]}, \"model\": {\"type\": \"WordLevel\", \"unk_token\": \"u\", "
                       "\"vocab\": {\"u\": 0, \"<0x61>\": 1, \"<0x62>\": 2, \"c\": 3}}}",
                       decoder[i].step);
        write_in("tokenizer.json", file.s);
        t = open_hf(dir);
        assert_int_equal(meg_tokenizer_decode(t, ids, 4, &got, &e), 0);
        assert_string_equal(got.s, decoder[i].text);
        meg_tokenizer_close(t);
        meg_str_free(&file);
        meg_str_free(&got);
    }
}

static void template_and_special_ids_are_read(void **state)
{
    struct meg_tokenizer *t;
    struct meg_err e;
    char path[TMP_PATH];

    (void)state;
    write_in("tokenizer_config.json", "{\"eos_token\": \"b\", \"pad_token\": \"u\", \"added_tokens_decoder\": {}}");
    write_in("special_tokens_map.json", "{\"bos_token\": \"a\", \"eos_token\": \"-\"}");
    t = open_words("\"post_processor\": {\"type\": \"RobertaProcessing\", \"sep\": [\"b\", 2], \"cls\": "
                   "[\"a\", 1]},");
    encodes(t, "1", (const int32_t[]){ 1, 3, 2 }, 3);
    assert_int_equal(meg_tokenizer_eod(t), 2);
    assert_int_equal(meg_tokenizer_special_ids(t)->bos, -1); /* the map is not read if there is added_tokens_decoder */
    assert_int_equal(meg_tokenizer_special_ids(t)->pad, -1); /* Megatron's class has a pad id only from Core 0.15 on */
    meg_tokenizer_close(t);
    write_in("tokenizer_config.json", "{\"eos_token\": \"b\"}");
    t = open_words("");
    assert_int_equal(meg_tokenizer_eod(t), 4); /* the map wins over tokenizer_config.json */
    assert_int_equal(meg_tokenizer_special_ids(t)->bos, 1);
    meg_tokenizer_close(t);
    write_in("tokenizer_config.json",
             "{\"tokenizer_class\": \"LlamaTokenizer\", \"eos_token\": \"b\", \"add_eos_token\": true}");
    t = open_words("");
    encodes(t, "1", (const int32_t[]){ 1, 3, 4 }, 3);
    meg_tokenizer_close(t);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, i ? "tokenizer_config.json" : "special_tokens_map.json");
        assert_int_equal(meg_remove_tree(path, &e), 0);
    }
}

static void config_files_need_a_tokenizer_json(void **state)
{
    struct meg_tok_conf c = { .name_or_path = dir, .vocab_size = MEG_UNSET };
    struct meg_tokenizer *t;
    struct meg_err e;
    char path[TMP_PATH], *owned[MEG_TOK_MAX_FOUND];

    (void)state;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(meg_remove_tree(path, &e), 0);
    write_in("tokenizer_config.json", "{}");
    meg_tok_find_files(&c, owned);
    assert_null(c.tokenizer_config);
    for (int i = 0; i < MEG_TOK_MAX_FOUND; i++)
        assert_null(owned[i]);
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_ENOENT);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    assert_int_equal(meg_remove_tree(path, &e), 0);
}

static void refuses_the_file(int code, const char *message)
{
    const struct meg_tok_conf c = { .type = "HuggingFaceTokenizer", .tokenizer_model = dir };
    struct meg_tokenizer *t;
    struct meg_err e;

    assert_int_equal(meg_tokenizer_open(&t, &c, &e), code);
    assert_non_null(strstr(e.msg, dir));
    if (!strstr(e.msg, message))
        fail_msg("%s", e.msg);
}

static void refuses(const char *file, int code, const char *message)
{
    write_in("tokenizer.json", file);
    refuses_the_file(code, message);
}

static void malformed_files_are_refused(void **state)
{
    struct meg_tok_conf c = { .type = "HuggingFaceTokenizer" };
    struct meg_tokenizer *t;
    struct meg_err e;

    (void)state;
    refuses("{", MEG_EFORMAT, "tokenizer.json: line 1, column ");
    refuses("[]", MEG_EFORMAT, "expected a JSON object");
    refuses("{\"normalizer\": {\"type\": \"Fancy\"}}", MEG_EFORMAT, "normalizer: type 'Fancy' is not supported");
    refuses("{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}}}", MEG_EFORMAT,
            "pre_tokenizer: regular expression '(a'");
    refuses("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a b\"]}}", MEG_EFORMAT,
            "model: merges[0] is 'a' + 'b', but there is no token 'ab'");
    refuses("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a\"]}}", MEG_EFORMAT,
            "model: merges[0] is neither two tokens");
    refuses("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}", MEG_EFORMAT,
            "has id 0, which another token also has");
    refuses("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 99999999}, \"merges\": []}}", MEG_EFORMAT,
            "the id of 'a' must be");
    refuses("{\"model\": {\"type\": \"BPE\", \"dropout\": 0.1, \"vocab\": {\"a\": 1}, \"merges\": []}}", MEG_EFORMAT,
            "dropout 0.1");
    refuses("{\"model\": {\"type\": \"Unigram\", \"unk_id\": 5, \"vocab\": [[\"a\", -1]]}}", MEG_EFORMAT,
            "unk_id 5 is not in the vocabulary");
    refuses("{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", \"b\"]]}}", MEG_EFORMAT,
            "vocab[0] is not an array [token, score]");
    refuses("{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}}", MEG_EFORMAT,
            "unk_token '[UNK]' is not in the vocabulary");
    refuses("{\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"a\", \"vocab\": {\"a\": 0}}, "
            "\"post_processor\": {\"type\": \"BertProcessing\", \"sep\": [\"b\", 7], \"cls\": "
            "[\"a\", 0]}}",
            MEG_EFORMAT, "id 7 is not in the vocabulary");
    refuses("{\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"a\", \"vocab\": {\"a\": 0}}, "
            "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": \"TemplateProcessing\", "
            "\"single\": [{\"Sequence\": {\"id\": \"A\"}}]}, {\"type\": \"BertProcessing\", \"sep\": [\"a\", 0], "
            "\"cls\": [\"a\", 0]}]}}",
            MEG_EFORMAT, "post_processor: a BertProcessing after a TemplateProcessing is not supported");
    refuses("{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAA\"}}", MEG_EFORMAT,
            "precompiled_charsmap");
    refuses("{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": "
            "\"(?:(?:a{9999}){9999}){9999}\"}}}",
            MEG_EFORMAT, "byte offset 27: regular expression is too large");
    refuses("{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"\"}}}", MEG_EFORMAT,
            "pre_tokenizer: pattern must be");
    refuses("{\"normalizer\": {\"type\": \"Strip\"}, \"added_tokens\": [{\"id\": 1, \"content\": \"\\n\"}], \"model\": "
            "{\"type\": \"WordLevel\", \"unk_token\": \"a\", \"vocab\": {\"a\": 0}}}",
            MEG_EFORMAT, "added_tokens: '?' is empty after normalization");
    refuses("{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"__\"}}", MEG_EFORMAT,
            "pre_tokenizer: replacement is '__', expected one character");
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_EUSAGE);
    c.tokenizer_model = "/nowhere";
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_ENOENT);
    assert_string_equal(
        e.msg,
        "/nowhere: not a directory with tokenizer.json; models are not downloaded by name from the Hugging Face Hub");
}

static void a_template_adds_a_limited_number_of_ids(void **state)
{
    struct meg_str json = { 0 };

    (void)state;
    meg_str_printf(&json,
                   "{\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"a\", \"vocab\": {\"a\": 0}}, "
                   "\"post_processor\": {\"type\": \"TemplateProcessing\", \"special_tokens\": {\"a\": {\"ids\": [0");
    for (int i = 1; i < 100; i++)
        meg_str_printf(&json, ", 0");
    meg_str_printf(&json, "]}}, \"single\": [{\"Sequence\": {\"id\": \"A\"}}");
    for (int i = 0; i < 41; i++)
        meg_str_printf(&json, ", {\"SpecialToken\": {\"id\": \"a\"}}");
    meg_str_printf(&json, "]}}");
    refuses(json.s, MEG_EFORMAT, "the template adds more than 4096 ids to a side of each text, expected a few");
    meg_str_free(&json);
}

static void files_over_64_mib_are_refused(void **state)
{
    char path[TMP_PATH];

    (void)state;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    write_in("tokenizer.json", "{");
    assert_int_equal(truncate(path, 100 << 20), 0);
    refuses_the_file(MEG_EFORMAT, "tokenizer.json: size is 104857600 bytes; the limit");
}

/* Each ByteLevel step maps bytes to characters, most of which have two bytes in UTF-8, so the text grows. */
static void pretokens_over_256_mib_are_refused(void **state)
{
    struct meg_str members = { 0 }, text = { 0 };
    struct meg_tokenizer *t;
    struct meg_ids got = { 0 };
    struct meg_err e;

    (void)state;
    if (IS_SANITIZED) {
        print_message("# with a sanitizer, it takes half a minute\n");
        skip();
    }
    meg_str_printf(&members, "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [");
    for (int i = 0; i < 20; i++)
        meg_str_printf(&members, "%s{\"type\": \"ByteLevel\", \"use_regex\": false}", i ? "," : "");
    meg_str_printf(&members, "]},");
    t = open_words(members.s);
    for (int i = 0; i < 100000; i++)
        meg_str_printf(&text, "\xC3\xA9");
    assert_int_equal(meg_tokenizer_encode(t, text.s, (int64_t)text.n, &got, &e), MEG_EFORMAT);
    assert_string_equal(e.msg, "pre_tokenizer: the text grows to more than 256 MiB; split the document");
    meg_tokenizer_close(t);
    free(got.v);
    meg_str_free(&members);
    meg_str_free(&text);
}

/* Nesting this deep would overflow the stack. */
static void deeply_nested_sequences_are_refused(void **state)
{
    struct meg_str file = { 0 };

    (void)state;
    for (int depth = 400; depth <= 40000; depth *= 100) {
        file.n = 0;
        meg_str_printf(&file, "{\"normalizer\": ");
        for (int i = 0; i < depth; i++)
            meg_str_printf(&file, "{\"type\": \"Sequence\", \"normalizers\": [");
        for (int i = 0; i < depth; i++)
            meg_str_printf(&file, "]}");
        meg_str_printf(&file, "}");
        refuses(file.s, MEG_EFORMAT,
                depth == 400 ? "a Sequence is nested more than 8 levels deep" : "maximum parsing depth");
    }
    meg_str_free(&file);
}

/* Loading takes time linear in the size of the file. */
static void many_added_tokens_load_fast(void **state)
{
    enum { N = 200000 };
    struct meg_str members = { 0 };
    struct meg_tokenizer *t;

    (void)state;
    meg_str_printf(&members, "\"added_tokens\": [");
    for (int i = 0; i < N; i++)
        meg_str_printf(&members, "%s{\"id\": %d, \"content\": \"t%06d\"}", i ? "," : "", 8 + i, i);
    meg_str_printf(&members, "],");
    t = open_words(members.s);
    encodes(t, "t199999t000007", (const int32_t[]){ 8 + 199999, 8 + 7 }, 2);
    meg_tokenizer_close(t);
    meg_str_free(&members);
}

static int make_dir(void **state)
{
    (void)state;
    return tmp_dir(dir, "hf") ? 0 : -1;
}

static int remove_dir(void **state)
{
    struct meg_err e;

    (void)state;
    return meg_remove_tree(dir, &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_adds_a_limited_number_of_ids),
        cmocka_unit_test(equals_gpt2),
        cmocka_unit_test(equals_bert_uncased),
        cmocka_unit_test(equals_bert_cased),
        cmocka_unit_test(equals_llama2),
        cmocka_unit_test(equals_t5),
        cmocka_unit_test(equals_phi2),
        cmocka_unit_test(equals_phi3),
        cmocka_unit_test(equals_falcon),
        cmocka_unit_test(equals_roberta),
        cmocka_unit_test(equals_llama3),
        cmocka_unit_test(equals_qwen2),
        cmocka_unit_test(pretokenizers_and_normalizers_split_as_specified),
        cmocka_unit_test(added_tokens_are_matched_and_numbered),
        cmocka_unit_test(unknown_bytes_are_dropped),
        cmocka_unit_test(byte_fallback_encodes_unknown_characters),
        cmocka_unit_test(byte_fallback_decodes_byte_tokens),
        cmocka_unit_test(a_token_alone_has_no_added_space),
        cmocka_unit_test(decoder_steps_have_their_options),
        cmocka_unit_test(decoder_steps_see_joined_bytes),
        cmocka_unit_test(template_and_special_ids_are_read),
        cmocka_unit_test(config_files_need_a_tokenizer_json),
        cmocka_unit_test(malformed_files_are_refused),
        cmocka_unit_test(files_over_64_mib_are_refused),
        cmocka_unit_test(pretokens_over_256_mib_are_refused),
        cmocka_unit_test(deeply_nested_sequences_are_refused),
        cmocka_unit_test(many_added_tokens_load_fast),
    };

    return cmocka_run_group_tests_name("hf", tests, make_dir, remove_dir);
}
