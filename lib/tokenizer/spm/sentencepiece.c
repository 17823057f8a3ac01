/*
 * The three types of Megatron-LM over a .model file:
 *   GPTSentencePieceTokenizer  SentencePiece's ids
 *   Llama2Tokenizer            the same behind the id that begins a text
 *   SentencePieceTokenizer     with more tokens than the model has, which are found in text wherever
 *                              they are spelled and printed with a blank on either side
 * From core 0.15 on all three give SentencePiece's ids (tokenizer/megatron_release.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strtab.h"
#include "tokenizer/internal.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/spm/spm.h"

enum { ROLES = 7, MAX_EXTRA_IDS = 1 << 20 };

/* Tokens that are found in text as they are spelled. */
struct specials {
    struct meg_strtab token; /* all tokens by id, pieces first; empty where none is special */
    int32_t *id;             /* [n] in the order in which one goes before another */
    int64_t n;
    bool *is_special; /* [token.n] */
    struct meg_special_tokens finder;
};

/* What shares have in common. */
struct common {
    struct meg_spm *spm;
    struct specials special;
};

struct sentencepiece {
    struct meg_tokenizer base;
    struct common *common;
    bool is_share;
    struct meg_spm_encoder *work; /* made when first needed */
};

static const struct meg_tok_class plain_sentencepiece, plain_llama2;

/* ---- special tokens ---- */

/* A token becomes special, and gets an id where it has none; returns that. */
static int32_t add_special(struct specials *s, const char *text, int64_t n)
{
    int64_t id = meg_strtab_add(&s->token, text, n);

    for (int64_t k = 0; k < s->n && k < ROLES; k++) { /* names of extra ids differ from each other */
        if (s->id[k] == id)
            return (int32_t)id;
    }
    s->id[s->n++] = (int32_t)id;
    return (int32_t)id;
}

/* The model's piece with a part to play, or where it has none a token of its own. */
static int32_t add_role(struct specials *s, const struct meg_spm_model *m, int32_t id, const char *otherwise)
{
    struct meg_str piece;

    if (id < 0)
        return add_special(s, otherwise, (int64_t)strlen(otherwise));
    piece = meg_spm_piece_text(m, id);
    return add_special(s, piece.s, (int64_t)piece.n);
}

static int add_pieces(struct specials *s, const struct meg_spm_model *m, const char *path, struct meg_err *e)
{
    for (int32_t id = 0; id < m->n; id++) {
        struct meg_str piece = meg_spm_piece_text(m, id);
        int64_t first = meg_strtab_add(&s->token, piece.s, (int64_t)piece.n);

        if (first < id)
            return meg_fail(e, MEG_EFORMAT, "%s: pieces %lld and %d both are '%.*s'", path, (long long)first, id,
                            (int)piece.n, piece.s);
    }
    return MEG_OK;
}

/* What Megatron-LM's _SentencePieceTokenizer adds, in its order. */
static void add_all(struct specials *s, const struct meg_spm_model *m, int64_t extra_ids,
                    struct meg_tok_special_ids *roles)
{
    char name[40];

    s->id = meg_new((size_t)(extra_ids + ROLES) * sizeof *s->id);
    roles->cls = add_special(s, "<CLS>", 5);
    roles->sep = add_special(s, "<SEP>", 5);
    roles->eod = add_special(s, "<EOD>", 5);
    roles->mask = add_special(s, "<MASK>", 6);
    roles->pad = add_role(s, m, m->pad, "<PAD>");
    roles->bos = add_role(s, m, m->bos, "<BOS>");
    roles->eos = add_role(s, m, m->eos, "<EOS>");
    for (int64_t i = 0; i < extra_ids; i++)
        add_special(s, name, snprintf(name, sizeof name, "<extra_id_%lld>", (long long)i));
}

static int build_finder(struct specials *s, struct meg_err *e)
{
    struct meg_trie_key *key = meg_new((size_t)s->n * sizeof *key);
    int r;

    s->is_special = meg_new((size_t)s->token.n * sizeof *s->is_special);
    for (int64_t k = 0; k < s->n; k++) {
        struct meg_str text = meg_strtab_get(&s->token, s->id[k]);

        key[k] = (struct meg_trie_key){ text.s, (int64_t)text.n, s->id[k] };
        s->is_special[s->id[k]] = true;
    }
    r = meg_special_tokens_build(&s->finder, key, s->n, e);
    free(key);
    return r;
}

/* ---- opening ---- */

static void free_common(struct common *c)
{
    if (!c)
        return;
    meg_spm_close(c->spm);
    meg_strtab_free(&c->special.token);
    free(c->special.id);
    free(c->special.is_special);
    meg_special_tokens_free(&c->special.finder);
    free(c);
}

