/* infer/prompt.h and infer/reply.h: prompt lines parsed to ids and options; decoded text, stop strings and JSON. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "infer/prompt.h"
#include "infer/reply.h"
#include "unicode/utf8.h"
#include "tmp.h"

/* Parse a line with a NullTokenizer of ids 0..99 and end-of-document id 100, or without one if has_tok is false. */
static int parse_as(struct meg_prompt_format format, const char *text, bool has_tok, struct meg_ids *ids,
                    struct meg_request *q, struct meg_err *e)
{
    const struct meg_tok_conf tc = { .type = "NullTokenizer", .vocab_size = 100 };
    struct meg_tokenizer *tok = NULL;
    int r;

    assert_int_equal(meg_tokenizer_open(&tok, &tc, e), MEG_OK);
    ids->n = 0;
    format.key = "prompt";
    format.tok = has_tok ? tok : NULL;
    format.vocab_size = 101;
    format.unpadded_vocab = 100;
    r = meg_prompt_read(&format, &(struct meg_prompt_line){ "in", 7, text, strlen(text) }, ids, q, e);
    meg_tokenizer_close(tok);
    return r;
}

static int parse(const char *text, bool is_plain_allowed, bool has_tok, struct meg_ids *ids, struct meg_err *e)
{
    return parse_as((struct meg_prompt_format){ .is_plain_allowed = is_plain_allowed }, text, has_tok, ids, NULL, e);
}

