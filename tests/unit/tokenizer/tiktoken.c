/*
 * TikTokenizer: compare with the reference vectors of Megatron-LM and tiktoken, and test files that are created here.
 */
#include "tok_golden.h"

#include <unistd.h>

#include "file/file.h"
#include "tmp.h"

static char path[TMP_NAME];

static struct meg_tokenizer *open_tik(const struct meg_tok_conf *c)
{
    struct meg_tokenizer *t;
    struct meg_err e;

    if (meg_tokenizer_open(&t, c, &e) < 0)
        fail_msg("%s", e.msg);
    return t;
}

static void equals_megatron(void **state)
{
    char *file = tok_file("tik-megatron/vocab.json");
    struct meg_tok_conf c = { .type = "TikTokenizer",
                              .tokenizer_model = file,
                              .vocab_size = 32000,
                              .tiktoken_num_special_tokens = 1000,
                              .tiktoken_pattern = "v1" };
    struct meg_tokenizer *t = open_tik(&c);

    (void)state;
    assert_int_equal(meg_tokenizer_vocab_size(t), 32000);
    assert_int_equal(meg_tokenizer_eod(t), 2);
    assert_int_equal(meg_tokenizer_special_ids(t)->bos, 1);
    tok_both_golden(t, "megatron-tik-v1");
    meg_tokenizer_close(t);
    c.tiktoken_pattern = NULL;
    t = open_tik(&c);
    tok_both_golden(t, "megatron-tik-v2");
    meg_tokenizer_close(t);
    free(file);
}

static void equals_tiktoken_on_llama3(void **state)
{
    char *file = tok_file("llama3/tokenizer.model");
    const struct meg_tok_conf c = {
        .type = "TikTokenizer", .tokenizer_model = file, .vocab_size = MEG_UNSET, .tiktoken_num_special_tokens = 1000
    };
    struct meg_tokenizer *t = open_tik(&c);
    struct meg_str text = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_tokenizer_vocab_size(t), 128256);
    assert_int_equal(meg_tokenizer_special_ids(t)->bos, 128000);
    assert_int_equal(meg_tokenizer_eod(t), 128001);
    assert_int_equal(meg_tokenizer_decode(t, (const int32_t[]){ 128009, 128010, 128255 }, 3, &text, &e), 0);
    assert_string_equal(text.s, "<|eot_id|><|reserved_special_token_5|><|reserved_special_token_250|>");
    tok_both_golden(t, "tiktoken-llama3");
    meg_str_free(&text);
    meg_tokenizer_close(t);
    free(file);
}

static void equals_tiktoken_on_cl100k(void **state)
{
    char *file = tok_file("cl100k/cl100k_base.tiktoken.gz");
    struct meg_tok_conf c = {
        .type = "TikTokenizer", .tokenizer_model = path, .vocab_size = MEG_UNSET, .tiktoken_num_special_tokens = 1000
    };
    struct meg_str command = { 0 };
    struct meg_tokenizer *t;

    (void)state;
    meg_str_printf(&command, "gzip -dc '%s' >'%s'", file, path);
    assert_int_equal(system(command.s), 0);
    t = open_tik(&c);
    assert_int_equal(meg_tokenizer_vocab_size(t), 100256);
    tok_both_golden(t, "tiktoken-cl100k");
    meg_tokenizer_close(t);
    meg_str_free(&command);
    free(file);
}

static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Write a vocabulary file of the 256 single-byte tokens as text or JSON, followed by rest. */
static void write_file(bool is_json, const char *rest)
{
    struct meg_str s = { 0 };
    struct meg_err e;

    for (int i = 0; i < 256; i++) {
        char b[5] = { digit[i >> 2], digit[(i & 3) << 4], '=', '=', 0 };

        if (is_json)
            meg_str_printf(&s, "%s{\"rank\": %d, \"token_bytes\": \"%s\", \"token_str\": null}", i ? "," : "[", i, b);
        else
            meg_str_printf(&s, "%s %d\n", b, i);
    }
    meg_str_printf(&s, "%s", rest);
    assert_int_equal(meg_write_file(path, s.s, s.n, &e), MEG_OK);
    meg_str_free(&s);
}

