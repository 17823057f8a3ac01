/* check_ops.c - a table of operations that asserts the shapes and types of arguments, then calls another table. */
#include "tensor/check_ops.h"
#include <pthread.h>
#include "base/err.h"

static const struct meg_ops *op; /* the table that is called after the checks */
static struct meg_ops checked;

/* ---- argument checks: macros, so that a failure prints the line and the argument names of the operation ---- */

/* Check that t is f32, bf16 or f16. */
#define CHECK_DTYPE(t) MEG_ASSERT_LE(t, MEG_DTYPE_F16)

/* Check a matrix [nrows, ncols]; the pointer of an empty matrix may be NULL. */
#define CHECK_MAT(m, nrows, ncols)                                                                                     \
    do {                                                                                                               \
        CHECK_DTYPE(m.dtype);                                                                                          \
        MEG_ASSERT_EQ(m.rows, nrows);                                                                                  \
        MEG_ASSERT_EQ(m.cols, ncols);                                                                                  \
        MEG_ASSERT_LE(0, m.rows);                                                                                      \
        MEG_ASSERT_LE(0, m.cols);                                                                                      \
        MEG_ASSERT_LE(m.cols, m.ld);                                                                                   \
        MEG_ASSERT(m.p || m.rows * m.cols == 0);                                                                       \
    } while (0)

/* Check a matrix [nrows, ncols] unless its p is NULL. */
#define CHECK_OPTIONAL_MAT(m, nrows, ncols)                                                                            \
    do {                                                                                                               \
        if (m.p)                                                                                                       \
            CHECK_MAT(m, nrows, ncols);                                                                                \
    } while (0)

/* Check a vector of n elements; an empty vector may be NULL. */
#define CHECK_VECTOR(v, n)                                                                                             \
    do {                                                                                                               \
        MEG_ASSERT_LE(0, n);                                                                                           \
        MEG_ASSERT(v || n == 0);                                                                                       \
    } while (0)

/* Check heads [ns, nb, ng, heads, nd] of any type.  Strides of dimensions larger than 1 must be at least nd. */
#define CHECK_HEADS(h, ns, nb, ng, heads, nd)                                                                          \
    do {                                                                                                               \
        CHECK_VECTOR(h.p, (ns) * (nb) * (ng) * (heads) * (nd));                                                        \
        if (ns > 1)                                                                                                    \
            MEG_ASSERT_LE(nd, h.ld_s);                                                                                 \
        if (nb > 1)                                                                                                    \
            MEG_ASSERT_LE(nd, h.ld_b);                                                                                 \
        if (ng > 1)                                                                                                    \
            MEG_ASSERT_LE(nd, h.ld_g);                                                                                 \
        if (heads > 1)                                                                                                 \
            MEG_ASSERT_LE(nd, h.ld_h);                                                                                 \
    } while (0)
#define CHECK_QUERY_HEADS(h, nd)                                                                                       \
    do {                                                                                                               \
        CHECK_DTYPE(h.dtype);                                                                                          \
        CHECK_HEADS(h, desc->s_q, desc->b, desc->g, desc->a / desc->g, nd);                                            \
    } while (0)
/* Check key or value heads.  In a KV cache in blocks, check the strides within one block; ld_b is not used. */
#define CHECK_KEY_HEADS(h, nd)                                                                                         \
    do {                                                                                                               \
        CHECK_DTYPE(h.dtype);                                                                                          \
        if (desc->block_offset)                                                                                        \
            CHECK_HEADS(h, desc->block_size, 1, desc->g, 1, nd);                                                       \
        else                                                                                                           \
            CHECK_HEADS(h, desc->s_k, desc->b, desc->g, 1, nd);                                                        \
    } while (0)

/* Check a log-sum-exp or delta vector [b,a,s_q]. */
#define CHECK_LSE(v) CHECK_VECTOR(v, desc->b * desc->a * desc->s_q)

