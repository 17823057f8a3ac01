/* files.c - read the files of a Hugging Face tokenizer directory. */
#include "tokenizer/hf/files.h"
#include <stdio.h>
#include <stdlib.h>
#include "io/json.h"
#include "tokenizer/hf/config.h"
#include "tokenizer/internal.h"

int meg_hf_parse_object(json_t **out, const void *bytes, size_t n, const char *path, struct meg_err *e)
{
    int r = meg_json_parse_nul(out, bytes, n, path, e);

    if (r == 0 && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        r = meg_fail(e, MEG_EFORMAT, "%s: expected a JSON object", path);
    }
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
    r = cut < 0 ? meg_hf_parse_object(out, map->p, map->n, path, e) : meg_hf_parse_object(out, rest.s, rest.n, path, e);
    if (r == 0 && cut < 0) /* the scan failed, but jansson, whose message would be more precise, found no error */
        r = meg_fail(e, cut, "%s: %s", path, why.msg);
    meg_str_free(&rest);
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

    max_id = f->added.next_id - 1 > max_id ? f->added.next_id - 1 : max_id;
    if (max_id < 0)
        return meg_fail(e, MEG_EFORMAT, "%s: the vocabulary is empty", path);
    f->vocab_size = (int64_t)max_id + 1;
    f->token = meg_new((size_t)f->vocab_size * sizeof *f->token);
    for (int64_t k = 0; k < f->model.vocab.tokens.n; k++)
        f->token[f->model.vocab.id[k]] = meg_strtab_get(&f->model.vocab.tokens, k);
    for (int64_t i = 0; i < f->added.n; i++)
        f->token[f->added.v[i].id] = f->added.v[i].content;
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < around[side]->n; i++) {
            if (around[side]->v[i] > max_id)
                return meg_fail(e, MEG_EFORMAT, "%s: post_processor: id %d is not in the vocabulary (0 to %d)", path,
                                around[side]->v[i], max_id);
        }
    }
    return 0;
}

/* Append the tokens of added_tokens to list. */
static int load_added(struct meg_hf_token_list *list, const json_t *file, const char *path, struct meg_err *e)
{
    const json_t *array = meg_hf_component_of(file, "added_tokens"), *t;
    char where[4200];
    size_t i;
    int r;

    if (array && !json_is_array(array))
        return meg_fail(e, MEG_EFORMAT, "%s: added_tokens must be an array", path);
    json_array_foreach(array, i, t)
    {
        struct meg_hf_token token;
        int32_t id;

        snprintf(where, sizeof where, "%s: added_tokens[%zu]", path, i);
        if (!json_is_object(t))
            return meg_fail(e, MEG_EFORMAT, "%s: expected a JSON object", where);
        if ((r = meg_hf_token_load(&token, t, MEG_HF_IN_TOKENIZER, where, e)) < 0 ||
            (r = meg_hf_get_id(json_object_get(t, "id"), token.s, where, &id, e)) < 0)
            return r;
        token.given_id = id;
        meg_hf_token_list_add(list, &token);
    }
    return 0;
}

/* Load a component of the file, unless it is missing or null. */
static int load_steps(struct meg_hf_steps **out, const struct meg_hf_step_class *type, const json_t *file,
                      const char *name, const char *path, struct meg_err *e)
{
    const json_t *p = meg_hf_component_of(file, name);
    char where[4200];

    snprintf(where, sizeof where, "%s: %s", path, name);
    return p ? meg_hf_steps_load(out, type, p, where, e) : 0;
}

static int load_components(struct meg_hf_files *f, const json_t *file, const char *path, struct meg_err *e)
{
    const json_t *p;
    char where[4200];
    int r;

    if ((r = load_steps(&f->normalizer, &meg_hf_normalizer, file, "normalizer", path, e)) < 0 ||
        (r = load_steps(&f->pretokenizer, &meg_hf_pretokenizer, file, "pre_tokenizer", path, e)) < 0)
        return r;
    snprintf(where, sizeof where, "%s: model", path);
    if ((r = meg_hf_model_load(&f->model, meg_hf_component_of(file, "model"), where, e)) < 0)
        return r;
    snprintf(where, sizeof where, "%s: post_processor", path);
    if ((p = meg_hf_component_of(file, "post_processor")) && (r = meg_hf_load_post_processor(f, p, where, e)) < 0)
        return r;
    return load_steps(&f->decoder, &meg_hf_decoder, file, "decoder", path, e);
}

/* Return a copy of a component without the large member of Precompiled. */
static json_t *describe(const json_t *file, const char *name)
{
    json_t *copy = json_deep_copy(json_object_get(file, name)), *step;
    size_t i;

    json_object_del(copy, "precompiled_charsmap");
    json_array_foreach(json_object_get(copy, "normalizers"), i, step)
    {
        json_object_del(step, "precompiled_charsmap");
    }
    return copy ? copy : json_null();
}

/*
 * Load the components of tokenizer.json, as the class changes them, the added tokens of all files, and the settings of
 * the other files.
 */
static int load_all(struct meg_hf_files *f, json_t *file, const struct meg_hf_config *h, const char *path,
                    struct meg_err *e)
{
    struct meg_hf_steps *original = NULL;
    struct meg_hf_token_list own = { 0 };
    bool is_changed;
    int r;

    if ((r = load_added(&own, file, path, e)) < 0 ||
        (r = load_steps(&original, &meg_hf_normalizer, file, "normalizer", path, e)) < 0 ||
        (r = meg_hf_config_patch(h, file, &is_changed, e)) < 0 || (r = load_components(f, file, path, e)) < 0)
        goto out;
    f->class_name = h->rules ? h->rules->name : NULL;
    f->normalizer_json = describe(file, "normalizer");
    f->pretokenizer_json = describe(file, "pre_tokenizer");
    f->differences = json_incref(h->differences);
    meg_hf_added_add(&f->added, own.v, own.n, &f->model.vocab, path);
    if ((r = meg_hf_config_apply(h, f, &own, file, e)) == 0)
        r = meg_hf_added_build(&f->added, is_changed ? original : f->normalizer, path, e);
out:
    meg_hf_steps_free(original);
    free(own.v);
    return r;
}

int meg_hf_files_load(struct meg_hf_files **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    const char *path = c->tokenizer_json;
    struct meg_hf_files *f = meg_new(sizeof *f);
    struct meg_hf_config config = { 0 };
    struct meg_mmap map = { 0 };
    json_t *file = NULL;
    int r;

    f->special_ids = meg_tok_no_special_ids;
    if ((r = read_tokenizer(&file, &map, &f->model.raw_vocab, path, e)) < 0 ||
        (r = meg_hf_config_read(&config, c, e)) < 0 || (r = load_all(f, file, &config, path, e)) < 0 ||
        (r = index_tokens(f, path, e)) < 0)
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
    meg_hf_config_free(&config);
    json_decref(file);
    meg_mmap_close(&map);
    return r;
}

void meg_hf_files_free(void *files)
{
    struct meg_hf_files *f = files;

    if (!f)
        return;
    meg_hf_steps_free(f->normalizer);
    meg_hf_steps_free(f->pretokenizer);
    meg_hf_model_free(&f->model);
    meg_hf_steps_free(f->decoder);
    meg_bytebpe_free(&f->byte_level);
    free(f->safe_split);
    meg_hf_added_free(&f->added);
    json_decref(f->normalizer_json);
    json_decref(f->pretokenizer_json);
    json_decref(f->differences);
    free(f->template_before.v);
    free(f->template_after.v);
    free(f->token);
    free(f);
}
