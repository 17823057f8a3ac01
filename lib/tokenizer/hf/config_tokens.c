/* config_tokens.c - the tokens that a tokenizer class and the files beside tokenizer.json add. */
#define _GNU_SOURCE /* declare memmem */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "io/json.h"
#include "tokenizer/hf/config.h"
#include "tokenizer/internal.h"

/* ---- Tokens ---- */

enum { MAX_GENERATED = 10000 };

/* The tokens that the files and the class name. */
struct tokens {
    struct meg_hf_token_list decoder;           /* added_tokens_decoder, in the order of ids */
    struct meg_hf_token role[MEG_HF_NUM_ROLES]; /* s is NULL: no token */
    struct meg_hf_token_list additional;        /* additional_special_tokens */
    struct meg_hf_token_list extra;             /* extra_special_tokens */
    bool is_legacy;                             /* tokenizer_config.json has no added_tokens_decoder */
    struct meg_str names;                       /* generated names of tokens */
};

static struct meg_hf_token token_of(const char *s, unsigned named_in)
{
    return (struct meg_hf_token){ .s = s, .n = strlen(s), .given_id = -1, .named_in = named_in };
}

static int compare_ids(const void *a, const void *b)
{
    const struct meg_hf_token *x = a, *y = b;

    if (x->given_id != y->given_id)
        return x->given_id > y->given_id ? 1 : -1;
    return (x->named_in > y->named_in) - (x->named_in < y->named_in);
}

/*
 * Sort the tokens by id.  Of tokens with the same id, keep only the last one in the order of the files, in which
 * tokenizer.json follows added_tokens.json.
 */
static void sort_decoder(struct meg_hf_token_list *list)
{
    int64_t n = 0;

    if (list->n > 0)
        qsort(list->v, (size_t)list->n, sizeof *list->v, compare_ids);
    for (int64_t i = 0; i < list->n; i++) {
        if (n > 0 && list->v[n - 1].given_id == list->v[i].given_id) {
            if (list->v[n - 1].named_in == MEG_HF_IN_TOKENIZER)
                continue;
            n--;
        }
        list->v[n++] = list->v[i];
    }
    list->n = n;
}

/* Read added_tokens_decoder of tokenizer_config.json, {"id": token, ...}. */
static int load_decoder(const struct meg_hf_config *h, struct tokens *t, struct meg_err *e)
{
    json_t *map, *value;
    const char *key;
    char where[4200];
    int r = meg_json_get_object(h->config, "added_tokens_decoder", MEG_JSON_REQUIRED, &map, h->config_path, e);

    if (r < 0)
        return r;
    json_object_foreach(map, key, value)
    {
        struct meg_hf_token token;
        char *end;
        int32_t id;
        json_t *number = json_integer(strtoll(key, &end, 10));

        snprintf(where, sizeof where, "%s: added_tokens_decoder, \"%s\"", h->config_path, key);
        if (*end || !*key)
            r = meg_fail(e, MEG_EFORMAT, "%s: added_tokens_decoder: key \"%s\" is not an id", h->config_path, key);
        else if ((r = meg_hf_token_load(&token, value, MEG_HF_IN_CONFIG, where, e)) == 0)
            r = meg_hf_get_id(number, token.s, where, &id, e);
        json_decref(number);
        if (r < 0)
            return r;
        token.given_id = id;
        token.is_object = true;
        meg_hf_token_list_add(&t->decoder, &token);
    }
    return 0;
}

static bool is_named(const struct meg_hf_token *t, const char *s, size_t n)
{
    const bool is_in_file = t->named_in == MEG_HF_IN_SPECIAL_MAP || (t->named_in == MEG_HF_IN_CONFIG && !t->is_object);

    return t->s && is_in_file && t->n == n && memcmp(t->s, s, n) == 0;
}

/*
 * Return whether s [n] is the content of a special token in special_tokens_map.json, or a special token in
 * tokenizer_config.json that is a string: transformers does not compare the objects there.
 */
static bool is_named_special(const struct tokens *t, const char *s, size_t n)
{
    bool is_found = false;

    for (int i = 0; i < MEG_HF_NUM_ROLES; i++)
        is_found |= is_named(&t->role[i], s, n);
    for (int64_t i = 0; i < t->additional.n; i++)
        is_found |= is_named(&t->additional.v[i], s, n);
    return is_found;
}

