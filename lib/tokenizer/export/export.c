/*
 * The order of tokenizer.json: added tokens cut the text; what is left is normalised, pre-tokenised and given
 * to the model; the post-processor puts ids around all of it.  tokenizer/hf/internal.h describes the parts.
 */
#include "tokenizer/export/export.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "tokenizer/export/internal.h"
#include "tokenizer/hf/files.h"

static const struct {
    const struct meg_tok_class *class;
    int (*fill)(struct meg_export_builder *x, struct meg_err *e);
} sources[] = {
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

/* ---- what the sources share ---- */

void meg_export_add_special(struct meg_export_builder *x, int32_t id, const char *s, size_t n)
{
    if (id >= 0 && !x->added[id].text.s)
        meg_str_add(&x->added[id].text, s, n);
}

void meg_export_add_all_special(struct meg_export_builder *x)
{
    const struct meg_tok_special_ids *r = meg_tokenizer_special_ids(x->tok);
    const int32_t role[] = { r->eod, r->bos, r->eos, r->pad, r->cls, r->sep, r->mask };
    struct meg_str text = { 0 };

    for (size_t i = 0; i < sizeof role / sizeof *role; i++) {
        text.n = 0;
        if (role[i] >= 0 && meg_tokenizer_bytes(x->tok, &role[i], 1, &text, NULL) == MEG_OK)
            meg_export_add_special(x, role[i], text.s, text.n);
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

void meg_export_byte_level(struct meg_export_builder *x, enum meg_pretok split)
{
    x->decoder = byte_level(true);
    if (split == MEG_PRETOK_GPT2) {
        x->pre_tokenizer = byte_level(true);
        return;
    }
    x->pre_tokenizer =
        meg_export_component("Sequence", "{s:[o,o]}", "pretokenizers",
                             meg_export_component("Split", "{s:{s:s},s:s,s:b}", "pattern", "Regex",
                                                  meg_pretok_pattern[split], "behavior", "Isolated", "invert", 0),
                             byte_level(false));
}

/* Its own files are taken as they are: only the spelling of its roles is wanted. */
int meg_export_hf(struct meg_export_builder *x, struct meg_err *e)
{
    const struct meg_hf_files *f = meg_hf_files_of(x->tok);
    const struct meg_tok_special_ids *r = meg_tokenizer_special_ids(x->tok);
    const int32_t role[] = { r->eod, r->bos, r->eos, r->pad };

    (void)e;
    for (size_t i = 0; i < sizeof role / sizeof *role; i++)
        if (role[i] >= 0)
            meg_export_add_special(x, role[i], f->token[role[i]].s, f->token[role[i]].n);
    return MEG_OK;
}

/* ---- tokenizer.json ---- */

static json_t *added_token(const struct meg_export_added_token *t)
{
    return json_pack("{s:o,s:b,s:b,s:b,s:b,s:b}", "content", json_stringn_nocheck(t->text.s, t->text.n), "single_word",
                     0, "lstrip", 0, "rstrip", 0, "normalized", t->is_normalized, "special", !t->is_normalized);
}

/* A list of tokens with their ids; as a map: an object of the tokens by id, as tokenizer_config.json has it. */
static json_t *added_tokens(const struct meg_export_builder *x, bool is_map)
{
    json_t *all = is_map ? json_object() : json_array();

    for (int64_t id = 0; id < meg_tokenizer_vocab_size(x->tok); id++) {
        json_t *token = x->added[id].text.s ? added_token(&x->added[id]) : NULL;
        char key[24];

        if (!token)
            continue;
        snprintf(key, sizeof key, "%lld", (long long)id);
        if (is_map) {
            json_object_set_new(all, key, token);
        } else {
            json_object_set_new(token, "id", json_integer(id));
            json_array_append_new(all, token);
        }
    }
    return all;
}

static json_t *text_of(const struct meg_export_builder *x, int32_t id)
{
    return id >= 0 && x->added[id].text.s ? json_stringn_nocheck(x->added[id].text.s, x->added[id].text.n)
                                          : json_null();
}

/* A step of a template: the special token, or where it is NULL the text called sequence. */
static void add_step(json_t *template, json_t *special, const char *sequence, int type)
{
    json_array_append_new(template, special ? json_pack("{s:{s:O,s:i}}", "SpecialToken", "id", special, "type_id", type)
                                            : json_pack("{s:{s:s,s:i}}", "Sequence", "id", sequence, "type_id", type));
}

/* The ids in front of every text, which an empty one shows; NULL where there are none. */
static json_t *post_processor(const struct meg_export_builder *x, const struct meg_ids *before)
{
    json_t *single = json_array(), *pair = json_array(), *tokens = json_object();

    for (int type = 0; type < 2; type++) {
        for (int64_t i = 0; i < before->n; i++) {
            json_t *text = text_of(x, before->v[i]);

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

static void write_tokenizer(struct meg_str *out, struct meg_export_builder *x, const struct meg_ids *before)
{
    json_t *post = before->n > 0 ? post_processor(x, before) : NULL;
    json_t *file = json_pack("{s:s,s:n,s:n,s:o,s:O?,s:O?,s:o?,s:O?,s:O?}", "version", "1.0", "truncation", "padding",
                             "added_tokens", added_tokens(x, false), "normalizer", x->normalizer, "pre_tokenizer",
                             x->pre_tokenizer, "post_processor", post, "decoder", x->decoder, "model", x->model);

    meg_json_dump(file, 0, out);
    meg_str_add(out, "\n", 1);
    json_decref(file);
}

/* ---- the files beside it ---- */

static json_t *roles_of(const struct meg_export_builder *x)
{
    const struct meg_tok_special_ids *r = meg_tokenizer_special_ids(x->tok);
    const struct {
        const char *name;
        int32_t id;
    } role[] = { { "bos_token", r->bos }, { "cls_token", r->cls }, { "eos_token", r->eod }, { "mask_token", r->mask },
                 { "pad_token", r->pad }, { "sep_token", r->sep }, { "unk_token", x->unk } };
    json_t *o = json_object();

    for (size_t i = 0; i < sizeof role / sizeof *role; i++)
        if (role[i].id >= 0 && x->added[role[i].id].text.s)
            json_object_set_new(o, role[i].name, text_of(x, role[i].id));
    return o;
}

/* The tokenizer options as lines of a configuration file; the files they name are found by their names. */
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

static bool has_bos(const struct meg_export_builder *x, const struct meg_ids *before)
{
    for (int64_t i = 0; i < before->n; i++)
        if (before->v[i] == meg_tokenizer_special_ids(x->tok)->bos)
            return true;
    return false;
}

static void write_config_files(struct meg_tok_export_files *out, const struct meg_export_builder *x,
                               const struct meg_ids *before)
{
    json_t *map = roles_of(x), *config = json_deep_copy(map);

    json_object_set_new(config, "add_bos_token", json_boolean(has_bos(x, before)));
    json_object_set_new(config, "add_eos_token", json_false());
    if (x->has_no_prefix)
        json_object_set_new(config, "add_prefix_space", json_false());
    if (x->model)
        json_object_set_new(config, "added_tokens_decoder", added_tokens(x, true));
    json_object_set_new(config, "clean_up_tokenization_spaces", json_false());
    json_object_set_new(config, MEG_TOK_EXPORT_KEY, options_of(x->conf));
    json_object_set_new(config, "tokenizer_class", json_string("PreTrainedTokenizerFast"));
    meg_json_dump(map, 2, &out->map);
    meg_str_add(&out->map, "\n", 1);
    meg_json_dump(config, 2, &out->config);
    meg_str_add(&out->config, "\n", 1);
    json_decref(map);
    json_decref(config);
}

int meg_tok_export(struct meg_tok_export_files *out, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct meg_export_builder x = { .conf = c, .unk = -1 };
    struct meg_ids before = { 0 };
    size_t i = 0;
    int r = meg_tokenizer_open(&x.tok, c, e);

    if (r < 0)
        return r;
    while (i < sizeof sources / sizeof *sources && strcmp(sources[i].class->name, x.tok->class->name) != 0)
        i++;
    if (i == sizeof sources / sizeof *sources) {
        r = meg_fail(e, MEG_EUSAGE, "%s cannot be expressed as a tokenizer.json", x.tok->class->name);
        goto out;
    }
    x.added = meg_new((size_t)meg_tokenizer_vocab_size(x.tok) * sizeof *x.added);
    out->is_own_model = true;
    out->eod = meg_tokenizer_eod(x.tok);
    out->bos = meg_tokenizer_special_ids(x.tok)->bos;
    if ((r = sources[i].fill(&x, e)) == MEG_OK && (r = meg_tokenizer_encode(x.tok, "", 0, &before, e)) == MEG_OK &&
        x.model)
        write_tokenizer(&out->tokenizer, &x, &before);
    if (r == MEG_OK || r == MEG_EUSAGE)
        write_config_files(out, &x, &before);
    if (r == MEG_OK)
        out->is_own_model = x.is_own_model;
out:
    for (int64_t id = 0; x.added && id < meg_tokenizer_vocab_size(x.tok); id++)
        meg_str_free(&x.added[id].text);
    free(x.added);
    free(before.v);
    json_decref(x.normalizer);
    json_decref(x.pre_tokenizer);
    json_decref(x.decoder);
    json_decref(x.model);
    meg_tokenizer_close(x.tok);
    return r;
}

void meg_tok_export_free(struct meg_tok_export_files *x)
{
    meg_str_free(&x->tokenizer);
    meg_str_free(&x->config);
    meg_str_free(&x->map);
}
