/*
 * model_unigram.c - unigram model of tokenizer.json: the segmentation with the highest sum of log probabilities (Kudo
 * 2018), found by the Viterbi algorithm in double precision.  Consecutive unknown characters become the token with
 * their text, if there is one.  Otherwise they become the tokens of their bytes (byte_fallback) or one unknown token.
 *
 * tokenizer/spm/unigram.c implements this algorithm for SentencePiece.  SentencePiece rounds the sums to float, so the
 * ids can differ.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "io/json.h"
#include "tokenizer/hf/internal.h"
#include "tokenizer/trie.h"
#include "unicode/utf8.h"

#define UNK_PENALTY 10.0

struct unigram {
    struct meg_trie trie;
    double *score; /* [vocab.tokens.n] log probabilities by id */
    int64_t ring;  /* size of the Viterbi ring buffer: a power of two, larger than the byte length of any token */
    double unk_score;
    int32_t unk;          /* id of the unknown token, or -1 */
    int32_t byte_id[256]; /* see meg_hf_vocab_byte_ids */
};

static void unigram_free(void *impl)
{
    struct unigram *u = impl;

    meg_trie_free(&u->trie);
    free(u->score);
    free(u);
}

/*
 * Round x as serde_json, Hugging Face's JSON parser, does.  serde_json converts the decimal digits to an integer,
 * rounds the integer to double, and multiplies or divides this double by a power of ten.  About a quarter of the scores
 * of a file therefore differ from the nearest double in the last bit.  This bit decides ties.  The digits in the file
 * are recovered from x: they are the shortest digits that identify x.
 */
static double parse_like_serde(double x)
{
    char text[40], power[16];
    uint64_t digits = 0;
    int precision = 0, exponent;
    double ten;

    do
        snprintf(text, sizeof text, "%.*e", precision, fabs(x));
    while (++precision <= 16 && strtod(text, NULL) != fabs(x));
    for (const char *s = text; *s != 'e'; s++)
        if (*s != '.')
            digits = 10 * digits + (uint64_t)(*s - '0');
    exponent = atoi(strchr(text, 'e') + 1) - (precision - 1);
    if (exponent < -308 || exponent > 308)
        return x;
    snprintf(power, sizeof power, "1e%d", abs(exponent));
    ten = strtod(power, NULL);
    return copysign(exponent < 0 ? (double)digits / ten : (double)digits * ten, x);
}

/* Load a vocabulary [[text, score], ...]. */
static int load_tokens(struct meg_hf_model *m, const json_t *list, const char *where, struct meg_err *e)
{
    struct unigram *u = m->impl;
    double lowest = INFINITY;
    size_t i;
    const json_t *item;

    u->score = meg_new((json_array_size(list) + 1) * sizeof *u->score);
    u->ring = 8; /* an unknown character has up to 4 bytes */
    json_array_foreach(list, i, item)
    {
        const json_t *text = json_array_get(item, 0), *score = json_array_get(item, 1);
        int64_t was = m->vocab.tokens.n;

        if (!json_is_string(text) || !json_is_number(score))
            return meg_fail(e, MEG_EFORMAT, "%s: vocab[%zu] is not an array [token, score]", where, i);
        meg_hf_vocab_add(&m->vocab, json_string_value(text), (int64_t)json_string_length(text), (int32_t)i);
        if (m->vocab.tokens.n == was)
            return meg_fail(e, MEG_EFORMAT, "%s: duplicate token '%s' at vocab[%zu]", where, json_string_value(text),
                            i);
        while (u->ring <= (int64_t)json_string_length(text))
            u->ring *= 2;
        u->score[i] = parse_like_serde(json_number_value(score));
        lowest = fmin(lowest, u->score[i]);
    }
    u->unk_score = lowest - UNK_PENALTY;
    return 0;
}

static int build_trie(struct meg_hf_model *m, const char *where, struct meg_err *e)
{
    struct unigram *u = m->impl;
    struct meg_trie_key *key = meg_realloc_array(NULL, (size_t)m->vocab.tokens.n + 1, sizeof *key);
    struct meg_err inner;
    int64_t n = 0;
    int r;

    for (int64_t k = 0; k < m->vocab.tokens.n; k++) {
        struct meg_str t = meg_strtab_get(&m->vocab.tokens, k);

        if (t.n > 0)
            key[n++] = (struct meg_trie_key){ t.s, (int64_t)t.n, m->vocab.id[k] };
    }
    r = meg_trie_build(&u->trie, key, n, &inner);
    free(key);
    return r < 0 ? meg_fail(e, r, "%s: %s", where, inner.msg) : 0;
}

