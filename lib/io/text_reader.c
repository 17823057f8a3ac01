#include "io/text_reader.h"

#include <stdlib.h>
#include <string.h>

#include "io/block_reader.h"
#include "unicode/utf8.h"

enum { BLOCK = 1 << 20 };

const struct meg_opt meg_text_reader_opts[] = {
    { "input", 0, MEG_LIST(struct meg_text_reader_conf, input), "FILE...", "-",
      "text or JSON lines, plain or compressed by gzip, zstd or xz; patterns are expanded; - is "
      "standard input" },
    { "input-format", 0, MEG_STR(struct meg_text_reader_conf, input_format), "auto|text|jsonl", "auto",
      "what the input is; auto goes by name and first line of each file" },
    { "json-keys", 0, MEG_LIST(struct meg_text_reader_conf, json_keys), "KEY...", "text",
      "of JSON lines: the keys whose texts are read" },
    MEG_ALIAS("json-key", "json-keys"),
    { 0 }
};

struct meg_text_reader {
    const struct meg_text_reader_conf *conf;
    struct meg_block_reader *in;
    struct meg_line_block block;
    int64_t at, line; /* in block: where the next line begins, its number */
    bool is_jsonl;    /* the file that block is of */
    struct meg_jsonl jsonl;
    int key; /* of jsonl's values, the next one to give out */
    int64_t nth;
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
    (*out)->key = (int)c->json_keys.n;
    return MEG_OK;
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

/* Whether name ends in .json or .jsonl, perhaps with the suffix of a compressed file behind it. */
static bool is_json_name(const char *name)
{
    static const char *const packed[] = { ".gz", ".zst", ".xz" }, *const json[] = { ".json", ".jsonl" };
    size_t n = strlen(name);

    for (int i = 0; i < 3; i++) {
        size_t k = strlen(packed[i]);

        if (n > k && memcmp(name + n - k, packed[i], k) == 0) {
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

static bool is_jsonl(const struct meg_text_reader *t)
{
    const char *line;
    int64_t at = 0, n;

    if (strcmp(t->conf->input_format, "auto") != 0)
        return strcmp(t->conf->input_format, "jsonl") == 0;
    if (is_json_name(t->block.name))
        return true;
    while (meg_line_block_next(&t->block, &at, &line, &n)) {
        if (!meg_line_is_blank(line, n))
            return meg_jsonl_is_object(line, n);
    }
    return false;
}

/* A JSON line, whose texts are then to be given out. */
static int read_jsonl(struct meg_text_reader *t, struct meg_err *e)
{
    const char *line;
    struct meg_err inner = { 0 };
    int64_t n;
    int r;

    meg_line_block_next(&t->block, &t->at, &line, &n);
    if (meg_line_is_blank(line, n))
        return 0;
    if ((r = meg_jsonl_read(&t->jsonl, line, n, &inner)) < 0)
        return meg_fail(e, r, "%s, line %lld: %s", t->block.name, (long long)t->line, inner.msg);
    t->key = 0;
    return 0;
}

static int read_plain(struct meg_text_reader *t, struct meg_span *text, struct meg_err *e)
{
    const char *s = t->block.s + t->at, *nl = memchr(s, '\n', (size_t)(t->block.n - t->at));
    int64_t bad;

    *text = (struct meg_span){ s, nl ? nl + 1 - s : t->block.n - t->at };
    t->at += text->n;
    if ((bad = meg_utf8_find_invalid(s, text->n)) >= 0)
        return meg_fail(e, MEG_EFORMAT, "%s, line %lld: invalid UTF-8: byte 0x%02x at column %lld", t->block.name,
                        (long long)t->line, (unsigned char)s[bad], (long long)bad + 1);
    return 1;
}

int meg_text_reader_next(struct meg_text_reader *t, struct meg_span *text, struct meg_err *e)
{
    for (;;) {
        int r;

        for (; t->key < t->jsonl.nkeys; t->key++, t->nth = 0) {
            if (t->nth < t->jsonl.value[t->key].n) {
                *text = t->jsonl.value[t->key].v[t->nth++];
                return 1;
            }
        }
        if (t->at == t->block.n) {
            if ((r = meg_block_reader_next(t->in, &t->block, BLOCK, e)) <= 0)
                return r;
            t->at = 0;
            t->line = t->block.line - 1;
            if (t->block.line == 1)
                t->is_jsonl = is_jsonl(t);
        }
        if (t->at == t->block.n)
            continue;
        t->line++;
        if ((r = t->is_jsonl ? read_jsonl(t, e) : read_plain(t, text, e)) != 0)
            return r;
    }
}
