/*
 * bpe.c - segmentation by BPE.  In each step, SentencePiece merges the two neighboring symbols whose concatenation is
 * the piece with the highest score.  SentencePiece looks up the concatenation of each pair in the vocabulary.  In this
 * file, ranked merges replace these lookups: each split of a piece into two symbols becomes a merge when the model is
 * opened.  Merges with higher scores have lower ranks; equal scores have equal ranks.
 *
 * Symbols 0 .. n-1 are the n pieces of the model.  Each symbol from n on is a single character that is not a matched
 * piece.  The character occurs in a matched piece or is a reserved piece.  Reserved pieces have a type that is not
 * matched in text, for example CONTROL.
 */
#include <stdlib.h>
#include "base/strtab.h"
#include "tokenizer/spm/internal.h"
#include "unicode/utf8.h"

/* ---- Symbols ---- */

/* Return the id of the reserved piece s [n], or -1 if there is none. */
static int32_t reserved_id(const struct meg_strtab *reserved, const int32_t *id, const char *s, int64_t n)
{
    int64_t k = meg_strtab_find(reserved, s, n);

    return k < 0 ? -1 : id[k];
}

struct symbols {
    struct meg_strtab chars;    /* characters; character k has symbol n + k, unless it is a matched piece */
    struct meg_strtab reserved; /* texts of the reserved pieces, spelled as in normalized text */
    int32_t *reserved_id;       /* [reserved.n] ids of the reserved pieces */
};

static void find_reserved(const struct meg_spm *s, struct symbols *syms)
{
    const struct meg_spm_model *m = s->model;
    struct meg_str text = { 0 };

    syms->reserved_id = meg_new((size_t)m->n * sizeof *syms->reserved_id);
    for (int32_t id = 0; id < m->n; id++) {
        struct meg_str piece = meg_spm_piece_text(m, id);

        text.n = 0;
        if (!meg_spm_is_matched(m, id) &&
            meg_spm_normalizer_piece(&m->normalizer_spec, piece.s, (int64_t)piece.n, &text))
            syms->reserved_id[meg_strtab_add(&syms->reserved, text.s, (int64_t)text.n)] = id;
    }
    meg_str_free(&text);
}

/* Collect the characters of matched pieces, and the reserved pieces that consist of one character. */
static void find_chars(const struct meg_spm *s, struct symbols *syms)
{
    const char *text = s->surfaces.bytes.s;

    for (int64_t at = 0, len; at < (int64_t)s->surfaces.bytes.n; at += len) {
        len = meg_utf8_length((unsigned char)text[at]);
        meg_strtab_add(&syms->chars, text + at, len);
    }
    for (int64_t k = 0; k < syms->reserved.n; k++) {
        struct meg_str piece = meg_strtab_get(&syms->reserved, k);

        if ((int64_t)piece.n == meg_utf8_length((unsigned char)piece.s[0]))
            meg_strtab_add(&syms->chars, piece.s, (int64_t)piece.n);
    }
}

static int build_symbols(struct meg_spm *s, struct symbols *syms, struct meg_err *e)
{
    const struct meg_spm_model *m = s->model;
    struct meg_trie_key *key = meg_new((size_t)(m->n + syms->chars.n) * sizeof *key);
    struct meg_strtab pieces = { 0 };
    int32_t *out = meg_new((size_t)(m->n + syms->chars.n) * sizeof *out);
    int64_t n = 0;
    int r;

    for (int32_t id = 0; id < m->n; id++) {
        struct meg_str t = meg_strtab_get(&s->surfaces, id);

        if (t.n == 0)
            continue;
        out[id] = reserved_id(&syms->reserved, syms->reserved_id, t.s, (int64_t)t.n);
        out[id] = out[id] < 0 ? id : out[id];
        key[n++] = (struct meg_trie_key){ t.s, (int64_t)t.n, id };
        if ((int)t.n == meg_utf8_length((unsigned char)t.s[0]))
            meg_strtab_add(&pieces, t.s, (int64_t)t.n);
    }
    for (int64_t k = 0; k < syms->chars.n; k++) {
        struct meg_str c = meg_strtab_get(&syms->chars, k);
        int32_t sym = m->n + (int32_t)k;

        out[sym] = reserved_id(&syms->reserved, syms->reserved_id, c.s, (int64_t)c.n);
        out[sym] = out[sym] < 0 ? m->unk : out[sym];
        if (meg_strtab_find(&pieces, c.s, (int64_t)c.n) < 0)
            key[n++] = (struct meg_trie_key){ c.s, (int64_t)c.n, sym };
    }
    s->bpe.id_of_symbol = out;
    r = meg_trie_build(&s->bpe.symbols, key, n, e);
    meg_strtab_free(&pieces);
    free(key);
    return r;
}

