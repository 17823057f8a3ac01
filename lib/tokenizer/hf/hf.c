/*
 * hf.c - HuggingFaceTokenizer and PretrainedFromHF: encode and decode as Hugging Face's tokenizers do with a
 * tokenizer.json.
 *
 * Encoding has six steps:
 *   1. split the text at the added tokens that are matched in the original text;
 *   2. normalize the text between these added tokens;
 *   3. split the result at the added tokens that are matched in normalized text;
 *   4. split the text between all added tokens into pre-tokens;
 *   5. encode each pre-token with the model;
 *   6. add the ids of the post-processor before and after the ids of the text.
 * If the pre-tokenizer splits by a pattern of enum meg_pretok and the model is byte-level BPE,
 * tokenizer/bpe/byte_level.h does steps 4 and 5.  Otherwise this file caches ids.  If the original text has safe split
 * points (safe_split.c), the cache contains the ids of the chunks between these points.  Steps 2 to 5 are skipped for a
 * cached chunk.  Without safe split points, the cache contains the ids of pre-tokens.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "file/commit.h"
#include "foreign/foreign.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/hf/files.h"
#include "tokenizer/internal.h"
#include "tokenizer/wordcache.h"

struct hf {
    struct meg_tokenizer base; /* files: struct meg_hf_files */
    struct meg_bytebpe_encoder encoder;
    struct meg_wordcache cache;
    struct meg_hf_pretokens pretokens, scratch;
    struct meg_pretokens chunks; /* chunks between safe split points */
    struct meg_str normalized, prefixed;
};

/* ---- Opening ---- */

