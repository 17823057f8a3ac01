/* call.c - calls of operations from cases (ops.h): tensors with random numbers, and arguments on a device. */
#include <stdio.h>
#include <stdlib.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/philox.h"
#include "ops.h"

void (*op_run)(struct op_call *c);
bool op_is_large;

/* ---- tests ---- */

const struct op_test *op_test_at(int i)
{
#define TEST(name) &op_test_##name,
    static const struct op_test *const tests[] = { MEG_TENSOR_OPS(TEST) };

    return i < (int)LEN(tests) ? tests[i] : NULL;
}

const struct op_mix op_mixes[OP_MIXES] = {
    { MEG_DTYPE_F32, MEG_DTYPE_F32 },  { MEG_DTYPE_BF16, MEG_DTYPE_BF16 }, { MEG_DTYPE_F16, MEG_DTYPE_F16 },
    { MEG_DTYPE_F32, MEG_DTYPE_BF16 }, { MEG_DTYPE_F32, MEG_DTYPE_F16 },
};

/* ---- tensors ---- */

static bool accumulates(const struct op_call *c)
{
    const struct meg_op_field *f = op_field_of(c->test->row, "accumulate");

    return f && *(const bool *)meg_op_field(f, c->args);
}

/* Add a tensor without padding, whose pointer in the case is p. */
static struct op_tensor *add_tensor(struct op_call *c, const char *name, enum meg_dtype t, size_t offset, const void *p)
{
    struct op_tensor *x = &c->tensor[c->n++];

    MEG_ASSERT_LE(c->n, OP_MAX_TENSORS);
    snprintf(x->name, sizeof x->name, "%s", name);
    x->role = MEG_ROLE_IN;
    x->dtype = t;
    x->offset = offset;
    x->first = p ? (size_t)((uintptr_t)p - (uintptr_t)ON) : 0;
    return x;
}

/* Set the sizes of a tensor from a shape, and the strides as if it had no padding. */
static void set_shape(const struct op_call *c, struct op_tensor *x, const char *shape)
{
    const char *term;
    int64_t size;
    int len;

    for (x->ndims = 0; (size = meg_op_term(&c->sizes, shape, x->ndims, &term, &len)), len > 0;) {
        MEG_ASSERT_LT(x->ndims, OP_MAX_DIMS);
        x->size[x->ndims++] = size;
    }
    x->numel = 1;
    for (int k = x->ndims - 1; k >= 0; k--) {
        x->stride[k] = x->numel;
        x->numel *= x->size[k];
    }
}

/* Return what the test says of a field, or NULL. */
static const struct op_extra *extra_of(const struct op_test *test, const struct meg_op_field *f)
{
    for (const struct op_extra *e = test->extra; e->name; e++)
        if (!strcmp(e->name, f->name))
            return e;
    return NULL;
}

static const char *shape_of(const struct op_test *test, const struct meg_op_field *f)
{
    const struct op_extra *e = extra_of(test, f);

    return e ? e->shape : f->shape;
}

/* Make x, of which `size` is the number of structs, a tensor of structs. */
static void set_format(struct op_tensor *x, const char *format)
{
    int64_t nbytes = 0, members = 0;

    for (const char *f = format; *f; f++) {
        nbytes += *f == 'd' || *f == 'q' ? 8 : 4;
        members += *f != 'x';
    }
    x->format = format;
    x->dtype = MEG_DTYPE_I32;
    x->first = 0;
    x->ndims = 2;
    x->size[1] = members;
    x->stride[0] = nbytes / 4;
    x->stride[1] = 1;
    x->numel = x->size[0] * members;
}

static void add_field(struct op_call *c, const struct meg_op_field *f)
{
    const struct meg_op_row *row = c->test->row;
    const struct op_extra *e = extra_of(c->test, f);
    const void *p = meg_op_pointer(f, c->args);
    struct op_tensor *x;

    if (!p && f->role & MEG_ROLE_OPTIONAL)
        return;
    x = add_tensor(c, f->name, meg_op_mat(&c->sizes, row, f, c->args).dtype, f->offset, p);
    x->role = f->role;
    if (e && e->dtype < MEG_DTYPES)
        x->dtype = e->dtype;
    set_shape(c, x, shape_of(c->test, f));
    if (e && e->format)
        set_format(x, e->format);
    if (f->type == MEG_FIELD_MAT) {
        x->stride[0] = ((const struct meg_mat *)meg_op_field(f, c->args))->ld;
    } else if (f->type == MEG_FIELD_HEADS) {
        const struct meg_heads *h = meg_op_field(f, c->args);
        const int64_t stride[] = { h->ld_s, h->ld_b, h->ld_g, h->ld_h };

        memcpy(x->stride, stride, sizeof stride);
    }
    if (accumulates(c) && op_contains(c->test->added, f->name))
        x->role |= MEG_ROLE_IN;
}

