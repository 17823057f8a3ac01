/* byte_level_tokenizer.c - code shared by GPT2BPETokenizer and TikTokenizer. */
#include "tokenizer/bpe/byte_level_tokenizer.h"
#include <stdlib.h>

struct meg_bytebpe_tokenizer *meg_bytebpe_tokenizer_new(void *files, const struct meg_bytebpe *vocab,
                                                        const struct meg_special_tokens *special_tokens)
{
    struct meg_bytebpe_tokenizer *t = meg_new(sizeof *t);

    t->files = files;
    t->special_tokens = special_tokens;
    t->encoder.vocab = vocab;
    return t;
}

void meg_bytebpe_tokenizer_close(struct meg_tokenizer *base, void (*free_files)(void *files))
{
    struct meg_bytebpe_tokenizer *t = (struct meg_bytebpe_tokenizer *)base;

    if (!t->is_clone)
        free_files(t->files);
    meg_bytebpe_encoder_free(&t->encoder);
    free(t);
}

struct meg_tokenizer *meg_bytebpe_tokenizer_clone(const struct meg_tokenizer *base)
{
    const struct meg_bytebpe_tokenizer *t = (const struct meg_bytebpe_tokenizer *)base;
    struct meg_bytebpe_tokenizer *clone = meg_bytebpe_tokenizer_new(t->files, t->encoder.vocab, t->special_tokens);

    clone->is_clone = true;
    return &clone->base;
}

static int encode_ordinary(void *ctx, const char *text, int64_t n, struct meg_ids *out, const struct meg_id_sink *sink,
                           struct meg_err *e)
{
    return meg_bytebpe_encode(ctx, text, n, out, sink, e);
}

int meg_bytebpe_tokenizer_encode(struct meg_tokenizer *base, const char *text, int64_t n, struct meg_ids *out,
                                 const struct meg_id_sink *sink, struct meg_err *e)
{
    struct meg_bytebpe_tokenizer *t = (struct meg_bytebpe_tokenizer *)base;
    const struct meg_ordinary_encoder ordinary = { encode_ordinary, &t->encoder };

    return meg_special_tokens_encode(t->special_tokens, text, n, out, sink, ordinary, e);
}
