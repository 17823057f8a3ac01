/* infer/lines.h and infer/prompt.h: lines as they come, ids out of them, text out of ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "infer/lines.h"
#include "infer/prompt.h"
#include "infer/reply.h"

/* A reader of what is written to *to. */
static void open_pipe(struct meg_lines *in, int *to)
{
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    *in = (struct meg_lines){ .name = "pipe", .fd = ends[0] };
    *to = ends[1];
}

static void put(int to, const char *s)
{
    assert_int_equal(write(to, s, strlen(s)), (ssize_t)strlen(s));
}

static void expect(struct meg_lines *in, const char *want)
{
    struct meg_err e;
    char *text;
    size_t n;

    assert_true(meg_lines_is_ready(in));
    assert_int_equal(meg_lines_next(in, &text, &n, &e), 1);
    assert_string_equal(text, want);
    assert_int_equal(n, strlen(want));
}

static void a_line_is_ready_when_its_end_is_there(void **state)
{
    struct meg_lines in;
    struct meg_err e;
    char *text;
    size_t n;
    int to;

    (void)state;
    open_pipe(&in, &to);
    assert_false(meg_lines_is_ready(&in));
    put(to, "on");
    assert_false(meg_lines_is_ready(&in));
    put(to, "e\ntwo\r\n\nthr");
    expect(&in, "one");
    expect(&in, "two");
    expect(&in, "");
    assert_false(meg_lines_is_ready(&in));
    put(to, "ee");
    close(to);
    expect(&in, "three");
    assert_int_equal(in.line, 4);
    assert_true(meg_lines_is_ready(&in));
    assert_int_equal(meg_lines_next(&in, &text, &n, &e), 0);
    assert_int_equal(meg_lines_next(&in, &text, &n, &e), 0);
    meg_lines_close(&in);
}

static void lines_longer_than_the_buffer_are_whole(void **state)
{
    enum { LONG = 1000000 };
    char name[] = "/tmp/meg-lines.XXXXXX", *text;
    struct meg_lines in;
    struct meg_err e;
    size_t n;
    int fd = mkstemp(name);
    FILE *f = fdopen(fd, "w");

    (void)state;
    assert_non_null(f);
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < LONG + i; j++)
            putc('a' + i, f);
        fputs("\nshort\n", f);
    }
    fclose(f);
    assert_int_equal(meg_lines_open(&in, name, &e), MEG_OK);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(meg_lines_next(&in, &text, &n, &e), 1);
        assert_int_equal(n, LONG + i);
        assert_true(text[0] == 'a' + i && text[n - 1] == 'a' + i && text[n] == 0);
        expect(&in, "short");
    }
    assert_int_equal(meg_lines_next(&in, &text, &n, &e), 0);
    meg_lines_close(&in);
    unlink(name);
    assert_int_equal(meg_lines_open(&in, name, &e), MEG_ENOENT);
    assert_non_null(strstr(e.msg, name));
}

/* Ids of a line under NullTokenizer of 0..99, 100 ending a document; the message where it is refused. */
static int parse(const char *text, bool is_plain_allowed, bool has_tok, struct meg_ids *ids, struct meg_err *e)
{
    const struct meg_tok_conf tc = { .type = "NullTokenizer", .vocab_size = 100 };
    struct meg_tokenizer *tok = NULL;
    int r;

    assert_int_equal(meg_tokenizer_open(&tok, &tc, e), MEG_OK);
    ids->n = 0;
    r = meg_prompt_ids(&(struct meg_prompt_rule){ "prompt", is_plain_allowed, has_tok ? tok : NULL, 101 }, "in", 7,
                       text, strlen(text), ids, e);
    meg_tokenizer_close(tok);
    return r;
}

