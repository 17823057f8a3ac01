/* jsonl.c - read the values of a few keys from a JSON line, without building a tree. */
#include "io/jsonl.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "io/json_scan.h"
#include "unicode/utf8.h"

/* The type names of supported values; they are compared by address. */
static const char string[] = "a string", list[] = "a list of strings";

bool meg_jsonl_is_list(const struct meg_jsonl_value *v)
{
    return v->type_name == list;
}

/* Read a string, and append it to the value. */
static int read_text(struct meg_json_scan *s, struct meg_jsonl *j, struct meg_jsonl_value *v)
{
    const char *lone_surrogate;
    int r;

    if (v->n == MEG_JSONL_MAX_STRINGS)
        return meg_fail(s->e, MEG_EFORMAT,
                        "byte %" PRId64 ": the list has more than %d strings; split it into several lines",
                        (s->p - s->begin + 1), MEG_JSONL_MAX_STRINGS);
    v->strings = meg_grow(v->strings, v->n, &v->cap, sizeof *v->strings);
    if ((r = meg_json_scan_string(s, &j->unescaped, &v->strings[v->n++], &lone_surrogate)) < 0)
        return r;
    if (lone_surrogate && !j->replaces_lone_surrogates)
        return meg_fail(s->e, MEG_EFORMAT,
                        "byte %" PRId64 ": \\u escape of a lone surrogate, which is not a character%s",
                        (lone_surrogate - s->begin + 1), j->hint ? j->hint : "");
    return 0;
}

/* Read the value of a requested key. */
static int read_value(struct meg_json_scan *s, struct meg_jsonl *j, struct meg_jsonl_value *v)
{
    int r;

    v->n = 0;
    meg_json_scan_skip_space(s);
    if (s->p < s->end && *s->p == '"') {
        v->type_name = string;
        return read_text(s, j, v);
    }
    if (s->p == s->end || *s->p != '[')
        return meg_json_scan_value(s, 1, &v->type_name);
    s->p++;
    v->type_name = list;
    meg_json_scan_skip_space(s);
    if (meg_json_scan_accept(s, ']'))
        return 0;
    for (;;) {
        const char *type_name;

        meg_json_scan_skip_space(s);
        if (s->p < s->end && *s->p == '"') {
            r = read_text(s, j, v);
        } else {
            v->type_name = "a list with items other than strings";
            r = meg_json_scan_value(s, 2, &type_name);
        }
        if (r < 0 || (r = meg_json_scan_next(s, ']')) <= 0)
            return r;
    }
}

static int read_object(struct meg_json_scan *s, struct meg_jsonl *j)
{
    int r;

    meg_json_scan_skip_space(s);
    if (!meg_json_scan_accept(s, '{'))
        return meg_json_scan_expected(s, "the '{' of an object");
    meg_json_scan_skip_space(s);
    if (meg_json_scan_accept(s, '}'))
        return 0;
    for (;;) {
        struct meg_span key;
        const char *lone_surrogate, *type_name;
        int k = 0;

        if ((r = meg_json_scan_key(s, &j->unescaped, &key, &lone_surrogate)) < 0)
            return r;
        while (k < j->nkeys &&
               (lone_surrogate || strlen(j->keys[k]) != (size_t)key.n || memcmp(j->keys[k], key.s, (size_t)key.n) != 0))
            k++;
        r = k < j->nkeys ? read_value(s, j, &j->value[k]) : meg_json_scan_value(s, 1, &type_name);
        if (r < 0 || (r = meg_json_scan_next(s, '}')) <= 0)
            return r;
    }
}

static int read_line(struct meg_jsonl *j, const char *line, int64_t n, struct meg_err *e)
{
    struct meg_json_scan s = { line, line + meg_utf8_bom(line, n), line + n, "byte", e };
    int64_t bad = meg_utf8_find_invalid(line, n);
    int r;

    if (bad >= 0)
        return meg_fail(e, MEG_EFORMAT, "byte %" PRId64 ": invalid UTF-8: 0x%02x%s", bad + 1, (unsigned char)line[bad],
                        j->hint ? j->hint : "");
    if ((r = read_object(&s, j)) < 0)
        return r;
    meg_json_scan_skip_space(&s);
    return s.p == s.end ? 0 : meg_json_scan_expected(&s, "the end of the line");
}

int meg_jsonl_read(struct meg_jsonl *j, const char *line, int64_t n, struct meg_err *e)
{
    int r;

    if (!j->value)
        j->value = meg_new((size_t)j->nkeys * sizeof *j->value);
    for (int k = 0; k < j->nkeys; k++)
        j->value[k].type_name = NULL;
    /* Unescaped text is not longer than the line, so with this capacity the buffer never moves. */
    if (j->unescaped.cap <= (size_t)n) {
        j->unescaped.cap = (size_t)n + 1;
        j->unescaped.s = meg_realloc_array(j->unescaped.s, j->unescaped.cap, 1);
    }
    j->unescaped.n = 0;
    if ((r = read_line(j, line, n, e)) < 0)
        return r;
    for (int k = 0; k < j->nkeys; k++) {
        const char *type_name = j->value[k].type_name;

        if (!type_name)
            return meg_fail(e, MEG_EFORMAT, "the key \"%s\" is missing", j->keys[k]);
        if (type_name != string && type_name != list)
            return meg_fail(e, MEG_EFORMAT, "the value of key \"%s\" is %s; it must be a string or a list of strings",
                            j->keys[k], type_name);
    }
    return 0;
}

void meg_jsonl_free(struct meg_jsonl *j)
{
    for (int k = 0; j->value && k < j->nkeys; k++)
        free(j->value[k].strings);
    free(j->value);
    j->value = NULL;
    meg_str_free(&j->unescaped);
}
