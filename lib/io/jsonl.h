/*
 * jsonl.h - a few keys of a line of JSON, read without building a tree.  The whole line is checked
 * against RFC 8259, with what Python's json module allows on top: NaN, Infinity, -Infinity.
 */
#ifndef MEG_IO_JSONL_H
#define MEG_IO_JSONL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/json_scan.h"

/* The value of one key: a string, or a list of strings. */
struct meg_jsonl_value {
    struct meg_span *v; /* [n]; the texts are valid until the next line is read */
    int64_t n, cap;
    const char *kind; /* "a string", "a list of strings", or what else it is; NULL: not there */
};

/* Whether a value that was read is a list, not a single string. */
bool meg_jsonl_is_list(const struct meg_jsonl_value *v);

/* Starts as { 0 } but for the keys, which are borrowed. */
struct meg_jsonl {
    const char *const *keys;
    int nkeys;
    struct meg_jsonl_value *value; /* [nkeys] */
    struct meg_str unescaped;      /* the texts that had escapes */
    bool replaces_lone_surrogates; /* a lone surrogate is U+FFFD, not refused */
    const char *remedy;            /* follows what is said of text that is not Unicode, or NULL */
};
/* What lines needed goes; others can be read then. */
void meg_jsonl_free(struct meg_jsonl *j);

/*
 * meg_jsonl_read - find the keys in one line
 *   line  [n]  a JSON object and blanks around it, or a byte order mark in front, as some programs begin
 *              a file; UTF-8, borrowed until the values are used
 * Keys are those of the outermost object; of one that occurs twice the last counts.
 * MEG_EFORMAT when the line is not well-formed, a key is missing, or its value is neither a string
 * nor a list of strings, MEG_JSONL_MAX_STRINGS at most, or holds a lone surrogate; the message begins with
 * "column N" (bytes from 1) where there is a place to name.
 */
enum { MEG_JSONL_MAX_STRINGS = 4 << 20 };
int meg_jsonl_read(struct meg_jsonl *j, const char *line, int64_t n, struct meg_err *e);

/* Whether the line is a JSON object, whatever its keys. */
int meg_jsonl_is_object(const char *line, int64_t n);

#endif
