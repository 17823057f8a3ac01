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

/* Load an element. */
static double load(const void *p, enum meg_dtype t)
{
    switch (t) {
    case MEG_DTYPE_F32: return (double)*(const float *)p;
    case MEG_DTYPE_BF16: return (double)meg_from_bf16(*(const uint16_t *)p);
    case MEG_DTYPE_F16: return (double)meg_from_f16(*(const uint16_t *)p);
    case MEG_DTYPE_F64: return *(const double *)p;
    case MEG_DTYPE_I32: return *(const int32_t *)p;
    default: return (double)*(const int64_t *)p;
    }
}

static void store(void *p, enum meg_dtype t, double v)
{
    switch (t) {
    case MEG_DTYPE_F32: *(float *)p = (float)v; break;
    case MEG_DTYPE_BF16: *(uint16_t *)p = meg_to_bf16((float)v); break;
    case MEG_DTYPE_F16: *(uint16_t *)p = meg_to_f16((float)v); break;
    case MEG_DTYPE_F64: *(double *)p = v; break;
    case MEG_DTYPE_I32: *(int32_t *)p = (int32_t)v; break;
    default: *(int64_t *)p = (int64_t)v;
    }
}

/* Return the type of column c of a tensor, and its offset in a row, in bytes. */
static enum meg_dtype column(const struct op_tensor *t, int64_t c, size_t *offset)
{
    static const char letters[] = "dfqi";
    static const enum meg_dtype types[] = { MEG_DTYPE_F64, MEG_DTYPE_F32, MEG_DTYPE_I64, MEG_DTYPE_I32 };
    const char *f = t->format;

    *offset = f ? 0 : (size_t)c * meg_dtype_size(t->dtype);
    for (; f && (c > 0 || *f == 'x'); f++) {
        *offset += *f == 'x' ? 4 : meg_dtype_size(types[strchr(letters, *f) - letters]);
        c -= *f != 'x';
    }
    return f ? types[strchr(letters, *f) - letters] : t->dtype;
}

static size_t row_nbytes(const struct op_tensor *t)
{
    return (size_t)(t->format ? t->stride[0] : cols_of(t)) * meg_dtype_size(t->dtype);
}

double *op_values(const struct op_tensor *t, const char *memory)
{
    double *const v = meg_new((size_t)t->numel * sizeof *v);
    size_t offset;

    for (int64_t c = 0; c < cols_of(t); c++) {
        const enum meg_dtype type = column(t, c, &offset);

        for (int64_t r = 0; r < rows_of(t); r++)
            v[r * cols_of(t) + c] = load(memory + t->first + offset_of(t, r) + offset, type);
    }
    return v;
}

bool op_is_equal(const struct op_tensor *t, const char *a, const char *b)
{
    double *x, *y;
    bool is_equal;

    if (!t->format)
        return !memcmp(a, b, t->nbytes);
    x = op_values(t, a);
    y = op_values(t, b);
    is_equal = !memcmp(x, y, (size_t)t->numel * sizeof *x);
    free(x);
    free(y);
    return is_equal;
}

double op_rounded(enum meg_dtype t, double v)
{
    char p[8];

    store(p, t, v);
    return load(p, t);
}

bool op_is_padding_intact(const struct op_tensor *t, const char *memory)
{
    char *const p = memcpy(meg_new(t->nbytes), memory, t->nbytes);
    size_t i = 0;

    for (int64_t r = 0; r < rows_of(t); r++)
        memset(p + t->first + offset_of(t, r), 0xff, row_nbytes(t));
    while (i < t->nbytes && (unsigned char)p[i] == 0xff)
        i++;
    free(p);
    return i == t->nbytes;
}

/* Round v of an input to its type, and store it in init. */
static void round_tensor(struct op_tensor *x)
{
    size_t offset;

    for (int64_t c = 0; c < cols_of(x); c++) {
        const enum meg_dtype type = column(x, c, &offset);

        for (int64_t r = 0; r < rows_of(x); r++) {
            double *const v = &x->v[r * cols_of(x) + c];
            char *const at = x->init + x->first + offset_of(x, r) + offset;

            store(at, type, *v);
            *v = load(at, type);
        }
    }
}

void op_round(struct op_call *c)
{
    for (int i = 0; i < c->n; i++)
        if (c->tensor[i].v && c->tensor[i].role & MEG_ROLE_IN)
            round_tensor(&c->tensor[i]);
}
