/*
 * model_bpe.c - BPE model of tokenizer.json, which merges characters.  In byte-level files, each character represents a
 * byte (tokenizer/bpe/byte_alphabet.h).
 */
#include <inttypes.h>
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
    int32_t unk;          /* id of unknown characters; -1: drop them */
    int32_t byte_id[256]; /* see meg_hf_vocab_byte_ids */
    bool fuse_unk, ignore_merges;
    int32_t min_byte, max_byte; /* lowest and highest id in byte_id */
    bool has_all_bytes;         /* no byte_id is -1 */
    bool merges_bytes;          /* the left or right token of some merge has an id from min_byte to max_byte */
    /* prefix: added before each character of a pre-token except the first; suffix: added after the last; "" if none */
    char *prefix, *suffix;
};

static void bpe_free(void *impl)
{
    struct bpe *b = impl;

    meg_bpe_free(&b->merges);
    free(b->prefix);
    free(b->suffix);
    free(b);
}

/*
 * Read the two tokens of a merge, ["a", "b"] or "a b".  They point into the JSON text or into buf.  Return false if the
 * merge has another form.
 */
static bool read_parts(struct meg_json_scan *s, struct meg_str buf[2], struct meg_span part[2])
{
    const char *end, *space;

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
    space = memchr(part[0].s, ' ', (size_t)part[0].n);
    if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
        return false;
    part[0].n = space - part[0].s;
    part[1] = (struct meg_span){ space + 1, end - space - 1 };
    return true;
}

/*
 * Merges are read in batches.  The vocabulary entries of all left and right tokens of a batch are prefetched before the
 * first lookup.  BOTH is the merged token.
 */
enum { BATCH = 32, LEFT = 0, RIGHT, BOTH, TOKENS };

struct merge_batch {
    struct meg_str part[2]; /* scratch for read_parts */
    struct meg_str text;    /* all tokens of the batch, concatenated */
    struct {
        int64_t offset, n; /* byte range in text */
        uint64_t hash;     /* hash of the token; set for LEFT and RIGHT */
    } token[BATCH][TOKENS];
    int64_t last; /* vocabulary index of the merged token that was looked up last */
};

static void collect_token(struct merge_batch *batch, int k, int which, const char *s, int64_t n)
{
    batch->token[k][which].offset = (int64_t)batch->text.n;
    batch->token[k][which].n = n;
    meg_str_add(&batch->text, s, (size_t)n);
}

/*
 * Read up to BATCH merges and return their number, which is less than BATCH at the end of the list.  If a merge is
 * malformed, stop before it and set *is_bad to true.
 */
static int collect_merges(struct merge_batch *batch, const struct bpe *b, struct meg_json_scan *s, bool *is_bad)
{
    const int64_t skip = (int64_t)strlen(b->prefix);
    int n = 0;

    batch->text.n = 0;
    *is_bad = false;
    for (; n < BATCH && meg_hf_json_next(s); n++) {
        struct meg_span p[2];
        bool has_prefix;

        if ((*is_bad = !read_parts(s, batch->part, p)))
            break;
        collect_token(batch, n, LEFT, p[0].s, p[0].n);
        collect_token(batch, n, RIGHT, p[1].s, p[1].n);
        has_prefix = skip > 0 && p[1].n >= skip && memcmp(p[1].s, b->prefix, (size_t)skip) == 0;
        batch->token[n][BOTH] = batch->token[n][LEFT];
        batch->token[n][BOTH].n += p[1].n;
        if (has_prefix) {
            collect_token(batch, n, BOTH, p[0].s, p[0].n);
            meg_str_add(&batch->text, p[1].s + skip, (size_t)(p[1].n - skip));
            batch->token[n][BOTH].n += p[1].n - skip;
        }
    }
    return n;
}

static void prefetch_parts(struct merge_batch *batch, const struct meg_hf_vocab *v, int n)
{
    for (int k = 0; k < n; k++) {
        for (int i = LEFT; i <= RIGHT; i++)
            batch->token[k][i].hash =
                meg_strtab_prefetch(&v->tokens, batch->text.s + batch->token[k][i].offset, batch->token[k][i].n);
    }
}

