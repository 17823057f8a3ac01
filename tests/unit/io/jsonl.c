/* Test meg_jsonl_read: the texts that it returns for keys of JSON lines, and its messages for invalid lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "io/jsonl.h"

static const char *const keys[] = { "text", "t\xC3\xA9" };

/* Read the texts from a copy of line [n] in an allocation of exact size, so that ASan reports reads beyond it. */
static int read_n(struct meg_jsonl *j, int nkeys, const char *line, int64_t n, char **copy, struct meg_err *e)
{
    *copy = malloc((size_t)n + (n == 0));
    memcpy(*copy, line, (size_t)n);
    *j = (struct meg_jsonl){ .keys = keys, .nkeys = nkeys };
    return meg_jsonl_read(j, *copy, n, e);
}

static void texts_n(const char *line, int64_t n, const char *want, int64_t nwant)
{
    struct meg_jsonl j;
    struct meg_err e = { 0, "" };
    char *copy, joined[256] = "";
    int64_t at = 0;

    if (read_n(&j, 1, line, n, &copy, &e) < 0)
        fail_msg("%s: %s", line, e.msg);
    for (int64_t i = 0; i < j.value[0].n; i++) {
        memcpy(joined + at, j.value[0].strings[i].s, (size_t)j.value[0].strings[i].n);
        at += j.value[0].strings[i].n;
        joined[at++] = '|';
    }
    assert_int_equal(at, nwant);
    assert_memory_equal(joined, want, (size_t)nwant);
    meg_jsonl_free(&j);
    free(copy);
}

static void texts(const char *line, const char *want)
{
    texts_n(line, (int64_t)strlen(line), want, (int64_t)strlen(want));
}

static void texts_of_a_key_are_found(void **state)
{
    (void)state;
    texts("{\"text\":\"a\"}", "a|");
    texts(" { \"text\" : \"\" } ", "|");
    texts("{\"text\":[]}", "");
    texts("{\"text\":[ \"a\" , \"b c\",\"\"]}", "a|b c||");
    texts("{\"x\":{\"text\":1,\"y\":[{}]},\"text\":\"a\",\"z\":[1,-2.5e+3,0,null,true,false]}", "a|");
    texts("{\"n\":[NaN,Infinity,-Infinity],\"text\":\"a\"}", "a|");
    texts("{\"text\":1,\"text\":[\"old\"],\"text\":\"new\"}", "new|");
    texts("{\"te\\u0078t\":\"escaped key\"}", "escaped key|");
    texts("{\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t|");
    texts("{\"text\":\"a\\u00e9b\\u4E2d\\ud83d\\uDE00c\"}", "a\xC3\xA9"
                                                            "b\xE4\xB8\xAD\xF0\x9F\x98\x80"
                                                            "c|");
    /* the first and the last character of plane 1, of planes 2 to 15, and of plane 16 */
    texts("{\"text\":\"\\ud800\\udc00\\ud83f\\udfff\\ud840\\udc00\\udbbf\\udfff\\udbc0\\udc00\\udbff\\udfff\"}",
          "\xF0\x90\x80\x80\xF0\x9F\xBF\xBF\xF0\xA0\x80\x80\xF3\xBF\xBF\xBF\xF4\x80\x80\x80\xF4\x8F\xBF\xBF|");
    texts("{\"text\":\"sixteen bytes and some more \\n of them, then again a long run\"}",
          "sixteen bytes and some more \n of them, then again a long run|");
    texts("{\"text\":\"\xC3\xA9\xE4\xB8\xAD\x7F\"}", "\xC3\xA9\xE4\xB8\xAD\x7F|");
    texts("{\"lone\":\"\\ud800 in a key nobody wants\",\"text\":\"a\"}", "a|");
    texts_n("{\"text\":\"a\\u0000b\"}", 19, "a\0b|", 4);
}

static void each_key_has_its_own_texts(void **state)
{
    const char *line = "{\"t\\u00e9\":[\"1\",\"2\"],\"text\":\"\\ta\"}";
    struct meg_jsonl j;
    struct meg_err e;
    char *copy;

    (void)state;
    assert_int_equal(read_n(&j, 2, line, (int64_t)strlen(line), &copy, &e), MEG_OK);
    assert_int_equal(j.value[0].n, 1);
    assert_memory_equal(j.value[0].strings[0].s, "\ta", 2);
    assert_int_equal(j.value[1].n, 2);
    assert_memory_equal(j.value[1].strings[1].s, "2", 1);
    meg_jsonl_free(&j);
    free(copy);
}

static void refuses(const char *line, int64_t n, const char *message)
{
    struct meg_jsonl j;
    struct meg_err e = { 0, "" };
    char *copy;

    if (read_n(&j, 1, line, n, &copy, &e) != MEG_EFORMAT)
        fail_msg("accepted: %s", line);
    assert_string_equal(e.msg, message);
    meg_jsonl_free(&j);
    free(copy);
}

