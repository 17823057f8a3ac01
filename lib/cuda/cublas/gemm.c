/*
 * gemm.c - plans of matrix products.
 *
 * cuBLASLt's matrices are column-major, so it computes the transpose of a product: a row-major d = a b is a
 * column-major D = A B with A = b, B = a, D = d.
 */
#include "cuda/cublas/gemm.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "cuda/cublas/gemm_cache.h"
#include "cuda/cublas/lib.h"
#include "cuda/internal.h"
#include "tensor/half.h"

/* Call function f of cuBLASLt.  A failure ends the process. */
#define LT(f, ...) check(meg_cublaslt.f(__VA_ARGS__), #f)

static void check(cublasStatus_t status, const char *f)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return;
    meg_cuda_check_earlier(f);
    meg_die(MEG_EFAIL, "GPU %d (%s): %s failed: %s", meg_cuda_device.index, meg_cuda_device.name, f,
            meg_cublaslt.cublasLtGetStatusString(status));
}

static const size_t workspace_nbytes = (size_t)32 << 20; /* the size that NVIDIA recommends for Hopper */

/* ---- keys ---- */

/*
 * The properties of a product on which the choice of its algorithm depends.  The struct has no padding, so that its
 * bytes can be compared and hashed.
 */
struct key {
    int64_t m, n, k, lda, ldb, ldd, ld_pre;
    uint8_t type, type_d, type_pre, is_a_transposed, is_b_transposed, accumulate;
    uint8_t act, grad_act, has_bias, has_pre, has_dbias;
    uint8_t align_a, align_b, align_d, align_pre, align_bias; /* alignments of pointers, at most 16 bytes */
};
_Static_assert(sizeof(struct key) == 7 * 8 + 16, "struct key has padding");

static uint8_t alignment(const void *p)
{
    const uintptr_t low = ((uintptr_t)p | 16) & -((uintptr_t)p | 16);

    return (uint8_t)low;
}

static struct key key_of(const struct meg_gemm *g)
{
    return (struct key){
        .m = g->d.rows,
        .n = g->d.cols,
        .k = g->is_a_transposed ? g->a.rows : g->a.cols,
        .lda = g->a.ld,
        .ldb = g->b.ld,
        .ldd = g->d.ld,
        .ld_pre = g->pre.p ? g->pre.ld : 0,
        .type = (uint8_t)g->a.dtype,
        .type_d = (uint8_t)g->d.dtype,
        .type_pre = g->pre.p ? (uint8_t)g->pre.dtype : 0,
        .is_a_transposed = g->is_a_transposed,
        .is_b_transposed = g->is_b_transposed,
        .accumulate = g->accumulate,
        .act = (uint8_t)g->act,
        .grad_act = (uint8_t)g->grad_act,
        .has_bias = g->bias != NULL,
        .has_pre = g->pre.p != NULL,
        .has_dbias = g->dbias != NULL,
        .align_a = alignment(g->a.p),
        .align_b = alignment(g->b.p),
        .align_d = alignment(g->d.p),
        .align_pre = alignment(g->pre.p),
        .align_bias = alignment(g->bias ? g->bias : g->dbias),
    };
}

enum { TEXT_NBYTES = 256 };

/* Write a key as text, for messages and the cache. */
static void print_key(char text[TEXT_NBYTES], const struct key *k)
{
    static const char *const acts[MEG_ACTS] = { "",      " gelu_tanh", " gelu_erf",   " tanh",
                                                " relu", " silu",      " quick_gelu", " squared_relu" };

    snprintf(text, TEXT_NBYTES,
             "[%" PRId64 ",%" PRId64 "] k=%" PRId64 " %c%c %s>%s ld=%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
             " align=%d,%d,%d,%d,%d%s%s%s%s%s%s%s%s",
             k->m, k->n, k->k, k->is_a_transposed ? 'T' : 'N', k->is_b_transposed ? 'T' : 'N',
             meg_dtype_name((enum meg_dtype)k->type), meg_dtype_name((enum meg_dtype)k->type_d), k->lda, k->ldb, k->ldd,
             k->ld_pre, k->align_a, k->align_b, k->align_d, k->align_pre, k->align_bias, k->accumulate ? " acc" : "",
             k->has_bias ? " bias" : "", acts[k->act], k->grad_act ? " grad" : "", acts[k->grad_act],
             k->has_pre ? " pre " : "", k->has_pre ? meg_dtype_name((enum meg_dtype)k->type_pre) : "",
             k->has_dbias ? " dbias" : "");
}

