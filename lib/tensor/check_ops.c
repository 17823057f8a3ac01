/* check_ops.c - a table of operations that check their arguments against the rows of tensor/op_row.h. */
#include "tensor/check_ops.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include "base/err.h"
#include "tensor/op_log.h"

static const struct meg_ops *op; /* the table that is called after the checks */
static struct meg_ops checked;

/* A call whose arguments are checked. */
struct call {
    const struct meg_op_row *row;
    const void *args;
    struct meg_op_sizes sizes;
};

/* Set text to the name of the operation and the condition that does not hold. */
static void describe(char *text, size_t size, const struct call *c, const char *condition, va_list ap)
{
    const int n = snprintf(text, size, "%s: ", c->row->name);

    vsnprintf(text + n, size - (size_t)n, condition, ap);
}

/* Unless `holds` is true, print the operation and the condition, and abort. */
static void require(const struct call *c, bool holds, const char *condition, ...) MEG_PRINTF(3, 4);
static void require(const struct call *c, bool holds, const char *condition, ...)
{
    char text[200];
    va_list ap;

    if (holds)
        return;
    va_start(ap, condition);
    describe(text, sizeof text, c, condition, ap);
    va_end(ap);
    meg_assert_failed(__FILE__, __LINE__, text);
}

/* Like `require`, and print both values of the condition. */
static void compare(const struct call *c, bool holds, int64_t a, int64_t b, const char *condition, ...)
    MEG_PRINTF(5, 6);
static void compare(const struct call *c, bool holds, int64_t a, int64_t b, const char *condition, ...)
{
    char text[200];
    va_list ap;

    if (holds)
        return;
    va_start(ap, condition);
    describe(text, sizeof text, c, condition, ap);
    va_end(ap);
    meg_assert_compare_failed(__FILE__, __LINE__, text, a, b);
}

/* ---- a tensor ---- */

static void check_dtype(const struct call *c, const struct meg_op_field *f, enum meg_dtype t)
{
    compare(c, t <= (f->role & MEG_ROLE_ANY_DTYPE ? MEG_DTYPES - 1 : MEG_DTYPE_F16), t, MEG_DTYPE_F16,
            "%s.dtype <= MEG_DTYPE_F16", f->name);
}

/* Check that a pointer to n elements is present; a tensor without elements may have none. */
static void check_present(const struct call *c, const struct meg_op_field *f, const void *p, int64_t n)
{
    compare(c, n >= 0, 0, n, "0 <= elements of %s", f->name);
    require(c, p || n == 0, "%s is present or has no elements", f->name);
}

static void check_mat(const struct call *c, const struct meg_op_field *f, const struct meg_mat *m)
{
    const int64_t dim[] = { m->rows, m->cols };
    static const char *const name[] = { "rows", "cols" };

    check_dtype(c, f, m->dtype);
    for (int i = 0; i < 2; i++) {
        const char *term;
        int len;
        const int64_t size = meg_op_term(&c->sizes, f->shape, i, &term, &len);

        compare(c, dim[i] == size, dim[i], size, "%s.%s == %.*s", f->name, name[i], len, term);
        compare(c, dim[i] >= 0, 0, dim[i], "0 <= %s.%s", f->name, name[i]);
    }
    compare(c, m->cols <= m->ld, m->cols, m->ld, "%s.cols <= %s.ld", f->name, f->name);
    check_present(c, f, m->p, m->rows * m->cols);
}

/* Check a view of heads.  Strides of dimensions larger than 1 must be at least the columns of a head. */
static void check_heads(const struct call *c, const struct meg_op_field *f, const struct meg_heads *h)
{
    const int64_t ld[] = { h->ld_s, h->ld_b, h->ld_g, h->ld_h };
    const char *term;
    int len;
    const int64_t d = meg_op_term(&c->sizes, f->shape, 4, &term, &len);

    check_dtype(c, f, h->dtype);
    check_present(c, f, h->p, meg_op_numel(&c->sizes, f->shape));
    for (int i = 0; i < 4; i++) {
        const char *size;
        int unused;

        compare(c, d <= ld[i] || meg_op_term(&c->sizes, f->shape, i, &size, &unused) <= 1, d, ld[i], "%.*s <= %s.ld_%c",
                len, term, f->name, "sbgh"[i]);
    }
}

/* ---- overlaps ---- */

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

