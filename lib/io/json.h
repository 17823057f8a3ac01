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
 * Append a value, members in the order they were put in.  indent 0: one line without blanks;
 * else a member a line, as Python's json.dumps(indent=...) lays it out.
 */
void meg_json_dump(const json_t *value, int indent, struct meg_str *out);

/* Append n bytes of UTF-8 as a string in quotes. */
void meg_json_add_string(struct meg_str *out, const char *s, size_t n);

/* Append n token ids as an array without blanks: [1,2,3]. */
void meg_json_add_ids(struct meg_str *out, const int32_t *ids, int64_t n);

MEG_END_DECLS

#endif
