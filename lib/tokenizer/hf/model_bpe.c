/* BPE of tokenizer.json: over characters, or bytes where they are spelled as characters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "tokenizer/bpe/bpe.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/bpe/byte_level.h"
#include "tokenizer/hf/internal.h"
#include "unicode/utf8.h"

struct bpe {
    struct meg_bpe merges;
    int32_t unk;          /* -1: what is unknown is left out */
    int32_t byte_id[256]; /* of <0x00> .. <0xFF>, with byte_fallback; else and where missing -1 */
    bool fuse_unk, ignore_merges;
    int32_t min_byte, max_byte;       /* of those; */
    bool has_all_bytes, merges_bytes; /* are all there, and is one of that range a part of a merge? */
    char *prefix, *suffix;            /* of all but the first, and of the last character; may be "" */
};

static void bpe_free(void *own)
{
    struct bpe *b = own;

    meg_bpe_free(&b->merges);
    free(b->prefix);
    free(b->suffix);
    free(b);
}

/* The two parts of a merge, ["a", "b"] or "a b", in place or in buf; false when it is neither. */
static bool read_parts(struct meg_json_scan *s, struct meg_str buf[2], struct meg_span part[2])
{
    const char *end, *blank;

    if (*s->p == '[') {
        for (int i = 0; i < 2; i++) {
            if (!meg_hf_json_next(s) || *s->p != '"' || meg_hf_json_string(s, &buf[i], &part[i]) < 0)
                return false;
        }
        return !meg_hf_json_next(s) && meg_json_scan_accept(s, ']');
    }
    if (*s->p != '"' || meg_hf_json_string(s, &buf[0], &part[0]) < 0)
        return false;
    end = part[0].s + part[0].n;
    blank = memchr(part[0].s, ' ', (size_t)part[0].n);
    if (!blank || memchr(blank + 1, ' ', (size_t)(end - blank - 1)))
        return false;
    part[0].n = blank - part[0].s;
    part[1] = (struct meg_span){ blank + 1, end - blank - 1 };
    return true;
}

/* So many merges are read before the first of their parts is looked up: what finds them is then on its
 * way to the processor. */
enum { BATCH = 32, LEFT = 0, RIGHT, BOTH, TOKENS };

struct spelled {
    struct meg_str part[2]; /* room to read in */
    struct meg_str text;    /* of all tokens */
    struct {
        int64_t at, n;
        uint64_t hash; /* but for BOTH */
    } token[BATCH][TOKENS];
    int64_t last; /* number of the last token that two were merged to */
};

static void spell_token(struct spelled *x, int k, int which, const char *s, int64_t n)
{
    x->token[k][which].at = (int64_t)x->text.n;
    x->token[k][which].n = n;
    meg_str_add(&x->text, s, (size_t)n);
}

/* Read the next merges, up to BATCH; returns how many there were before the end, or before one that is
 * none. */
static int spell_merges(struct spelled *x, const struct bpe *b, struct meg_json_scan *s, bool *is_bad)
{
    const int64_t skip = (int64_t)strlen(b->prefix);
    int n = 0;

    x->text.n = 0;
    *is_bad = false;
    for (; n < BATCH && meg_hf_json_next(s); n++) {
        struct meg_span p[2];
        bool has_prefix;

        if ((*is_bad = !read_parts(s, x->part, p)))
            break;
        spell_token(x, n, LEFT, p[0].s, p[0].n);
        spell_token(x, n, RIGHT, p[1].s, p[1].n);
        has_prefix = skip > 0 && p[1].n >= skip && memcmp(p[1].s, b->prefix, (size_t)skip) == 0;
        x->token[n][BOTH] = x->token[n][LEFT];
        x->token[n][BOTH].n += p[1].n;
        if (has_prefix) {
            spell_token(x, n, BOTH, p[0].s, p[0].n);
            meg_str_add(&x->text, p[1].s + skip, (size_t)(p[1].n - skip));
            x->token[n][BOTH].n += p[1].n - skip;
        }
    }
    return n;
}

static void prefetch_parts(struct spelled *x, const struct meg_hf_vocab *v, int n)
{
    for (int k = 0; k < n; k++) {
        for (int i = LEFT; i <= RIGHT; i++)
            x->token[k][i].hash = meg_strtab_prefetch(&v->tokens, x->text.s + x->token[k][i].at, x->token[k][i].n);
    }
}

