/*
 * compose.c - compose native tensors of the chunks of a distributed checkpoint.
 *
 * A chunk is a box of a tensor or, in a flattened tensor, a range of the elements of a box.  In each layer of the box,
 * its elements are rectangles of the native tensor: tiles.  They remain in the mapped file.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/torch_dist/torch_dist.h"

enum { LAYERS_MAX = 1 << 14 };

/* The tensor of an item, whose elements are those of a chunk. */
struct source {
    struct meg_st *st; /* mapped file */
    struct meg_st_tensor t;
};

/* Rows and columns of a native tensor: [row, row + nrows) and [col, col + ncols). */
struct box {
    int64_t row, col, nrows, ncols;
};

/* ---- native tensors ---- */

/* A native tensor, and the part of it that a tensor of the checkpoint is: half 0 or 1 of its rows; -1: all of them. */
struct native {
    char *name; /* find_native takes the ownership */
    int64_t dim[2];
    int ndim, half;
};

/* Set *at to the index of a native tensor of which t is a part; add it if it is new. */
static int find_native(struct dist_composer *x, int64_t *at, const struct native *native, const struct dist_tensor *t)
{
    const int64_t n = x->names.n, i = meg_strtab_add(&x->names, native->name, (int64_t)strlen(native->name));
    const size_t dim_nbytes = (size_t)native->ndim * sizeof *native->dim;
    struct meg_st *st = x->st;
    struct meg_st_tensor *own;
    bool is_same;

    *at = i;
    if (i < n) {
        free(native->name);
    } else {
        meg_st_own(st, native->name);
        x->tiles = meg_grow(x->tiles, n, &x->tiles_cap, sizeof *x->tiles);
        x->tiles[n] = (struct dist_tiles){ 0 };
        st->t = meg_grow(st->t, n, &x->tensor_cap, sizeof *st->t);
        own = &st->t[st->n++];
        *own = (struct meg_st_tensor){ .name = native->name, .dtype = t->dtype, .ndim = native->ndim };
        memcpy(own->dim, native->dim, dim_nbytes);
        own->nbytes = meg_st_numel(own) * meg_st_dtype_nbytes(t->dtype);
    }
    own = &st->t[i];
    is_same = own->ndim == native->ndim && memcmp(own->dim, native->dim, dim_nbytes) == 0 &&
              strcmp(own->dtype, t->dtype) == 0;
    for (int half = 0; half < 2; half++)
        if (native->half != !half) {
            is_same = is_same && (!x->tiles[i].part[half] || x->tiles[i].part[half] == t);
            x->tiles[i].part[half] = t;
        }
    return is_same ? 0
                   : meg_fail(x->e, MEG_EFORMAT, "%s: two tensors are %.200s; expected one, of one shape and dtype",
                              st->path, own->name);
}

/* ---- tiles ---- */

/* Add a tile of native tensor i: the elements of src from `first` on. */
static int add_tile(struct dist_composer *x, int64_t i, const struct box *b, const struct source *src, int64_t first)
{
    const int64_t nbytes = meg_st_dtype_nbytes(src->t.dtype), numel = b->nrows * b->ncols;
    struct dist_tiles *tiles = &x->tiles[i];
    struct meg_st_tile *tile;

    if (src->t.view)
        return meg_fail(x->e, MEG_EFORMAT,
                        "%s: item at byte %" PRId64 ": the tensor is not contiguous; save contiguous tensors",
                        src->st->path, src->t.file_offset);
    tiles->v = meg_grow(tiles->v, tiles->n, &tiles->cap, sizeof *tiles->v);
    tile = &tiles->v[tiles->n++];
    tiles->numel += numel;
    *tile = (struct meg_st_tile){ .st = src->st, .t = src->t, .row = b->row, .col = b->col };
    tile->t.name = x->st->t[i].name;
    tile->t.ndim = 2;
    tile->t.dim[0] = b->nrows;
    tile->t.dim[1] = b->ncols;
    tile->t.nbytes = numel * nbytes;
    tile->t.file_offset += first * nbytes;
    if (tile->t.data)
        tile->t.data = (const unsigned char *)tile->t.data + first * nbytes;
    if (first > 0)
        tile->t.container_data = NULL; /* the first tile verifies the CRC-32 of the item */
    return 0;
}

/*
 * Add the tiles of native tensor i for the elements [begin, end) of a box, in row-major order.  The first of them is
 * element `first` of src.
 */
