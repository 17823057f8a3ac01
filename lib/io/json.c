#include "io/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "file/file.h"

/* ---- reading ---- */

static int parse(json_t **out, const void *bytes, size_t n, size_t flags, const char *from, struct meg_err *e)
{
    json_error_t where;
    json_t *value = json_loadb((const char *)bytes, n, flags | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);

    if (!value)
        return meg_fail(e, MEG_EFORMAT, "%s:%d:%d: not JSON: %s", from, where.line, where.column, where.text);
    *out = value;
    return MEG_OK;
}

int meg_json_parse(json_t **out, const void *bytes, size_t n, const char *from, struct meg_err *e)
{
    return parse(out, bytes, n, 0, from, e);
}

int meg_json_parse_nul(json_t **out, const void *bytes, size_t n, const char *from, struct meg_err *e)
{
    return parse(out, bytes, n, JSON_ALLOW_NUL, from, e);
}

static int load(json_t **out, const char *path, int (*read)(const char *, struct meg_str *, struct meg_err *),
                struct meg_err *e)
{
    struct meg_str text = { 0 };
    int r = read(path, &text, e);

    if (r == 0)
        r = meg_json_parse(out, text.s, text.n, path, e);
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

/* *v = the member when it is there and of one of the types; NULL when there is nothing to take. */
static int get(const json_t *object, const char *key, enum meg_json_presence need, unsigned types, const char *wanted,
               json_t **v, const char *from, struct meg_err *e)
{
    json_t *found = json_object_get(object, key);
    struct meg_str text = { 0 };
    int r;

    *v = NULL;
    if (need == MEG_JSON_OPTIONAL && (!found || json_is_null(found)))
        return MEG_OK;
    if (!found)
        return meg_fail(e, MEG_EFORMAT, "%s: \"%s\" is missing", from, key);
    if (types & BIT(json_typeof(found))) {
        *v = found;
        return MEG_OK;
    }
    meg_json_dump(found, 0, &text);
    r = meg_fail(e, MEG_EFORMAT, "%s: \"%s\" is to be %s, found %.60s%s", from, key, wanted, text.s,
                 text.n > 60 ? "..." : "");
    meg_str_free(&text);
    return r;
}

int meg_json_get_i64(const json_t *object, const char *key, enum meg_json_presence need, int64_t *out, const char *from,
                     struct meg_err *e)
{
    json_t *v;
    int r = get(object, key, need, BIT(JSON_INTEGER), "an integer", &v, from, e);

    if (v)
        *out = json_integer_value(v);
    return r;
}

int meg_json_get_f64(const json_t *object, const char *key, enum meg_json_presence need, double *out, const char *from,
                     struct meg_err *e)
{
    json_t *v;
    int r = get(object, key, need, BIT(JSON_REAL) | BIT(JSON_INTEGER), "a number", &v, from, e);

    if (v)
        *out = json_number_value(v);
    return r;
}

int meg_json_get_bool(const json_t *object, const char *key, enum meg_json_presence need, bool *out, const char *from,
                      struct meg_err *e)
{
    json_t *v;
    int r = get(object, key, need, BIT(JSON_TRUE) | BIT(JSON_FALSE), "true or false", &v, from, e);

    if (v)
        *out = json_is_true(v);
    return r;
}

int meg_json_get_str(const json_t *object, const char *key, enum meg_json_presence need, const char **out,
                     const char *from, struct meg_err *e)
{
    json_t *v;
    int r = get(object, key, need, BIT(JSON_STRING), "a string", &v, from, e);

    if (v)
        *out = json_string_value(v);
    return r;
}

int meg_json_get_array(const json_t *object, const char *key, enum meg_json_presence need, json_t **out,
                       const char *from, struct meg_err *e)
{
    json_t *v;
    int r = get(object, key, need, BIT(JSON_ARRAY), "an array", &v, from, e);

    if (v)
        *out = v;
    return r;
}

int meg_json_get_object(const json_t *object, const char *key, enum meg_json_presence need, json_t **out,
                        const char *from, struct meg_err *e)
{
    json_t *v;
    int r = get(object, key, need, BIT(JSON_OBJECT), "an object", &v, from, e);

    if (v)
        *out = v;
    return r;
}

/* ---- writing ---- */

void meg_json_add_string(struct meg_str *out, const char *s, size_t n)
{
    static const char special[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *end = s + n, *plain = s, *at;

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

void meg_json_add_ids(struct meg_str *out, const int32_t *ids, int64_t n)
{
    meg_str_add(out, "[", 1);
    for (int64_t i = 0; i < n; i++)
        meg_str_printf(out, i ? ",%d" : "%d", ids[i]);
    meg_str_add(out, "]", 1);
}
