/* op_row.c - sizes and tensors of a call of an operation, from the row that describes its arguments. */
#include "tensor/op_row.h"
#include <stdlib.h>
#include "base/err.h"

/* Return the length of a size or term, which ends with a space or 0. */
static int len_of(const char *name)
{
    return (int)strcspn(name, " ");
}

/* Return the index of a size, or -1. */
static int find(const struct meg_op_sizes *s, const char *name, int len)
{
    for (int i = 0; i < s->n; i++)
        if (s->size[i].len == len && strncmp(s->size[i].name, name, (size_t)len) == 0)
            return i;
    return -1;
}

/* Set a size, unless it is set already. */
static void set(struct meg_op_sizes *s, const char *name, int64_t value)
{
    const int len = len_of(name);

    if (find(s, name, len) >= 0)
        return;
    MEG_ASSERT_LT(s->n, (int)(sizeof s->size / sizeof *s->size));
    s->size[s->n].name = name;
    s->size[s->n].len = len;
    s->size[s->n++].value = value;
}

static void set_attn(struct meg_op_sizes *s, const struct meg_attn_desc *d)
{
    MEG_ASSERT(d);
    set(s, "s_q", d->s_q);
    set(s, "s_k", d->block_offset ? d->block_size : d->s_k);
    set(s, "b", d->b);
    set(s, "b_k", d->block_offset ? 1 : d->b);
    set(s, "a", d->a);
    set(s, "g", d->g);
    set(s, "r", d->g > 0 ? d->a / d->g : 0);
    set(s, "d", d->d);
    set(s, "d_v", d->d_v);
    set(s, "buckets", d->rel_bias.rows);
}

static void set_qk_norm(struct meg_op_sizes *s, const struct meg_qk_norm *q)
{
    MEG_ASSERT(q);
    set(s, "s", q->s);
    set(s, "b", q->b);
    set(s, "g", q->g);
    set(s, "heads", q->heads);
    set(s, "d", q->d);
}

/* Set the sizes of the shape of a matrix. */
static void set_mat(struct meg_op_sizes *s, const char *shape, const struct meg_mat *m)
{
    const char *cols = shape + len_of(shape) + 1;

    set(s, shape, m->rows);
    if (*cols > '9') /* a size without factor */
        set(s, cols, m->cols);
}

static int64_t i64_of(const struct meg_op_field *f, const void *args)
{
    const void *p = meg_op_field(f, args);

    return f->type == MEG_FIELD_INT ? *(const int *)p : *(const int64_t *)p;
}

struct meg_op_sizes meg_op_sizes_of(const struct meg_op_row *row, const void *args)
{
    struct meg_op_sizes s = { 0 };

    for (const struct meg_op_field *f = row->field; f->name; f++)
        switch (f->type) {
        case MEG_FIELD_I64:
        case MEG_FIELD_INT: set(&s, f->name, i64_of(f, args)); break;
        case MEG_FIELD_ATTN_DESC: set_attn(&s, meg_op_pointer(f, args)); break;
        case MEG_FIELD_QK_NORM: set_qk_norm(&s, meg_op_pointer(f, args)); break;
        default: break;
        }
    for (const struct meg_op_field *f = row->field; f->name; f++)
        if (f->type == MEG_FIELD_MAT && meg_op_pointer(f, args))
            set_mat(&s, f->shape, meg_op_field(f, args));
    /* An empty matrix may have no address; its sizes count if no other matrix has them. */
    for (const struct meg_op_field *f = row->field; f->name; f++)
        if (f->type == MEG_FIELD_MAT && !(f->role & MEG_ROLE_OPTIONAL))
            set_mat(&s, f->shape, meg_op_field(f, args));
    return s;
}

int64_t meg_op_term(const struct meg_op_sizes *s, const char *shape, int i, const char **term, int *len)
{
    char *name;
    int64_t factor;
    int k;

    for (; i > 0 && *shape; i--) {
        shape += len_of(shape);
        shape += *shape == ' ';
    }
    *term = shape;
    *len = len_of(shape);
    if (!*len)
        return -1;
    factor = strtol(shape, &name, 10);
    if (name == shape)
        factor = 1;
    if (name == shape + *len)
        return factor;
    k = find(s, name, (int)(shape + *len - name));
    MEG_ASSERT_LE(0, k);
    return factor * s->size[k].value;
}

int64_t meg_op_numel(const struct meg_op_sizes *s, const char *shape)
{
    const char *term;
    int64_t numel = 1, size;
    int len;

    for (int i = 0; (size = meg_op_term(s, shape, i, &term, &len)), len > 0; i++)
        numel *= size;
    return numel;
}

/* Return the type of the elements of a vector. */
static enum meg_dtype dtype_of(const struct meg_op_row *row, const struct meg_op_field *f, const void *args)
{
    const struct meg_op_field *typed = row->field;

    if (!f->typed)
        return f->dtype;
    while (strcmp(typed->name, f->typed) != 0)
        typed++;
    switch (typed->type) {
    case MEG_FIELD_MAT: return ((const struct meg_mat *)meg_op_field(typed, args))->dtype;
    case MEG_FIELD_HEADS: return ((const struct meg_heads *)meg_op_field(typed, args))->dtype;
    default: return *(const enum meg_dtype *)meg_op_field(typed, args);
    }
}

struct meg_mat meg_op_mat(const struct meg_op_sizes *s, const struct meg_op_row *row, const struct meg_op_field *f,
                          const void *args)
{
    const void *field = meg_op_field(f, args);
    struct meg_mat m = { .p = meg_op_pointer(f, args), .rows = 1 };

    if (f->type == MEG_FIELD_MAT)
        return *(const struct meg_mat *)field;
    if (f->type == MEG_FIELD_ARRAY)
        m.dtype = ((const struct meg_array *)field)->dtype;
    else if (f->type == MEG_FIELD_HEADS)
        m.dtype = ((const struct meg_heads *)field)->dtype;
    else
        m.dtype = dtype_of(row, f, args);
    m.cols = m.ld = meg_op_numel(s, f->shape);
    return m;
}
