/*
 * A file as torch.save writes it: a pickle of protocol 2, built piece by piece, and the numbers of its
 * tensors after it, each a member.  Values are appended in the order of the pickle's program: a dict
 * is begun, keys and values follow in turn, and it is ended.
 */
#ifndef MEG_CKPT_MEGATRON_PT_WRITE_H
#define MEG_CKPT_MEGATRON_PT_WRITE_H
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"

MEG_BEGIN_DECLS

/* Starts as { 0 }. */
struct meg_pt_pickle {
    struct meg_str s;
    int ntensors;
};

void meg_pt_begin(struct meg_pt_pickle *p);
/* The program ends; the one value that is left is what is loaded. */
void meg_pt_end(struct meg_pt_pickle *p);
void meg_pt_none(struct meg_pt_pickle *p);
void meg_pt_bool(struct meg_pt_pickle *p, bool v);
void meg_pt_int(struct meg_pt_pickle *p, int64_t v);
void meg_pt_float(struct meg_pt_pickle *p, double v);
void meg_pt_str(struct meg_pt_pickle *p, const char *s);
void meg_pt_global(struct meg_pt_pickle *p, const char *module, const char *name);
void meg_pt_dict_begin(struct meg_pt_pickle *p);
void meg_pt_dict_end(struct meg_pt_pickle *p);
/* A dict, begun next, becomes the attributes of an argparse.Namespace. */
void meg_pt_namespace_begin(struct meg_pt_pickle *p);
void meg_pt_namespace_end(struct meg_pt_pickle *p);
/* A contiguous f32 tensor; its numbers are the member data/N, N counting from 0. */
void meg_pt_tensor(struct meg_pt_pickle *p, const int64_t *dim, int ndim);
void meg_pt_free(struct meg_pt_pickle *p);

MEG_END_DECLS
#endif
