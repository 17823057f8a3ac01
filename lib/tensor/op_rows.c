/* op_rows.c - the rows of all operations, and the checks of rules between their fields. */
#include "base/err.h"
#include "tensor/op_row.h"

/* ---- rules between fields ---- */

static void check_linear_bwd_data(const struct meg_ops *op, const void *args)
{
    const struct meg_linear_bwd_data_args *a = args;

    (void)op;
    MEG_ASSERT(a->pre.p || a->act == MEG_ACT_NONE || a->dx.rows * a->dx.cols == 0);
}

static void check_act_bwd(const struct meg_ops *op, const void *args)
{
    const struct meg_act_bwd_args *a = args;

    (void)op;
    MEG_ASSERT_LT(MEG_ACT_NONE, a->act);
}

static void check_rope(const struct meg_ops *op, const void *args)
{
    const struct meg_rope_args *a = args;

    (void)op;
    MEG_ASSERT(a->sign == 1 || a->sign == -1);
}

/* Check that a norm has means of n rows unless it is an RMSNorm, which has no bias. */
static void check_norm(enum meg_norm type, const void *b, const float *mean, int64_t n)
{
    MEG_ASSERT(!b || !meg_norm_is_rms(type));
    MEG_ASSERT(mean || n == 0 || meg_norm_is_rms(type));
}

static void check_norm_fwd(const struct meg_ops *op, const void *args)
{
    const struct meg_norm_fwd_args *a = args;

    (void)op;
    check_norm(a->type, a->b, a->mean, a->x.rows);
}

static void check_norm_bwd(const struct meg_ops *op, const void *args)
{
    const struct meg_norm_bwd_args *a = args;

    (void)op;
    check_norm(a->type, a->db, a->mean, a->x.rows);
    MEG_ASSERT(a->dw || !a->db);
    MEG_ASSERT(a->w || !a->dw);
}

static void check_add_norm_fwd(const struct meg_ops *op, const void *args)
{
    const struct meg_add_norm_fwd_args *a = args;

    (void)op;
    check_norm(a->type, a->b, a->mean, a->x.rows);
}

static void check_position_fwd(const struct meg_ops *op, const void *args)
{
    const struct meg_position_fwd_args *a = args;

    (void)op;
    MEG_ASSERT(a->position || !a->pos.p || a->x.rows == 0);
}

static void check_position_bwd(const struct meg_ops *op, const void *args)
{
    const struct meg_position_bwd_args *a = args;

    (void)op;
    MEG_ASSERT(a->position || !a->dpos.p || a->dx.rows == 0);
}

static void check_xent_combine(const struct meg_ops *op, const void *args)
{
    const struct meg_xent_combine_args *a = args;

    (void)op;
    MEG_ASSERT_LT(0, a->nparts);
}

static void check_attn_merge(const struct meg_ops *op, const void *args)
{
    const struct meg_attn_merge_args *a = args;

    (void)op;
    MEG_ASSERT_EQ(a->o.dtype, MEG_DTYPE_F32);
}

static void check_attn_bwd(const struct meg_ops *op, const void *args)
{
    const struct meg_attn_bwd_args *a = args;
    const struct meg_attn_desc *desc = a->desc;

    MEG_ASSERT(!desc->query_start && !desc->block_offset);
    MEG_ASSERT(a->o.p || a->delta || desc->b * desc->a * desc->s_q == 0);
    MEG_ASSERT(!a->d_rel_bias.p || desc->rel_bias.p);
    MEG_ASSERT(!a->d_sink.p || desc->sink.p);
    MEG_ASSERT(a->dk.dtype == a->dq.dtype && a->dv.dtype == a->dq.dtype);
    MEG_ASSERT_LE(op->attn_bwd_nbytes(desc, a->dq.dtype, a->d_rel_bias.p || a->d_sink.p), a->workspace.nbytes);
}

static void check_copy_heads(const struct meg_ops *op, const void *args)
{
    const struct meg_copy_heads_args *a = args;

    (void)op;
    MEG_ASSERT_EQ(a->dst.dtype, a->src.dtype);
    MEG_ASSERT_LT(a->dst.dtype, MEG_DTYPES);
    MEG_ASSERT(a->dst_offset || a->b <= 1 || a->d <= a->dst.ld_b);
}

