/* list_datasets.h - list the token datasets in a directory. */
#pragma once
#include <stddef.h>
#include "base/err.h"

/* List of dataset prefixes, that is, paths without .bin and .idx.  A zeroed list is empty. */
struct meg_prefix_list {
    char **v;
    size_t n;
};
void meg_prefix_list_add(struct meg_prefix_list *a, char *prefix); /* takes ownership of prefix */
void meg_prefix_list_free(struct meg_prefix_list *a);

/*
 * meg_list_datasets - append the prefixes of the datasets in a directory to *out, and sort the complete list
 * Returns MEG_EFORMAT when the directory contains a regular file that is neither .bin nor .idx.  Returns MEG_ENOENT
 * when the directory or one of the two files of a dataset is missing, or when *out is still empty at the end.  Returns
 * MEG_EIO when the directory cannot be read.  The caller frees *out, even after a failure.
 */
int meg_list_datasets(struct meg_prefix_list *out, const char *folder, struct meg_err *e);