static void lines_are_parsed_into_ids(void **state)
{
    static const struct {
        const char *text;
        bool plain;
        int n, first;
    } good[] = {
        { "5 6 7", true, 3, 5 },
        { "", true, 0, 0 },
        { "{\"prompt\":\"8 9\"}", true, 2, 8 },
        { "{\"prompt\":\"8 9\"}", false, 2, 8 },
        { "{\"ids\":[100,0]}", true, 2, 100 },
        { " {\"ids\":[3]} ", false, 1, 3 },
        { "{\"ids\":[]}", false, 0, 0 },
        { "\xEF\xBB\xBF{\"ids\":[4]}", true, 1, 4 },
        { "\xEF\xBB\xBF{\"prompt\":\"4\"}", false, 1, 4 },
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

static void messages_name_the_line(void **state)
{
    static const struct {
        const char *text;
        bool plain, tok;
        int code;
        const char *words;
    } bad[] = {
        { "{\"prompt\":", true, true, MEG_EFORMAT, "not JSON" },
        { "5 6", false, true, MEG_EFORMAT, "not JSON" },
        { "", false, true, MEG_EFORMAT, "not JSON" },
        { "[1,2]", false, true, MEG_EFORMAT, "found another type of JSON value" },
        { "[1,2]", true, true, MEG_EFORMAT,
          "found a JSON array, expected JSON lines; convert it to one object per line: jq -c '.[]'" },
        { "\xEF\xBB\xBF [\"5 6\"]", true, true, MEG_EFORMAT, "found a JSON array" },
        { "[ {\"prompt\":\"5\"},", true, true, MEG_EFORMAT, "found a JSON array" },
        { "{\"Prompt\":\"5\"}", true, true, MEG_EFORMAT, "either \"prompt\" or \"ids\", found neither" },
        { "{\"prompt\":\"5\",\"ids\":[5]}", true, true, MEG_EFORMAT, "either \"prompt\" or \"ids\", found both" },
        { "{\"prompt\":5}", true, true, MEG_EFORMAT, "\"prompt\" is not a string" },
        { "{\"ids\":5}", true, true, MEG_EFORMAT, "not an array" },
        { "{\"ids\":[1,2.0]}", true, true, MEG_EFORMAT, "\"ids\"[1] is not an integer" },
        { "{\"ids\":[1,\"2\"]}", true, true, MEG_EFORMAT, "\"ids\"[1] is not an integer" },
        { "{\"ids\":[0,101]}", true, true, MEG_EFORMAT,
          "\"ids\"[1] is 101; the vocabulary of the model has ids 0 to 100" },
        { "{\"ids\":[-1]}", true, true, MEG_EFORMAT, "\"ids\"[0] is -1" },
        { "{\"prompt\":\"\xff\"}", true, true, MEG_EFORMAT, "not JSON" },
        { "\xff", true, true, MEG_EFORMAT, "UTF-8" },
        { "5", true, false, MEG_EUSAGE, "--tokenizer-type" },
        { "{\"prompt\":\"5\",\"more\":1}", true, true, MEG_EFORMAT,
          "unknown member \"more\"; known are \"prompt\", \"ids\"" },
        { "{\"ids\":[5],\"seed\":1}", true, true, MEG_EFORMAT,
          "unknown member \"seed\"; known are \"prompt\", \"ids\"" },
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

/* These texts are passed to the tokenizer, which accepts only numbers. */
static void texts_with_brackets_are_plain(void **state)
{
    static const char *const text[] = { "[1]", "[\"5\",", "[MASK] is", "[\"5\"] 6", "5 [1,2]", "[true]", "[" };
    struct meg_ids ids = { 0 };
    struct meg_err e;

    (void)state;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        assert_int_equal(parse(text[i], true, true, &ids, &e), MEG_EFORMAT);
        if (strstr(e.msg, "JSON"))
            fail_msg("%s: %s", text[i], e.msg);
    }
    free(ids.v);
}

static const struct meg_request defaults = { .max_tokens = 64, .sampling = { .temperature = 1, .seed = 1234 } };

static void a_line_of_a_corpus_may_have_other_members(void **state)
{
    struct meg_ids ids = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(parse_as((struct meg_prompt_format){ .is_corpus = true }, "{\"prompt\":\"5\",\"url\":\"x\"}", true,
                              &ids, NULL, &e),
                     MEG_OK);
    assert_int_equal(ids.n, 1);
    free(ids.v);
}

static void a_line_sets_options(void **state)
{
    const struct meg_request greedy = { .max_tokens = 64, .sampling = { .greedy = true, .temperature = 1 } };
    const struct meg_prompt_format format = { .is_plain_allowed = true };
    struct meg_request q = defaults;
    struct meg_ids ids = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(parse_as(format, "5 6", true, &ids, &q, &e), MEG_OK);
    assert_memory_equal(&q, &defaults, sizeof q);
    assert_int_equal(parse_as(format, "{\"ids\":[1]}", true, &ids, &q, &e), MEG_OK);
    assert_memory_equal(&q, &defaults, sizeof q);
    assert_int_equal(parse_as(format,
                              "{\"ids\":[1],\"max_tokens\":3,\"temperature\":0.5,\"top_k\":100,"
                              "\"seed\":4294967295,\"stop\":[\"a\",\"\\u0000b\"]}",
                              true, &ids, &q, &e),
                     MEG_OK);
    assert_int_equal(q.max_tokens, 3);
    assert_true(q.sampling.temperature == 0.5);
    assert_int_equal(q.sampling.top_k, 100);
    assert_int_equal(q.sampling.seed, 4294967295);
    assert_true(q.has_seed);
    assert_int_equal(q.nstop, 2);
    assert_int_equal(q.stop[0].n, 1);
    assert_int_equal(q.stop[1].n, 2);
    assert_memory_equal(q.stop[1].s, "\0b", 2);
    meg_request_free(&q);
    q = defaults;
    assert_int_equal(parse_as(format, "{\"top_p\":1,\"prompt\":\"1\",\"stop\":\"\\n\"}", true, &ids, &q, &e), MEG_OK);
    assert_true(q.sampling.top_p == 1);
    assert_false(q.has_seed);
    assert_int_equal(q.nstop, 1);
    meg_request_free(&q);
    q = greedy;
    assert_int_equal(parse_as(format, "{\"ids\":[1],\"seed\":3}", true, &ids, &q, &e), MEG_OK);
    assert_true(meg_sampling_is_greedy(&q.sampling));
    q = greedy;
    assert_int_equal(parse_as(format, "{\"ids\":[1],\"temperature\":2}", true, &ids, &q, &e), MEG_OK);
    assert_false(meg_sampling_is_greedy(&q.sampling));
    q = defaults;
    assert_int_equal(parse_as(format, "{\"ids\":[1],\"temperature\":0,\"top_p\":0.5}", true, &ids, &q, &e), MEG_OK);
    assert_true(meg_sampling_is_greedy(&q.sampling));
    q = defaults;
    assert_int_equal(parse_as(format, "{\"ids\":[1],\"top_k\":1}", true, &ids, &q, &e), MEG_OK);
    assert_true(meg_sampling_is_greedy(&q.sampling));
    free(ids.v);
}

static void messages_name_the_option_of_a_line(void **state)
{
    static const char max_tokens[] = "an integer from 1 to 2147483647", temperature[] = "from 0 (greedy) to 100",
                      top_k[] = "an integer from 0 to the size of the vocabulary", top_p[] = "a number from 0 to 1",
                      seed[] = "an integer from 0 to 4294967295", stop[] = "a string or an array of strings";
    static const struct {
        const char *name, *value, *words;
    } bad[] = {
        { "max_tokens", "0", max_tokens },
        { "max_tokens", "-1", max_tokens },
        { "max_tokens", "1.0", max_tokens },
        { "max_tokens", "\"5\"", max_tokens },
        { "max_tokens", "null", max_tokens },
        { "max_tokens", "2147483648", max_tokens },
        { "temperature", "-0.1", temperature },
        { "temperature", "100.5", temperature },
        { "temperature", "\"1\"", temperature },
        { "temperature", "true", temperature },
        { "top_k", "-1", top_k },
        { "top_k", "2.5", top_k },
        { "top_k", "[1]", top_k },
        { "top_k", "101", "top_k 101: must be from 0 to 100" },
        { "top_p", "-0.5", top_p },
        { "top_p", "1.5", top_p },
        { "top_p", "\"0.5\"", top_p },
        { "seed", "-1", seed },
        { "seed", "4294967296", seed },
        { "seed", "1.5", seed },
        { "seed", "\"1\"", seed },
        { "stop", "\"\"", stop },
        { "stop", "[\"a\",\"\"]", stop },
        { "stop", "[1]", stop },
        { "stop", "5", stop },
        { "stop", "{}", stop },
        { "stop", "null", stop },
    };
    const struct meg_prompt_format format = { .is_plain_allowed = true };
    struct meg_ids ids = { 0 };
    struct meg_err e;
    char line[200], words[200];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct meg_request q = defaults;

        snprintf(line, sizeof line, "{\"prompt\":\"5\",\"%s\":%s}", bad[i].name, bad[i].value);
        snprintf(words, sizeof words, "\"%s\" is %s; it must be ", bad[i].name, bad[i].value);
        assert_int_equal(parse_as(format, line, true, &ids, &q, &e), MEG_EFORMAT);
        assert_int_equal(strncmp(e.msg, "in: line 7: ", 12), 0);
        assert_non_null(strstr(e.msg, bad[i].words));
        if (!strstr(bad[i].words, "101"))
            assert_non_null(strstr(e.msg, words));
        meg_request_free(&q);
    }
    for (int i = 0; i < 2; i++) {
        struct meg_request q = defaults;

        q.sampling.top_k = i ? 0 : 5;
        assert_int_equal(parse_as(format, i ? "{\"ids\":[5],\"top_p\":0.5,\"top_k\":2}" : "{\"ids\":[5],\"top_p\":0.5}",
                                  true, &ids, &q, &e),
                         MEG_EFORMAT);
        assert_non_null(strstr(e.msg, "use only one of them"));
    }
    for (int i = 0; i < 2; i++) {
        struct meg_request q = defaults;

        assert_int_equal(parse_as(format, "{\"ids\":[5],\"stop\":\"a\"}", i, &ids, &q, &e), i ? MEG_OK : MEG_EUSAGE);
        meg_request_free(&q);
    }
    {
        struct meg_request q = defaults;

        assert_int_equal(parse_as(format, "{\"ids\":[5],\"max_\\ntokens\":5}", true, &ids, &q, &e), MEG_EFORMAT);
        assert_non_null(strstr(e.msg, "unknown member \"max_\\ntokens\"; known are \"prompt\", \"ids\", "
                                      "\"max_tokens\", \"stop\", \"temperature\", \"top_k\", \"top_p\", \"seed\""));
    }
    free(ids.v);
}

/* Open a tokenizer whose ids 0 to 255 are the bytes, and 256 is <|endoftext|>. */
static struct meg_tokenizer *bytes_tokenizer(void)
{
    char dir[TMP_NAME], vocab[TMP_PATH], merges[TMP_PATH];
    struct meg_tok_conf tc = { .type = "GPT2BPETokenizer", .vocab_file = vocab, .merge_file = merges };
    struct meg_tokenizer *tok = NULL;
    struct meg_err e;
    FILE *f;

    assert_non_null(tmp_dir(dir, "detok"));
    snprintf(vocab, sizeof vocab, "%s/v", dir);
    snprintf(merges, sizeof merges, "%s/m", dir);
    assert_non_null(f = fopen(vocab, "w"));
    for (int b = 0, n = 0; b < 256; b++) { /* the byte alphabet of GPT-2 */
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

/* In chunks of 1 to 3 ids, the text grows by complete characters, and the complete text equals that of decode. */
static void detokenized_text_grows_by_complete_characters(void **state)
{
    static const char *const texts[] = {
        "plain",
        "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80!",
        "\xff\xc3",
        "\xe2\x82",
        "\xf0\x9f\x98z",
        "\xed\xa0\x80\xc3\xc3\xa9",
        "",
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
            struct meg_str full = { 0 }, grown = { 0 };
            assert_int_equal(meg_tokenizer_decode(tok, ids, n, &full, &e), MEG_OK);
            for (int64_t j = 0; j < n; j += step) {
                assert_int_equal(meg_detok_add(&d, ids + j, n - j < step ? n - j : step, false, &grown, &e), MEG_OK);
                assert_true(grown.n <= full.n);
                if (grown.n > 0)
                    assert_memory_equal(grown.s, full.s, grown.n);
            }
            assert_int_equal(meg_detok_add(&d, NULL, 0, true, &grown, &e), MEG_OK);
            assert_int_equal(grown.n, full.n);
            if (full.n > 0)
                assert_memory_equal(grown.s, full.s, full.n);
            meg_detok_free(&d);
            meg_str_free(&full);
            meg_str_free(&grown);
        }
    }
    meg_tokenizer_close(tok);
}

static void a_reply_is_one_json_line(void **state)
{
    struct meg_tokenizer *tok = bytes_tokenizer();
    struct meg_reply r = { .c = { .ids = (int32_t[]){ 'a', '\n', '"', 0xc3 },
                                  .n = 4,
                                  .finish = MEG_FINISH_STOP,
                                  .logprob = (float[]){ -0.1f, -1, -2.5f, 0 } } };
    struct meg_reply none = { .c = { .finish = MEG_FINISH_LENGTH } };
    struct meg_str out = { 0 };
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_reply_begin(&r, tok, NULL, 0, &e), MEG_OK);
    assert_int_equal(meg_reply_update(&r, &e), 0);
    assert_true(r.is_complete);
    meg_reply_add_json(&out, &r, &(struct meg_token_output_conf){ 0 }, true);
    assert_string_equal(out.s, "{\"text\":\"a\\n\\\"\xef\xbf\xbd\",\"ids\":[97,10,34,195],"
                               "\"logprobs\":[-0.100000001,-1,-2.5,0],\"finish\":\"stop\"}\n");
    out.n = 0;
    assert_int_equal(meg_reply_begin(&none, NULL, NULL, 0, &e), MEG_OK);
    assert_int_equal(meg_reply_update(&none, &e), 0);
    meg_reply_add_json(&out, &none, &(struct meg_token_output_conf){ 0 }, false);
    assert_string_equal(out.s, "{\"ids\":[],\"finish\":\"length\"}\n");
    r.c = (struct meg_continuation){ 0 };
    meg_reply_free(&r);
    meg_str_free(&out);
    meg_tokenizer_close(tok);
}

static void return_tokens_adds_the_text_of_each_token(void **state)
{
    const struct meg_token_output_conf tokens = { .return_tokens = true }, top = { .top_n_logprobs = 2 },
                                       both = { true, 2 };
    const struct meg_token_logprob likely[] = { { 'a', -0.1f }, { 300, -INFINITY }, { 0xc3, -1 }, { '"', -2.5f } };
    struct meg_tokenizer *tok = bytes_tokenizer();
    struct meg_str out = { 0 };
    struct meg_err e;

    (void)state;
    meg_reply_add_tokens(&out, &tokens, tok, (int32_t[]){ 'a', 0xc3, 256, 257, '"' }, 5);
    assert_string_equal(out.s, "\"tokens\":[\"a\",\"\xef\xbf\xbd\",\"<|endoftext|>\",null,\"\\\"\"]");
    out.n = 0;
    meg_reply_add_top_logprobs(&out, &top, NULL, likely, 2);
    assert_string_equal(out.s,
                        "\"top_logprobs\":[[{\"id\":97,\"logprob\":-0.100000001},"
                        "{\"id\":300,\"logprob\":null}],[{\"id\":195,\"logprob\":-1},{\"id\":34,\"logprob\":-2.5}]]");
    out.n = 0;
    meg_reply_add_top_logprobs(&out, &both, tok, likely, 1);
    assert_string_equal(out.s, "\"top_logprobs\":[[{\"id\":97,\"token\":\"a\",\"logprob\":-0.100000001},"
                               "{\"id\":300,\"token\":null,\"logprob\":null}]]");
    out.n = 0;
    meg_reply_add_tokens(&out, &top, tok, NULL, 0);
    meg_reply_add_top_logprobs(&out, &tokens, tok, NULL, 0);
    assert_int_equal(out.n, 0);
    assert_int_equal(meg_token_output_check(&both, tok, 2, &e), MEG_OK);
    assert_int_equal(meg_token_output_check(&both, tok, 1, &e), MEG_EUSAGE);
    assert_int_equal(meg_token_output_check(&(struct meg_token_output_conf){ false, -1 }, tok, 2, &e), MEG_EUSAGE);
    assert_int_equal(meg_token_output_check(&tokens, NULL, 2, &e), MEG_EUSAGE);
    assert_int_equal(meg_token_output_check(&top, NULL, 2, &e), MEG_OK);
    meg_str_free(&out);
    meg_tokenizer_close(tok);
}

/*
 * Decode the bytes of a text one by one, then the end of the text.  Set *got to the decoded text, and return the number
 * of bytes at which a stop string was found, or -1.  Check at each step that the printed text is well-formed and a
 * prefix of the final text.
 */
static int64_t feed(const struct meg_tokenizer *tok, const char *prompt, const char *text, char **stop, size_t nstop,
                    struct meg_str *got)
{
    struct meg_reply r = { 0 };
    struct meg_str printed = { 0 };
    int32_t ids[64];
    size_t seen[65], steps = 0;
    struct meg_err e;
    int found = 0;

    for (int64_t i = 0; prompt[i]; i++)
        ids[i] = (unsigned char)prompt[i];
    assert_int_equal(meg_reply_begin(&r, tok, ids, (int64_t)strlen(prompt), &e), MEG_OK);
    r.request.stop = meg_new(nstop * sizeof *r.request.stop);
    for (; r.request.nstop < nstop; r.request.nstop++)
        meg_str_add(&r.request.stop[r.request.nstop], stop[r.request.nstop], strlen(stop[r.request.nstop]));
    r.c.ids = ids;
    r.prompt_text.n = 0; /* discard the text of the prompt */
    for (int64_t n = (int64_t)strlen(text); !r.is_complete;) {
        if (r.c.n < n) {
            ids[r.c.n] = (unsigned char)text[r.c.n];
            r.c.n++;
        } else {
            r.c.finish = MEG_FINISH_LENGTH;
        }
        assert_false(found);
        found = meg_reply_update(&r, &e);
        assert_in_range(found, 0, 1);
        meg_reply_add_text(&printed, &r);
        assert_true(steps < 65);
        seen[steps++] = printed.n;
    }
    for (size_t i = 0; i < steps; i++)
        assert_int_equal(meg_utf8_find_invalid(printed.s, (int64_t)seen[i]), -1);
    assert_int_equal(printed.n, r.text.n);
    if (printed.n > 0)
        assert_memory_equal(printed.s, r.text.s, printed.n);
    got->n = 0;
    meg_str_add(got, printed.n > 0 ? printed.s : "", printed.n);
    steps = (size_t)r.c.n;
    r.c = (struct meg_continuation){ 0 };
    meg_reply_free(&r);
    meg_str_free(&printed);
    return found ? (int64_t)steps : -1;
}

static void the_text_ends_before_a_stop_string(void **state)
{
    static const struct {
        const char *prompt, *text;
        char *stop[3];
        size_t nstop;
        const char *want;
        int64_t after;
    } cases[] = {
        { "", "one two three", { "tw" }, 1, "one ", 6 },
        { "", "one two three", { "three", "two" }, 2, "one ", 7 },
        { "",
          "one two three",
          { "x", "ne t", "e" },
          3,
          "on",
          3 }, /* the first stop string to be complete ends the text */
        { "", "aab", { "ab" }, 1, "a", 3 },
        { "", "abab", { "abc" }, 1, "abab", -1 },
        { "", "stop", { "stop" }, 1, "", 4 },
        { "st", "op stop", { "stop" }, 1, "op ", 7 }, /* a stop string does not begin in the prompt */
        { "",
          "caf\xc3\xa9!",
          { "\xc3\xa9" },
          1,
          "caf",
          5 }, /* the text does not end after the first byte of a character */
        { "", "\xe2\x82\xac\xe2\x82\xac.", { "." }, 1, "\xe2\x82\xac\xe2\x82\xac", 7 },
        { "", "\xe2\x82\xac\xe2\x82\xac", { "zzzz" }, 1, "\xe2\x82\xac\xe2\x82\xac", -1 },
        { "",
          "ab\xf0\x9f\x98",
          { "b\xf0"
            "\x9f\x98\x80" },
          1,
          "ab\xef\xbf\xbd",
          -1 },
        { "\xc3", "\xa9 end", { "end" }, 1, "\xc3\xa9 ", 5 }, /* the prompt ends within a character */
    };
    struct meg_tokenizer *tok = bytes_tokenizer();
    struct meg_str got = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t after = feed(tok, cases[i].prompt, cases[i].text, (char **)cases[i].stop, cases[i].nstop, &got);

        assert_string_equal(got.s, cases[i].want);
        assert_int_equal(after, cases[i].after);
    }
    meg_str_free(&got);
    meg_tokenizer_close(tok);
}

/*
 * Open a WordPiece tokenizer whose ordinary tokens are "one", "two" and "##s".  When it decodes, it buffers the last
 * word, because later ids may continue the word.
 */
static struct meg_tokenizer *word_tokenizer(void)
{
    char vocab[TMP_NAME];
    const struct meg_tok_conf tc = { .type = "BertWordPieceCase", .vocab_file = vocab };
    struct meg_tokenizer *tok = NULL;
    struct meg_err e;
    FILE *f;

    assert_non_null(f = fdopen(tmp_file(vocab, "words"), "w"));
    fputs("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\ntwo\n##s\n", f);
    fclose(f);
    if (meg_tokenizer_open(&tok, &tc, &e) < 0)
        fail_msg("%s", e.msg);
    unlink(vocab);
    return tok;
}

/* The last id completes the stop string, but the tokenizer returns its text only after the next id. */
static void a_stop_string_is_found_in_buffered_text(void **state)
{
    enum { ONE = 5, TWO, S };
    struct meg_tokenizer *tok = word_tokenizer();
    struct meg_str stop = { 0 };
    struct meg_reply r = { .request = { .stop = &stop, .nstop = 1 },
                           .c = { .ids = (int32_t[]){ ONE, TWO, S, ONE }, .n = 2 } };
    struct meg_err e;

    (void)state;
    meg_str_add(&stop, "twos", 4);
    assert_int_equal(meg_reply_begin(&r, tok, (int32_t[]){ TWO }, 1, &e), MEG_OK);
    assert_int_equal(meg_reply_update(&r, &e), 0);
    r.c.n = 3;
    assert_int_equal(meg_reply_update(&r, &e), 1);
    assert_int_equal(r.text.n, strlen("two one ")); /* "two", the prompt, was buffered, too */
    assert_memory_equal(r.text.s, "two one ", r.text.n);
    r.request = (struct meg_request){ 0 };
    r.c = (struct meg_continuation){ 0 };
    meg_reply_free(&r);
    meg_str_free(&stop);
    meg_tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_parsed_into_ids),
        cmocka_unit_test(messages_name_the_line),
        cmocka_unit_test(texts_with_brackets_are_plain),
        cmocka_unit_test(a_line_of_a_corpus_may_have_other_members),
        cmocka_unit_test(a_line_sets_options),
        cmocka_unit_test(messages_name_the_option_of_a_line),
        cmocka_unit_test(detokenized_text_grows_by_complete_characters),
        cmocka_unit_test(a_reply_is_one_json_line),
        cmocka_unit_test(return_tokens_adds_the_text_of_each_token),
        cmocka_unit_test(the_text_ends_before_a_stop_string),
        cmocka_unit_test(a_stop_string_is_found_in_buffered_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
