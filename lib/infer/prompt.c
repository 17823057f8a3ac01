/* prompt.c - parse a line of input, plain text or JSON, into token ids and generation options. */
#include "infer/prompt.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "foreign/foreign.h"
#include "io/json.h"
#include "io/line_reader.h"
#include "io/text_reader.h"
#include "unicode/utf8.h"

static int fail_at(const struct meg_prompt_line *at, int code, const char *what, struct meg_err *e)
{
    return meg_fail(e, code, "%s: line %" PRId64 ": %s", at->name, at->line, what);
}

int meg_prompt_check_ids(const struct meg_tokenizer *tok, const int32_t *ids, int64_t n, int64_t vocab_size,
                         struct meg_err *e)
{
    struct meg_str token = { 0 };
    int64_t i = 0;

    while (i < n && ids[i] < vocab_size)
        i++;
    if (i == n)
        return 0;
    (void)meg_tokenizer_token_text(tok, ids[i], &token, NULL);
    meg_fail(e, MEG_EFORMAT,
             "the text contains the token '%.*s', whose id is %" PRId32
             "; the vocabulary of the model has ids 0 to %" PRId64
             "; remove the token, or specify the tokenizer that the model was trained with",
             (int)(token.n < 100 ? token.n : 100), token.n ? token.s : "", ids[i], vocab_size - 1);
    meg_str_free(&token);
    return MEG_EFORMAT;
}

static int encode(const struct meg_prompt_format *format, const struct meg_prompt_line *at, const char *text, size_t n,
                  struct meg_ids *ids, struct meg_err *e)
{
    const int64_t first = ids->n;
    struct meg_err why;
    int r;

    if (!format->tok)
        return fail_at(at, MEG_EUSAGE,
                       "the line is text, but the model has no tokenizer; specify one with --tokenizer-type and its "
                       "files, or use token ids: {\"ids\":[...]}",
                       e);
    r = format->encode ? format->encode(format->encode_arg, text, (int64_t)n, ids, &why)
                       : meg_tokenizer_encode(format->tok, text, (int64_t)n, ids, &why);
    if (r == 0)
        r = meg_prompt_check_ids(format->tok, ids->v + first, ids->n - first, format->vocab_size, &why);
    return r < 0 ? fail_at(at, r, why.msg, e) : 0;
}

static int read_ids(const struct meg_prompt_format *format, const struct meg_prompt_line *at, const json_t *list,
                    struct meg_ids *ids, struct meg_err *e)
{
    const json_t *x;
    int64_t id;
    size_t i;

    if (!json_is_array(list))
        return fail_at(at, MEG_EFORMAT, "\"ids\" is not an array of integers", e);
    meg_ids_reserve(ids, (int64_t)json_array_size(list));
    json_array_foreach(list, i, x)
    {
        id = json_integer_value(x);
        if (!json_is_integer(x))
            return meg_fail(e, MEG_EFORMAT, "%s: line %" PRId64 ": \"ids\"[%zu] is not an integer", at->name, at->line,
                            i);
        if (id < 0 || id >= format->vocab_size)
            return meg_fail(e, MEG_EFORMAT,
                            "%s: line %" PRId64 ": \"ids\"[%zu] is %" PRId64
                            "; the vocabulary of the model has ids 0 to %" PRId64,
                            at->name, at->line, i, id, format->vocab_size - 1);
        ids->v[ids->n++] = (int32_t)id;
    }
    return 0;
}

static int unknown_member(const struct meg_prompt_format *format, const struct meg_prompt_line *at, const char *name,
                          bool has_options, struct meg_err *e)
{
    struct meg_str what = { 0 };
    int r;

    meg_str_printf(&what, "unknown member ");
    meg_json_add_string(&what, name, strlen(name));
    meg_str_printf(&what, "; known are \"%s\", \"ids\"", format->key);
    if (has_options)
        meg_request_add_names(&what);
    r = fail_at(at, MEG_EFORMAT, what.s, e);
    meg_str_free(&what);
    return r;
}

/* Set the options: all members except the prompt. */
static int read_options(const struct meg_prompt_format *format, const struct meg_prompt_line *at, json_t *root,
                        struct meg_request *request, struct meg_err *e)
{
    const char *name;
    struct meg_err why;
    json_t *value;
    int r;

