/* JSON: parse errors with line and column, members of a required type, printed values. */
#include "child.h"

#include <math.h>

#include "io/json.h"

static json_t *parse(const char *text)
{
    struct meg_err e;
    json_t *v = NULL;

    if (meg_json_parse(&v, text, strlen(text), "a.json", &e) < 0)
        fail_msg("%s", e.msg);
    return v;
}

static void refused(const char *text, const char *why)
{
    struct meg_err e;
    json_t *v = NULL;

    assert_int_equal(meg_json_parse(&v, text, strlen(text), "a.json", &e), MEG_EFORMAT);
    assert_null(v);
    if (!strstr(e.msg, why))
        fail_msg("%s: %s", text, e.msg);
}

static void errors_name_line_and_column(void **state)
{
    struct meg_err e;
    json_t *v;

    (void)state;
    refused("{\"a\": 1,\n \"b\" 2}", "a.json: line 2, column 6: invalid JSON: ");
    refused("", "a.json: line 1, column 0: invalid JSON: ");
    refused("{\"a\": 1, \"a\": 2}", "duplicate");
    refused("[1] x", "end of file expected");
    refused("\"\xff\"", "invalid JSON");
    refused("[1e999]", "invalid JSON");
    refused("[99999999999999999999]", "invalid JSON");
    refused("[NaN]", "invalid JSON");
    assert_int_equal(meg_json_load(&v, "/nowhere/a.json", &e), MEG_ENOENT);
    assert_string_equal(e.msg, "/nowhere/a.json: No such file or directory");
}

static void members_of_another_type_are_rejected(void **state)
{
    json_t *o = parse("{\"i\":12,\"f\":0.5,\"b\":true,\"s\":\"x\",\"a\":[1],\"o\":{},\"n\":null}");
    struct meg_err e;
    const char *s = "old";
    bool b = false;
    double f = 0;
    int64_t i = 0;
    json_t *v = NULL;

    (void)state;
#define GET(type, key, out) meg_json_get_##type(o, key, MEG_JSON_REQUIRED, out, "a.json", &e)
#define GET_OPTIONAL(type, key, out) meg_json_get_##type(o, key, MEG_JSON_OPTIONAL, out, "a.json", &e)
    assert_true(GET(i64, "i", &i) == 0 && i == 12);
    assert_true(GET(f64, "f", &f) == 0 && f == 0.5);
    assert_true(GET(f64, "i", &f) == 0 && f == 12);
    assert_true(GET(bool, "b", &b) == 0 && b);
    assert_true(GET(str, "s", &s) == 0 && strcmp(s, "x") == 0);
    assert_true(GET(array, "a", &v) == 0 && json_array_size(v) == 1);
    assert_true(GET(object, "o", &v) == 0 && json_object_size(v) == 0);

    assert_int_equal(GET(i64, "none", &i), MEG_EFORMAT);
    assert_string_equal(e.msg, "a.json: \"none\" is missing");
    assert_int_equal(GET(i64, "s", &i), MEG_EFORMAT);
    assert_string_equal(e.msg, "a.json: \"s\" must be an integer, found \"x\"");
    assert_int_equal(GET(i64, "f", &i), MEG_EFORMAT);
    assert_int_equal(GET(i64, "n", &i), MEG_EFORMAT);
    assert_int_equal(GET(f64, "b", &f), MEG_EFORMAT);
    assert_int_equal(GET(bool, "i", &b), MEG_EFORMAT);
    assert_int_equal(GET(str, "a", &s), MEG_EFORMAT);
    assert_int_equal(GET(array, "o", &v), MEG_EFORMAT);
    assert_int_equal(GET(object, "a", &v), MEG_EFORMAT);
    assert_int_equal(i, 12);

    assert_true(GET_OPTIONAL(i64, "none", &i) == 0 && i == 12);
    assert_true(GET_OPTIONAL(i64, "n", &i) == 0 && i == 12);
    assert_int_equal(GET_OPTIONAL(i64, "s", &i), MEG_EFORMAT);
    json_decref(o);

    o = parse("[1]"); /* members of a value that is not an object */
    assert_int_equal(GET(i64, "i", &i), MEG_EFORMAT);
    json_decref(o);
}

