/*
 * cpu.c - select the table of operations for this machine, and implement the operations that need no vector code:
 * memory, copies, streams and events, plans of linear layers, logits_rows, and step_finish.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/mem.h"
#include "cpu/internal.h"
#include "tensor/check_ops.h"
#include "tensor/trace_ops.h"

extern const struct meg_ops meg_cpu_ops_base;
#ifdef MEG_HAVE_ISA_V3
extern const struct meg_ops meg_cpu_ops_v3;
#endif
#ifdef MEG_HAVE_ISA_V4
extern const struct meg_ops meg_cpu_ops_v4;
#endif

/*
 * Clang before 18 does not accept the names of the x86-64 levels in __builtin_cpu_supports.  Test for the main features
 * of each level instead.
 */
#if defined __clang__ && __clang_major__ < 18
#    define HAS_V3 (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
#    define HAS_V4                                                                                                     \
        (HAS_V3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&                          \
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&                                   \
         __builtin_cpu_supports("avx512vl"))
#else
#    define HAS_V3 __builtin_cpu_supports("x86-64-v3")
#    define HAS_V4 __builtin_cpu_supports("x86-64-v4")
#endif

const struct meg_ops *meg_cpu_level(int level)
{
    switch (level) {
#ifdef MEG_HAVE_ISA_V4
    case MEG_CPU_V4: return HAS_V4 ? &meg_cpu_ops_v4 : NULL;
#endif
#ifdef MEG_HAVE_ISA_V3
    case MEG_CPU_V3: return HAS_V3 ? &meg_cpu_ops_v3 : NULL;
#endif
    case MEG_CPU_BASE: return &meg_cpu_ops_base;
    default: return NULL;
    }
}

const struct meg_ops *meg_cpu_ops(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const struct meg_ops *t = NULL;
    pthread_once(&once, meg_cpu_bind_threads);
    for (int l = 0; !t; l++)
        t = meg_cpu_level(l);
#ifdef MEG_DEBUG
    t = meg_check_ops(t);
#endif
    return meg_trace_ops(t);
}

/* Return the largest multiple of 64 rows whose f32 logits take at most 100 MiB, but at least 64 rows. */
int64_t meg_cpu_logits_rows(int64_t v)
{
    return meg_max64((INT64_C(25) << 20) / v / 64 * 64, 64);
}

size_t meg_cpu_free_nbytes(void)
{
    return 0;
}

/*
 * Allocate zeroed memory.  A buffer of at least 4 MiB uses huge pages if the kernel allows it.  All threads zero such a
 * buffer, which distributes its pages over the NUMA nodes (first touch).
 */
void *meg_cpu_alloc(size_t nbytes)
{
    const size_t huge = (size_t)2 << 20, align = nbytes >= 2 * huge ? huge : 64;
    char *p;

    nbytes = nbytes ? nbytes : 1; /* aligned_alloc may return NULL for 0 bytes */
    if (nbytes > SIZE_MAX - align || !(p = aligned_alloc(align, (nbytes + align - 1) / align * align)))
        return NULL;
    if (align == huge)
        madvise(p, nbytes, MADV_HUGEPAGE);
#pragma omp parallel for schedule(static) if (align == huge)
    for (size_t k = 0; k < nbytes; k += huge)
        memset(p + k, 0, nbytes - k < huge ? nbytes - k : huge);
    return p;
}

void meg_cpu_copy(struct meg_stream *st, void *dst, const void *src, size_t nbytes)
{
    (void)st;
    memcpy(dst, src, nbytes);
}

void meg_cpu_zero(struct meg_stream *st, void *dev, size_t nbytes)
{
    (void)st;
    memset(dev, 0, nbytes);
}

void meg_cpu_step_finish(struct meg_stream *st, const struct meg_step_finish_args *a)
{
    (void)st;
    meg_step_finish(a->record, a->conf);
}

struct meg_stream *meg_cpu_stream_create(const char *name)
{
    (void)name;
    return NULL;
}

void meg_cpu_stream_destroy(struct meg_stream *st)
{
    (void)st;
}

struct meg_event *meg_cpu_event_create(void)
{
    return NULL;
}

void meg_cpu_event_destroy(struct meg_event *event)
{
    (void)event;
}

void meg_cpu_event_record(struct meg_stream *st, struct meg_event *event)
{
    (void)st, (void)event;
}

bool meg_cpu_event_is_done(struct meg_event *event)
{
    (void)event;
    return true;
}

void meg_cpu_copy_heads(struct meg_stream *st, const struct meg_copy_heads_args *a)
{
    const size_t size = meg_dtype_size(a->src.dtype);
    (void)st;
    MEG_ASSERT_EQ(a->dst.dtype, a->src.dtype);
#pragma omp parallel for collapse(2) schedule(static) if (a->s * a->b * a->g * a->d > 1 << 16)
    for (int64_t t = 0; t < a->s; t++)
        for (int64_t i = 0; i < a->b; i++)
            for (int64_t j = 0; j < a->g; j++) {
                const int64_t to =
                    t * a->dst.ld_s + (a->dst_offset ? a->dst_offset[i] : i * a->dst.ld_b) + j * a->dst.ld_g;
                const int64_t from = t * a->src.ld_s + i * a->src.ld_b + j * a->src.ld_g;
                memcpy((char *)a->dst.p + to * (int64_t)size, (char *)a->src.p + from * (int64_t)size,
                       (size_t)a->d * size);
            }
}

struct meg_linear_plan *meg_cpu_linear_create(const struct meg_linear_desc *desc, const char **why)
{
    const enum meg_dtype types[] = { desc->x, desc->w, desc->y, desc->dw };
    struct meg_linear_plan *l;

    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i] > MEG_DTYPE_F16) {
            *why = "the CPU supports only fp32, bf16 and fp16";
            return NULL;
        }
    l = meg_new(sizeof *l);
    l->desc = *desc;
    meg_cpu_gemm_load();
    return l;
}

void meg_cpu_linear_destroy(struct meg_linear_plan *l)
{
    free(l);
}
