/*
 * json.h - JSON read through jansson with errors that say where, and written so that numbers
 * read back the same.  For what is small; lines of a corpus are read by io/jsonl.h.
 */
#ifndef MEG_IO_JSON_H
#define MEG_IO_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"
#include "base/mem.h"

MEG_BEGIN_DECLS

/*
 * One JSON value, which the caller gives back with json_decref.  MEG_EFORMAT with FROM:LINE:COLUMN
 * for anything else, a key twice in an object included.
 */
int meg_json_load(json_t **out, const char *path, struct meg_err *e);
/* The same for a file found in a folder; see meg_read_regular. */
int meg_json_load_regular(json_t **out, const char *path, struct meg_err *e);
int meg_json_parse(json_t **out, const void *bytes, size_t n, const char *from, struct meg_err *e);
/* The same, but strings (not keys) may hold \u0000: their length is json_string_length. */
int meg_json_parse_nul(json_t **out, const void *bytes, size_t n, const char *from, struct meg_err *e);

/*
 * A member of an object.  MEG_EFORMAT, naming from and key, when it has another type, or when it
 * is MEG_JSON_REQUIRED and missing; one that is MEG_JSON_OPTIONAL and missing or null leaves *out.
 * Strings, arrays and objects are borrowed from the object.  A double may be spelled as an integer.
 */
enum meg_json_presence { MEG_JSON_REQUIRED, MEG_JSON_OPTIONAL };
int meg_json_get_i64(const json_t *object, const char *key, enum meg_json_presence need, int64_t *out, const char *from,
                     struct meg_err *e);
int meg_json_get_f64(const json_t *object, const char *key, enum meg_json_presence need, double *out, const char *from,
                     struct meg_err *e);
int meg_json_get_bool(const json_t *object, const char *key, enum meg_json_presence need, bool *out, const char *from,
                      struct meg_err *e);
int meg_json_get_str(const json_t *object, const char *key, enum meg_json_presence need, const char **out,
                     const char *from, struct meg_err *e);
int meg_json_get_array(const json_t *object, const char *key, enum meg_json_presence need, json_t **out,
                       const char *from, struct meg_err *e);
int meg_json_get_object(const json_t *object, const char *key, enum meg_json_presence need, json_t **out,
                        const char *from, struct meg_err *e);

/*
 * meg_json_dump - append a value, members in order of insertion
 *   indent  0: one line without spaces; else one member or item per line, as Python's json.dumps(indent=...) prints it
 */
void meg_json_dump(const json_t *value, int indent, struct meg_str *out);

/*
 * The writer of objects that are not worth a json_t.  Each function appends to out; those that begin a value or a key
 * first append a comma if out ends with a value, so that
 *     meg_json_begin(out, '{'); meg_json_set_i64(out, "n", 1); meg_json_set_str(out, "s", "a"); meg_json_end(out, '}');
 * appends {"n":1,"s":"a"}.  An object or array that begins a text needs out to be empty or to end with a newline or a space.
 */
void meg_json_begin(struct meg_str *out, char bracket); /* '{' or '[' */
void meg_json_end(struct meg_str *out, char bracket);   /* '}' or ']' */
void meg_json_add_key(struct meg_str *out, const char *key);
void meg_json_add_i64(struct meg_str *out, int64_t v);
void meg_json_add_f64(struct meg_str *out, double v); /* %.9g, which identifies a float; null if it is not finite */
void meg_json_add_null(struct meg_str *out);
void meg_json_add_string(struct meg_str *out, const char *s, size_t n); /* UTF-8, unescaped but for ", \ and controls */
void meg_json_add_ids(struct meg_str *out, const int32_t *ids, int64_t n); /* an array, as the next */
void meg_json_add_floats(struct meg_str *out, const float *v, int64_t n);

/* Append a member of an object: its key and its value. */
void meg_json_set_i64(struct meg_str *out, const char *key, int64_t v);
void meg_json_set_f64(struct meg_str *out, const char *key, double v);
void meg_json_set_bool(struct meg_str *out, const char *key, bool v);
void meg_json_set_str(struct meg_str *out, const char *key, const char *s);

/*
 * meg_json_add_ascii - append s as the string that Python's json.dumps prints: in ASCII, U+10000 and above as a surrogate
 * pair.  Bytes that are not UTF-8 are escaped as Python's surrogateescape holds them in file names, U+DC80..U+DCFF.
 */
void meg_json_add_ascii(struct meg_str *out, const char *s);

MEG_END_DECLS

#endif
