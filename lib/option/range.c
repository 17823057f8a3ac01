#include "option/range.h"
#include <inttypes.h>
#include "option/opt.h"

int meg_opt_check_ranges(const struct meg_opt_range *rows, const void *conf, struct meg_err *e)
{
    for (const struct meg_opt_range *row = rows; row->name; row++) {
        const int64_t v = *(const int64_t *)((const char *)conf + row->offset);

        if (v == MEG_UNSET)
            continue;
        if (v < row->lowest)
            return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": must be at least %" PRId64, row->name, v, row->lowest);
        if (v > row->highest)
            return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": must be at most %" PRId64, row->name, v, row->highest);
    }
    return 0;
}