/*
 * Return the vocabulary index of the merged token s [n], or -1.  The vocabulary usually lists merged tokens in the
 * order of the merges.  The previous result and the token after it are therefore tried before a hash lookup.
 */
static int64_t find_merged(struct merge_batch *batch, const struct meg_strtab *tokens, const char *s, int64_t n)
{
    for (int64_t k = batch->last; k < tokens->n && k <= batch->last + 1; k++) {
        struct meg_str t = meg_strtab_get(tokens, k);

        if ((int64_t)t.n == n && memcmp(t.s, s, t.n) == 0)
            return batch->last = k;
    }
    return batch->last = meg_strtab_find(tokens, s, n);
}

/* Look up the ids of the left, right and merged tokens of merge k of the batch. */
static int find_merge(struct meg_bpe_merge_rule *to, const struct meg_hf_vocab *v, struct merge_batch *batch, int k,
                      const char *where, struct meg_err *e)
{
    int32_t *const id[TOKENS] = { &to->left, &to->right, &to->id };
    struct meg_span token[TOKENS];
    int lacks = -1;

    for (int i = TOKENS - 1; i >= 0; i--) {
        int64_t nth;

        token[i] = (struct meg_span){ batch->text.s + batch->token[k][i].offset, batch->token[k][i].n };
        nth = i == BOTH ? find_merged(batch, &v->tokens, token[i].s, token[i].n)
                        : meg_strtab_find_hashed(&v->tokens, token[i].s, token[i].n, batch->token[k][i].hash);
        *id[i] = nth < 0 ? -1 : v->id[nth];
        lacks = nth < 0 ? i : lacks;
    }
    if (lacks < 0)
        return 0;
    return meg_fail(e, MEG_EFORMAT, "%s: merges[%d] is '%.*s' + '%.*s', but there is no token '%.*s'", where, to->rank,
                    (int)token[LEFT].n, token[LEFT].s, (int)token[RIGHT].n, token[RIGHT].s, (int)token[lacks].n,
                    token[lacks].s);
}

static bool is_byte_token(const struct bpe *b, int32_t id)
{
    return id >= b->min_byte && id <= b->max_byte;
}

static int load_merges(struct bpe *b, const struct meg_hf_model *m, const json_t *part, const char *where,
                       struct meg_err *e)
{
    const struct meg_span *list = &m->raw_vocab.merges;
    struct meg_err why;
    struct meg_json_scan s;
    struct meg_bpe_merge_rule *merge = NULL;
    struct merge_batch batch = { 0 };
    int64_t n = 0, cap = 0;
    bool is_bad = false;
    json_t *merges;
    int r = meg_json_get_array(part, "merges", MEG_JSON_REQUIRED, &merges, where, e), k = BATCH;

    if (r < 0)
        return r;
    MEG_ASSERT(list->s);
    s = (struct meg_json_scan){ list->s, list->s, list->s + list->n, "byte", &why };
    while (r == 0 && k == BATCH) {
        k = collect_merges(&batch, b, &s, &is_bad);
        prefetch_parts(&batch, &m->vocab, k);
        if (n + BATCH > cap) {
            cap = cap ? 2 * cap : 1024;
            merge = meg_realloc_array(merge, (size_t)cap, sizeof *merge);
        }
        for (int i = 0; i < k && r == 0; i++, n++) {
            merge[n].rank = (int32_t)n;
            r = find_merge(&merge[n], &m->vocab, &batch, i, where, e);
            b->merges_bytes |= r == 0 && (is_byte_token(b, merge[n].left) || is_byte_token(b, merge[n].right));
        }
    }
    if (r == 0 && is_bad)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: merges[%" PRId64 "] is neither two tokens separated by a space nor an array of two tokens",
                     where, n);
    if (r == 0) {
        meg_bpe_init(&b->merges, n);
        meg_bpe_add_all(&b->merges, merge, n);
    }
    free(merge);
    for (int i = 0; i < 2; i++)
        meg_str_free(&batch.part[i]);
    meg_str_free(&batch.text);
    return r;
}