#define CHECK_DESC()                                                                                                   \
    do {                                                                                                               \
        MEG_ASSERT(desc);                                                                                              \
        MEG_ASSERT_LE(0, desc->s_q);                                                                                   \
        MEG_ASSERT_LE(0, desc->s_k);                                                                                   \
        MEG_ASSERT_LE(0, desc->b);                                                                                     \
        MEG_ASSERT_LT(0, desc->g);                                                                                     \
        MEG_ASSERT_EQ(desc->a % desc->g, 0);                                                                           \
        MEG_ASSERT_LE(0, desc->q0);                                                                                    \
        MEG_ASSERT_LE(0, desc->k0);                                                                                    \
        MEG_ASSERT_LE(desc->q0 + desc->s_q, desc->s);                                                                  \
        MEG_ASSERT_LE(desc->k0 + desc->s_k, desc->s);                                                                  \
        MEG_ASSERT_LT(0, desc->d);                                                                                     \
        MEG_ASSERT_LT(0, desc->d_v);                                                                                   \
        MEG_ASSERT(desc->softcap >= 0);                                                                                \
        CHECK_OPTIONAL_MAT(desc->rel_bias, desc->rel_bias.rows, desc->a);                                              \
        if (desc->rel_bias.p) { /* e >= 1, and the logarithm of max_distance / e is positive */                        \
            MEG_ASSERT_LE(desc->rel_bias_is_bidirectional ? 4 : 2, desc->rel_bias.rows);                               \
            MEG_ASSERT_LT(desc->rel_bias.rows / (desc->rel_bias_is_bidirectional ? 4 : 2),                             \
                          desc->rel_bias_max_distance);                                                                \
        }                                                                                                              \
        if (desc->sink.p)                                                                                              \
            CHECK_DTYPE(desc->sink.dtype);                                                                             \
        if (desc->block_offset) {                                                                                      \
            MEG_ASSERT_EQ(desc->k0, 0);                                                                                \
            MEG_ASSERT_LT(0, desc->block_size);                                                                        \
            MEG_ASSERT_LE(desc->s_k, desc->block_size * desc->blocks_per_seq);                                         \
        }                                                                                                              \
    } while (0)

/* Check the dropout parameters.  Without dropout (p = 0) the other fields are not used. */
#define CHECK_DROP()                                                                                                   \
    do {                                                                                                               \
        if (drop && drop->p > 0) {                                                                                     \
            MEG_ASSERT_LT(0, drop->b);                                                                                 \
            MEG_ASSERT(drop->sample);                                                                                  \
        }                                                                                                              \
    } while (0)

