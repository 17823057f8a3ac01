/* masked_vocab.c - the vocabulary data for masking, taken from a tokenizer. */
#include "data/masked/masked_vocab.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

/* Return n if the token is "<extra_id_n>", else -1. */
static int64_t sentinel_number(const struct meg_str *token)
{
    static const char prefix[] = "<extra_id_";
    const size_t n = sizeof prefix - 1;
    int64_t number = 0;

    if (token->n < n + 2 || memcmp(token->s, prefix, n) != 0 || token->s[token->n - 1] != '>')
        return -1;
    for (size_t i = n; i + 1 < token->n; i++) {
        if (token->s[i] < '0' || token->s[i] > '9' || number > INT32_MAX)
            return -1;
        number = 10 * number + token->s[i] - '0';
    }
    return number;
}

static int32_t id_in(int32_t id, int64_t num_ids)
{
    return id < num_ids ? id : -1;
}

void meg_masked_vocab_make(struct meg_masked_vocab *v, const struct meg_tokenizer *t, int64_t num_ids)
{
    const int64_t tokens = meg_tokenizer_vocab_size(t), size = tokens < num_ids ? tokens : num_ids;
    const struct meg_tok_special_ids *special = meg_tokenizer_special_ids(t);
    unsigned char *is_continuation;
    int32_t *sentinel;
    struct meg_str token = { 0 };

    *v = (struct meg_masked_vocab){ .size = size,
                                    .cls = id_in(special->cls, size),
                                    .sep = id_in(special->sep, size),
                                    .mask = id_in(special->mask, size),
                                    .pad = id_in(special->pad, size),
                                    .bos = id_in(special->bos, size),
                                    .eos = id_in(special->eos, size) };
    v->is_continuation = is_continuation = meg_new((size_t)v->size);
    v->sentinel = sentinel = meg_new((size_t)v->size * sizeof *sentinel);
    for (int32_t id = 0; id < v->size; id++) {
        int64_t n;

        token.n = 0;
        if (meg_tokenizer_token(t, id, &token, NULL) < 0)
            continue;
        is_continuation[id] = token.n >= 2 && memcmp(token.s, "##", 2) == 0;
        if ((n = sentinel_number(&token)) >= 0 && n < v->size)
            sentinel[n] = id + 1;
    }
    for (; v->nsentinel < v->size && sentinel[v->nsentinel] > 0; v->nsentinel++)
        sentinel[v->nsentinel]--;
    meg_str_free(&token);
}

void meg_masked_vocab_free(struct meg_masked_vocab *v)
{
    free((void *)v->is_continuation);
    free((void *)v->sentinel);
    *v = (struct meg_masked_vocab){ 0 };
}
