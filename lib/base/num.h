/* num.h - numbers as text, read strictly and written so that they read back the same. */
#ifndef MEG_BASE_NUM_H
#define MEG_BASE_NUM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/decls.h"

MEG_BEGIN_DECLS

/*
 * The whole of text as a decimal number into *out.  False, and *out unchanged, for anything else:
 * blanks, other bases, a value that does not fit, infinity and NaN.
 */
bool meg_parse_i64(const char *text, int64_t *out);
bool meg_parse_f64(const char *text, double *out);

/*
 * meg_fmt_double - the shortest decimal text that reads back as v, spelled as Python's repr does:
 * 0.949, 1e-05, 1.0, 1e+16, inf, nan.  Returns buf.
 */
enum { MEG_DOUBLE_CHARS = 32 };
const char *meg_fmt_double(char buf[], double v);

MEG_END_DECLS

#endif