bool meg_tok_is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool is_file(const char *path)
{
    struct stat st;

    return meg_commit_stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

char *meg_tok_path_in_dir(const char *dir, int ndir, const char *name)
{
    struct meg_str path = { 0 };

    meg_str_printf(&path, "%.*s/%s", ndir, dir, name);
    if (is_file(path.s))
        return path.s;
    meg_str_free(&path);
    return NULL;
}

/* Find the files of a tokenizer from the path of its directory or of its tokenizer.json. */
static void find_files_from(const char *given, struct meg_tok_conf *c, char *owned[MEG_TOK_MAX_FOUND])
{
    const char *slash = strrchr(given, '/');
    const char *dir = given;
    struct stat st;
    int ndir = (int)strlen(given);

    if (stat(given, &st) != 0)
        return;
    if (!S_ISDIR(st.st_mode)) {
        if (strcmp(slash ? slash + 1 : given, "tokenizer.json") != 0)
            return;
        dir = slash ? given : ".";
        ndir = slash ? (int)(slash - given) : 1;
    }
    if (!(c->tokenizer_json = owned[0] = meg_tok_path_in_dir(dir, ndir, "tokenizer.json")))
        return;
    c->tokenizer_config = owned[1] = meg_tok_path_in_dir(dir, ndir, "tokenizer_config.json");
    c->special_tokens_map = owned[2] = meg_tok_path_in_dir(dir, ndir, "special_tokens_map.json");
    c->added_tokens = owned[3] = meg_tok_path_in_dir(dir, ndir, "added_tokens.json");
    c->tokenizer_model = NULL;
}

void meg_tok_find_files(struct meg_tok_conf *c, char *owned[MEG_TOK_MAX_FOUND])
{
    const char *given = c->name_or_path ? c->name_or_path : c->tokenizer_model;
    char *snapshot;

    memset(owned, 0, MEG_TOK_MAX_FOUND * sizeof *owned);
    if (!given || c->tokenizer_json)
        return;
    meg_foreign_hub_snapshot(&snapshot, given, NULL);
    find_files_from(snapshot ? snapshot : given, c, owned);
    free(snapshot);
}

/*
 * Adapt the template and the special ids of a HuggingFaceTokenizer to the release of Megatron-LM.  PretrainedFromHF is
 * not adapted, since it is a type of Megatron-DeepSpeed.
 */
static void apply_release(struct meg_tokenizer *t, const struct meg_megatron_release *release)
{
    struct meg_hf_files *f = t->files;
    struct meg_tok_special_ids *r = &t->special_ids;

    if (!release->has_hf_template)
        f->template_before.n = f->template_after.n = 0;
    if (!release->has_pad)
        r->pad = -1;
    else if (r->eos < 0)
        r->eos = r->eod = r->sep;
}

static int hf_open(struct meg_tokenizer *t, const struct meg_tok_conf *given, struct meg_err *e)
{
    const char *name = given->name_or_path ? given->name_or_path : given->tokenizer_model;
    const bool is_pretrained = t->type == &meg_tok_hf_pretrained;
    struct meg_tok_conf c = *given;
    struct meg_hf_files *files;
    char *owned[MEG_TOK_MAX_FOUND];
    int r;

    if (c.name_or_path && c.tokenizer_model && !c.tokenizer_json)
        return meg_fail(e, MEG_EUSAGE,
                        "--tokenizer-model and --tokenizer-name-or-path both specify the directory of the tokenizer; "
                        "use only one of them");
    meg_tok_find_files(&c, owned);
    if (!c.tokenizer_json)
        return name ? meg_tok_refuse_path(name, e)
                    : meg_fail(e, MEG_EUSAGE, "%s requires --%s, a directory with tokenizer.json", t->type->name,
                               is_pretrained ? "tokenizer-name-or-path" : "tokenizer-model");
    if ((r = meg_hf_files_load(&files, &c, e)) == 0) {
        t->files = files;
        t->vocab_size = files->vocab_size;
        t->adds_spaces = meg_hf_decoder_adds_spaces(files->decoder);
        t->special_ids = files->special_ids;
        if (!is_pretrained)
            apply_release(t, meg_megatron_release_find(c.megatron_release));
        meg_tok_set_description(t, "_HuggingFaceTokenizer",
                                (const char *const[]){ name ? name : c.tokenizer_json, NULL },
                                (const char *const[]){ NULL });
    }
    for (int i = 0; i < MEG_TOK_MAX_FOUND; i++)
        free(owned[i]);
    return r;
}

static void hf_free_buffers(struct meg_tokenizer *base)
{
    struct hf *t = (struct hf *)base;

    meg_bytebpe_encoder_free(&t->encoder);
    meg_wordcache_free(&t->cache);
    meg_hf_pretokens_free(&t->pretokens);
    meg_hf_pretokens_free(&t->scratch);
    meg_pretokens_free(&t->chunks);
    meg_str_free(&t->normalized);
    meg_str_free(&t->prefixed);
}

/* ---- Encoding ---- */

static int encode_pretoken(struct hf *t, const char *s, int64_t n, struct meg_ids *out, struct meg_err *e)
{
    const struct meg_hf_files *f = t->base.files;
    const int32_t *known;
    int64_t nids, first = out->n;
    int r;

    if (f->safe_split) /* the cache contains the ids of chunks instead of pre-tokens */
        return meg_hf_model_encode(&f->model, s, n, out, e);
    if ((nids = meg_wordcache_get(&t->cache, s, n, &known)) > 0) {
        meg_ids_reserve(out, nids);
        memcpy(out->v + out->n, known, (size_t)nids * sizeof *known);
        out->n += nids;
        return 0;
    }
    r = meg_hf_model_encode(&f->model, s, n, out, e);
    if (r == 0 && out->n > first)
        meg_wordcache_add(&t->cache, s, n, out->v + first, out->n - first, 0);
    return r;
}

/* A part of the text to encode. */
struct part {
    const char *s; /* [n] */
    int64_t n;
    bool is_text_start, is_later_chunk; /* it begins the text; it is a chunk other than the first of its text */
};

/* Encode normalized text that contains no added token. */
static int encode_plain(struct hf *t, const struct part *x, struct meg_ids *out, const struct meg_id_sink *sink,
                        struct meg_err *e)
{
    const struct meg_hf_files *f = t->base.files;
    int r = 0;

    if (f->is_byte_level) {
        if (!f->add_prefix_space || *x->s == ' ')
            return meg_bytebpe_encode(&t->encoder, x->s, x->n, out, sink, e);
        t->prefixed.n = 0;
        meg_str_add(&t->prefixed, " ", 1);
        meg_str_add(&t->prefixed, x->s, (size_t)x->n);
        return meg_bytebpe_encode(&t->encoder, t->prefixed.s, (int64_t)t->prefixed.n, out, sink, e);
    }
    if (!t->cache.word)
        meg_wordcache_init(&t->cache);
    t->pretokens.n = 0;
    t->pretokens.text.n = 0;
    meg_hf_pretokens_add(&t->pretokens, x->s, x->n, x->is_text_start);
    if (f->pretokenizer)
        r = meg_hf_pretokenizer_run(f->pretokenizer, &t->pretokens, &t->scratch, e);
    for (int64_t i = 0; i < t->pretokens.n && r == 0; i++)
        r = encode_pretoken(t, t->pretokens.text.s + t->pretokens.v[i].offset, t->pretokens.v[i].n, out, e);
    return r;
}

/*
 * Split text at added tokens, and append the ids of the added tokens and of the other parts.  If is_normalized, find
 * the added tokens that are matched in normalized text.  Otherwise find the added tokens that are matched in the
 * original text.
 */
static int encode_between_added(struct hf *t, bool is_normalized, const struct part *x, struct meg_ids *out,
                                const struct meg_id_sink *sink, struct meg_err *e);

/* Normalize and encode text between added tokens, or one chunk of it. */
static int encode_part(struct hf *t, const struct part *x, struct meg_ids *out, const struct meg_id_sink *sink,
                       struct meg_err *e)
{
    const struct meg_hf_files *f = t->base.files;
    int64_t max_bytes = f->is_byte_level ? MEG_HF_MAX_BYTE_LEVEL
                        : f->safe_split  ? MEG_HF_MAX_CHUNK
                                         : MEG_HF_MAX_UNSPLIT;
    struct part normalized = *x;
    int r;

    if (x->n > max_bytes && !f->is_byte_level)
        return meg_fail(
            e, MEG_EFORMAT,
            "%" PRId64 " bytes of text have no point, such as a blank, at which they can be split without changing "
            "the tokens of this tokenizer.json; at most %" PRId64 " can be encoded at once; split the document",
            x->n, max_bytes);
    if (!f->normalizer)
        return encode_between_added(t, true, x, out, sink, e);
    if ((r = meg_hf_normalizer_run(f->normalizer, x->s, x->n, !x->is_later_chunk,
                                   f->safe_split ? f->safe_split->max_gap : max_bytes, &t->normalized, e)) < 0)
        return r;
    normalized.s = t->normalized.s;
    normalized.n = (int64_t)t->normalized.n;
    normalized.is_text_start = x->is_text_start && !meg_hf_normalizer_strips_start(f->normalizer, x->s, x->n);
    return encode_between_added(t, true, &normalized, out, sink, e);
}

enum { BATCH = 128 };

/*
 * Collect up to BATCH chunks, prefetch their cache entries, and return their number.  Skip a chunk of one byte that is
 * encoded to no ids (is_tokenless).
 */
static int next_chunks(struct hf *t, struct meg_wordcache_lookup *chunk)
{
    const struct meg_hf_files *f = t->base.files;
    const char *s;
    int64_t len;
    int n = 0;

    while (n < BATCH && meg_pretokens_next(&t->chunks, &s, &len)) {
        if (len > 1 || !f->safe_split->is_tokenless[(unsigned char)*s])
            meg_wordcache_prefetch(&t->cache, &chunk[n++], s, len, t->chunks.end);
    }
    meg_wordcache_prefetch_rest(&t->cache, chunk, n);
    return n;
}

static int encode_chunk(struct hf *t, const struct meg_wordcache_lookup *p, struct meg_ids *out,
                        const struct meg_id_sink *sink, struct meg_err *e)
{
    const struct meg_wordcache_entry *known = meg_wordcache_find(&t->cache, p);
    const int32_t *ids;
    int64_t n = known ? meg_word_ids(&t->cache, known, &ids) : 0, first = out->n;
    int r;

    if (known) {
        if (out->cap - out->n < n + MEG_WORD_IDS)
            meg_ids_reserve(out, n + MEG_WORD_IDS);
        out->n += meg_word_copy(&t->cache, known, out->v + out->n);
        return 0;
    }
    if ((r = encode_part(t, &(struct part){ p->s, p->n, false, true }, out, sink, e)) == 0 && out->n > first)
        meg_wordcache_add(&t->cache, p->s, p->n, out->v + first, out->n - first, 0);
    return r;
}

/*
 * Encode text between added tokens chunk by chunk.  The first chunk is not cached, since Prepend and Metaspace may
 * prepend a character to this chunk only.
 */
static int encode_chunks(struct hf *t, const struct part *x, struct meg_ids *out, const struct meg_id_sink *sink,
                         struct meg_err *e)
{
    const struct meg_hf_files *f = t->base.files;
    struct meg_wordcache_lookup chunk[BATCH];
    struct part first = *x;
    int r;

    if (!t->cache.word)
        meg_wordcache_init(&t->cache);
    meg_pretokens_safe_split(&t->chunks, &f->safe_split->table, x->s, x->n);
    meg_pretokens_next(&t->chunks, &first.s, &first.n);
    r = encode_part(t, &first, out, sink, e);
    for (int k; r == 0 && (k = next_chunks(t, chunk)) > 0;) {
        for (int i = 0; i < k && r == 0; i++)
            r = encode_chunk(t, &chunk[i], out, sink, e);
        if (r == 0)
            r = meg_ids_flush(out, sink, e);
    }
    return r;
}

static int encode_raw(struct hf *t, const struct part *x, struct meg_ids *out, const struct meg_id_sink *sink,
                      struct meg_err *e)
{
    const struct meg_hf_files *f = t->base.files;

    return (f->safe_split ? encode_chunks : encode_part)(t, x, out, sink, e);
}

static int encode_between_added(struct hf *t, bool is_normalized, const struct part *x, struct meg_ids *out,
                                const struct meg_id_sink *sink, struct meg_err *e)
{
    const struct meg_hf_files *f = t->base.files;
    const struct meg_hf_added_matcher *matcher = is_normalized ? &f->added.normalized : &f->added.raw;
    const char *text = x->s, *end = text + x->n;
    struct meg_hf_match m = { text, text, text };
    const struct meg_hf_added_token *a;
    int r = 0;

    do {
        const char *from = m.stop, *stop = end;

        if ((a = meg_hf_added_next(&f->added, matcher, f->splits_special_tokens, text, end, &m)))
            stop = m.s;
        if (stop > from)
            r = (is_normalized ? encode_plain : encode_raw)(
                t, &(struct part){ from, stop - from, x->is_text_start && from == text, false }, out, sink, e);
        /* m is empty if the token has lstrip and is inside the whitespace that the previous match includes by rstrip */
        if (a && m.s < m.stop)
            meg_ids_add(out, a->id);
    } while (a && r == 0);
    return r;
}

static void add_all(struct meg_ids *out, const struct meg_ids *ids)
{
    meg_ids_reserve(out, ids->n);
    if (ids->n > 0)
        memcpy(out->v + out->n, ids->v, (size_t)ids->n * sizeof *ids->v);
    out->n += ids->n;
}

enum { LARGE_TEXT = 1 << 20 };

/* Free the buffers after a long text, since long texts are rare. */
static void free_large_buffers(struct hf *t)
{
    meg_hf_pretokens_free(&t->pretokens);
    meg_hf_pretokens_free(&t->scratch);
    t->pretokens = t->scratch = (struct meg_hf_pretokens){ 0 };
    meg_str_free(&t->normalized);
    meg_str_free(&t->prefixed);
}

static int hf_encode(struct meg_tokenizer *base, const char *text, int64_t n, struct meg_ids *out,
                     const struct meg_id_sink *sink, struct meg_err *e)
{
    struct hf *t = (struct hf *)base;
    struct meg_hf_files *f = base->files;
    int r;

    t->encoder.vocab = &f->byte_level;
    add_all(out, &f->template_before);
    r = encode_between_added(t, false, &(struct part){ text, n, true, false }, out, sink, e);
    add_all(out, &f->template_after);
    if (n > LARGE_TEXT)
        free_large_buffers(t);
    return r;
}

/* ---- Decoding ---- */

static void hf_bytes(const struct meg_tokenizer *base, const int32_t *ids, int64_t n, struct meg_str *out)
{
    const struct meg_hf_files *f = base->files;

    for (int64_t i = 0; i < n; i++) {
        const struct meg_str *t = &f->token[ids[i]];
        int state = 0, byte;

        if (!t->s)
            continue;
        if (meg_hf_decoder_is_byte_level(f->decoder)) {
            if (meg_byte_alphabet_decode(out, t->s, (int64_t)t->n) < 0)
                meg_str_add(out, t->s, t->n);
        } else if ((byte = meg_hf_decoder_byte(f->decoder, t->s, (int64_t)t->n)) >= 0) {
            meg_str_add(out, &(const char){ (char)byte }, 1);
        } else {
            meg_hf_decoder_run(f->decoder, t, 1, 1, &state, out);
        }
    }
}

static void hf_token(const struct meg_tokenizer *base, int32_t id, struct meg_str *out)
{
    const struct meg_str *t = &((const struct meg_hf_files *)base->files)->token[id];

    if (t->s)
        meg_str_add(out, t->s, t->n);
}

/*
 * Decode ids.  d->pending contains, as int32_t, the ids that are not decoded yet, since their text may depend on later
 * ids.  If the decoder is ByteLevel and clean_up is false, meg_tok_decode_bytes decodes the ids, and d->pending
 * contains bytes instead.
 */
static void hf_decode(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out)
{
    const struct meg_hf_files *f = d->tok->files;
    struct meg_str text = { 0 }, *token;
    const int64_t nwaiting = (int64_t)(d->pending.n / sizeof *ids);
    const int32_t *held;
    int64_t nheld, ready, ntokens = 0;

    if (meg_hf_decoder_is_byte_level(f->decoder) && !f->clean_up) {
        meg_tok_decode_bytes(d, ids, n, is_last, out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (f->token[ids[i]].s)
            meg_str_add(&d->pending, &ids[i], sizeof *ids);
    }
    held = (const int32_t *)(const void *)d->pending.s;
    nheld = (int64_t)(d->pending.n / sizeof *held);
    ready = is_last || (meg_hf_decoder_can_stream(f->decoder) && !f->clean_up) ? nheld : 0;
    while (ready > nwaiting && !is_last &&
           meg_hf_decoder_byte(f->decoder, f->token[held[ready - 1]].s, (int64_t)f->token[held[ready - 1]].n) >= 0)
        ready--;
    if (ready == 0 || (ready <= nwaiting && !is_last)) /* nothing new can be decoded yet */
        return;
    token = meg_realloc_array(NULL, (size_t)ready, sizeof *token);
    for (; ntokens < ready; ntokens++)
        token[ntokens] = f->token[held[ntokens]];
    meg_hf_decoder_run(f->decoder, token, ready, d->nemitted, &d->state, &text);
    if (f->clean_up)
        meg_tok_clean_up(&text, false);
    meg_str_add(out, text.s, text.n);
    d->nemitted += ready;
    meg_str_remove_prefix(&d->pending, (size_t)ready * sizeof *held);
    free(token);
    meg_str_free(&text);
}

#define HF(type_name)                                                                                                  \
    {                                                                                                                  \
        .name = type_name, .origin = MEG_TOK_LIB_HF, .size = sizeof(struct hf), .open = hf_open,                       \
        .free_files = meg_hf_files_free, .free_buffers = hf_free_buffers, .encode = hf_encode, .bytes = hf_bytes,      \
        .decode = hf_decode, .token = hf_token                                                                         \
    }
const struct meg_tok_class meg_tok_hf = HF("HuggingFaceTokenizer");
const struct meg_tok_class meg_tok_hf_pretrained = HF("PretrainedFromHF");
