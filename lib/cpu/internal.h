/*
 * internal.h - declarations private to lib/cpu: function names with a suffix per instruction set, operations, type
 * conversions and GEMM.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/int64.h"
#include "cpu/cpu.h"

/*
 * A file marked "isa: baseline v3 v4" is compiled once for each x86-64 level, with MEG_ISA set to base, v3 or v4; on
 * other processors it is compiled once, as base.  MEG_FN(name) is meg_cpu_NAME_ISA, for example meg_cpu_rope_v3.
 */
#define MEG_PASTE_(a, b, c) a##b##_##c
#define MEG_PASTE(a, b, c) MEG_PASTE_(a, b, c)
#define MEG_FN(name) MEG_PASTE(meg_cpu_, name, MEG_ISA)

/* Instruction-set levels, best first; meg_cpu_level returns NULL if the build or the machine lacks the level. */
enum { MEG_CPU_V4, MEG_CPU_V3, MEG_CPU_BASE, MEG_CPU_LEVELS };
const struct meg_ops *meg_cpu_level(int level);

/*
 * A product c [m,n] = op(a) op(b) + beta c with op(a) [m,k] and op(b) [k,n], row-major; beta is 0 or 1.  op(x) is x for
 * 'N' and the transpose of x for 'T'.  The numbers of rows and columns in a and b are not used.
 */
struct gemm {
    char ta, tb;
    int64_t m, n, k;
    struct meg_mat a, b;
    float beta, *c;
    int64_t ldc;
};

/* Return f32 rows that begin ld elements apart, as an operand of a product. */
static inline struct meg_mat f32_operand(const float *p, int64_t ld)
{
    return (struct meg_mat){ .p = (void *)p, .dtype = MEG_DTYPE_F32, .ld = ld };
}

/* Return whether this CPU has bf16 instructions, and oneDNN has a bf16 GEMM that may use them. */
bool meg_cpu_has_bf16_gemm(void);
/*
 * Compute a product by one thread.  a and b are both f32 or, if meg_cpu_has_bf16_gemm is true, both bf16.  Call
 * meg_cpu_gemm_load first, and call this function only inside a parallel region (gemm.c).  If oneDNN fails, end the
 * process with a message.
 */
void meg_cpu_gemm(const struct gemm *g);
/* Load oneDNN once.  End the process with a message if no usable oneDNN is installed. */
void meg_cpu_gemm_load(void);

void meg_cpu_bind_threads(void);

static inline float *f32(struct meg_mat m)
{
    MEG_ASSERT_EQ(m.dtype, MEG_DTYPE_F32);
    MEG_ASSERT_LE(m.cols, m.ld);
    return (float *)m.p;
}

/* Return the address of element (r, c) of m. */
static inline void *element(struct meg_mat m, int64_t r, int64_t c)
{
    return (char *)m.p + (r * m.ld + c) * (m.dtype == MEG_DTYPE_F32 ? 4 : 2);
}

/* Return a vector of n elements as a matrix of one row. */
static inline struct meg_mat row_vector(const void *p, enum meg_dtype t, int64_t n)
{
    const struct meg_mat m = { (void *)p, t, 1, n, n };

    return m;
}

struct meg_linear_plan {
    struct meg_linear_desc desc;
};

/* Declare the operations that need no vector code, with the types of struct meg_ops. */
#define OP(name) __typeof__(*((struct meg_ops *)0)->name) meg_cpu_##name
OP(logits_rows);
OP(free_nbytes);
OP(alloc);
OP(zero);
OP(copy_heads);
OP(linear_create);
OP(linear_destroy);
OP(sample);
OP(sample_nbytes);
OP(stream_create);
OP(stream_destroy);
OP(event_create);
OP(event_destroy);
OP(step_finish);
OP(event_record);
OP(event_is_done);
#undef OP
void meg_cpu_copy(struct meg_stream *st, void *dst, const void *src, size_t nbytes);

#ifdef MEG_ISA
/* Declare the operations of this level, with the types of struct meg_ops. */
#    define OP(name) __typeof__(*((struct meg_ops *)0)->name) MEG_FN(name);
MEG_ISA_OPS(OP)
OP(attn_bwd_nbytes)
#    undef OP

/* Convert n elements from type t to f32, or from f32 to type t with rounding to nearest even. */
void MEG_FN(to_f32)(float *out, const void *p, enum meg_dtype t, int64_t n);
void MEG_FN(from_f32)(void *out, enum meg_dtype t, const float *p, int64_t n);

/*
 * Compute a product by one thread; a and b are f32, bf16 or f16.  Call the function only inside a parallel region.
 * Unless a and b are both f32, m must be at most GEMM_BLOCK_M and n at most GEMM_BLOCK_N (gemm_mixed.c).
 */
void MEG_FN(gemm_block)(const struct gemm *g);
enum { GEMM_BLOCK_M = 256, GEMM_BLOCK_N = 384, GEMM_SKINNY_M = 16 };

/*
 * Compute row 0 of out, the column sums of x.  If `accumulate` is true, add them to row 0 instead.  Rows are summed in
 * blocks of 64, and the sums of the blocks are added in order.
 */
void MEG_FN(column_sums)(struct meg_mat out, struct meg_mat x, bool accumulate);

extern const struct meg_ops MEG_FN(ops);
#endif