static int check_conf(const struct meg_tok_conf *c, struct meg_err *e)
{
    if (!c->tokenizer_model)
        return meg_fail(e, MEG_EUSAGE, "%s needs --tokenizer-model", c->type);
    if (c->vocab_extra_ids != MEG_UNSET && (c->vocab_extra_ids < 0 || c->vocab_extra_ids > MAX_EXTRA_IDS))
        return meg_fail(e, MEG_EUSAGE, "--vocab-extra-ids: %lld is not in 0..%d", (long long)c->vocab_extra_ids,
                        MAX_EXTRA_IDS);
    return MEG_OK;
}

/* A tokenizer whose ids are the model's. */
static int open_model(struct sentencepiece **out, const struct meg_tok_class *class, const struct meg_tok_conf *c,
                      struct meg_err *e)
{
    struct meg_spm *spm;
    const struct meg_spm_model *m;
    struct sentencepiece *t;
    int r;

    if ((r = check_conf(c, e)) < 0 || (r = meg_spm_open(&spm, c->tokenizer_model, e)) < 0)
        return r;
    m = meg_spm_get_model(spm);
    t = *out = meg_new(sizeof *t);
    t->common = meg_new(sizeof *t->common);
    t->common->spm = spm;
    t->base.class = class;
    t->base.vocab_size = m->n;
    t->base.special_ids = meg_tok_no_special_ids;
    t->base.special_ids.bos = m->bos;
    t->base.special_ids.eos = t->base.special_ids.eod = m->eos;
    return MEG_OK;
}

/* In Megatron-LM's description all three types have the number of extra ids. */
static void describe(struct sentencepiece *t, const char *class, const char *path, int64_t extra_ids)
{
    char n[32];

    snprintf(n, sizeof n, "%lld", (long long)extra_ids);
    meg_tok_set_description(&t->base, class, (const char *const[]){ path, NULL },
                            (const char *const[]){ "vocab_extra_ids", n, NULL });
}

static int open_plain(struct meg_tokenizer **out, const struct meg_tok_class *class, const struct meg_tok_conf *c,
                      struct meg_err *e)
{
    struct sentencepiece *t;
    int r = open_model(&t, class, c, e);

    if (r < 0)
        return r;
    t->base.special_ids.pad = meg_spm_get_model(t->common->spm)->pad;
    describe(t, "_GPTSentencePieceTokenizer", c->tokenizer_model, 0);
    *out = &t->base;
    return MEG_OK;
}

static int gpt_open(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    return open_plain(out, &meg_tok_gpt_sentencepiece, c, e);
}

static int llama2_open(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct sentencepiece *t;
    int r;

    if (!meg_megatron_release_find(c->megatron_release)->has_llama2_bos)
        return open_plain(out, &plain_llama2, c, e);
    if ((r = open_model(&t, &meg_tok_llama2, c, e)) < 0)
        return r;
    if (t->base.special_ids.bos < 0) {
        meg_tokenizer_close(&t->base);
        return meg_fail(e, MEG_EFORMAT,
                        "%s: it has no piece that begins a text, which Llama2Tokenizer puts in front "
                        "of each: GPTSentencePieceTokenizer does without",
                        c->tokenizer_model);
    }
    describe(t, "_Llama2Tokenizer", c->tokenizer_model, 0);
    *out = &t->base;
    return MEG_OK;
}

static int special_open(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    const int64_t extra_ids = c->vocab_extra_ids == MEG_UNSET ? 0 : c->vocab_extra_ids;
    struct sentencepiece *t;
    struct specials *s;
    int r;

    if (!meg_megatron_release_find(c->megatron_release)->has_spm_special_tokens) {
        if (extra_ids > 0)
            return meg_fail(e, MEG_EUSAGE,
                            "--vocab-extra-ids: from --megatron-release 0.15 on "
                            "SentencePieceTokenizer has only the tokens of its model");
        return open_plain(out, &plain_sentencepiece, c, e);
    }
    if ((r = open_model(&t, &meg_tok_sentencepiece, c, e)) < 0)
        return r;
    s = &t->common->special;
    if ((r = add_pieces(s, meg_spm_get_model(t->common->spm), c->tokenizer_model, e)) == MEG_OK) {
        add_all(s, meg_spm_get_model(t->common->spm), extra_ids, &t->base.special_ids);
        r = build_finder(s, e);
    }
    if (r < 0) {
        meg_tokenizer_close(&t->base);
        return r;
    }
    t->base.vocab_size = s->token.n;
    describe(t, "_SentencePieceTokenizer", c->tokenizer_model, extra_ids);
    *out = &t->base;
    return MEG_OK;
}

