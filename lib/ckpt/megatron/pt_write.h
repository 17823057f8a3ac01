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
struct meg_pickle_writer {
    struct meg_str s;
    int ntensors;
};

void meg_pickle_begin(struct meg_pickle_writer *p);
/* The program ends; the one value that is left is what is loaded. */
void meg_pickle_end(struct meg_pickle_writer *p);
void meg_pickle_put_none(struct meg_pickle_writer *p);
void meg_pickle_put_bool(struct meg_pickle_writer *p, bool v);
void meg_pickle_put_int(struct meg_pickle_writer *p, int64_t v);
void meg_pickle_put_float(struct meg_pickle_writer *p, double v);
void meg_pickle_put_str(struct meg_pickle_writer *p, const char *s);
void meg_pickle_put_global(struct meg_pickle_writer *p, const char *module, const char *name);
void meg_pickle_put_dict_begin(struct meg_pickle_writer *p);
void meg_pickle_put_dict_end(struct meg_pickle_writer *p);
/* A dict, begun next, becomes the attributes of an argparse.Namespace. */
void meg_pickle_put_namespace_begin(struct meg_pickle_writer *p);
void meg_pickle_put_namespace_end(struct meg_pickle_writer *p);
/* A contiguous f32 tensor; its numbers are the member data/N, N counting from 0. */
void meg_pickle_put_tensor(struct meg_pickle_writer *p, const int64_t *dim, int ndim);
void meg_pickle_writer_free(struct meg_pickle_writer *p);

MEG_END_DECLS
#endif