/* Most merges are listed in the order of the tokens that they make. */
static int64_t find_merged(struct spelled *x, const struct meg_strtab *tokens, const char *s, int64_t n)
{
    for (int64_t k = x->last; k < tokens->n && k <= x->last + 1; k++) {
        struct meg_str t = meg_strtab_get(tokens, k);

        if ((int64_t)t.n == n && memcmp(t.s, s, t.n) == 0)
            return x->last = k;
    }
    return x->last = meg_strtab_find(tokens, s, n);
}

/* Look up merge k of those read. */
static int find_merge(struct meg_bpe_merge_rule *to, const struct meg_hf_vocab *v, struct spelled *x, int k,
                      const char *from, struct meg_err *e)
{
    int32_t *const id[TOKENS] = { &to->left, &to->right, &to->id };
    struct meg_span token[TOKENS];
    int lacks = -1;

    for (int i = TOKENS - 1; i >= 0; i--) {
        int64_t nth;

        token[i] = (struct meg_span){ x->text.s + x->token[k][i].at, x->token[k][i].n };
        nth = i == BOTH ? find_merged(x, &v->tokens, token[i].s, token[i].n)
                        : meg_strtab_find_hashed(&v->tokens, token[i].s, token[i].n, x->token[k][i].hash);
        *id[i] = nth < 0 ? -1 : v->id[nth];
        lacks = nth < 0 ? i : lacks;
    }
    if (lacks < 0)
        return MEG_OK;
    return meg_fail(e, MEG_EFORMAT, "%s: merge %d is '%.*s' + '%.*s', but there is no token '%.*s'", from, to->rank,
                    (int)token[LEFT].n, token[LEFT].s, (int)token[RIGHT].n, token[RIGHT].s, (int)token[lacks].n,
                    token[lacks].s);
}

static bool is_among_bytes(const struct bpe *b, int32_t id)
{
    return id >= b->min_byte && id <= b->max_byte;
}

static int load_merges(struct bpe *b, const struct meg_hf_model *m, const json_t *part, const char *from,
                       struct meg_err *e)
{
    const struct meg_span *list = &m->lists.merges;
    struct meg_err why;
    struct meg_json_scan s;
    struct meg_bpe_merge_rule *merge = NULL;
    struct spelled x = { 0 };
    int64_t n = 0, cap = 0;
    bool is_bad = false;
    json_t *merges;
    int r = meg_json_get_array(part, "merges", MEG_JSON_REQUIRED, &merges, from, e), k = BATCH;

    if (r < 0)
        return r;
    MEG_ASSERT(list->s);
    s = (struct meg_json_scan){ list->s, list->s, list->s + list->n, "byte", &why };
    while (r == MEG_OK && k == BATCH) {
        k = spell_merges(&x, b, &s, &is_bad);
        prefetch_parts(&x, &m->vocab, k);
        if (n + BATCH > cap) {
            cap = cap ? 2 * cap : 1024;
            merge = meg_realloc_array(merge, (size_t)cap, sizeof *merge);
        }
        for (int i = 0; i < k && r == MEG_OK; i++, n++) {
            merge[n].rank = (int32_t)n;
            r = find_merge(&merge[n], &m->vocab, &x, i, from, e);
            b->merges_bytes |= r == MEG_OK && (is_among_bytes(b, merge[n].left) || is_among_bytes(b, merge[n].right));
        }
    }
    if (r == MEG_OK && is_bad)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: merge %lld is not two tokens with a blank between, nor "
                     "an array of two",
                     from, (long long)n);
    if (r == MEG_OK) {
        meg_bpe_init(&b->merges, n);
        meg_bpe_add_all(&b->merges, merge, n);
    }
    free(merge);
    for (int i = 0; i < 2; i++)
        meg_str_free(&x.part[i]);
    meg_str_free(&x.text);
    return r;
}

