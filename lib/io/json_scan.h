/*
 * json_scan.h - reading JSON where it lies, without a tree: RFC 8259, with what Python's json module
 * allows on top (NaN, Infinity, -Infinity).
 */
#ifndef MEG_IO_JSON_SCAN_H
#define MEG_IO_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/span.h"

/* Where the reader is in a text, which is well-formed UTF-8. */
struct meg_json_scan {
    const char *begin, *p, *end;
    const char *unit; /* how messages call a place in the text: "column", "byte" */
    struct meg_err *e;
};

/* MEG_EFORMAT: "column N: found X where WHAT is expected". */
int meg_json_scan_expected(const struct meg_json_scan *s, const char *what);

void meg_json_scan_skip_space(struct meg_json_scan *s);
/* Go past c; false when something else stands here. */
bool meg_json_scan_accept(struct meg_json_scan *s, char c);

/*
 * meg_json_scan_string - a string, from its opening quote.  With out, *out is its text: in place where
 * nothing is escaped, else behind what buf holds, which must have the room (the text is no longer
 * than its spelling).  Without, it is only checked.  *lone is where the first lone surrogate begins, or NULL;
 * the text has U+FFFD for each.
 */
int meg_json_scan_string(struct meg_json_scan *s, struct meg_str *buf, struct meg_span *out, const char **lone);

/* Any value, inside of depth others; *kind says what it is: "a number". */
int meg_json_scan_value(struct meg_json_scan *s, int depth, const char **kind);

#endif
