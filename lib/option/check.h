/*
 * check.h - checks of option values: ranges of integers, and rules over several options.
 */
#pragma once
#include "option/opt.h"

/* The range of an int64_t option; both bounds are inclusive. */
struct meg_opt_range {
    const char *name; /* option name without the two dashes */
    size_t offset;    /* offset of the field in the config struct */
    int64_t lowest, highest;
};

/*
 * Check the fields of conf against ranges, an array that ends with { 0 }.  A field that is MEG_UNSET is not checked.
 * Returns 0, or MEG_EUSAGE for the first value that is out of its range.
 */
int meg_opt_check_ranges(const struct meg_opt_range *ranges, const void *conf, struct meg_err *e);

/*
 * A rule that the caller has evaluated.  If the rule is broken, the message is "--NAME VALUE" followed by `text`.
 * VALUE is omitted for flags, lists and unset options.
 */
struct meg_opt_rule {
    bool is_broken;
    const char *name; /* option name without the two dashes */
    const char *text; /* end of the message, such as ": must be ..." */
};

/*
 * Check rules, an array that ends with { 0 }.  The option table `rows`, which fills conf, must contain the options of
 * all rules.  Returns 0, or MEG_EUSAGE for the first broken rule.
 */
int meg_opt_check_rules(const struct meg_opt_rule *rules, const struct meg_opt *rows, const void *conf,
                        struct meg_err *e);
