/* vocab_scan.c - scan a tokenizer.json for the text of its vocabulary and merges. */
#include <string.h>
#include "tokenizer/hf/internal.h"
#include "unicode/utf8.h"

bool meg_hf_json_next(struct meg_json_scan *s)
{
    meg_json_scan_skip_space(s);
    if (*s->p == ']' || *s->p == '}')
        return false;
    s->p++; /* skip the bracket or comma */
    meg_json_scan_skip_space(s);
    return *s->p != ']' && *s->p != '}';
}

int meg_hf_json_string(struct meg_json_scan *s, struct meg_str *buf, struct meg_span *out)
{
    const char *lone;
    int r;

    buf->n = 0;
    if ((r = meg_json_scan_string(s, buf, out, &lone)) < 0)
        return r;
    return lone ? meg_fail(s->e, MEG_EFORMAT, "unpaired surrogate in the string '%.*s'", (int)out->n, out->s) : 0;
}

/* Read the key of a member, and advance to its value. */
static int read_key(struct meg_json_scan *s, struct meg_str *buf, struct meg_span *key)
{
    int r = meg_hf_json_string(s, buf, key);

    if (r < 0)
        return r;
    meg_json_scan_skip_space(s);
    if (!meg_json_scan_accept(s, ':'))
        return meg_json_scan_expected(s, "':'");
    meg_json_scan_skip_space(s);
    return 0;
}

static bool is(const struct meg_span *key, const char *name)
{
    return (size_t)key->n == strlen(name) && memcmp(key->s, name, strlen(name)) == 0;
}

static int skip_value(struct meg_json_scan *s, struct meg_span *out)
{
    const char *begin = s->p, *value_type;
    int r = meg_json_scan_value(s, 2, &value_type);

    *out = (struct meg_span){ begin, s->p - begin };
    return r;
}

/* Find vocabulary and merges in the object at s: the model itself if is_model, else the top level of the file. */
static int find(struct meg_json_scan *s, struct meg_hf_raw_vocab *raw, bool is_model, struct meg_str *buf)
{
    struct meg_span key, value;
    int r;

    if (!meg_json_scan_accept(s, '{'))
        return meg_json_scan_expected(s, "'{'");
    meg_json_scan_skip_space(s);
    while (!meg_json_scan_accept(s, '}')) {
        meg_json_scan_skip_space(s);
        if ((r = read_key(s, buf, &key)) < 0)
            return r;
        if (!is_model && s->p < s->end && *s->p == '{' && is(&key, "model")) {
            if ((r = find(s, raw, true, buf)) < 0)
                return r;
        } else {
            bool is_vocab = is_model && is(&key, "vocab"), is_merges = is_model && is(&key, "merges");

            if ((r = skip_value(s, &value)) < 0)
                return r;
            if (is_vocab && *value.s == '{')
                raw->vocab = value;
            if (is_merges && *value.s == '[')
                raw->merges = value;
        }
        meg_json_scan_skip_space(s);
        if (s->p < s->end && *s->p != '}' && !meg_json_scan_accept(s, ','))
            return meg_json_scan_expected(s, "',' or '}'");
    }
    return 0;
}

int meg_hf_raw_vocab_extract(struct meg_hf_raw_vocab *raw, const char *text, int64_t n, struct meg_str *rest,
                             struct meg_err *e)
{
    struct meg_json_scan s = { text, text, text + n, "byte", e };
    struct meg_span cut[2];
    struct meg_str buf = { 0 };
    int r = 0;

    *raw = (struct meg_hf_raw_vocab){ { 0 }, { 0 } };
    meg_json_scan_skip_space(&s);
    if (meg_utf8_find_invalid(text, n) >= 0)
        r = meg_fail(e, MEG_EFORMAT, "invalid UTF-8");
    else
        r = find(&s, raw, false, &buf);
    meg_str_free(&buf);
    if (r < 0)
        return r;
    cut[0] = raw->vocab;
    cut[1] = raw->merges;
    if (cut[1].s && (!cut[0].s || cut[1].s < cut[0].s)) {
        cut[0] = raw->merges;
        cut[1] = raw->vocab;
    }
    for (int i = 0; i < 2 && cut[i].s; i++) {
        meg_str_add(rest, text, (size_t)(cut[i].s - text));
        meg_str_add(rest, *cut[i].s == '{' ? "{}" : "[]", 2);
        n -= cut[i].s + cut[i].n - text;
        text = cut[i].s + cut[i].n;
    }
    meg_str_add(rest, text, (size_t)n);
    return 0;
}