static int add_range(struct dist_composer *x, int64_t i, const struct box *b, int64_t begin, int64_t end,
                     const struct source *src, int64_t first)
{
    int r = 0;

    for (int64_t at = begin, n; r == 0 && at < end; at += n) {
        const int64_t col = at % b->ncols, left = end - at;
        struct box part = { .row = b->row + at / b->ncols, .col = b->col, .nrows = left / b->ncols, .ncols = b->ncols };

        if (col > 0 || left < b->ncols) {
            part.col += col;
            part.nrows = 1;
            part.ncols = left < b->ncols - col ? left : b->ncols - col;
        }
        n = part.nrows * part.ncols;
        r = add_tile(x, i, &part, src, first + at - begin);
    }
    return r;
}

/* ---- chunks ---- */

/* Open the item of a chunk, and check that its tensor matches the chunk. */
static int open_chunk(struct dist_composer *x, struct source *src, const struct dist_tensor *t,
                      const struct dist_chunk *k)
{
    char found[MEG_ST_SHAPE_CHARS], expected[MEG_ST_SHAPE_CHARS];
    struct meg_st item = { 0 };
    struct meg_pt *pt = NULL;
    int r;

    if ((r = dist_open_item(&pt, &src->st, x->d, &k->item, x->e)) < 0 ||
        (r = meg_pt_tensor(&item, pt, pt->pickle.root, t->name, x->e)) < 0)
        goto out;
    src->t = item.t[0];
    src->t.file_offset += k->item.at;
    if (!t->dtype || strcmp(src->t.dtype, t->dtype) != 0)
        r = meg_fail(x->e, MEG_EFORMAT, "%s: tensor %.200s has dtype %s, but .metadata has %s", pt->path, t->name,
                     src->t.dtype, t->dtype ? t->dtype : "another dtype");
    else if (src->t.ndim != t->ndim || memcmp(src->t.dim, k->size, (size_t)t->ndim * sizeof *k->size) != 0)
        r = meg_fail(x->e, MEG_EFORMAT, "%s: tensor %.200s has shape %s, but .metadata has %s", pt->path, t->name,
                     meg_st_shape(found, src->t.dim, src->t.ndim), meg_st_shape(expected, k->size, t->ndim));
out:
    for (int i = 0; i < item.nowned; i++)
        meg_st_own(x->st, item.owned[i]); /* the view refers to the mapped file */
    free(item.owned);
    free(item.t);
    meg_pt_close(pt);
    return r;
}

/*
 * The layout of a tensor: [layers, rows, cols], with one layer and one column if it has no such axes.  Part (i, j, k)
 * of a flattened tensor has part[0] layers, part[1] rows and part[2] columns.
 */
struct layout {
    bool is_stacked;
    int ndim; /* dimensions of the native tensors, 1 or 2 */
    int64_t dim[3], part[3];
};

static int layout_of(struct dist_composer *x, struct layout *l, const struct dist_tensor *t, bool is_stacked)
{
    const int64_t *dim = t->noriginal ? t->original : t->dim;
    const int ndim = t->noriginal ? t->noriginal : t->ndim;
    int64_t flat = 1;

    *l =
        (struct layout){ .is_stacked = is_stacked, .ndim = ndim - is_stacked, .dim = { 1, 1, 1 }, .part = { 1, 1, 1 } };
    if (l->ndim < 1 || l->ndim > 2)
        return meg_fail(x->e, MEG_EFORMAT, "%s: tensor %.200s has %d dimensions, expected %d or %d", x->st->path,
                        t->name, ndim, 1 + is_stacked, 2 + is_stacked);
    memcpy(l->dim + !is_stacked, dim, (size_t)ndim * sizeof *dim);
    memcpy(l->part + !is_stacked, dim, (size_t)ndim * sizeof *dim);
    for (int i = 0; i < ndim && t->noriginal; i++) {
        int64_t *part = &l->part[i + !is_stacked];

        if (t->dim[i] < 1 || dim[i] % t->dim[i] != 0)
            flat = -1;
        else
            *part = dim[i] / t->dim[i];
        flat = flat < 0 || __builtin_mul_overflow(flat, *part, &flat) ? -1 : flat;
    }
    if (t->noriginal && flat != t->dim[ndim])
        return meg_fail(x->e, MEG_EFORMAT,
                        "%s: tensor %.200s is not flattened as nd_reformulated_orig_global_shape requires", x->st->path,
                        t->name);
    if (l->dim[0] < 1 || l->dim[0] > LAYERS_MAX || l->dim[1] < 1 || l->dim[2] < 1)
        return meg_fail(x->e, MEG_EFORMAT, "%s: tensor %.200s has no elements, or more than %d layers", x->st->path,
                        t->name, LAYERS_MAX);
    return 0;
}

