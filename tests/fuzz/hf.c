/*
 * Fuzz a tokenizer.json and a text, separated by a zero byte.  Unless one of them is rejected, a second encoding has
 * the same ids, and incremental decoding has the same result as decoding all ids at once.
 */
#include <string.h>

#include "fuzz.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const uint8_t *text = n > 0 ? memchr(bytes, 0, n) : NULL, *end = bytes + n;
    struct meg_tok_conf conf = { .type = "HuggingFaceTokenizer", .vocab_size = MEG_UNSET };
    struct meg_tokenizer *t = NULL;
    struct meg_detok detok = { 0 };
    struct meg_ids ids = { 0 }, again = { 0 };
    struct meg_str back = { 0 }, parts = { 0 };
    struct meg_err e;

    if (!text)
        return 0;
    text++;
    conf.tokenizer_json = fuzz_file("tokenizer.json", bytes, (size_t)(text - 1 - bytes));
    if (meg_tokenizer_open(&t, &conf, &e) == 0 &&
        meg_tokenizer_encode(t, (const char *)text, end - text, &ids, &e) == 0) {
        detok.tok = t;
        if (meg_tokenizer_encode(t, (const char *)text, end - text, &again, &e) < 0 || again.n != ids.n ||
            (ids.n && memcmp(again.v, ids.v, (size_t)ids.n * sizeof *ids.v)) ||
            meg_tokenizer_decode(t, ids.v, ids.n, &back, &e) < 0)
            abort();
        for (int64_t i = 0; i < ids.n; i++)
            meg_detok_add(&detok, ids.v + i, 1, false, &parts, &e);
        meg_detok_add(&detok, NULL, 0, true, &parts, &e);
        if (back.n != parts.n || (back.n && memcmp(back.s, parts.s, back.n) != 0))
            abort();
    }
    meg_detok_free(&detok);
    meg_tokenizer_close(t);
    meg_str_free(&back);
    meg_str_free(&parts);
    free(ids.v);
    free(again.v);
    return 0;
}