/* Read added_tokens.json, {"content": id, ...}. */
static int load_added_file(const struct meg_hf_config *h, struct tokens *t, struct meg_err *e)
{
    const char *key;
    size_t n;
    json_t *value;
    int r = 0;

    json_object_keylen_foreach(h->added, key, n, value)
    {
        struct meg_hf_token token = { .s = key, .n = n, .is_object = true, .named_in = MEG_HF_IN_ADDED };
        int32_t id;

        if ((r = meg_hf_get_id(value, key, h->added_path, &id, e)) < 0)
            return r;
        token.given_id = id;
        token.flags.special = is_named_special(t, key, n);
        token.flags.normalized = !token.flags.special;
        token.has_normalized = true;
        meg_hf_token_list_add(&t->decoder, &token);
    }
    return 0;
}

/* ---- Special tokens ---- */

static int load_special(struct meg_hf_token *t, const json_t *value, const char *key, bool is_map, const char *path,
                        struct meg_err *e)
{
    char where[4200];
    int r;

    snprintf(where, sizeof where, "%s: %s", path, key);
    *t = (struct meg_hf_token){ .given_id = -1 };
    if (json_is_null(value))
        return 0;
    r = meg_hf_token_load(t, value, is_map ? MEG_HF_IN_SPECIAL_MAP : MEG_HF_IN_CONFIG, where, e);
    t->flags.special |= is_map && t->is_object;
    return r;
}

/*
 * Set t->role[i] to the token in special_tokens_map.json, tokenizer_config.json or the class.  Without a token for
 * padding, use that of "padding" in tokenizer.json.
 */
static int load_role(const struct meg_hf_config *h, struct tokens *t, int i, const json_t *tokenizer, struct meg_err *e)
{
    const char *key = meg_hf_role_names[i], *other = h->rules->role[i];
    const json_t *in_map = t->is_legacy ? json_object_get(h->special_map, key) : NULL;
    const json_t *in_config = json_object_get(h->config, key);
    unsigned named_in = MEG_HF_IN_CLASS;

    meg_hf_config_note_role(h, key, t->is_legacy);
    if (in_map)
        return load_special(&t->role[i], in_map, key, true, h->special_map_path, e);
    if (in_config)
        return load_special(&t->role[i], in_config, key, false, h->config_path, e);
    if (!other && i == MEG_HF_PAD) {
        other = json_string_value(json_object_get(json_object_get(tokenizer, "padding"), "pad_token"));
        named_in = MEG_HF_IN_TOKENIZER;
    }
    if (other)
        t->role[i] = token_of(other, named_in);
    return 0;
}

/* Append the items of an array that are not in the list; from tokenizer_config.json, append all items. */
static int load_list(const json_t *array, struct meg_hf_token_list *list, const char *key, bool is_map,
                     const char *path, struct meg_err *e)
{
    const json_t *item;
    size_t i;
    int r;

    json_array_foreach(array, i, item)
    {
        struct meg_hf_token token;
        bool is_known = false;

        if ((r = load_special(&token, item, key, is_map, path, e)) < 0)
            return r;
        for (int64_t k = 0; is_map && k < list->n && token.s; k++)
            is_known |= meg_hf_token_equals(&list->v[k], &token);
        if (token.s && !is_known)
            meg_hf_token_list_add(list, &token);
    }
    return 0;
}

/* Append a token that the class generates. */
static void add_generated(struct tokens *t, const char *format, int i)
{
    struct meg_hf_token token = token_of("", MEG_HF_IN_CLASS);
    char name[64];

    /* the names are stored one after the other; meg_hf_token.s is set when all are known */
    token.n = (size_t)snprintf(name, sizeof name, format, i);
    meg_str_add(&t->names, name, token.n + 1);
    token.s = NULL;
    meg_hf_token_list_add(&t->additional, &token);
}

static void set_generated_names(struct tokens *t)
{
    const char *s = t->names.s;

    for (int64_t i = 0; i < t->additional.n; i++) {
        if (t->additional.v[i].s)
            continue;
        t->additional.v[i].s = s;
        s += t->additional.v[i].n + 1;
    }
}

