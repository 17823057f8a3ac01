/*
 * index_cache.h - files that store index arrays, with the names and format of Megatron-LM: meg and Megatron-LM read
 * each other's files.  meg-idx(5), section INDEX CACHE, describes them.
 *   DIR/MD5-CLASS-SPLIT-description.txt     inputs of the arrays; MD5 is the hash of these bytes
 *   DIR/MD5-CLASS-SPLIT-NAME.npy            one file for each array
 *   DIR/MD5-CLASS-SPLIT-checksums.txt       written last, and only by meg: one line for each array, with the XXH3-128
 *                                           of its data in hexadecimal, and NAME
 * Megatron-DeepSpeed encodes the inputs of the arrays in a file name prefix:
 *   DIR/PREFIX_NAME.npy, DIR/PREFIX_checksums.txt
 */
#ifndef MEG_DATA_INDEX_CACHE_H
#define MEG_DATA_INDEX_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/decls.h"
#include "file/file.h"

MEG_BEGIN_DECLS

/* The files of one index. */
struct meg_index_cache_entry {
    const char *dir;
    const char *class_name;       /* "GPTDataset" */
    const char *split;            /* "train" */
    const char *description;      /* text from data/cache_key.h */
    const char *deepspeed_prefix; /* if not NULL, use Megatron-DeepSpeed's names and ignore the three fields above */
};

/* One array, stored in a .npy file. */
struct meg_npy {
    const char *name; /* "document_index"; NULL: the file is DIR/PREFIX.npy */
    const char *type; /* numpy's type: "<i4" */
    size_t item;      /* bytes per element */
    int64_t rows;     /* -1: meg_index_cache_load sets it from the file */
    int columns;      /* 0: the array is one-dimensional */
    const void *data;
};

/*
 * meg_index_cache_load - map the arrays of an entry
 *   a    [n]  name, type, item, rows and columns in; data out
 *   map  [n]  out  mapped files; the caller closes them
 * Returns false, with no file mapped, unless every file exists, has the header and size that a describes, is not older
 * than PREFIX.idx (prefix may be NULL) and has the stored checksum.  Logs why an existing file is rejected, and warns
 * if a checksum differs.  Entries written by Megatron-LM have no checksums: the caller rebuilds the arrays, and
 * meg_index_cache_store adds the checksums.
 */
bool meg_index_cache_load(const struct meg_index_cache_entry *c, const char *prefix, struct meg_npy *a, int n,
                          struct meg_mmap *map);

/*
 * meg_index_cache_store - write n arrays; several processes may store an entry at once, as each file is renamed to its
 *                         final name
 * A failure only causes a warning, since the arrays can be used from memory.
 */
void meg_index_cache_store(const struct meg_index_cache_entry *c, const struct meg_npy *a, int n);

MEG_END_DECLS

#endif
