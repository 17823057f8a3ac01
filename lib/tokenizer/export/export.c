/*
 * export.c - write the components of a tokenizer.json (tokenizer/hf/internal.h) and the files that transformers reads
 * in addition.
 */
#include "tokenizer/export/export.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "io/json.h"
#include "tokenizer/export/internal.h"
#include "tokenizer/hf/files.h"

static const struct {
    const struct meg_tok_class *class;
    int (*export)(struct meg_export_builder *b, struct meg_err *e);
} exporters[] = {
    { &meg_tok_gpt2, meg_export_gpt2 },
    { &meg_tok_tiktoken, meg_export_tiktoken },
    { &meg_tok_bert_lower, meg_export_wordpiece },
    { &meg_tok_bert_case, meg_export_wordpiece },
    { &meg_tok_sentencepiece, meg_export_spm },
    { &meg_tok_gpt_sentencepiece, meg_export_spm },
    { &meg_tok_llama2, meg_export_spm },
    { &meg_tok_hf, meg_export_hf },
    { &meg_tok_hf_pretrained, meg_export_hf },
};

/* ---- Shared by the tokenizer types ---- */

void meg_export_add_special(struct meg_export_builder *b, int32_t id, const char *s, size_t n)
{
    if (id >= 0 && !b->added[id].text.s)
        meg_str_add(&b->added[id].text, s, n);
}

void meg_export_add_all_special(struct meg_export_builder *b)
{
    const struct meg_tok_special_ids *r = meg_tokenizer_special_ids(b->tok);
    const int32_t special[] = { r->eod, r->bos, r->eos, r->pad, r->cls, r->sep, r->mask };
    struct meg_str text = { 0 };

    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        text.n = 0;
        if (special[i] >= 0 && meg_tokenizer_bytes(b->tok, &special[i], 1, &text, NULL) == 0)
            meg_export_add_special(b, special[i], text.s, text.n);
    }
    meg_str_free(&text);
}

json_t *meg_export_component(const char *type, const char *format, ...)
{
    json_t *part = json_pack("{s:s}", "type", type), *members;
    va_list args;

    va_start(args, format);
    members = json_vpack_ex(NULL, 0, format, args);
    va_end(args);
    MEG_ASSERT(members);
    json_object_update(part, members);
    json_decref(members);
    return part;
}

json_t *meg_export_replace(const char *regex, const char *content)
{
    return meg_export_component("Replace", "{s:{s:s},s:s}", "pattern", "Regex", regex, "content", content);
}

json_t *meg_export_merge(const char *left, size_t nleft, const char *right, size_t nright)
{
    json_t *merge = json_array();

    json_array_append_new(merge, json_stringn_nocheck(left, nleft));
    json_array_append_new(merge, json_stringn_nocheck(right, nright));
    return merge;
}

