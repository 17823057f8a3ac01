/* chunks.h - the chunks of a tensor: order, completeness, look-up. */
#pragma once
#include "ckpt/torch_dist/metadata.h"

/*
 * Sort the chunks of a tensor by offset, and remove repeated ones.  Returns MEG_EFORMAT, with a message that names the
 * file `from`, unless the chunks are within the tensor, do not overlap, and leave no hole.
 */
int dist_sort_chunks(struct dist_tensor *t, const char *from, struct meg_err *e);
/* Return the chunk that begins at offset [t->ndim], or NULL. */
struct dist_chunk *dist_find_chunk(const struct dist_tensor *t, const int64_t *offset);
