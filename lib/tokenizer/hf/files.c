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

/* Return the member `name` of file, or NULL if it is missing or null. */
static const json_t *component_of(const json_t *file, const char *name)
{
    const json_t *p = json_object_get(file, name);

    return json_is_null(p) ? NULL : p;
}

/* ---- Added tokens ---- */

static struct meg_hf_added_token *find_added(const struct meg_hf_files *f, const char *s, size_t n)
{
    int64_t k = meg_strtab_find(&f->contents, s, (int64_t)n);

    return k < 0 ? NULL : &f->added[k];
}

/*
 * Return the id of an added token.  Hugging Face's tokenizers library ignores the id in the file: it uses the token's
 * id in the vocabulary, or else the larger of max_added + 1 and the number of vocabulary tokens.
 */
static int32_t id_of(const struct meg_hf_files *f, const char *s, size_t n)
{
    int32_t id = meg_hf_vocab_find(&f->model.vocab, s, (int64_t)n);

    return id >= 0 ? id : f->max_added >= f->model.vocab.tokens.n ? f->max_added + 1 : (int32_t)f->model.vocab.tokens.n;
}

static int add_one(struct meg_hf_files *f, const json_t *t, const json_t *id, const char *where, struct meg_err *e)
{
    struct meg_hf_added_token a = { .normalized = true };
    bool special = false;
    int32_t given;
    const char *s;
    size_t n;
    int r;

    if (!json_is_object(t))
        return meg_fail(e, MEG_EFORMAT, "%s: expected a JSON object", where);
    if ((r = meg_json_get_str(t, "content", MEG_JSON_REQUIRED, &s, where, e)) < 0 ||
        (r = meg_hf_get_id(id, s, where, &given, e)) < 0 ||
        (r = meg_json_get_bool(t, "special", MEG_JSON_OPTIONAL, &special, where, e)) < 0)
        return r;
    a.normalized = !special;
    if ((r = meg_json_get_bool(t, "normalized", MEG_JSON_OPTIONAL, &a.normalized, where, e)) < 0 ||
        (r = meg_json_get_bool(t, "single_word", MEG_JSON_OPTIONAL, &a.single_word, where, e)) < 0 ||
        (r = meg_json_get_bool(t, "lstrip", MEG_JSON_OPTIONAL, &a.lstrip, where, e)) < 0 ||
        (r = meg_json_get_bool(t, "rstrip", MEG_JSON_OPTIONAL, &a.rstrip, where, e)) < 0)
        return r;
    n = json_string_length(json_object_get(t, "content"));
    if (n == 0 || find_added(f, s, n))
        return 0;
    a.id = id_of(f, s, n);
    f->max_added = a.id > f->max_added ? a.id : f->max_added;
    if (a.id != given && !f->is_renumbered)
        meg_warn("%s: '%s' gets id %d instead of %d, because the Hugging Face tokenizers library numbers added tokens "
                 "consecutively",
                 where, s, a.id, given);
    f->is_renumbered |= a.id != given;
    meg_str_add(&a.content, s, n);
    meg_strtab_add(&f->contents, s, (int64_t)n);
    if ((f->nadded & (f->nadded - 1)) == 0) /* grow the array if nadded is 0 or a power of two */
        f->added = meg_realloc_array(f->added, (size_t)f->nadded * 2 + 1, sizeof *f->added);
    f->added[f->nadded++] = a;
    return 0;
}

static int load_added(struct meg_hf_files *f, const json_t *file, const char *path, struct meg_err *e)
{
    const json_t *list = component_of(file, "added_tokens"), *t;
    char where[4200];
    size_t i;
    int r;

    if (list && !json_is_array(list))
        return meg_fail(e, MEG_EFORMAT, "%s: added_tokens must be an array", path);
    json_array_foreach(list, i, t)
    {
        snprintf(where, sizeof where, "%s: added_tokens[%zu]", path, i);
        if ((r = add_one(f, t, json_object_get(t, "id"), where, e)) < 0)
            return r;
    }
    return 0;
}

struct numbered {
    const char *key;
    long long id;
};

