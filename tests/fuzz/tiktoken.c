/*
 * Fuzz a vocabulary of TikTokenizer, in JSON or lines, and a text, separated by a zero byte.  Unless one of them is
 * rejected, the ids of the text decode to the text.
 */
#include <string.h>

#include "fuzz.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const uint8_t *text = n > 0 ? memchr(bytes, 0, n) : NULL, *end = bytes + n;
    struct meg_tok_conf conf = { .type = "TikTokenizer", .vocab_size = MEG_UNSET, .tiktoken_num_special_tokens = 3 };
    struct meg_tokenizer *t = NULL;
    struct meg_ids ids = { 0 };
    struct meg_str back = { 0 };
    struct meg_err e;

    if (!text)
        return 0;
    text++;
    conf.tokenizer_model = fuzz_file("model", bytes, (size_t)(text - 1 - bytes));
    if (meg_tokenizer_open(&t, &conf, &e) == 0 &&
        meg_tokenizer_encode(t, (const char *)text, end - text, &ids, &e) == 0) {
        if (meg_tokenizer_decode(t, ids.v, ids.n, &back, &e) < 0 || back.n != (size_t)(end - text) ||
            (back.n && memcmp(back.s, text, back.n) != 0))
            abort();
    }
    meg_tokenizer_close(t);
    meg_str_free(&back);
    free(ids.v);
    return 0;
}
