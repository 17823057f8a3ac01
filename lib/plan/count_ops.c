/* count_ops.c - the operations that count the bytes of the matrices that they read and write (tensor/ops.h). */
#include "plan/count_ops.h"
#include "tensor/op_row.h"

/* Return the bytes of `rows` rows of a matrix; an absent matrix has no columns. */
static double rows_of(struct meg_mat m, int64_t rows)
{
    return cost_nbytes((double)(rows * m.cols), m.dtype);
}

/* ---- operations whose tensors are read and written once ---- */

/* Count the bytes of the matrices and heads of a call: once if they are read or written, twice if both. */
static void count(struct meg_stream *st, const struct meg_op_row *row, const void *args)
{
    const struct meg_op_sizes sizes = meg_op_sizes_of(row, args);
    double nbytes = 0;

    for (const struct meg_op_field *f = row->field; f->name; f++)
        if (f->type == MEG_FIELD_MAT || f->type == MEG_FIELD_HEADS) {
            const double n = cost_mat_nbytes(meg_op_mat(&sizes, row, f, args));

            nbytes += (f->role & MEG_ROLE_IN ? n : 0) + (f->role & MEG_ROLE_OUT ? n : 0);
        }
    cost_traffic(st, nbytes);
}

#define COUNTED(name)                                                                                                  \
    static void counted_##name(struct meg_stream *st, const struct meg_##name##_args *a)                               \
    {                                                                                                                  \
        count(st, &meg_row_##name, a);                                                                                 \
    }
MEG_TENSOR_OPS(COUNTED)

/* ---- operations that read or write a part of their tensors, or read them twice ---- */

static void copy_heads(struct meg_stream *st, const struct meg_copy_heads_args *a)
{
    cost_traffic(st, 2 * cost_nbytes((double)(a->s * a->b * a->g * a->d), a->dst.dtype));
}

static void add_bwd(struct meg_stream *st, const struct meg_add_bwd_args *a)
{
    const bool is_unchanged = a->dy.p == a->dz.p && !(a->drop && a->drop->p > 0);

    cost_traffic(st, cost_mat_nbytes(a->dz) + (is_unchanged ? 0 : cost_mat_nbytes(a->dy)));
}

static void embed_fwd(struct meg_stream *st, const struct meg_embed_fwd_args *a)
{
    cost_traffic(st, cost_mat_nbytes(a->x) + rows_of(a->word, a->x.rows));
}

/* Count a read and a write of a row of dword per token: every micro-batch after the first one accumulates. */
static void embed_bwd(struct meg_stream *st, const struct meg_embed_bwd_args *a)
{
    cost_traffic(st, cost_mat_nbytes(a->dx) + 2 * rows_of(a->dword, a->dx.rows));
}

static void position_fwd(struct meg_stream *st, const struct meg_position_fwd_args *a)
{
    if (a->pos.p || a->drop->p > 0)
        cost_traffic(st, 2 * cost_mat_nbytes(a->x) + rows_of(a->pos, a->x.rows));
}

static void position_bwd(struct meg_stream *st, const struct meg_position_bwd_args *a)
{
    if (a->dpos.p || a->drop->p > 0)
        cost_traffic(st, cost_mat_nbytes(a->dx) * (a->drop->p > 0 ? 2 : 1) + 2 * rows_of(a->dpos, a->dx.rows));
}

/* Count what xent_partial and xent_bwd read and write. */
static void xent_fwd_bwd(struct meg_stream *st, const struct meg_xent_fwd_bwd_args *a)
{
    cost_traffic(st, 3 * cost_mat_nbytes(a->logits));
}

static void cast(struct meg_stream *st, const struct meg_cast_args *a)
{
    cost_traffic(st, cost_nbytes((double)a->n, a->dst_type) + cost_nbytes((double)a->n, a->src_type));
}

/* ---- memory ----------------------------------------------------------------------------------------- */

/* Return a number of rows that no micro-batch exceeds: logits are counted as one chunk, as if chunks had no cost. */
static int64_t logits_rows(int64_t v)
{
    (void)v;
    return INT64_MAX;
}

/* Return an address that no other buffer has, because operations compare the addresses of their arguments. */
static void *alloc(size_t nbytes)
{
    static uintptr_t end = 64;
    const uintptr_t begin = end;

    end += (nbytes + 127) / 64 * 64;
    return (void *)begin;
}

static void release(void *p)
{
    (void)p;
}

/*
 * Count nothing.  Only tensors at the boundaries of a stage are copied.  In a training run, a stage copies them once,
 * but count_model.c runs each layer as the only layer of a stage, so they would be counted once per layer.
 */
static void copy(struct meg_stream *st, void *dst, const void *src, size_t nbytes)
{
    (void)st, (void)dst, (void)src, (void)nbytes;
}

static void upload(struct meg_stream *st, void *dev, const void *host, size_t nbytes)
{
    (void)st, (void)dev, (void)host, (void)nbytes;
}

static void zero(struct meg_stream *st, void *dev, size_t nbytes)
{
    (void)dev;
    cost_traffic(st, (double)nbytes);
}

static struct meg_event *event_create(void)
{
    return NULL;
}

static void event_destroy(struct meg_event *event)
{
    (void)event;
}

static void event_record(struct meg_stream *st, struct meg_event *event)
{
    (void)st, (void)event;
}

/* clang-format off */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init" /* members below replace those of the list */
#define MEMBER(name) .name = counted_##name,
const struct meg_ops cost_count_ops = {
    MEG_TENSOR_OPS(MEMBER)
    .name = "count",
    .is_host_memory = true,
    .decode_rows = 1, /* the cost model has no decoding steps */
    .logits_rows = logits_rows,
    .alloc = alloc,
    .release = release,
    .copy = copy,
    .upload = upload,
    .zero = zero,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_record,
    .linear_create = cost_linear_create,
    .linear_destroy = cost_linear_destroy,
    .linear_fwd = cost_linear_fwd,
    .linear_bwd_data = cost_linear_bwd_data,
    .linear_bwd_weight = cost_linear_bwd_weight,
    .add_bwd = add_bwd,
    .attn_fwd = cost_attn_fwd,
    .attn_bwd = cost_attn_bwd,
    .attn_bwd_nbytes = cost_attn_bwd_nbytes,
    .copy_heads = copy_heads,
    .embed_fwd = embed_fwd,
    .embed_bwd = embed_bwd,
    .position_fwd = position_fwd,
    .position_bwd = position_bwd,
    .xent_fwd_bwd = xent_fwd_bwd,
    .cast = cast,
};
#pragma GCC diagnostic pop
/* clang-format on */
