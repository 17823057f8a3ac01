/* ops.c - a table of operations that check the placements of their tensors. */
#include "placement/internal.h"
#ifdef MEG_DEBUG

static const struct meg_ops *op; /* the table that is called after the checks */
static struct meg_ops checked;

/* Derive the placements of the outputs of a call, and check those of the inputs. */
static void check(const struct meg_op_row *row, const void *args)
{
    const struct meg_cast_args *cast = args;
    const struct meg_sumsq_args *sum = args;   /* count_zeros has the same members */
    const struct meg_adamw_args *adamw = args; /* sgd has the same first members */

    if (row == &meg_row_cast)
        placement_copy(cast->dst, meg_dtype_size(cast->dst_type), cast->src, meg_dtype_size(cast->src_type), cast->n);
    else if (row == &meg_row_sumsq || row == &meg_row_count_zeros)
        placement_norm_add(sum->out, sum->x, (size_t)sum->n * meg_dtype_size(sum->type));
    else if (row == &meg_row_step_finish)
        placement_step_finish(args);
    else if (row == &meg_row_adamw || row == &meg_row_sgd)
        placement_update(row->name, adamw->arrays, adamw->range, adamw->nranges);
    else
        placement_apply(&(struct placement_call){ row, args, meg_op_sizes_of(row, args), 0, 0 });
}

#    define CHECKED(name)                                                                                              \
        static void name(struct meg_stream *st, const struct meg_##name##_args *a)                                     \
        {                                                                                                              \
            if (placement_mesh)                                                                                        \
                check(&meg_row_##name, a);                                                                             \
            op->name(st, a);                                                                                           \
        }
MEG_TENSOR_OPS(CHECKED)

static void *alloc(size_t nbytes)
{
    void *p = op->alloc(nbytes);

    if (!p)
        return NULL;
    placement_set_row(p, nbytes, NULL);
    placement_set(p, nbytes, placement_all(PLACEMENT_ZERO));
    return p;
}

static void copy(struct meg_stream *st, void *dst, const void *src, size_t nbytes)
{
    placement_copy(dst, 1, src, 1, (int64_t)nbytes);
    op->copy(st, dst, src, nbytes);
}

static void zero(struct meg_stream *st, void *dev, size_t nbytes)
{
    placement_set(dev, nbytes, placement_all(PLACEMENT_ZERO));
    placement_norm_begin(dev, nbytes);
    op->zero(st, dev, nbytes);
}

/* The placement of memory that is uploaded is unknown until it is declared, unless it belongs to parameters. */
static void uploaded(const void *dev, size_t nbytes)
{
    if (!placement_param(dev))
        placement_set(dev, nbytes, placement_all(MEG_PLACEMENT_UNKNOWN));
}

static void upload(struct meg_stream *st, void *dev, const void *host, size_t nbytes)
{
    uploaded(dev, nbytes);
    op->upload(st, dev, host, nbytes);
}

static void upload_pinned(struct meg_stream *st, void *dev, const void *pinned, size_t nbytes)
{
    uploaded(dev, nbytes);
    op->upload_pinned(st, dev, pinned, nbytes);
}

#    define SET(name) checked.name = name;
const struct meg_ops *placement_ops(const struct meg_ops *table)
{
    op = table;
    checked = *table;
    checked.alloc = alloc;
    checked.copy = copy;
    checked.zero = zero;
    checked.upload = upload;
    checked.upload_pinned = upload_pinned;
    MEG_TENSOR_OPS(SET)
    return &checked;
}
#endif