static int add_code_llama(const struct meg_hf_config *h, struct tokens *t, struct meg_err *e)
{
    static const struct {
        const char *key, *name;
    } infill[] = { { "prefix_token", "\xE2\x96\x81<PRE>" },
                   { "middle_token", "\xE2\x96\x81<MID>" },
                   { "suffix_token", "\xE2\x96\x81<SUF>" },
                   { "eot_token", "\xE2\x96\x81<EOT>" } };

    for (size_t i = 0; i < sizeof infill / sizeof *infill; i++) {
        const json_t *value = json_object_get(h->config, infill[i].key);
        struct meg_hf_token token = token_of(infill[i].name, MEG_HF_IN_CLASS);
        int r = value ? load_special(&token, value, infill[i].key, false, h->config_path, e) : 0;

        if (r < 0)
            return r;
        if (token.s)
            meg_hf_token_list_add(&t->additional, &token);
    }
    return 0;
}

/* Append the special tokens that the class generates. */
static int add_more(const struct meg_hf_config *h, struct tokens *t, struct meg_err *e)
{
    int64_t extra_ids = 100;
    int r = 0;

    switch (h->rules->more) {
    case MEG_HF_MORE_NONE: break;
    case MEG_HF_MORE_CODE_LLAMA: r = add_code_llama(h, t, e); break;
    case MEG_HF_MORE_T5:
        for (int64_t i = 0; i < t->additional.n; i++) {
            if (memmem(t->additional.v[i].s, t->additional.v[i].n, "<extra_id_", strlen("<extra_id_")))
                return 0;
        }
        r = meg_json_get_i64(h->config, "extra_ids", MEG_JSON_OPTIONAL, &extra_ids, h->config_path, e);
        for (int i = 0; r == 0 && i < extra_ids && i < MAX_GENERATED; i++)
            add_generated(t, "<extra_id_%d>", i);
        break;
    case MEG_HF_MORE_XGLM:
        for (int i = 0; i < 7; i++)
            add_generated(t, "<madeupword%d>", i);
        break;
    }
    set_generated_names(t);
    return r;
}

static int load_additional(const struct meg_hf_config *h, struct tokens *t, struct meg_err *e)
{
    static const char key[] = "additional_special_tokens";
    const json_t *in_config = json_object_get(h->config, key),
                 *extra = json_object_get(h->config, "extra_special_tokens"),
                 *in_map = t->is_legacy ? json_object_get(h->special_map, key) : NULL, *value;
    const char *name;
    struct meg_hf_token token;
    int r;

    if ((r = load_list(in_config, &t->additional, key, false, h->config_path, e)) < 0 ||
        (r = load_list(in_map, &t->additional, key, true, h->special_map_path, e)) < 0 ||
        (r = load_list(extra, &t->extra, "extra_special_tokens", false, h->config_path, e)) < 0)
        return r;
    json_object_foreach((json_t *)(uintptr_t)extra, name, value)
    {
        if ((r = load_special(&token, value, name, false, h->config_path, e)) < 0)
            return r;
        if (token.s)
            meg_hf_token_list_add(&t->extra, &token);
    }
    for (size_t i = 0; !in_config && !in_map && i < 3 && h->rules->additional[i]; i++) {
        token = token_of(h->rules->additional[i], MEG_HF_IN_CLASS);
        meg_hf_token_list_add(&t->additional, &token);
    }
    return add_more(h, t, e);
}

/*
 * Give a special token that a file names the flags that it has in added_tokens_decoder.  Otherwise, some classes give a
 * token that is a string their own flags.
 */
