/*
 * index_cache.h - files that store index arrays.  Megatron-LM can read the files: they have its names and format.
 * meg-idx(5), section INDEX CACHE, describes the files.
 *   DIR/MD5-CLASS-SPLIT-description.txt     inputs of the arrays; MD5 is the hash of these bytes
 *   DIR/MD5-CLASS-SPLIT-NAME.npy            one file for each array
 *   DIR/MD5-CLASS-SPLIT-checksums.txt       one line for each array: the XXH3-128 hash of the array's data in
 *                                           hexadecimal, and NAME.  This file is written last.  Megatron-LM does not
 *                                           write this file.
 * The names of BERT and T5 indices do not contain SPLIT.
 * With Megatron-DeepSpeed's file names, PREFIX contains inputs of the arrays:
 *   DIR/PREFIX_NAME.npy, DIR/PREFIX_checksums.txt
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "file/file.h"

/* The files of one index. */
struct meg_index_cache_entry {
    const char *dir;
    const char *class_name;       /* for example "GPTDataset" */
    const char *split;            /* for example "train"; NULL: the names do not contain the split */
    const char *description;      /* text from data/cache_key.h */
    const char *deepspeed_prefix; /* if not NULL, use Megatron-DeepSpeed's names and ignore the three fields above */
};

/* One array, stored in a .npy file. */
struct meg_npy {
    const char *name; /* for example "document_index"; NULL, only with deepspeed_prefix: the file is DIR/PREFIX.npy */
    const char *type; /* numpy's type, for example "<i4" */
    size_t item;      /* bytes per element */
    int64_t rows;     /* -1: meg_index_cache_load sets it from the file */
    int columns;      /* 0: the array is one-dimensional */
    const void *data;
};

/*
 * meg_index_cache_load - map the arrays of an entry
 *   prefix  dataset whose .idx file must not be newer than the arrays.  If prefix is NULL or the .idx file does not
 *           exist, the age of the files is not checked.
 *   a       [n]  in/out  sets `data`, and `rows` if it is -1; the other fields are input
 *   map     [n]  out  mapped files; the caller closes them
 * Returns true if all arrays are valid and the description matches.  With Megatron-DeepSpeed's names there is no
 * description to match.  An array is valid if
 *   - its .npy header and size are those that `a` describes,
 *   - its data match the stored checksum, and
 *   - its file is not older than the dataset's .idx file.
 * Otherwise, returns false with no file mapped, and logs the reason.  No reason is logged if a .npy file or the
 * description cannot be opened.  A checksum mismatch is logged as a warning.
 * An entry that Megatron-LM wrote has no checksums and is rejected.  The caller rebuilds and stores the entry.
 */
bool meg_index_cache_load(const struct meg_index_cache_entry *c, const char *prefix, struct meg_npy *a, int n,
                          struct meg_mmap *map);

/*
 * meg_index_cache_store - write the n arrays of an entry, its description and its checksums
 * Several processes may store the same entry at once: each file is written under a temporary name and renamed when
 * complete.  A failure causes only a warning; the caller can use the arrays in memory.
 */
void meg_index_cache_store(const struct meg_index_cache_entry *c, const struct meg_npy *a, int n);
