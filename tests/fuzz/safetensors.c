/* Fuzz the reader of safetensors files: unless it rejects a file, the tensors cover all bytes after the header. */
#include <string.h>

#include "ckpt/safetensors.h"
#include "fuzz.h"

static volatile uint8_t last; /* volatile, so that the byte is read */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct meg_st *st = NULL;
    struct meg_err e;
    size_t sum = 0;
    uint64_t header;

    if (meg_st_open(&st, fuzz_file("f.safetensors", bytes, n), &e) < 0)
        return 0;
    for (int i = 0; i < st->n; i++) {
        const struct meg_st_tensor *t = &st->t[i];

        if (meg_st_find(st, t->name) != t)
            abort();
        sum += (size_t)t->nbytes;
        if (t->nbytes)
            last ^= ((const uint8_t *)t->data)[t->nbytes - 1];
    }
    memcpy(&header, bytes, 8);
    if (8 + header + sum != n)
        abort();
    meg_st_close(st);
    return 0;
}
