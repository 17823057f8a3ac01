/* mapped_tensor.c - compare tensors in mapped files, and remove their pages from memory. */
#include <stdlib.h>
#include <string.h>
#include "ckpt/internal.h"

void ckpt_drop_pages(const struct meg_st *st, const struct meg_st_tensor *t)
{
    if (t->container_data)
        meg_mmap_drop(&st->map, t->container_data, t->container_nbytes);
    else if (t->data)
        meg_mmap_drop(&st->map, t->data, (size_t)t->nbytes);
}

bool ckpt_is_equal(struct ckpt_mapped_tensor a, struct ckpt_mapped_tensor b)
{
    void *block[2];
    const void *x, *y;
    bool is_same;

    if (a.t->nbytes != b.t->nbytes || strcmp(a.t->dtype, b.t->dtype) != 0)
        return false;
    x = meg_st_data(a.t, &block[0]);
    y = meg_st_data(b.t, &block[1]);
    is_same = x && y && memcmp(x, y, (size_t)a.t->nbytes) == 0;
    ckpt_drop_pages(a.st, a.t);
    ckpt_drop_pages(b.st, b.t);
    free(block[0]);
    free(block[1]);
    return is_same;
}
