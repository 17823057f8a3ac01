/*
 * SentencePiece looks up the text of two neighbours; here every way to cut a piece in two symbols
 * becomes a ranked pair beforehand, equal scores having equal ranks.  Symbols are numbered as pieces
 * are; characters that occur in pieces but are none themselves follow.
 */
#include <stdlib.h>

#include "base/strtab.h"
#include "tokenizer/spm/internal.h"
#include "unicode/utf8.h"

/* ---- symbols ---- */

/* The id of a piece of a type that is not matched, by its text; -1: none. */
static int32_t reserved_id(const struct meg_strtab *reserved, const int32_t *id, const char *s, int64_t n)
{
    int64_t k = meg_strtab_find(reserved, s, n);

    return k < 0 ? -1 : id[k];
}

struct symbols {
    struct meg_strtab chars;    /* of pieces, that are none themselves */
    struct meg_strtab reserved; /* texts of pieces that are not matched */
    int32_t *reserved_id;       /* [reserved.n] */
};

static void find_reserved(const struct meg_spm *s, struct symbols *x)
{
    const struct meg_spm_model *m = s->model;
    struct meg_str text = { 0 };

    x->reserved_id = meg_new((size_t)m->n * sizeof *x->reserved_id);
    for (int32_t id = 0; id < m->n; id++) {
        struct meg_str piece = meg_spm_piece_text(m, id);

        text.n = 0;
        if (!meg_spm_is_matched(m, id) && meg_spm_normalizer_piece(&m->norm, piece.s, (int64_t)piece.n, &text))
            x->reserved_id[meg_strtab_add(&x->reserved, text.s, (int64_t)text.n)] = id;
    }
    meg_str_free(&text);
}

/* The characters of pieces, and those that are a piece that is not matched, get symbols. */
static void find_chars(const struct meg_spm *s, struct symbols *x)
{
    const char *text = s->texts.bytes.s;

    for (int64_t at = 0, len; at < (int64_t)s->texts.bytes.n; at += len) {
        len = meg_utf8_length((unsigned char)text[at]);
        meg_strtab_add(&x->chars, text + at, len);
    }
    for (int64_t k = 0; k < x->reserved.n; k++) {
        struct meg_str piece = meg_strtab_get(&x->reserved, k);

        if ((int64_t)piece.n == meg_utf8_length((unsigned char)piece.s[0]))
            meg_strtab_add(&x->chars, piece.s, (int64_t)piece.n);
    }
}

static int build_symbols(struct meg_spm *s, struct symbols *x, struct meg_err *e)
{
    const struct meg_spm_model *m = s->model;
    struct meg_trie_key *key = meg_new((size_t)(m->n + x->chars.n) * sizeof *key);
    struct meg_strtab pieces = { 0 };
    int32_t *out = meg_new((size_t)(m->n + x->chars.n) * sizeof *out);
    int64_t n = 0;
    int r;

    for (int32_t id = 0; id < m->n; id++) {
        const char *text = s->texts.bytes.s + s->texts.at[id];
        int64_t len = spm_surface_length(&s->texts, id);

        if (len == 0)
            continue;
        out[id] = reserved_id(&x->reserved, x->reserved_id, text, len);
        out[id] = out[id] < 0 ? id : out[id];
        key[n++] = (struct meg_trie_key){ text, len, id };
        if (len == meg_utf8_length((unsigned char)text[0]))
            meg_strtab_add(&pieces, text, len);
    }
    for (int64_t k = 0; k < x->chars.n; k++) {
        struct meg_str c = meg_strtab_get(&x->chars, k);
        int32_t sym = m->n + (int32_t)k;

        out[sym] = reserved_id(&x->reserved, x->reserved_id, c.s, (int64_t)c.n);
        out[sym] = out[sym] < 0 ? m->unk : out[sym];
        if (meg_strtab_find(&pieces, c.s, (int64_t)c.n) < 0)
            key[n++] = (struct meg_trie_key){ c.s, (int64_t)c.n, sym };
    }
    s->bpe.out = out;
    r = meg_trie_build(&s->bpe.symbols, key, n, e);
    meg_strtab_free(&pieces);
    free(key);
    return r;
}