static int unigram_load(struct meg_hf_model *m, const json_t *part, const char *where, struct meg_err *e)
{
    struct unigram *u = meg_new(sizeof *u);
    bool byte_fallback = false;
    int64_t unk = -1;
    json_t *list;
    int r;

    m->impl = u;
    if ((r = meg_json_get_array(part, "vocab", MEG_JSON_REQUIRED, &list, where, e)) < 0 ||
        (r = meg_json_get_i64(part, "unk_id", MEG_JSON_OPTIONAL, &unk, where, e)) < 0 ||
        (r = meg_json_get_bool(part, "byte_fallback", MEG_JSON_OPTIONAL, &byte_fallback, where, e)) < 0 ||
        (r = load_tokens(m, list, where, e)) < 0 || (r = build_trie(m, where, e)) < 0)
        return r;
    if (unk < -1 || unk >= m->vocab.tokens.n)
        return meg_fail(e, MEG_EFORMAT, "%s: unk_id %" PRId64 " is not in the vocabulary", where, unk);
    u->unk = (int32_t)unk;
    meg_hf_vocab_byte_ids(&m->vocab, byte_fallback, u->byte_id);
    return 0;
}

/* The best path to each byte position of a pre-token. */
struct viterbi {
    int32_t *last; /* [n+1] bytes in the last token of the best path to each position; 0: no path */
    double *score; /* [mask+1] ring buffer of path scores, indexed by position & mask */
    int64_t mask;
};

static void relax(const struct viterbi *w, int64_t from, int64_t to, double score)
{
    double sum = score + w->score[from & w->mask];

    if (w->last[to] == 0 || sum > w->score[to & w->mask]) {
        w->score[to & w->mask] = sum;
        w->last[to] = (int32_t)(to - from);
    }
}

static void viterbi_paths(const struct unigram *u, const char *s, int64_t n, const struct viterbi *w)
{
    w->score[0] = 0;
    for (int64_t at = 0, len; at < n; at += len) {
        uint32_t node = MEG_TRIE_ROOT;
        bool has_single = false;
        int32_t cp, id;

        len = meg_utf8_decode(s + at, n - at, &cp);
        for (int64_t i = at; i < n && meg_trie_step(&u->trie, &node, (unsigned char)s[i], &id); i++) {
            if (id < 0)
                continue;
            relax(w, at, i + 1, u->score[id]);
            has_single |= i + 1 == at + len;
        }
        if (!has_single)
            relax(w, at, at + len, u->unk_score);
    }
}

/*
 * Reverse the best path.  Let i be a token boundary of the path.  Before the call, length[i] is the byte length of the
 * token that ends at i.  After the call, length[i] is the byte length of the token that begins at i.
 */
static void reverse_path(int32_t *length, int64_t n)
{
    int32_t len = length[n];

    while (n > 0) {
        int32_t before;

        n -= len;
        before = length[n];
        length[n] = len;
        len = before;
    }
}

/* Return the id of token s [n], or u->unk if there is no such token. */
static int32_t token_of(const struct unigram *u, const char *s, int64_t n)
{
    int32_t id = meg_trie_find(&u->trie, s, n);

    return id < 0 ? u->unk : id;
}

static int add_token(const struct meg_hf_model *m, const char *s, int64_t n, int32_t id, struct meg_ids *out,
                     struct meg_err *e)
{
    const struct unigram *u = m->impl;
    bool has_bytes = true;

    meg_ids_reserve(out, n);
    if (id == u->unk) {
        id = meg_hf_vocab_find(&m->vocab, s, n); /* consecutive unknown characters may form a token */
        for (int64_t i = 0; i < n; i++)
            has_bytes &= u->byte_id[(unsigned char)s[i]] >= 0;
        if (id < 0 && has_bytes) {
            for (int64_t i = 0; i < n; i++)
                out->v[out->n++] = u->byte_id[(unsigned char)s[i]];
            return 0;
        }
        if (id < 0 && (id = u->unk) < 0)
            return meg_fail(e, MEG_EFORMAT, "'%.*s' is not in the vocabulary, and the model has no unk_id",
                            (int)(n < 40 ? n : 40), s);
    }
    out->v[out->n++] = id;
    return 0;
}

static int unigram_encode(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out,
                          struct meg_err *e)
{
    const struct unigram *u = m->impl;
    struct viterbi w = { meg_new(((size_t)n + 1) * sizeof *w.last),
                         meg_realloc_array(NULL, (size_t)u->ring, sizeof *w.score), u->ring - 1 };
    int r = 0;

    viterbi_paths(u, s, n, &w);
    reverse_path(w.last, n);
    for (int64_t at = 0, end; at < n && r == 0; at = end) {
        int32_t id = token_of(u, s + at, w.last[at]);

        end = at + w.last[at];
        while (id == u->unk && end < n && token_of(u, s + end, w.last[end]) == u->unk)
            end += w.last[end];
        r = add_token(m, s + at, end - at, id, out, e);
    }
    free(w.last);
    free(w.score);
    return r;
}

const struct meg_hf_model_type meg_hf_unigram = { "Unigram", unigram_load, unigram_free, unigram_encode };
