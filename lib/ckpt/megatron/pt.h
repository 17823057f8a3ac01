/*
 * pt.h - read files of torch.save.
 *
 * A file is a ZIP file with one pickle, NAME/data.pkl.  The elements of tensors are in the members NAME/data/KEY.  The
 * pickle is not executed (pickle.h).
 */
#pragma once
#include "ckpt/megatron/pickle.h"
#include "ckpt/megatron/zip.h"
#include "ckpt/safetensors.h"

enum { MEG_PT_PICKLE_MAX = 256 << 20 }; /* maximum bytes of a pickle */

struct meg_pt {
    char *path;
    struct meg_mmap map;        /* the file; not open after meg_pt_parse */
    const unsigned char *bytes; /* [n] contents of the file */
    size_t n;
    struct meg_zip zip;
    struct meg_pickle pickle;
    char *folder; /* prefix NAME/ of all members */
};

/* Open a file.  Returns MEG_EFORMAT if the file is damaged or was not written by torch.save. */
int meg_pt_open(struct meg_pt **out, const char *path, struct meg_err *e);
/*
 * Open a file of torch.save that is part of another file.  bytes [n] must outlive *out; messages begin with `from`.
 * Returns MEG_EFORMAT as meg_pt_open does.
 */
int meg_pt_parse(struct meg_pt **out, const char *from, const void *bytes, size_t n, struct meg_err *e);
void meg_pt_close(struct meg_pt *pt);

/* Return the name in safetensors of a torch dtype such as torch.float32, or NULL for any other node. */
const char *meg_pt_dtype(const struct meg_py *o);
/*
 * Read at most MEG_ST_MAXDIM non-negative integers of a tuple or a torch.Size.  Return their number, or -1 for any
 * other node.
 */
int meg_pt_sizes(const struct meg_py *o, int64_t out[MEG_ST_MAXDIM]);
/*
 * Append the tensor o of the pickle to st under a name.  Returns MEG_EFORMAT if o is not a tensor, has more elements
 * than its storage, or is refused by meg_pt_tensors.  file_offset counts from the beginning of the file of pt.
 */
int meg_pt_tensor(struct meg_st *st, const struct meg_pt *pt, const struct meg_py *o, const char *name,
                  struct meg_err *e);
/*
 * Append the tensors of a dict and of its nested dicts to st; other values are ignored.  The name of a tensor is the
 * path of keys, joined with dots.  The elements remain in the mapped file; meg_pt_move transfers the ownership of the
 * file to st.  A tensor that is not contiguous is stored as a view.  Returns MEG_EFORMAT if
 *   - a tensor is not in the format of torch.save or has an unsupported dtype
 *   - a tensor exceeds its storage, or a storage exceeds its ZIP member
 *   - the appended tensors together exceed twice the size of the file
 *   - dicts are nested more than 16 levels deep, or have more than 2^20 entries in total
 */
int meg_pt_tensors(struct meg_st *st, const struct meg_pt *pt, const struct meg_py *dict, struct meg_err *e);
/* Transfer the ownership of the mapped file to st. */
void meg_pt_move(struct meg_st *st, struct meg_pt *pt);

/*
 * Open a file with a dict of tensors, such as pytorch_model.bin; tensors are sorted by name.  Returns the errors of
 * meg_pt_open and meg_pt_tensors, and MEG_EFORMAT if the pickle is not a dict or two tensors have the same name.
 */
int meg_pt_open_tensors(struct meg_st **out, const char *path, struct meg_err *e);