static int build_frozen(struct meg_spm *s, struct meg_err *e)
{
    const struct meg_spm_model *m = s->model;
    struct meg_trie_key *key = meg_new((size_t)m->n * sizeof *key);
    int64_t n = 0;
    int r;

    for (int32_t id = 0; id < m->n; id++) {
        if (m->piece[id].type == MEG_SPM_USER_DEFINED && spm_surface_length(&s->texts, id) > 0)
            key[n++] =
                (struct meg_trie_key){ s->texts.bytes.s + s->texts.at[id], spm_surface_length(&s->texts, id), id };
    }
    r = meg_trie_build(&s->bpe.frozen, key, n, e);
    free(key);
    return r;
}

/* ---- pairs ---- */

struct scored {
    float score;
    int32_t id;
};

static int by_score(const void *x, const void *y)
{
    const struct scored *a = x, *b = y;

    return (a->score < b->score) - (a->score > b->score);
}

/* rank [n]: 0 for the greatest score, one more for each that is less. */
static void rank_scores(const struct meg_spm_model *m, int32_t *rank)
{
    struct scored *s = meg_new((size_t)m->n * sizeof *s);
    int32_t r = 0;

    for (int32_t id = 0; id < m->n; id++)
        s[id] = (struct scored){ m->piece[id].score, id };
    qsort(s, (size_t)m->n, sizeof *s, by_score);
    for (int32_t i = 0; i < m->n; i++) {
        r += i > 0 && s[i].score != s[i - 1].score;
        rank[s[i].id] = r;
    }
    free(s);
}

/* Every cut of a piece into two symbols that is there is a pair; returns how many that are. */
static int64_t add_pairs(struct spm_bpe *b, const char *text, int64_t n, int32_t id, int32_t rank, bool is_counting)
{
    uint32_t node = MEG_TRIE_ROOT;
    int32_t left, right;
    int64_t pairs = 0;

    for (int64_t i = 0; i + 1 < n && meg_trie_step(&b->symbols, &node, (unsigned char)text[i], &left); i++) {
        if (left < 0 || (right = meg_trie_find(&b->symbols, text + i + 1, n - i - 1)) < 0)
            continue;
        pairs++;
        if (!is_counting)
            meg_bpe_add(&b->pairs, left, right, rank, id);
    }
    return pairs;
}

static void build_pairs(struct meg_spm *s)
{
    const struct meg_spm_model *m = s->model;
    int32_t *rank = meg_new((size_t)m->n * sizeof *rank);
    int64_t n = 0;

    rank_scores(m, rank);
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1)
            meg_bpe_init(&s->bpe.pairs, n);
        for (int32_t id = 0; id < m->n; id++)
            n += add_pairs(&s->bpe, s->texts.bytes.s + s->texts.at[id], spm_surface_length(&s->texts, id), id, rank[id],
                           pass == 0);
    }
    free(rank);
}

static void find_unused(struct meg_spm *s)
{
    const struct meg_spm_model *m = s->model;

    for (int32_t id = 0; id < m->n; id++) {
        if (m->piece[id].type == MEG_SPM_UNUSED)
            s->is_cut = false; /* how one is split depends on all pairs of the text */
    }
}

int spm_bpe_init(struct meg_spm *s, struct meg_err *e)
{
    struct symbols x = { 0 };
    int r;

    find_reserved(s, &x);
    find_chars(s, &x);
    if ((r = build_symbols(s, &x, e)) == MEG_OK && (r = build_frozen(s, e)) == MEG_OK) {
        build_pairs(s);
        find_unused(s);
    }
    meg_strtab_free(&x.chars);
    meg_strtab_free(&x.reserved);
    free(x.reserved_id);
    return r;
}

void spm_bpe_free(struct spm_bpe *b)
{
    meg_trie_free(&b->symbols);
    meg_trie_free(&b->frozen);
    meg_bpe_free(&b->pairs);
    free(b->out);
}

/* ---- words ---- */

/* A frozen piece among the symbols, which takes part in no pair; -1 is a character without symbol. */
static int32_t freeze(int32_t id)
{
    return -2 - id;
}

