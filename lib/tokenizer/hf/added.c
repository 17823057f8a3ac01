/* added.c - the added tokens of a tokenizer, which are matched in the text before the model encodes the rest. */
#include "tokenizer/hf/added.h"
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "io/json.h"
#include "tokenizer/hf/files.h"
#include "unicode/char_class.h"
#include "unicode/utf8.h"

/* ---- Tokens to add ---- */

void meg_hf_token_list_add(struct meg_hf_token_list *list, const struct meg_hf_token *t)
{
    list->v = meg_grow(list->v, list->n, &list->cap, sizeof *list->v);
    list->v[list->n++] = *t;
}

static bool is_normalized(const struct meg_hf_token *t)
{
    return t->has_normalized ? t->flags.normalized : !t->flags.special;
}

bool meg_hf_token_equals(const struct meg_hf_token *a, const struct meg_hf_token *b)
{
    const struct meg_hf_token_flags *x = &a->flags, *y = &b->flags;

    return a->n == b->n && memcmp(a->s, b->s, a->n) == 0 && a->is_object == b->is_object &&
           x->single_word == y->single_word && x->lstrip == y->lstrip && x->rstrip == y->rstrip &&
           x->special == y->special && is_normalized(a) == is_normalized(b);
}

int meg_hf_token_load(struct meg_hf_token *t, const json_t *value, unsigned named_in, const char *where,
                      struct meg_err *e)
{
    const json_t *content = json_is_object(value) ? json_object_get(value, "content") : value;
    struct meg_hf_token_flags *f = &t->flags;
    int r;

    *t = (struct meg_hf_token){ .is_object = json_is_object(value), .given_id = -1, .named_in = named_in };
    if (!json_is_string(content))
        return meg_fail(e, MEG_EFORMAT, "%s: expected a string, or an object with the string \"content\"", where);
    t->s = json_string_value(content);
    t->n = json_string_length(content);
    if (!t->is_object)
        return 0;
    t->has_normalized = json_is_boolean(json_object_get(value, "normalized"));
    if ((r = meg_json_get_bool(value, "special", MEG_JSON_OPTIONAL, &f->special, where, e)) < 0 ||
        (r = meg_json_get_bool(value, "normalized", MEG_JSON_OPTIONAL, &f->normalized, where, e)) < 0 ||
        (r = meg_json_get_bool(value, "single_word", MEG_JSON_OPTIONAL, &f->single_word, where, e)) < 0 ||
        (r = meg_json_get_bool(value, "lstrip", MEG_JSON_OPTIONAL, &f->lstrip, where, e)) < 0)
        return r;
    return meg_json_get_bool(value, "rstrip", MEG_JSON_OPTIONAL, &f->rstrip, where, e);
}

/* ---- Added tokens ---- */

const struct meg_hf_added_token *meg_hf_added_find(const struct meg_hf_added *a, const char *s, size_t n)
{
    int64_t k = meg_strtab_find(&a->contents, s, (int64_t)n);

    return k < 0 ? NULL : &a->v[k];
}

/* Return the index of the token s [n] in a->v, and append a token without an id if there is none. */
static int64_t index_of(struct meg_hf_added *a, const char *s, size_t n)
{
    int64_t k = meg_strtab_add(&a->contents, s, (int64_t)n);

    if (k < a->n)
        return k;
    if ((a->n & (a->n - 1)) == 0) /* grow the array if n is 0 or a power of two */
        a->v = meg_realloc_array(a->v, (size_t)a->n * 2 + 1, sizeof *a->v);
    a->v[a->n] = (struct meg_hf_added_token){ .id = -1 };
    meg_str_add(&a->v[a->n++].content, s, n);
    return k;
}

static void add_pattern(struct meg_hf_added_patterns *p, int64_t token, bool normalized)
{
    p->v = meg_grow(p->v, p->n, &p->cap, sizeof *p->v);
    p->v[p->n++] = (struct meg_hf_added_pattern){ (int32_t)token, normalized };
}

/* Return the bit of a combination of flags. */
static uint32_t bit_of(const struct meg_hf_token_flags *f)
{
    return 1u << (f->single_word | f->lstrip << 1 | f->rstrip << 2 | f->normalized << 3 | f->special << 4);
}

