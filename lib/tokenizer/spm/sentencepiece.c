/*
 * sentencepiece.c - Megatron-LM's three tokenizer types that use a SentencePiece .model file:
 *   GPTSentencePieceTokenizer  encodes text to SentencePiece's ids
 *   Llama2Tokenizer            prepends the id of the BOS piece to SentencePiece's ids
 *   SentencePieceTokenizer     extends the vocabulary by added tokens; they are matched anywhere in the text, and
 *                              decoded with a space on either side
 * From Megatron Core 0.15 on, all three types do what GPTSentencePieceTokenizer does (tokenizer/megatron_release.h).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/strtab.h"
#include "tokenizer/internal.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/spm/spm.h"

enum { NUM_SPECIAL_IDS = 7, MAX_EXTRA_IDS = 1 << 20 };

/* Tokens that are matched in the text.  SentencePiece encodes the text between these tokens. */
struct added_tokens {
    struct meg_strtab token; /* all tokens by id, beginning with the pieces; empty if no tokens are added */
    int32_t *id;             /* [n] ids of the added tokens, highest priority first */
    int64_t n;
    bool *is_special; /* [token.n] true for the ids of added tokens */
    struct meg_special_tokens matcher;
};

struct spm_files {
    struct meg_spm *spm;
    struct added_tokens added;
};

struct sentencepiece {
    struct meg_tokenizer base;       /* files: struct spm_files */
    struct meg_spm_encoder *encoder; /* created when first used */
};

static const struct meg_tok_class plain_sentencepiece, plain_llama2;

static const struct meg_spm *spm_of(const struct meg_tokenizer *t)
{
    return ((const struct spm_files *)t->files)->spm;
}

const struct meg_spm_model *meg_spm_model_of(const struct meg_tokenizer *t)
{
    return meg_spm_get_model(spm_of(t));
}

/* ---- Added tokens ---- */

/* Make `text` an added token and return its id.  The id is new unless `text` is a piece or already an added token. */
static int32_t add_special(struct added_tokens *s, const char *text, int64_t n)
{
    int64_t id = meg_strtab_add(&s->token, text, n);

    /* Search for the id only among the special ids: the extra ids differ from each other. */
    for (int64_t k = 0; k < s->n && k < NUM_SPECIAL_IDS; k++) {
        if (s->id[k] == id)
            return (int32_t)id;
    }
    s->id[s->n++] = (int32_t)id;
    return (int32_t)id;
}

/*
 * Make the piece with this id an added token.  If id is -1, add a token with the text `fallback`.  Return the token's
 * id.
 */
static int32_t add_special_id(struct added_tokens *s, const struct meg_spm_model *m, int32_t id, const char *fallback)
{
    struct meg_str piece;

    if (id < 0)
        return add_special(s, fallback, (int64_t)strlen(fallback));
    piece = meg_spm_piece_text(m, id);
    return add_special(s, piece.s, (int64_t)piece.n);
}

static int add_pieces(struct added_tokens *s, const struct meg_spm_model *m, const char *path, struct meg_err *e)
{
    for (int32_t id = 0; id < m->n; id++) {
        struct meg_str piece = meg_spm_piece_text(m, id);
        int64_t first = meg_strtab_add(&s->token, piece.s, (int64_t)piece.n);

        if (first < id)
            return meg_fail(e, MEG_EFORMAT, "%s: pieces %" PRId64 " and %d are both '%.*s'", path, first, id,
                            (int)piece.n, piece.s);
    }
    return 0;
}

/* Add the tokens that Megatron-LM's _SentencePieceTokenizer adds, in the same order. */
static void add_all(struct added_tokens *s, const struct meg_spm_model *m, int64_t extra_ids,
                    struct meg_tok_special_ids *special_ids)
{
    char name[40];

    s->id = meg_new((size_t)(extra_ids + NUM_SPECIAL_IDS) * sizeof *s->id);
    special_ids->cls = add_special(s, "<CLS>", 5);
    special_ids->sep = add_special(s, "<SEP>", 5);
    special_ids->eod = add_special(s, "<EOD>", 5);
    special_ids->mask = add_special(s, "<MASK>", 6);
    special_ids->pad = add_special_id(s, m, m->pad, "<PAD>");
    special_ids->bos = add_special_id(s, m, m->bos, "<BOS>");
    special_ids->eos = add_special_id(s, m, m->eos, "<EOS>");
    for (int64_t i = 0; i < extra_ids; i++)
        add_special(s, name, snprintf(name, sizeof name, "<extra_id_%" PRId64 ">", i));
}