/* ---- Merges ---- */

struct scored {
    float score;
    int32_t id;
};

static int by_score(const void *x, const void *y)
{
    const struct scored *a = x, *b = y;

    return (a->score < b->score) - (a->score > b->score);
}

/* Set rank [n] by score: the highest score has rank 0, and each distinct lower score has the next rank. */
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

/* Return the number of splits of a piece into two symbols.  If !is_counting, add a merge for each split. */
static int64_t add_pairs(struct meg_spm *s, int32_t id, int32_t rank, bool is_counting)
{
    const struct meg_str surface = meg_strtab_get(&s->surfaces, id);
    const char *text = surface.s;
    const int64_t n = (int64_t)surface.n;
    struct spm_bpe *b = &s->bpe;
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
            n += add_pairs(s, id, rank[id], pass == 0);
    }
    free(rank);
}

static void find_unused(struct meg_spm *s)
{
    const struct meg_spm_model *m = s->model;

    for (int32_t id = 0; id < m->n; id++) {
        if (m->piece[id].type == MEG_SPM_UNUSED)
            s->has_safe_splits = false; /* the symbols that replace an unused piece depend on the entire text */
    }
}

int spm_bpe_init(struct meg_spm *s, struct meg_err *e)
{
    struct symbols syms = { 0 };
    int r;

    find_reserved(s, &syms);
    find_chars(s, &syms);
    if ((r = build_symbols(s, &syms, e)) == 0 &&
        (r = spm_build_trie(&s->bpe.user_defined, s, 1 << MEG_SPM_USER_DEFINED, true, e)) == 0) {
        build_pairs(s);
        find_unused(s);
    }
    meg_strtab_free(&syms.chars);
    meg_strtab_free(&syms.reserved);
    free(syms.reserved_id);
    return r;
}

void spm_bpe_free(struct spm_bpe *b)
{
    meg_trie_free(&b->symbols);
    meg_trie_free(&b->user_defined);
    meg_bpe_free(&b->pairs);
    free(b->id_of_symbol);
}

/* ---- Words ---- */

/*
 * Convert the id of a user-defined piece to a negative symbol, which is in no merge, or convert the symbol back to the
 * id.  The negative symbols begin at -2, since -1 represents a character without a symbol.
 */
static int32_t mark_unmergeable(int32_t id)
{
    return -2 - id;
}

/*
 * Return the symbol at the beginning of text [n], and set *len to its length in bytes.  The symbol is the longest
 * user-defined piece that matches or, if none does, the first character.  Return -1 for a character without a symbol.
 */
static int32_t next_symbol(const struct spm_bpe *b, const char *text, int64_t n, int64_t *len)
{
    int32_t user_defined;

    if ((*len = meg_trie_longest(&b->user_defined, text, n, &user_defined)) > 0)
        return mark_unmergeable(user_defined);
    *len = meg_utf8_length((unsigned char)text[0]);
    return meg_trie_find(&b->symbols, text, *len);
}

/*
 * Append the ids of symbol sym, which begins at `text`, and return its length in bytes.  If sym is an unused piece of
 * several characters, append the ids of its pair in rev_merge instead (tokenizer/bpe/bpe.h).  Set *is_known to false
 * for an unknown character.
 */