static void lines_become_ids(void **state)
{
    static const struct { const char *text; bool plain; int n, first; } good[] = {
        { "5 6 7", true, 3, 5 }, { "", true, 0, 0 }, { "{\"prompt\":\"8 9\"}", true, 2, 8 },
        { "{\"prompt\":\"8 9\"}", false, 2, 8 }, { "{\"ids\":[100,0], \"more\":[1.5]}", true, 2, 100 },
        { " {\"ids\":[3]} ", false, 1, 3 }, { "{\"ids\":[]}", false, 0, 0 },
        { "\xEF\xBB\xBF{\"ids\":[4]}", true, 1, 4 }, { "\xEF\xBB\xBF{\"prompt\":\"4\"}", false, 1, 4 },
    };
    struct meg_ids ids = { 0 };
    struct meg_err e;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(parse(good[i].text, good[i].plain, true, &ids, &e), MEG_OK);
        assert_int_equal(ids.n, good[i].n);
        if (ids.n > 0)
            assert_int_equal(ids.v[0], good[i].first);
    }
    assert_int_equal(parse("{\"ids\":[1]}", true, false, &ids, &e), MEG_OK);
    free(ids.v);
}

static void lines_are_refused_with_their_number(void **state)
{
    static const struct { const char *text; bool plain, tok; int code; const char *words; } bad[] = {
        { "{\"prompt\":", true, true, MEG_EFORMAT, "not JSON" },
        { "5 6", false, true, MEG_EFORMAT, "not JSON" },
        { "", false, true, MEG_EFORMAT, "not JSON" },
        { "[1,2]", false, true, MEG_EFORMAT, "found no object" },
        { "{\"Prompt\":\"5\"}", true, true, MEG_EFORMAT, "either \"prompt\" or \"ids\", found neither" },
        { "{\"prompt\":\"5\",\"ids\":[5]}", true, true, MEG_EFORMAT, "either \"prompt\" or \"ids\", found both" },
        { "{\"prompt\":5}", true, true, MEG_EFORMAT, "\"prompt\" is not a string" },
        { "{\"ids\":5}", true, true, MEG_EFORMAT, "not an array" },
        { "{\"ids\":[1,2.0]}", true, true, MEG_EFORMAT, "\"ids\"[1] is not a whole number" },
        { "{\"ids\":[1,\"2\"]}", true, true, MEG_EFORMAT, "\"ids\"[1] is not a whole number" },
        { "{\"ids\":[0,101]}", true, true, MEG_EFORMAT, "\"ids\"[1] is 101; the model has ids 0 to 100" },
        { "{\"ids\":[-1]}", true, true, MEG_EFORMAT, "\"ids\"[0] is -1" },
        { "{\"prompt\":\"\xff\"}", true, true, MEG_EFORMAT, "not JSON" },
        { "\xff", true, true, MEG_EFORMAT, "UTF-8" },
        { "5", true, false, MEG_EUSAGE, "--tokenizer-type" },
    };
    struct meg_ids ids = { 0 };
    struct meg_err e;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(bad[i].text, bad[i].plain, bad[i].tok, &ids, &e), bad[i].code);
        assert_int_equal(strncmp(e.msg, "in: line 7: ", 12), 0);
        assert_non_null(strstr(e.msg, bad[i].words));
    }
    free(ids.v);
}

/* A vocabulary of the 256 bytes and nothing else. */
static struct meg_tokenizer *bytes_tokenizer(void)
{
    char dir[] = "/tmp/meg-detok.XXXXXX", vocab[64], merges[64];
    struct meg_tok_conf tc = { .type = "GPT2BPETokenizer", .vocab_file = vocab, .merge_file = merges };
    struct meg_tokenizer *tok = NULL;
    struct meg_err e;
    FILE *f;