/* ---- variants: cuBLASLt computes the complete epilogue of a product, a part of it, or none of it ---- */

struct variant {
    cublasLtEpilogue_t epilogue;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d; /* column-major */
};

/* The bit of cublasLtEpilogue_t with which GELU also writes pre. */
enum { AUX_BIT = CUBLASLT_EPILOGUE_GELU_AUX & ~CUBLASLT_EPILOGUE_GELU };

/* Return whether cuBLASLt's GELU may read or write pre: its type is that of d, and its rows are aligned. */
static bool has_usable_pre(const struct meg_gemm *g)
{
    return g->pre.dtype == g->d.dtype && g->pre.ld % 8 == 0 && alignment(g->pre.p) == 16;
}

/* Return whether p, a vector of the dtype of m or NULL, can be the bias or the bias gradient of a cuBLASLt epilogue. */
static bool is_usable_vector(const void *p, const struct meg_gemm *g, struct meg_mat m)
{
    return p && m.dtype == g->d.dtype && alignment(p) == 16;
}

enum { MAX_VARIANTS = 3 };

/*
 * List the epilogues that cuBLASLt may compute for a product, from the most complete one to none, and return their
 * number.  cuBLASLt's GELU is the tanh form, with an approximate tanh, so it is not used for f32; it is not fused with
 * a product that accumulates, whose sum is in pre.
 */
static int list_epilogues(cublasLtEpilogue_t list[MAX_VARIANTS], const struct meg_gemm *g)
{
    const bool has_gelu = g->d.dtype != MEG_DTYPE_F32 && !g->accumulate && (!g->pre.p || has_usable_pre(g));
    const bool has_bias = is_usable_vector(g->bias, g, g->b);
    int n = 0;

    if (g->act == MEG_ACT_GELU_TANH && has_gelu && (has_bias || !g->bias))
        list[n++] = (cublasLtEpilogue_t)(CUBLASLT_EPILOGUE_GELU | (g->pre.p ? AUX_BIT : 0) |
                                         (g->bias ? CUBLASLT_EPILOGUE_BIAS : 0));
    if (has_bias)
        list[n++] = CUBLASLT_EPILOGUE_BIAS;
    if (g->grad_act == MEG_ACT_GELU_TANH && has_gelu)
        list[n++] = CUBLASLT_EPILOGUE_DGELU;
    if (is_usable_vector(g->dbias, g, g->d) && !g->accumulate)
        list[n++] = CUBLASLT_EPILOGUE_BGRADB;
    list[n++] = CUBLASLT_EPILOGUE_DEFAULT;
    return n;
}

/* Return the matrix that cuBLASLt writes: pre if the activation is computed from it afterwards, otherwise d. */
static struct meg_mat output_of(const struct meg_gemm *g, cublasLtEpilogue_t epilogue)
{
    return g->act != MEG_ACT_NONE && g->pre.p && !(epilogue & CUBLASLT_EPILOGUE_GELU) ? g->pre : g->d;
}

static cudaDataType_t cuda_type(enum meg_dtype t)
{
    return t == MEG_DTYPE_F32 ? CUDA_R_32F : t == MEG_DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static cublasLtMatrixLayout_t layout_of(struct meg_mat m)
{
    cublasLtMatrixLayout_t layout;

    LT(cublasLtMatrixLayoutCreate, &layout, cuda_type(m.dtype), (uint64_t)m.cols, (uint64_t)m.rows, m.ld);
    return layout;
}

#define SET(op, attribute, value)                                                                                      \
    LT(cublasLtMatmulDescSetAttribute, op, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value))

static void set_pointers(const struct variant *v, const struct meg_gemm *g)
{
    const void *vector = g->bias ? g->bias : g->dbias;

    if (v->epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB))
        SET(v->op, BIAS_POINTER, vector);
    if (v->epilogue & AUX_BIT)
        SET(v->op, EPILOGUE_AUX_POINTER, g->pre.p);
}

static struct variant variant_new(const struct meg_gemm *g, cublasLtEpilogue_t epilogue)
{
    struct variant v = { epilogue, .a = layout_of(g->b), .b = layout_of(g->a), .d = layout_of(output_of(g, epilogue)) };
    const cublasOperation_t transposed = CUBLAS_OP_T;