/* Add a tensor of a struct in host memory, with elements [rows, cols], unless its pointer p is NULL. */
static struct op_tensor *add_in_struct(struct op_call *c, const struct meg_op_field *f, const char *name, size_t offset,
                                       const void *p, enum meg_dtype t, int64_t rows, int64_t cols)
{
    struct op_tensor *x;
    char full[40];

    if (!p)
        return NULL;
    snprintf(full, sizeof full, "%s.%s", f->name, name);
    x = add_tensor(c, full, t, offset, p);
    x->field = f;
    x->ndims = 2;
    x->size[0] = rows;
    x->size[1] = x->stride[0] = cols;
    x->stride[1] = 1;
    x->numel = rows * cols;
    return x;
}

static void allocate(struct op_tensor *x)
{
    const bool is_integer = x->dtype > MEG_DTYPE_F64;
    int64_t last = 0;

    for (int k = 0; k < x->ndims; k++)
        last += x->size[k] ? (x->size[k] - 1) * x->stride[k] : 0;
    if (x->format)
        last = x->size[0] * x->stride[0] - 1;
    x->nbytes = x->first + (x->numel ? (size_t)(last + 1) * meg_dtype_size(x->dtype) : 0);
    if (op_is_large && x->dtype <= MEG_DTYPE_F16)
        return;
    x->init = memset(meg_new(x->nbytes), 0xff, x->nbytes);
    x->v = meg_new((size_t)x->numel * sizeof *x->v);
    for (int64_t i = 0; i < x->numel; i++)
        x->v[i] = !(x->role & MEG_ROLE_IN) ? NAN : is_integer ? 0 : op_uniform();
}

/* Copy the structs to which the case points. */
static void copy_structs(struct op_call *c, const struct meg_op_field *f)
{
    struct op_tensor *x = op_find(c, f->name);

    if (!x || !x->format || !(x->role & MEG_ROLE_IN))
        return;
    memcpy(x->init, meg_op_pointer(f, c->args), x->nbytes);
    free(x->v);
    x->v = op_values(x, x->init);
}

/* Add the arrays of an optimizer step.  They have more elements than the last range. */
static void add_update_arrays(struct op_call *c, const struct meg_op_field *f)
{
    enum { MORE = 21 };
    const struct meg_update_arrays *a = meg_op_pointer(f, c->args);
    const struct meg_update_range *range = meg_op_pointer(op_field_of(c->test->row, "range"), c->args);
    const struct {
        const char *name;
        size_t offset;
        int role;
    } array[] = {
        { "w", offsetof(struct meg_update_arrays, w), MEG_ROLE_IN | MEG_ROLE_OUT },
        { "g", offsetof(struct meg_update_arrays, g), MEG_ROLE_IN },
        { "state0", offsetof(struct meg_update_arrays, state[0]), MEG_ROLE_IN | MEG_ROLE_OUT },
        { "state1", offsetof(struct meg_update_arrays, state[1]), MEG_ROLE_IN | MEG_ROLE_OUT },
        { "copy", offsetof(struct meg_update_arrays, copy), MEG_ROLE_OUT },
    };
    int64_t n = 0;

    for (int64_t i = 0; i < op_size(c, "nranges"); i++)
        n = range[i].end > n ? range[i].end : n;
    for (size_t i = 0; i < LEN(array); i++) {
        const struct meg_array *x = (const void *)((const char *)a + array[i].offset);
        struct op_tensor *t = add_in_struct(c, f, array[i].name, array[i].offset, x->p, x->dtype, 1, n + MORE);

        if (t)
            t->role = array[i].role;
    }
}

static void add_step_conf(struct op_call *c, const struct meg_op_field *f)
{
    const struct meg_step_conf *conf = meg_op_pointer(f, c->args);

    add_in_struct(c, f, "grad_sum", offsetof(struct meg_step_conf, grad_sum), conf->grad_sum, MEG_DTYPE_F64, 1,
                  conf->num_params);
}

/* Add the samples and positions of dropout. */
static void add_drop(struct op_call *c, const struct meg_op_field *f)
{
    const struct meg_drop *d = meg_op_pointer(f, c->args);
    struct op_tensor *x;

    if (!d)
        return;
    x = add_in_struct(c, f, "sample", offsetof(struct meg_drop, sample), d->sample, MEG_DTYPE_I64, 1, d->b);
    if (x) {
        allocate(x);
        for (int64_t i = 0; i < x->numel; i++)
            x->v[i] = (double)op_below((int64_t)1 << 40);
    }
    x = add_in_struct(c, f, "position_of_row", offsetof(struct meg_drop, position_of_row), d->position_of_row,
                      MEG_DTYPE_I32, 1, d->position_of_row ? (op_size(c, "n") + d->b - 1) / d->b : 0);
    if (x) {
        allocate(x);
        for (int64_t i = 0; i < x->numel; i++)
            x->v[i] = (double)op_below(4096);
    }
}

