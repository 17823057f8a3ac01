/*
 * safetensors files: 8 bytes N (little-endian), N bytes of JSON that say where each tensor lies, and
 * the tensors, row-major and little-endian, without gaps up to the end of the file.
 *     {"__metadata__":{"format":"pt"},"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}
 * Offsets count from the end of the header.  After github.com/huggingface/safetensors, README.
 */
#ifndef MEG_CKPT_SAFETENSORS_H
#define MEG_CKPT_SAFETENSORS_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "file/file.h"
#include "tensor/dtype.h"

MEG_BEGIN_DECLS

enum { MEG_ST_MAXDIM = 8 };

/* Elements that are not in order: those of a transposed tensor, say. */
struct meg_st_view {
    const unsigned char *first;
    int64_t stride[MEG_ST_MAXDIM]; /* elements between neighbours along each dimension */
    int nbytes;                    /* of an element */
};

struct meg_st_tensor {
    const char *name;
    const char *dtype; /* as the file spells it: F32, BF16, ... */
    int ndim;          /* 0: one element */
    int64_t dim[MEG_ST_MAXDIM];
    int64_t file_offset, nbytes;    /* place in the file, header counted */
    const void *data;               /* nbytes of them, at any address; NULL: they are those of view */
    const struct meg_st_view *view; /* NULL: data is there */
    const void
        *container_data; /* nstored bytes of another container that data comes from, with their CRC-32; NULL: none */
    size_t container_nbytes;
    uint32_t crc;
};

/* One file, mapped for reading; its tensors by name. */
struct meg_st {
    char *path;
    struct meg_mmap map;
    json_t *header; /* holds the names */
    struct meg_st_tensor *t;
    int n;
    void **owned; /* what else it owns */
    int nowned;
};

/*
 * Open and check all but the values: MEG_EFORMAT names the file, what was found and what was expected
 * for a header that is too long, no JSON or has a name twice, a type that is unknown, a size that is
 * not that of shape and type, and ranges that overlap, leave a gap or do not end where the file does.
 */
int meg_st_open(struct meg_st **out, const char *path, struct meg_err *e);
void meg_st_close(struct meg_st *st);

/* malloc'ed memory, a name say, that is freed when st is closed. */
void meg_st_own(struct meg_st *st, void *block);

/*
 * The elements of a tensor in order: its data, or those of its view in *block, malloc'ed for the caller.
 * NULL where there is no memory for them.
 */
const void *meg_st_data(const struct meg_st_tensor *t, void **block);

/* Sort by name what was appended; MEG_EFORMAT for a name that is there twice. */
int meg_st_sort(struct meg_st *st, struct meg_err *e);

/* NULL: no such tensor. */
const struct meg_st_tensor *meg_st_find(const struct meg_st *st, const char *name);

/*
 * The header of a file to be written: puts tensors in the order that Hugging Face's writer has (larger
 * elements first, then by name), sets begin and nbytes from shape and type, and appends the header,
 * padded with blanks so that data begins 8-byte aligned.  is_hf: with the metadata HF readers want.
 */
void meg_st_build_header(struct meg_st_tensor *t, int n, bool is_hf, struct meg_str *header);

/* Elements of a tensor: the product of its sizes. */
int64_t meg_st_numel(const struct meg_st_tensor *t);

/* "[64,192]", into a buffer of MEG_ST_SHAPE_CHARS; returned. */
enum { MEG_ST_SHAPE_CHARS = 21 * MEG_ST_MAXDIM + 3 };
const char *meg_st_shape(char *buf, const int64_t *dim, int ndim);

MEG_END_DECLS
#endif
