/* Models of tokenizer.json: what they share, WordPiece and WordLevel. */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "tokenizer/bert/wordpiece.h"
#include "tokenizer/hf/internal.h"

enum { MAX_ID = (1 << 24) - 1 };

int32_t meg_hf_vocab_find(const struct meg_hf_vocab *v, const char *s, int64_t n)
{
    int64_t k = meg_strtab_find(&v->tokens, s, n);

    return k < 0 ? -1 : v->id[k];
}

void meg_hf_vocab_add(struct meg_hf_vocab *v, const char *s, int64_t n, int32_t id)
{
    int64_t cap = v->tokens.cap, k = meg_strtab_add(&v->tokens, s, n);

    if (v->tokens.cap != cap)
        v->id = meg_realloc_array(v->id, (size_t)v->tokens.cap, sizeof *v->id);
    v->id[k] = id;
    v->max_id = id > v->max_id ? id : v->max_id;
}

/* For meg_strtab_index to find. */
static void append_token(struct meg_hf_vocab *v, const char *s, int64_t n, int32_t id)
{
    int64_t cap = v->tokens.cap;

    meg_strtab_append(&v->tokens, s, n);
    if (v->tokens.cap != cap)
        v->id = meg_realloc_array(v->id, (size_t)v->tokens.cap, sizeof *v->id);
    v->id[v->tokens.n - 1] = id;
    v->max_id = id > v->max_id ? id : v->max_id;
}

int meg_hf_get_id(const json_t *value, const char *what, const char *from, int32_t *id, struct meg_err *e)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > MAX_ID)
        return meg_fail(e, MEG_EFORMAT, "%s: the id of '%s' must be a number from 0 to %d", from, what, MAX_ID);
    *id = (int32_t)json_integer_value(value);
    return MEG_OK;
}

/* A number from 0 to MAX_ID, spelled s [n]; -1: it is none. */
static int32_t read_id(const char *s, int64_t n)
{
    int32_t id = 0;

    for (int64_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || id > MAX_ID)
            return -1;
        id = 10 * id + (s[i] - '0');
    }
    return id > MAX_ID ? -1 : id;
}

/* Not many more tokens than there are in a list: commas, which stand in tokens, too. */
static int64_t count_tokens(const struct meg_span *list)
{
    int64_t n = 1, most = list->n / (int64_t)strlen("\"a\":0,") + 1;

    for (int64_t i = 0; i < list->n; i++)
        n += list->s[i] == ',';
    return n < most ? n : most;
}

static int load_tokens(struct meg_hf_vocab *v, const struct meg_span *list, const char *from, struct meg_err *e)
{
    struct meg_err why;
    struct meg_json_scan s = { list->s, list->s, list->s + list->n, "byte", &why };
    struct meg_str buf = { 0 };
    int64_t twice;
    int r = MEG_OK;

    MEG_ASSERT(list->s);
    meg_strtab_reserve(&v->tokens, count_tokens(list));
    v->id = meg_realloc_array(v->id, (size_t)v->tokens.cap, sizeof *v->id);
    while (r == MEG_OK && meg_hf_json_next(&s)) {
        struct meg_span token;
        const char *begin, *kind;
        int32_t id;

        if ((r = meg_hf_json_string(&s, &buf, &token)) < 0) {
            r = meg_fail(e, r, "%s: vocab: %s", from, why.msg);
            break;
        }
        meg_json_scan_skip_space(&s);
        meg_json_scan_accept(&s, ':');
        meg_json_scan_skip_space(&s);
        begin = s.p;
        meg_json_scan_value(&s, 1, &kind);
        if ((id = read_id(begin, s.p - begin)) < 0) {
            r = meg_fail(e, MEG_EFORMAT, "%s: the id of '%.*s' must be a number from 0 to %d", from, (int)token.n,
                         token.s, MAX_ID);
            break;
        }
        append_token(v, token.s, token.n, id);
    }
    if (r == MEG_OK && (twice = meg_strtab_index(&v->tokens)) >= 0) {
        struct meg_str t = meg_strtab_get(&v->tokens, twice);

        r = meg_fail(e, MEG_EFORMAT, "%s: '%.*s' stands in vocab twice", from, (int)t.n, t.s);
    }
    meg_str_free(&buf);
    return r;
}

/* An object of tokens and ids, each id once. */
static int load_vocab(struct meg_hf_vocab *v, const struct meg_span *list, const json_t *part, const char *from,
                      struct meg_err *e)
{
    json_t *vocab;
    char *seen;
    int r = meg_json_get_object(part, "vocab", MEG_JSON_REQUIRED, &vocab, from, e);