static int64_t add_symbol(struct meg_spm_encoder *enc, int32_t sym, const char *text, bool *is_known)
{
    const struct meg_spm *s = enc->spm;
    const struct meg_spm_model *m = s->model;
    int32_t id = sym == -1 ? m->unk : sym < -1 ? s->bpe.id_of_symbol[mark_unmergeable(sym)] : s->bpe.id_of_symbol[sym];
    int32_t piece = sym < -1 ? mark_unmergeable(sym) : sym;
    int64_t len = piece < 0 || piece >= m->n ? meg_utf8_length((unsigned char)text[0])
                                             : (int64_t)meg_strtab_get(&s->surfaces, piece).n;

    if (enc->rev_merge && id == piece && m->piece[id].type == MEG_SPM_UNUSED &&
        len > meg_utf8_length((unsigned char)text[0])) {
        const struct meg_bpe_rev_merge pair = enc->rev_merge[piece];
        int64_t left = add_symbol(enc, pair.left, text, is_known);

        add_symbol(enc, pair.right, text + left, is_known);
    } else if (id == m->unk) {
        spm_add_unknown(enc, text, len);
        *is_known = false;
    } else {
        *enc->ids_end++ = id;
    }
    return len;
}

/* State of a long word that is merged by meg_bpe_stream. */
struct long_word {
    struct meg_spm_encoder *enc;
    const char *in, *end; /* bytes that are not read yet */
    const char *out;      /* first byte whose symbol is not written yet */
    bool is_known;
};

static int64_t read_symbols(void *ctx, int32_t *sym, int64_t n)
{
    struct long_word *lw = ctx;
    int64_t nsym = 0;

    for (int64_t len; nsym < n && lw->in < lw->end; lw->in += len)
        sym[nsym++] = next_symbol(&lw->enc->spm->bpe, lw->in, lw->end - lw->in, &len);
    return nsym;
}

static int write_symbols(void *ctx, const int32_t *sym, int64_t n, struct meg_err *e)
{
    struct long_word *lw = ctx;
    int r;

    if ((r = spm_reserve_ids(lw->enc, 3 * (lw->in - lw->out), e)) < 0) /* a space can become 3 ids */
        return r;
    for (int64_t i = 0; i < n; i++)
        lw->out += add_symbol(lw->enc, sym[i], lw->out, &lw->is_known);
    return 0;
}

static int long_word(struct meg_spm_encoder *enc, const char *word, int64_t n, bool *is_known, struct meg_err *e)
{
    struct long_word lw = { enc, word, word + n, word, true };
    int r = meg_bpe_stream(
        &(struct meg_bpe_stream){ &enc->spm->bpe.pairs, true, read_symbols, write_symbols, &lw, MEG_BPE_WINDOW, n }, e);

    *is_known = lw.is_known;
    return r;
}

int spm_bpe_word(struct meg_spm_encoder *enc, const char *word, int64_t n, bool *is_known, struct meg_err *e)
{
    const struct spm_bpe *b = &enc->spm->bpe;
    int64_t nsym = 0, at = 0;

    if (n > SPM_MAX_CACHED_WORD && !enc->rev_merge)
        return long_word(enc, word, n, is_known, e);
    *is_known = true;
    if (n > enc->nsym) {
        enc->nsym = n + n / 2;
        free(enc->sym);
        enc->sym = meg_realloc_array(NULL, (size_t)enc->nsym, sizeof *enc->sym);
    }
    for (int64_t i = 0, len; i < n; i += len)
        enc->sym[nsym++] = next_symbol(b, word + i, n - i, &len);
    nsym = meg_bpe_merge_leftmost(&b->pairs, enc->sym, nsym, enc->rev_merge);
    for (int64_t i = 0; i < nsym; i++)
        at += add_symbol(enc, enc->sym[i], word + at, is_known);
    return 0;
}