static void dumped(const char *text, int indent, const char *want)
{
    json_t *v = parse(text);
    struct meg_str out = { 0 };

    meg_json_dump(v, indent, &out);
    assert_string_equal(out.s, want);
    meg_str_free(&out);
    json_decref(v);
}

static void printed_values_parse_to_the_same_values(void **state)
{
    (void)state;
    dumped("{ \"b\" : [ 1, -2.50, 1e-5, 1e16 ], \"a\" : { } , \"c\":[], \"d\":[true,false,null]}", 0,
           "{\"b\":[1,-2.5,1e-05,1e+16],\"a\":{},\"c\":[],\"d\":[true,false,null]}");
    dumped("{\"split\": [[0, 0.8], null], \"none\": {}}", 4,
           "{\n    \"split\": [\n        [\n            0,\n            0.8\n        ],\n        null\n"
           "    ],\n    \"none\": {}\n}");
    dumped("\"a\\\"b\\\\c\\/\\b\\f\\n\\r\\t\\u0001\\u00e9\\u007f\"", 0,
           "\"a\\\"b\\\\c/\\b\\f\\n\\r\\t\\u0001\xc3\xa9\x7f\"");
    dumped("9223372036854775807", 0, "9223372036854775807");
}

static void a_string_may_contain_a_zero_byte(void **state)
{
    struct meg_str out = { 0 };

    (void)state;
    meg_json_add_string(&out, "a\0b", 3);
    assert_string_equal(out.s, "\"a\\u0000b\"");
    meg_str_free(&out);
}

static void the_writer_separates_members_and_items(void **state)
{
    struct meg_str out = { 0 };

    (void)state;
    meg_json_begin(&out, '{');
    meg_json_set_i64(&out, "a\"", INT64_MIN);
    meg_json_set_f64(&out, "b", 0.1);
    meg_json_set_f64(&out, "none", INFINITY);
    meg_json_set_bool(&out, "c", true);
    meg_json_set_bool(&out, "d", false);
    meg_json_set_str(&out, "e", "x{");
    meg_json_add_key(&out, "f");
    meg_json_begin(&out, '[');
    meg_json_begin(&out, '[');
    meg_json_end(&out, ']');
    meg_json_begin(&out, '{');
    meg_json_end(&out, '}');
    meg_json_add_null(&out);
    meg_json_add_ids(&out, (int32_t[]){ 1, -2 }, 2);
    meg_json_add_floats(&out, (float[]){ 0.1f, -1 }, 2);
    meg_json_add_string(&out, "", 0);
    meg_json_end(&out, ']');
    meg_json_end(&out, '}');
    meg_str_add(&out, "\n", 1);
    meg_json_add_i64(&out, 1);
    assert_string_equal(out.s, "{\"a\\\"\":-9223372036854775808,\"b\":0.1,\"none\":null,\"c\":true,\"d\":false,"
                               "\"e\":\"x{\",\"f\":[[],{},null,[1,-2],[0.100000001,-1],\"\"]}\n1");
    meg_str_free(&out);
}

static void ascii_strings_are_spelled_as_python_does(void **state)
{
    struct meg_str out = { 0 };

    (void)state;
    meg_json_add_ascii(&out, "a\"\\\n\r\t\f\b\x01\x7f\xc3\xa9\xf0\x9f\x98\x80\xff");
    assert_string_equal(out.s, "\"a\\\"\\\\\\n\\r\\t\\f\\b\\u0001\\u007f\\u00e9\\ud83d\\ude00\\udcff\"");
    meg_str_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_name_line_and_column),
        cmocka_unit_test(members_of_another_type_are_rejected),
        cmocka_unit_test(printed_values_parse_to_the_same_values),
        cmocka_unit_test(a_string_may_contain_a_zero_byte),
        cmocka_unit_test(the_writer_separates_members_and_items),
        cmocka_unit_test(ascii_strings_are_spelled_as_python_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
