/*
 * cublaslt_double.c - a test double of cuBLASLt, for machines without a GPU.  It is loaded as libcublasLt.so.13 and
 * computes products in f32, in a fixed order, on the streams of the double of the CUDA runtime.  It has three
 * algorithms: ALIGNED, SPLIT_K, which differs in the order of its sums and requires a workspace, and UNALIGNED, which
 * has no epilogues.  Which one is proposed first, and whether an epilogue is supported, depends on the product, so that
 * tests include all combinations.
 *
 * It ends the process with a message and SIGABRT where the real library fails, or computes a wrong result: shapes,
 * types and leading dimensions that do not match, an algorithm of another product, pointers that are not to device
 * memory or less aligned than promised, operands that overlap, a workspace that is missing or too small.  SPLIT_K fills
 * its workspace with NaN after a product.
 *
 * $MEG_DOUBLE_CUBLASLT_VERSION replaces the version.
 */
#include <cublasLt.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define LIBRARY "cuBLASLt"
#include "../nccl/common.h"
#include "tensor/half.h"

/* ---- descriptors ---- */

struct layout { /* column-major */
    cudaDataType_t type;
    int64_t rows, cols, ld;
};

struct desc {
    bool is_transposed[2]; /* A, B */
    cublasLtEpilogue_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
};

struct preference {
    uint64_t workspace_nbytes;
    uint32_t reductions, alignment[4]; /* of A, B, C, D */
};

static struct layout *layout_of(cublasLtMatrixLayout_t l)
{
    return (struct layout *)(void *)l;
}

static struct desc *desc_of(cublasLtMatmulDesc_t d)
{
    return (struct desc *)(void *)d;
}

static struct preference *preference_of(cublasLtMatmulPreference_t p)
{
    return (struct preference *)(void *)p;
}

static size_t size_of(cudaDataType_t type)
{
    switch (type) {
    case CUDA_R_32F: return 4;
    case CUDA_R_16BF:
    case CUDA_R_16F: return 2;
    default: fail("data type %d", (int)type);
    }
}

API size_t cublasLtGetVersion(void)
{
    return (size_t)variable("MEG_DOUBLE_CUBLASLT_VERSION", CUBLAS_VERSION);
}

API const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an error of the double";
}

API cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = calloc(1, 1);
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows,
                                              uint64_t cols, int64_t ld)
{
    struct layout *new = malloc(sizeof *new);

    if (!rows || !cols || ld < (int64_t)rows)
        fail("a layout of %lld x %lld elements with leading dimension %lld", (long long)rows, (long long)cols,
             (long long)ld);
    size_of(type);
    *new = (struct layout){ type, (int64_t)rows, (int64_t)cols, ld };
    *l = (cublasLtMatrixLayout_t)(void *)new;
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    free(l);
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale)
{
    struct desc *new = calloc(1, sizeof *new);

    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        fail("a product that is not computed in f32");
    new->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    *d = (cublasLtMatmulDesc_t)(void *)new;
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}

/* Copy the value of an attribute to `out`.  Fail if nbytes, the size of the value, is not that of the attribute. */
static void set(void *out, size_t size, const void *value, size_t nbytes)
{
    if (nbytes != size)
        fail("an attribute of %zu bytes instead of %zu", nbytes, size);
    memcpy(out, value, nbytes);
}

