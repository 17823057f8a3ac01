/*
 * Fuzz the index of a dataset with 256 bytes of tokens: unless the index is rejected, all sequences are within these
 * bytes, and no document begins after the last sequence.
 */
#include <string.h>

#include "data/indexed/indexed.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const uint8_t tokens[256];
    struct meg_indexed *d = NULL;
    struct meg_err e;
    char prefix[512];
    int32_t ids[256];

    fuzz_file("d.bin", tokens, sizeof tokens);
    snprintf(prefix, sizeof prefix, "%s", fuzz_file("d.idx", bytes, n));
    prefix[strlen(prefix) - strlen(".idx")] = '\0';
    if (meg_indexed_open(&d, prefix, &e) < 0)
        return 0;
    for (int64_t s = 0; s < d->sequences; s++)
        meg_indexed_get(d, s, 0, meg_indexed_length(d, s), ids, &e);
    for (int64_t i = 0; i <= d->documents; i++)
        if (meg_indexed_document(d, i) > d->sequences)
            abort();
    meg_indexed_close(d);
    return 0;
}