    if (r < 0 || (r = load_tokens(v, list, from, e)) < 0)
        return r;
    seen = meg_new((size_t)v->max_id + 1);
    for (int64_t k = 0; k < v->tokens.n && r == MEG_OK; k++) {
        struct meg_str t = meg_strtab_get(&v->tokens, k);

        if (seen[v->id[k]]++)
            r = meg_fail(e, MEG_EFORMAT, "%s: '%.*s' has id %d, which another token has", from, (int)t.n, t.s,
                         v->id[k]);
    }
    free(seen);
    return r;
}

int meg_hf_model_load(struct meg_hf_model *m, const json_t *part, const char *from, struct meg_err *e)
{
    static const struct meg_hf_model_type *const kinds[] = { &meg_hf_bpe, &meg_hf_unigram, &meg_hf_wordpiece,
                                                             &meg_hf_wordlevel };
    const char *type = NULL;
    int r;

    m->vocab.max_id = -1;
    if (!json_is_object(part))
        return meg_fail(e, MEG_EFORMAT, "%s: an object is expected", from);
    if ((r = meg_json_get_str(part, "type", MEG_JSON_OPTIONAL, &type, from, e)) < 0)
        return r;
    if (!type) /* old files */
        type = json_object_get(part, "merges")                      ? "BPE"
               : json_is_array(json_object_get(part, "vocab"))      ? "Unigram"
               : json_object_get(part, "continuing_subword_prefix") ? "WordPiece"
                                                                    : "WordLevel";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !m->kind; i++)
        m->kind = strcmp(type, kinds[i]->name) == 0 ? kinds[i] : NULL;
    if (!m->kind)
        return meg_hf_unknown_type(type, from, e);
    if (m->kind != &meg_hf_unigram && (r = load_vocab(&m->vocab, &m->lists.vocab, part, from, e)) < 0)
        return r;
    return m->kind->load(m, part, from, e);
}

void meg_hf_model_free(struct meg_hf_model *m)
{
    if (m->own)
        m->kind->free(m->own);
    meg_strtab_free(&m->vocab.tokens);
    free(m->vocab.id);
}

int meg_hf_model_encode(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out, struct meg_err *e)
{
    return m->kind->encode(m, s, n, out, e);
}

/* ---- WordPiece ---- */

static int get_unk(const struct meg_hf_model *m, const json_t *part, int32_t *unk, const char *from, struct meg_err *e)
{
    const char *token = "[UNK]";
    int r = meg_json_get_str(part, "unk_token", MEG_JSON_OPTIONAL, &token, from, e);

    if (r < 0)
        return r;
    if ((*unk = meg_hf_vocab_find(&m->vocab, token, (int64_t)strlen(token))) < 0)
        return meg_fail(e, MEG_EFORMAT, "%s: unk_token '%s' is not in the vocabulary", from, token);
    return MEG_OK;
}

static int wordpiece_load(struct meg_hf_model *m, const json_t *part, const char *from, struct meg_err *e)
{
    struct meg_wordpiece *w = meg_new(sizeof *w);
    const char *prefix = "##";
    int64_t max_chars = 100;
    struct meg_err inner;
    int32_t unk;
    int r;

    m->own = w;
    if ((r = get_unk(m, part, &unk, from, e)) < 0 ||
        (r = meg_json_get_str(part, "continuing_subword_prefix", MEG_JSON_OPTIONAL, &prefix, from, e)) < 0 ||
        (r = meg_json_get_i64(part, "max_input_chars_per_word", MEG_JSON_OPTIONAL, &max_chars, from, e)) < 0)
        return r;
    if ((r = meg_wordpiece_build(w, &m->vocab.tokens, m->vocab.id, prefix, unk, max_chars, &inner)) < 0)
        return meg_fail(e, r, "%s: %s", from, inner.msg);
    return MEG_OK;
}

static void wordpiece_free(void *own)
{
    meg_wordpiece_free(own);
    free(own);
}

static int wordpiece_encode(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out,
                            struct meg_err *e)
{
    (void)e;
    meg_ids_reserve(out, n);
    out->n += meg_wordpiece_encode(m->own, s, n, out->v + out->n);
    return MEG_OK;
}

const struct meg_hf_model_type meg_hf_wordpiece = { "WordPiece", wordpiece_load, wordpiece_free, wordpiece_encode };

/* ---- WordLevel: own is the id of what is unknown ---- */

static int wordlevel_load(struct meg_hf_model *m, const json_t *part, const char *from, struct meg_err *e)
{
    m->own = meg_new(sizeof(int32_t));
    return get_unk(m, part, m->own, from, e);
}

static int wordlevel_encode(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out,
                            struct meg_err *e)
{
    int32_t id = meg_hf_vocab_find(&m->vocab, s, n);

    (void)e;
    meg_ids_reserve(out, 1);
    out->v[out->n++] = id < 0 ? *(const int32_t *)m->own : id;
    return MEG_OK;
}

const struct meg_hf_model_type meg_hf_wordlevel = { "WordLevel", wordlevel_load, free, wordlevel_encode };
