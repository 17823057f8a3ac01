/* dtype.h - data types of tensor elements, in memory and in files. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/decls.h"

MEG_BEGIN_DECLS

enum meg_dtype {
    MEG_DTYPE_F32,
    MEG_DTYPE_BF16,
    MEG_DTYPE_F16,
    MEG_DTYPE_F64,
    MEG_DTYPE_I32,
    MEG_DTYPE_I64,
    MEG_DTYPES
};

/* Return the size of one element in bytes. */
size_t meg_dtype_size(enum meg_dtype t);

/* Return the address of element i of p. */
static inline char *meg_element(const void *p, int64_t i, enum meg_dtype t)
{
    return (char *)p + (size_t)i * meg_dtype_size(t);
}

/* Convert `in` [n] to f32, bf16 or f16, rounding to nearest even; `out` may equal `in`. */
void meg_dtype_from_f32(void *out, enum meg_dtype t, const float *in, int64_t n);

/* Return the name of the type in safetensors files: "F32", "BF16", ... */
const char *meg_dtype_name(enum meg_dtype t);

MEG_END_DECLS