/* Return the native name of a tensor of a layer with the prefix of a state, malloc'ed. */
static char *native_name(const char *name, int64_t layer, const char *state, int *half)
{
    char *native = dist_native_name(name, layer, half), buf[CKPT_NAME_CHARS];

    if (!state)
        return native;
    ckpt_optim_name(buf, state, native);
    free(native);
    return meg_strdup(buf);
}

/* Add the elements of a chunk to the native tensors of its layers. */
static int add_chunk(struct dist_composer *x, const struct layout *l, const struct dist_tensor *t,
                     const struct dist_chunk *k, const char *name, const char *state)
{
    int64_t offset[3] = { 0, 0, 0 }, size[3] = { 1, 1, 1 }, begin = 0, end = 1;
    struct source src;
    int r = open_chunk(x, &src, t, k);

    if (r < 0)
        return r;
    for (int i = 0; i < l->ndim + l->is_stacked; i++) {
        const int at = i + !l->is_stacked;

        offset[at] = t->noriginal ? k->offset[i] * l->part[at] : k->offset[i];
        size[at] = t->noriginal ? l->part[at] : k->size[i];
        end *= size[at];
        if (t->noriginal && k->size[i] != 1)
            return meg_fail(x->e, MEG_EFORMAT, "%s: tensor %.200s: a chunk of a flattened tensor has several parts",
                            x->st->path, t->name);
    }
    if (t->noriginal) {
        begin = k->offset[t->ndim - 1];
        end = begin + k->size[t->ndim - 1];
    }
    for (int64_t layer = 0, n = size[1] * size[2]; r == 0 && layer < size[0]; layer++) {
        const int64_t low = layer * n > begin ? layer * n : begin, high = (layer + 1) * n < end ? (layer + 1) * n : end;
        struct box b = { offset[1], offset[2], size[1], size[2] };
        struct native native = { .dim = { l->dim[1], l->dim[2] }, .ndim = l->ndim };
        int64_t i;

        if (low >= high)
            continue;
        native.name = native_name(name, offset[0] + layer, state, &native.half);
        native.dim[0] *= native.half < 0 ? 1 : 2;
        b.row += native.half > 0 ? l->dim[1] : 0;
        if ((r = find_native(x, &i, &native, t)) == 0)
            r = add_range(x, i, &b, low - layer * n, high - layer * n, &src, low - begin);
    }
    return r;
}

int dist_compose(struct dist_composer *x, const struct dist_tensor *t, const char *name, const char *state)
{
    struct layout l;
    int r = layout_of(x, &l, t, dist_is_stacked(name));

    for (int i = 0; r == 0 && i < t->nchunks; i++)
        r = add_chunk(x, &l, t, &t->chunk[i], name, state);
    return r;
}

int dist_compose_range(struct dist_composer *x, const struct dist_tensor *t, int64_t first, const char *name,
                       const int64_t *dim, int ndim)
{
    const struct native native = { meg_strdup(name), { dim[0], ndim > 1 ? dim[1] : 1 }, ndim, -1 };
    const struct box b = { 0, 0, native.dim[0], native.dim[1] };
    int64_t i;
    int r = find_native(x, &i, &native, t);

    for (int k = 0; r == 0 && k < t->nchunks; k++) {
        const int64_t begin = t->chunk[k].offset[0] - first, end = begin + t->chunk[k].size[0];
        const int64_t low = begin > 0 ? begin : 0, high = end < b.nrows * b.ncols ? end : b.nrows * b.ncols;
        struct source src;

        if (low < high && (r = open_chunk(x, &src, t, &t->chunk[k])) == 0)
            r = add_range(x, i, &b, low, high, &src, low - begin);
    }
    return r;
}

int dist_compose_end(struct dist_composer *x, int r)
{
    for (int64_t i = 0; i < x->names.n; i++) {
        struct meg_st_tensor *t = &x->st->t[i];

        if (r == 0 && x->tiles[i].numel != meg_st_numel(t))
            r = meg_fail(x->e, MEG_EFORMAT, "%s: tensor %.200s: the chunks have %" PRId64 " of %" PRId64 " elements",
                         x->st->path, t->name, x->tiles[i].numel, meg_st_numel(t));
        t->tile = x->tiles[i].v;
        t->ntiles = x->tiles[i].n;
        meg_st_own(x->st, x->tiles[i].v);
    }
    free(x->tiles);
    meg_strtab_free(&x->names);
    return r < 0 ? r : meg_st_sort(x->st, x->e);
}