/* Return how many tokens "12" is, in a vocabulary with this token; v1 and v2 split numbers into digits. */
static int64_t num_tokens_of_12(bool is_json, const char *pattern)
{
    const struct meg_tok_conf c = { .type = "TikTokenizer",
                                    .tokenizer_model = path,
                                    .vocab_size = MEG_UNSET,
                                    .tiktoken_num_special_tokens = 10,
                                    .tiktoken_pattern = pattern };
    struct meg_tokenizer *t;
    struct meg_ids ids = { 0 };
    struct meg_err e;
    int64_t n;

    write_file(is_json, is_json ? ",{\"rank\": 256, \"token_bytes\": \"MTI=\", \"token_str\": \"12\"}]" : "MTI= 256\n");
    t = open_tik(&c);
    assert_int_equal(meg_tokenizer_encode(t, "12", 2, &ids, &e), 0);
    n = ids.n;
    free(ids.v);
    meg_tokenizer_close(t);
    return n;
}

static void the_format_of_the_file_sets_the_default_pattern(void **state)
{
    (void)state;
    assert_int_equal(num_tokens_of_12(true, NULL), 2);
    assert_int_equal(num_tokens_of_12(true, "v1"), 2);
    assert_int_equal(num_tokens_of_12(true, "cl100k"), 1);
    assert_int_equal(num_tokens_of_12(true, "o200k"), 1);
    assert_int_equal(num_tokens_of_12(false, NULL), 1);
    assert_int_equal(num_tokens_of_12(false, "v2"), 2);
}

static void refuses(const struct meg_tok_conf *c, int code, const char *message)
{
    struct meg_tokenizer *t;
    struct meg_err e;

    assert_int_equal(meg_tokenizer_open(&t, c, &e), code);
    if (!strstr(e.msg, message))
        fail_msg("%s", e.msg);
}

static void invalid_vocabularies_are_rejected(void **state)
{
    struct meg_tok_conf c = {
        .type = "TikTokenizer", .tokenizer_model = path, .vocab_size = MEG_UNSET, .tiktoken_num_special_tokens = 3
    };
    static const char *twice[] = { "<unk>", "<s>", "<s>" }, *lacking[] = { "<unk>", "<s>" };
    static const char *empty[] = { "<unk>", "<s>", "" };
    struct meg_str long_token = { 0 };
    struct meg_err e;

    (void)state;
    for (int i = 0; i < 4098 / 3; i++)
        meg_str_printf(&long_token, "YWFh");
    meg_str_printf(&long_token, " 256\n");
    write_file(false, long_token.s);
    meg_str_free(&long_token);
    refuses(&c, MEG_EFORMAT, "line 257: the token has 4098 bytes; the limit is 4096");
    write_file(false, "YWI= -1\n");
    refuses(&c, MEG_EFORMAT, "line 257: rank is '-1', expected a number from 0 to 2097152");
    write_file(false, "YWI= 256 7\n");
    refuses(&c, MEG_EFORMAT, "line 257: rank is '256 7', expected a number");
    write_file(false, "YWI= 7\n");
    refuses(&c, MEG_EFORMAT, "several tokens have rank 7");
    write_file(false, "YW!= 256\n");
    refuses(&c, MEG_EFORMAT, "line 257: 'YW!=' is not a token in base64");
    write_file(false, "YWI=");
    refuses(&c, MEG_EFORMAT, "line 257: expected a token in base64 and its rank");
    assert_int_equal(meg_write_file(path, "YQ== 0\n", 7, &e), MEG_OK);
    refuses(&c, MEG_EFORMAT, "byte 0x00 is not a token");
    c.vocab_size = 300;
    refuses(&c, MEG_EUSAGE, "--vocab-size requires a JSON vocabulary");
    c.vocab_size = MEG_UNSET;
    write_file(true, ",{\"rank\": 256}]");
    refuses(&c, MEG_EFORMAT, "element 256");
    write_file(true, ",7]");
    refuses(&c, MEG_EFORMAT, "element 256: expected an object");
    write_file(true, "");
    refuses(&c, MEG_EFORMAT, path);
    write_file(true, "]");
    c.vocab_size = 300;
    refuses(&c, MEG_EUSAGE,
            "the file has 256 tokens, but --vocab-size 300 with --tiktoken-num-special-tokens 3 requires 297");
    c.vocab_size = 258;
    refuses(&c, MEG_EUSAGE, "leave too few ids");
    c.vocab_size = MEG_UNSET;
    c.tiktoken_special_tokens = (struct meg_str_list){ twice, 3 };
    refuses(&c, MEG_EUSAGE, "duplicate token '<s>'");
    c.tiktoken_special_tokens = (struct meg_str_list){ empty, 3 };
    refuses(&c, MEG_EUSAGE, "--tiktoken-special-tokens: token 3 is empty");
    c.tiktoken_special_tokens = (struct meg_str_list){ lacking, 2 };
    refuses(&c, MEG_EUSAGE, "the required token </s> is missing");
    c.tokenizer_model = NULL;
    refuses(&c, MEG_EUSAGE, "TikTokenizer requires --tokenizer-model");
}

