/* linear.c - linear layers, by the matrix products of gemm.h. */
#include <stdlib.h>
#include "base/mem.h"
#include "cuda/cublas/gemm.h"
#include "cuda/internal.h"
#include "tensor/suballoc.h"

/* A struct meg_linear_plan is only a struct meg_linear_desc, because gemm.c stores the plans. */
static const struct meg_linear_desc *desc_of(const struct meg_linear_plan *l)
{
    return (const struct meg_linear_desc *)(const void *)l;
}

struct meg_linear_plan *meg_cuda_linear_create(const struct meg_linear_desc *desc, const char **why)
{
    struct meg_linear_desc *copy;

    if (desc->x > MEG_DTYPE_F16 || desc->x != desc->w || (desc->y != desc->x && desc->y != MEG_DTYPE_F32) ||
        (desc->dw != desc->x && desc->dw != MEG_DTYPE_F32)) {
        *why = "cuBLASLt multiplies matrices of the same type, and the result has this type or is fp32";
        return NULL;
    }
    copy = meg_new(sizeof *copy);
    *copy = *desc;
    return (struct meg_linear_plan *)(void *)copy;
}

void meg_cuda_linear_destroy(struct meg_linear_plan *l)
{
    free(l);
}

/* Check shapes and types.  w is the weight or its gradient, and w_type is the type of w in the plan. */
static void check(const struct meg_linear_desc *desc, struct meg_mat y, struct meg_mat x, struct meg_mat w,
                  enum meg_dtype w_type)
{
    MEG_ASSERT_EQ(x.dtype, desc->x);
    MEG_ASSERT_EQ(y.dtype, desc->y);
    MEG_ASSERT_EQ(w.dtype, w_type);
    MEG_ASSERT_EQ(y.rows, x.rows);
    MEG_ASSERT_EQ(w.rows, y.cols);
    MEG_ASSERT_EQ(w.cols, x.cols);
    MEG_ASSERT_LE(x.rows, desc->n);
    MEG_ASSERT_LE(x.cols, desc->in);
    MEG_ASSERT_LE(y.cols, desc->out);
}

/*
 * Return the number of outputs that the first of two products computes; the second product computes the remaining ones.
 * If one product computes all outputs, return `out`.  For 16-bit types, the algorithms of cuBLASLt that are fast on
 * Hopper GPUs require dimensions that are multiples of 8, but the size of a vocabulary may be any number.
 */
static int64_t outputs_of_first(int64_t out, enum meg_dtype t)
{
    const int64_t first = out / 64 * 64;

    return t == MEG_DTYPE_F32 || out % 8 == 0 || first < 1024 ? out : first;
}

/* Return columns [first, first + n) of m; m.p may be NULL. */
static struct meg_mat columns(struct meg_mat m, int64_t first, int64_t n)
{
    m.p = m.p ? meg_element(m.p, first, m.dtype) : NULL;
    m.cols = n;
    return m;
}

void meg_cuda_linear_fwd(struct meg_stream *st, const struct meg_linear_fwd_args *a)
{
    struct meg_mat pre = a->pre;
    int64_t n = outputs_of_first(a->w.rows, a->w.dtype);

    check(desc_of(a->plan), a->y, a->x, a->w, desc_of(a->plan)->w);
    if (a->act == MEG_ACT_NONE)
        pre.p = NULL;
    MEG_ASSERT(!pre.p || (pre.rows == a->y.rows && pre.cols == a->y.cols && pre.dtype == a->y.dtype));
    for (int64_t first = 0; first < a->w.rows; first += n, n = a->w.rows - first) {
        const struct meg_gemm g = { .d = columns(a->y, first, n),
                                    .a = a->x,
                                    .b = meg_mat_rows(a->w, first, n),
                                    .is_b_transposed = true,
                                    .accumulate = a->accumulate,
                                    .bias = a->bias ? meg_element(a->bias, first, a->w.dtype) : NULL,
                                    .act = a->act,
                                    .pre = columns(pre, first, n) };

        meg_gemm(st, &g);
    }
}

/*
 * Compute linear_bwd_data (tensor/ops.h).  If there are two products, the first one is rounded to the type of dx before
 * the second one is added.
 */
void meg_cuda_linear_bwd_data(struct meg_stream *st, const struct meg_linear_bwd_data_args *a)
{
    struct meg_mat pre = a->pre;
    int64_t n = a->act == MEG_ACT_NONE ? outputs_of_first(a->w.rows, a->w.dtype) : a->w.rows;

    check(desc_of(a->plan), a->dy, a->dx, a->w, desc_of(a->plan)->w);
    if (a->act == MEG_ACT_NONE)
        pre.p = NULL;
    MEG_ASSERT(!pre.p || (pre.rows == a->dx.rows && pre.cols == a->dx.cols));
    for (int64_t first = 0; first < a->w.rows; first += n, n = a->w.rows - first) {
        const struct meg_gemm g = { .d = a->dx,
                                    .a = columns(a->dy, first, n),
                                    .b = meg_mat_rows(a->w, first, n),
                                    .accumulate = a->accumulate || first > 0,
                                    .grad_act = a->act,
                                    .pre = pre };

        meg_gemm(st, &g);
    }
}

void meg_cuda_linear_bwd_weight(struct meg_stream *st, const struct meg_linear_bwd_weight_args *a)
{
    int64_t n = outputs_of_first(a->dw.rows, a->x.dtype);

    check(desc_of(a->plan), a->dy, a->x, a->dw, desc_of(a->plan)->dw);
    for (int64_t first = 0; first < a->dw.rows; first += n, n = a->dw.rows - first) {
        const struct meg_gemm g = { .d = meg_mat_rows(a->dw, first, n),
                                    .a = columns(a->dy, first, n),
                                    .b = a->x,
                                    .is_a_transposed = true,
                                    .accumulate = a->accumulate,
                                    .dbias = a->dbias ? meg_element(a->dbias, first, a->dw.dtype) : NULL };

        meg_gemm(st, &g);
    }
}
