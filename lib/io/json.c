/* json.c - parse JSON with jansson, and write JSON. */
#include "io/json.h"
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/num.h"
#include "file/file.h"
#include "foreign/foreign.h"
#include "unicode/utf8.h"

/* ---- reading ---- */

static int parse(json_t **out, const void *bytes, size_t n, size_t flags, const char *source, struct meg_err *e)
{
    json_error_t where;
    json_t *value = json_loadb((const char *)bytes, n, flags | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);

    if (!value)
        return meg_fail(e, MEG_EFORMAT, "%s: line %d, column %d: invalid JSON: %s", source, where.line, where.column,
                        where.text);
    *out = value;
    return 0;
}

int meg_json_parse(json_t **out, const void *bytes, size_t n, const char *source, struct meg_err *e)
{
    return parse(out, bytes, n, 0, source, e);
}

int meg_json_parse_nul(json_t **out, const void *bytes, size_t n, const char *source, struct meg_err *e)
{
    return parse(out, bytes, n, JSON_ALLOW_NUL, source, e);
}

static int load(json_t **out, const char *path, int (*read)(const char *, struct meg_str *, struct meg_err *),
                struct meg_err *e)
{
    struct meg_str text = { 0 };
    int r = read(path, &text, e);

    if (r == 0)
        r = meg_foreign_explain(meg_json_parse(out, text.s, text.n, path, e), path, text.s, text.n, MEG_EXPECT_JSON, e);
    meg_str_free(&text);
    return r;
}

int meg_json_load(json_t **out, const char *path, struct meg_err *e)
{
    return load(out, path, meg_read_file, e);
}

int meg_json_load_regular(json_t **out, const char *path, struct meg_err *e)
{
    return load(out, path, meg_read_regular, e);
}

#define BIT(type) (1u << (type))

/* The types of a value as a bit mask, and their name in messages. */
struct expected {
    unsigned types;
    const char *name;
};

/*
 * Set *v to the member `key`, or to NULL if the member is optional and missing or null.  Otherwise, return
 * MEG_EFORMAT if the member is missing or has another type.
 */
static int get(const json_t *object, const char *key, enum meg_json_presence presence, struct expected expected,
               json_t **v, const char *source, struct meg_err *e)
{
    json_t *found = json_object_get(object, key);
    struct meg_str text = { 0 };
    int r;

    *v = NULL;
    if (presence == MEG_JSON_OPTIONAL && (!found || json_is_null(found)))
        return 0;
    if (!found)
        return meg_fail(e, MEG_EFORMAT, "%s: \"%s\" is missing", source, key);
    if (expected.types & BIT(json_typeof(found))) {
        *v = found;
        return 0;
    }
    meg_json_dump(found, 0, &text);
    r = meg_fail(e, MEG_EFORMAT, "%s: \"%s\" must be %s, found %.60s%s", source, key, expected.name, text.s,
                 text.n > 60 ? "..." : "");
    meg_str_free(&text);
    return r;
}

/* Define meg_json_get_NAME, which sets *out to VALUE(v) of a member v. */
#define DEFINE_GET(NAME, TYPE, VALUE, TYPES, TYPES_NAME)                                                               \
    int meg_json_get_##NAME(const json_t *object, const char *key, enum meg_json_presence presence, TYPE *out,         \
                            const char *source, struct meg_err *e)                                                     \
    {                                                                                                                  \
        json_t *v;                                                                                                     \
        const int r = get(object, key, presence, (struct expected){ TYPES, TYPES_NAME }, &v, source, e);               \
                                                                                                                       \
        if (v)                                                                                                         \
            *out = VALUE(v);                                                                                           \
        return r;                                                                                                      \
    }
DEFINE_GET(i64, int64_t, json_integer_value, BIT(JSON_INTEGER), "an integer")
DEFINE_GET(f64, double, json_number_value, BIT(JSON_REAL) | BIT(JSON_INTEGER), "a number")
DEFINE_GET(bool, bool, json_is_true, BIT(JSON_TRUE) | BIT(JSON_FALSE), "true or false")
DEFINE_GET(str, const char *, json_string_value, BIT(JSON_STRING), "a string")
DEFINE_GET(array, json_t *, , BIT(JSON_ARRAY), "an array")
DEFINE_GET(object, json_t *, , BIT(JSON_OBJECT), "an object")

/* ---- writing ---- */

/* Append a comma if out ends with a value. */
static void separate(struct meg_str *out)
{
    const char last = out->n > 0 ? out->s[out->n - 1] : ' ';

    if (last == '"' || last == '}' || last == ']' || isalnum((unsigned char)last))
        meg_str_add(out, ",", 1);
}

void meg_json_begin(struct meg_str *out, char bracket)
{
    separate(out);
    meg_str_add(out, &bracket, 1);
}

void meg_json_end(struct meg_str *out, char bracket)
{
    meg_str_add(out, &bracket, 1);
}

void meg_json_add_key(struct meg_str *out, const char *key)
{
    meg_json_add_string(out, key, strlen(key));
    meg_str_add(out, ":", 1);
}

void meg_json_add_i64(struct meg_str *out, int64_t v)
{
    separate(out);
    meg_str_printf(out, "%" PRId64, v);
}