API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute,
                                                  const void *value, size_t nbytes)
{
    struct desc *d = desc_of(op);
    int32_t transpose;

    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB:
        set(&transpose, sizeof transpose, value, nbytes);
        if (transpose != CUBLAS_OP_N && transpose != CUBLAS_OP_T)
            fail("operation %d", transpose);
        d->is_transposed[attribute == CUBLASLT_MATMUL_DESC_TRANSB] = transpose == CUBLAS_OP_T;
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: set(&d->epilogue, sizeof d->epilogue, value, nbytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: set(&d->bias, sizeof d->bias, value, nbytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: set(&d->aux, sizeof d->aux, value, nbytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: set(&d->aux_ld, sizeof d->aux_ld, value, nbytes); break;
    default: fail("attribute %d of a product", (int)attribute);
    }
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    struct preference *new = malloc(sizeof *new);

    *new = (struct preference){ 0, CUBLASLT_REDUCTION_SCHEME_MASK, { 256, 256, 256, 256 } };
    *p = (cublasLtMatmulPreference_t)(void *)new;
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                        cublasLtMatmulPreferenceAttributes_t attribute,
                                                        const void *value, size_t nbytes)
{
    struct preference *p = preference_of(pref);

    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        set(&p->workspace_nbytes, sizeof p->workspace_nbytes, value, nbytes);
        break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: set(&p->reductions, sizeof p->reductions, value, nbytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        set(&p->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], sizeof *p->alignment, value, nbytes);
        break;
    default: fail("preference %d", (int)attribute);
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- products ---- */

/* D [m,n] = A [m,k] B [k,n], column-major. */
struct product {
    struct desc desc;
    struct layout a, b, d;
    int64_t m, n, k;
};

/* Return the number of rows of an operand, A or B, after it is transposed if is_transposed is set. */
static int64_t op_rows(struct layout l, bool is_transposed)
{
    return is_transposed ? l.cols : l.rows;
}

static int64_t op_cols(struct layout l, bool is_transposed)
{
    return is_transposed ? l.rows : l.cols;
}

static struct product product_of(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                 cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
    struct product p = { *desc_of(op), *layout_of(a), *layout_of(b), *layout_of(d), 0, 0, 0 };

    if (memcmp(layout_of(c), layout_of(d), sizeof(struct layout)) != 0)
        fail("the layouts of C and D differ");
    p.m = op_rows(p.a, p.desc.is_transposed[0]);
    p.n = op_cols(p.b, p.desc.is_transposed[1]);
    p.k = op_cols(p.a, p.desc.is_transposed[0]);
    if (op_rows(p.b, p.desc.is_transposed[1]) != p.k || p.d.rows != p.m || p.d.cols != p.n)
        fail("a product of A [%lld,%lld] and B [%lld,%lld] is D [%lld,%lld]", (long long)p.m, (long long)p.k,
             (long long)op_rows(p.b, p.desc.is_transposed[1]), (long long)p.n, (long long)p.d.rows,
             (long long)p.d.cols);
    return p;
}

static bool has_aux(const struct product *p)
{
    return p->desc.epilogue & (CUBLASLT_EPILOGUE_GELU_AUX & ~CUBLASLT_EPILOGUE_GELU);
}

static bool has_bias(const struct product *p)
{
    return p->desc.epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB);
}

/* Return whether the types are supported; end the process if the epilogue is unknown or its operands are wrong. */
static bool is_supported(const struct product *p)
{
    switch (p->desc.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_BGRADB: break;
    default: fail("epilogue %d", (int)p->desc.epilogue);
    }
    if (has_aux(p) && (p->desc.aux_ld % 8 != 0 || p->desc.aux_ld < p->m))
        fail("an auxiliary matrix with leading dimension %lld", (long long)p->desc.aux_ld);
    return p->a.type == p->b.type && (p->d.type == p->a.type || p->d.type == CUDA_R_32F);
}

/* ---- algorithms ---- */

enum algorithm { ALIGNED, SPLIT_K, UNALIGNED, ALGORITHMS };
enum { MAGIC = 0x6d6568, SPLIT_K_NBYTES = 1 << 16 };

/* Return a hash of the properties of a product on which its algorithm depends: all but its pointers. */
static uint64_t hash_of(const struct product *p)
{
    const int64_t words[] = { p->desc.is_transposed[0],
                              p->desc.is_transposed[1],
                              p->desc.epilogue,
                              has_aux(p) ? p->desc.aux_ld : 0,
                              p->a.type,
                              p->d.type,
                              p->m,
                              p->n,
                              p->k,
                              p->a.ld,
                              p->b.ld,
                              p->d.ld };
    uint64_t hash = 0;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = (hash ^ (uint64_t)words[i]) * 0x9e3779b97f4a7c15u;
    return hash;
}

static cublasLtMatmulAlgo_t algo_new(const struct product *p, enum algorithm id)
{
    return (cublasLtMatmulAlgo_t){ { MAGIC, id, hash_of(p) } };
}

static bool has_aligned_ld(struct layout l)
{
    return (size_t)l.ld * size_of(l.type) % 16 == 0;
}

/* Return whether an algorithm supports a product.  An eighth of the products with an epilogue have no algorithm. */
static bool may_run(const struct product *p, enum algorithm id)
{
    if (p->desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && hash_of(p) >> 61 == 0)
        return false;
    return id == UNALIGNED ? p->desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT
                           : has_aligned_ld(p->a) && has_aligned_ld(p->b) && has_aligned_ld(p->d);
}

API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                                  cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                  cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                  cublasLtMatmulPreference_t preference, int n,
                                                  cublasLtMatmulHeuristicResult_t *results, int *nresults)
{
    const struct preference *pref = preference_of(preference);
    const struct product p = product_of(op, a, b, c, d);
    bool is_aligned = true;
    (void)handle;

    if (pref->reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE)
        fail("reductions of split-K in place");
    for (int i = 0; i < 4; i++)
        is_aligned &= pref->alignment[i] % 16 == 0;
    *nresults = 0;
    if (!is_supported(&p))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (uint64_t i = 0; i < ALGORITHMS && *nresults < n; i++) {
        const enum algorithm id = (enum algorithm)((hash_of(&p) >> 40) % ALGORITHMS + i) % ALGORITHMS;
        const size_t workspace = id == SPLIT_K ? SPLIT_K_NBYTES : 0;

        if (!may_run(&p, id) || (id != UNALIGNED && !is_aligned) || workspace > pref->workspace_nbytes)
            continue;
        results[*nresults] = (cublasLtMatmulHeuristicResult_t){ .algo = algo_new(&p, id),
                                                                .workspaceSize = workspace,
                                                                .state = CUBLAS_STATUS_SUCCESS };
        for (int j = 0; j < 4; j++) /* the promised alignments, at most 16 bytes, of A, B, C and D */
            results[*nresults].algo.data[3] |= (uint64_t)(pref->alignment[j] < 16 ? pref->alignment[j] : 16) << 8 * j;
        ++*nresults;
    }
    return *nresults ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static bool is_algo_of(const cublasLtMatmulAlgo_t *algo, const struct product *p)
{
    cublasLtMatmulAlgo_t expected = algo_new(p, (enum algorithm)algo->data[1]);

    expected.data[3] = algo->data[3];
    return algo->data[1] < ALGORITHMS && may_run(p, (enum algorithm)algo->data[1]) &&
           memcmp(algo, &expected, sizeof expected) == 0;
}

API cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                           cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                           const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
    const struct product p = product_of(op, a, b, c, d);
    (void)handle;

    if (!is_supported(&p) || !is_algo_of(algo, &p))
        return CUBLAS_STATUS_INVALID_VALUE;
    result->workspaceSize = algo->data[1] == SPLIT_K ? SPLIT_K_NBYTES : 0;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- computation ---- */

static float load(cudaDataType_t type, const void *p, int64_t i)
{
    return type == CUDA_R_32F    ? ((const float *)p)[i]
           : type == CUDA_R_16BF ? meg_from_bf16(((const uint16_t *)p)[i])
                                 : meg_from_f16(((const uint16_t *)p)[i]);
}

static void store(cudaDataType_t type, void *p, int64_t i, float x)
{
    if (type == CUDA_R_32F)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = type == CUDA_R_16BF ? meg_to_bf16(x) : meg_to_f16(x);
}

enum { TILE_M = 16, TILE_N = 4 };
typedef float vec __attribute__((vector_size(TILE_M * sizeof(float)), aligned(4)));

/*
 * Convert an operand to f32 panels of `tile` rows (of A) or columns (of B), in which the elements of one k are
 * contiguous; pad the last panel with zeros.  In the operand, the elements of consecutive k are `k_stride` elements
 * apart, and those of consecutive rows or columns are `stride` elements apart.
 */
static float *pack(const void *p, cudaDataType_t type, int64_t n, int64_t k, int64_t stride, int64_t k_stride, int tile)
{
    const int64_t npanels = (n + tile - 1) / tile;
    float *out = calloc((size_t)(npanels * tile * k), sizeof *out);

    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < k; j++)
            out[(i / tile * k + j) * tile + i % tile] = load(type, p, i * stride + j * k_stride);
    return out;
}

/* Add the product of panels a [k,TILE_M] and b [k,TILE_N] to sum. */
#ifdef __x86_64__
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
static void
multiply_panels(float (*sum)[TILE_M], const float *a, const float *b, int64_t k)
{
    vec s[TILE_N];

    memcpy(s, sum, sizeof s);
    for (int64_t i = 0; i < k; i++) {
        const vec x = *(const vec *)(a + i * TILE_M);

        for (int j = 0; j < TILE_N; j++)
            s[j] += x * b[i * TILE_N + j];
    }
    memcpy(sum, s, sizeof s);
}

struct job {
    struct product p;
    enum algorithm id;
    float alpha, beta;
    const void *a, *b;
    void *d, *workspace;
};

static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_grad(float x)
{
    const float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));

    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

