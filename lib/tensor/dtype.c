/* dtype.c - names and sizes of data types. */
#include "base/err.h"
#include "tensor/dtype.h"

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