static void set_role_flags(const struct meg_hf_config *h, struct tokens *t, int i)
{
    struct meg_hf_token *role = &t->role[i];
    const bool is_given = role->s && !(role->named_in & MEG_HF_IN_CLASS);

    for (int64_t k = t->decoder.n - 1; is_given && k >= 0; k--) {
        const struct meg_hf_token *d = &t->decoder.v[k];

        if (d->named_in == MEG_HF_IN_ADDED || d->n != role->n || memcmp(d->s, role->s, d->n) != 0)
            continue;
        role->flags = d->flags;
        role->has_normalized = d->has_normalized;
        role->is_object = true;
        return;
    }
    if (!role->s || role->is_object || !(h->rules->replaces >> i & 1))
        return;
    role->is_object = true;
    role->flags.lstrip = i == MEG_HF_MASK;
    role->flags.special = true;
    role->flags.normalized = i == MEG_HF_MASK && h->rules->is_mask_normalized;
    role->has_normalized = true;
}

/* ---- Adding ---- */

/* Append the special tokens whose contents are not in `seen` to list, and then their contents to `seen`. */
static void add_unseen(struct meg_hf_token_list *list, struct meg_strtab *seen, const struct meg_hf_token *token,
                       int64_t n)
{
    const int64_t nseen = seen->n;

    for (int64_t i = 0; i < n; i++) {
        if (!token[i].s || token[i].n == 0)
            continue;
        if (meg_strtab_add(seen, token[i].s, (int64_t)token[i].n) >= nseen)
            meg_hf_token_list_add(list, &token[i]);
    }
}

static bool is_in_decoder(const struct tokens *t, const struct meg_hf_token *token)
{
    for (int64_t i = 0; i < t->decoder.n; i++) {
        const struct meg_hf_token *d = &t->decoder.v[i];

        if (token->is_object ? meg_hf_token_equals(d, token) : d->n == token->n && memcmp(d->s, token->s, d->n) == 0)
            return true;
    }
    return false;
}

/* Add the tokens of the decoder and the special tokens, as PreTrainedTokenizerFast.__init__ does. */
static void add_tokens(const struct meg_hf_config *h, struct tokens *t, struct meg_hf_files *f, const char *path)
{
    struct meg_hf_token_list special = { 0 }, list = { 0 };
    struct meg_strtab seen = { 0 };

    for (int i = 0; i < MEG_HF_NUM_ROLES; i++)
        add_unseen(&special, &seen, &t->role[i], 1);
    add_unseen(&special, &seen, t->additional.v, t->additional.n);
    for (int64_t i = 0; i < t->extra.n; i++)
        add_unseen(&special, &seen, &t->extra.v[i], 1);
    for (int64_t i = 0; i < t->decoder.n; i++)
        meg_hf_token_list_add(&list, &t->decoder.v[i]);
    for (int64_t i = 0; i < special.n; i++) {
        const struct meg_hf_token *s = &special.v[i];

        if (!is_in_decoder(t, s) && (s->is_object || !meg_hf_added_find(&f->added, s->s, s->n)))
            meg_hf_token_list_add(&list, s);
    }
    for (int64_t i = 0; i < list.n; i++)
        list.v[i].flags.special |= meg_strtab_find(&seen, list.v[i].s, (int64_t)list.v[i].n) >= 0;
    meg_hf_added_add(&f->added, list.v, list.n, &f->model.vocab, h->config_path ? h->config_path : path);
    for (int i = 0; i < MEG_HF_NUM_ROLES; i++) {
        if (t->role[i].s)
            meg_hf_added_name(&f->added, &t->role[i]);
    }
    for (int64_t i = 0; i < special.n; i++)
        meg_hf_added_name(&f->added, &special.v[i]);
    free(special.v);
    free(list.v);
    meg_strtab_free(&seen);
}

static void set_special_ids(struct meg_hf_files *f, const struct tokens *t)
{
    int32_t *const ids[MEG_HF_NUM_ROLES] = { &f->special_ids.bos, &f->special_ids.eos, NULL,
                                             &f->special_ids.sep, &f->special_ids.pad, &f->special_ids.cls,
                                             &f->special_ids.mask };

    for (int i = 0; i < MEG_HF_NUM_ROLES; i++) {
        const struct meg_hf_added_token *a =
            t->role[i].s ? meg_hf_added_find(&f->added, t->role[i].s, t->role[i].n) : NULL;

        if (ids[i])
            *ids[i] = a ? a->id : -1;
    }
    f->special_ids.eod = f->special_ids.eos;
}

