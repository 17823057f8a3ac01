/*
 * jsonl.h - read the values of a few keys from a JSON line, without building a tree.  The complete line is validated as
 * JSON (RFC 8259), in which NaN, Infinity and -Infinity are allowed, as in Python's json module.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "io/json_scan.h"

/* The value of a key: a string, or a list of strings. */
struct meg_jsonl_value {
    struct meg_span *strings; /* [n], valid until the next line is read */
    int64_t n, cap;
    const char *type_name; /* "a string", "a list of strings", or another type; NULL if the key is missing */
};

/* Return whether the value is a list, not a single string. */
bool meg_jsonl_is_list(const struct meg_jsonl_value *v);

/* A reader of JSON lines.  Initialize it with { 0 } and set the keys, which are borrowed. */
struct meg_jsonl {
    const char *const *keys;
    int nkeys;
    struct meg_jsonl_value *value; /* [nkeys] */
    struct meg_str unescaped;      /* unescaped copies of the strings that have escapes */
    bool replaces_lone_surrogates; /* replace lone surrogates by U+FFFD; otherwise, they are an error */
    const char *hint;              /* suffix of messages about invalid UTF-8 and lone surrogates, or NULL */
};
/* Free the buffers.  The reader remains usable: the next read allocates them again. */
void meg_jsonl_free(struct meg_jsonl *j);

/*
 * meg_jsonl_read - read the values of the keys from one line
 *   line  [n]  JSON object in UTF-8, optionally after a byte order mark and surrounded by whitespace.  The line must
 *              stay valid while the values are used.
 * Only keys of the outermost object are read.  If a key is duplicated, its last value is used.
 * Returns MEG_EFORMAT in these cases:
 *   - the line is invalid
 *   - a key is missing
 *   - a value is neither a string nor a list of strings, or a list has more than MEG_JSONL_MAX_STRINGS strings
 *   - a value has a lone surrogate, and j->replaces_lone_surrogates is false
 * If the error has a location, the message begins with "byte N", counted from 1 in the line.
 */
enum { MEG_JSONL_MAX_STRINGS = 4 << 20 };
int meg_jsonl_read(struct meg_jsonl *j, const char *line, int64_t n, struct meg_err *e);