static int compare_ids(const void *a, const void *b)
{
    const struct numbered *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

/* Add the tokens of "added_tokens_decoder" in tokenizer_config.json, {"id": token, ...}, in the order of their ids. */
static int load_more_added(struct meg_hf_files *f, const json_t *config, const char *path, struct meg_err *e)
{
    json_t *map = (json_t *)(uintptr_t)component_of(config, "added_tokens_decoder"), *t;
    struct numbered *token = meg_realloc_array(NULL, json_object_size(map) + 1, sizeof *token);
    const char *key;
    char where[4200];
    size_t n = 0;
    int r = 0;

    json_object_foreach(map, key, t)
    {
        char *end;

        token[n++] = (struct numbered){ key, strtoll(key, &end, 10) };
        if ((*end || !*key) && r == 0)
            r = meg_fail(e, MEG_EFORMAT, "%s: added_tokens_decoder: key \"%s\" is not an id", path, key);
    }
    qsort(token, n, sizeof *token, compare_ids);
    for (size_t i = 0; i < n && r == 0; i++) {
        json_t *id = json_integer(token[i].id);

        snprintf(where, sizeof where, "%s: added_tokens_decoder, \"%s\"", path, token[i].key);
        r = add_one(f, json_object_get(map, token[i].key), id, where, e);
        json_decref(id);
    }
    free(token);
    return r;
}

/* Build the matcher of the added tokens whose field `normalized` equals is_normalized. */
static int build_matcher(struct meg_hf_files *f, bool is_normalized, struct meg_hf_added_matcher *to, const char *path,
                         struct meg_err *e)
{
    struct meg_trie_key *key = meg_realloc_array(NULL, (size_t)f->nadded + 1, sizeof *key);
    struct meg_strtab text = { 0 };
    struct meg_str normalized = { 0 };
    int32_t *nth = meg_realloc_array(NULL, (size_t)f->nadded + 1, sizeof *nth);
    struct meg_err inner;
    int r = 0;

    for (int64_t i = 0; i < f->nadded && r == 0; i++) {
        const struct meg_hf_added_token *a = &f->added[i];
        int64_t was = text.n;

        if (a->normalized != is_normalized)
            continue;
        normalized.n = 0;
        if (is_normalized && f->normalizer)
            r = meg_hf_normalizer_run(f->normalizer, a->content.s, (int64_t)a->content.n, true, MEG_HF_MAX_UNSPLIT,
                                      &normalized, e);
        else
            meg_str_add(&normalized, a->content.s, a->content.n);
        if (r == 0 && normalized.n == 0)
            r = meg_fail(e, MEG_EFORMAT, "%s: added_tokens: '%.*s' is empty after normalization", path,
                         (int)a->content.n, a->content.s);
        if (normalized.n > 0 && meg_strtab_add(&text, normalized.s, (int64_t)normalized.n) == was)
            nth[was] = (int32_t)i; /* of added tokens with equal text, the first one is used */
    }
    for (int64_t k = 0; k < text.n; k++) {
        struct meg_str s = meg_strtab_get(&text, k);

        key[k] = (struct meg_trie_key){ s.s, (int64_t)s.n, nth[k] };
        to->first_byte = (unsigned char)s.s[0];
        to->nfirst_bytes += !to->is_first_byte[to->first_byte];
        to->is_first_byte[to->first_byte] = true;
    }
    if (r == 0 && (r = meg_trie_build(&to->trie, key, text.n, &inner)) < 0)
        r = meg_fail(e, r, "%s: added_tokens: %s", path, inner.msg);
    free(key);
    free(nth);
    meg_str_free(&normalized);
    meg_strtab_free(&text);
    return r;
}

/* ---- Post-processor ---- */

/* If is_before, prepend ids to template_before; otherwise append ids to template_after. */
static void add_template_ids(struct meg_hf_files *f, bool is_before, const int32_t *ids, int64_t n)
{
    struct meg_ids *to = is_before ? &f->template_before : &f->template_after;

    if (n == 0)
        return;
    meg_ids_reserve(to, n);
    if (is_before)
        memmove(to->v + n, to->v, (size_t)to->n * sizeof *ids);
    memcpy(is_before ? to->v : to->v + to->n, ids, (size_t)n * sizeof *ids);
    to->n += n;
}

static int add_special_ids(const json_t *post, const char *name, struct meg_ids *ids, const char *where,
                           struct meg_err *e)
{
    const json_t *list = json_object_get(json_object_get(json_object_get(post, "special_tokens"), name), "ids");
    size_t i;
    const json_t *id;
    int r;

    if (!json_is_array(list))
        return meg_fail(e, MEG_EFORMAT, "%s: special_tokens has no array of ids for '%s'", where, name);
    json_array_foreach(list, i, id)
    {
        meg_ids_reserve(ids, 1);
        if ((r = meg_hf_get_id(id, name, where, &ids->v[ids->n], e)) < 0)
            return r;
        ids->n++;
    }
    return 0;
}

static int load_template(struct meg_hf_files *f, const json_t *post, const char *where, struct meg_err *e)
{
    struct meg_ids side[2] = { { 0 }, { 0 } };
    bool is_after = false;
    size_t i;
    const json_t *item;
    json_t *single;
    int r = meg_json_get_array(post, "single", MEG_JSON_REQUIRED, &single, where, e);

    if (r < 0)
        return r;
    json_array_foreach(single, i, item)
    {
        const char *name = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));

        if (name)
            r = add_special_ids(post, name, &side[is_after], where, e);
        else if (!json_object_get(item, "Sequence"))
            r = meg_fail(e, MEG_EFORMAT, "%s: single[%zu] is neither a SpecialToken nor a Sequence", where, i);
        else if (is_after)
            r = meg_fail(e, MEG_EFORMAT, "%s: single[%zu] is a second Sequence; expected only one", where, i);
        else
            is_after = true;
        if (r < 0)
            break;
    }
    if (r == 0 && !is_after)
        r = meg_fail(e, MEG_EFORMAT, "%s: \"single\" has no Sequence", where);
    if (r == 0) {
        add_template_ids(f, true, side[0].v, side[0].n);
        add_template_ids(f, false, side[1].v, side[1].n);
    }
    free(side[0].v);
    free(side[1].v);
    return r;
}