static int bpe_load(struct meg_hf_model *m, const json_t *part, const char *from, struct meg_err *e)
{
    struct bpe *b = meg_new(sizeof *b);
    const char *unk = NULL, *prefix = "", *suffix = "";
    bool byte_fallback = false;
    double dropout = 0;
    int r;

    m->own = b;
    if ((r = meg_json_get_str(part, "unk_token", MEG_JSON_OPTIONAL, &unk, from, e)) < 0 ||
        (r = meg_json_get_str(part, "continuing_subword_prefix", MEG_JSON_OPTIONAL, &prefix, from, e)) < 0 ||
        (r = meg_json_get_str(part, "end_of_word_suffix", MEG_JSON_OPTIONAL, &suffix, from, e)) < 0 ||
        (r = meg_json_get_bool(part, "fuse_unk", MEG_JSON_OPTIONAL, &b->fuse_unk, from, e)) < 0 ||
        (r = meg_json_get_bool(part, "byte_fallback", MEG_JSON_OPTIONAL, &byte_fallback, from, e)) < 0 ||
        (r = meg_json_get_bool(part, "ignore_merges", MEG_JSON_OPTIONAL, &b->ignore_merges, from, e)) < 0 ||
        (r = meg_json_get_f64(part, "dropout", MEG_JSON_OPTIONAL, &dropout, from, e)) < 0)
        return r;
    if (dropout != 0)
        return meg_fail(e, MEG_EFORMAT, "%s: dropout %g makes ids random; set it to null", from, dropout);
    b->prefix = meg_strdup(prefix);
    b->suffix = meg_strdup(suffix);
    b->unk = unk ? meg_hf_vocab_find(&m->vocab, unk, (int64_t)strlen(unk)) : -1;
    if (unk && b->unk < 0 && *unk)
        return meg_fail(e, MEG_EFORMAT, "%s: unk_token '%s' is not in the vocabulary", from, unk);
    for (int i = 0; i < 256; i++) {
        char name[8];

        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        b->byte_id[i] = byte_fallback ? meg_hf_vocab_find(&m->vocab, name, 6) : -1;
        b->min_byte = i == 0 || b->byte_id[i] < b->min_byte ? b->byte_id[i] : b->min_byte;
        b->max_byte = i == 0 || b->byte_id[i] > b->max_byte ? b->byte_id[i] : b->max_byte;
    }
    b->has_all_bytes = b->min_byte >= 0;
    return load_merges(b, m, part, from, e);
}

/* One character with what belongs before and behind it, in place or in buf. */
static struct meg_span spell_char(const struct bpe *b, const char *s, int len, bool is_first, bool is_last,
                                  struct meg_str *buf)
{
    if ((is_first || !*b->prefix) && (!is_last || !*b->suffix))
        return (struct meg_span){ s, len };
    buf->n = 0;
    if (!is_first)
        meg_str_add(buf, b->prefix, strlen(b->prefix));
    meg_str_add(buf, s, (size_t)len);
    if (is_last)
        meg_str_add(buf, b->suffix, strlen(b->suffix));
    return (struct meg_span){ buf->s, (int64_t)buf->n };
}

/* With byte_fallback, the ids of all bytes of what is spelled c; false when one is missing.  There is room for
 * left ids behind them then. */
static bool add_bytes(const struct bpe *b, struct meg_span c, int64_t left, struct meg_ids *out)
{
    for (int64_t k = 0; k < c.n; k++) {
        if (b->byte_id[(unsigned char)c.s[k]] < 0)
            return false;
    }
    meg_ids_reserve(out, c.n + left);
    for (int64_t k = 0; k < c.n; k++)
        out->v[out->n++] = b->byte_id[(unsigned char)c.s[k]];
    return true;
}

/* Symbols that are read ahead of where the result is put. */
struct in_place {
    int32_t *v;
    int64_t at, n, put;
};

static int64_t read_symbols(void *ctx, int32_t *sym, int64_t n)
{
    struct in_place *p = ctx;

    n = n < p->n - p->at ? n : p->n - p->at;
    memcpy(sym, p->v + p->at, (size_t)n * sizeof *sym);
    p->at += n;
    return n;
}

static int put_symbols(void *ctx, const int32_t *sym, int64_t n, struct meg_err *e)
{
    struct in_place *p = ctx;

    (void)e;
    memcpy(p->v + p->put, sym, (size_t)n * sizeof *sym);
    p->put += n;
    return 0;
}