static void add_qk_norm(struct op_call *c, const struct meg_op_field *f)
{
    const struct meg_qk_norm *q = meg_op_pointer(f, c->args);
    const size_t cos = offsetof(struct meg_qk_norm, cos), sin = offsetof(struct meg_qk_norm, sin);

    add_in_struct(c, f, "cos", cos, q->cos, MEG_DTYPE_F32, OP_POSITIONS, q->half);
    add_in_struct(c, f, "sin", sin, q->sin, MEG_DTYPE_F32, OP_POSITIONS, q->half);
    add_in_struct(c, f, "position", offsetof(struct meg_qk_norm, position), q->position, MEG_DTYPE_I32, q->s, q->b);
}

static void add_attn_desc(struct op_call *c, const struct meg_op_field *f)
{
    const struct meg_attn_desc *d = meg_op_pointer(f, c->args);
    struct op_tensor *x;

#define ADD(name, p, t, rows, cols) add_in_struct(c, f, #name, offsetof(struct meg_attn_desc, name), p, t, rows, cols)
    ADD(doc_start, d->doc_start, MEG_DTYPE_I32, d->s_q, d->b);
    ADD(key_length, d->key_length, MEG_DTYPE_I32, 1, d->b);
    ADD(alibi_slope, d->alibi_slope, MEG_DTYPE_F32, 1, d->a);
    x = ADD(rel_bias, d->rel_bias.p, d->rel_bias.dtype, d->rel_bias.rows, d->a);
    if (x)
        x->stride[0] = d->rel_bias.ld;
    ADD(sink, d->sink.p, d->sink.dtype, 1, d->a);
    ADD(query_start, d->query_start, MEG_DTYPE_I32, 1, d->b);
    ADD(block_offset, d->block_offset, MEG_DTYPE_I64, d->b, d->blocks_per_seq);
#undef ADD
}

static void add_extra(struct op_call *c, const struct op_extra *e)
{
    const struct meg_op_field *type = op_field_of(c->test->row, "type");
    enum meg_dtype t = e->dtype;
    void *p;

    memcpy(&p, (const char *)c->args + e->offset, sizeof p);
    if (!p || op_field_of(c->test->row, e->name))
        return;
    if (t == MEG_DTYPES)
        t = *(const enum meg_dtype *)meg_op_field(type, c->args);
    set_shape(c, add_tensor(c, e->name, t, e->offset, p), e->shape);
}

void op_set_special(struct op_call *c, const char *name, int64_t first)
{
    static const double special[] = { 0, -0.0, 30, -30, 200, -200, INFINITY, -INFINITY, NAN, 6e4, -6e4, 1e-7 };
    const struct op_tensor *t = op_find(c, name);

    for (int64_t i = 0; i < (int64_t)LEN(special) && first + i < t->numel; i++)
        t->v[first + i] = special[i];
}

double op_drop_unit(const struct meg_drop *d, int64_t unit, int64_t position, int64_t sample)
{
    const long threshold = lrint((double)d->p * 65536.0);
    uint32_t word[4];

    meg_philox_dropout(word, d->seed, 16 * (uint32_t)d->layer + (uint32_t)d->site, (uint32_t)(unit / 8),
                       (uint32_t)position, sample);
    if ((long)(word[unit % 8 / 2] >> 16 * (unit % 2) & 0xffff) < (threshold < 65535 ? threshold : 65535))
        return 0;
    return 65536.0 / (double)(65536 - (threshold < 65535 ? threshold : 65535));
}

double op_drop_factor(struct op_call *c, const struct meg_drop *d, int64_t row, int64_t col)
{
    const double *position = op_in(c, "drop.position_of_row");

    if (!d || lrint((double)d->p * 65536.0) == 0)
        return 1;
    return op_drop_unit(d, d->unit0 + col, position ? (int64_t)position[row / d->b] : d->pos0 + row / d->b,
                        (int64_t)op_in(c, "drop.sample")[row % d->b]);
}

/* ---- calls ---- */

void op_call_free(struct op_call *c)
{
    for (int i = 0; i < c->n; i++) {
        free(c->tensor[i].init);
        free(c->tensor[i].v);
        free(c->tensor[i].want);
        free(c->tensor[i].tol);
    }
    free(c->own_args);
    free(c);
}