static bool is_tensor(const struct meg_op_field *f)
{
    return f->role && f->type < MEG_FIELD_RANGES;
}

/* Return whether tensor g may be output f, the first output of the operation. */
static bool may_be(const struct call *c, const struct meg_op_field *g, const struct meg_op_field *f)
{
    const struct meg_op_field *first = c->row->field;

    while (!(first->role & MEG_ROLE_OUT))
        first++;
    return f == first && (g->role & MEG_ROLE_IN_PLACE);
}

/*
 * Return whether tensor g overlaps output f.  Views of heads may interleave in one tensor, so only their addresses are
 * compared.  An operand that may be the output must have its address, type and row stride.
 */
static bool is_overlap(const struct call *c, const struct meg_op_field *f, const struct meg_op_field *g)
{
    const struct meg_mat a = meg_op_mat(&c->sizes, c->row, f, c->args);
    const struct meg_mat b = meg_op_mat(&c->sizes, c->row, g, c->args);

    if (may_be(c, g, f) && a.p == b.p && a.dtype == b.dtype && a.ld == b.ld)
        return false;
    if (f->type == MEG_FIELD_HEADS && g->type == MEG_FIELD_HEADS)
        return a.p == b.p && !is_empty(a) && !is_empty(b);
    return f->type != MEG_FIELD_HEADS && g->type != MEG_FIELD_HEADS && overlaps(a, b);
}

/* Check that outputs overlap no other tensors. */
static void check_overlaps(const struct call *c)
{
    for (const struct meg_op_field *f = c->row->field; f->name; f++)
        for (const struct meg_op_field *g = c->row->field; g->name; g++)
            if (is_tensor(f) && is_tensor(g) && f != g && (f->role & MEG_ROLE_OUT) &&
                (g > f || !(g->role & MEG_ROLE_OUT)) && is_overlap(c, f, g))
                require(c, false, "no overlap between %s and %s", f->name, g->name);
}

/* ---- other arguments ---- */

static void check_desc(const struct meg_attn_desc *desc)
{
    const struct meg_mat *bias = &desc->rel_bias;

    MEG_ASSERT_LE(0, desc->s_q);
    MEG_ASSERT_LE(0, desc->s_k);
    MEG_ASSERT_LE(0, desc->b);
    MEG_ASSERT_LT(0, desc->g);
    MEG_ASSERT_EQ(desc->a % desc->g, 0);
    MEG_ASSERT_LE(0, desc->q0);
    MEG_ASSERT_LE(0, desc->k0);
    MEG_ASSERT_LE(desc->q0 + desc->s_q, desc->s);
    MEG_ASSERT_LE(desc->k0 + desc->s_k, desc->s);
    MEG_ASSERT_LT(0, desc->d);
    MEG_ASSERT_LT(0, desc->d_v);
    MEG_ASSERT(desc->softcap >= 0);
    if (bias->p) { /* e >= 1, and the logarithm of max_distance / e is positive */
        MEG_ASSERT_LE(bias->dtype, MEG_DTYPE_F16);
        MEG_ASSERT_EQ(bias->cols, desc->a);
        MEG_ASSERT_LE(bias->cols, bias->ld);
        MEG_ASSERT_LE(desc->rel_bias_is_bidirectional ? 4 : 2, desc->rel_bias.rows);
        MEG_ASSERT_LT(desc->rel_bias.rows / (desc->rel_bias_is_bidirectional ? 4 : 2), desc->rel_bias_max_distance);
    }
    MEG_ASSERT(!desc->sink.p || desc->sink.dtype <= MEG_DTYPE_F16);
    if (desc->block_offset) {
        MEG_ASSERT_EQ(desc->k0, 0);
        MEG_ASSERT_LT(0, desc->block_size);
        MEG_ASSERT_LE(desc->s_k, desc->block_size * desc->blocks_per_seq);
    }
}

static void check_qk_norm(const struct meg_qk_norm *q)
{
    MEG_ASSERT_LE(2 * q->half, q->d);
    MEG_ASSERT((q->cos && q->sin) || q->half == 0);
    MEG_ASSERT(q->position || q->half == 0 || q->s * q->b == 0);
}

static void check_glu(const struct meg_glu *unit)
{
    MEG_ASSERT(unit->act > MEG_ACT_NONE && unit->act < MEG_ACTS);
    MEG_ASSERT(unit->limit >= 0);
}