static int bpe_load(struct meg_hf_model *m, const json_t *part, const char *where, struct meg_err *e)
{
    struct bpe *b = meg_new(sizeof *b);
    const char *unk = NULL, *prefix = "", *suffix = "";
    bool byte_fallback = false;
    double dropout = 0;
    int r;

    m->impl = b;
    if ((r = meg_json_get_str(part, "unk_token", MEG_JSON_OPTIONAL, &unk, where, e)) < 0 ||
        (r = meg_json_get_str(part, "continuing_subword_prefix", MEG_JSON_OPTIONAL, &prefix, where, e)) < 0 ||
        (r = meg_json_get_str(part, "end_of_word_suffix", MEG_JSON_OPTIONAL, &suffix, where, e)) < 0 ||
        (r = meg_json_get_bool(part, "fuse_unk", MEG_JSON_OPTIONAL, &b->fuse_unk, where, e)) < 0 ||
        (r = meg_json_get_bool(part, "byte_fallback", MEG_JSON_OPTIONAL, &byte_fallback, where, e)) < 0 ||
        (r = meg_json_get_bool(part, "ignore_merges", MEG_JSON_OPTIONAL, &b->ignore_merges, where, e)) < 0 ||
        (r = meg_json_get_f64(part, "dropout", MEG_JSON_OPTIONAL, &dropout, where, e)) < 0)
        return r;
    if (dropout != 0)
        return meg_fail(e, MEG_EFORMAT, "%s: dropout %g makes encoding random; set it to null", where, dropout);
    b->prefix = meg_strdup(prefix);
    b->suffix = meg_strdup(suffix);
    b->unk = unk ? meg_hf_vocab_find(&m->vocab, unk, (int64_t)strlen(unk)) : -1;
    if (unk && b->unk < 0 && *unk)
        return meg_fail(e, MEG_EFORMAT, "%s: unk_token '%s' is not in the vocabulary", where, unk);
    meg_hf_vocab_byte_ids(&m->vocab, byte_fallback, b->byte_id);
    for (int i = 0; i < 256; i++) {
        b->min_byte = i == 0 || b->byte_id[i] < b->min_byte ? b->byte_id[i] : b->min_byte;
        b->max_byte = i == 0 || b->byte_id[i] > b->max_byte ? b->byte_id[i] : b->max_byte;
    }
    b->has_all_bytes = b->min_byte >= 0;
    return load_merges(b, m, part, where, e);
}

/*
 * Return a character of a pre-token as the vocabulary spells it: with the prefix unless is_first, and with the suffix
 * if is_last.  The result points into s or buf.
 */
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

/*
 * Append the ids of the byte-fallback tokens of character c, and reserve space for nleft more ids.  If a byte of c has
 * no byte-fallback token, append nothing and return false.
 */
static bool add_bytes(const struct bpe *b, struct meg_span c, int64_t nleft, struct meg_ids *out)
{
    for (int64_t k = 0; k < c.n; k++) {
        if (b->byte_id[(unsigned char)c.s[k]] < 0)
            return false;
    }
    meg_ids_reserve(out, c.n + nleft);
    for (int64_t k = 0; k < c.n; k++)
        out->v[out->n++] = b->byte_id[(unsigned char)c.s[k]];
    return true;
}

/* An array of ids that meg_bpe_stream reads and overwrites with the merged ids. */
struct stream_ctx {
    int32_t *v;
    int64_t next, n, nwritten; /* index of the next id to read; number of ids to read; number of ids written */
};

static int64_t read_symbols(void *ctx, int32_t *sym, int64_t n)
{
    struct stream_ctx *p = ctx;

    n = n < p->n - p->next ? n : p->n - p->next;
    memcpy(sym, p->v + p->next, (size_t)n * sizeof *sym);
    p->next += n;
    return n;
}