static void warn_renumbered(struct meg_hf_added *a, const struct meg_hf_token *t, int32_t id, const char *path)
{
    if (t->given_id < 0 || id == t->given_id || a->is_renumbered)
        return;
    a->is_renumbered = true;
    meg_warn("%s: '%s' gets id %d instead of %d, because the Hugging Face tokenizers library numbers added tokens "
             "consecutively",
             path, t->s, id, (int)t->given_id);
}

/*
 * Hugging Face's tokenizers library ignores ids in files: a token has its id in the vocabulary, or else the next id,
 * starting at the larger of the number of vocabulary tokens and the largest id of an added token plus 1.
 */
void meg_hf_added_add(struct meg_hf_added *a, const struct meg_hf_token *token, int64_t n,
                      const struct meg_hf_vocab *vocab, const char *path)
{
    int32_t next = a->next_id > vocab->tokens.n ? a->next_id : (int32_t)vocab->tokens.n;

    for (int64_t k = 0; k < a->n; k++)
        a->v[k].known_flags = bit_of(&a->v[k].flags);
    for (int64_t i = 0; i < n; i++) {
        const struct meg_hf_token *t = &token[i];
        int64_t k = t->n > 0 && t->flags.special ? index_of(a, t->s, t->n) : -1;

        if (k >= 0 && !a->v[k].is_special) {
            a->v[k].is_special = true;
            add_pattern(&a->special, k, is_normalized(t));
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const struct meg_hf_token *t = &token[i];
        struct meg_hf_token_flags flags = t->flags;
        const int64_t k = t->n > 0 ? index_of(a, t->s, t->n) : -1;
        struct meg_hf_added_token *to;

        if (k < 0)
            continue;
        flags.normalized = is_normalized(t);
        to = &a->v[k];
        to->named_in |= t->named_in;
        if (to->known_flags & bit_of(&flags))
            continue;
        if (to->id < 0) {
            const int32_t known = meg_hf_vocab_find(vocab, t->s, (int64_t)t->n);

            to->id = known >= 0 ? known : next++;
            a->next_id = to->id >= a->next_id ? to->id + 1 : a->next_id;
            warn_renumbered(a, t, to->id, path);
        }
        to->flags = flags;
        to->known_flags |= bit_of(&flags);
        if (!to->is_special)
            add_pattern(&a->other, k, flags.normalized);
    }
}

void meg_hf_added_name(struct meg_hf_added *a, const struct meg_hf_token *token)
{
    const int64_t k = meg_strtab_find(&a->contents, token->s, (int64_t)token->n);

    if (k >= 0)
        a->v[k].named_in |= token->named_in;
}

/* ---- Matchers ---- */

/* The different texts of patterns; token[k] is the token of text k. */
struct texts {
    struct meg_strtab text;
    int32_t *token;
};

/* Add the texts of the patterns whose field `normalized` equals is_normalized. */
static int add_texts(struct texts *to, const struct meg_hf_added *a, const struct meg_hf_added_patterns *p,
                     bool is_normalized, const struct meg_hf_steps *norm, const char *path, struct meg_err *e)
{
    struct meg_str normalized = { 0 };
    int r = 0;

    for (int64_t i = 0; i < p->n && r == 0; i++) {
        const struct meg_str *content = &a->v[p->v[i].token].content;
        int64_t was = to->text.n;

        if (p->v[i].normalized != is_normalized)
            continue;
        normalized.n = 0;
        if (is_normalized && norm)
            r = meg_hf_normalizer_run(norm, content->s, (int64_t)content->n, true, MEG_HF_MAX_UNSPLIT, &normalized, e);
        else
            meg_str_add(&normalized, content->s, content->n);
        if (r == 0 && normalized.n == 0)
            r = meg_fail(e, MEG_EFORMAT, "%s: added_tokens: '%.*s' is empty after normalization", path, (int)content->n,
                         content->s);
        if (normalized.n > 0 && meg_strtab_add(&to->text, normalized.s, (int64_t)normalized.n) == was)
            to->token[was] = p->v[i].token; /* of patterns with equal text, the first one is used */
    }
    meg_str_free(&normalized);
    return r;
}

static int build_matcher(const struct meg_hf_added *a, bool is_normalized, const struct meg_hf_steps *norm,
                         struct meg_hf_added_matcher *to, const char *path, struct meg_err *e)
{
    const size_t max = (size_t)(a->special.n + a->other.n) + 1;
    struct meg_trie_key *key = meg_realloc_array(NULL, max, sizeof *key);
    struct texts x = { .token = meg_realloc_array(NULL, max, sizeof *x.token) };
    struct meg_err inner;
    int r;

    if ((r = add_texts(&x, a, &a->special, is_normalized, norm, path, e)) < 0 ||
        (r = add_texts(&x, a, &a->other, is_normalized, norm, path, e)) < 0)
        goto out;
    for (int64_t k = 0; k < x.text.n; k++) {
        struct meg_str s = meg_strtab_get(&x.text, k);

        key[k] = (struct meg_trie_key){ s.s, (int64_t)s.n, x.token[k] };
        to->first_byte = (unsigned char)s.s[0];
        to->nfirst_bytes += !to->is_first_byte[to->first_byte];
        to->is_first_byte[to->first_byte] = true;
    }
    if ((r = meg_trie_build(&to->trie, key, x.text.n, &inner)) < 0)
        r = meg_fail(e, r, "%s: added_tokens: %s", path, inner.msg);
out:
    free(key);
    free(x.token);
    meg_strtab_free(&x.text);
    return r;
}

int meg_hf_added_build(struct meg_hf_added *a, const struct meg_hf_steps *norm, const char *path, struct meg_err *e)
{
    int r = build_matcher(a, false, norm, &a->raw, path, e);

    return r < 0 ? r : build_matcher(a, true, norm, &a->normalized, path, e);
}

/* ---- Matching ---- */

/* Return true if cp matches \w of Rust's regex crate. */
static bool is_word(int32_t cp)
{
    return meg_char_is_in(cp, MEG_LETTERS | MEG_MARKS | MEG_CATEGORY(ND) | MEG_CATEGORY(NL) | MEG_CATEGORY(PC)) ||
           cp == 0x200C || cp == 0x200D || (cp >= 0x24B6 && cp <= 0x24E9);
}

/* Return the first position at or after p at which an added token may begin; return end if there is none. */
static const char *skip(const struct meg_hf_added_matcher *f, const char *p, const char *end)
{
    if (f->nfirst_bytes <= 1) {
        p = f->nfirst_bytes ? memchr(p, f->first_byte, (size_t)(end - p)) : NULL;
        return p ? p : end;
    }
    while (p < end && !f->is_first_byte[(unsigned char)*p])
        p++;
    return p;
}

const struct meg_hf_added_token *meg_hf_added_next(const struct meg_hf_added *added,
                                                   const struct meg_hf_added_matcher *f, bool splits_special,
                                                   const char *text, const char *end, struct meg_hf_match *at)
{
    const char *from = at->stop;

    for (const char *p = at->own_stop; (p = skip(f, p, end)) < end; p++) {
        int32_t k, before, after;
        const char *stop = p + meg_trie_longest(&f->trie, p, end - p, &k);
        const struct meg_hf_added_token *a;

        if (k < 0)
            continue;
        a = &added->v[k];
        if (a->is_special && splits_special) {
            p = stop - 1;
            continue;
        }
        if (a->flags.single_word) {
            if (p > text)
                meg_utf8_prev(p, &before);
            if (stop < end)
                meg_utf8_decode(stop, end - stop, &after);
            if ((p > text && is_word(before)) || (stop < end && is_word(after))) {
                p = stop - 1;
                continue;
            }
        }
        *at = (struct meg_hf_match){ a->flags.lstrip && p < from ? from : p, stop, stop };
        while (a->flags.lstrip && at->s > from) {
            const char *c = meg_utf8_prev(at->s, &before);

            if (!meg_char_is_space(before))
                break;
            at->s = c;
        }
        while (a->flags.rstrip && at->stop < end) {
            int n = meg_utf8_decode(at->stop, end - at->stop, &after);

            if (!meg_char_is_space(after))
                break;
            at->stop += n;
        }
        return a;
    }
    return NULL;
}

void meg_hf_added_free(struct meg_hf_added *a)
{
    for (int64_t i = 0; i < a->n; i++)
        meg_str_free(&a->v[i].content);
    free(a->v);
    meg_strtab_free(&a->contents);
    free(a->special.v);
    free(a->other.v);
    meg_trie_free(&a->raw.trie);
    meg_trie_free(&a->normalized.trie);
}