    json_object_foreach(root, name, value)
    {
        if (strcmp(name, format->key) == 0 || strcmp(name, "ids") == 0)
            continue;
        r = request ? meg_request_set(request, name, value, &why) : 0;
        if (r == 0)
            return unknown_member(format, at, name, request, e);
        if (r < 0)
            return fail_at(at, r, why.msg, e);
    }
    if (request && (r = meg_request_check(request, format->unpadded_vocab, &why)) < 0)
        return fail_at(at, r, why.msg, e);
    if (request && request->nstop > 0 && !format->tok)
        return fail_at(
            at, MEG_EUSAGE,
            "\"stop\" requires a tokenizer, and the model has none; specify one with --tokenizer-type and its files",
            e);
    return 0;
}

static int read_prompt(const struct meg_prompt_format *format, const struct meg_prompt_line *at, const json_t *root,
                       struct meg_ids *ids, struct meg_err *e)
{
    const json_t *text = json_object_get(root, format->key), *list = json_object_get(root, "ids");

    if (!text == !list)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: line %" PRId64 ": expected a JSON object with either \"%s\" or \"ids\", "
                        "found %s",
                        at->name, at->line, format->key,
                        text                   ? "both"
                        : json_is_object(root) ? "neither"
                                               : "another type of JSON value");
    if (list)
        return read_ids(format, at, list, ids, e);
    if (!json_is_string(text))
        return meg_fail(e, MEG_EFORMAT, "%s: line %" PRId64 ": \"%s\" is not a string", at->name, at->line,
                        format->key);
    return encode(format, at, json_string_value(text), json_string_length(text), ids, e);
}

static int read_object(const struct meg_prompt_format *format, const struct meg_prompt_line *at, struct meg_ids *ids,
                       struct meg_request *request, struct meg_err *e)
{
    json_error_t why;
    json_t *root = json_loadb(at->text, at->n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    int r;

    if (!root)
        return meg_fail(e, MEG_EFORMAT, "%s: line %" PRId64 ": not JSON: %s at byte %d", at->name, at->line, why.text,
                        why.position);
    r = read_prompt(format, at, root, ids, e);
    if (r == 0 && !format->is_corpus)
        r = read_options(format, at, root, request, e);
    json_decref(root);
    return r;
}

/* Refuse a JSON array, which is rarely meant as a text. */
static int check_array(const struct meg_prompt_line *at, struct meg_err *e)
{
    struct meg_str name = { 0 };
    int r;

    if (!meg_text_begins_with_array(at->text, (int64_t)at->n))
        return 0;
    meg_str_printf(&name, "%s: line %" PRId64, at->name, at->line);
    r = meg_foreign_check(name.s, at->text, at->n, MEG_EXPECT_JSON_LINES, e);
    meg_str_free(&name);
    return r;
}

int meg_prompt_read(const struct meg_prompt_format *format, const struct meg_prompt_line *line, struct meg_ids *ids,
                    struct meg_request *request, struct meg_err *e)
{
    const size_t mark = (size_t)meg_utf8_bom(line->text, (int64_t)line->n);
    struct meg_prompt_line at = *line;
    int r;

    if (mark < at.n && at.text[mark] == '{') {
        at.text += mark;
        at.n -= mark;
    }
    if (format->is_plain_allowed && (r = check_array(&at, e)) < 0)
        return r;
    if (format->is_plain_allowed && (at.n == 0 || at.text[0] != '{'))
        return encode(format, &at, at.text, at.n, ids, e);
    return read_object(format, &at, ids, request, e);
}

int meg_prompt_answer_lines(const char *input, const struct meg_prompt_format *format, meg_prompt_answer *answer,
                            void *arg, struct meg_err *e)
{
    struct meg_line_reader in;
    struct meg_prompt_line line;
    struct meg_ids ids = { 0 };
    struct meg_str out = { 0 };
    struct meg_err why;
    char *text;
    int r = meg_line_reader_open(&in, input, e);

    while (r >= 0 && (r = meg_line_reader_next(&in, &text, &line.n, e)) > 0) {
        line.name = in.name;
        line.line = in.line;
        line.text = text;
        ids.n = 0;
        out.n = 0;
        r = meg_line_reader_explain(meg_prompt_read(format, &line, &ids, NULL, e), &in, e);
        if (r == 0 && (r = answer(arg, &ids, &out, &why)) < 0)
            fail_at(&line, r, why.msg, e);
        if (r == 0)
            r = meg_write_stdout(out.s, out.n, e);
    }
    meg_line_reader_close(&in);
    meg_str_free(&out);
    free(ids.v);
    return r;
}
