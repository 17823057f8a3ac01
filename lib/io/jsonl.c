#include "io/jsonl.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "io/json_scan.h"
#include "unicode/utf8.h"

static const char string[] = "a string", list[] = "a list of strings";

bool meg_jsonl_is_list(const struct meg_jsonl_value *v)
{
    return v->kind == list;
}

/* One text of a key's value. */
static int read_text(struct meg_json_scan *s, struct meg_jsonl *j, struct meg_jsonl_value *v)
{
    const char *lone;
    int r;

    if (v->n == MEG_JSONL_MAX_STRINGS)
        return meg_fail(s->e, MEG_EFORMAT, "column %lld: more than %d strings in a list; make several lines of it",
                        (long long)(s->p - s->begin + 1), MEG_JSONL_MAX_STRINGS);
    if (v->n == v->cap) {
        v->cap = v->cap ? 2 * v->cap : 8;
        v->v = meg_realloc_array(v->v, (size_t)v->cap, sizeof *v->v);
    }
    if ((r = meg_json_scan_string(s, &j->unescaped, &v->v[v->n++], &lone)) < 0)
        return r;
    if (lone && !j->replaces_lone_surrogates)
        return meg_fail(s->e, MEG_EFORMAT, "column %lld: \\u escape of half a surrogate pair, which is no character%s",
                        (long long)(lone - s->begin + 1), j->remedy ? j->remedy : "");
    return 0;
}

/* The value of a key that is asked for. */
static int read_value(struct meg_json_scan *s, struct meg_jsonl *j, struct meg_jsonl_value *v)
{
    int r;

    v->n = 0;
    meg_json_scan_skip_space(s);
    if (s->p < s->end && *s->p == '"') {
        v->kind = string;
        return read_text(s, j, v);
    }
    if (s->p == s->end || *s->p != '[')
        return meg_json_scan_value(s, 1, &v->kind);
    s->p++;
    v->kind = list;
    meg_json_scan_skip_space(s);
    if (meg_json_scan_accept(s, ']'))
        return 0;
    for (;;) {
        const char *kind;

        meg_json_scan_skip_space(s);
        if (s->p < s->end && *s->p == '"') {
            r = read_text(s, j, v);
        } else {
            v->kind = "a list of other things than strings";
            r = meg_json_scan_value(s, 2, &kind);
        }
        if (r < 0)
            return r;
        meg_json_scan_skip_space(s);
        if (meg_json_scan_accept(s, ']'))
            return 0;
        if (!meg_json_scan_accept(s, ','))
            return meg_json_scan_expected(s, "',' or ']'");
    }
}

static int read_object(struct meg_json_scan *s, struct meg_jsonl *j)
{
    int r;

    meg_json_scan_skip_space(s);
    if (!meg_json_scan_accept(s, '{'))
        return meg_json_scan_expected(s, "'{' of an object");
    meg_json_scan_skip_space(s);
    if (meg_json_scan_accept(s, '}'))
        return 0;
    for (;;) {
        struct meg_span key;
        const char *lone, *kind;
        int k = 0;

        meg_json_scan_skip_space(s);
        if ((r = meg_json_scan_string(s, &j->unescaped, &key, &lone)) < 0)
            return r;
        meg_json_scan_skip_space(s);
        if (!meg_json_scan_accept(s, ':'))
            return meg_json_scan_expected(s, "':'");
        while (k < j->nkeys &&
               (lone || strlen(j->keys[k]) != (size_t)key.n || memcmp(j->keys[k], key.s, (size_t)key.n) != 0))
            k++;
        r = k < j->nkeys ? read_value(s, j, &j->value[k]) : meg_json_scan_value(s, 1, &kind);
        if (r < 0)
            return r;
        meg_json_scan_skip_space(s);
        if (meg_json_scan_accept(s, '}'))
            return 0;
        if (!meg_json_scan_accept(s, ','))
            return meg_json_scan_expected(s, "',' or '}'");
    }
}

static int read_line(struct meg_jsonl *j, const char *line, int64_t n, struct meg_err *e)
{
    struct meg_json_scan s = { line, line + meg_utf8_bom(line, n), line + n, "column", e };
    int64_t bad = meg_utf8_find_invalid(line, n);
    int r;

    if (bad >= 0)
        return meg_fail(e, MEG_EFORMAT, "column %lld: invalid UTF-8: byte 0x%02x%s", (long long)bad + 1,
                        (unsigned char)line[bad], j->remedy ? j->remedy : "");
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
        j->value[k].kind = NULL;
    /* Unescaped text is no longer than the line: with this room the buffer never moves. */
    if (j->unescaped.cap <= (size_t)n) {
        j->unescaped.cap = (size_t)n + 1;
        j->unescaped.s = meg_realloc_array(j->unescaped.s, j->unescaped.cap, 1);
    }
    j->unescaped.n = 0;
    if ((r = read_line(j, line, n, e)) < 0)
        return r;
    for (int k = 0; k < j->nkeys; k++) {
        const char *kind = j->value[k].kind;

        if (!kind)
            return meg_fail(e, MEG_EFORMAT, "no key \"%s\"", j->keys[k]);
        if (kind != string && kind != list)
            return meg_fail(e, MEG_EFORMAT, "key \"%s\" holds %s; a string or a list of strings is expected",
                            j->keys[k], kind);
    }
    return MEG_OK;
}

int meg_jsonl_is_object(const char *line, int64_t n)
{
    struct meg_jsonl j = { 0 };
    int is = read_line(&j, line, n, NULL) == 0;

    meg_jsonl_free(&j);
    return is;
}

void meg_jsonl_free(struct meg_jsonl *j)
{
    for (int k = 0; j->value && k < j->nkeys; k++)
        free(j->value[k].v);
    free(j->value);
    j->value = NULL;
    meg_str_free(&j->unescaped);
}