static int build_matcher(struct added_tokens *s, struct meg_err *e)
{
    struct meg_trie_key *key = meg_new((size_t)s->n * sizeof *key);
    int r;

    s->is_special = meg_new((size_t)s->token.n * sizeof *s->is_special);
    for (int64_t k = 0; k < s->n; k++) {
        struct meg_str text = meg_strtab_get(&s->token, s->id[k]);

        key[k] = (struct meg_trie_key){ text.s, (int64_t)text.n, s->id[k] };
        s->is_special[s->id[k]] = true;
    }
    r = meg_special_tokens_build(&s->matcher, key, s->n, e);
    free(key);
    return r;
}

/* ---- Opening ---- */

static void free_files(void *files)
{
    struct spm_files *f = files;

    if (!f)
        return;
    meg_spm_close(f->spm);
    meg_strtab_free(&f->added.token);
    free(f->added.id);
    free(f->added.is_special);
    meg_special_tokens_free(&f->added.matcher);
    free(f);
}

static void free_buffers(struct meg_tokenizer *t)
{
    meg_spm_encoder_free(((struct sentencepiece *)t)->encoder);
}

static int check_conf(const struct meg_tok_conf *c, struct meg_err *e)
{
    if (!c->tokenizer_model)
        return meg_fail(e, MEG_EUSAGE, "%s requires --tokenizer-model", c->type);
    if (c->vocab_extra_ids != MEG_UNSET && (c->vocab_extra_ids < 0 || c->vocab_extra_ids > MAX_EXTRA_IDS))
        return meg_fail(e, MEG_EUSAGE, "--vocab-extra-ids %" PRId64 ": must be from 0 to %d", c->vocab_extra_ids,
                        MAX_EXTRA_IDS);
    return 0;
}

/*
 * Open the model of a tokenizer without added tokens.  Set the description as Megatron-LM writes it.  The description
 * of each of the three types contains vocab_extra_ids.
 */
static int open_model(struct meg_tokenizer *t, const struct meg_tok_conf *c, const char *class, int64_t extra_ids,
                      struct meg_err *e)
{
    struct spm_files *f = t->files = meg_new(sizeof *f);
    const struct meg_spm_model *m;
    char n[32];
    int r;

    if ((r = check_conf(c, e)) < 0 || (r = meg_spm_open(&f->spm, c->tokenizer_model, e)) < 0)
        return r;
    m = meg_spm_get_model(f->spm);
    t->vocab_size = m->n;
    t->special_ids.bos = m->bos;
    t->special_ids.eos = t->special_ids.eod = m->eos;
    snprintf(n, sizeof n, "%" PRId64, extra_ids);
    meg_tok_set_description(t, class, (const char *const[]){ c->tokenizer_model, NULL },
                            (const char *const[]){ "vocab_extra_ids", n, NULL });
    return 0;
}

static int gpt_open(struct meg_tokenizer *t, const struct meg_tok_conf *c, struct meg_err *e)
{
    const int r = open_model(t, c, "_GPTSentencePieceTokenizer", 0, e);

    if (r == 0)
        t->special_ids.pad = meg_spm_model_of(t)->pad;
    return r;
}

static int llama2_open(struct meg_tokenizer *t, const struct meg_tok_conf *c, struct meg_err *e)
{
    int r;

    if (!meg_megatron_release_find(c->megatron_release)->has_llama2_bos) {
        t->type = &plain_llama2;
        return gpt_open(t, c, e);
    }
    if ((r = open_model(t, c, "_Llama2Tokenizer", 0, e)) < 0)
        return r;
    if (t->special_ids.bos < 0)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: the model has no BOS piece, which Llama2Tokenizer prepends to each text; use "
                        "GPTSentencePieceTokenizer",
                        c->tokenizer_model);
    return 0;
}

static int special_open(struct meg_tokenizer *t, const struct meg_tok_conf *c, struct meg_err *e)
{
    const int64_t extra_ids = c->vocab_extra_ids == MEG_UNSET ? 0 : c->vocab_extra_ids;
    struct added_tokens *s;
    int r;

    if (!meg_megatron_release_find(c->megatron_release)->has_spm_special_tokens) {
        if (extra_ids > 0)
            return meg_fail(e, MEG_EUSAGE,
                            "--vocab-extra-ids: with --megatron-release 0.15 or later, SentencePieceTokenizer adds no "
                            "tokens to those of its model; remove this option");
        t->type = &plain_sentencepiece;
        return gpt_open(t, c, e);
    }
    if ((r = open_model(t, c, "_SentencePieceTokenizer", extra_ids, e)) < 0)
        return r;
    s = &((struct spm_files *)t->files)->added;
    if ((r = add_pieces(s, meg_spm_model_of(t), c->tokenizer_model, e)) < 0)
        return r;
    add_all(s, meg_spm_model_of(t), extra_ids, &t->special_ids);
    t->vocab_size = s->token.n;
    return build_matcher(s, e);
}

