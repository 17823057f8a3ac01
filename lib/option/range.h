/*
 * range.h - the interval that each whole number of an option table must be in.
 */
#ifndef MEG_OPTION_RANGE_H
#define MEG_OPTION_RANGE_H
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

MEG_BEGIN_DECLS

/* An option whose field is an int64_t at offset in the struct of its table; both bounds are allowed values. */
struct meg_opt_range {
    const char *name; /* without the two dashes */
    size_t offset;
    int64_t lowest, highest;
};

/*
 * Check the fields of conf against rows, an array that ends with { 0 }.  A field that is MEG_UNSET passes.  Returns 0,
 * or MEG_EUSAGE for the first value that is out of its range.
 */
int meg_opt_check_ranges(const struct meg_opt_range *rows, const void *conf, struct meg_err *e);

MEG_END_DECLS
#endif