/* Apply alpha, beta and the epilogue to x, element (i, j) of the product, and store the result in D. */
static void finish(const struct job *job, int64_t i, int64_t j, float x)
{
    const struct product *p = &job->p;
    const int64_t at = j * p->d.ld + i, aux_at = j * p->desc.aux_ld + i;

    x *= job->alpha;
    if (job->beta != 0)
        x += job->beta * load(p->d.type, job->d, at);
    if (p->desc.epilogue & CUBLASLT_EPILOGUE_BIAS)
        x += load(p->d.type, p->desc.bias, i);
    if (p->desc.epilogue & CUBLASLT_EPILOGUE_GELU) {
        if (has_aux(p))
            store(p->d.type, p->desc.aux, aux_at, x);
        x = gelu(x);
    }
    if (p->desc.epilogue == CUBLASLT_EPILOGUE_DGELU)
        x *= gelu_grad(load(p->d.type, p->desc.aux, aux_at));
    store(p->d.type, job->d, at, x);
}

static void compute_tile(const struct job *job, const float *a, const float *b, int64_t i0, int64_t j0)
{
    const struct product *p = &job->p;
    const int64_t middle = job->id == SPLIT_K ? p->k / 2 : p->k;
    float sum[TILE_N][TILE_M] = { 0 }, rest[TILE_N][TILE_M] = { 0 };

    multiply_panels(sum, a, b, middle);
    multiply_panels(rest, a + middle * TILE_M, b + middle * TILE_N, p->k - middle);
    for (int64_t j = 0; j < TILE_N && j0 + j < p->n; j++)
        for (int64_t i = 0; i < TILE_M && i0 + i < p->m; i++)
            finish(job, i0 + i, j0 + j, sum[j][i] + rest[j][i]);
}

