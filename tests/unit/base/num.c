/* Numbers parsed from and printed as text. */
#include "child.h"

#include <math.h>

#include "base/num.h"

static void integers_are_parsed_strictly(void **state)
{
    static const char *const bad[] = {
        "",   " 1", "1 ", "4k", "0x10", "1e6", "1.0", "-", "+", "--1", "9223372036854775808", "-9223372036854775809",
        "inf"
    };
    int64_t v = 0;
    size_t i;

    (void)state;
    assert_true(meg_parse_i64("0", &v) && v == 0);
    assert_true(meg_parse_i64("-17", &v) && v == -17);
    assert_true(meg_parse_i64("+017", &v) && v == 17);
    assert_true(meg_parse_i64("9223372036854775807", &v) && v == INT64_MAX);
    assert_true(meg_parse_i64("-9223372036854775808", &v) && v == INT64_MIN);
    v = 5;
    for (i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(meg_parse_i64(bad[i], &v));
    assert_int_equal(v, 5);
}

static void doubles_are_parsed_strictly_and_must_be_finite(void **state)
{
    static const char *const bad[] = { "",   " 1", "1 ",  "nan",   "inf",    "-inf",  "0x1p3", "1e",
                                       "e5", ".",  "1,5", "1e999", "1e-999", "1.5.2", "--1" };
    double v = 0;
    size_t i;

    (void)state;
    assert_true(meg_parse_f64("1e-05", &v) && v == 1e-05);
    assert_true(meg_parse_f64("-.5", &v) && v == -0.5);
    assert_true(meg_parse_f64("3.", &v) && v == 3);
    assert_true(meg_parse_f64("5e-324", &v) && v == 5e-324);
    assert_true(meg_parse_f64("0e-999", &v) && v == 0);
    v = 7;
    for (i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(meg_parse_f64(bad[i], &v));
    assert_true(v == 7);
}

static void doubles_are_printed_as_python_repr(void **state)
{
    static const struct {
        double v;
        const char *text;
    } want[] = {
        { 0.0, "0.0" },
        { -0.0, "-0.0" },
        { 1.0, "1.0" },
        { 100.0, "100.0" },
        { 0.949, "0.949" },
        { 0.9500000000000001, "0.9500000000000001" },
        { 0.1 + 0.2, "0.30000000000000004" },
        { 1e-4, "0.0001" },
        { 1e-5, "1e-05" },
        { 1.5e-7, "1.5e-07" },
        { 1e15, "1000000000000000.0" },
        { 1e16, "1e+16" },
        { 1.25e16, "1.25e+16" },
        { 9007199254740993.0, "9007199254740992.0" },
        { 123456789.125, "123456789.125" },
        { -1234.5, "-1234.5" },
        { 5e-324, "5e-324" },
        { 1.7976931348623157e308, "1.7976931348623157e+308" },
        { INFINITY, "inf" },
        { -INFINITY, "-inf" },
        { NAN, "nan" },
    };
    char buf[MEG_DOUBLE_CHARS];
    size_t i;

    (void)state;
    for (i = 0; i < sizeof want / sizeof *want; i++)
        assert_string_equal(meg_fmt_double(buf, want[i].v), want[i].text);
}

static void printed_doubles_parse_to_the_same_value(void **state)
{
    char buf[MEG_DOUBLE_CHARS];
    uint64_t bits = 88172645463325252u; /* xorshift64: random signs, exponents and mantissas */
    double v, back;
    int i;

    (void)state;
    for (i = 0; i < 20000; i++) {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v))
            continue;
        assert_true(meg_parse_f64(meg_fmt_double(buf, v), &back));
        assert_memory_equal(&back, &v, sizeof v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_parsed_strictly),
        cmocka_unit_test(doubles_are_parsed_strictly_and_must_be_finite),
        cmocka_unit_test(doubles_are_printed_as_python_repr),
        cmocka_unit_test(printed_doubles_parse_to_the_same_value),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
