/* queue_ops.c - the operations of the queue device: each queues a call of the CPU's operation. */
#include <string.h>
#include "queue.h"
#include "tensor/op_row.h"

static const struct meg_ops *cpu;

/* Replace the pointers of a call to structs in host memory, which the caller may change, by pointers to copies. */
static void keep_structs(const struct meg_op_row *row, void *args)
{
    for (const struct meg_op_field *f = row->field; f->name; f++) {
        const void *p = f->nbytes ? meg_op_pointer(f, args) : NULL;

        if (p) {
            p = queue_keep(p, f->nbytes);
            memcpy((char *)args + f->offset, &p, sizeof p);
        }
    }
}

/* Define an operation that queues a call of the CPU's operation. */
#define QUEUED(name)                                                                                                   \
    static bool run_##name(void *args)                                                                                 \
    {                                                                                                                  \
        cpu->name(NULL, args);                                                                                         \
        return true;                                                                                                   \
    }                                                                                                                  \
    static void name(struct meg_stream *st, const struct meg_##name##_args *a)                                         \
    {                                                                                                                  \
        struct meg_##name##_args kept = *a;                                                                            \
                                                                                                                       \
        keep_structs(&meg_row_##name, &kept);                                                                          \
        queue_push(st, run_##name, &kept, sizeof kept);                                                                \
    }
MEG_TENSOR_OPS(QUEUED)

struct zero_args {
    void *dev;
    size_t nbytes;
};

static bool run_zero(void *args)
{
    const struct zero_args *a = args;

    cpu->zero(NULL, a->dev, a->nbytes);
    return true;
}

static void zero(struct meg_stream *st, void *dev, size_t nbytes)
{
    const struct zero_args a = { dev, nbytes };

    queue_push(st, run_zero, &a, sizeof a);
}

/*
 * Set the gradients of an update to NaN.  The queue device does this after each update, because the next step must
 * overwrite all gradients.
 */
static void fill_gradients_with_nan(const struct meg_update_arrays *x, const struct meg_update_range *range,
                                    int nranges)
{
    for (int i = 0; i < nranges; i++)
        memset(meg_element(x->g.p, range[i].begin, x->g.dtype), 0xff,
               (size_t)(range[i].end - range[i].begin) * meg_dtype_size(x->g.dtype));
}

static const struct meg_ops *cpu_table;

static void adamw_and_fill(struct meg_stream *st, const struct meg_adamw_args *a)
{
    cpu_table->adamw(st, a);
    fill_gradients_with_nan(a->arrays, a->range, a->nranges);
}

static void sgd_and_fill(struct meg_stream *st, const struct meg_sgd_args *a)
{
    cpu_table->sgd(st, a);
    fill_gradients_with_nan(a->arrays, a->range, a->nranges);
}

/* Return a nonzero size even for f32 gradients, as on GPUs, where attn_bwd always requires a workspace. */
static size_t attn_bwd_nbytes(const struct meg_attn_desc *desc, enum meg_dtype grad, bool has_param_grads)
{
    return cpu_table->attn_bwd_nbytes(desc, grad, has_param_grads) +
           (size_t)(desc->b * desc->a * desc->s_q * desc->d) * sizeof(float);
}

static void fill_workspace_and_attn_bwd(struct meg_stream *st, const struct meg_attn_bwd_args *a)
{
    const bool has_param_grads = a->d_rel_bias.p || a->d_sink.p;

    MEG_ASSERT_LE(attn_bwd_nbytes(a->desc, a->dq.dtype, has_param_grads), a->workspace.nbytes);
    memset(a->workspace.p, 0xff, a->workspace.nbytes);
    cpu_table->attn_bwd(st, a);
}

#define SET(name) table.name = name;
const struct meg_ops *queue_ops(const struct meg_ops *base)
{
    static struct meg_ops table, filling;

    cpu_table = base;
    filling = *base;
    filling.adamw = adamw_and_fill;
    filling.sgd = sgd_and_fill;
    filling.attn_bwd = fill_workspace_and_attn_bwd;
    cpu = &filling;
    table = *base; /* operations that are not replaced below, such as linear_create, are not queued */
    table.zero = zero;
    table.attn_bwd_nbytes = attn_bwd_nbytes;
    MEG_TENSOR_OPS(SET)
    return &table;
}
