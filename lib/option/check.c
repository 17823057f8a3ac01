/* check.c - checks of option values: ranges of integers, and rules over several options. */
#include "option/check.h"
#include <inttypes.h>
#include <stdlib.h>
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

int meg_opt_check_rules(const struct meg_opt_rule *rules, const struct meg_opt *rows, const void *conf,
                        struct meg_err *e)
{
    const struct meg_opt *row = rows;
    char *value;
    bool is_shown;
    int r;

    while (rules->name && !rules->is_broken)
        rules++;
    if (!rules->name)
        return 0;
    while (strcmp(row->name, rules->name) != 0)
        row++;
    value = meg_opt_value(row, conf);
    if (row->type == MEG_OPT_F64 && strlen(value) > 2 && strcmp(value + strlen(value) - 2, ".0") == 0)
        value[strlen(value) - 2] = 0; /* 8 instead of 8.0 */
    is_shown = row->metavar && row->type != MEG_OPT_LIST && strcmp(value, "unset") != 0;
    r = meg_fail(e, MEG_EUSAGE, "--%s%s%s%s", rules->name, is_shown ? " " : "", is_shown ? value : "", rules->text);
    free(value);
    return r;
}
