/*
 * safetensors.h - safetensors files, as specified in the README of github.com/huggingface/safetensors.
 *
 * A file consists of:
 *   - the length N of the header: 8 bytes, little-endian
 *   - the header: N bytes, JSON
 *   - the tensors: row-major, little-endian, without gaps up to the end of the file
 * The header contains the name, dtype, shape and byte range of each tensor:
 *     {"__metadata__":{"format":"pt"},"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}
 * Offsets count from the end of the header.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "file/file.h"
#include "tensor/dtype.h"

enum { MEG_ST_MAXDIM = 8 };

/* A strided view of the elements of a storage, such as a transposed tensor. */
struct meg_st_view {
    const unsigned char *first;
    int64_t stride[MEG_ST_MAXDIM]; /* elements between consecutive indices of each dimension */
    int nbytes;                    /* bytes per element */
};

struct meg_st_tile;

struct meg_st_tensor {
    const char *name;
    const char *dtype; /* name in the file: F32, BF16, ... */
    int ndim;          /* 0: one element */
    int64_t dim[MEG_ST_MAXDIM];
    int64_t file_offset, nbytes;    /* file_offset is relative to the beginning of the file */
    const void *data;               /* [nbytes] the elements, possibly unaligned; NULL: see view, or not mapped yet */
    const struct meg_st_view *view; /* NULL: the elements are in data */
    const struct meg_st_tile *tile; /* [ntiles] the elements, if they are in other files, and data and view are NULL */
    int64_t ntiles;
    /* ZIP member that contains the data, and its CRC-32; container_data is NULL without a ZIP file or a stored CRC. */
    const void *container_data;
    size_t container_nbytes;
    uint32_t crc;
};

/* A rectangle of a tensor of 1 or 2 dimensions, from (row, col) on; t has its elements and its shape [rows, cols]. */
struct meg_st_tile {
    struct meg_st *st; /* the file of t */
    struct meg_st_tensor t;
    int64_t row, col;
};

/*
 * One file and its tensors, sorted by name.  The file is memory-mapped when it is opened.  If the tensors were listed
 * from a manifest, the file is mapped by meg_st_map.
 */
struct meg_st {
    char *path;
    struct meg_mmap map;
    json_t *header; /* owns the names */
    struct meg_st_tensor *t;
    int n;
    void **owned; /* [nowned] further memory to free */
    int nowned;
};

/*
 * Map a safetensors file and check its header.  The elements are not read.  Returns MEG_EFORMAT if
 *   - the header is too long, truncated or not valid JSON, or a name occurs twice
 *   - a dtype is unknown, a shape has more than MEG_ST_MAXDIM dimensions, or a size contradicts shape and dtype
 *   - byte ranges overlap, leave a gap or do not end at the end of the file
 * Returns MEG_ENOENT or MEG_EIO if the file cannot be mapped.
 */
int meg_st_open(struct meg_st **out, const char *path, struct meg_err *e);
/*
 * Map the file of st, whose tensors were listed from a manifest without opening the file, and set their data.  Does
 * nothing if the file is mapped.  Fails as meg_st_open does, and with MEG_EFORMAT if a tensor of the list is not in the
 * file with the same dtype, shape and offset.
 */
int meg_st_map(struct meg_st *st, struct meg_err *e);
void meg_st_close(struct meg_st *st);

/* Transfer the ownership of a malloc'ed block, such as a name, to st.  meg_st_close frees the block. */
void meg_st_own(struct meg_st *st, void *block);

/*
 * Return the elements of a tensor in row-major order.  If the tensor has a view, the elements are copied to a new
 * block, and *block is set to this block.  Otherwise *block is set to NULL.  The caller frees *block.  Returns NULL if
 * memory allocation fails, the file is not mapped yet or the tensor consists of tiles.
 */
const void *meg_st_data(const struct meg_st_tensor *t, void **block);

/* Sort the tensors by name, after tensors were appended.  Returns MEG_EFORMAT if a name occurs twice. */
int meg_st_sort(struct meg_st *st, struct meg_err *e);

/* Return whether two tensors have the same dtype, shape and offset in the file; false if a is NULL. */
bool meg_st_is_same(const struct meg_st_tensor *a, const struct meg_st_tensor *b);

/* Return the tensor with this name, or NULL if there is none. */
const struct meg_st_tensor *meg_st_find(const struct meg_st *st, const char *name);

/*
 * Build the header of a file to write.  Sort the tensors as Hugging Face's writer does: larger elements first, then by
 * name.  Compute file_offset and nbytes of each tensor from shape and dtype.  Append the header to *header, padded with
 * blanks to align the data to 8 bytes.  If is_hf is true, add the metadata that Hugging Face's readers require.
 */
void meg_st_build_header(struct meg_st_tensor *t, int n, bool is_hf, struct meg_str *header);

/* Find the tensor with a name and a dtype among the n tensors that meg_st_build_header sorted; it must exist. */
const struct meg_st_tensor *meg_st_find_written(const struct meg_st_tensor *t, int n, const char *name,
                                                enum meg_dtype dtype);

/* Return the bytes per element of a dtype in a file, or 0 for an unknown dtype. */
int meg_st_dtype_nbytes(const char *dtype);

int64_t meg_st_numel(const struct meg_st_tensor *t);

/* Print a shape such as "[64,192]" to buf [MEG_ST_SHAPE_CHARS]; return buf. */
enum { MEG_ST_SHAPE_CHARS = 21 * MEG_ST_MAXDIM + 3 };
const char *meg_st_shape(char *buf, const int64_t *dim, int ndim);
