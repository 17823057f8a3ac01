/*
 * GPT2BPETokenizer: byte-level BPE from vocab.json and merges.txt (Radford et al. 2019), with the same ids as Megatron-LM
 * (tokenizer/bpe/byte_level.h).  Token ids are also the symbols of BPE, so merges with tokens that are not in the
 * vocabulary are rejected.
 */
#include <stdlib.h>

#include "tokenizer/bpe/gpt2_files.h"
#include "tokenizer/internal.h"
#include "tokenizer/special_tokens.h"

struct gpt2 {
    struct meg_tokenizer base;
    struct meg_gpt2_files *files; /* a clone borrows it */
    bool is_clone;
    struct meg_bytebpe_encoder encoder;
    struct meg_special_tokens own_special_tokens;    /* set by open from release 0.15 on; not used by clones */
    const struct meg_special_tokens *special_tokens; /* own_special_tokens of the tokenizer that open returned */
};

/* Build the set of special tokens, which has one element: <|endoftext|>. */
static int find_eod(struct gpt2 *t, struct meg_err *e)
{
    const struct meg_gpt2_files *f = t->files;
    struct meg_trie_key key = { f->bytes.s + f->at[f->eod], f->at[f->eod + 1] - f->at[f->eod], f->eod };

    return meg_special_tokens_build(&t->own_special_tokens, &key, 1, e);
}

static int gpt2_open(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct gpt2 *t;
    struct meg_gpt2_files *files;
    int r;

    if (!c->vocab_file || !c->merge_file)
        return meg_fail(e, MEG_EUSAGE, "GPT2BPETokenizer needs --%s", c->vocab_file ? "merge-file" : "vocab-file");
    if ((r = meg_gpt2_files_load(&files, c->vocab_file, c->merge_file, e)) < 0)
        return r;
    t = meg_new(sizeof *t);
    t->files = files;
    t->special_tokens = &t->own_special_tokens;
    t->encoder.vocab = &files->vocab;
    t->base.type = &meg_tok_gpt2;
    t->base.vocab_size = files->n;
    t->base.special_ids = meg_tok_no_special_ids;
    t->base.special_ids.eod = files->eod;
    meg_tok_set_description(&t->base, "_GPT2BPETokenizer", (const char *const[]){ c->vocab_file, c->merge_file, NULL },
                            (const char *const[]){ NULL });
    *out = &t->base;
    if (!meg_megatron_release_find(c->megatron_release)->parses_special_tokens)
        return 0;
    if ((r = find_eod(t, e)) < 0)
        meg_tokenizer_close(&t->base);
    return r;
}

static void gpt2_close(struct meg_tokenizer *base)
{
    struct gpt2 *t = (struct gpt2 *)base;

    if (!t->is_clone) {
        meg_gpt2_files_free(t->files);
        meg_special_tokens_free(&t->own_special_tokens);
    }
    meg_bytebpe_encoder_free(&t->encoder);
    free(t);
}

static struct meg_tokenizer *gpt2_clone(const struct meg_tokenizer *base)
{
    struct gpt2 *t = meg_new(sizeof *t);

    t->files = ((const struct gpt2 *)base)->files;
    t->special_tokens = ((const struct gpt2 *)base)->special_tokens;
    t->encoder.vocab = &t->files->vocab;
    t->is_clone = true;
    return &t->base;
}

static int encode_ordinary(void *ctx, const char *text, int64_t n, struct meg_ids *out, const struct meg_id_sink *sink,
                           struct meg_err *e)
{
    return meg_bytebpe_encode(ctx, text, n, out, sink, e);
}

static int gpt2_encode(struct meg_tokenizer *base, const char *text, int64_t n, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e)
{
    struct gpt2 *t = (struct gpt2 *)base;

    return meg_special_tokens_encode(t->special_tokens, text, n, out, sink, encode_ordinary, &t->encoder, e);
}

static void gpt2_bytes(const struct meg_tokenizer *base, const int32_t *ids, int64_t n, struct meg_str *out)
{
    const struct meg_gpt2_files *f = ((const struct gpt2 *)base)->files;

    for (int64_t i = 0; i < n; i++)
        meg_str_add(out, f->bytes.s + f->at[ids[i]], (size_t)(f->at[ids[i] + 1] - f->at[ids[i]]));
}

const struct meg_tok_class meg_tok_gpt2 = {
    "GPT2BPETokenizer",   gpt2_open, gpt2_close,           gpt2_clone, gpt2_encode, gpt2_bytes,
    meg_tok_decode_bytes, false,     MEG_TOK_LIB_MEGATRON,
};