static int write_symbols(void *ctx, const int32_t *sym, int64_t n, struct meg_err *e)
{
    struct stream_ctx *p = ctx;

    memcpy(p->v + p->nwritten, sym, (size_t)n * sizeof *sym);
    p->nwritten += n;
    (void)e;
    return 0;
}

static int merge_long(const struct meg_bpe *b, struct meg_ids *out, int64_t first, int64_t nbytes, struct meg_err *e)
{
    struct stream_ctx p = { .v = out->v + first, .n = out->n - first };
    int r =
        meg_bpe_stream(&(struct meg_bpe_stream){ b, true, read_symbols, write_symbols, &p, MEG_BPE_WINDOW, nbytes }, e);

    if (r < 0)
        return r;
    out->n = first + p.nwritten;
    return 0;
}

static int bpe_encode(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out, struct meg_err *e)
{
    const struct bpe *b = m->impl;
    int32_t token = b->ignore_merges ? meg_hf_vocab_find(&m->vocab, s, n) : -1;
    int64_t first = out->n;
    struct meg_str buf = { 0 };
    /*
     * True if an unknown token is still to be appended.  With fuse_unk, the next unknown character is fused into
     * this token.  As in Hugging Face's library, byte-fallback ids of later characters are appended before this token.
     */
    bool has_pending_unk = false;

    meg_ids_reserve(out, n + 1);
    if (token >= 0) {
        out->v[out->n++] = token;
        return 0;
    }
    for (int64_t i = 0; i < n;) {
        int32_t cp, id;
        int len = meg_utf8_decode(s + i, n - i, &cp);
        struct meg_span c = spell_char(b, s + i, len, i == 0, i + len == n, &buf);

        id = meg_hf_vocab_find(&m->vocab, c.s, c.n);
        if (id >= 0) {
            if (has_pending_unk)
                out->v[out->n++] = b->unk;
            has_pending_unk = false;
            out->v[out->n++] = id;
        } else if (!add_bytes(b, c, n - i, out) && b->unk >= 0) {
            if (has_pending_unk && !b->fuse_unk)
                out->v[out->n++] = b->unk;
            has_pending_unk = true;
        }
        i += len;
    }
    if (has_pending_unk)
        out->v[out->n++] = b->unk;
    meg_str_free(&buf);
    if (out->n - first > MEG_BPE_WINDOW)
        return merge_long(&b->merges, out, first, n, e);
    out->n = first + meg_bpe_merge_leftmost(&b->merges, out->v + first, out->n - first, NULL);
    return 0;
}

/*
 * Prefix, suffix and ignore_merges make ids depend on where a pre-token begins and ends.  Unknown characters must
 * become byte-fallback tokens that are in no merge: if they were dropped or delayed, their neighbors could merge.
 */
bool meg_hf_bpe_has_safe_splits(const struct meg_hf_model *m)
{
    const struct bpe *b = m->impl;

    return m->type == &meg_hf_bpe && !*b->prefix && !*b->suffix && !b->ignore_merges && b->has_all_bytes &&
           !b->merges_bytes;
}

bool meg_hf_bpe_to_byte_level(struct meg_hf_model *m, struct meg_bytebpe *out)
{
    struct bpe *b = m->impl;
    struct meg_str bytes = { 0 };

    if (m->type != &meg_hf_bpe || *b->prefix || *b->suffix || b->byte_id['a'] >= 0)
        return false;
    for (int i = 0; i < 256; i++) {
        bool is_in_text = i != 0xC0 && i != 0xC1 && i < 0xF5;
        char s[4];

        out->byte_id[i] = meg_hf_vocab_find(&m->vocab, s, meg_utf8_encode(s, meg_byte_alphabet_char(i)));
        if (out->byte_id[i] < 0 && is_in_text)
            return false; /* unknown bytes may be fused, and the neighbors of a dropped byte become adjacent */
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
