/* dtype.c - names and sizes of data types, and conversion on the host. */
#include "tensor/dtype.h"
#include <string.h>
#include "base/err.h"
#include "tensor/half.h"

static const struct {
    const char *name;
    size_t size;
} types[MEG_DTYPES] = {
    [MEG_DTYPE_F32] = { "F32", 4 }, [MEG_DTYPE_BF16] = { "BF16", 2 }, [MEG_DTYPE_F16] = { "F16", 2 },
    [MEG_DTYPE_F64] = { "F64", 8 }, [MEG_DTYPE_I32] = { "I32", 4 },   [MEG_DTYPE_I64] = { "I64", 8 },
};

size_t meg_dtype_size(enum meg_dtype t)
{
    MEG_ASSERT_LT(t, MEG_DTYPES);
    return types[t].size;
}

const char *meg_dtype_name(enum meg_dtype t)
{
    MEG_ASSERT_LT(t, MEG_DTYPES);
    return types[t].name;
}

void meg_dtype_from_f32(void *out, enum meg_dtype t, const float *in, int64_t n)
{
    uint16_t *h = out;

    MEG_ASSERT(t == MEG_DTYPE_F32 || t == MEG_DTYPE_BF16 || t == MEG_DTYPE_F16);
    if (t == MEG_DTYPE_F32)
        memmove(out, in, (size_t)n * sizeof *in);
    for (int64_t i = 0; t != MEG_DTYPE_F32 && i < n; i++)
        h[i] = t == MEG_DTYPE_F16 ? meg_to_f16(in[i]) : meg_to_bf16(in[i]);
}