json_t *meg_export_byte_level_bpe(json_t *vocab, json_t *merges, bool ignore_merges)
{
    return meg_export_component("BPE", "{s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:o,s:o}", "dropout", "unk_token",
                                "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                                "ignore_merges", ignore_merges, "vocab", vocab, "merges", merges);
}

static json_t *byte_level(bool use_regex)
{
    return meg_export_component("ByteLevel", "{s:b,s:b,s:b}", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
                                use_regex);
}

void meg_export_byte_level(struct meg_export_builder *b, enum meg_pretok pretok)
{
    b->decoder = byte_level(true);
    if (pretok == MEG_PRETOK_GPT2) {
        b->pre_tokenizer = byte_level(true);
        return;
    }
    b->pre_tokenizer =
        meg_export_component("Sequence", "{s:[o,o]}", "pretokenizers",
                             meg_export_component("Split", "{s:{s:s},s:s,s:b}", "pattern", "Regex",
                                                  meg_pretok_pattern[pretok], "behavior", "Isolated", "invert", 0),
                             byte_level(false));
}

/* Set the texts of the special ids, for the other two files.  No components are set: tokenizer.json exists already. */
int meg_export_hf(struct meg_export_builder *b, struct meg_err *e)
{
    const struct meg_hf_files *f = b->tok->files;
    const struct meg_tok_special_ids *r = meg_tokenizer_special_ids(b->tok);
    const int32_t special[] = { r->eod, r->bos, r->eos, r->pad };

    (void)e;
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (special[i] >= 0)
            meg_export_add_special(b, special[i], f->token[special[i]].s, f->token[special[i]].n);
    return 0;
}

/* ---- tokenizer.json ---- */

static json_t *added_token(const struct meg_export_added_token *t)
{
    return json_pack("{s:o,s:b,s:b,s:b,s:b,s:b}", "content", json_stringn_nocheck(t->text.s, t->text.n), "single_word",
                     0, "lstrip", 0, "rstrip", 0, "normalized", t->is_normalized, "special", !t->is_normalized);
}

/*
 * Return all added tokens: an array for tokenizer.json or, if is_map, an object with the ids as keys for
 * tokenizer_config.json.
 */
static json_t *added_tokens(const struct meg_export_builder *b, bool is_map)
{
    json_t *all = is_map ? json_object() : json_array();

    for (int64_t id = 0; id < meg_tokenizer_vocab_size(b->tok); id++) {
        json_t *token = b->added[id].text.s ? added_token(&b->added[id]) : NULL;
        char key[24];

        if (!token)
            continue;
        snprintf(key, sizeof key, "%" PRId64, id);
        if (is_map) {
            json_object_set_new(all, key, token);
        } else {
            json_object_set_new(token, "id", json_integer(id));
            json_array_append_new(all, token);
        }
    }
    return all;
}

static json_t *text_of(const struct meg_export_builder *b, int32_t id)
{
    return id >= 0 && b->added[id].text.s ? json_stringn_nocheck(b->added[id].text.s, b->added[id].text.n)
                                          : json_null();
}

/* Append an item to a template: a special token or, if special is NULL, input sequence "A" or "B". */
static void add_step(json_t *template, json_t *special, const char *sequence, int type)
{
    json_array_append_new(template, special ? json_pack("{s:{s:O,s:i}}", "SpecialToken", "id", special, "type_id", type)
                                            : json_pack("{s:{s:s,s:i}}", "Sequence", "id", sequence, "type_id", type));
}

/* Return a TemplateProcessing that prepends the ids `before` to each text. */
static json_t *post_processor(const struct meg_export_builder *b, const struct meg_ids *before)
{
    json_t *single = json_array(), *pair = json_array(), *tokens = json_object();

    for (int type = 0; type < 2; type++) {
        for (int64_t i = 0; i < before->n; i++) {
            json_t *text = text_of(b, before->v[i]);

            if (type == 0)
                add_step(single, text, NULL, 0);
            add_step(pair, text, NULL, type);
            json_object_set_new(tokens, json_string_value(text),
                                json_pack("{s:O,s:[i],s:[O]}", "id", text, "ids", (int)before->v[i], "tokens", text));
            json_decref(text);
        }
        if (type == 0)
            add_step(single, NULL, "A", 0);
        add_step(pair, NULL, type ? "B" : "A", type);
    }
    return meg_export_component("TemplateProcessing", "{s:o,s:o,s:o}", "single", single, "pair", pair, "special_tokens",
                                tokens);
}

static void write_tokenizer(struct meg_str *out, struct meg_export_builder *b, const struct meg_ids *before)
{
    json_t *post = before->n > 0 ? post_processor(b, before) : NULL;
    json_t *file = json_pack("{s:s,s:n,s:n,s:o,s:O?,s:O?,s:o?,s:O?,s:O?}", "version", "1.0", "truncation", "padding",
                             "added_tokens", added_tokens(b, false), "normalizer", b->normalizer, "pre_tokenizer",
                             b->pre_tokenizer, "post_processor", post, "decoder", b->decoder, "model", b->model);

    meg_json_dump(file, 0, out);
    meg_str_add(out, "\n", 1);
    json_decref(file);
}

/* ---- tokenizer_config.json and special_tokens_map.json ---- */

static json_t *special_tokens_of(const struct meg_export_builder *b)
{
    const struct meg_tok_special_ids *r = meg_tokenizer_special_ids(b->tok);
    const struct {
        const char *name;
        int32_t id;
    } special[] = { { "bos_token", r->bos },   { "cls_token", r->cls }, { "eos_token", r->eod },
                    { "mask_token", r->mask }, { "pad_token", r->pad }, { "sep_token", r->sep },
                    { "unk_token", b->unk } };
    json_t *o = json_object();

    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (special[i].id >= 0 && b->added[special[i].id].text.s)
            json_object_set_new(o, special[i].name, text_of(b, special[i].id));
    return o;
}

/*
 * Return the tokenizer options as lines of a configuration file.  Paths are omitted, since the program that reads the
 * directory finds the files in it by their names.
 */
static json_t *options_of(const struct meg_tok_conf *given)
{
    struct meg_tok_conf c = *given;
    const struct meg_optgroup groups[] = { { "tokenizer", meg_tok_opts, &c }, { 0 } };
    struct meg_str dump = { 0 };
    json_t *lines = json_array();

    c.name_or_path = NULL;
    for (int i = 0; i < MEG_NUM_TOK_FILES; i++)
        *meg_tok_file_path(&c, i) = NULL;
    meg_opt_dump(groups, &dump);
    for (const char *s = dump.s; s && *s;) {
        const size_t n = strcspn(s, "\n");

        if (*s != '#' && n > 0)
            json_array_append_new(lines, json_stringn_nocheck(s, n));
        s += n + (s[n] == '\n');
    }
    meg_str_free(&dump);
    return lines;
}

static bool has_bos(const struct meg_export_builder *b, const struct meg_ids *before)
{
    for (int64_t i = 0; i < before->n; i++)
        if (before->v[i] == meg_tokenizer_special_ids(b->tok)->bos)
            return true;
    return false;
}

static void write_config_files(struct meg_tok_export_files *out, const struct meg_export_builder *b,
                               const struct meg_ids *before)
{
    json_t *map = special_tokens_of(b), *config = json_deep_copy(map);

    json_object_set_new(config, "add_bos_token", json_boolean(has_bos(b, before)));
    json_object_set_new(config, "add_eos_token", json_false());
    if (b->has_no_prefix)
        json_object_set_new(config, "add_prefix_space", json_false());
    if (b->model)
        json_object_set_new(config, "added_tokens_decoder", added_tokens(b, true));
    json_object_set_new(config, "clean_up_tokenization_spaces", json_false());
    if (b->tok->type == &meg_tok_bert_lower || b->tok->type == &meg_tok_bert_case)
        json_object_set_new(config, "do_lower_case", json_boolean(b->tok->type == &meg_tok_bert_lower));
    json_object_set_new(config, MEG_TOK_EXPORT_KEY, options_of(b->conf));
    json_object_set_new(config, "tokenizer_class", json_string("PreTrainedTokenizerFast"));
    meg_json_dump(map, 2, &out->special_map);
    meg_str_add(&out->special_map, "\n", 1);
    meg_json_dump(config, 2, &out->config);
    meg_str_add(&out->config, "\n", 1);
    json_decref(map);
    json_decref(config);
}

int meg_tok_export(struct meg_tok_export_files *out, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct meg_export_builder b = { .conf = c, .unk = -1 };
    struct meg_ids before = { 0 };
    size_t i = 0;
    int r = meg_tokenizer_open(&b.tok, c, e);

    if (r < 0)
        return r;
    while (i < sizeof exporters / sizeof *exporters && strcmp(exporters[i].class->name, b.tok->type->name) != 0)
        i++;
    if (i == sizeof exporters / sizeof *exporters) {
        r = meg_fail(e, MEG_EUSAGE, "tokenizer.json cannot represent tokenizers of type %s", b.tok->type->name);
        goto out;
    }
    b.added = meg_new((size_t)meg_tokenizer_vocab_size(b.tok) * sizeof *b.added);
    out->is_not_spm_bpe = true;
    out->eod = meg_tokenizer_eod(b.tok);
    out->bos = meg_tokenizer_special_ids(b.tok)->bos;
    if ((r = exporters[i].export(&b, e)) == 0 && (r = meg_tokenizer_encode(b.tok, "", 0, &before, e)) == 0 && b.model)
        write_tokenizer(&out->tokenizer, &b, &before);
    if (r == 0 || r == MEG_EUSAGE)
        write_config_files(out, &b, &before);
    if (r == 0)
        out->is_not_spm_bpe = b.is_not_spm_bpe;
out:
    for (int64_t id = 0; b.added && id < meg_tokenizer_vocab_size(b.tok); id++)
        meg_str_free(&b.added[id].text);
    free(b.added);
    free(before.v);
    json_decref(b.normalizer);
    json_decref(b.pre_tokenizer);
    json_decref(b.decoder);
    json_decref(b.model);
    meg_tokenizer_close(b.tok);
    return r;
}

void meg_tok_export_free(struct meg_tok_export_files *x)
{
    meg_str_free(&x->tokenizer);
    meg_str_free(&x->config);
    meg_str_free(&x->special_map);
}
