/* BertWordPieceLowerCase and BertWordPieceCase: ids and texts equal Megatron-LM's; small vocabularies. */
#include "tok_golden.h"

#include <unistd.h>

#include "file/file.h"
#include "tmp.h"

static char vocab_path[TMP_NAME];
static const char vocab[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n##s\n.\n,\n'\n  it \nn\n##'t\nt\nno";

static void write_vocab(const char *text)
{
    struct meg_err e;

    assert_int_equal(meg_write_file(vocab_path, text, strlen(text), &e), 0);
}

static struct meg_tokenizer *open_bert(const char *type, const char *file, int64_t nextra)
{
    const struct meg_tok_conf c = {
        .type = type, .vocab_file = file, .vocab_size = MEG_UNSET, .vocab_extra_ids = nextra
    };
    struct meg_tokenizer *t;
    struct meg_err e;

    if (meg_tokenizer_open(&t, &c, &e) < 0)
        fail_msg("%s", e.msg);
    return t;
}

static void equals_megatron_uncased(void **state)
{
    char *file = tok_file("bert-base-uncased/vocab.txt");
    struct meg_tokenizer *t = open_bert("BertWordPieceLowerCase", file, 100);

    (void)state;
    assert_int_equal(meg_tokenizer_vocab_size(t), 30624);
    assert_int_equal(meg_tokenizer_eod(t), 30523);
    assert_int_equal(meg_tokenizer_special_ids(t)->bos, 30522);
    assert_int_equal(meg_tokenizer_special_ids(t)->cls, 101);
    tok_both_golden(t, "bert-base-uncased");
    meg_tokenizer_close(t);
    free(file);
}

static void equals_megatron_cased(void **state)
{
    char *file = tok_file("bert-base-cased/vocab.txt");
    struct meg_tokenizer *t = open_bert("BertWordPieceCase", file, 0);

    (void)state;
    assert_int_equal(meg_tokenizer_vocab_size(t), 28998);
    tok_both_golden(t, "bert-base-cased");
    meg_tokenizer_close(t);
    free(file);
}

static void encodes(struct meg_tokenizer *t, const char *text, const int32_t *want, int64_t n)
{
    struct meg_ids got = { 0 };
    struct meg_err e;

    assert_int_equal(meg_tokenizer_encode(t, text, (int64_t)strlen(text), &got, &e), 0);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.v, want, (size_t)n * sizeof *want);
    free(got.v);
}

static void words_are_split_and_lowercased(void **state)
{
    struct meg_tokenizer *t, *s;
    struct meg_str long_word = { 0 };

    (void)state;
    write_vocab(vocab);
    t = open_bert("BertWordPieceLowerCase", vocab_path, 1);
    assert_int_equal(meg_tokenizer_vocab_size(t), 16 + 2 + 1);
    encodes(t, "The CATS. it", (const int32_t[]){ 5, 6, 7, 8, 11 }, 5);
    encodes(t,
            "th\x0B"
            "e c\xC3\xA1ts",
            (const int32_t[]){ 5, 6, 7 }, 3);
    encodes(t, "[MASK] dog", (const int32_t[]){ 1, 1, 1, 1 }, 4);
    encodes(t,
            "the\xE4\xB8\x80"
            "cat",
            (const int32_t[]){ 5, 1, 6 }, 3);
    s = meg_tokenizer_clone(t);
    encodes(s, "the cats", (const int32_t[]){ 5, 6, 7 }, 3);
    meg_tokenizer_close(s);
    meg_str_printf(&long_word, "cat%0198d", 0);
    for (size_t i = 3; i < long_word.n; i++)
        long_word.s[i] = 's';
    encodes(t, long_word.s, (const int32_t[]){ 1 }, 1);
    meg_str_free(&long_word);
    meg_tokenizer_close(t);
    t = open_bert("BertWordPieceCase", vocab_path, 0);
    encodes(t, "The the", (const int32_t[]){ 1, 5 }, 2);
    meg_tokenizer_close(t);
}

/*
 * The ids are those of FullTokenizer of Megatron Core 0.10 and of BertTokenizer of transformers 4.57.3, whose files end
 * lines only with \n, \r and \r\n.
 */
static void each_line_counts_and_the_last_of_equal_lines_wins(void **state)
{
    static const char *const file[] = {
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\xE2\x80\xA8\nthe\ncat\n", /* line 6 is U+2028 */
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\nthe\r\ncat",
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nthe\ncat\n",
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\nthe\ncat\n",
    };
    const int32_t ids[] = { 6, 7, 1 };

    (void)state;
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        struct meg_tokenizer *t;
        struct meg_str text = { 0 };

        write_vocab(file[i]);
        t = open_bert("BertWordPieceLowerCase", vocab_path, 0);
        assert_int_equal(meg_tokenizer_vocab_size(t), 8 + 2);
        assert_int_equal(meg_tokenizer_special_ids(t)->bos, 8);
        encodes(t,
                "The\xE2\x80\xA8"
                "cat ran",
                ids, 3);
        assert_int_equal(meg_tokenizer_decode(t, ids, 3, &text, NULL), 0);
        assert_int_equal(text.n, strlen("the cat [UNK]"));
        assert_memory_equal(text.s, "the cat [UNK]", text.n);
        meg_str_free(&text);
        meg_tokenizer_close(t);
    }
}

static void refuses(const char *text, const char *message)
{
    const struct meg_tok_conf c = { .type = "BertWordPieceCase", .vocab_file = vocab_path };
    struct meg_tokenizer *t;
    struct meg_err e;

    write_vocab(text);
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_EFORMAT);
    assert_non_null(strstr(e.msg, vocab_path));
    if (!strstr(e.msg, message))
        fail_msg("%s", e.msg);
}

static void malformed_vocabularies_are_refused(void **state)
{
    struct meg_tok_conf c = { .type = "BertWordPieceCase" };
    struct meg_tokenizer *t;
    struct meg_err e;

    (void)state;
    refuses("", "token [CLS] is missing");
    refuses("[CLS]\n[SEP]\n[PAD]\n[MASK]\n", "token [UNK] is missing");
    refuses("a\n\xFF\n", "byte 3: invalid UTF-8");
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "BertWordPieceCase requires --vocab-file");
    c.vocab_file = "/nowhere/vocab.txt";
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_ENOENT);
    c.vocab_extra_ids = -1;
    assert_int_equal(meg_tokenizer_open(&t, &c, &e), MEG_EUSAGE);
}

static int make_file(void **state)
{
    int fd = tmp_file(vocab_path, "bert");

    (void)state;
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(vocab_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_megatron_uncased),
        cmocka_unit_test(equals_megatron_cased),
        cmocka_unit_test(words_are_split_and_lowercased),
        cmocka_unit_test(each_line_counts_and_the_last_of_equal_lines_wins),
        cmocka_unit_test(malformed_vocabularies_are_refused),
    };

    return cmocka_run_group_tests_name("bert", tests, make_file, remove_file);
}
