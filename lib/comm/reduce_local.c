/*
 * reduce_local.c - local reductions: sums and maxima of the parts of all ranks in rank order; bf16 and f16 are reduced
 * in f32.
 */
#include "comm/collectives.h"
#include "tensor/half.h"

#define REDUCE(name, type, acc_type, load, store)                                                                      \
    static void name(type *acc, const type *parts, int64_t n, int size, enum meg_reduce_op op)                         \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            acc_type a = load(parts[i]);                                                                               \
                                                                                                                       \
            for (int r = 1; r < size; r++) {                                                                           \
                const acc_type b = load(parts[r * n + i]);                                                             \
                                                                                                                       \
                a = op == MEG_REDUCE_SUM ? a + b : b > a || b != b ? b : a;                                            \
            }                                                                                                          \
            acc[i] = store(a);                                                                                         \
        }                                                                                                              \
    }
REDUCE(reduce_f32, float, float, , )
REDUCE(reduce_f64, double, double, , )
REDUCE(reduce_bf16, uint16_t, float, meg_from_bf16, meg_to_bf16)
REDUCE(reduce_f16, uint16_t, float, meg_from_f16, meg_to_f16)
REDUCE(reduce_i32, int32_t, int32_t, , )
REDUCE(reduce_i64, int64_t, int64_t, , )

void meg_reduce_local(void *acc, const void *parts, int64_t n, int size, enum meg_dtype t, enum meg_reduce_op op)
{
    switch (t) {
    case MEG_DTYPE_F32: reduce_f32(acc, parts, n, size, op); break;
    case MEG_DTYPE_F64: reduce_f64(acc, parts, n, size, op); break;
    case MEG_DTYPE_BF16: reduce_bf16(acc, parts, n, size, op); break;
    case MEG_DTYPE_F16: reduce_f16(acc, parts, n, size, op); break;
    case MEG_DTYPE_I32: reduce_i32(acc, parts, n, size, op); break;
    case MEG_DTYPE_I64: reduce_i64(acc, parts, n, size, op); break;
    case MEG_DTYPES: MEG_ASSERT(!"a type");
    }
}