static void check_sample(const struct meg_ops *op, const void *args)
{
    const struct meg_sample_args *a = args;

    MEG_ASSERT_EQ(a->logits.dtype, MEG_DTYPE_F32);
    MEG_ASSERT_LT(0, a->unpadded_vocab);
    MEG_ASSERT_LE(a->unpadded_vocab, a->logits.cols);
    MEG_ASSERT_LT(a->logits.cols, INT64_C(1) << 23);
    MEG_ASSERT_LE(op->sample_nbytes(a->logits.rows, a->unpadded_vocab), a->workspace.nbytes);
}

static void check_step_finish(const struct meg_ops *op, const void *args)
{
    const struct meg_step_finish_args *a = args;

    (void)op;
    MEG_ASSERT_LE(0, a->conf->num_params);
    MEG_ASSERT(a->conf->grad_sum || a->conf->num_params == 0);
}

/* Check that the present ones of the arrays x do not overlap in elements [begin, end). */
static void check_update_overlaps(const struct meg_array *const x[5], int64_t begin, int64_t end)
{
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < i; k++) {
            const char *a = x[i]->p, *b = x[k]->p;

            if (a && b && begin < end)
                MEG_ASSERT(meg_element(a, end, x[i]->dtype) <= meg_element(b, begin, x[k]->dtype) ||
                           meg_element(b, end, x[k]->dtype) <= meg_element(a, begin, x[i]->dtype));
        }
}

/* Check the arrays and ranges of an optimizer step with a number of states. */
static void check_update(const struct meg_update_arrays *x, const struct meg_update_range *range, int nranges,
                         int num_states)
{
    const struct meg_array *const all[] = { &x->w, &x->g, &x->state[0], &x->state[1], &x->copy };

    MEG_ASSERT_LE(x->g.dtype, MEG_DTYPE_F16);
    MEG_ASSERT_LE(x->w.dtype, MEG_DTYPE_BF16);
    MEG_ASSERT_LE(x->state[0].dtype, MEG_DTYPE_BF16);
    MEG_ASSERT_LE(x->state[1].dtype, MEG_DTYPE_BF16);
    MEG_ASSERT(x->state[1].p || num_states < 2 || nranges == 0);
    for (int i = 0; i < nranges; i++) {
        const int64_t begin = range[i].begin, end = range[i].end;

        MEG_ASSERT_LE(0, begin);
        MEG_ASSERT_LE(begin, end);
        MEG_ASSERT_LE(0, range[i].lr_index);
        MEG_ASSERT_LE(range[i].lr_index, 1);
        MEG_ASSERT_LT(0, range[i].cols);
        MEG_ASSERT((x->w.p && x->g.p && x->state[0].p) || end == 0);
        check_update_overlaps(all, begin, end);
    }
}

static void check_adamw(const struct meg_ops *op, const void *args)
{
    const struct meg_adamw_args *a = args;

    (void)op;
    check_update(a->arrays, a->range, a->nranges, 2);
}

static void check_sgd(const struct meg_ops *op, const void *args)
{
    const struct meg_sgd_args *a = args;

    (void)op;
    check_update(a->arrays, a->range, a->nranges, 1);
}

/* ---- rows ---- */

enum {
    IN = MEG_ROLE_IN,
    OUT = MEG_ROLE_OUT,
    INOUT = MEG_ROLE_IN | MEG_ROLE_OUT,
    OPTIONAL = MEG_ROLE_OPTIONAL,
    IN_PLACE = MEG_ROLE_IN_PLACE,
    ANY_DTYPE = MEG_ROLE_ANY_DTYPE
};

