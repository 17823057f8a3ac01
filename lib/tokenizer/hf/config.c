/* config.c - what transformers changes in a tokenizer.json. */
#include "tokenizer/hf/config.h"
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "io/json.h"
#include "tokenizer/internal.h"

/* ---- Files ---- */

static int read_object(json_t **out, const char *path, struct meg_err *e)
{
    struct meg_mmap map = { 0 };
    int r = meg_tok_mmap_file(&map, path, e);

    if (r == 0)
        r = meg_hf_parse_object(out, map.p, map.n, path, e);
    meg_mmap_close(&map);
    return r;
}

/* Return the name of the class in config.json, or NULL. */
static const char *class_of_model(const json_t *model)
{
    const char *class = json_string_value(json_object_get(model, "tokenizer_class"));
    const char *type = json_string_value(json_object_get(model, "model_type"));

    return class ? class : type ? meg_hf_class_of_model(type) : NULL;
}

static int find_class(struct meg_hf_config *h, const char *path, struct meg_err *e)
{
    const char *name = NULL;
    int r = meg_json_get_str(h->config, "tokenizer_class", MEG_JSON_OPTIONAL, &name, path, e);

    if (r < 0)
        return r;
    name = name ? name : class_of_model(h->model);
    if (name && !(h->rules = meg_hf_class_find(name)))
        meg_warn("%s: the rules of tokenizer_class %s are unknown; reading it as PreTrainedTokenizerFast, so that ids "
                 "may differ from those of transformers",
                 path, name);
    if (!h->rules && (h->config || h->special_map || h->added))
        h->rules = meg_hf_class_find("PreTrainedTokenizer");
    return 0;
}

int meg_hf_config_read(struct meg_hf_config *h, const struct meg_tok_conf *c, struct meg_err *e)
{
    const char *slash = strrchr(c->tokenizer_json, '/');
    char *model = meg_tok_path_in_dir(slash ? c->tokenizer_json : ".", slash ? (int)(slash - c->tokenizer_json) : 1,
                                      "config.json");
    int r;

    *h = (struct meg_hf_config){ .differences = json_array(),
                                 .config_path = c->tokenizer_config,
                                 .special_map_path = c->special_tokens_map,
                                 .added_path = c->added_tokens };
    if ((!h->config_path || (r = read_object(&h->config, h->config_path, e)) == 0) &&
        (!h->special_map_path || (r = read_object(&h->special_map, h->special_map_path, e)) == 0) &&
        (!h->added_path || (r = read_object(&h->added, h->added_path, e)) == 0) &&
        (!model || json_object_get(h->config, "tokenizer_class") || (r = read_object(&h->model, model, e)) == 0))
        r = find_class(h, h->config_path ? h->config_path : model ? model : c->tokenizer_json, e);
    free(model);
    return r;
}

int meg_tok_implied_class(char **name, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct meg_hf_config h = { 0 };
    int r = meg_hf_config_read(&h, c, e);
    const char *class = r == 0 ? class_of_model(h.model) : NULL;

    *name = class ? meg_strdup(class) : NULL;
    meg_hf_config_free(&h);
    return r;
}

void meg_hf_config_free(struct meg_hf_config *h)
{
    json_decref(h->config);
    json_decref(h->special_map);
    json_decref(h->added);
    json_decref(h->model);
    json_decref(h->differences);
}

/* ---- Components ---- */

int meg_hf_config_flag(const struct meg_hf_config *h, const char *key, bool *out, struct meg_err *e)
{
    if (json_is_null(json_object_get(h->config, key)))
        *out = false;
    return meg_json_get_bool(h->config, key, MEG_JSON_OPTIONAL, out, h->config_path, e);
}

static bool has_type(const json_t *part, const char *type)
{
    const char *s = json_string_value(json_object_get(part, "type"));

    return s && strcmp(s, type) == 0;
}

/* Replace the members of a BertNormalizer by those of tokenizer_config.json, or by the defaults of the class. */
static bool patch_bert_normalizer(const struct meg_hf_config *h, json_t *normalizer)
{
    static const struct {
        const char *key, *member;
        bool is_null; /* the default is null, not true */
    } members[] = { { "do_lower_case", "lowercase", false },
                    { "strip_accents", "strip_accents", true },
                    { "tokenize_chinese_chars", "handle_chinese_chars", false } };
    bool is_changed = false;

    for (int i = 0; i < h->rules->nnormalizer_members; i++) {
        json_t *value = json_object_get(h->config, members[i].key);

        value = value ? json_incref(value) : members[i].is_null ? json_null() : json_true();
        if (!json_equal(json_object_get(normalizer, members[i].member), value)) {
            is_changed = true;
            meg_hf_config_note(h, "%s of tokenizer_config.json, or its default, replaces %s of the normalizer",
                               members[i].key, members[i].member);
        }
        json_object_set_new(normalizer, members[i].member, value);
    }
    return is_changed;
}