void meg_json_add_f64(struct meg_str *out, double v)
{
    if (!isfinite(v)) {
        meg_json_add_null(out); /* JSON has neither infinity nor NaN */
        return;
    }
    separate(out);
    meg_str_printf(out, "%.9g", v);
}

void meg_json_add_null(struct meg_str *out)
{
    separate(out);
    meg_str_printf(out, "null");
}

void meg_json_add_ids(struct meg_str *out, const int32_t *ids, int64_t n)
{
    meg_json_begin(out, '[');
    for (int64_t i = 0; i < n; i++)
        meg_json_add_i64(out, ids[i]);
    meg_json_end(out, ']');
}

void meg_json_add_floats(struct meg_str *out, const float *v, int64_t n)
{
    meg_json_begin(out, '[');
    for (int64_t i = 0; i < n; i++)
        meg_json_add_f64(out, (double)v[i]);
    meg_json_end(out, ']');
}

void meg_json_add_string(struct meg_str *out, const char *s, size_t n)
{
    static const char special[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *end = s + n, *plain = s, *at;

    separate(out);
    meg_str_add(out, "\"", 1);
    for (; s < end; s++) {
        if ((unsigned char)*s >= 0x20 && *s != '"' && *s != '\\')
            continue;
        meg_str_add(out, plain, (size_t)(s - plain));
        plain = s + 1;
        at = *s ? strchr(special, *s) : NULL;
        if (at)
            meg_str_printf(out, "\\%c", letter[at - special]);
        else
            meg_str_printf(out, "\\u%04x", *s);
    }
    meg_str_add(out, plain, (size_t)(s - plain));
    meg_str_add(out, "\"", 1);
}

void meg_json_add_ascii(struct meg_str *out, const char *s)
{
    static const char plain[] = "\"\\\n\r\t\f\b", letter[] = "\"\\nrtfb";

    separate(out);
    meg_str_add(out, "\"", 1);
    for (int64_t n = (int64_t)strlen(s); n > 0;) {
        const char *p;
        int32_t cp;
        int len = meg_utf8_decode(s, n, &cp);

        if (len < 0) {
            cp = 0xDC00 + (unsigned char)*s;
            len = 1;
        }
        if ((p = cp < 0x80 ? strchr(plain, cp) : NULL))
            meg_str_printf(out, "\\%c", letter[p - plain]);
        else if (cp >= 0x20 && cp < 0x7F)
            meg_str_add(out, s, 1);
        else if (cp < 0x10000)
            meg_str_printf(out, "\\u%04x", (unsigned)cp);
        else
            meg_str_printf(out, "\\u%04x\\u%04x", 0xD800 + (unsigned)((cp - 0x10000) >> 10),
                           0xDC00 + ((unsigned)cp & 0x3FF));
        s += len;
        n -= len;
    }
    meg_str_add(out, "\"", 1);
}

void meg_json_set_i64(struct meg_str *out, const char *key, int64_t v)
{
    meg_json_add_key(out, key);
    meg_json_add_i64(out, v);
}

void meg_json_set_f64(struct meg_str *out, const char *key, double v)
{
    meg_json_add_key(out, key);
    meg_json_add_f64(out, v);
}

void meg_json_set_bool(struct meg_str *out, const char *key, bool v)
{
    meg_json_add_key(out, key);
    meg_str_printf(out, v ? "true" : "false");
}

void meg_json_set_str(struct meg_str *out, const char *key, const char *s)
{
    meg_json_add_key(out, key);
    meg_json_add_string(out, s, strlen(s));
}

static void line_break(int indent, int depth, struct meg_str *out)
{
    if (indent)
        meg_str_printf(out, "\n%*s", indent * depth, "");
}

static void dump(const json_t *v, int indent, int depth, struct meg_str *out)
{
    char number[MEG_DOUBLE_CHARS];
    const char *key;
    json_t *item;
    size_t i = 0;

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        meg_str_add(out, "{", 1);
        json_object_foreach((json_t *)v, key, item)
        {
            if (i++)
                meg_str_add(out, ",", 1);
            line_break(indent, depth + 1, out);
            meg_json_add_string(out, key, strlen(key));
            meg_str_add(out, ": ", indent ? 2 : 1);
            dump(item, indent, depth + 1, out);
        }
        if (i)
            line_break(indent, depth, out);
        meg_str_add(out, "}", 1);
        break;
    case JSON_ARRAY:
        meg_str_add(out, "[", 1);
        json_array_foreach(v, i, item)
        {
            if (i)
                meg_str_add(out, ",", 1);
            line_break(indent, depth + 1, out);
            dump(item, indent, depth + 1, out);
        }
        if (i)
            line_break(indent, depth, out);
        meg_str_add(out, "]", 1);
        break;
    case JSON_STRING: meg_json_add_string(out, json_string_value(v), json_string_length(v)); break;
    case JSON_INTEGER: meg_str_printf(out, "%" PRId64, (int64_t)json_integer_value(v)); break;
    case JSON_REAL: meg_str_printf(out, "%s", meg_fmt_double(number, json_real_value(v))); break;
    case JSON_TRUE: meg_str_add(out, "true", 4); break;
    case JSON_FALSE: meg_str_add(out, "false", 5); break;
    case JSON_NULL: meg_str_add(out, "null", 4); break;
    }
}

void meg_json_dump(const json_t *value, int indent, struct meg_str *out)
{
    dump(value, indent, 0, out);
}