    LT(cublasLtMatmulDescCreate, &v.op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (g->is_b_transposed)
        SET(v.op, TRANSA, transposed);
    if (g->is_a_transposed)
        SET(v.op, TRANSB, transposed);
    SET(v.op, EPILOGUE, epilogue);
    if (epilogue & AUX_BIT)
        SET(v.op, EPILOGUE_AUX_LD, g->pre.ld);
    set_pointers(&v, g);
    return v;
}

static void variant_free(struct variant *v)
{
    LT(cublasLtMatmulDescDestroy, v->op);
    LT(cublasLtMatrixLayoutDestroy, v->a);
    LT(cublasLtMatrixLayoutDestroy, v->b);
    LT(cublasLtMatrixLayoutDestroy, v->d);
}

/* ---- execution ---- */

static cublasStatus_t multiply(cudaStream_t stream, const struct variant *v, const cublasLtMatmulAlgo_t *algo,
                               const struct meg_gemm *g, void *workspace)
{
    const float one = 1, beta = g->accumulate ? 1 : 0;
    void *out = output_of(g, v->epilogue).p;

    set_pointers(v, g);
    MEG_CUDA_QUEUE_HERE();
    return meg_cublaslt.cublasLtMatmul(meg_cublaslt.handle, v->op, &one, g->b.p, v->a, g->a.p, v->b, &beta, out, v->d,
                                       out, v->d, algo, workspace, workspace_nbytes, stream);
}

/* Queue the parts of the epilogue that cuBLASLt does not compute, except dbias, which meg_gemm computes. */
static void queue_epilogue(struct meg_stream *st, const struct meg_gemm *g, cublasLtEpilogue_t epilogue)
{
    const struct meg_mat out = output_of(g, epilogue);
    const struct meg_act_bwd_args act_bwd = { .dx = g->d, .dy = g->d, .pre = g->pre, .act = g->grad_act };

    if (g->bias && !(epilogue & CUBLASLT_EPILOGUE_BIAS))
        meg_cuda_add_bias(st, out, g->bias, g->b.dtype);
    if (g->act != MEG_ACT_NONE && !(epilogue & CUBLASLT_EPILOGUE_GELU))
        meg_cuda_act_fwd(st, g->d, out, g->act);
    if (g->grad_act != MEG_ACT_NONE && epilogue != CUBLASLT_EPILOGUE_DGELU)
        meg_cuda_act_bwd(st, &act_bwd);
}

/* ---- timing ---- */

struct candidate {
    const struct variant *variant;
    cublasLtMatmulAlgo_t algo;
    float time_ms;
};

enum { MAX_PROPOSALS = 16, MAX_CANDIDATES = MAX_VARIANTS * MAX_PROPOSALS, WARM_UPS = 1, TIMED_ROUNDS = 3 };

/*
 * Candidates are timed on a stream of their own and on their own memory, so that the host never waits for a collective
 * that other ranks have not started yet.  For the same reason, memory is allocated and freed without waiting for other
 * streams.
 */
static struct {
    cudaStream_t stream;
    cudaEvent_t event[MAX_CANDIDATES + 1];
} timer;

static void create_timer(void)
{
    if (timer.stream)
        return;
    CUDA(cudaStreamCreateWithFlags(&timer.stream, cudaStreamNonBlocking));
    for (int i = 0; i <= MAX_CANDIDATES; i++)
        CUDA(cudaEventCreateWithFlags(&timer.event[i], cudaEventDefault));
}

static size_t nbytes_of(struct meg_mat m)
{
    return m.p ? (size_t)(m.rows * m.ld) * meg_dtype_size(m.dtype) : 0;
}

/*
 * Allocate a block of memory that consists of *nbytes bytes for operands of the sizes in *g, and a workspace.  Set the
 * pointers of *g, a copy of the caller's product, to the operands.  Return the block, or NULL if it cannot be
 * allocated.
 */
static char *alloc_operands(struct meg_gemm *g, size_t *nbytes)
{
    const size_t nvector = g->bias ? (size_t)g->d.cols : g->dbias ? (size_t)g->d.rows : 0;
    const size_t part[] = { nbytes_of(g->a), nbytes_of(g->b), nbytes_of(g->d), nbytes_of(g->pre), nvector * 4 };
    enum { PARTS = sizeof part / sizeof *part };
    size_t offset[PARTS];
    char *base;

    *nbytes = 0;
    for (int i = 0; i < PARTS; i++) {
        offset[i] = *nbytes;
        *nbytes += (part[i] + 255) / 256 * 256;
    }
    if (cudaMallocAsync((void **)&base, *nbytes + workspace_nbytes, timer.stream) != cudaSuccess) {
        (void)cudaGetLastError(); /* clear the error */
        return NULL;
    }
    g->a.p = base + offset[0];
    g->b.p = base + offset[1];
    g->d.p = base + offset[2];
    if (g->pre.p)
        g->pre.p = base + offset[3];
    if (g->bias)
        g->bias = base + offset[4];
    if (g->dbias)
        g->dbias = base + offset[4];
    return base;
}

/*
 * Fill device memory with bf16 numbers in [-1, 1), which are also valid as f16 and f32.  GPUs multiply zeros faster, so
 * zeros would give wrong times.
 */
static void fill_random(char *p, size_t nbytes)
{
    enum { N = 1 << 19 };
    static uint16_t *numbers;
    size_t done = nbytes < N * sizeof *numbers ? nbytes : N * sizeof *numbers;
    uint32_t x = 1;

    if (!numbers) {
        numbers = meg_new(N * sizeof *numbers);
        for (int i = 0; i < N; i++) {
            x = x * 1664525 + 1013904223;
            numbers[i] = meg_to_bf16((float)(int32_t)x * 0x1p-31f);
        }
    }
    CUDA(cudaMemcpyAsync(p, numbers, done, cudaMemcpyHostToDevice, timer.stream));
    for (size_t n; done < nbytes; done += n) {
        n = done < nbytes - done ? done : nbytes - done;
        CUDA(cudaMemcpyAsync(p + done, p, n, cudaMemcpyDeviceToDevice, timer.stream));
    }
}

/*
 * Queue a candidate, and return whether cuBLASLt accepts it.  The sums for dbias, which need the scratch memory of a
 * stream, are replaced by a copy with as many memory accesses.
 */
static bool queue_candidate(const struct candidate *c, const struct meg_gemm *g, void *workspace)
{
    const cublasLtEpilogue_t epilogue = c->variant->epilogue;
    const size_t half = nbytes_of(g->a) / 2;

    if (multiply(timer.stream, c->variant, &c->algo, g, workspace) != CUBLAS_STATUS_SUCCESS)
        return false;
    queue_epilogue((struct meg_stream *)timer.stream, g, epilogue);
    if (g->dbias && epilogue != CUBLASLT_EPILOGUE_BGRADB)
        CUDA(cudaMemcpyAsync(g->a.p, (char *)g->a.p + half, half, cudaMemcpyDeviceToDevice, timer.stream));
    return true;
}

/* Set the time of each candidate to its fastest round, or to infinity if cuBLASLt rejects it. */
static void time_rounds(struct candidate *c, int n, const struct meg_gemm *g, void *workspace)
{
    bool is_accepted[MAX_CANDIDATES];
    float ms;

    for (int i = 0; i < n; i++)
        c[i].time_ms = INFINITY;
    for (int round = 0; round < WARM_UPS + TIMED_ROUNDS; round++) {
        CUDA(cudaEventRecord(timer.event[0], timer.stream));
        for (int i = 0; i < n; i++) {
            is_accepted[i] = queue_candidate(&c[i], g, workspace);
            CUDA(cudaEventRecord(timer.event[i + 1], timer.stream));
        }
        CUDA(cudaStreamSynchronize(timer.stream));
        for (int i = 0; i < n && round >= WARM_UPS; i++) {
            CUDA(cudaEventElapsedTime(&ms, timer.event[i], timer.event[i + 1]));
            if (is_accepted[i] && ms < c[i].time_ms)
                c[i].time_ms = ms;
        }
    }
}

/* Return the fastest candidate; NULL if there is too little memory to time them, or cuBLASLt rejects all. */
static const struct candidate *find_fastest(struct candidate *c, int n, const struct meg_gemm *operands,
                                            const char *text)
{
    struct meg_gemm g = *operands;
    int best = 0;
    size_t nbytes;
    char *base;

    create_timer();
    base = alloc_operands(&g, &nbytes);
    if (!base) {
        meg_debug("GEMM %s: not timed, because %zu MiB of device memory are not free", text,
                  (nbytes + workspace_nbytes) >> 20);
        return NULL;
    }
    fill_random(base, nbytes);
    time_rounds(c, n, &g, base + nbytes);
    CUDA(cudaFreeAsync(base, timer.stream));
    CUDA(cudaStreamSynchronize(timer.stream)); /* return the memory to the driver */
    for (int i = 1; i < n; i++)
        if (c[i].time_ms < c[best].time_ms)
            best = i;
    meg_debug("GEMM %s: algorithm %d of %d, epilogue %d, %.1f us (first: %.1f us)", text, best, n,
              (int)c[best].variant->epilogue, 1e3 * c[best].time_ms, 1e3 * c[0].time_ms);
    return c[best].time_ms < INFINITY ? &c[best] : NULL;
}

/* ---- plans ---- */

struct plan {
    struct plan *next; /* next plan in the same hash bucket */
    struct key key;
    struct variant variant;
    cublasLtMatmulAlgo_t algo;
};

enum { BUCKETS = 1024 };
static struct plan *plans[BUCKETS];

static cublasLtMatmulPreference_t preference_new(const struct key *k)
{
    const uint64_t nbytes = workspace_nbytes;
    const uint32_t a = k->align_b, b = k->align_a, d = k->align_d < k->align_pre ? k->align_d : k->align_pre;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* for split-K */
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t nbytes;
    } attributes[] = {
        { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &nbytes, sizeof nbytes },
        { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d, sizeof d },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof d },
    };
    cublasLtMatmulPreference_t p;

    LT(cublasLtMatmulPreferenceCreate, &p);
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        LT(cublasLtMatmulPreferenceSetAttribute, p, attributes[i].attribute, attributes[i].value, attributes[i].nbytes);
    return p;
}

