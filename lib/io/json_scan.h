/*
 * json_scan.h - a JSON scanner that works in place, without building a tree.  It accepts RFC 8259 and, like Python's
 * json module, NaN, Infinity and -Infinity.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/span.h"

/* State of the scan of a text [begin, end), which must be valid UTF-8. */
struct meg_json_scan {
    const char *begin, *p, *end; /* p: the next byte */
    const char *offset_name;     /* the word before an offset in messages, for example "byte" */
    struct meg_err *e;
};

/* Fail with MEG_EFORMAT: "byte N: found X where WHAT is expected". */
int meg_json_scan_expected(const struct meg_json_scan *s, const char *what);

/* Skip space, tab, \n and \r. */
void meg_json_scan_skip_space(struct meg_json_scan *s);
/* Return whether the next byte is c, and if so, skip it. */
bool meg_json_scan_accept(struct meg_json_scan *s, char c);

/*
 * meg_json_scan_string - scan a string; fails unless the next byte is a quote
 *   buf             the text of a string with escapes is appended to buf.  If buf grows, spans of earlier strings in
 *                   buf become invalid.  A capacity of n + 1 bytes is sufficient for n bytes of JSON.
 *   out             the text: a span of the JSON or of buf.  NULL: only validate the string; buf may be NULL.
 *   lone_surrogate  out  first escape of a lone surrogate, or NULL.  Each lone surrogate becomes U+FFFD.
 */
int meg_json_scan_string(struct meg_json_scan *s, struct meg_str *buf, struct meg_span *out,
                         const char **lone_surrogate);

/*
 * Scan the key of a member and the colon after it, and advance to the value.  The arguments are those of
 * meg_json_scan_string.
 */
int meg_json_scan_key(struct meg_json_scan *s, struct meg_str *buf, struct meg_span *out, const char **lone_surrogate);

/*
 * Scan what follows a member or an item of a container, whose end is `close`: return 1 after a comma, and 0 after the
 * end of the container.
 */
int meg_json_scan_next(struct meg_json_scan *s, char close);

/*
 * Scan a value of any type.  `depth` is the number of objects and arrays that contain the value.  Sets *type_name to a
 * name of the value's type for messages, for example "a number".  Fails if values are nested more than 1,000 levels
 * deep.
 */
int meg_json_scan_value(struct meg_json_scan *s, int depth, const char **type_name);
