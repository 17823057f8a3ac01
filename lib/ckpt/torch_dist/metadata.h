/*
 * metadata.h - read .metadata, the table of contents of a distributed checkpoint of PyTorch.
 *
 * The file is a pickle of torch.distributed.checkpoint.metadata.Metadata.  It lists the tensors, the chunks of each
 * tensor, and for each chunk or other object the item that stores it: a byte range of a file *.distcp.
 */
#pragma once
#include "base/strtab.h"
#include "ckpt/safetensors.h"

/* The bytes [at, at + nbytes) of a file. */
struct dist_item {
    int64_t file; /* index of the file in struct dist_metadata; -1 while it is unknown */
    int64_t at, nbytes;
};

/* The elements [offset, offset + size) of a tensor along each dimension. */
struct dist_chunk {
    int64_t offset[MEG_ST_MAXDIM], size[MEG_ST_MAXDIM];
    struct dist_item item;
};

struct dist_tensor {
    char *name;
    const char *dtype; /* as in safetensors; NULL: another dtype */
    int ndim;
    int64_t dim[MEG_ST_MAXDIM];
    /*
     * Shape [noriginal] of the tensor of which this one is a flattened copy: a part of shape [x, y] of an original
     * [X, Y] is stored as the vector [i, j] of a tensor [X / x, Y / y, x y].  noriginal is 0 if it is not flattened.
     */
    int64_t original[MEG_ST_MAXDIM];
    int noriginal;
    struct dist_chunk *chunk; /* [nchunks] in ascending order of their offsets; together, they are the tensor */
    int nchunks;
};

/* The tensors, and the objects that are not tensors, in the order of .metadata. */
struct dist_metadata {
    struct meg_strtab tensor_names, object_names, files;
    struct dist_tensor *tensor; /* [tensor_names.n] */
    struct dist_item *object;   /* [object_names.n] */
    char **path;                /* [files.n] names of files in the directory */
};

/*
 * Read the file at path.  Returns MEG_EFORMAT if
 *   - the file is not a pickle, or an object has another class or type than it has in files of PyTorch
 *   - a tensor or object is listed twice, a chunk exceeds its tensor, or chunks overlap or leave a hole
 *   - a tensor or object has no item, or an item is compressed, in another directory or overlaps another one
 * Call dist_metadata_free after success and after an error.
 */
int dist_metadata_read(struct dist_metadata *m, const char *path, struct meg_err *e);
void dist_metadata_free(struct dist_metadata *m);

/* Return the item of an object that is not a tensor, or NULL. */
const struct dist_item *dist_find_object(const struct dist_metadata *m, const char *name);
