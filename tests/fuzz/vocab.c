/*
 * Fuzz a vocab.json, a merges.txt and a text, separated by zero bytes.  Unless one of them is rejected, the ids of the
 * text can be decoded, and a second encoding, with the word cache, has the same ids.
 */
#include <string.h>

#include "fuzz.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const uint8_t *merges = memchr(bytes, 0, n), *text;
    const uint8_t *end = bytes + n;
    struct meg_tok_conf conf = { .type = "GPT2BPETokenizer", .vocab_size = MEG_UNSET };
    struct meg_tokenizer *t = NULL;
    struct meg_ids ids = { 0 }, again = { 0 };
    struct meg_str back = { 0 };
    struct meg_err e;
    char vocab_path[512], merge_path[512];

    if (!merges || !(text = memchr(merges + 1, 0, (size_t)(end - merges - 1))))
        return 0;
    snprintf(vocab_path, sizeof vocab_path, "%s", fuzz_file("vocab.json", bytes, (size_t)(merges - bytes)));
    snprintf(merge_path, sizeof merge_path, "%s", fuzz_file("merges.txt", merges + 1, (size_t)(text - merges - 1)));
    text++;
    conf.vocab_file = vocab_path;
    conf.merge_file = merge_path;
    if (meg_tokenizer_open(&t, &conf, &e) == 0 &&
        meg_tokenizer_encode(t, (const char *)text, end - text, &ids, &e) == 0) {
        if (meg_tokenizer_bytes(t, ids.v, ids.n, &back, &e) < 0 ||
            meg_tokenizer_encode(t, (const char *)text, end - text, &again, &e) < 0 || again.n != ids.n ||
            (ids.n && memcmp(again.v, ids.v, (size_t)ids.n * sizeof *ids.v)))
            abort();
    }
    meg_tokenizer_close(t);
    meg_str_free(&back);
    free(ids.v);
    free(again.v);
    return 0;
}
