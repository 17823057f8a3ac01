/*
 * check.h - rules for the values of options: ranges of integers, and conditions over several options.
 */
#ifndef MEG_OPTION_CHECK_H
#define MEG_OPTION_CHECK_H
#include "option/opt.h"

MEG_BEGIN_DECLS

/* The range of an option whose field is an int64_t at offset; both bounds are inclusive. */
struct meg_opt_range {
    const char *name; /* without the two dashes */
    size_t offset;
    int64_t lowest, highest;
};

/*
 * Check the fields of conf against ranges, an array that ends with { 0 }.  A field that is MEG_UNSET is not checked.
 * Returns 0, or MEG_EUSAGE for the first value that is out of its range.
 */
int meg_opt_check_ranges(const struct meg_opt_range *ranges, const void *conf, struct meg_err *e);

/*
 * A condition that must not hold.  The message is "--NAME VALUE" followed by text; flags and unset options have no
 * VALUE.
 */
struct meg_opt_rule {
    bool is_broken;
    const char *name; /* without the two dashes */
    const char *text; /* end of the message, such as ": must be ..." */
};

/*
 * Check rules, an array that ends with { 0 }.  The options of the rules are rows of the table rows and fields of conf.
 * Returns 0, or MEG_EUSAGE for the first broken rule.
 */
int meg_opt_check_rules(const struct meg_opt_rule *rules, const struct meg_opt *rows, const void *conf,
                        struct meg_err *e);

MEG_END_DECLS
#endif