/* Compute the sums over k of the columns of B. */
static void compute_bgradb(const struct product *p, const float *b)
{
    for (int64_t j = 0; j < p->n; j++) {
        float sum = 0;

        for (int64_t i = 0; i < p->k; i++)
            sum += b[(j / TILE_N * p->k + i) * TILE_N + j % TILE_N];
        store(p->d.type, p->desc.bias, j, sum);
    }
}

static void run(void *arg)
{
    struct job *job = arg;
    const struct product *p = &job->p;
    const bool ta = p->desc.is_transposed[0], tb = p->desc.is_transposed[1];
    float *a = pack(job->a, p->a.type, p->m, p->k, ta ? p->a.ld : 1, ta ? 1 : p->a.ld, TILE_M);
    float *b = pack(job->b, p->b.type, p->n, p->k, tb ? 1 : p->b.ld, tb ? p->b.ld : 1, TILE_N);

    for (int64_t j = 0; j < p->n; j += TILE_N)
        for (int64_t i = 0; i < p->m; i += TILE_M)
            compute_tile(job, a + i * p->k, b + j * p->k, i, j);
    if (p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB)
        compute_bgradb(p, b);
    if (job->id == SPLIT_K)
        memset(job->workspace, 0xff, SPLIT_K_NBYTES);
    free(a);
    free(b);
}

