/* num.h - parse numbers strictly, and print doubles so that they parse to the same value. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/*
 * Parse all of `text` as a decimal number, and store the number in *out.  Returns false for other text (" 1", "0x10",
 * "inf") and for a number out of range; *out is then unchanged.
 */
bool meg_parse_i64(const char *text, int64_t *out);
bool meg_parse_f64(const char *text, double *out);

/*
 * meg_fmt_double - print v into buf [MEG_DOUBLE_CHARS] as Python's repr does, with the fewest digits that parse to the
 * same value: 0.949, 1e-05, 1.0, 1e+16, inf, nan.  Returns buf.
 */
enum { MEG_DOUBLE_CHARS = 32 };
const char *meg_fmt_double(char buf[], double v);
