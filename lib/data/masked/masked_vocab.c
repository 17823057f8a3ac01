#include "data/masked/masked_vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void meg_masked_vocab_make(struct meg_masked_vocab *v, const struct meg_tokenizer *t)
{
    const struct meg_tok_special_ids *special = meg_tokenizer_special_ids(t);
    unsigned char *is_continuation;
    struct meg_str token = { 0 };

    *v = (struct meg_masked_vocab){ .size = meg_tokenizer_vocab_size(t),
                                    .cls = special->cls,
                                    .sep = special->sep,
                                    .mask = special->mask,
                                    .pad = special->pad,
                                    .bos = special->bos,
                                    .eos = special->eos };
    v->is_continuation = is_continuation = meg_new((size_t)v->size);
    for (int32_t id = 0; id < v->size; id++) {
        token.n = 0;
        if (meg_tokenizer_bytes(t, &id, 1, &token, NULL) == 0)
            is_continuation[id] = token.n >= 2 && memcmp(token.s, "##", 2) == 0;
    }
    meg_str_free(&token);
}

void meg_masked_vocab_free(struct meg_masked_vocab *v)
{
    free((void *)v->is_continuation);
    *v = (struct meg_masked_vocab){ 0 };
}
