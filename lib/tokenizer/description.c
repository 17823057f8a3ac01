/*
 * description.c - write the unique_identifiers of a tokenizer as Megatron-LM writes them to the descriptions of its
 * index cache.  Up to Megatron Core 0.14, each class lists its files and options (meg_tok_set_description).  From 0.15
 * on, there is one class, which lists the keyword arguments of its constructor.  The arguments depend on the library
 * that implements the tokenizer type.
 */
#include <inttypes.h>
#include <string.h>
#include "io/json.h"
#include "tokenizer/internal.h"
#include "tokenizer/megatron_release.h"

#define CLASS "megatron.core.tokenizers.text.models.default_tokenizer.DefaultTokenizerText"

enum kwarg_source { TEXT, VOCAB_FILE, MERGE_FILE, VOCAB_SIZE, PATTERN, NUM_SPECIAL, SPECIALS };

/*
 * A keyword argument of the constructor.  An argument with source PATTERN, VOCAB_SIZE or NUM_SPECIAL is omitted if its
 * option is not set.
 */
struct kwarg {
    const char *name;
    enum kwarg_source source;
    const char *text; /* the value if source is TEXT */
};

/* clang-format off */
#define FILES { "vocab_file", VOCAB_FILE, NULL }, { "merges_file", MERGE_FILE, NULL }
#define EXTRA { "additional_special_tokens", TEXT, "[]" }
#define CHAT { "chat_template", TEXT, "None" }
#define FLAGS(bool) \
    { "use_fast", TEXT, bool }, { "trust_remote_code", TEXT, "False" }, { "include_special_tokens", TEXT, bool }
#define LEGACY { "legacy", TEXT, "False" }, { "special_tokens", TEXT, "None" }
#define RANKS \
    { "pattern", PATTERN, NULL }, { "vocab_size", VOCAB_SIZE, NULL }, \
    { "num_special_tokens", NUM_SPECIAL, NULL }, { "special_tokens", SPECIALS, NULL }
/* clang-format on */

enum { MAX_KWARGS = 8 };
static const struct kwarg kwargs[][MEG_NUM_TOK_LIBS][MAX_KWARGS] = {
    [MEG_TOK_KWARGS_0_15] = { [MEG_TOK_LIB_MEGATRON] = { FILES },
                              [MEG_TOK_LIB_HF] = { FILES },
                              [MEG_TOK_LIB_TIKTOKEN] = { RANKS },
                              [MEG_TOK_LIB_NULL] = { { "vocab_size", VOCAB_SIZE, NULL } } },
    [MEG_TOK_KWARGS_0_16] = { [MEG_TOK_LIB_MEGATRON] = { EXTRA, FILES, FLAGS("False") },
                              [MEG_TOK_LIB_HF] = { FILES, EXTRA, FLAGS("False") },
                              [MEG_TOK_LIB_SENTENCEPIECE] = { LEGACY },
                              [MEG_TOK_LIB_TIKTOKEN] = { RANKS },
                              [MEG_TOK_LIB_NULL] = { { "vocab_size", VOCAB_SIZE, NULL } } },
    [MEG_TOK_KWARGS_0_17] = { [MEG_TOK_LIB_MEGATRON] = { EXTRA, FILES, FLAGS("True") },
                              [MEG_TOK_LIB_HF] = { FILES, EXTRA, FLAGS("True") },
                              [MEG_TOK_LIB_SENTENCEPIECE] = { LEGACY },
                              [MEG_TOK_LIB_TIKTOKEN] = { RANKS },
                              [MEG_TOK_LIB_NULL] = { { "vocab_size", VOCAB_SIZE, NULL } } },
    [MEG_TOK_KWARGS_0_18] = { [MEG_TOK_LIB_MEGATRON] = { EXTRA, FILES, FLAGS("True") },
                              [MEG_TOK_LIB_HF] = { CHAT, FILES, EXTRA, FLAGS("True") },
                              [MEG_TOK_LIB_SENTENCEPIECE] = { CHAT,
                                                              { "ignore_extra_whitespaces", TEXT, "True" },
                                                              LEGACY },
                              [MEG_TOK_LIB_TIKTOKEN] = { CHAT, RANKS },
                              [MEG_TOK_LIB_NULL] = { { "vocab_size", VOCAB_SIZE, NULL } } },
};