/* Write the algorithms that cuBLASLt proposes for a variant to c, at most n, and return their number. */
static int list_candidates(struct candidate *c, int n, const struct variant *v, const struct key *key)
{
    const cublasLtMatmulPreference_t preference = preference_new(key);
    cublasLtMatmulHeuristicResult_t r[MAX_PROPOSALS];
    int nresults = 0, ncandidates = 0;

    if (meg_cublaslt.cublasLtMatmulAlgoGetHeuristic(meg_cublaslt.handle, v->op, v->a, v->b, v->d, v->d, preference, n,
                                                    r, &nresults) != CUBLAS_STATUS_SUCCESS)
        nresults = 0;
    for (int i = 0; i < nresults; i++)
        if (r[i].state == CUBLAS_STATUS_SUCCESS && r[i].workspaceSize <= workspace_nbytes)
            c[ncandidates++] = (struct candidate){ .variant = v, .algo = r[i].algo };
    LT(cublasLtMatmulPreferenceDestroy, preference);
    return ncandidates;
}

/* Set *out to the stored choice and return true.  Return false if there is none that this GPU can execute. */
static bool find_stored(struct candidate *out, const struct variant *v, int nvariants, const char *text)
{
    struct meg_gemm_choice stored;
    cublasLtMatmulHeuristicResult_t r;

    if (!meg_gemm_cache_find(&stored, text))
        return false;
    for (int i = 0; i < nvariants; i++)
        if (v[i].epilogue == stored.epilogue &&
            meg_cublaslt.cublasLtMatmulAlgoCheck(meg_cublaslt.handle, v[i].op, v[i].a, v[i].b, v[i].d, v[i].d,
                                                 &stored.algo, &r) == CUBLAS_STATUS_SUCCESS &&
            r.workspaceSize <= workspace_nbytes) {
            *out = (struct candidate){ .variant = &v[i], .algo = stored.algo };
            return true;
        }
    return false;
}

