/* text_reader.c - read texts one by one from plain text or JSON lines. */
#include "io/text_reader.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "io/block_reader.h"
#include "unicode/utf8.h"

enum { BLOCK = 1 << 20 };

const struct meg_opt meg_text_reader_opts[] = {
    { "input", 0, MEG_LIST(struct meg_text_reader_conf, input), "FILE...", "-",
      "read text or JSON lines from these files, plain or compressed with gzip, zstd or xz; shell patterns are "
      "expanded; - is standard input" },
    { "input-format", 0, MEG_ENUM(struct meg_text_reader_conf, input_format), "auto|text|jsonl", "auto",
      "format of the input; auto: detect it from the name and the first line of each file" },
    { "json-keys", 0, MEG_LIST(struct meg_text_reader_conf, json_keys), "KEY...", "text",
      "keys of each JSON line whose values are the texts to read" },
    MEG_ALIAS("json-key", "json-keys"),
    { 0 }
};

struct meg_text_reader {
    const struct meg_text_reader_conf *conf;
    struct meg_block_reader *in;
    struct meg_line_block block;
    int64_t offset, line; /* byte offset of the next line in block; number of the last line read in its file */
    bool is_jsonl;        /* block is from a file of JSON lines */
    struct meg_jsonl jsonl;
    int next_key;        /* index of the key of the next text */
    int64_t value_index; /* index of the next text in the value of this key */
};

int meg_text_reader_open(struct meg_text_reader **out, const struct meg_text_reader_conf *c, struct meg_err *e)
{
    struct meg_block_reader *in;
    int r = meg_block_reader_open(&in, c->input.v, (int)c->input.n, e);

    if (r < 0)
        return r;
    *out = meg_new(sizeof **out);
    (*out)->conf = c;
    (*out)->in = in;
    (*out)->jsonl = (struct meg_jsonl){ .keys = c->json_keys.v, .nkeys = (int)c->json_keys.n };
    (*out)->next_key = (int)c->json_keys.n;
    return 0;
}

void meg_text_reader_close(struct meg_text_reader *t)
{
    if (!t)
        return;
    meg_block_reader_close(t->in);
    meg_jsonl_free(&t->jsonl);
    free(t->block.s);
    free(t);
}

/* Return whether name ends in .json or .jsonl, optionally followed by the suffix of a compressed file. */
static bool is_json_name(const char *name)
{
    static const char *const compressed[] = { ".gz", ".zst", ".xz" }, *const json[] = { ".json", ".jsonl" };
    size_t n = strlen(name);

    for (int i = 0; i < 3; i++) {
        size_t k = strlen(compressed[i]);

        if (n > k && memcmp(name + n - k, compressed[i], k) == 0) {
            n -= k;
            break;
        }
    }
    for (int i = 0; i < 2; i++) {
        size_t k = strlen(json[i]);

        if (n > k && memcmp(name + n - k, json[i], k) == 0)
            return true;
    }
    return false;
}

/* Return the offset of the first byte from `at` on that is not whitespace; n if there is none. */
static int64_t skip_space(const char *s, int64_t at, int64_t n)
{
    while (at < n && memchr(" \t\r\n", s[at], 4))
        at++;
    return at;
}

/* Return whether s [n], which begins with a bracket, is a JSON array other than one of a single number. */
static bool is_json_array(const char *s, int64_t n)
{
    json_t *array = json_loadb(s, (size_t)n, JSON_ALLOW_NUL, NULL);
    const bool is_array = array && !(json_array_size(array) == 1 && json_is_number(json_array_get(array, 0)));

    json_decref(array);
    return is_array;
}

bool meg_text_begins_with_array(const char *s, int64_t n)
{
    const int64_t first = skip_space(s, meg_utf8_bom(s, n), n), second = skip_space(s, first + 1, n);
    const char *end;

    if (second >= n || s[first] != '[')
        return false;
    end = memchr(s + first, '\n', (size_t)(n - first));
    return s[second] == '{' || is_json_array(s + first, end ? end - s - first : n - first);
}

/* Return whether s [n] begins like an object of JSON with a key, or with an array, which is then refused. */
static bool begins_like_json(const char *s, int64_t n)
{
    const int64_t first = skip_space(s, meg_utf8_bom(s, n), n), second = skip_space(s, first + 1, n);

    return (second < n && s[first] == '{' && (s[second] == '"' || s[second] == '}')) ||
           meg_text_begins_with_array(s, n);
}

static bool is_jsonl(const struct meg_text_reader *t)
{
    if (t->conf->input_format != MEG_INPUT_AUTO)
        return t->conf->input_format == MEG_INPUT_JSONL;
    return is_json_name(t->block.name) || begins_like_json(t->block.s, t->block.n);
}

/*
 * Read the next JSON line into t->jsonl, from which meg_text_reader_next returns the texts one by one.  A blank line is
 * skipped and yields no text.
 */
static int read_jsonl(struct meg_text_reader *t, struct meg_err *e)
{
    const char *line;
    struct meg_err inner = { 0 };
    int64_t n;
    int r;

    meg_line_block_next(&t->block, &t->offset, &line, &n);
    if (meg_line_is_blank(line, n))
        return 0;
    if ((r = meg_jsonl_read(&t->jsonl, line, n, &inner)) < 0) {
        r = meg_fail(e, r, "%s: line %" PRId64 ": %s", t->block.name, t->line, inner.msg);
        return meg_line_block_explain(r, &t->block, e);
    }
    t->next_key = 0;
    return 0;
}

static int read_plain(struct meg_text_reader *t, struct meg_span *text, struct meg_err *e)
{
    const char *s = t->block.s + t->offset, *nl = memchr(s, '\n', (size_t)(t->block.n - t->offset));
    int64_t bad;

    *text = (struct meg_span){ s, nl ? nl + 1 - s : t->block.n - t->offset };
    t->offset += text->n;
    if ((bad = meg_utf8_find_invalid(s, text->n)) >= 0)
        return meg_fail(e, MEG_EFORMAT, "%s: line %" PRId64 ": invalid UTF-8: 0x%02x at byte %" PRId64, t->block.name,
                        t->line, (unsigned char)s[bad], bad + 1);
    return 1;
}

int meg_text_reader_next(struct meg_text_reader *t, struct meg_span *text, struct meg_err *e)
{
    for (;;) {
        int r;

        for (; t->next_key < t->jsonl.nkeys; t->next_key++, t->value_index = 0) {
            if (t->value_index < t->jsonl.value[t->next_key].n) {
                *text = t->jsonl.value[t->next_key].strings[t->value_index++];
                return 1;
            }
        }
        if (t->offset == t->block.n) {
            if ((r = meg_block_reader_next(t->in, &t->block, BLOCK, e)) <= 0)
                return r;
            t->offset = 0;
            if (t->block.first_line_in_file == 1) {
                t->line = 0;
                t->is_jsonl = is_jsonl(t);
            }
        }
        if (t->offset == t->block.n)
            continue;
        t->line++;
        if ((r = t->is_jsonl ? read_jsonl(t, e) : read_plain(t, text, e)) != 0)
            return r;
    }
}