    assert_non_null(mkdtemp(dir));
    snprintf(vocab, sizeof vocab, "%s/v", dir);
    snprintf(merges, sizeof merges, "%s/m", dir);
    assert_non_null(f = fopen(vocab, "w"));
    for (int b = 0, n = 0; b < 256; b++) {            /* the byte alphabet of GPT-2 */
        bool is_plain = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        fprintf(f, "%s\"\\u%04x\":%d", b ? "," : "{", is_plain ? b : 0x100 + n++, b);
    }
    fputs(",\"<|endoftext|>\":256}", f);
    fclose(f);
    assert_non_null(f = fopen(merges, "w"));
    fputs("#version: 0.2\n", f);
    fclose(f);
    if (meg_tokenizer_open(&tok, &tc, &e) < 0)
        fail_msg("%s", e.msg);
    unlink(vocab);
    unlink(merges);
    rmdir(dir);
    return tok;
}

/* Whatever the bytes and however they are cut: never half a character, and in the end what decode gives. */
static void text_grows_by_whole_characters(void **state)
{
    static const char *const texts[] = {
        "plain", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80!", "\xff\xc3", "\xe2\x82", "\xf0\x9f\x98z", "\xed\xa0\x80\xc3\xc3\xa9", "",
    };
    struct meg_tokenizer *tok = bytes_tokenizer();
    struct meg_err e;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int64_t n = (int64_t)strlen(texts[i]);
        int32_t ids[32];
        for (int64_t j = 0; j < n; j++)
            ids[j] = (unsigned char)texts[i][j];
        for (int64_t step = 1; step <= 3; step++) {
            struct meg_detok d = { .tok = tok };
            struct meg_str whole = { 0 }, grown = { 0 };
            assert_int_equal(meg_tokenizer_decode(tok, ids, n, &whole, &e), MEG_OK);
            for (int64_t j = 0; j < n; j += step) {
                assert_int_equal(meg_detok_add(&d, ids + j, n - j < step ? n - j : step, false, &grown, &e), MEG_OK);
                assert_true(grown.n <= whole.n);
                if (grown.n > 0)
                    assert_memory_equal(grown.s, whole.s, grown.n);
            }
            assert_int_equal(meg_detok_add(&d, NULL, 0, true, &grown, &e), MEG_OK);
            assert_int_equal(grown.n, whole.n);
            if (whole.n > 0)
                assert_memory_equal(grown.s, whole.s, whole.n);
            meg_detok_free(&d);
            meg_str_free(&whole);
            meg_str_free(&grown);
        }
    }
    meg_tokenizer_close(tok);
}

static void a_reply_is_one_json_line(void **state)
{
    struct meg_tokenizer *tok = bytes_tokenizer();
    struct meg_detok detok = { .tok = tok };
    struct meg_continuation c = { .ids = (int32_t[]){ 'a', '\n', '"', 0xc3 }, .n = 4, .finish = MEG_STOPPED,
                                  .logprob = (float[]){ -0.1f, -1, -2.5f, 0 } };
    struct meg_str out = { 0 }, held = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_reply_json(&out, &c, &detok, &held, true, &e), MEG_OK);
    assert_string_equal(out.s, "{\"text\":\"a\\n\\\"\xef\xbf\xbd\",\"ids\":[97,10,34,195],"
                               "\"logprobs\":[-0.100000001,-1,-2.5,0],\"finish\":\"stop\"}\n");
    out.n = 0;
    c.n = 0;
    c.finish = MEG_FULL;
    assert_int_equal(meg_reply_json(&out, &c, NULL, &held, false, &e), MEG_OK);
    assert_string_equal(out.s, "{\"ids\":[],\"finish\":\"length\"}\n");
    meg_detok_free(&detok);
    meg_str_free(&out);
    meg_tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_ready_when_its_end_is_there),
        cmocka_unit_test(lines_longer_than_the_buffer_are_whole),
        cmocka_unit_test(lines_become_ids),
        cmocka_unit_test(lines_are_refused_with_their_number),
        cmocka_unit_test(text_grows_by_whole_characters),
        cmocka_unit_test(a_reply_is_one_json_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
