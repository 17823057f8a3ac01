/* byte_level_tokenizer.c - code shared by GPT2BPETokenizer and TikTokenizer. */
#include "tokenizer/bpe/byte_level_tokenizer.h"
#include <stdlib.h>

void meg_bytebpe_files_free(void *files)
{
    struct meg_bytebpe_files *f = files;

    if (!f)
        return;
    meg_strtab_free(&f->tokens);
    meg_bytebpe_free(&f->vocab);
    meg_special_tokens_free(&f->special_tokens);
    free(f);
}

void meg_bytebpe_tokenizer_free_buffers(struct meg_tokenizer *base)
{
    meg_bytebpe_encoder_free(&((struct meg_bytebpe_tokenizer *)base)->encoder);
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
    const struct meg_bytebpe_files *f = base->files;
    const struct meg_ordinary_encoder ordinary = { encode_ordinary, &t->encoder };

    t->encoder.vocab = &f->vocab;
    return meg_special_tokens_encode(&f->special_tokens, text, n, out, sink, ordinary, e);
}

void meg_bytebpe_tokenizer_bytes(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out)
{
    meg_tok_add_strings(&((const struct meg_bytebpe_files *)t->files)->tokens, ids, n, out);
}
