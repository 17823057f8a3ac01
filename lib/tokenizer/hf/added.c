/* added.c - the added tokens of a tokenizer, and the matchers that find them in text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "io/json.h"
#include "tokenizer/hf/files.h"

struct meg_hf_added_token *meg_hf_find_added(const struct meg_hf_files *f, const char *s, size_t n)
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
    if (n == 0 || meg_hf_find_added(f, s, n))
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

int meg_hf_load_added(struct meg_hf_files *f, const json_t *file, const char *path, struct meg_err *e)
{
    const json_t *list = meg_hf_component_of(file, "added_tokens"), *t;
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

int meg_hf_load_added_decoder(struct meg_hf_files *f, const json_t *config, const char *path, struct meg_err *e)
{
    json_t *map = (json_t *)(uintptr_t)meg_hf_component_of(config, "added_tokens_decoder"), *t;
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

int meg_hf_build_matcher(struct meg_hf_files *f, bool is_normalized, struct meg_hf_added_matcher *to, const char *path,
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
