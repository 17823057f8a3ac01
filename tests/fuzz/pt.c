/* Fuzz the reader of torch.save files: unless it rejects a file, all tensors are within the file. */
#include "ckpt/megatron/pt.h"
#include "fuzz.h"

static volatile uint8_t sum; /* volatile, so that all bytes are read */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct meg_st *st = NULL;
    struct meg_err e;

    if (meg_pt_open_tensors(&st, fuzz_file("f.pt", bytes, n), &e) < 0)
        return 0;
    for (int i = 0; i < st->n; i++) {
        const struct meg_st_tensor *t = &st->t[i];
        void *block;
        const uint8_t *data = meg_st_data(t, &block);

        if (meg_st_find(st, t->name) != t)
            abort();
        if (!data)
            continue; /* no memory for a copy of the tensor's view */
        for (int64_t k = 0; k < t->nbytes; k++)
            sum ^= data[k];
        free(block);
    }
    meg_st_close(st);
    return 0;
}