/* ---- checks ---- */

struct range {
    const char *name, *begin, *end;
    bool is_written;
};

static struct range range_of(const char *name, const void *p, struct layout l, bool is_written)
{
    const size_t n = (size_t)((l.cols - 1) * l.ld + l.rows) * size_of(l.type);

    return (struct range){ name, p, (const char *)p + n, is_written };
}

static void check_range(struct range r, size_t alignment)
{
    if (!meg_double_is_device(r.begin) || !meg_double_is_device(r.end))
        fail("%s is not in device memory", r.name);
    if ((uintptr_t)r.begin % alignment != 0)
        fail("%s is not aligned to %zu bytes", r.name, alignment);
}

/* Check the memory of a product, and record its accesses. */
static void check_memory(const struct job *job, cudaStream_t s)
{
    const struct product *p = &job->p;
    const struct layout vector = { p->d.type, p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p->n : p->m, 1, 0 };
    const struct layout aux = { p->d.type, p->m, p->n, p->desc.aux_ld },
                        bytes = { CUDA_R_16F, SPLIT_K_NBYTES / 2, 1, 0 };
    struct range r[6];
    int n = 0;

    r[n++] = range_of("A", job->a, p->a, false);
    r[n++] = range_of("B", job->b, p->b, false);
    r[n++] = range_of("D", job->d, p->d, true);
    if (has_bias(p))
        r[n++] = range_of("the bias", p->desc.bias, vector, p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB);
    if (has_aux(p))
        r[n++] = range_of("the auxiliary matrix", p->desc.aux, aux, p->desc.epilogue != CUBLASLT_EPILOGUE_DGELU);
    if (job->id == SPLIT_K)
        r[n++] = range_of("the workspace", job->workspace, bytes, true);
    for (int i = 0; i < n; i++) {
        check_range(r[i], job->id == UNALIGNED ? size_of(i < 2 ? p->a.type : p->d.type) : 16);
        for (int j = 0; j < i; j++)
            if ((r[i].is_written || r[j].is_written) && r[i].begin < r[j].end && r[j].begin < r[i].end)
                fail("%s overlaps %s", r[i].name, r[j].name);
        meg_double_touch(s, r[i].begin);
    }
}

API cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha, const void *a,
                                  cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                                  const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                  cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                                  size_t workspace_nbytes, cudaStream_t s)
{
    const void *const operands[] = { a, b, c, d };
    struct job *job = malloc(sizeof *job);
    (void)handle;

    *job = (struct job){ .p = product_of(op, a_layout, b_layout, c_layout, d_layout),
                         .alpha = *(const float *)alpha,
                         .beta = *(const float *)beta,
                         .a = a,
                         .b = b,
                         .d = d,
                         .workspace = workspace };
    if (!is_supported(&job->p) || !algo || !is_algo_of(algo, &job->p))
        fail("an algorithm of another product");
    job->id = (enum algorithm)algo->data[1];
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)operands[i] % (algo->data[3] >> 8 * i & 0xff) != 0)
            fail("operand %c is less aligned than the preference states", 'A' + i);
    if (c != d)
        fail("C is not D");
    if (job->id == SPLIT_K && workspace_nbytes < SPLIT_K_NBYTES)
        fail("a workspace of %zu bytes", workspace_nbytes);
    check_memory(job, s);
    return meg_double_launch(s, run, job, free) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
