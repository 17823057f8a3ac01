/*
 * regex.h - regular expressions in the dialect of Oniguruma, which tokenizer.json files use.  A pattern is translated
 * to PCRE2's dialect and matched by PCRE2 in UTF-8 mode, with PCRE2's JIT compiler where available.  \s is the Unicode
 * property White_Space (unicode/char_class.h).  Other Unicode properties come from the installed PCRE2.
 */
#pragma once
#include <stdint.h>
#include "base/err.h"
#include "base/span.h"

/* A compiled expression is immutable, so any number of threads can use it. */
struct meg_regex;

/*
 * meg_regex_compile - translate and compile a pattern
 * Returns MEG_EFORMAT if the pattern is invalid or uses an unsupported feature, for example a negated class inside a
 * class, &&, or {2}+.  The message contains the pattern and the byte offset of the error.
 */
int meg_regex_compile(struct meg_regex **out, const char *pattern, struct meg_err *e);
void meg_regex_free(struct meg_regex *r); /* accepts NULL */

/*
 * meg_regex_find_all - append all matches in text [n] from left to right, without overlap
 *   text  valid UTF-8
 * An empty match directly after another match is skipped, and an empty text has no matches.
 * Returns MEG_EFORMAT if matching exceeds a limit of PCRE2; the matches before the failure remain in `out`.  To prevent
 * quadratic time, one call may re-examine at most about 4 MiB + 1024 * n bytes; beyond this limit, the call returns
 * MEG_EFORMAT.
 */
int meg_regex_find_all(const struct meg_regex *r, const char *text, int64_t n, struct meg_spans *out,
                       struct meg_err *e);
