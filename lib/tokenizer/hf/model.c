/*
 * model.c - models of tokenizer.json: select the model, load a vocabulary {token: id, ...}, implement WordPiece and
 * WordLevel.
 */
#include <stdio.h>
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

void meg_hf_vocab_byte_ids(const struct meg_hf_vocab *v, bool byte_fallback, int32_t byte_id[256])
{
    for (int i = 0; i < 256; i++) {
        char name[8];

        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        byte_id[i] = byte_fallback ? meg_hf_vocab_find(v, name, 6) : -1;
    }
}

/* Append a token without adding it to the hash index.  Call meg_strtab_index after the last token. */
static void append_token(struct meg_hf_vocab *v, const char *s, int64_t n, int32_t id)
{
    int64_t cap = v->tokens.cap;

    meg_strtab_append(&v->tokens, s, n);
    if (v->tokens.cap != cap)
        v->id = meg_realloc_array(v->id, (size_t)v->tokens.cap, sizeof *v->id);
    v->id[v->tokens.n - 1] = id;
    v->max_id = id > v->max_id ? id : v->max_id;
}

/* Parse an id from 0 to MAX_ID in s [n], n >= 1.  Return -1 if the text is not such an id. */
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

/*
 * Return an upper bound of the number of tokens: the number of commas + 1, or the number of six-byte entries that fit
 * in the list + 1, whichever is smaller.
 */
static int64_t count_tokens(const struct meg_span *list)
{
    int64_t n = 1, max_bytes = list->n / (int64_t)strlen("\"a\":0,") + 1;

    for (int64_t i = 0; i < list->n; i++)
        n += list->s[i] == ',';
    return n < max_bytes ? n : max_bytes;
}

static int load_tokens(struct meg_hf_vocab *v, const struct meg_span *list, const char *where, struct meg_err *e)
{
    struct meg_err why;
    struct meg_json_scan s = { list->s, list->s, list->s + list->n, "byte", &why };
    struct meg_str buf = { 0 };
    int64_t twice;
    int r = 0;

    MEG_ASSERT(list->s);
    meg_strtab_reserve(&v->tokens, count_tokens(list));
    v->id = meg_realloc_array(v->id, (size_t)v->tokens.cap, sizeof *v->id);
    while (r == 0 && meg_hf_json_next(&s)) {
        struct meg_span token;
        const char *begin, *value_type;
        int32_t id;

        if ((r = meg_hf_json_string(&s, &buf, &token)) < 0) {
            r = meg_fail(e, r, "%s: vocab: %s", where, why.msg);
            break;
        }
        meg_json_scan_skip_space(&s);
        meg_json_scan_accept(&s, ':');
        meg_json_scan_skip_space(&s);
        begin = s.p;
        meg_json_scan_value(&s, 1, &value_type);
        if ((id = read_id(begin, s.p - begin)) < 0) {
            r = meg_fail(e, MEG_EFORMAT, "%s: the id of '%.*s' must be an integer from 0 to %d", where, (int)token.n,
                         token.s, MAX_ID);
            break;
        }
        append_token(v, token.s, token.n, id);
    }
    if (r == 0 && (twice = meg_strtab_index(&v->tokens)) >= 0) {
        struct meg_str t = meg_strtab_get(&v->tokens, twice);

        r = meg_fail(e, MEG_EFORMAT, "%s: vocab: duplicate token '%.*s'", where, (int)t.n, t.s);
    }
    meg_str_free(&buf);
    return r;
}

/* Load a vocabulary {token: id, ...} and check that no two tokens have the same id. */
static int load_vocab(struct meg_hf_vocab *v, const struct meg_span *list, const json_t *part, const char *where,
                      struct meg_err *e)
{
    json_t *vocab;
    char *seen;
    int r = meg_json_get_object(part, "vocab", MEG_JSON_REQUIRED, &vocab, where, e);

    if (r < 0 || (r = load_tokens(v, list, where, e)) < 0)
        return r;
    seen = meg_new((size_t)v->max_id + 1);
    for (int64_t k = 0; k < v->tokens.n && r == 0; k++) {
        struct meg_str t = meg_strtab_get(&v->tokens, k);

        if (seen[v->id[k]]++)
            r = meg_fail(e, MEG_EFORMAT, "%s: vocab: '%.*s' has id %d, which another token also has", where, (int)t.n,
                         t.s, v->id[k]);
    }
    free(seen);
    return r;
}

