/*
 * gemm.c - GEMM by oneDNN: dnnl_sgemm for f32 and dnnl_gemm_bf16bf16f32 for bf16 operands.  No header of oneDNN
 * declares dnnl_gemm_bf16bf16f32; it takes the arguments of dnnl_sgemm.  oneDNN is loaded on first use: loading takes
 * about 25 ms, and some programs compute no GEMM.
 *
 * oneDNN uses one thread inside an active parallel region, and all threads outside.  Callers call oneDNN inside a
 * parallel region, for one block of their output at a time.  Block sizes depend only on the shape, so the result does
 * not depend on the number of threads.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include "cpu/internal.h"

typedef int sgemm_fn(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                     const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* The first fields of oneDNN's dnnl_version_t, which are the same in versions 2 and 3. */
struct version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime;
};
enum { RUNTIME_SEQUENTIAL = 1, RUNTIME_OPENMP = 2 };

typedef int bgemm_fn(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const uint16_t *a, int64_t lda,
                     const uint16_t *b, int64_t ldb, float beta, float *c, int64_t ldc);

static sgemm_fn *sgemm;
static bgemm_fn *bgemm; /* NULL if the CPU has no bf16 instructions, or oneDNN has no bf16 GEMM or may not use it */

static int multiplies_bf16(void)
{
#if defined __x86_64__
    return __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

/*
 * The address space may be limited (ulimit -v).  When it is exhausted, the dynamic linker, oneDNN's initializers and
 * its code generator crash with SIGSEGV or an uncaught exception.  If there is a limit, load() therefore checks for
 * free address space, grows the stack, and makes oneDNN generate its kernels.  Without a limit, load() omits these
 * steps, which take time.  Loading uses 42 MiB of address space and the first GEMM 6 MiB; attention uses 1.2 MiB of
 * stack.
 */
enum { LOAD_SPACE = 64 << 20, STACK_SPACE = 2 << 20 };

static void check_address_space(void)
{
    void *p = mmap(NULL, LOAD_SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        meg_die(MEG_EFAIL, "out of memory: loading oneDNN takes %d MiB of address space; raise the limit (ulimit -v)",
                LOAD_SPACE >> 20);
    munmap(p, LOAD_SPACE);
}

/* Touch STACK_SPACE bytes of stack.  If the function were inlined, the array would enlarge the frame of its caller. */
static __attribute__((noinline)) void touch_stack(void)
{
    volatile char space[STACK_SPACE];

    for (size_t i = 0; i < sizeof space; i += 4096)
        space[i] = 0;
}

/*
 * Grow this thread's stack now, while address space is free.  Do nothing if the stack limit (ulimit -s) is too small.
 */
static void grow_stack(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur >= 2 * STACK_SPACE)
        touch_stack();
}

/* A signal frame contains the registers: 3.6 KB with AVX-512, 12 KB with AMX. */
enum { SIGNAL_STACK_SPACE = 32 << 10 };

/*
 * Give this thread an alternate signal stack, unless it has one (AddressSanitizer unmaps its own when a thread exits).
 * While oneDNN multiplies, the stack pointer of the thread may point into the heap (oneDNN's issue 4845, fixed in March
 * 2026), where the frame of a signal handler would overwrite other data.  Handlers that return therefore have
 * SA_ONSTACK.
 */
static void set_signal_stack(void)
{
    static _Thread_local char stack[SIGNAL_STACK_SPACE];
    static _Thread_local bool is_done;
    const stack_t ours = { .ss_sp = stack, .ss_size = sizeof stack };
    stack_t current;

    if (is_done)
        return;
    is_done = true;
    if (sigaltstack(NULL, &current) == 0 && (current.ss_flags & SS_DISABLE))
        sigaltstack(&ours, NULL);
}

/* Make oneDNN generate its kernels, which depend on transposition, size, and whether c is added (beta). */
static void generate_code(void)
{
    static const char forms[][2] = { { 'N', 'N' }, { 'N', 'T' }, { 'T', 'N' }, { 'T', 'T' } };
    static const int64_t sizes[] = { 1, 16, 64 };
    static float a[64 * 64], c[64 * 64];
    const uint16_t *a16 = (const void *)a;

    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            for (int beta = 0; beta < 2; beta++) {
                const int64_t n = sizes[k];

                sgemm(forms[f][0], forms[f][1], n, n, n, 1.0f, a, n, a, n, (float)beta, c, n);
                if (bgemm)
                    bgemm(forms[f][0], forms[f][1], n, n, n, 1.0f, a16, n, a16, n, (float)beta, c, n);
            }
}

static bool has_space_limit(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

static void load(void)
{
    const bool is_limited = has_space_limit();
    static const char *const names[] = { "libdnnl.so.2", "libdnnl.so.3", "libdnnl.so" };
    void *lib = NULL, *fn;
    const struct version *(*version)(void);

    set_signal_stack();
    if (is_limited)
        check_address_space();
    for (size_t i = 0; !lib && i < sizeof names / sizeof *names; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        meg_die(MEG_EFAIL,
                "matrix multiplication requires oneDNN, but libdnnl.so.2, libdnnl.so.3 and libdnnl.so "
                "were not found (%s); install Debian's libdnnl-dev or set LD_LIBRARY_PATH",
                dlerror());
    fn = dlsym(lib, "dnnl_version");
    *(void **)&version = fn;
    if (!fn || !(fn = dlsym(lib, "dnnl_sgemm")))
        meg_die(MEG_EFAIL, "libdnnl.so: %s; install oneDNN 2.6 or later", dlerror());
    if (version()->cpu_runtime != RUNTIME_OPENMP && version()->cpu_runtime != RUNTIME_SEQUENTIAL)
        meg_die(MEG_EFAIL,
                "oneDNN %d.%d was built with a threading library other than OpenMP (runtime %u); "
                "install one built with OpenMP",
                version()->major, version()->minor, version()->cpu_runtime);
    *(void **)&sgemm = fn;
    if (is_limited)
        grow_stack();
    if (multiplies_bf16() && (fn = dlsym(lib, "dnnl_gemm_bf16bf16f32"))) {
        const uint16_t one = 0x3f80;
        float c = 0.0f;
        *(void **)&bgemm = fn;
        if (bgemm('N', 'N', 1, 1, 1, 1.0f, &one, 1, &one, 1, 0.0f, &c, 1) != 0 || c != 1.0f)
            bgemm = NULL; /* the environment variable ONEDNN_MAX_CPU_ISA excludes bf16 */
    }
    if (is_limited)
        generate_code();
}

void meg_cpu_gemm_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
}

bool meg_cpu_has_bf16_gemm(void)
{
    return bgemm != NULL;
}

void meg_cpu_gemm(const struct gemm *g)
{
    const struct meg_mat a = g->a, b = g->b;
    int status;

    set_signal_stack();
    if (a.dtype == MEG_DTYPE_BF16)
        status = bgemm(g->ta, g->tb, g->m, g->n, g->k, 1.0f, a.p, a.ld, b.p, b.ld, g->beta, g->c, g->ldc);
    else
        status = sgemm(g->ta, g->tb, g->m, g->n, g->k, 1.0f, a.p, a.ld, b.p, b.ld, g->beta, g->c, g->ldc);
    if (status != 0)
        meg_die(MEG_EFAIL,
                "oneDNN could not multiply %" PRId64 "x%" PRId64 " by %" PRId64 "x%" PRId64
                " (status %d); memory may be exhausted",
                g->m, g->k, g->k, g->n, status);
}