static struct op_call *call_new(const struct op_test *test, int variant, const void *args)
{
    struct op_call *c = meg_new(sizeof *c);

    c->test = test;
    c->args = args;
    c->variant = variant;
    c->sizes = meg_op_sizes_of(test->row, args);
    for (const struct meg_op_field *f = test->row->field; f->name; f++)
        if (f->role)
            add_field(c, f);
        else if (f->type == MEG_FIELD_UPDATE_ARRAYS)
            add_update_arrays(c, f);
        else if (f->type == MEG_FIELD_STEP_CONF)
            add_step_conf(c, f);
    for (const struct op_extra *e = test->extra; e->name; e++)
        add_extra(c, e);
    for (const struct meg_op_field *f = test->row->field; f->name; f++)
        if (f->type == MEG_FIELD_QK_NORM)
            add_qk_norm(c, f);
        else if (f->type == MEG_FIELD_ATTN_DESC)
            add_attn_desc(c, f);
    if (test->shape)
        test->shape(c);
    for (int i = 0; i < c->n; i++)
        allocate(&c->tensor[i]);
    for (const struct meg_op_field *f = test->row->field; f->name; f++)
        copy_structs(c, f);
    for (const struct meg_op_field *f = test->row->field; f->name; f++)
        if (f->type == MEG_FIELD_DROP)
            add_drop(c, f);
    return c;
}

void op_case(const struct op_test *test, int variant, const void *args)
{
    struct op_call *c = call_new(test, variant, args);

    op_round(c);
    if (test->fill) {
        test->fill(c);
        op_round(c);
    }
    op_run(c);
    op_call_free(c);
}

static void new_results(struct op_call *c)
{
    for (int i = 0; i < c->n; i++) {
        struct op_tensor *x = &c->tensor[i];
        const size_t nbytes = (size_t)x->numel * sizeof *x->want;

        if (x->role & MEG_ROLE_OUT) {
            x->want = memcpy(meg_new(nbytes), x->v, nbytes);
            x->tol = meg_new(nbytes);
        }
    }
}

void op_reference(struct op_call *c)
{
    const bool is_added = accumulates(c) && !c->test->ref_adds;

    new_results(c);
    c->test->ref(c);
    for (int i = 0; i < c->n && is_added; i++) {
        struct op_tensor *x = &c->tensor[i];

        for (int64_t k = 0; op_contains(c->test->added, x->name) && k < x->numel; k++) {
            x->want[k] += x->v[k];
            x->tol[k] += 2 * EPS * fabs(x->want[k]);
        }
    }
}

/* Return the size of a field that is no tensor. */
static size_t value_nbytes(const struct meg_op_field *f)
{
    switch (f->type) {
    case MEG_FIELD_BOOL: return sizeof(bool);
    case MEG_FIELD_I64: return sizeof(int64_t);
    case MEG_FIELD_PLAN: return sizeof(void *);
    default: return f->nbytes ? sizeof(void *) : sizeof(int);
    }
}

struct op_call *op_forward_of(struct op_call *bwd)
{
    const struct op_test *test = bwd->test->grad_of;
    struct op_call *c;
    char *args;

    if (!test)
        return NULL;
    c = meg_new(sizeof *c);
    args = meg_new(test->nbytes);
    c->test = test;
    c->args = c->own_args = args;
    c->sizes = bwd->sizes;
    for (const struct meg_op_field *f = test->row->field; f->name; f++) {
        const struct meg_op_field *b = op_field_of(bwd->test->row, f->name);
        const struct op_tensor *x = op_find(bwd, f->name);

        if (!f->role && b)
            memcpy(args + f->offset, meg_op_field(b, bwd->args), value_nbytes(f));
        if (f->role && (x || !(f->role & MEG_ROLE_OPTIONAL))) {
            struct op_tensor *y = add_tensor(c, f->name, MEG_DTYPE_F64, f->offset, NULL);

            y->role = f->role;
            set_shape(c, y, shape_of(test, f));
            y->v = meg_new((size_t)y->numel * sizeof *y->v);
            if (x && f->role & MEG_ROLE_IN)
                memcpy(y->v, x->v, (size_t)y->numel * sizeof *y->v);
        }
    }
    for (int i = 0; i < bwd->n; i++) /* the tensors of structs */
        if (bwd->tensor[i].field) {
            struct op_tensor *y = &c->tensor[c->n++];
            const size_t nbytes = (size_t)bwd->tensor[i].numel * sizeof *y->v;

            *y = bwd->tensor[i];
            y->init = NULL;
            y->v = memcpy(meg_new(nbytes), y->v, nbytes);
        }
    new_results(c);
    return c;
}

/* ---- arguments on a device ---- */