int meg_hf_model_load(struct meg_hf_model *m, const json_t *part, const char *where, struct meg_err *e)
{
    static const struct meg_hf_model_type *const types[] = { &meg_hf_bpe, &meg_hf_unigram, &meg_hf_wordpiece,
                                                             &meg_hf_wordlevel };
    const char *type = NULL;
    int r;

    m->vocab.max_id = -1;
    if (!json_is_object(part))
        return meg_fail(e, MEG_EFORMAT, "%s: expected a JSON object", where);
    if ((r = meg_json_get_str(part, "type", MEG_JSON_OPTIONAL, &type, where, e)) < 0)
        return r;
    if (!type) /* early releases of Hugging Face's library wrote no member "type" */
        type = json_object_get(part, "merges")                      ? "BPE"
               : json_is_array(json_object_get(part, "vocab"))      ? "Unigram"
               : json_object_get(part, "continuing_subword_prefix") ? "WordPiece"
                                                                    : "WordLevel";
    for (size_t i = 0; i < sizeof types / sizeof *types && !m->type; i++)
        m->type = strcmp(type, types[i]->name) == 0 ? types[i] : NULL;
    if (!m->type)
        return meg_hf_unknown_type(type, where, e);
    if (m->type != &meg_hf_unigram && (r = load_vocab(&m->vocab, &m->raw_vocab.vocab, part, where, e)) < 0)
        return r;
    return m->type->load(m, part, where, e);
}

void meg_hf_model_free(struct meg_hf_model *m)
{
    if (m->impl)
        m->type->free(m->impl);
    meg_strtab_free(&m->vocab.tokens);
    free(m->vocab.id);
}

int meg_hf_model_encode(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out, struct meg_err *e)
{
    return m->type->encode(m, s, n, out, e);
}

/* ---- WordPiece ---- */

static int get_unk(const struct meg_hf_model *m, const json_t *part, int32_t *unk, const char *where, struct meg_err *e)
{
    const char *token = "[UNK]";
    int r = meg_json_get_str(part, "unk_token", MEG_JSON_OPTIONAL, &token, where, e);

    if (r < 0)
        return r;
    if ((*unk = meg_hf_vocab_find(&m->vocab, token, (int64_t)strlen(token))) < 0)
        return meg_fail(e, MEG_EFORMAT, "%s: unk_token '%s' is not in the vocabulary", where, token);
    return 0;
}

static int wordpiece_load(struct meg_hf_model *m, const json_t *part, const char *where, struct meg_err *e)
{
    struct meg_wordpiece *w = meg_new(sizeof *w);
    const char *prefix = "##";
    int64_t max_chars = 100;
    struct meg_err inner;
    int32_t unk;
    int r;

    m->impl = w;
    if ((r = get_unk(m, part, &unk, where, e)) < 0 ||
        (r = meg_json_get_str(part, "continuing_subword_prefix", MEG_JSON_OPTIONAL, &prefix, where, e)) < 0 ||
        (r = meg_json_get_i64(part, "max_input_chars_per_word", MEG_JSON_OPTIONAL, &max_chars, where, e)) < 0)
        return r;
    if ((r = meg_wordpiece_build(w, &m->vocab.tokens, m->vocab.id, prefix, unk, max_chars, &inner)) < 0)
        return meg_fail(e, r, "%s: %s", where, inner.msg);
    return 0;
}

static void wordpiece_free(void *impl)
{
    meg_wordpiece_free(impl);
    free(impl);
}

static int wordpiece_encode(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out,
                            struct meg_err *e)
{
    (void)e;
    meg_ids_reserve(out, n);
    out->n += meg_wordpiece_encode(m->impl, s, n, out->v + out->n);
    return 0;
}

const struct meg_hf_model_type meg_hf_wordpiece = { "WordPiece", wordpiece_load, wordpiece_free, wordpiece_encode };

/* ---- WordLevel (impl points to the id of the unknown token) ---- */

static int wordlevel_load(struct meg_hf_model *m, const json_t *part, const char *where, struct meg_err *e)
{
    m->impl = meg_new(sizeof(int32_t));
    return get_unk(m, part, m->impl, where, e);
}

static int wordlevel_encode(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out,
                            struct meg_err *e)
{
    int32_t id = meg_hf_vocab_find(&m->vocab, s, n);

    (void)e;
    meg_ids_add(out, id < 0 ? *(const int32_t *)m->impl : id);
    return 0;
}

const struct meg_hf_model_type meg_hf_wordlevel = { "WordLevel", wordlevel_load, free, wordlevel_encode };
