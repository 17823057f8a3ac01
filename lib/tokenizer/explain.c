/* explain.c - describe a tokenizer: its size, its special tokens, and what it does to a text. */
#include <stdlib.h>
#include <string.h>
#include "io/json.h"
#include "tokenizer/internal.h"
#include "unicode/utf8.h"

/* Return the token of an id as a JSON string; bytes that are not UTF-8 become U+FFFD. */
static json_t *token_json(const struct meg_tokenizer *t, int32_t id)
{
    struct meg_str bytes = { 0 }, text = { 0 };
    struct meg_err e;
    json_t *s;

    if (meg_tokenizer_token_text(t, id, &bytes, &e) == 0 && bytes.n > 0)
        meg_utf8_add_replaced(&text, bytes.s, (int64_t)bytes.n);
    s = json_stringn(text.s ? text.s : "", text.n);
    meg_str_free(&bytes);
    meg_str_free(&text);
    return s;
}

json_t *meg_tok_explain_ids(const struct meg_tokenizer *t, const int32_t *ids, int64_t n)
{
    json_t *list = json_array();

    for (int64_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:i,s:o}", "id", ids[i], "token", token_json(t, ids[i])));
    return list;
}

static json_t *special_ids(const struct meg_tokenizer *t)
{
    const struct meg_tok_special_ids *s = meg_tokenizer_special_ids(t);
    const struct {
        const char *name;
        int32_t id;
    } ids[] = { { "eod", s->eod }, { "bos", s->bos }, { "eos", s->eos },  { "pad", s->pad },
                { "cls", s->cls }, { "sep", s->sep }, { "mask", s->mask } };
    json_t *o = json_object();

    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        json_object_set_new(o, ids[i].name, ids[i].id < 0 ? json_null() : json_integer(ids[i].id));
    return o;
}

/* Add the ids of sample to the report. */
static int add_sample(struct meg_tokenizer *t, const char *sample, json_t *report, struct meg_err *e)
{
    struct meg_ids ids = { 0 };
    int r = meg_tokenizer_encode(t, sample, (int64_t)strlen(sample), &ids, e);

    if (r == 0) {
        json_object_set_new(report, "sample", json_string(sample));
        json_object_set_new(report, "ids", meg_tok_explain_ids(t, ids.v, ids.n));
    }
    free(ids.v);
    return r;
}

/* Append the ids of a list of {id, token} and their tokens. */
static void print_ids(const json_t *list, struct meg_str *out)
{
    const json_t *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        meg_str_printf(out, "%s%" JSON_INTEGER_FORMAT " ", i ? ", " : "",
                       json_integer_value(json_object_get(item, "id")));
        meg_json_dump(json_object_get(item, "token"), 0, out);
    }
    if (json_array_size(list) == 0)
        meg_str_printf(out, "none");
}

/* Append a line for each added token: its id, its text, its flags, and the files that name it. */
static void print_added(const json_t *list, struct meg_str *out)
{
    const json_t *item, *word;
    size_t i, k;

    meg_str_printf(out, "%zu", json_array_size(list));
    json_array_foreach(list, i, item)
    {
        meg_str_printf(out, "\n  %" JSON_INTEGER_FORMAT " ", json_integer_value(json_object_get(item, "id")));
        meg_json_dump(json_object_get(item, "token"), 0, out);
        json_array_foreach(json_object_get(item, "flags"), k, word)
        {
            meg_str_printf(out, " %s", json_string_value(word));
        }
        json_array_foreach(json_object_get(item, "named_in"), k, word)
        {
            meg_str_printf(out, "%s %s", k ? "," : ", in", json_string_value(word));
        }
    }
}

static void print_value(const char *key, const json_t *value, struct meg_str *out)
{
    const json_t *item;
    const char *name;
    size_t i;

    if (strcmp(key, "added_tokens") == 0) {
        print_added(value, out);
    } else if (strcmp(key, "contradictions") == 0) {
        meg_str_printf(out, "%s", json_array_size(value) ? "" : "none");
        json_array_foreach(value, i, item)
        {
            meg_str_printf(out, "\n  %s", json_string_value(item));
        }
    } else if (strcmp(key, "special_ids") == 0) {
        json_object_foreach((json_t *)(uintptr_t)value, name, item)
        {
            meg_str_printf(out, "%s%s ",
                           name == json_object_iter_key(json_object_iter((json_t *)(uintptr_t)value)) ? "" : ", ",
                           name);
            if (json_is_null(item))
                meg_str_printf(out, "none");
            else
                meg_json_dump(item, 0, out);
        }
    } else if (json_is_array(value)) {
        print_ids(value, out);
    } else if (json_is_boolean(value)) {
        meg_str_printf(out, json_is_true(value) ? "yes" : "no");
    } else if (json_is_null(value)) {
        meg_str_printf(out, "none");
    } else if (json_is_string(value) && strcmp(key, "sample") != 0) {
        meg_str_printf(out, "%s", json_string_value(value));
    } else {
        meg_json_dump(value, 0, out);
    }
}

/* Append a line "name: value" for each member of the report. */
static void print_text(json_t *report, struct meg_str *out)
{
    const char *key;
    json_t *value;

    json_object_foreach(report, key, value)
    {
        for (const char *s = key; *s; s++)
            meg_str_add(out, *s == '_' ? " " : s, 1);
        meg_str_printf(out, ": ");
        print_value(key, value, out);
        meg_str_printf(out, "\n");
    }
}

int meg_tokenizer_explain(struct meg_tokenizer *t, const char *sample, bool is_json, struct meg_str *out,
                          struct meg_err *e)
{
    json_t *report =
        json_pack("{s:s,s:I}", "type", meg_tokenizer_type(t), "size", (json_int_t)meg_tokenizer_vocab_size(t));
    struct meg_ids around = { 0 };
    int r;

    if (t->type->origin == MEG_TOK_LIB_HF) {
        meg_hf_explain(t, report);
    } else if ((r = meg_tokenizer_encode(t, "", 0, &around, e)) == 0) {
        json_object_set_new(report, "before_a_text", meg_tok_explain_ids(t, around.v, around.n));
    }
    free(around.v);
    json_object_set_new(report, "special_ids", special_ids(t));
    if ((r = add_sample(t, sample, report, e)) == 0) {
        if (is_json) {
            meg_json_dump(report, 0, out);
            meg_str_printf(out, "\n");
        } else {
            print_text(report, out);
        }
    }
    json_decref(report);
    return r;
}