static void close_any(struct meg_tokenizer *base)
{
    struct sentencepiece *t = (struct sentencepiece *)base;

    if (!t->is_share)
        free_common(t->common);
    meg_spm_encoder_free(t->work);
    free(t);
}

static struct meg_tokenizer *share_any(const struct meg_tokenizer *base)
{
    struct sentencepiece *t = meg_new(sizeof *t);

    t->common = ((const struct sentencepiece *)base)->common;
    t->is_share = true;
    return &t->base;
}

/* ---- encoding ---- */

static struct meg_spm_encoder *work_of(struct sentencepiece *t)
{
    if (!t->work)
        t->work = meg_spm_encoder_new(t->common->spm);
    return t->work;
}

static void add_id(struct meg_ids *out, int32_t id)
{
    meg_ids_reserve(out, 1);
    out->v[out->n++] = id;
}

static int gpt_encode(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out,
                      const struct meg_id_sink *sink, struct meg_err *e)
{
    return meg_spm_encode(work_of((struct sentencepiece *)t), text, n, out, sink, e);
}

static int llama2_encode(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out,
                         const struct meg_id_sink *sink, struct meg_err *e)
{
    add_id(out, t->special_ids.bos);
    return gpt_encode(t, text, n, out, sink, e);
}

static int encode_plain(void *of, const char *text, int64_t n, struct meg_ids *out, const struct meg_id_sink *sink,
                        struct meg_err *e)
{
    return meg_spm_encode(work_of(of), text, n, out, sink, e);
}

static int special_encode(struct meg_tokenizer *base, const char *text, int64_t n, struct meg_ids *out,
                          const struct meg_id_sink *sink, struct meg_err *e)
{
    struct sentencepiece *t = (struct sentencepiece *)base;

    return meg_special_tokens_encode(&t->common->special.finder, text, n, out, sink, encode_plain, t, e);
}

/* ---- decoding ---- */

static void gpt_bytes(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out)
{
    meg_spm_bytes(((const struct sentencepiece *)t)->common->spm, ids, n, out);
}

static void special_bytes(const struct meg_tokenizer *base, const int32_t *ids, int64_t n, struct meg_str *out)
{
    const struct common *c = ((const struct sentencepiece *)base)->common;

    for (int64_t i = 0; i < n; i++) {
        struct meg_str text = meg_strtab_get(&c->special.token, ids[i]);

        if (c->special.is_special[ids[i]])
            meg_str_add(out, text.s, text.n);
        else
            meg_spm_bytes(c->spm, ids + i, 1, out);
    }
}

static void gpt_decode(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out)
{
    meg_spm_decode(((const struct sentencepiece *)d->tok)->common->spm, d, ids, n, is_last, out);
}

/* What lies between two special tokens is a text of its own. */
static void special_decode(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out)
{
    const struct common *c = ((const struct sentencepiece *)d->tok)->common;
    int64_t begin = 0;

    for (int64_t i = 0; i < n; i++) {
        struct meg_str text;

        if (!c->special.is_special[ids[i]])
            continue;
        text = meg_strtab_get(&c->special.token, ids[i]);
        meg_spm_decode(c->spm, d, ids + begin, i - begin, true, out);
        meg_str_add(out, " ", 1);
        meg_str_add(out, text.s, text.n);
        meg_str_add(out, " ", 1);
        d->state = 0;
        begin = i + 1;
    }
    meg_spm_decode(c->spm, d, ids + begin, n - begin, is_last, out);
}

static const struct meg_tok_class plain_sentencepiece = {
    "SentencePieceTokenizer",  NULL, close_any, share_any, gpt_encode, gpt_bytes, gpt_decode, false,
    MEG_TOK_LIB_SENTENCEPIECE,
};
static const struct meg_tok_class plain_llama2 = {
    "Llama2Tokenizer", NULL, close_any, share_any, gpt_encode, gpt_bytes, gpt_decode, false, MEG_TOK_LIB_SENTENCEPIECE,
};
const struct meg_tok_class meg_tok_gpt_sentencepiece = {
    "GPTSentencePieceTokenizer", gpt_open, close_any, share_any, gpt_encode, gpt_bytes, gpt_decode, false,
    MEG_TOK_LIB_SENTENCEPIECE,
};
const struct meg_tok_class meg_tok_llama2 = {
    "Llama2Tokenizer",         llama2_open, close_any, share_any, llama2_encode, gpt_bytes, gpt_decode, false,
    MEG_TOK_LIB_SENTENCEPIECE,
};
const struct meg_tok_class meg_tok_sentencepiece = {
    "SentencePieceTokenizer",  special_open, close_any, share_any, special_encode, special_bytes, special_decode, true,
    MEG_TOK_LIB_SENTENCEPIECE,
};