static int merge_long(const struct meg_bpe *b, struct meg_ids *out, int64_t first, int64_t nbytes, struct meg_err *e)
{
    struct in_place p = { .v = out->v + first, .n = out->n - first };
    int r =
        meg_bpe_stream(&(struct meg_bpe_stream){ b, true, read_symbols, put_symbols, &p, MEG_BPE_WINDOW, nbytes }, e);

    if (r < 0)
        return r;
    out->n = first + p.put;
    return MEG_OK;
}

static int bpe_encode(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out, struct meg_err *e)
{
    const struct bpe *b = m->own;
    int32_t whole = b->ignore_merges ? meg_hf_vocab_find(&m->vocab, s, n) : -1;
    int64_t first = out->n;
    struct meg_str buf = { 0 };
    bool is_waiting = false; /* an unknown one that the next may be joined to; bytes overtake it */

    meg_ids_reserve(out, n + 1);
    if (whole >= 0) {
        out->v[out->n++] = whole;
        return MEG_OK;
    }
    for (int64_t i = 0; i < n;) {
        int32_t cp, id;
        int len = meg_utf8_decode(s + i, n - i, &cp);
        struct meg_span c = spell_char(b, s + i, len, i == 0, i + len == n, &buf);

        id = meg_hf_vocab_find(&m->vocab, c.s, c.n);
        if (id >= 0) {
            if (is_waiting)
                out->v[out->n++] = b->unk;
            is_waiting = false;
            out->v[out->n++] = id;
        } else if (!add_bytes(b, c, n - i, out) && b->unk >= 0) {
            if (is_waiting && !b->fuse_unk)
                out->v[out->n++] = b->unk;
            is_waiting = true;
        }
        i += len;
    }
    if (is_waiting)
        out->v[out->n++] = b->unk;
    meg_str_free(&buf);
    if (out->n - first > MEG_BPE_WINDOW)
        return merge_long(&b->merges, out, first, n, e);
    out->n = first + meg_bpe_merge_leftmost(&b->merges, out->v + first, out->n - first, NULL);
    return MEG_OK;
}

/* Where no merge goes across two parts can be merged apart (tokenizer/bpe/bpe_stream.c); nothing is left out of the
 * text or waits for what follows where each unknown character becomes bytes, which are in no merge. */
bool meg_hf_bpe_has_safe_splits(const struct meg_hf_model *m)
{
    const struct bpe *b = m->own;

    return m->kind == &meg_hf_bpe && !*b->prefix && !*b->suffix && !b->ignore_merges && b->has_all_bytes &&
           !b->merges_bytes;
}

bool meg_hf_bpe_to_byte_level(const struct meg_hf_model *m, struct meg_bytebpe *out)
{
    struct bpe *b = m->own;
    struct meg_str bytes = { 0 };

    if (m->kind != &meg_hf_bpe || *b->prefix || *b->suffix || b->byte_id['a'] >= 0)
        return false;
    for (int i = 0; i < 256; i++) {
        bool is_in_text = i != 0xC0 && i != 0xC1 && i < 0xF5;
        char s[4];

        out->byte_id[i] = meg_hf_vocab_find(&m->vocab, s, meg_utf8_encode(s, meg_byte_alphabet_char(i)));
        if (out->byte_id[i] < 0 && is_in_text)
            return false; /* unknown ones may be joined, and what is around one that is left out merged */
    }
    out->unk = -1;
    out->is_leftmost = true;
    out->bpe = b->merges;
    b->merges = (struct meg_bpe){ 0 };
    if (b->ignore_merges) {
        meg_strtab_reserve(&out->tokens, m->vocab.tokens.n);
        out->token_id = meg_realloc_array(NULL, (size_t)out->tokens.cap, sizeof *out->token_id);
    }
    for (int64_t k = 0; b->ignore_merges && k < m->vocab.tokens.n; k++) {
        struct meg_str t = meg_strtab_get(&m->vocab.tokens, k);

        bytes.n = 0;
        if (meg_byte_alphabet_decode(&bytes, t.s, (int64_t)t.n) < 0 || bytes.n == 0)
            continue;
        out->token_id[out->tokens.n] = m->vocab.id[k];
        meg_strtab_append(&out->tokens, bytes.s, (int64_t)bytes.n);
    }
    if (out->tokens.n > 0)
        meg_strtab_index(&out->tokens);
    meg_str_free(&bytes);
    return true;
}

const struct meg_hf_model_type meg_hf_bpe = { "BPE", bpe_load, bpe_free, bpe_encode };