/* Check the dropout parameters.  Without dropout (p = 0) the other fields are not used. */
static void check_drop(const struct meg_drop *drop)
{
    MEG_ASSERT(!drop || drop->p == 0 || (drop->b > 0 && drop->sample));
}

static void check_field(const struct call *c, const struct meg_op_field *f)
{
    const void *value = meg_op_field(f, c->args), *p = NULL;

    if (f->role || f->type >= MEG_FIELD_PLAN)
        p = meg_op_pointer(f, c->args);
    if (!p && (f->role & MEG_ROLE_OPTIONAL))
        return;
    switch (f->type) {
    case MEG_FIELD_MAT: check_mat(c, f, value); break;
    case MEG_FIELD_HEADS: check_heads(c, f, value); break;
    case MEG_FIELD_ARRAY: check_dtype(c, f, ((const struct meg_array *)value)->dtype); break;
    case MEG_FIELD_VECTOR:
    case MEG_FIELD_RANGES:
    case MEG_FIELD_MEMORY: check_present(c, f, p, meg_op_numel(&c->sizes, f->shape)); break;
    case MEG_FIELD_DTYPE: check_dtype(c, f, *(const enum meg_dtype *)value); break;
    case MEG_FIELD_ACT: MEG_ASSERT_LT(*(const enum meg_act *)value, MEG_ACTS); break;
    case MEG_FIELD_NORM: MEG_ASSERT_LE(*(const enum meg_norm *)value, MEG_NORM_RMS_1P); break;
    case MEG_FIELD_DROP: check_drop(p); break;
    case MEG_FIELD_GLU: check_glu(p); break;
    case MEG_FIELD_QK_NORM: check_qk_norm(p); break;
    case MEG_FIELD_ATTN_DESC: check_desc(p); break;
    case MEG_FIELD_PLAN:
    case MEG_FIELD_STEP_CONF:
    case MEG_FIELD_UPDATE_ARRAYS:
    case MEG_FIELD_ADAM: check_present(c, f, p, 1); break;
    case MEG_FIELD_I64:
    case MEG_FIELD_INT:
    case MEG_FIELD_BOOL:
    case MEG_FIELD_F32: break;
    }
}

/* ---- the table ---- */

static void check_args(const struct meg_op_row *row, const void *args)
{
    const struct call c = { row, args, meg_op_sizes_of(row, args) };

    for (const struct meg_op_field *f = row->field; f->name; f++)
        check_field(&c, f);
    check_overlaps(&c);
    if (row->check)
        row->check(op, args);
}

#define CHECKED(name)                                                                                                  \
    static void name(struct meg_stream *st, const struct meg_##name##_args *a)                                         \
    {                                                                                                                  \
        struct meg_##name##_args copy = *a;                                                                            \
        check_args(&meg_row_##name, a);                                                                                \
        MEG_CLEAR_PADDING(copy);                                                                                       \
        meg_op_log_add(&meg_row_##name, &copy, sizeof copy);                                                           \
        op->name(st, a);                                                                                               \
    }
MEG_TENSOR_OPS(CHECKED)

static void upload(struct meg_stream *st, void *dev, const void *host, size_t nbytes)
{
    MEG_ASSERT((dev && host) || nbytes == 0);
    op->upload(st, dev, host, nbytes);
}

static void upload_pinned(struct meg_stream *st, void *dev, const void *pinned, size_t nbytes)
{
    MEG_ASSERT((dev && pinned) || nbytes == 0);
    op->upload_pinned(st, dev, pinned, nbytes);
}

static void download(struct meg_stream *st, void *host, const void *dev, size_t nbytes)
{
    MEG_ASSERT((dev && host) || nbytes == 0);
    op->download(st, host, dev, nbytes);
}

static void zero(struct meg_stream *st, void *dev, size_t nbytes)
{
    MEG_ASSERT(dev || nbytes == 0);
    op->zero(st, dev, nbytes);
}

#define SET(name) checked.name = name;
static void check(const struct meg_ops *table)
{
    op = table;
    checked = *table; /* operations that are not replaced below are not checked */
    checked.upload = upload;
    checked.upload_pinned = upload_pinned;
    checked.download = download;
    checked.zero = zero;
    MEG_TENSOR_OPS(SET)
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
