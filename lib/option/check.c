/* check.c - checks of option values: ranges of integers, and rules over several options. */
#include "option/check.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

int meg_opt_check_ranges(const struct meg_opt_range *ranges, const void *conf, struct meg_err *e)
{
    for (const struct meg_opt_range *range = ranges; range->name; range++) {
        const int64_t v = *(const int64_t *)((const char *)conf + range->offset);

        if (v == MEG_UNSET)
            continue;
        if (v < range->lowest)
            return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": must be at least %" PRId64, range->name, v,
                            range->lowest);
        if (v > range->highest)
            return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": must be at most %" PRId64, range->name, v,
                            range->highest);
    }
    return 0;
}

/* Append a space and the value of an option; append nothing for flags, lists and unset fields. */
static void append_value(struct meg_str *s, const struct meg_opt *rows, const struct meg_opt *row, const void *conf)
{
    const void *field = (const char *)conf + row->offset;

    switch (row->type) {
    case MEG_OPT_STR:
        if (*(const char *const *)field)
            meg_str_printf(s, " %s", *(const char *const *)field);
        break;
    case MEG_OPT_ENUM:
        if (*(const int *)field != MEG_ENUM_UNSET)
            meg_str_printf(s, " %s", meg_opt_choice(rows, row->name, conf));
        break;
    case MEG_OPT_I64:
        if (*(const int64_t *)field != MEG_UNSET)
            meg_str_printf(s, " %" PRId64, *(const int64_t *)field);
        break;
    case MEG_OPT_F64:
        if (!isnan(*(const double *)field))
            meg_str_printf(s, " %g", *(const double *)field);
        break;
    default: break;
    }
}

int meg_opt_check_rules(const struct meg_opt_rule *rules, const struct meg_opt *rows, const void *conf,
                        struct meg_err *e)
{
    struct meg_str value = { 0 };
    const struct meg_opt *row = rows;
    int r;

    while (rules->name && !rules->is_broken)
        rules++;
    if (!rules->name)
        return 0;
    while (strcmp(row->name, rules->name) != 0)
        row++;
    append_value(&value, rows, row, conf);
    r = meg_fail(e, MEG_EUSAGE, "--%s%s%s", rules->name, value.n ? value.s : "", rules->text);
    meg_str_free(&value);
    return r;
}
