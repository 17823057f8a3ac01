#include "tokenizer/hf/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "io/json.h"
#include "tokenizer/internal.h"

static int parse(json_t **out, const void *bytes, size_t n, const char *path, struct meg_err *e)
{
    int r = meg_json_parse_nul(out, bytes, n, path, e);

    if (r == 0 && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        r = meg_fail(e, MEG_EFORMAT, "%s: expected a JSON object", path);
    }
    return r;
}

static int read_json(json_t **out, const char *path, struct meg_err *e)
{
    struct meg_mmap map = { 0 };
    int r = meg_tok_mmap_file(&map, path, e);

    if (r == 0)
        r = parse(out, map.p, map.n, path, e);
    meg_mmap_close(&map);
    return r;
}

/*
 * Map tokenizer.json into memory, and parse it without its vocabulary and merges.  Set *raw to the texts of the
 * vocabulary and the merges, which are in the mapped file (meg_hf_raw_vocab_extract).
 */
static int read_tokenizer(json_t **out, struct meg_mmap *map, struct meg_hf_raw_vocab *raw, const char *path,
                          struct meg_err *e)
{
    struct meg_str rest = { 0 };
    struct meg_err why;
    int r = meg_tok_mmap_file(map, path, e), cut;

    if (r < 0)
        return r;
    cut = meg_hf_raw_vocab_extract(raw, (const char *)map->p, (int64_t)map->n, &rest, &why);
    r = cut < 0 ? parse(out, map->p, map->n, path, e) : parse(out, rest.s, rest.n, path, e);
    if (r == 0 && cut < 0) /* the scan failed, but jansson, whose message would be more precise, found no error */
        r = meg_fail(e, cut, "%s: %s", path, why.msg);
    meg_str_free(&rest);
    return r;
}

/* ---- tokenizer_config.json and special_tokens_map.json ---- */

/*
 * Return the id of the special token that the member `role` (such as "bos_token") of config names, or -1.  The member
 * is a string or an object with the string "content".
 */
static int32_t special_id_of(const struct meg_hf_files *f, const json_t *config, const char *role)
{
    const json_t *v = json_object_get(config, role);
    const char *s = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    const struct meg_hf_added_token *a = s ? meg_hf_find_added(f, s, strlen(s)) : NULL;

    return !s ? -1 : a ? a->id : meg_hf_vocab_find(&f->model.vocab, s, (int64_t)strlen(s));
}

static void set_special_ids(struct meg_hf_files *f, const json_t *config)
{
    const struct {
        const char *name;
        int32_t *id;
    } role[] = { { "bos_token", &f->special_ids.bos }, { "eos_token", &f->special_ids.eos },
                 { "pad_token", &f->special_ids.pad }, { "cls_token", &f->special_ids.cls },
                 { "sep_token", &f->special_ids.sep }, { "mask_token", &f->special_ids.mask } };

    for (size_t i = 0; i < sizeof role / sizeof *role; i++)
        *role[i].id = *role[i].id >= 0 ? *role[i].id : special_id_of(f, config, role[i].name);
    f->special_ids.eod = f->special_ids.eos;
}

/*
 * Replace the template by the tokens that add_bos_token and add_eos_token request, if the tokenizer_class of
 * tokenizer_config.json is a transformers class that ignores the post-processor of tokenizer.json.  Return MEG_EFORMAT
 * if a requested token has no id.
 */
static int apply_config_template(struct meg_hf_files *f, const json_t *config, const char *path, struct meg_err *e)
{
    static const char *const own[] = { "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer" };
    bool add_bos = true, add_eos = false, is_own = false;
    const char *class = NULL;
    int r;

    if ((r = meg_json_get_str(config, "tokenizer_class", MEG_JSON_OPTIONAL, &class, path, e)) < 0 ||
        (r = meg_json_get_bool(config, "add_bos_token", MEG_JSON_OPTIONAL, &add_bos, path, e)) < 0 ||
        (r = meg_json_get_bool(config, "add_eos_token", MEG_JSON_OPTIONAL, &add_eos, path, e)) < 0)
        return r;
    for (size_t i = 0; class && i < sizeof own / sizeof *own; i++)
        is_own |= strncmp(class, own[i], strlen(own[i])) == 0;
    if (!is_own)
        return 0;
    if (add_bos && f->special_ids.bos < 0)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: add_bos_token is true (the default), but bos_token is missing or is not in the "
                        "vocabulary; add bos_token, or set add_bos_token to false",
                        path);
    if (add_eos && f->special_ids.eos < 0)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: add_eos_token is true, but eos_token is missing or is not in the vocabulary; add "
                        "eos_token, or set add_eos_token to false",
                        path);
    f->template_before.n = f->template_after.n = 0;
    meg_hf_add_template_ids(f, true, &f->special_ids.bos, add_bos);
    meg_hf_add_template_ids(f, false, &f->special_ids.eos, add_eos);
    return 0;
}

