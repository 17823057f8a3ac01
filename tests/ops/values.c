/* values.c - random numbers, and the values of tensors in memory (ops.h). */
#include <stdlib.h>
#include "base/mem.h"
#include "ops.h"
#include "tensor/half.h"

/* ---- random numbers ---- */

static uint64_t random_state;

static uint64_t next_random(void)
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void op_seed(uint64_t seed, const char *name)
{
    random_state = seed;
    for (; *name; name++)
        random_state = next_random() ^ (unsigned char)*name;
}

double op_uniform(void)
{
    return (double)(int64_t)next_random() * 0x1p-63;
}

int64_t op_below(int64_t n)
{
    return (int64_t)(next_random() % (uint64_t)n);
}

/* ---- elements ---- */

/* Return the number of rows: the elements of the last dimension are contiguous. */
static int64_t rows_of(const struct op_tensor *t)
{
    return t->ndims && t->numel ? t->numel / t->size[t->ndims - 1] : t->numel;
}

static int64_t cols_of(const struct op_tensor *t)
{
    return t->ndims ? t->size[t->ndims - 1] : 1;
}

/* Return the offset of a row from element 0, in bytes. */
static size_t offset_of(const struct op_tensor *t, int64_t row)
{
    int64_t offset = 0;

    for (int k = t->ndims - 2; k >= 0; row /= t->size[k--])
        offset += row % t->size[k] * t->stride[k];
    return (size_t)offset * meg_dtype_size(t->dtype);
}

static void load(double *v, const void *p, enum meg_dtype t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        switch (t) {
        case MEG_DTYPE_F32: v[i] = (double)((const float *)p)[i]; break;
        case MEG_DTYPE_BF16: v[i] = (double)meg_from_bf16(((const uint16_t *)p)[i]); break;
        case MEG_DTYPE_F16: v[i] = (double)meg_from_f16(((const uint16_t *)p)[i]); break;
        case MEG_DTYPE_F64: v[i] = ((const double *)p)[i]; break;
        case MEG_DTYPE_I32: v[i] = ((const int32_t *)p)[i]; break;
        default: v[i] = (double)((const int64_t *)p)[i];
        }
}

static void store(void *p, enum meg_dtype t, const double *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        switch (t) {
        case MEG_DTYPE_F32: ((float *)p)[i] = (float)v[i]; break;
        case MEG_DTYPE_BF16: ((uint16_t *)p)[i] = meg_to_bf16((float)v[i]); break;
        case MEG_DTYPE_F16: ((uint16_t *)p)[i] = meg_to_f16((float)v[i]); break;
        case MEG_DTYPE_F64: ((double *)p)[i] = v[i]; break;
        case MEG_DTYPE_I32: ((int32_t *)p)[i] = (int32_t)v[i]; break;
        default: ((int64_t *)p)[i] = (int64_t)v[i];
        }
}

double *op_values(const struct op_tensor *t, const char *memory)
{
    double *const v = meg_new((size_t)t->numel * sizeof *v);

    for (int64_t r = 0; r < rows_of(t); r++)
        load(v + r * cols_of(t), memory + t->first + offset_of(t, r), t->dtype, cols_of(t));
    return v;
}

double op_rounded(enum meg_dtype t, double v)
{
    char p[8];

    store(p, t, &v, 1);
    load(&v, p, t, 1);
    return v;
}

bool op_is_padding_intact(const struct op_tensor *t, const char *memory)
{
    const size_t nbytes = (size_t)cols_of(t) * meg_dtype_size(t->dtype);
    char *const p = memcpy(meg_new(t->nbytes), memory, t->nbytes);
    size_t i = 0;

    for (int64_t r = 0; r < rows_of(t); r++)
        memset(p + t->first + offset_of(t, r), 0xff, nbytes);
    while (i < t->nbytes && (unsigned char)p[i] == 0xff)
        i++;
    free(p);
    return i == t->nbytes;
}

void op_round(struct op_call *c)
{
    for (int i = 0; i < c->n; i++) {
        struct op_tensor *x = &c->tensor[i];

        for (int64_t r = 0; x->v && x->role & MEG_ROLE_IN && r < rows_of(x); r++) {
            double *const v = x->v + r * cols_of(x);
            char *const at = x->init + x->first + offset_of(x, r);

            store(at, x->dtype, v, cols_of(x));
            load(v, at, x->dtype, cols_of(x));
        }
    }
}
