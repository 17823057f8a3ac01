/*
 * Index arrays kept in files, under Megatron-LM's names and byte for byte as it writes them, so that
 * either program finds what the other made: meg-idx(5), section INDEX CACHE.
 *   DIR/MD5-CLASS-SPLIT-description.txt     what the arrays depend on; MD5 is of these bytes
 *   DIR/MD5-CLASS-SPLIT-NAME.npy            one for each array
 *   DIR/MD5-CLASS-SPLIT-checksums.txt       ours alone, written last: a line for each array, the
 *                                           XXH3-128 of its numbers in hexadecimal and NAME
 * Or under Megatron-DeepSpeed's, whose names hold what little they depend on:
 *   DIR/STEM_NAME.npy, DIR/STEM_checksums.txt
 */
#ifndef MEG_DATA_INDEX_CACHE_H
#define MEG_DATA_INDEX_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "file/file.h"

struct meg_index_cache_entry {
    const char *dir;
    const char *class_name;       /* "GPTDataset" */
    const char *split;            /* "train" */
    const char *description;      /* Python's json.dumps(..., indent=4) */
    const char *deepspeed_prefix; /* not NULL: Megatron-DeepSpeed's names, DIR/STEM_NAME.npy, and none of the above */
};

struct meg_npy {
    const char *name; /* "document_index"; NULL: DIR/STEM.npy */
    const char *type; /* numpy's name of the type: "<i4" */
    size_t item;      /* its bytes */
    int64_t rows;     /* -1: as many as the file has, which meg_index_cache_load fills in */
    int columns;      /* 0: an array with one axis */
    const void *data;
};

/*
 * meg_index_cache_load - map the arrays of an entry
 *   a    [n]  name, type, item, rows, columns in; data out
 *   map  [n]  out  the caller closes them
 * False, with nothing mapped, unless every file is there, has just the header and size that a asks
 * for, is no older than PREFIX.idx (prefix may be NULL), and has the checksum that was kept of it.  A note
 * says so where files are there but do not fit, and a warning where the checksum differs.  Files that
 * Megatron-LM wrote have no checksum: the caller builds the same bytes, and meg_index_cache_store adds it.
 */
bool meg_index_cache_load(const struct meg_index_cache_entry *c, const char *prefix, struct meg_npy *a, int n,
                          struct meg_mmap *map);

/*
 * Write the arrays, each under a temporary name first, so that processes that build the same entry at
 * once do not disturb each other.  What cannot be written is a warning: an index works from memory.
 */
void meg_index_cache_store(const struct meg_index_cache_entry *c, const struct meg_npy *a, int n);

#endif