/*
 * Return whether to time candidates for a key.  They are not timed in deterministic mode, while st is captured into a
 * CUDA graph, or if there are four plans that differ from the key at most in the number of tokens: in inference, this
 * number changes with each prompt.
 */
static bool is_timed(struct meg_stream *st, const struct key *key)
{
    enum cudaStreamCaptureStatus capture;
    int n = 0;

    if (meg_cuda_device.is_deterministic)
        return false;
    CUDA(cudaStreamIsCapturing(meg_cuda_stream(st), &capture));
    if (capture != cudaStreamCaptureStatusNone)
        return false;
    for (int i = 0; i < BUCKETS; i++)
        for (const struct plan *p = plans[i]; p; p = p->next) {
            struct key other = p->key;

            if (key->is_a_transposed)
                other.k = key->k;
            else
                other.m = key->m;
            n += memcmp(&other, key, sizeof other) == 0;
        }
    return n < 4;
}

/*
 * Return the stored choice for the key, or choose among the algorithms that cuBLASLt proposes for the variants, and
 * store the choice if it was timed.  If cuBLASLt proposes none, end the process with a message.
 */
static struct candidate choose(struct meg_stream *st, const struct meg_gemm *g, const struct key *key,
                               const struct variant *v, int nvariants)
{
    struct candidate c[MAX_CANDIDATES], chosen;
    const struct candidate *fastest;
    const bool timed = is_timed(st, key);
    char text[TEXT_NBYTES];
    int n = 0;

    print_key(text, key);
    if (find_stored(&chosen, v, nvariants, text))
        return chosen;
    for (int i = 0; i < nvariants && (timed || n == 0); i++)
        n += list_candidates(c + n, timed ? MAX_PROPOSALS : 1, &v[i], key);
    if (n == 0)
        meg_die(MEG_EFAIL,
                "GPU %d (%s): cuBLASLt %zu has no algorithm for the product %s; report this line, or use --device cpu",
                meg_cuda_device.index, meg_cuda_device.name, meg_cublaslt.version, text);
    fastest = timed ? find_fastest(c, n, g, text) : NULL;
    if (!fastest)
        return c[0];
    chosen = *fastest;
    meg_gemm_cache_add(text, &(struct meg_gemm_choice){ chosen.variant->epilogue, chosen.algo });
    /* Processes that add a choice at the same time all use the first line, so that their results are equal. */
    find_stored(&chosen, v, nvariants, text);
    return chosen;
}