/* Set add_prefix_space of a ByteLevel pre-tokenizer or, if is_nested, of the steps of a Sequence. */
static void set_prefix_space(const struct meg_hf_config *h, json_t *pre, bool value, bool is_nested)
{
    json_t *step;
    size_t i;

    if (has_type(pre, "ByteLevel") && json_is_true(json_object_get(pre, "add_prefix_space")) != value)
        meg_hf_config_note(h, "add_prefix_space of tokenizer_config.json, or its default, replaces the value in "
                              "tokenizer.json");
    if (has_type(pre, "ByteLevel"))
        json_object_set_new(pre, "add_prefix_space", json_boolean(value));
    json_array_foreach(is_nested ? json_object_get(pre, "pretokenizers") : NULL, i, step)
    {
        set_prefix_space(h, step, value, true);
    }
}

static int patch_prefix_space(const struct meg_hf_config *h, json_t *pre, struct meg_err *e)
{
    const bool is_given = json_is_boolean(json_object_get(h->config, "add_prefix_space"));
    bool value = false;
    int r = meg_hf_config_flag(h, "add_prefix_space", &value, e);

    if (r == 0 && (is_given || h->rules->prefix_space != MEG_HF_PREFIX_UNCHANGED))
        set_prefix_space(h, pre, value, value && h->rules->prefix_space == MEG_HF_PREFIX_NESTED);
    return r;
}

/*
 * Replace the normalizer and the pre-tokenizer of a SentencePiece BPE as LlamaConverter of transformers sets them.
 * LlamaTokenizerFast calls LlamaConverter if add_prefix_space is set.
 */
static int patch_legacy_prefix(const struct meg_hf_config *h, json_t *tokenizer, bool *is_changed, struct meg_err *e)
{
    static const char mark[] = "\xE2\x96\x81"; /* U+2581 */
    const json_t *given = json_object_get(h->config, "add_prefix_space");
    bool is_legacy = true, add_prefix_space = false;
    json_t *normalizer = NULL, *pre = NULL, *steps;
    int r;

    if (!h->rules->has_legacy_prefix || !given || json_is_null(given) ||
        !json_is_true(json_object_get(json_object_get(tokenizer, "model"), "byte_fallback")))
        return 0;
    if ((r = meg_hf_config_flag(h, "add_prefix_space", &add_prefix_space, e)) < 0 ||
        (r = meg_json_get_bool(h->config, "legacy", MEG_JSON_OPTIONAL, &is_legacy, h->config_path, e)) < 0)
        return r;
    if (is_legacy) {
        steps = json_array();
        if (add_prefix_space)
            json_array_append_new(steps, json_pack("{s:s,s:s}", "type", "Prepend", "prepend", mark));
        json_array_append_new(
            steps, json_pack("{s:s,s:{s:s},s:s}", "type", "Replace", "pattern", "String", " ", "content", mark));
        normalizer = json_pack("{s:s,s:o}", "type", "Sequence", "normalizers", steps);
    } else {
        pre = json_pack("{s:s,s:s,s:s,s:b}", "type", "Metaspace", "replacement", mark, "prepend_scheme",
                        add_prefix_space ? "first" : "never", "split", 0);
    }
    meg_hf_config_note(h, "add_prefix_space and legacy of tokenizer_config.json replace the normalizer and the "
                          "pre-tokenizer of tokenizer.json");
    json_object_set_new(tokenizer, "normalizer", normalizer ? normalizer : json_null());
    json_object_set_new(tokenizer, "pre_tokenizer", pre ? pre : json_null());
    *is_changed = false; /* added tokens are normalized by the new normalizer */
    return 0;
}

int meg_hf_config_patch(const struct meg_hf_config *h, json_t *tokenizer, bool *is_normalizer_changed,
                        struct meg_err *e)
{
    json_t *normalizer = json_object_get(tokenizer, "normalizer");
    int r;

    *is_normalizer_changed = false;
    if (!h->rules)
        return 0;
    if (has_type(normalizer, "BertNormalizer"))
        *is_normalizer_changed = patch_bert_normalizer(h, normalizer);
    if ((r = patch_prefix_space(h, json_object_get(tokenizer, "pre_tokenizer"), e)) < 0)
        return r;
    return patch_legacy_prefix(h, tokenizer, is_normalizer_changed, e);
}
