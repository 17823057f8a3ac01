/* pattern.c - patterns of the Split and Replace steps of a tokenizer.json. */
#define _GNU_SOURCE /* declare memmem */
#include <stdlib.h>
#include <string.h>
#include "tokenizer/hf/internal.h"

int meg_hf_pattern_load(struct meg_hf_pattern *p, const json_t *part, const char *where, struct meg_err *e)
{
    const json_t *v = json_object_get(part, "pattern"), *regex = json_object_get(v, "Regex");
    const json_t *literal = json_is_string(v) ? v : json_object_get(v, "String");
    struct meg_err inner;
    int r;

    p->pretok = -1;
    if (json_is_string(regex)) {
        const char *s = json_string_value(regex);

        if ((r = meg_regex_compile(&p->regex, s, &inner)) < 0)
            return meg_fail(e, r, "%s: %s", where, inner.msg);
        p->pretok = meg_pretok_from_pattern(s);
        return 0;
    }
    if (!json_is_string(literal) || json_string_length(literal) == 0)
        return meg_fail(e, MEG_EFORMAT, "%s: pattern must be {\"String\": ...} or {\"Regex\": ...}", where);
    meg_str_add(&p->literal, json_string_value(literal), json_string_length(literal));
    return 0;
}

void meg_hf_pattern_free(struct meg_hf_pattern *p)
{
    meg_str_free(&p->literal);
    meg_regex_free(p->regex);
}

int meg_hf_pattern_find(const struct meg_hf_pattern *p, const char *s, int64_t n, struct meg_spans *out,
                        struct meg_err *e)
{
    const char *end = s + n;

    if (p->regex)
        return meg_regex_find_all(p->regex, s, n, out, e);
    while ((s = memmem(s, (size_t)(end - s), p->literal.s, p->literal.n))) {
        meg_spans_add(out, s, (int64_t)p->literal.n);
        s += p->literal.n;
    }
    return 0;
}

int meg_hf_pattern_replace(const struct meg_hf_pattern *p, const char *s, int64_t n, const struct meg_str *to,
                           int64_t max_bytes, struct meg_str *out, struct meg_err *e)
{
    const char *end = s + n, *match;
    struct meg_spans m = { 0 };
    int r = p->regex ? meg_hf_pattern_find(p, s, n, &m, e) : 0;

    while (!p->regex && (int64_t)out->n <= max_bytes &&
           (match = memmem(s, (size_t)(end - s), p->literal.s, p->literal.n))) {
        meg_str_add(out, s, (size_t)(match - s));
        meg_str_add(out, to->s, to->n);
        s = match + p->literal.n;
    }
    for (int64_t i = 0; i < m.n && (int64_t)out->n <= max_bytes; i++) {
        meg_str_add(out, s, (size_t)(m.v[i].s - s));
        meg_str_add(out, to->s, to->n);
        s = m.v[i].s + m.v[i].n;
    }
    meg_str_add(out, s, (size_t)(end - s));
    free(m.v);
    return r;
}
