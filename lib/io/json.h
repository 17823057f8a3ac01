/*
 * json.h - JSON for small files: a parser, typed access to members, and a writer.  The parser is jansson; its error
 * messages contain the line and column.  io/jsonl.h reads the lines of a corpus.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"

/*
 * meg_json_load - parse a file that contains one JSON value; the caller releases *out with json_decref
 * Returns MEG_EFORMAT, with file, line and column, if the JSON is invalid or an object has a duplicate key.  Otherwise
 * fails as meg_read_file does.
 */
int meg_json_load(json_t **out, const char *path, struct meg_err *e);
/* Parse a regular file whose name was read from a directory or another file; see meg_read_regular. */
int meg_json_load_regular(json_t **out, const char *path, struct meg_err *e);
/* Parse a JSON text; `source` is the name of the text in messages. */
int meg_json_parse(json_t **out, const void *bytes, size_t n, const char *source, struct meg_err *e);
/* Parse a JSON text in which strings may contain \u0000.  Use json_string_length for the length of a string. */
int meg_json_parse_nul(json_t **out, const void *bytes, size_t n, const char *source, struct meg_err *e);

/*
 * meg_json_get_* - set *out to a member of an object
 * Returns MEG_EFORMAT, with `source` and `key` in the message, if a required member is missing or a member has another
 * type.  If an optional member is missing or null, *out is unchanged.  meg_json_get_f64 accepts integers as well.  A
 * string, array or object in *out is borrowed from the parent object.
 */
enum meg_json_presence { MEG_JSON_REQUIRED, MEG_JSON_OPTIONAL };
int meg_json_get_i64(const json_t *object, const char *key, enum meg_json_presence presence, int64_t *out,
                     const char *source, struct meg_err *e);
int meg_json_get_f64(const json_t *object, const char *key, enum meg_json_presence presence, double *out,
                     const char *source, struct meg_err *e);
int meg_json_get_bool(const json_t *object, const char *key, enum meg_json_presence presence, bool *out,
                      const char *source, struct meg_err *e);
int meg_json_get_str(const json_t *object, const char *key, enum meg_json_presence presence, const char **out,
                     const char *source, struct meg_err *e);
int meg_json_get_array(const json_t *object, const char *key, enum meg_json_presence presence, json_t **out,
                       const char *source, struct meg_err *e);
int meg_json_get_object(const json_t *object, const char *key, enum meg_json_presence presence, json_t **out,
                        const char *source, struct meg_err *e);

/*
 * meg_json_dump - append a value to `out`; the members of objects are in insertion order
 *   indent  0: print one line without spaces; otherwise, print each member or item on its own line, in the layout of
 *           Python's json.dumps(indent=...)
 */
void meg_json_dump(const json_t *value, int indent, struct meg_str *out);

/*
 * A writer for JSON without a json_t.  Each function appends to `out`.  Functions that begin a value or a key first
 * append a comma if `out` ends with a value.  For example,
 *     meg_json_begin(out, '{'); meg_json_set_i64(out, "n", 1); meg_json_set_str(out, "s", "a"); meg_json_end(out, '}');
 * appends {"n":1,"s":"a"}.  Before an object or array that begins a text, `out` must be empty or end with a newline or
 * a space.
 */
void meg_json_begin(struct meg_str *out, char bracket); /* '{' or '[' */
void meg_json_end(struct meg_str *out, char bracket);   /* '}' or ']' */
void meg_json_add_key(struct meg_str *out, const char *key);
void meg_json_add_i64(struct meg_str *out, int64_t v);
void meg_json_add_f64(struct meg_str *out, double v); /* %.9g, which is exact for float32; null if v is not finite */
void meg_json_add_null(struct meg_str *out);
void meg_json_add_string(struct meg_str *out, const char *s, size_t n);    /* escape only ", \ and control characters */
void meg_json_add_ids(struct meg_str *out, const int32_t *ids, int64_t n); /* append an array */
void meg_json_add_floats(struct meg_str *out, const float *v, int64_t n);

/* Append a member of an object: its key and its value. */
void meg_json_set_i64(struct meg_str *out, const char *key, int64_t v);
void meg_json_set_f64(struct meg_str *out, const char *key, double v);
void meg_json_set_bool(struct meg_str *out, const char *key, bool v);
void meg_json_set_str(struct meg_str *out, const char *key, const char *s);

/*
 * meg_json_add_ascii - append s as an ASCII string, as Python's json.dumps prints it
 * Characters from U+10000 become a surrogate pair.  Bytes that are not UTF-8 become U+DC80..U+DCFF, as with Python's
 * error handler surrogateescape.
 */
void meg_json_add_ascii(struct meg_str *out, const char *s);