/* ---- Encoding ---- */

static int gpt_encode(struct meg_tokenizer *base, const char *text, int64_t n, struct meg_ids *out,
                      const struct meg_id_sink *sink, struct meg_err *e)
{
    struct sentencepiece *t = (struct sentencepiece *)base;

    if (!t->encoder)
        t->encoder = meg_spm_encoder_new(spm_of(base));
    return meg_spm_encode(t->encoder, text, n, out, sink, e);
}

static int llama2_encode(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out,
                         const struct meg_id_sink *sink, struct meg_err *e)
{
    meg_ids_add(out, t->special_ids.bos);
    return gpt_encode(t, text, n, out, sink, e);
}

static int encode_plain(void *ctx, const char *text, int64_t n, struct meg_ids *out, const struct meg_id_sink *sink,
                        struct meg_err *e)
{
    return gpt_encode(ctx, text, n, out, sink, e);
}

static int special_encode(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out,
                          const struct meg_id_sink *sink, struct meg_err *e)
{
    const struct spm_files *f = t->files;

    return meg_special_tokens_encode(&f->added.matcher, text, n, out, sink,
                                     (struct meg_ordinary_encoder){ encode_plain, t }, e);
}

/* ---- Decoding ---- */

static void gpt_bytes(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out)
{
    meg_spm_bytes(spm_of(t), ids, n, out);
}

static void special_bytes(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out)
{
    const struct spm_files *f = t->files;

    for (int64_t i = 0; i < n; i++) {
        struct meg_str text = meg_strtab_get(&f->added.token, ids[i]);

        if (f->added.is_special[ids[i]])
            meg_str_add(out, text.s, text.n);
        else
            meg_spm_bytes(f->spm, ids + i, 1, out);
    }
}

static void gpt_decode(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out)
{
    meg_spm_decode(spm_of(d->tok), d, ids, n, is_last, out);
}

/* Decode each sequence of ids between added tokens as a separate text. */
static void special_decode(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out)
{
    const struct spm_files *f = d->tok->files;
    int64_t begin = 0;

    for (int64_t i = 0; i < n; i++) {
        struct meg_str text;

        if (!f->added.is_special[ids[i]])
            continue;
        text = meg_strtab_get(&f->added.token, ids[i]);
        meg_spm_decode(f->spm, d, ids + begin, i - begin, true, out);
        meg_str_add(out, " ", 1);
        meg_str_add(out, text.s, text.n);
        meg_str_add(out, " ", 1);
        d->state = 0;
        begin = i + 1;
    }
    meg_spm_decode(f->spm, d, ids + begin, n - begin, is_last, out);
}

#define SENTENCEPIECE(type_name, open_model)                                                                           \
    .name = type_name, .origin = MEG_TOK_LIB_SENTENCEPIECE, .size = sizeof(struct sentencepiece), .open = open_model,  \
    .free_files = free_files, .free_buffers = free_buffers
#define PLAIN .encode = gpt_encode, .bytes = gpt_bytes, .decode = gpt_decode
static const struct meg_tok_class plain_sentencepiece = { SENTENCEPIECE("SentencePieceTokenizer", NULL), PLAIN };
static const struct meg_tok_class plain_llama2 = { SENTENCEPIECE("Llama2Tokenizer", NULL), PLAIN };
const struct meg_tok_class meg_tok_gpt_sentencepiece = { SENTENCEPIECE("GPTSentencePieceTokenizer", gpt_open), PLAIN };
const struct meg_tok_class meg_tok_llama2 = { SENTENCEPIECE("Llama2Tokenizer", llama2_open), .encode = llama2_encode,
                                              .bytes = gpt_bytes, .decode = gpt_decode };
const struct meg_tok_class meg_tok_sentencepiece = { SENTENCEPIECE("SentencePieceTokenizer", special_open),
                                                     .has_extra_ids = true, .encode = special_encode,
                                                     .bytes = special_bytes, .decode = special_decode };