/* The symbol that text [n] begins with; *len bytes of it. */
static int32_t next_symbol(const struct spm_bpe *b, const char *text, int64_t n, int64_t *len)
{
    uint32_t node = MEG_TRIE_ROOT;
    int32_t value, frozen = -1;

    for (int64_t i = 0; i < n && meg_trie_step(&b->frozen, &node, (unsigned char)text[i], &value); i++) {
        if (value >= 0) {
            frozen = value;
            *len = i + 1;
        }
    }
    if (frozen >= 0)
        return freeze(frozen);
    *len = meg_utf8_length((unsigned char)text[0]);
    return meg_trie_find(&b->symbols, text, *len);
}

/* Append what a symbol at text stands for; returns its length, and *is_known becomes false for an
 * unknown character. */
static int64_t add_symbol(struct meg_spm_encoder *w, int32_t sym, const char *text, bool *is_known)
{
    const struct meg_spm *s = w->spm;
    const struct meg_spm_model *m = s->model;
    int32_t id = sym == -1 ? m->unk : sym < -1 ? s->bpe.out[freeze(sym)] : s->bpe.out[sym];
    int32_t piece = sym < -1 ? freeze(sym) : sym;
    int64_t len =
        piece < 0 || piece >= m->n ? meg_utf8_length((unsigned char)text[0]) : spm_surface_length(&s->texts, piece);

    if (w->seen && id == piece && m->piece[id].type == MEG_SPM_UNUSED &&
        len > meg_utf8_length((unsigned char)text[0])) {
        const struct meg_bpe_rev_merge pair = w->seen[piece];
        int64_t left = add_symbol(w, pair.left, text, is_known);

        add_symbol(w, pair.right, text + left, is_known);
    } else if (id == m->unk) {
        spm_add_unknown(w, text, len);
        *is_known = false;
    } else {
        *w->ids++ = id;
    }
    return len;
}

/* A long word on its way. */
struct long_word {
    struct meg_spm_encoder *w;
    const char *in, *end; /* bytes whose symbols are still to be read */
    const char *out;      /* bytes whose ids are still to be written */
    bool is_known;
};

static int64_t read_symbols(void *ctx, int32_t *sym, int64_t n)
{
    struct long_word *x = ctx;
    int64_t nsym = 0;

    for (int64_t len; nsym < n && x->in < x->end; x->in += len)
        sym[nsym++] = next_symbol(&x->w->spm->bpe, x->in, x->end - x->in, &len);
    return nsym;
}

static int put_symbols(void *ctx, const int32_t *sym, int64_t n, struct meg_err *e)
{
    struct long_word *x = ctx;
    int r;

    if ((r = spm_reserve_ids(x->w, 3 * (x->in - x->out), e)) < 0) /* an unknown blank has three bytes */
        return r;
    for (int64_t i = 0; i < n; i++)
        x->out += add_symbol(x->w, sym[i], x->out, &x->is_known);
    return 0;
}

static int long_word(struct meg_spm_encoder *w, const char *word, int64_t n, bool *is_known, struct meg_err *e)
{
    struct long_word x = { w, word, word + n, word, true };
    int r = meg_bpe_stream(
        &(struct meg_bpe_stream){ &w->spm->bpe.pairs, true, read_symbols, put_symbols, &x, MEG_BPE_WINDOW, n }, e);

    *is_known = x.is_known;
    return r;
}

int spm_bpe_word(struct meg_spm_encoder *w, const char *word, int64_t n, bool *is_known, struct meg_err *e)
{
    const struct spm_bpe *b = &w->spm->bpe;
    int64_t nsym = 0, at = 0;

    if (n > SPM_MAX_CACHED_WORD && !w->seen)
        return long_word(w, word, n, is_known, e);
    *is_known = true;
    if (n > w->nsym) {
        w->nsym = n + n / 2;
        free(w->sym);
        w->sym = meg_realloc_array(NULL, (size_t)w->nsym, sizeof *w->sym);
    }
    for (int64_t i = 0, len; i < n; i += len)
        w->sym[nsym++] = next_symbol(b, word + i, n - i, &len);
    nsym = meg_bpe_merge_leftmost(&b->pairs, w->sym, nsym, w->seen);
    for (int64_t i = 0; i < nsym; i++)
        at += add_symbol(w, w->sym[i], word + at, is_known);
    return 0;
}
