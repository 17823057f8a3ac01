/*
 * index_cache.h - files that store index arrays, named and laid out as Megatron-LM writes them, so that either program
 * reads the other's: meg-idx(5), section INDEX CACHE.
 *   DIR/MD5-CLASS-SPLIT-description.txt     what the arrays depend on; MD5 is the hash of these bytes
 *   DIR/MD5-CLASS-SPLIT-NAME.npy            one for each array
 *   DIR/MD5-CLASS-SPLIT-checksums.txt       written last, and only by meg: for each array a line with the XXH3-128 of
 *                                           its numbers in hexadecimal, and NAME
 * Megatron-DeepSpeed puts what its arrays depend on into a prefix:
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
    const char *description;      /* of data/cache_key.h */
    const char *deepspeed_prefix; /* not NULL: use Megatron-DeepSpeed's names; the three above are not read */
};

/* One array, a file of numpy's format. */
struct meg_npy {
    const char *name; /* "document_index"; NULL: the file is DIR/PREFIX.npy */
    const char *type; /* numpy's type: "<i4" */
    size_t item;      /* its bytes */
    int64_t rows;     /* -1: meg_index_cache_load sets it from the file */
    int columns;      /* 0: the array has one axis */
    const void *data;
};

/*
 * meg_index_cache_load - map the arrays of an entry
 *   a    [n]  name, type, item, rows and columns in; data out
 *   map  [n]  out  the caller closes them
 * Returns false, with nothing mapped, unless every file exists, has the header and size that a describes, is not older
 * than PREFIX.idx (prefix may be NULL) and has the stored checksum.  Logs why files do not fit, and warns where a
 * checksum differs.  Files written by Megatron-LM have no checksum: the caller builds the arrays, and
 * meg_index_cache_store adds it.
 */
bool meg_index_cache_load(const struct meg_index_cache_entry *c, const char *prefix, struct meg_npy *a, int n,
                          struct meg_mmap *map);

/*
 * meg_index_cache_store - write n arrays, each first under a temporary name: processes may store one entry at once
 * A failure is only a warning, since the arrays can be used from memory.
 */
void meg_index_cache_store(const struct meg_index_cache_entry *c, const struct meg_npy *a, int n);

MEG_END_DECLS

#endif