/* Lines are read as tiktoken reads them: blank lines, trailing blanks, any order of ranks, unused ranks. */
static void lines_are_read_as_tiktoken_reads_them(void **state)
{
    static const char *special[] = { "<|endoftext|>", "<|end|>" };
    struct meg_tok_conf c = { .type = "TikTokenizer", .tokenizer_model = path, .vocab_size = MEG_UNSET };
    struct meg_tokenizer *t;
    struct meg_ids ids = { 0 };
    struct meg_str text = { 0 };
    struct meg_err e;

    (void)state;
    /* bc has rank 256, ab rank 258; 257 and 259 are unused; the second line of a token counts */
    write_file(false, "\n  YWI= 258  \r\nYmM=\t256\n\nZGU= 257\nZGU= 260");
    t = open_tik(&c);
    assert_int_equal(meg_tokenizer_vocab_size(t), 261);
    assert_int_equal(meg_tokenizer_encode(t, "abcde", 5, &ids, &e), 0);
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.v[0], 'a');
    assert_int_equal(ids.v[1], 256);
    assert_int_equal(ids.v[2], 260);
    meg_tokenizer_close(t);
    /* special tokens have unused ranks first, as <|endoftext|> in p50k_base */
    c.tiktoken_special_tokens = (struct meg_str_list){ special, 2 };
    t = open_tik(&c);
    assert_int_equal(meg_tokenizer_eod(t), 257);
    assert_int_equal(meg_tokenizer_vocab_size(t), 261);
    assert_int_equal(meg_tokenizer_decode(t, (const int32_t[]){ 257, 259, 258 }, 3, &text, &e), 0);
    assert_string_equal(text.s, "<|endoftext|><|end|>ab");
    meg_tokenizer_close(t);
    meg_str_free(&text);
    free(ids.v);
}

static int make_file(void **state)
{
    int fd = tmp_file(path, "tiktoken");

    (void)state;
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_format_of_the_file_sets_the_default_pattern),
        cmocka_unit_test(equals_megatron),
        cmocka_unit_test(equals_tiktoken_on_llama3),
        cmocka_unit_test(equals_tiktoken_on_cl100k),
        cmocka_unit_test(invalid_vocabularies_are_rejected),
        cmocka_unit_test(lines_are_read_as_tiktoken_reads_them),
    };

    return cmocka_run_group_tests_name("tiktoken", tests, make_file, remove_file);
}