/* Append the token of a role to the template, if the member `key` of tokenizer_config.json requests it. */
static int add_to_template(const struct meg_hf_config *h, struct meg_hf_files *f, const char *key, bool is_default,
                           enum meg_hf_role role, const char *path, struct meg_err *e)
{
    const int32_t id = role == MEG_HF_BOS ? f->special_ids.bos : f->special_ids.eos;
    bool is_added = is_default;
    int r = meg_hf_config_flag(h, key, &is_added, e);

    if (r == 0 && is_added && id < 0)
        r = meg_fail(
            e, MEG_EFORMAT, "%s: %s is true (default of %s: %s), but %s is missing; add %s, or set %s to false", path,
            key, h->rules->name, is_default ? "true" : "false", meg_hf_role_names[role], meg_hf_role_names[role], key);
    if (r == 0)
        meg_hf_add_template_ids(f, role == MEG_HF_BOS, &id, is_added);
    return r;
}

/* Replace the template by the tokens that add_bos_token and add_eos_token request, if the class does so. */
static int set_template(const struct meg_hf_config *h, struct meg_hf_files *f, const char *path, struct meg_err *e)
{
    bool had;
    int r;

    if (!h->rules->has_template)
        return 0;
    had = f->template_before.n + f->template_after.n > 0;
    f->template_before.n = f->template_after.n = 0;
    r = add_to_template(h, f, "add_bos_token", h->rules->adds_bos, MEG_HF_BOS, path, e);
    if (r == 0)
        r = add_to_template(h, f, "add_eos_token", false, MEG_HF_EOS, path, e);
    if (had)
        meg_hf_config_note(
            h,
            "add_bos_token and add_eos_token of tokenizer_config.json, or their defaults for %s, replace "
            "the post-processor of tokenizer.json",
            h->rules->name);
    return r;
}

static int load_tokens(const struct meg_hf_config *h, struct tokens *t, const struct meg_hf_token_list *own,
                       const json_t *tokenizer, struct meg_err *e)
{
    int r = 0;

    t->is_legacy = !json_object_get(h->config, "added_tokens_decoder");
    for (int i = 0; i < MEG_HF_NUM_ROLES && r == 0; i++)
        r = load_role(h, t, i, tokenizer, e);
    if (r < 0 || (r = load_additional(h, t, e)) < 0 ||
        (r = t->is_legacy ? load_added_file(h, t, e) : load_decoder(h, t, e)) < 0)
        return r;
    for (int64_t i = 0; t->is_legacy && i < own->n; i++)
        meg_hf_token_list_add(&t->decoder, &own->v[i]);
    sort_decoder(&t->decoder);
    for (int i = 0; i < MEG_HF_NUM_ROLES; i++)
        set_role_flags(h, t, i);
    return 0;
}

int meg_hf_config_apply(const struct meg_hf_config *h, struct meg_hf_files *f, const struct meg_hf_token_list *own,
                        const json_t *tokenizer, struct meg_err *e)
{
    const char *path = h->config_path ? h->config_path : "tokenizer_config.json";
    struct tokens t = { 0 };
    int r = 0;

    if (h->rules && (r = load_tokens(h, &t, own, tokenizer, e)) == 0) {
        add_tokens(h, &t, f, path);
        meg_hf_config_note_differences(h, &f->added, own, MEG_HF_IN_TOKENIZER, "tokenizer.json");
        meg_hf_config_note_differences(h, &f->added, &t.decoder, MEG_HF_IN_CONFIG, "added_tokens_decoder");
        meg_hf_config_note_differences(h, &f->added, &t.decoder, MEG_HF_IN_ADDED, "added_tokens.json");
        if (h->added && !t.is_legacy)
            meg_hf_config_note(h,
                               "added_tokens.json is ignored, because tokenizer_config.json has added_tokens_decoder");
        set_special_ids(f, &t);
        if ((r = set_template(h, f, path, e)) == 0 &&
            (r = meg_hf_config_flag(h, "split_special_tokens", &f->splits_special_tokens, e)) == 0)
            r = meg_hf_config_flag(h, "clean_up_tokenization_spaces", &f->clean_up, e);
    }
    free(t.decoder.v);
    free(t.additional.v);
    free(t.extra.v);
    meg_str_free(&t.names);
    return r;
}
