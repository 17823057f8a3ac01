/*
 * pt_write.h - write a pickle of protocol 2 as torch.save does.
 *
 * The elements of a tensor are not in the pickle; the caller writes the elements as a separate member of the ZIP file.
 * Values are written in the order of the pickle: dict_begin, key, value, key, value, ..., dict_end.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"

/* Initialize with { 0 }. */
struct meg_pickle_writer {
    struct meg_str s;
    int ntensors;
};

void meg_pickle_begin(struct meg_pickle_writer *p);
/* End a pickle that contains exactly one value, for example a dict.  Loading the pickle returns this value. */
void meg_pickle_end(struct meg_pickle_writer *p);
void meg_pickle_put_none(struct meg_pickle_writer *p);
void meg_pickle_put_bool(struct meg_pickle_writer *p, bool v);
void meg_pickle_put_int(struct meg_pickle_writer *p, int64_t v);
void meg_pickle_put_float(struct meg_pickle_writer *p, double v);
void meg_pickle_put_str(struct meg_pickle_writer *p, const char *s);
void meg_pickle_put_global(struct meg_pickle_writer *p, const char *module, const char *name);
void meg_pickle_put_dict_begin(struct meg_pickle_writer *p);
void meg_pickle_put_dict_end(struct meg_pickle_writer *p);
void meg_pickle_put_list_begin(struct meg_pickle_writer *p);
void meg_pickle_put_list_end(struct meg_pickle_writer *p);
void meg_pickle_put_tuple_begin(struct meg_pickle_writer *p);
void meg_pickle_put_tuple_end(struct meg_pickle_writer *p);
void meg_pickle_put_ints(struct meg_pickle_writer *p, const int64_t *v, int n); /* a tuple */
void meg_pickle_put_size(struct meg_pickle_writer *p, const int64_t *v, int n); /* a torch.Size */
/* Call a global with a tuple of arguments, both written before; the result replaces them. */
void meg_pickle_put_call(struct meg_pickle_writer *p);
/* Begin an object of a class.  Its state follows, usually a dict of its attributes. */
void meg_pickle_put_object_begin(struct meg_pickle_writer *p, const char *module, const char *class);
void meg_pickle_put_object_end(struct meg_pickle_writer *p);
/* Begin an argparse.Namespace.  The keys and values of its attributes follow, as in a dict. */
void meg_pickle_put_namespace_begin(struct meg_pickle_writer *p);
void meg_pickle_put_namespace_end(struct meg_pickle_writer *p);
/* Write a contiguous f32 tensor; its elements are the member data/N, where N counts tensors from 0. */
void meg_pickle_put_tensor(struct meg_pickle_writer *p, const int64_t *dim, int ndim);
void meg_pickle_writer_free(struct meg_pickle_writer *p);
