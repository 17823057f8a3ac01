/* legacy_index.h - the index format of Megatron-LM's --dataset-impl lazy and cached; meg-idx(5) documents it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* The parsed header, and pointers to the int64 arrays in the file. */
struct meg_legacy_index {
    int dtype; /* enum meg_idx_dtype */
    int64_t sequences;
    int64_t entries;              /* document index entries */
    const unsigned char *sizes;   /* [sequences] length of each sequence in tokens */
    const unsigned char *offsets; /* [sequences + 1] offset of each sequence in .bin, in tokens */
    const unsigned char *docs;    /* [entries] first sequence of each document, then the number of sequences */
};

/* Return true if the n bytes begin with the magic of this format. */
bool meg_legacy_index_detect(const void *idx, size_t n);

/*
 * Parse the n bytes of NAME.idx and check header, dimensions and sizes.  The arrays of *l point into idx.
 * Returns MEG_EFORMAT, with a message that names the file, if a check fails.
 */
int meg_legacy_index_read(struct meg_legacy_index *l, const char *name, const void *idx, size_t n, struct meg_err *e);