/* Check that the first nout matrices (the outputs) overlap no other matrix in the list. */
#define CHECK_DISJOINT(nout, ...)                                                                                      \
    (are_disjoint(nout, (const struct meg_mat[]){ __VA_ARGS__ },                                                       \
                  (int)(sizeof(struct meg_mat[]){ __VA_ARGS__ } / sizeof(struct meg_mat)))                             \
         ? (void)0                                                                                                     \
         : meg_assert_failed(__FILE__, __LINE__, "no overlap between " #__VA_ARGS__))

static struct meg_mat vector(const void *p, enum meg_dtype t, int64_t n)
{
    return (struct meg_mat){ (void *)p, t, 1, n, n };
}

static struct meg_mat f32(const float *p, int64_t n)
{
    return vector(p, MEG_DTYPE_F32, n);
}

static struct meg_mat i32(const int32_t *p, int64_t n)
{
    return vector(p, MEG_DTYPE_I32, n);
}

/*
 * Return m, or an empty matrix if m has the address, type and row stride of out.  This exempts an operand that may
 * equal the output from CHECK_DISJOINT.
 */
static struct meg_mat unless_in_place(struct meg_mat m, struct meg_mat out)
{
    return m.p == out.p && m.dtype == out.dtype && m.ld == out.ld ? vector(NULL, m.dtype, 0) : m;
}

static int is_empty(struct meg_mat m)
{
    return !m.p || m.rows <= 0 || m.cols <= 0;
}

/*
 * Return whether the memory from the first to the last element of a intersects the memory of b.  Exception: two
 * matrices of several rows and the same row stride in bytes, for example disjoint column ranges of one larger matrix,
 * overlap only if they have a byte in common.
 */
static int overlaps(struct meg_mat a, struct meg_mat b)
{
    const char *pa = a.p, *pb = b.p;
    const int64_t sa = (int64_t)meg_dtype_size(a.dtype), sb = (int64_t)meg_dtype_size(b.dtype), ld = a.ld * sa;
    int64_t distance;

    if (is_empty(a) || is_empty(b))
        return 0;
    if (pa + ((a.rows - 1) * a.ld + a.cols) * sa <= pb || pb + ((b.rows - 1) * b.ld + b.cols) * sb <= pa)
        return 0;
    if (a.rows == 1 || b.rows == 1 || ld != b.ld * sb)
        return 1;
    distance = ((pb - pa) % ld + ld) % ld; /* bytes from the first column of a to the next first column of b */
    return distance < a.cols * sa || ld - distance < b.cols * sb;
}

static int are_disjoint(int nout, const struct meg_mat *m, int n)
{
    for (int i = 0; i < nout; i++)
        for (int k = i + 1; k < n; k++)
            if (overlaps(m[i], m[k]))
                return 0;
    return 1;
}

/* ---- the operations, in the order of struct meg_ops ---- */

static void upload(struct meg_stream *st, void *dev, const void *host, size_t nbytes)
{
    CHECK_VECTOR(dev, (int64_t)nbytes);
    CHECK_VECTOR(host, (int64_t)nbytes);
    op->upload(st, dev, host, nbytes);
}

static void upload_pinned(struct meg_stream *st, void *dev, const void *pinned, size_t nbytes)
{
    CHECK_VECTOR(dev, (int64_t)nbytes);
    CHECK_VECTOR(pinned, (int64_t)nbytes);
    op->upload_pinned(st, dev, pinned, nbytes);
}

static void download(struct meg_stream *st, void *host, const void *dev, size_t nbytes)
{
    CHECK_VECTOR(host, (int64_t)nbytes);
    CHECK_VECTOR(dev, (int64_t)nbytes);
    op->download(st, host, dev, nbytes);
}

static void zero(struct meg_stream *st, void *dev, size_t nbytes)
{
    CHECK_VECTOR(dev, (int64_t)nbytes);
    op->zero(st, dev, nbytes);
}

static void linear_fwd(struct meg_stream *st, struct meg_linear *l, struct meg_mat y, struct meg_mat pre,
                       struct meg_mat x, struct meg_mat w, const void *bias, enum meg_act act)
{
    MEG_ASSERT(l);
    MEG_ASSERT_LE(act, MEG_ACT_RELU);
    CHECK_MAT(x, x.rows, x.cols);
    CHECK_MAT(w, w.rows, x.cols);
    CHECK_MAT(y, x.rows, w.rows);
    CHECK_OPTIONAL_MAT(pre, x.rows, w.rows);
    CHECK_DISJOINT(2, y, pre, x, w, vector(bias, w.dtype, w.rows));
    op->linear_fwd(st, l, y, pre, x, w, bias, act);
}

static void linear_bwd_data(struct meg_stream *st, struct meg_linear *l, struct meg_mat dx, struct meg_mat dy,
                            struct meg_mat w, struct meg_mat pre, enum meg_act act)
{
    MEG_ASSERT(l);
    MEG_ASSERT_LE(act, MEG_ACT_RELU);
    CHECK_MAT(dy, dy.rows, dy.cols);
    CHECK_MAT(w, dy.cols, w.cols);
    CHECK_MAT(dx, dy.rows, w.cols);
    CHECK_DISJOINT(1, dx, dy, w);
    if (act != MEG_ACT_NONE) {
        CHECK_MAT(pre, dy.rows, w.cols);
        CHECK_DISJOINT(1, dx, pre);
    }
    op->linear_bwd_data(st, l, dx, dy, w, pre, act);
}

static void linear_bwd_weight(struct meg_stream *st, struct meg_linear *l, struct meg_mat dw, void *dbias,
                              struct meg_mat dy, struct meg_mat x, bool accumulate)
{
    MEG_ASSERT(l);
    CHECK_MAT(x, x.rows, x.cols);
    CHECK_MAT(dy, x.rows, dy.cols);
    CHECK_MAT(dw, dy.cols, x.cols);
    CHECK_DISJOINT(2, dw, vector(dbias, dw.dtype, dw.rows), dy, x);
    op->linear_bwd_weight(st, l, dw, dbias, dy, x, accumulate);
}

#define CHECK_GLU()                                                                                                    \
    do {                                                                                                               \
        MEG_ASSERT_LE(unit->type, MEG_GLU_SQUARED_RELU);                                                               \
        MEG_ASSERT(unit->limit >= 0);                                                                                  \
    } while (0)

static void act_bwd(struct meg_stream *st, struct meg_mat dx, struct meg_mat dy, struct meg_mat pre, enum meg_act act)
{
    MEG_ASSERT_LT(MEG_ACT_NONE, act);
    MEG_ASSERT_LE(act, MEG_ACT_RELU);
    CHECK_MAT(dx, dx.rows, dx.cols);
    CHECK_MAT(dy, dx.rows, dx.cols);
    CHECK_MAT(pre, dx.rows, dx.cols);
    CHECK_DISJOINT(1, dx, unless_in_place(dy, dx), pre);
    op->act_bwd(st, dx, dy, pre, act);
}

static void scale(struct meg_stream *st, struct meg_mat y, struct meg_mat x, float factor)
{
    CHECK_MAT(y, y.rows, y.cols);
    CHECK_MAT(x, y.rows, y.cols);
    CHECK_DISJOINT(1, y, unless_in_place(x, y));
    op->scale(st, y, x, factor);
}

static void glu_fwd(struct meg_stream *st, const struct meg_glu *unit, struct meg_mat y, struct meg_mat x)
{
    CHECK_GLU();
    CHECK_MAT(y, y.rows, y.cols);
    CHECK_MAT(x, y.rows, 2 * y.cols);
    CHECK_DISJOINT(1, y, x);
    op->glu_fwd(st, unit, y, x);
}

static void glu_bwd(struct meg_stream *st, const struct meg_glu *unit, struct meg_mat dx, struct meg_mat dy,
                    struct meg_mat x)
{
    CHECK_GLU();
    CHECK_MAT(dy, dy.rows, dy.cols);
    CHECK_MAT(x, dy.rows, 2 * dy.cols);
    CHECK_MAT(dx, dy.rows, 2 * dy.cols);
    CHECK_DISJOINT(1, dx, dy, unless_in_place(x, dx));
    op->glu_bwd(st, unit, dx, dy, x);
}

static void rope(struct meg_stream *st, struct meg_heads x, int64_t s, int64_t b, int64_t g, int64_t heads,
                 int64_t half, int is_interleaved, const float *cos, const float *sin, const int32_t *position,
                 float sign)
{
    CHECK_DTYPE(x.dtype);
    CHECK_HEADS(x, s, b, g, heads, 2 * half);
    CHECK_VECTOR(cos, half);
    CHECK_VECTOR(sin, half);
    CHECK_VECTOR(position, s * b);
    MEG_ASSERT(sign == 1 || sign == -1);
    op->rope(st, x, s, b, g, heads, half, is_interleaved, cos, sin, position, sign);
}

#define CHECK_QK_NORM()                                                                                                \
    do {                                                                                                               \
        MEG_ASSERT_LE(2 * q->half, q->d);                                                                              \
        if (q->half) {                                                                                                 \
            CHECK_VECTOR(q->cos, q->half);                                                                             \
            CHECK_VECTOR(q->sin, q->half);                                                                             \
            CHECK_VECTOR(q->position, q->s * q->b);                                                                    \
        }                                                                                                              \
        CHECK_VECTOR(w, q->d);                                                                                         \
        CHECK_VECTOR(rstd, q->s * q->b * q->g * q->heads);                                                             \
    } while (0)
#define CHECK_NORMALIZED_HEADS(h)                                                                                      \
    do {                                                                                                               \
        CHECK_DTYPE(h.dtype);                                                                                          \
        CHECK_HEADS(h, q->s, q->b, q->g, q->heads, q->d);                                                              \
    } while (0)

static void qk_norm_fwd(struct meg_stream *st, const struct meg_qk_norm *q, struct meg_heads y, float *rstd,
                        struct meg_heads x, const void *w)
{
    CHECK_QK_NORM();
    CHECK_NORMALIZED_HEADS(y);
    CHECK_NORMALIZED_HEADS(x);
    op->qk_norm_fwd(st, q, y, rstd, x, w);
}

static void qk_norm_bwd(struct meg_stream *st, const struct meg_qk_norm *q, struct meg_heads dx, void *dw,
                        enum meg_dtype grad, struct meg_heads dy, struct meg_heads x, const void *w, const float *rstd,
                        bool accumulate)
{
    CHECK_QK_NORM();
    CHECK_DTYPE(grad);
    CHECK_VECTOR(dw, q->d);
    CHECK_NORMALIZED_HEADS(dx);
    CHECK_NORMALIZED_HEADS(dy);
    CHECK_NORMALIZED_HEADS(x);
    op->qk_norm_bwd(st, q, dx, dw, grad, dy, x, w, rstd, accumulate);
}

static void norm_fwd(struct meg_stream *st, enum meg_norm type, struct meg_mat y, float *mean, float *rstd,
                     struct meg_mat x, const void *w, const void *b, float eps)
{
    const int64_t n = x.rows, h = x.cols;

    MEG_ASSERT_LE(type, MEG_NORM_RMS_1P);
    MEG_ASSERT_EQ(!b, meg_norm_is_rms(type));
    CHECK_MAT(x, n, h);
    CHECK_MAT(y, n, h);
    CHECK_VECTOR(w, h);
    CHECK_VECTOR(rstd, n);
    if (!meg_norm_is_rms(type))
        CHECK_VECTOR(mean, n);
    CHECK_DISJOINT(3, y, f32(rstd, n), f32(meg_norm_is_rms(type) ? NULL : mean, n), x, vector(w, y.dtype, h),
                   vector(b, y.dtype, h));
    op->norm_fwd(st, type, y, mean, rstd, x, w, b, eps);
}

static void norm_bwd(struct meg_stream *st, enum meg_norm type, struct meg_mat dx, void *dw, void *db,
                     enum meg_dtype grad, struct meg_mat skip, struct meg_mat dy, struct meg_mat x, const void *w,
                     const float *mean, const float *rstd, bool accumulate)
{
    const int64_t n = x.rows, h = x.cols;

    MEG_ASSERT_LE(type, MEG_NORM_RMS_1P);
    MEG_ASSERT_EQ(!db, meg_norm_is_rms(type));
    CHECK_DTYPE(grad);
    CHECK_MAT(x, n, h);
    CHECK_MAT(dy, n, h);
    CHECK_MAT(dx, n, h);
    CHECK_OPTIONAL_MAT(skip, n, h);
    CHECK_VECTOR(dw, h);
    CHECK_VECTOR(w, h);
    CHECK_VECTOR(rstd, n);
    if (!meg_norm_is_rms(type))
        CHECK_VECTOR(mean, n);
    CHECK_DISJOINT(3, dx, vector(dw, grad, h), vector(db, grad, h), unless_in_place(skip, dx), dy, x,
                   vector(w, dy.dtype, h), f32(rstd, n), f32(meg_norm_is_rms(type) ? NULL : mean, n));
    op->norm_bwd(st, type, dx, dw, db, grad, skip, dy, x, w, mean, rstd, accumulate);
}

static void add_fwd(struct meg_stream *st, struct meg_mat z, struct meg_mat x, struct meg_mat y, const void *bias,
                    const struct meg_drop *drop)
{
    CHECK_MAT(x, x.rows, x.cols);
    CHECK_MAT(y, x.rows, x.cols);
    CHECK_MAT(z, x.rows, x.cols);
    CHECK_DROP();
    CHECK_DISJOINT(1, z, unless_in_place(x, z), y, vector(bias, y.dtype, y.cols));
    op->add_fwd(st, z, x, y, bias, drop);
}

static void add_bwd(struct meg_stream *st, struct meg_mat dy, void *dbias, enum meg_dtype grad, struct meg_mat dz,
                    const struct meg_drop *drop, bool accumulate)
{
    CHECK_DTYPE(grad);
    CHECK_MAT(dz, dz.rows, dz.cols);
    CHECK_MAT(dy, dz.rows, dz.cols);
    CHECK_DROP();
    CHECK_DISJOINT(2, dy, vector(dbias, grad, dy.cols), unless_in_place(dz, dy));
    op->add_bwd(st, dy, dbias, grad, dz, drop, accumulate);
}

static void add_norm_fwd(struct meg_stream *st, enum meg_norm type, struct meg_mat z, struct meg_mat y, float *mean,
                         float *rstd, struct meg_mat x, struct meg_mat sublayer_out, const void *bias,
                         const struct meg_drop *drop, const void *w, const void *b, float eps)
{
    const int64_t n = x.rows, h = x.cols;

    MEG_ASSERT_LE(type, MEG_NORM_RMS_1P);
    MEG_ASSERT_EQ(!b, meg_norm_is_rms(type));
    CHECK_MAT(x, n, h);
    CHECK_MAT(sublayer_out, n, h);
    CHECK_MAT(z, n, h);
    CHECK_MAT(y, n, h);
    CHECK_DROP();
    CHECK_VECTOR(w, h);
    CHECK_VECTOR(rstd, n);
    if (!meg_norm_is_rms(type))
        CHECK_VECTOR(mean, n);
    CHECK_DISJOINT(4, z, y, f32(rstd, n), f32(meg_norm_is_rms(type) ? NULL : mean, n), unless_in_place(x, z),
                   sublayer_out, vector(bias, sublayer_out.dtype, h), vector(w, y.dtype, h), vector(b, y.dtype, h));
    op->add_norm_fwd(st, type, z, y, mean, rstd, x, sublayer_out, bias, drop, w, b, eps);
}

static void attn_fwd(struct meg_stream *st, const struct meg_attn_desc *desc, struct meg_heads o, float *lse,
                     struct meg_heads q, struct meg_heads k, struct meg_heads v, const struct meg_drop *drop)
{
    CHECK_DESC();
    CHECK_QUERY_HEADS(o, desc->d_v);
    CHECK_QUERY_HEADS(q, desc->d);
    CHECK_KEY_HEADS(k, desc->d);
    CHECK_KEY_HEADS(v, desc->d_v);
    CHECK_LSE(lse);
    CHECK_DROP();
    MEG_ASSERT(o.p != q.p && o.p != k.p && o.p != v.p);
    op->attn_fwd(st, desc, o, lse, q, k, v, drop);
}

static void attn_merge(struct meg_stream *st, const struct meg_attn_desc *desc, struct meg_heads o, float *lse,
                       struct meg_heads o_part, const float *lse_part)
{
    CHECK_DESC();
    MEG_ASSERT_EQ(o.dtype, MEG_DTYPE_F32);
    CHECK_QUERY_HEADS(o, desc->d_v);
    CHECK_QUERY_HEADS(o_part, desc->d_v);
    CHECK_LSE(lse);
    CHECK_LSE(lse_part);
    MEG_ASSERT(o.p != o_part.p && lse != lse_part);
    op->attn_merge(st, desc, o, lse, o_part, lse_part);
}

static void attn_delta(struct meg_stream *st, const struct meg_attn_desc *desc, float *delta, struct meg_heads d_o,
                       struct meg_heads o)
{
    CHECK_DESC();
    CHECK_LSE(delta);
    CHECK_QUERY_HEADS(d_o, desc->d_v);
    CHECK_QUERY_HEADS(o, desc->d_v);
    op->attn_delta(st, desc, delta, d_o, o);
}

static void attn_bwd(struct meg_stream *st, const struct meg_attn_desc *desc, const struct meg_attn_bwd_args *args,
                     const struct meg_drop *drop)
{
    MEG_ASSERT(args);
    CHECK_DESC();
    CHECK_QUERY_HEADS(args->dq, desc->d);
    CHECK_KEY_HEADS(args->dk, desc->d);
    CHECK_KEY_HEADS(args->dv, desc->d_v);
    CHECK_QUERY_HEADS(args->d_o, desc->d_v);
    CHECK_QUERY_HEADS(args->q, desc->d);
    CHECK_KEY_HEADS(args->k, desc->d);
    CHECK_KEY_HEADS(args->v, desc->d_v);
    CHECK_LSE(args->lse);
    if (!args->delta)
        CHECK_QUERY_HEADS(args->o, desc->d_v);
    CHECK_DROP();
    MEG_ASSERT(!desc->query_start && !desc->block_offset);
    CHECK_OPTIONAL_MAT(args->d_rel_bias, desc->rel_bias.rows, desc->a);
    MEG_ASSERT(!args->d_rel_bias.p || desc->rel_bias.p);
    MEG_ASSERT(!args->d_sink.p || desc->sink.p);
    if (args->d_sink.p)
        CHECK_DTYPE(args->d_sink.dtype);
    MEG_ASSERT(args->dk.dtype == args->dq.dtype && args->dv.dtype == args->dq.dtype);
    MEG_ASSERT(args->dq.p != args->dk.p && args->dq.p != args->dv.p && args->dk.p != args->dv.p);
    MEG_ASSERT(args->dq.p != args->q.p && args->dk.p != args->k.p && args->dv.p != args->v.p);
    MEG_ASSERT_LE(op->attn_bwd_nbytes(desc, args->dq.dtype, args->d_rel_bias.p || args->d_sink.p),
                  args->workspace.nbytes);
    op->attn_bwd(st, desc, args, drop);
}

static void copy_heads(struct meg_stream *st, struct meg_heads dst, const int64_t *dst_offset, struct meg_heads src,
                       int64_t s, int64_t b, int64_t g, int64_t d)
{
    MEG_ASSERT_EQ(dst.dtype, src.dtype);
    MEG_ASSERT_LT(dst.dtype, MEG_DTYPES);
    CHECK_HEADS(dst, s, dst_offset ? 1 : b, g, 1, d);
    CHECK_HEADS(src, s, b, g, 1, d);
    MEG_ASSERT(dst.p != src.p || !dst.p);
    op->copy_heads(st, dst, dst_offset, src, s, b, g, d);
}

static void embed_fwd(struct meg_stream *st, struct meg_mat x, const int32_t *token, struct meg_mat word, int64_t v0)
{
    CHECK_MAT(x, x.rows, x.cols);
    CHECK_MAT(word, word.rows, x.cols);
    CHECK_VECTOR(token, x.rows);
    CHECK_DISJOINT(1, x, i32(token, x.rows), word);
    op->embed_fwd(st, x, token, word, v0);
}

static void embed_bwd(struct meg_stream *st, struct meg_mat dword, int64_t v0, struct meg_mat dx, const int32_t *token,
                      bool accumulate)
{
    CHECK_MAT(dx, dx.rows, dx.cols);
    CHECK_MAT(dword, dword.rows, dx.cols);
    CHECK_VECTOR(token, dx.rows);
    CHECK_DISJOINT(1, dword, dx, i32(token, dx.rows));
    op->embed_bwd(st, dword, v0, dx, token, accumulate);
}

static void position_fwd(struct meg_stream *st, struct meg_mat x, const int32_t *position, struct meg_mat pos,
                         const struct meg_drop *drop)
{
    CHECK_MAT(x, x.rows, x.cols);
    CHECK_OPTIONAL_MAT(pos, pos.rows, x.cols);
    if (pos.p)
        CHECK_VECTOR(position, x.rows);
    CHECK_DROP();
    CHECK_DISJOINT(1, x, pos);
    op->position_fwd(st, x, position, pos, drop);
}

static void position_bwd(struct meg_stream *st, struct meg_mat dpos, struct meg_mat dx, const int32_t *position,
                         const struct meg_drop *drop, bool accumulate)
{
    CHECK_MAT(dx, dx.rows, dx.cols);
    CHECK_OPTIONAL_MAT(dpos, dpos.rows, dx.cols);
    if (dpos.p)
        CHECK_VECTOR(position, dx.rows);
    CHECK_DROP();
    CHECK_DISJOINT(2, dx, dpos);
    op->position_bwd(st, dpos, dx, position, drop, accumulate);
}

static void xent_partial(struct meg_stream *st, float *part, struct meg_mat logits, const int32_t *target, int64_t v0)
{
    const int64_t n = logits.rows;

    CHECK_MAT(logits, n, logits.cols);
    CHECK_VECTOR(part, n);
    CHECK_VECTOR(target, n);
    CHECK_DISJOINT(1, f32(part, 2 * n), logits, i32(target, n));
    op->xent_partial(st, part, logits, target, v0);
}

static void xent_combine(struct meg_stream *st, float *loss, float *lse, const float *part, const int32_t *target,
                         int64_t nparts, int64_t n, float z_loss)
{
    MEG_ASSERT_LT(0, nparts);
    CHECK_VECTOR(target, n);
    CHECK_VECTOR(loss, n);
    CHECK_VECTOR(lse, n);
    CHECK_VECTOR(part, n);
    CHECK_DISJOINT(2, f32(loss, n), f32(lse, n), f32(part, 2 * n * nparts), i32(target, n));
    op->xent_combine(st, loss, lse, part, target, nparts, n, z_loss);
}

static void xent_bwd(struct meg_stream *st, struct meg_mat logits, const float *lse, const int32_t *target, int64_t v0,
                     float z_loss, struct meg_loss_weight weight)
{
    const int64_t n = logits.rows;

    CHECK_MAT(logits, n, logits.cols);
    CHECK_VECTOR(lse, n);
    CHECK_VECTOR(target, n);
    CHECK_DISJOINT(1, logits, f32(lse, n), i32(target, n), f32(weight.mask, weight.mask ? n : 0));
    op->xent_bwd(st, logits, lse, target, v0, z_loss, weight);
}

static void xent_fwd_bwd(struct meg_stream *st, float *loss, struct meg_mat logits, const int32_t *target, float z_loss,
                         struct meg_loss_weight weight)
{
    const int64_t n = logits.rows;

    CHECK_MAT(logits, n, logits.cols);
    CHECK_VECTOR(loss, n);
    CHECK_VECTOR(target, n);
    CHECK_DISJOINT(2, f32(loss, n), logits, i32(target, n), f32(weight.mask, weight.mask ? n : 0));
    op->xent_fwd_bwd(st, loss, logits, target, z_loss, weight);
}

static void cast(struct meg_stream *st, void *dst, enum meg_dtype dst_type, const void *src, enum meg_dtype src_type,
                 int64_t n)
{
    CHECK_DTYPE(dst_type);
    CHECK_DTYPE(src_type);
    CHECK_VECTOR(dst, n);
    CHECK_VECTOR(src, n);
    CHECK_DISJOINT(1, vector(dst, dst_type, n), vector(src, src_type, n));
    op->cast(st, dst, dst_type, src, src_type, n);
}

static void sumsq(struct meg_stream *st, double *out, const void *x, enum meg_dtype type, int64_t n)
{
    MEG_ASSERT(out);
    CHECK_DTYPE(type);
    CHECK_VECTOR(x, n);
    CHECK_DISJOINT(1, vector(out, MEG_DTYPE_F64, 1), vector(x, type, n));
    op->sumsq(st, out, x, type, n);
}

static void sumsq_ranges(struct meg_stream *st, double *out, const void *x, enum meg_dtype type,
                         const struct meg_range *range, int nranges)
{
    MEG_ASSERT_LE(0, nranges);
    MEG_ASSERT(nranges == 0 || (out && range));
    CHECK_DTYPE(type);
    op->sumsq_ranges(st, out, x, type, range, nranges);
}

static void weighted_sum(struct meg_stream *st, double *out, const float *x, const float *weight, int64_t n,
                         const double *scale)
{
    MEG_ASSERT(out);
    CHECK_VECTOR(x, n);
    CHECK_DISJOINT(1, vector(out, MEG_DTYPE_F64, 1), f32(x, n), f32(weight, weight ? n : 0));
    op->weighted_sum(st, out, x, weight, n, scale);
}

static void count_zeros(struct meg_stream *st, int64_t *out, const void *x, enum meg_dtype type, int64_t n)
{
    MEG_ASSERT(out);
    CHECK_DTYPE(type);
    CHECK_VECTOR(x, n);
    CHECK_DISJOINT(1, vector(out, MEG_DTYPE_I64, 1), vector(x, type, n));
    op->count_zeros(st, out, x, type, n);
}

static void sample(struct meg_stream *st, struct meg_sampled_token *token, struct meg_mat logits,
                   int64_t unpadded_vocab, const struct meg_sampling_args *args, bool has_logprobs,
                   struct meg_workspace workspace)
{
    CHECK_MAT(logits, logits.rows, logits.cols);
    MEG_ASSERT_EQ(logits.dtype, MEG_DTYPE_F32);
    MEG_ASSERT_LT(0, unpadded_vocab);
    MEG_ASSERT_LE(unpadded_vocab, logits.cols);
    MEG_ASSERT_LT(logits.cols, INT64_C(1) << 23);
    CHECK_VECTOR(token, logits.rows);
    CHECK_VECTOR(args, logits.rows);
    MEG_ASSERT_LE(op->sample_nbytes(logits.rows, unpadded_vocab), workspace.nbytes);
    op->sample(st, token, logits, unpadded_vocab, args, has_logprobs, workspace);
}

static void step_finish(struct meg_stream *st, struct meg_step_record *record, const struct meg_step_conf *conf)
{
    MEG_ASSERT(record);
    CHECK_VECTOR(conf->grad_sum, conf->num_params);
    op->step_finish(st, record, conf);
}

/* Check the ranges of an optimizer step, and that its arrays do not overlap in any range. */
static void check_update(const struct meg_update_arrays *x, const struct meg_update_range *range, int nranges)
{
    const struct meg_array all[] = { x->w, x->g, x->state[0], x->state[1], x->copy };

    CHECK_VECTOR(range, nranges);
    CHECK_DTYPE(x->g.dtype);
    MEG_ASSERT_LE(x->w.dtype, MEG_DTYPE_BF16);
    MEG_ASSERT_LE(x->state[0].dtype, MEG_DTYPE_BF16);
    MEG_ASSERT_LE(x->state[1].dtype, MEG_DTYPE_BF16);
    for (int i = 0; i < nranges; i++) {
        const int64_t begin = range[i].begin, end = range[i].end;
        struct meg_mat m[5];
        int n = 0;

        MEG_ASSERT_LE(0, begin);
        MEG_ASSERT_LE(begin, end);
        MEG_ASSERT_LE(0, range[i].lr_index);
        MEG_ASSERT_LE(range[i].lr_index, 1);
        MEG_ASSERT_LT(0, range[i].cols);
        CHECK_VECTOR(x->w.p, end);
        CHECK_VECTOR(x->g.p, end);
        CHECK_VECTOR(x->state[0].p, end);
        for (int k = 0; k < 5; k++)
            if (all[k].p)
                m[n++] = vector(meg_element(all[k].p, begin, all[k].dtype), all[k].dtype, end - begin);
        MEG_ASSERT(are_disjoint(n, m, n));
    }
}

static void adamw(struct meg_stream *st, const struct meg_update_arrays *x, const struct meg_update_range *range,
                  int nranges, const struct meg_adam *adam, const struct meg_step_hparams *step)
{
    MEG_ASSERT(adam);
    MEG_ASSERT(step);
    MEG_ASSERT(x->state[1].p || nranges == 0);
    check_update(x, range, nranges);
    op->adamw(st, x, range, nranges, adam, step);
}

static void sgd(struct meg_stream *st, const struct meg_update_arrays *x, const struct meg_update_range *range,
                int nranges, float momentum, const struct meg_step_hparams *step)
{
    MEG_ASSERT(step);
    check_update(x, range, nranges);
    op->sgd(st, x, range, nranges, momentum, step);
}

/* ---- the table ---- */

static void check(const struct meg_ops *table)
{
    op = table;
    checked = *table; /* operations that are not replaced below are not checked */
    checked.upload = upload;
    checked.upload_pinned = upload_pinned;
    checked.download = download;
    checked.zero = zero;
    checked.linear_fwd = linear_fwd;
    checked.linear_bwd_data = linear_bwd_data;
    checked.linear_bwd_weight = linear_bwd_weight;
    checked.act_bwd = act_bwd;
    checked.scale = scale;
    checked.glu_fwd = glu_fwd;
    checked.glu_bwd = glu_bwd;
    checked.rope = rope;
    checked.qk_norm_fwd = qk_norm_fwd;
    checked.qk_norm_bwd = qk_norm_bwd;
    checked.norm_fwd = norm_fwd;
    checked.norm_bwd = norm_bwd;
    checked.add_fwd = add_fwd;
    checked.add_bwd = add_bwd;
    checked.add_norm_fwd = add_norm_fwd;
    checked.attn_fwd = attn_fwd;
    checked.attn_merge = attn_merge;
    checked.attn_delta = attn_delta;
    checked.attn_bwd = attn_bwd;
    checked.copy_heads = copy_heads;
    checked.embed_fwd = embed_fwd;
    checked.embed_bwd = embed_bwd;
    checked.position_fwd = position_fwd;
    checked.position_bwd = position_bwd;
    checked.xent_partial = xent_partial;
    checked.xent_combine = xent_combine;
    checked.xent_bwd = xent_bwd;
    checked.xent_fwd_bwd = xent_fwd_bwd;
    checked.cast = cast;
    checked.sumsq = sumsq;
    checked.sumsq_ranges = sumsq_ranges;
    checked.weighted_sum = weighted_sum;
    checked.count_zeros = count_zeros;
    checked.sample = sample;
    checked.step_finish = step_finish;
    checked.adamw = adamw;
    checked.sgd = sgd;
}

const struct meg_ops *meg_check_ops(const struct meg_ops *table)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&lock);
    if (!op)
        check(table);
    MEG_ASSERT(op == table);
    pthread_mutex_unlock(&lock);
    return &checked;
}