static struct plan *plan_new(struct meg_stream *st, const struct meg_gemm *g, const struct key *key)
{
    struct plan *p = meg_new(sizeof *p);
    cublasLtEpilogue_t epilogues[MAX_VARIANTS];
    struct variant v[MAX_VARIANTS];
    const int n = list_epilogues(epilogues, g);
    struct candidate c;

    MEG_ASSERT_EQ(g->a.dtype, g->b.dtype);
    for (int i = 0; i < n; i++)
        v[i] = variant_new(g, epilogues[i]);
    c = choose(st, g, key, v, n);
    p->key = *key;
    p->variant = *c.variant;
    p->algo = c.algo;
    for (int i = 0; i < n; i++)
        if (&v[i] != c.variant)
            variant_free(&v[i]);
    return p;
}

static const struct plan *find_plan(struct meg_stream *st, const struct meg_gemm *g)
{
    const struct key key = key_of(g);
    struct plan **bucket = &plans[meg_xxh3_64(&key, sizeof key) % BUCKETS], *p = *bucket;

    while (p && memcmp(&p->key, &key, sizeof key) != 0)
        p = p->next;
    if (p)
        return p;
    p = plan_new(st, g, &key);
    p->next = *bucket;
    return *bucket = p;
}

/* Set a matrix to 0, the result of a product with k = 0, which cuBLASLt rejects. */
static void zero(struct meg_stream *st, struct meg_mat m)
{
    for (int64_t r = 0; r < m.rows; r++)
        CUDA(cudaMemsetAsync(meg_element(m.p, r * m.ld, m.dtype), 0, (size_t)m.cols * meg_dtype_size(m.dtype),
                             meg_cuda_stream(st)));
}

void meg_gemm(struct meg_stream *st, const struct meg_gemm *g)
{
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;

    if (g->d.rows == 0 || g->d.cols == 0)
        return;
    if ((g->is_a_transposed ? g->a.rows : g->a.cols) > 0) {
        const struct plan *p = find_plan(st, g);

        epilogue = p->variant.epilogue;
        check(multiply(meg_cuda_stream(st), &p->variant, &p->algo, g, meg_cuda_scratch(st, workspace_nbytes)),
              "cublasLtMatmul");
    } else if (!g->accumulate) {
        zero(st, output_of(g, epilogue));
    }
    queue_epilogue(st, g, epilogue);
    if (g->dbias && epilogue != CUBLASLT_EPILOGUE_BGRADB)
        meg_cuda_column_sums(st, g->dbias, g->d.dtype, g->a, g->accumulate);
}
