/* tensor.c - find and describe the tensors of a call (ops.h). */
#include <stdio.h>
#include "ops.h"

bool op_contains(const char *list, const char *name)
{
    const size_t n = strlen(name);

    for (const char *p = list; p && (p = strstr(p, name)); p += n)
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || !p[n]))
            return true;
    return false;
}

const struct meg_op_field *op_field_of(const struct meg_op_row *row, const char *name)
{
    for (const struct meg_op_field *f = row->field; f->name; f++)
        if (!strcmp(f->name, name))
            return f;
    return NULL;
}

struct op_tensor *op_find(struct op_call *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->tensor[i].name, name))
            return &c->tensor[i];
    return NULL;
}

double *op_in(struct op_call *c, const char *name)
{
    struct op_tensor *t = op_find(c, name);

    return t ? t->v : NULL;
}

int64_t op_size(const struct op_call *c, const char *letter)
{
    return meg_op_numel(&c->sizes, letter);
}

bool op_may_be_in_place(const struct op_call *c, int i, int *output)
{
    const struct op_tensor *in = &c->tensor[i], *out;

    for (*output = 0; !(c->tensor[*output].role & MEG_ROLE_OUT);)
        ++*output;
    out = &c->tensor[*output];
    return in->role & MEG_ROLE_IN_PLACE && !(out->role & MEG_ROLE_IN) && in->dtype == out->dtype &&
           in->first == out->first && in->ndims == out->ndims && !memcmp(in->size, out->size, sizeof in->size) &&
           !memcmp(in->stride, out->stride, sizeof in->stride);
}

double op_tolerance(enum meg_dtype t)
{
    return t == MEG_DTYPE_F32 ? 1e-5 : t == MEG_DTYPE_F16 ? 1e-3 : 4e-3;
}

const char *op_describe(const struct op_call *c)
{
    static char s[1000];
    size_t n = 0;

    for (int i = 0; i < c->n && n < sizeof s; i++) {
        const struct op_tensor *x = &c->tensor[i];

        n += (size_t)snprintf(s + n, sizeof s - n, "%s %s", i ? "," : "", x->name);
        for (int k = 0; k < x->ndims && n < sizeof s; k++)
            n += (size_t)snprintf(s + n, sizeof s - n, "%c%lld", k ? ',' : '[', (long long)x->size[k]);
        if (n < sizeof s)
            n += (size_t)snprintf(s + n, sizeof s - n, "] %s", meg_dtype_name(x->dtype));
    }
    return s;
}
