/*
 * What torch.save writes: a ZIP container with one pickle, NAME/data.pkl, and the numbers of its
 * tensors in the members NAME/data/KEY.  Nothing in it is run (ckpt/megatron/pickle.h).
 */
#ifndef MEG_CKPT_MEGATRON_PT_H
#define MEG_CKPT_MEGATRON_PT_H
#include "ckpt/megatron/pickle.h"
#include "ckpt/megatron/zip.h"
#include "ckpt/safetensors.h"

MEG_BEGIN_DECLS

struct meg_pt {
    char *path;
    struct meg_mmap map;
    struct meg_zip zip;
    struct meg_pickle pickle;
    char *folder; /* NAME/ */
};

/* MEG_EFORMAT, file and member named, for what is not such a container. */
int meg_pt_open(struct meg_pt **out, const char *path, struct meg_err *e);
void meg_pt_close(struct meg_pt *pt);

/*
 * Append the tensors in a dict, and in the dicts in it, to st, called by their keys with dots between;
 * other values are passed over.  The numbers stay in the file, which meg_pt_move gives to st; a
 * transposed tensor has a view of them.  MEG_EFORMAT for a tensor that exceeds its member, is a view
 * that repeats numbers, tensors that are together more than twice the file, and dicts nested deeper than
 * 16.
 */
int meg_pt_tensors(struct meg_st *st, const struct meg_pt *pt, const struct meg_py *dict, struct meg_err *e);
/* The file belongs to st from now on. */
void meg_pt_move(struct meg_st *st, struct meg_pt *pt);

/* The tensors of a file that holds a dict of them, such as pytorch_model.bin, sorted by name. */
int meg_pt_open_tensors(struct meg_st **out, const char *path, struct meg_err *e);

MEG_END_DECLS
#endif