static int load_config_files(struct meg_hf_files *f, const struct meg_tok_conf *c, struct meg_err *e)
{
    json_t *config = NULL, *map = NULL;
    int r = 0;

    if ((c->tokenizer_config && (r = read_json(&config, c->tokenizer_config, e)) < 0) ||
        (c->special_tokens_map && (r = read_json(&map, c->special_tokens_map, e)) < 0))
        goto out;
    if (config && (r = meg_hf_load_added_decoder(f, config, c->tokenizer_config, e)) < 0)
        goto out;
    set_special_ids(f, config);
    set_special_ids(f, map);
    if (config && ((r = apply_config_template(f, config, c->tokenizer_config, e)) < 0 ||
                   (r = meg_json_get_bool(config, "clean_up_tokenization_spaces", MEG_JSON_OPTIONAL, &f->clean_up,
                                          c->tokenizer_config, e)) < 0))
        goto out;
out:
    json_decref(config);
    json_decref(map);
    return r;
}

/* ---- All files ---- */

/*
 * Set vocab_size and the table of tokens by id.  Return MEG_EFORMAT if there are no tokens, or if the post-processor
 * adds an id that is larger than all ids of tokens.
 */
static int index_tokens(struct meg_hf_files *f, const char *path, struct meg_err *e)
{
    int32_t max_id = f->model.vocab.max_id;
    const struct meg_ids *around[] = { &f->template_before, &f->template_after };

    for (int64_t i = 0; i < f->nadded; i++)
        max_id = f->added[i].id > max_id ? f->added[i].id : max_id;
    if (max_id < 0)
        return meg_fail(e, MEG_EFORMAT, "%s: the vocabulary is empty", path);
    f->vocab_size = (int64_t)max_id + 1;
    f->token = meg_new((size_t)f->vocab_size * sizeof *f->token);
    for (int64_t k = 0; k < f->model.vocab.tokens.n; k++)
        f->token[f->model.vocab.id[k]] = meg_strtab_get(&f->model.vocab.tokens, k);
    for (int64_t i = 0; i < f->nadded; i++)
        f->token[f->added[i].id] = f->added[i].content;
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < around[side]->n; i++) {
            if (around[side]->v[i] > max_id)
                return meg_fail(e, MEG_EFORMAT, "%s: post_processor: id %d is not in the vocabulary (0 to %d)", path,
                                around[side]->v[i], max_id);
        }
    }
    return 0;
}

static int load_components(struct meg_hf_files *f, const json_t *file, const char *path, struct meg_err *e)
{
    const json_t *p;
    char where[4200];
    int r;

    snprintf(where, sizeof where, "%s: normalizer", path);
    if ((p = meg_hf_component_of(file, "normalizer")) && (r = meg_hf_normalizer_load(&f->normalizer, p, where, e)) < 0)
        return r;
    snprintf(where, sizeof where, "%s: pre_tokenizer", path);
    if ((p = meg_hf_component_of(file, "pre_tokenizer")) &&
        (r = meg_hf_pretokenizer_load(&f->pretokenizer, p, where, e)) < 0)
        return r;
    snprintf(where, sizeof where, "%s: model", path);
    if ((r = meg_hf_model_load(&f->model, meg_hf_component_of(file, "model"), where, e)) < 0)
        return r;
    if ((r = meg_hf_load_added(f, file, path, e)) < 0)
        return r;
    snprintf(where, sizeof where, "%s: post_processor", path);
    if ((p = meg_hf_component_of(file, "post_processor")) && (r = meg_hf_load_post_processor(f, p, where, e)) < 0)
        return r;
    snprintf(where, sizeof where, "%s: decoder", path);
    return (p = meg_hf_component_of(file, "decoder")) ? meg_hf_decoder_load(&f->decoder, p, where, e) : 0;
}

int meg_hf_files_load(struct meg_hf_files **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    const char *path = c->tokenizer_json;
    struct meg_hf_files *f = meg_new(sizeof *f);
    struct meg_mmap map = { 0 };
    json_t *file = NULL;
    int r;

    f->special_ids = meg_tok_no_special_ids;
    f->max_added = -1;
    if ((r = read_tokenizer(&file, &map, &f->model.raw_vocab, path, e)) < 0 ||
        (r = load_components(f, file, path, e)) < 0 || (r = load_config_files(f, c, e)) < 0 ||
        (r = index_tokens(f, path, e)) < 0 || (r = meg_hf_build_matcher(f, false, &f->raw_matcher, path, e)) < 0 ||
        (r = meg_hf_build_matcher(f, true, &f->normalized_matcher, path, e)) < 0)
        goto out;
    f->is_byte_level =
        meg_hf_pretokenizer_is_byte_level(f->pretokenizer, &f->byte_level.pretok, &f->add_prefix_space) &&
        meg_hf_bpe_to_byte_level(&f->model, &f->byte_level);
    if ((r = meg_hf_safe_split_build(f, e)) < 0)
        goto out;
    *out = f;
    f = NULL;
out:
    meg_hf_files_free(f);
    json_decref(file);
    meg_mmap_close(&map);
    return r;
}

void meg_hf_files_free(struct meg_hf_files *f)
{
    if (!f)
        return;
    meg_hf_normalizer_free(f->normalizer);
    meg_hf_pretokenizer_free(f->pretokenizer);
    meg_hf_model_free(&f->model);
    meg_hf_decoder_free(f->decoder);
    meg_bytebpe_free(&f->byte_level);
    free(f->safe_split);
    for (int64_t i = 0; i < f->nadded; i++)
        meg_str_free(&f->added[i].content);
    free(f->added);
    meg_strtab_free(&f->contents);
    meg_trie_free(&f->raw_matcher.trie);
    meg_trie_free(&f->normalized_matcher.trie);
    free(f->template_before.v);
    free(f->template_after.v);
    free(f->token);
    free(f);
}
