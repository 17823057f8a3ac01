/*
 * regex.h - regular expressions as tokenizer.json files have them, in Oniguruma's dialect, run by PCRE2
 * (with JIT where there is one) in UTF-8.  \s is the property White_Space as everywhere here
 * (unicode/char_class.h); other properties are those of the installed PCRE2.
 */
#ifndef MEG_BASE_REGEX_H
#define MEG_BASE_REGEX_H

#include <stdint.h>

#include "base/err.h"
#include "base/span.h"

/* Once compiled only read, by any number of threads. */
struct meg_regex;

/*
 * meg_regex_compile - make a pattern ready.  MEG_EFORMAT, with the pattern and the byte of it, where it
 * does not compile, or has what PCRE2 cannot say: negated classes inside of classes, &&, intervals repeated.
 */
int meg_regex_compile(struct meg_regex **out, const char *pattern, struct meg_err *e);
void meg_regex_free(struct meg_regex *r); /* accepts NULL */

/*
 * meg_regex_find_all - append all matches of text [n], well-formed UTF-8, from left to right without overlap;
 * none that is empty where the one before it ends, and none of an empty text.
 * MEG_EFORMAT where the pattern takes more steps or memory on this text than PCRE2 allows, or where its
 * searches look at far more than 1024 bytes for each byte of text.
 */
int meg_regex_find_all(const struct meg_regex *r, const char *text, int64_t n, struct meg_spans *out,
                       struct meg_err *e);

#endif
