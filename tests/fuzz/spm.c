/*
 * Fuzz a .model file and a text.  The first two bytes of the input are the length of the text, which follows the file.
 * Unless the file is rejected, the ids of the text can be decoded, a second encoding, with the word cache, has the same
 * ids, and incremental decoding has the same result as decoding all ids at once.
 */
#include <string.h>

#include "fuzz.h"
#include "tokenizer/tokenizer.h"
#include "unicode/utf8.h"

/* Check that incremental decoding has the same result as decoding all ids at once. */
static void decode_both(const struct meg_tokenizer *t, const struct meg_ids *ids)
{
    struct meg_detok d = { .tok = t };
    struct meg_str full = { 0 }, grown = { 0 };
    struct meg_err e;

    if (meg_tokenizer_decode(t, ids->v, ids->n, &full, &e) < 0)
        abort();
    for (int64_t i = 0; i < ids->n; i++) {
        if (meg_detok_add(&d, ids->v + i, 1, i + 1 == ids->n, &grown, &e) < 0)
            abort();
    }
    if (grown.n != full.n || (full.n && memcmp(grown.s, full.s, full.n)))
        abort();
    meg_detok_free(&d);
    meg_str_free(&full);
    meg_str_free(&grown);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char *const types[] = { "GPTSentencePieceTokenizer", "SentencePieceTokenizer" };
    const size_t want = n < 2 ? 0 : bytes[0] | (size_t)bytes[1] << 8;
    const uint8_t *model = bytes + 2;
    struct meg_str text = { 0 };
    char path[512];

    if (n < 2)
        return 0;
    n -= 2;
    meg_utf8_add_replaced(&text, (const char *)model + (want < n ? n - want : 0), (int64_t)(want < n ? want : n));
    snprintf(path, sizeof path, "%s", fuzz_file("model", model, want < n ? n - want : n));
    for (int i = 0; i < 2; i++) {
        const struct meg_tok_conf conf = {
            .type = types[i], .tokenizer_model = path, .vocab_extra_ids = 2, .vocab_size = MEG_UNSET
        };
        struct meg_tokenizer *t = NULL;
        struct meg_ids ids = { 0 }, again = { 0 };
        struct meg_err e;

        if (meg_tokenizer_open(&t, &conf, &e) == 0) {
            if (meg_tokenizer_encode(t, text.s ? text.s : "", (int64_t)text.n, &ids, &e) < 0 ||
                meg_tokenizer_encode(t, text.s ? text.s : "", (int64_t)text.n, &again, &e) < 0 || again.n != ids.n ||
                (ids.n && memcmp(again.v, ids.v, (size_t)ids.n * sizeof *ids.v)))
                abort();
            decode_both(t, &ids);
        }
        meg_tokenizer_close(t);
        free(ids.v);
        free(again.v);
    }
    meg_str_free(&text);
    return 0;
}