/*
 * Load BertProcessing or RobertaProcessing, which add the token cls before the text and the token sep after it.  The
 * members "cls" and "sep" are arrays [token, id].
 */
static int load_cls_sep(struct meg_hf_files *f, const json_t *post, const char *where, struct meg_err *e)
{
    for (int side = 0; side < 2; side++) {
        const char *key = side ? "sep" : "cls";
        int32_t id;
        int r = meg_hf_get_id(json_array_get(json_object_get(post, key), 1), key, where, &id, e);

        if (r < 0)
            return r;
        add_template_ids(f, side == 0, &id, 1);
    }
    return 0;
}

/*
 * Load a post-processor or a Sequence of post-processors, nested up to `depth` levels deep.  Reject a post-processor
 * that adds tokens and follows a TemplateProcessing: the template produces several sequences, and each sequence would
 * get these tokens.
 */
static int load_post_processor(struct meg_hf_files *f, const json_t *post, int depth, bool *has_template,
                               const char *where, struct meg_err *e)
{
    const char *type;
    size_t i;
    const json_t *item;
    json_t *list;
    bool is_template, is_cls_sep;
    int r = meg_hf_get_type(post, &type, where, e);

    if (r < 0)
        return r;
    is_template = strcmp(type, "TemplateProcessing") == 0;
    is_cls_sep = strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0;
    if ((is_template || is_cls_sep) && *has_template)
        return meg_fail(e, MEG_EFORMAT, "%s: a %s after a TemplateProcessing is not supported", where, type);
    *has_template |= is_template;
    if (is_template)
        return load_template(f, post, where, e);
    if (is_cls_sep)
        return load_cls_sep(f, post, where, e);
    if (strcmp(type, "ByteLevel") == 0)
        return 0;
    if (strcmp(type, "Sequence") != 0 || depth == 0)
        return meg_hf_unknown_type(type, where, e);
    if ((r = meg_json_get_array(post, "processors", MEG_JSON_REQUIRED, &list, where, e)) < 0)
        return r;
    json_array_foreach(list, i, item)
    {
        if ((r = load_post_processor(f, item, depth - 1, has_template, where, e)) < 0)
            return r;
    }
    return 0;
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
    const struct meg_hf_added_token *a = s ? find_added(f, s, strlen(s)) : NULL;

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
    add_template_ids(f, true, &f->special_ids.bos, add_bos);
    add_template_ids(f, false, &f->special_ids.eos, add_eos);
    return 0;
}

static int load_config_files(struct meg_hf_files *f, const struct meg_tok_conf *c, struct meg_err *e)
{
    json_t *config = NULL, *map = NULL;
    int r = 0;

    if ((c->tokenizer_config && (r = read_json(&config, c->tokenizer_config, e)) < 0) ||
        (c->special_tokens_map && (r = read_json(&map, c->special_tokens_map, e)) < 0))
        goto out;
    if (config && (r = load_more_added(f, config, c->tokenizer_config, e)) < 0)
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
    bool has_template = false;
    char where[4200];
    int r;

    snprintf(where, sizeof where, "%s: normalizer", path);
    if ((p = component_of(file, "normalizer")) && (r = meg_hf_normalizer_load(&f->normalizer, p, where, e)) < 0)
        return r;
    snprintf(where, sizeof where, "%s: pre_tokenizer", path);
    if ((p = component_of(file, "pre_tokenizer")) && (r = meg_hf_pretokenizer_load(&f->pretokenizer, p, where, e)) < 0)
        return r;
    snprintf(where, sizeof where, "%s: model", path);
    if ((r = meg_hf_model_load(&f->model, component_of(file, "model"), where, e)) < 0)
        return r;
    if ((r = load_added(f, file, path, e)) < 0)
        return r;
    snprintf(where, sizeof where, "%s: post_processor", path);
    if ((p = component_of(file, "post_processor")) && (r = load_post_processor(f, p, 8, &has_template, where, e)) < 0)
        return r;
    snprintf(where, sizeof where, "%s: decoder", path);
    return (p = component_of(file, "decoder")) ? meg_hf_decoder_load(&f->decoder, p, where, e) : 0;
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
        (r = index_tokens(f, path, e)) < 0 || (r = build_matcher(f, false, &f->raw_matcher, path, e)) < 0 ||
        (r = build_matcher(f, true, &f->normalized_matcher, path, e)) < 0)
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