static void invalid_json_is_rejected(void **state)
{
    static const char *const bad[][2] = {
        { "", "byte 1: the text ends where the '{' of an object is expected" },
        { "no json", "byte 1: found 'n' where the '{' of an object is expected" },
        { "[\"text\"]", "byte 1: found '[' where the '{' of an object is expected" },
        { "{\"text\":\"a\"", "byte 12: the text ends where ',' or '}' is expected" },
        { "{\"text\":\"a\"} x", "byte 14: found 'x' where the end of the line is expected" },
        { "{\"text\":\"a\"}{}", "byte 13: found '{' where the end of the line is expected" },
        { "{\"text\":\"a", "byte 11: the text ends where the rest of a string is expected" },
        { "{\"text\":\"a\tb\"}", "byte 11: unescaped control character 0x09 in a string" },
        { "{\"text\":\"\\x\"}", "byte 11: found 'x' where one of \"\\/bfnrtu after a backslash is expected" },
        { "{\"text\":\"\\u12g4\"}", "byte 14: found 'g' where a hex digit of \\uXXXX is expected" },
        { "{\"text\":\"a\",}", "byte 13: found '}' where a string is expected" },
        { "{text:\"a\"}", "byte 2: found 't' where a string is expected" },
        { "{\"text\" \"a\"}", "byte 9: found '\"' where ':' is expected" },
        { "{\"a\":01,\"text\":\"\"}", "byte 7: found '1' where ',' or '}' is expected" },
        { "{\"a\":1.,\"text\":\"\"}", "byte 8: found ',' where a digit is expected" },
        { "{\"a\":-,\"text\":\"\"}", "byte 7: found ',' where a digit is expected" },
        { "{\"a\":1e,\"text\":\"\"}", "byte 8: found ',' where a digit is expected" },
        { "{\"a\":nul,\"text\":\"\"}", "byte 6: found 'n' where a value is expected" },
        { "{\"a\":[1 2],\"text\":\"\"}", "byte 9: found '2' where ',' or ']' is expected" },
        { "{\"a\":[1,],\"text\":\"\"}", "byte 9: found ']' where a value is expected" },
        { "{\"text\":[\"a\" \"b\"]}", "byte 14: found '\"' where ',' or ']' is expected" },
        { "{\"text\":[\"a\",]}", "byte 14: found ']' where a value is expected" },
        { "\xEF\xBB\xBF", "byte 4: the text ends where the '{' of an object is expected" },
        { " \xEF\xBB\xBF{}", "byte 2: found byte 0xef where the '{' of an object is expected" },
        { "{\"text\":\"\xE4\xB8\"}", "byte 10: invalid UTF-8: 0xe4" },
        { "{\"text\":\"a\\ud83dz\"}", "byte 11: \\u escape of a lone surrogate, which is not a character" },
        { "{\"text\":\"\\ud83d\\u0041\"}", "byte 10: \\u escape of a lone surrogate, which is not a character" },
        { "{\"text\":\"\\ude00\"}", "byte 10: \\u escape of a lone surrogate, which is not a character" },
        { "{\"other\":\"a\"}", "the key \"text\" is missing" },
        { "{\"text\":null}", "the value of key \"text\" is null; it must be a string or a list of strings" },
        { "{\"text\":-3}", "the value of key \"text\" is a number; it must be a string or a list of strings" },
        { "{\"text\":{\"text\":\"a\"}}",
          "the value of key \"text\" is an object; it must be a string or a list of strings" },
        { "{\"text\":[\"a\",1]}", "the value of key \"text\" is a list with items other than strings; it must be a "
                                  "string or a list of strings" },
        { "{\"text\":\"a\",\"text\":true}",
          "the value of key \"text\" is true or false; it must be a string or a list of strings" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses(bad[i][0], (int64_t)strlen(bad[i][0]), bad[i][1]);
    refuses("{\"text\":\"a\0b\"}", 14, "byte 11: unescaped control character 0x00 in a string");
}

/* Test each offset in a string, which is scanned in blocks of 16 bytes and a shorter last block. */
static void unescaped_control_characters_are_rejected(void **state)
{
    enum { HEAD = 9, N = 40 };
    char line[HEAD + N + 3], want[80];

    (void)state;
    for (int c = 0; c < 0x20; c++)
        for (int at = 0; at < N; at++) {
            memset(line, 'a', sizeof line);
            memcpy(line, "{\"text\":\"", HEAD);
            memcpy(line + HEAD + N, "\"}", 3);
            line[HEAD + at] = (char)c;
            snprintf(want, sizeof want, "byte %d: unescaped control character 0x%02x in a string", HEAD + at + 1, c);
            refuses(line, HEAD + N + 2, want);
        }
}

static void too_deep_nesting_is_rejected(void **state)
{
    enum { DEEP = 100000 };
    char *line = malloc(DEEP + 8);

    (void)state;
    memcpy(line, "{\"a\":", 5);
    memset(line + 5, '[', DEEP);
    refuses(line, DEEP + 5, "byte 1005: values are nested more than 1000 levels deep");
    free(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_a_key_are_found),     cmocka_unit_test(each_key_has_its_own_texts),
        cmocka_unit_test(invalid_json_is_rejected),     cmocka_unit_test(unescaped_control_characters_are_rejected),
        cmocka_unit_test(too_deep_nesting_is_rejected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
