/* Ranges and rules of option values: accepted values, and error messages for the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "option/check.h"

enum color { COLOR_UNSET = MEG_ENUM_UNSET, COLOR_RED, COLOR_GREEN };

struct conf {
    int64_t n;
    double rate;
    const char *name;
    enum color color;
    bool flag;
};

static const struct meg_opt rows[] = {
    { "count", 0, MEG_I64(struct conf, n), "N", NULL, "" },
    { "rate", 0, MEG_F64(struct conf, rate), "F", NULL, "" },
    { "name", 0, MEG_STR(struct conf, name), "NAME", NULL, "" },
    { "color", 0, MEG_ENUM(struct conf, color), "red|green", NULL, "" },
    { "flag", 0, MEG_BOOL(struct conf, flag), NULL, "no", "" },
    { 0 },
};

static struct conf unset(void)
{
    const struct meg_optgroup groups[] = { { "test", rows, NULL }, { 0 } };
    struct meg_optgroup with_conf[2];
    struct conf c;

    with_conf[0] = groups[0];
    with_conf[1] = groups[1];
    with_conf[0].conf = &c;
    meg_opt_defaults(with_conf);
    return c;
}

static void bounds_are_allowed_and_values_beyond_them_refused(void **state)
{
    static const struct meg_opt_range ranges[] = { { "count", offsetof(struct conf, n), 1, 9 }, { 0 } };
    struct conf c = unset();
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_opt_check_ranges(ranges, &c, &e), 0);
    c.n = 1;
    assert_int_equal(meg_opt_check_ranges(ranges, &c, &e), 0);
    c.n = 9;
    assert_int_equal(meg_opt_check_ranges(ranges, &c, &e), 0);
    c.n = 0;
    assert_int_equal(meg_opt_check_ranges(ranges, &c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--count 0: must be at least 1");
    c.n = 10;
    assert_int_equal(meg_opt_check_ranges(ranges, &c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--count 10: must be at most 9");
}

static void the_first_broken_rule_is_reported_with_the_value(void **state)
{
    struct conf c = unset();
    struct meg_err e;

    (void)state;
    for (int i = 0; i < 7; i++) {
        static const char *const name[] = { "count", "count", "rate", "name", "color", "flag", "flag" };
        static const char *const message[] = { "--count is required",       "--count 3 is required",
                                               "--rate 0.5 is required",    "--name x is required",
                                               "--color green is required", "--flag is required" };
        const struct meg_opt_rule rules[] = {
            { false, "flag", " passes" }, { i < 6, name[i], " is required" }, { i < 6, "flag", " is second" }, { 0 }
        };

        if (i == 6) {
            assert_int_equal(meg_opt_check_rules(rules, rows, &c, &e), 0);
            continue;
        }
        assert_int_equal(meg_opt_check_rules(rules, rows, &c, &e), MEG_EUSAGE);
        assert_string_equal(e.msg, message[i]);
        c = (struct conf){ .n = 3, .rate = 0.5, .name = "x", .color = COLOR_GREEN, .flag = true };
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_are_allowed_and_values_beyond_them_refused),
        cmocka_unit_test(the_first_broken_rule_is_reported_with_the_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