/* Return the enum meg_field_type of a field x. */
#define TYPE_OF(x)                                                                                                     \
    _Generic((x),                                                                                                      \
        struct meg_mat: MEG_FIELD_MAT,                                                                                 \
        struct meg_heads: MEG_FIELD_HEADS,                                                                             \
        struct meg_array: MEG_FIELD_ARRAY,                                                                             \
        void *: MEG_FIELD_VECTOR,                                                                                      \
        const void *: MEG_FIELD_VECTOR,                                                                                \
        float *: MEG_FIELD_VECTOR,                                                                                     \
        const float *: MEG_FIELD_VECTOR,                                                                               \
        double *: MEG_FIELD_VECTOR,                                                                                    \
        const double *: MEG_FIELD_VECTOR,                                                                              \
        const int32_t *: MEG_FIELD_VECTOR,                                                                             \
        int64_t *: MEG_FIELD_VECTOR,                                                                                   \
        const int64_t *: MEG_FIELD_VECTOR,                                                                             \
        struct meg_sampled_token *: MEG_FIELD_MEMORY,                                                                  \
        const struct meg_sampling_args *: MEG_FIELD_MEMORY,                                                            \
        const struct meg_range *: MEG_FIELD_MEMORY,                                                                    \
        struct meg_step_record *: MEG_FIELD_MEMORY,                                                                    \
        const struct meg_update_range *: MEG_FIELD_RANGES,                                                             \
        const struct meg_step_hparams *: MEG_FIELD_MEMORY,                                                             \
        int64_t: MEG_FIELD_I64,                                                                                        \
        int: MEG_FIELD_INT,                                                                                            \
        bool: MEG_FIELD_BOOL,                                                                                          \
        float: MEG_FIELD_F32,                                                                                          \
        enum meg_dtype: MEG_FIELD_DTYPE,                                                                               \
        enum meg_act: MEG_FIELD_ACT,                                                                                   \
        enum meg_norm: MEG_FIELD_NORM,                                                                                 \
        struct meg_linear_plan *: MEG_FIELD_PLAN,                                                                      \
        const struct meg_glu *: MEG_FIELD_GLU,                                                                         \
        const struct meg_qk_norm *: MEG_FIELD_QK_NORM,                                                                 \
        const struct meg_drop *: MEG_FIELD_DROP,                                                                       \
        const struct meg_attn_desc *: MEG_FIELD_ATTN_DESC,                                                             \
        const struct meg_step_conf *: MEG_FIELD_STEP_CONF,                                                             \
        const struct meg_update_arrays *: MEG_FIELD_UPDATE_ARRAYS,                                                     \
        const struct meg_adam *: MEG_FIELD_ADAM)

/* Return the data type of the elements to which a field x points. */
#define DTYPE_OF(x)                                                                                                    \
    _Generic((x),                                                                                                      \
        double *: MEG_DTYPE_F64,                                                                                       \
        const double *: MEG_DTYPE_F64,                                                                                 \
        const int32_t *: MEG_DTYPE_I32,                                                                                \
        int64_t *: MEG_DTYPE_I64,                                                                                      \
        const int64_t *: MEG_DTYPE_I64,                                                                                \
        default: MEG_DTYPE_F32)

/* Return the size of the host struct to which a field x points; 0 for other fields. */
#define NBYTES_OF(x)                                                                                                   \
    _Generic((x),                                                                                                      \
        const struct meg_glu *: sizeof(struct meg_glu),                                                                \
        const struct meg_qk_norm *: sizeof(struct meg_qk_norm),                                                        \
        const struct meg_drop *: sizeof(struct meg_drop),                                                              \
        const struct meg_attn_desc *: sizeof(struct meg_attn_desc),                                                    \
        const struct meg_step_conf *: sizeof(struct meg_step_conf),                                                    \
        const struct meg_update_arrays *: sizeof(struct meg_update_arrays),                                            \
        const struct meg_adam *: sizeof(struct meg_adam),                                                              \
        default: (size_t)0)

#define ARGS(op) ((struct meg_##op##_args *)0)
#define FIELD(op, f, ...)                                                                                              \
    { .name = #f,                                                                                                      \
      .offset = offsetof(struct meg_##op##_args, f),                                                                   \
      .type = TYPE_OF(ARGS(op)->f),                                                                                    \
      .dtype = DTYPE_OF(ARGS(op)->f),                                                                                  \
      .role = __VA_ARGS__ },
#define VALUE(op, f)                                                                                                   \
    { .name = #f,                                                                                                      \
      .offset = offsetof(struct meg_##op##_args, f),                                                                   \
      .type = TYPE_OF(ARGS(op)->f),                                                                                    \
      .nbytes = NBYTES_OF(ARGS(op)->f) },
#define MEG_OP_ROW(op, check, fields)                                                                                  \
    static const struct meg_op_field op##_fields[] = { fields{ .name = NULL } };                                       \
    const struct meg_op_row meg_row_##op = { #op, check, op##_fields };

#include "tensor/ops_attention.h"
#include "tensor/ops_layer.h"
#include "tensor/ops_optim.h"
