/* chunks.c - sort the chunks of a tensor, and check that they are the tensor. */
#include "ckpt/torch_dist/chunks.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NUMEL_MAX (INT64_MAX / 16) /* so that twice the bytes of the elements do not overflow */
enum { COMPARED_MAX = 1 << 26 };

/* The offsets of a chunk have zeros after the last dimension. */
static int by_offset(const void *a, const void *b)
{
    const struct dist_chunk *x = a, *y = b;

    for (int i = 0; i < MEG_ST_MAXDIM; i++)
        if (x->offset[i] != y->offset[i])
            return x->offset[i] < y->offset[i] ? -1 : 1;
    return 0;
}

struct dist_chunk *dist_find_chunk(const struct dist_tensor *t, const int64_t *offset)
{
    struct dist_chunk key = { 0 };

    memcpy(key.offset, offset, (size_t)t->ndim * sizeof *offset);
    return bsearch(&key, t->chunk, (size_t)t->nchunks, sizeof key, by_offset);
}

static void remove_repeated(struct dist_tensor *t)
{
    int kept = 0;

    for (int i = 0; i < t->nchunks; i++)
        if (!kept || by_offset(&t->chunk[kept - 1], &t->chunk[i]) != 0 ||
            memcmp(t->chunk[kept - 1].size, t->chunk[i].size, sizeof t->chunk->size) != 0)
            t->chunk[kept++] = t->chunk[i];
    t->nchunks = kept;
}

static bool is_within(const struct dist_tensor *t, const struct dist_chunk *k)
{
    for (int i = 0; i < t->ndim; i++)
        if (k->offset[i] > t->dim[i] || k->size[i] > t->dim[i] - k->offset[i])
            return false;
    return true;
}

static bool overlaps(const struct dist_chunk *a, const struct dist_chunk *b, int ndim)
{
    for (int i = 0; i < ndim; i++)
        if (a->offset[i] >= b->offset[i] + b->size[i] || b->offset[i] >= a->offset[i] + a->size[i] || !a->size[i] ||
            !b->size[i])
            return false;
    return true;
}

/* Return the number of elements of a chunk or tensor, whose product does not overflow, or -1. */
static int64_t numel_of(const int64_t *size, int ndim)
{
    int64_t n = 1;

    for (int i = 0; i < ndim; i++)
        if (__builtin_mul_overflow(n, size[i], &n))
            return -1;
    return n;
}

/*
 * Check that sorted chunks do not overlap.  A chunk need only be compared with those that begin before its end along
 * the first axis on which offsets differ.
 */
static int check_overlap(const struct dist_tensor *t, const char *from, struct meg_err *e)
{
    char at[2][MEG_ST_SHAPE_CHARS];
    int axis = 0, ncompared = 0;

    while (axis + 1 < t->ndim && t->nchunks && t->chunk[0].offset[axis] == t->chunk[t->nchunks - 1].offset[axis])
        axis++;
    for (int i = 0; i < t->nchunks; i++)
        for (int k = i + 1; k < t->nchunks; k++) {
            const struct dist_chunk *a = &t->chunk[i], *b = &t->chunk[k];

            if (t->ndim > 0 && b->offset[axis] >= a->offset[axis] + a->size[axis])
                break;
            if (++ncompared > COMPARED_MAX)
                return meg_fail(e, MEG_EFORMAT, "%s: tensor %.200s: %d chunks are too many", from, t->name, t->nchunks);
            if (overlaps(a, b, t->ndim))
                return meg_fail(e, MEG_EFORMAT, "%s: tensor %.200s: the chunks at %s and %s overlap", from, t->name,
                                meg_st_shape(at[0], a->offset, t->ndim), meg_st_shape(at[1], b->offset, t->ndim));
        }
    return 0;
}

int dist_sort_chunks(struct dist_tensor *t, const char *from, struct meg_err *e)
{
    const int64_t numel = numel_of(t->dim, t->ndim);
    char shape[2][MEG_ST_SHAPE_CHARS], at[MEG_ST_SHAPE_CHARS];
    int64_t sum = 0;
    int r;

    if (numel < 0 || numel > NUMEL_MAX)
        return meg_fail(e, MEG_EFORMAT, "%s: tensor %.200s: shape %s is too large", from, t->name,
                        meg_st_shape(shape[0], t->dim, t->ndim));
    if (t->nchunks)
        qsort(t->chunk, (size_t)t->nchunks, sizeof *t->chunk, by_offset);
    remove_repeated(t);
    for (int i = 0; i < t->nchunks; i++)
        if (!is_within(t, &t->chunk[i]))
            return meg_fail(e, MEG_EFORMAT, "%s: tensor %.200s of shape %s: the chunk of shape %s at %s exceeds it",
                            from, t->name, meg_st_shape(shape[0], t->dim, t->ndim),
                            meg_st_shape(shape[1], t->chunk[i].size, t->ndim),
                            meg_st_shape(at, t->chunk[i].offset, t->ndim));
    if ((r = check_overlap(t, from, e)) < 0)
        return r;
    for (int i = 0; i < t->nchunks; i++)
        sum += numel_of(t->chunk[i].size, t->ndim);
    if (sum != numel)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: tensor %.200s of shape %s: the chunks have %" PRId64 " of %" PRId64
                     " elements; parts of the tensor are missing",
                     from, t->name, meg_st_shape(shape[0], t->dim, t->ndim), sum, numel);
    return r;
}