/*
 * Append a string in quotes as Python's repr() does: in double quotes if it contains single quotes but no double
 * quotes, otherwise in single quotes.  Control characters, which repr() escapes, are copied unchanged.
 */
static void add_repr(struct meg_str *out, const char *s)
{
    const char quote = strchr(s, '\'') && !strchr(s, '"') ? '"' : '\'';

    meg_str_add(out, &quote, 1);
    for (; *s; s++) {
        if (*s == quote || *s == '\\')
            meg_str_add(out, "\\", 1);
        meg_str_add(out, s, 1);
    }
    meg_str_add(out, &quote, 1);
}

void meg_tok_add_python_list(struct meg_str *out, const struct meg_str_list *list)
{
    if (list->n == 0)
        meg_str_printf(out, "None");
    for (int64_t i = 0; i < list->n; i++) {
        meg_str_printf(out, i ? ", " : "[");
        add_repr(out, list->v[i]);
    }
    if (list->n > 0)
        meg_str_printf(out, "]");
}

static void add_int(struct meg_str *out, int64_t v)
{
    if (v != MEG_UNSET)
        meg_str_printf(out, "%" PRId64, v);
}

/* Append the value of an argument as Python's str() prints it, or nothing if the argument is omitted. */
static void add_value(struct meg_str *out, const struct kwarg *k, const struct meg_tok_conf *c)
{
    switch (k->source) {
    case TEXT: meg_str_printf(out, "%s", k->text); break;
    case VOCAB_FILE: meg_str_printf(out, "%s", c->vocab_file ? c->vocab_file : "None"); break;
    case MERGE_FILE: meg_str_printf(out, "%s", c->merge_file ? c->merge_file : "None"); break;
    case VOCAB_SIZE: add_int(out, c->vocab_size); break;
    case PATTERN: meg_str_printf(out, "%s", c->tiktoken_pattern ? c->tiktoken_pattern : ""); break;
    case NUM_SPECIAL: add_int(out, c->tiktoken_num_special_tokens); break;
    case SPECIALS: meg_tok_add_python_list(out, &c->tiktoken_special_tokens); break;
    }
}

static const char *path_of(const struct meg_tok_class *class, const struct meg_tok_conf *c)
{
    if (class->origin == MEG_TOK_LIB_MEGATRON)
        return class->name;
    if (class->origin == MEG_TOK_LIB_NULL)
        return NULL;
    return c->name_or_path ? c->name_or_path : c->tokenizer_model ? c->tokenizer_model : c->tokenizer_json;
}

void meg_tok_describe_kwargs(struct meg_tokenizer *t, const struct meg_tok_conf *c,
                             const struct meg_megatron_release *release)
{
    const char *path = path_of(t->type, c);
    struct meg_str *d = &t->description, value = { 0 };

    d->n = 0;
    meg_str_printf(d, "{\n    \"class\": \"" CLASS "\",\n    \"tokenizer_path\": ");
    if (path)
        meg_json_add_ascii(d, path);
    else
        meg_str_printf(d, "null");
    for (const struct kwarg *k = kwargs[release->kwargs][t->type->origin]; k->name; k++) {
        value.n = 0;
        add_value(&value, k, c);
        if (value.n == 0)
            continue;
        meg_str_printf(d, ",\n    \"%s\": ", k->name);
        meg_json_add_ascii(d, value.s);
    }
    meg_str_printf(d, "\n}");
    meg_str_free(&value);
}
