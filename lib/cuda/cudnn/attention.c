/* attention.c - attention by cuDNN: the cases for which it is used, and their plans. */
#include "cuda/cudnn/attention.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/int64.h"
#include "base/log.h"
#include "base/mem.h"
#include "cuda/cudnn/sdpa.h"
#include "cuda/internal.h"

enum {
    MAX_PLANS = 64,         /* further shapes use meg's own kernels */
    SLACK_NBYTES = 1 << 20, /* bound of the part of a workspace that does not depend on the shape */
    ALIGNMENT = 256         /* alignment of arrays in a workspace, in bytes */
};

int64_t meg_cudnn_chunk_nbytes = 1 << 30;

static int64_t align(int64_t nbytes)
{
    return (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- supported cases ---- */

/*
 * Set the shape and the mask of x and return true.  Return false if cuDNN is not usable or does not support an option
 * in *desc or dropout.  Also return false if a sequence length is not a multiple of 64: such lengths are mostly those
 * of prompts, for which building a plan would take longer than the attention.
 */
static bool set_case(struct meg_cudnn_sdpa *x, const struct meg_attn_desc *desc, const struct meg_drop *drop)
{
    int64_t left = desc->window_left, right = desc->window_right;

    if (!meg_cudnn.is_usable || (drop && drop->p != 0.0f) || desc->softcap != 0.0f || desc->doc_start ||
        desc->key_length || desc->alibi_slope || desc->rel_bias.p || desc->sink.p || desc->query_start ||
        desc->block_offset)
        return false;
    if (desc->b == 0 || desc->s_q == 0 || desc->s_k == 0 || desc->s_q % 64 != 0 || desc->s_k % 64 != 0 ||
        desc->d % 8 != 0 || desc->d > 256 || !(desc->d_v == desc->d || (desc->d == 192 && desc->d_v == 128)))
        return false;
    if (right >= 0 && desc->q0 + right >= desc->k0 + desc->s_k - 1)
        right = -1; /* the last key is visible to the first query */
    if (left >= 0 && desc->q0 + desc->s_q - 1 - left <= desc->k0)
        left = -1; /* the first key is visible to the last query */
    if (right == -1 ? left != -1 : right != 0 || desc->q0 != desc->k0 || desc->s_q != desc->s_k)
        return false;
    x->is_causal = right == 0;
    x->window_left = left;
    x->s_q = desc->s_q;
    x->s_k = desc->s_k;
    x->d = desc->d;
    x->d_v = desc->d_v;
    return true;
}

/*
 * Divide the heads into a batch with constant strides: b sequences with a heads or, if is_grouped is set, b*g
 * sequences, each a group of query heads with one head of keys and values.
 */
static void set_batch(struct meg_cudnn_sdpa *x, const struct meg_attn_desc *desc, bool is_grouped)
{
    x->b = is_grouped ? desc->b * desc->g : desc->b;
    x->h = is_grouped ? desc->a / desc->g : desc->a;
    x->h_k = is_grouped ? 1 : desc->a;
}

/*
 * Set the strides of a tensor in the batch.  Return false if they are not constant, if cuDNN does not support them or
 * the alignment, or if the tensor does not have the type `type`.
 */
static bool set_strides(struct meg_cudnn_sdpa *x, enum meg_cudnn_sdpa_tensor i, const struct meg_attn_desc *desc,
                        const struct meg_heads *heads, enum meg_dtype type, bool is_grouped)
{
    const int64_t ld_b = desc->b > 1 ? heads->ld_b : desc->g * heads->ld_g;

    if (heads->dtype != type || (uintptr_t)heads->p % 16 != 0 || (is_grouped && ld_b != desc->g * heads->ld_g))
        return false;
    x->ld[i].b = is_grouped ? heads->ld_g : ld_b;
    x->ld[i].h = is_grouped && x->h > 1 && i != SDPA_K && i != SDPA_V && i != SDPA_DK && i != SDPA_DV ? heads->ld_h
                                                                                                      : heads->ld_g;
    x->ld[i].s = heads->ld_s;
    return x->ld[i].b % 8 == 0 && x->ld[i].h % 8 == 0 && x->ld[i].s % 8 == 0;
}

static bool set_type(struct meg_cudnn_sdpa *x, enum meg_dtype type)
{
    x->type = type == MEG_DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    return type == MEG_DTYPE_BF16 || type == MEG_DTYPE_F16;
}

/*
 * Set the batch and type of x, and the strides of each tensor i whose heads[i] is not NULL.  Return false if the layout
 * is not supported.
 */
static bool set_layout(struct meg_cudnn_sdpa *x, const struct meg_attn_desc *desc,
                       const struct meg_heads *const heads[SDPA_HEADS], bool is_grouped)
{
    bool ok = set_type(x, heads[SDPA_Q]->dtype);

    set_batch(x, desc, is_grouped);
    for (int i = 0; i < SDPA_HEADS; i++)
        ok = ok && (!heads[i] ||
                    set_strides(x, (enum meg_cudnn_sdpa_tensor)i, desc, heads[i], heads[SDPA_Q]->dtype, is_grouped));
    return ok;
}

/* ---- plans ---- */

static struct plan {
    struct plan *next;
    struct meg_cudnn_sdpa x;
    struct meg_cudnn_graph graph; /* graph.plan is NULL if cuDNN does not support x */
} * plans;
static int nplans;
static cudnnHandle_t handle;

/* Return a new plan.  On failure, it has no graph.plan; it is kept, so that the same failure is not repeated. */
static struct plan *build(const struct meg_cudnn_sdpa *x, int64_t max_nbytes)
{
    struct plan *p = meg_new(sizeof *p);

    p->x = *x;
    meg_cudnn_sdpa_graph(&p->graph, x);
    if (meg_cudnn_graph_plan(&p->graph, handle, max_nbytes) < 0) {
        meg_info("attention%s with %" PRId64 " queries, %" PRId64 " keys and head size %" PRId64
                 " uses meg's own kernels: %s",
                 x->is_backward ? " (backward)" : "", x->s_q, x->s_k, x->d, p->graph.e.msg);
        meg_cudnn_graph_free(&p->graph);
    }
    p->next = plans;
    nplans++;
    return plans = p;
}

/* Return the plan for x, whose workspace has at most max_nbytes bytes, or NULL if there is none. */
static const struct plan *plan_of(const struct meg_cudnn_sdpa *x, int64_t max_nbytes)
{
    struct plan *p = plans;
    cudnnStatus_t status;

    while (p && memcmp(&p->x, x, sizeof *x) != 0)
        p = p->next;
    if (!p && nplans == MAX_PLANS)
        return NULL;
    if (!handle && (status = meg_cudnn.cudnnCreate(&handle)) != CUDNN_STATUS_SUCCESS) {
        meg_warn("GPU %d (%s): cuDNN cannot be initialized (status %d); attention uses meg's own, slower kernels",
                 meg_cuda_device.index, meg_cuda_device.name, (int)status);
        meg_cudnn.is_usable = false;
        return NULL;
    }
    if (!p)
        p = build(x, max_nbytes);
    return p->graph.plan ? p : NULL;
}

/*
 * Queue a plan on st.  tensors[i] is the address of tensor i in device memory.  Scale, window and -infinity are passed
 * from host memory.  If cuDNN fails, end the process with a message.
 */
static void execute(struct meg_stream *st, const struct plan *plan, const struct meg_attn_desc *desc,
                    void *const tensors[SDPA_TENSORS], void *workspace)
{
    float scale = desc->scale, minus_infinity = -INFINITY, window = (float)(plan->x.window_left + 1), one = 1.0f;
    void *p[SDPA_TENSORS];
    cudnnStatus_t status;
    struct meg_err e;

    memcpy(p, tensors, sizeof p);
    p[SDPA_SCALE] = &scale;
    p[SDPA_MINUS_INFINITY] = plan->x.is_causal ? &minus_infinity : NULL;
    p[SDPA_WINDOW] = plan->x.window_left >= 0 ? &window : NULL;
    p[SDPA_ONE] = plan->x.is_backward ? &one : NULL;
    if ((status = meg_cudnn.cudnnSetStream(handle, meg_cuda_stream(st))) != CUDNN_STATUS_SUCCESS)
        meg_die(MEG_EFAIL, "GPU %d (%s): cudnnSetStream failed: %s", meg_cuda_device.index, meg_cuda_device.name,
                meg_cudnn.cudnnGetErrorString(status));
    MEG_CUDA_QUEUE_HERE();
    if (meg_cudnn_graph_execute(&plan->graph, handle, p, SDPA_TENSORS, workspace, &e) < 0) {
        meg_cuda_check_earlier("cudnnBackendExecute");
        meg_die_err(&e);
    }
}

bool meg_cudnn_attn_fwd(struct meg_stream *st, const struct meg_attn_fwd_args *a)
{
    const struct meg_attn_desc *desc = a->desc;
    const struct meg_heads *const heads[SDPA_HEADS] = {
        [SDPA_Q] = &a->q, [SDPA_K] = &a->k, [SDPA_V] = &a->v, [SDPA_O] = &a->o
    };
    void *p[SDPA_TENSORS] = {
        [SDPA_Q] = a->q.p, [SDPA_K] = a->k.p, [SDPA_V] = a->v.p, [SDPA_O] = a->o.p, [SDPA_LSE] = a->lse
    };
    struct meg_cudnn_sdpa x = { 0 };
    const struct plan *plan;

    if (!set_case(&x, desc, a->drop) || !set_layout(&x, desc, heads, desc->a > desc->g) ||
        !(plan = plan_of(&x, SLACK_NBYTES)))
        return false;
    execute(st, plan, desc, p, meg_cuda_scratch(st, SLACK_NBYTES));
    return true;
}

/* ---- backward pass ---- */

/*
 * Return an upper bound of cuDNN's workspace per group of query heads in bytes, as determined for cuDNN 9.19
 * (cudnn_accept.c).  With grouped-query attention, the workspace contains dk and dv of each query head, in 16 bits.  It
 * also contains a 16-bit matrix of scores of each query head if the backward pass is deterministic, and otherwise f32
 * sums, except on GPUs with compute capability 9.0.
 */
static int64_t nbytes_per_group(const struct meg_attn_desc *desc)
{
    const int64_t r = desc->a / desc->g, rows = (desc->s_q + 63) / 64 * 64, cols = (desc->s_k + 63) / 64 * 64;
    int64_t nbytes = r > 1 ? 2 * r * desc->s_k * (desc->d + desc->d_v) : 0;

    if (meg_cuda_device.is_deterministic)
        nbytes += 2 * r * rows * cols;
    else if (meg_cuda_device.cc != 90)
        nbytes += 4 * r * meg_max64(desc->s_q, desc->s_k) * meg_max64(desc->d, desc->d_v);
    return nbytes;
}

/*
 * Return an upper bound of the workspace of a plan in bytes.  The deterministic backward pass is computed in chunks of
 * groups: a chunk requires at most meg_cudnn_chunk_nbytes bytes or consists of one group.
 */
static int64_t plan_nbytes(const struct meg_attn_desc *desc)
{
    const int64_t group = nbytes_per_group(desc), all = desc->b * desc->g * group;

    return SLACK_NBYTES +
           (meg_cuda_device.is_deterministic ? meg_min64(all, meg_max64(meg_cudnn_chunk_nbytes, group)) : all);
}

/* Return the number of sequences per chunk of x, which has the grouped layout.  The number divides x->b. */
static int64_t chunk_of(const struct meg_cudnn_sdpa *x, const struct meg_attn_desc *desc)
{
    const int64_t most = meg_max64(1, meg_cudnn_chunk_nbytes / nbytes_per_group(desc));
    int64_t n = meg_min64(x->b, most);

    while (x->b % n != 0)
        n--;
    return n;
}

/* Return the size in bytes of the f32 sums of dq in the workspace; 0 if the backward pass is deterministic. */
static int64_t dq_sum_nbytes(const struct meg_attn_desc *desc)
{
    return meg_cuda_device.is_deterministic ? 0 : align(4 * desc->b * desc->a * desc->s_q * desc->d);
}

static int64_t delta_nbytes(const struct meg_attn_desc *desc)
{
    return align(4 * desc->b * desc->a * desc->s_q);
}

size_t meg_cudnn_attn_bwd_nbytes(const struct meg_attn_desc *desc, enum meg_dtype grad)
{
    if (grad == MEG_DTYPE_F32)
        return 0;
    return (size_t)(ALIGNMENT + delta_nbytes(desc) + dq_sum_nbytes(desc) + plan_nbytes(desc));
}

bool meg_cudnn_attn_bwd(struct meg_stream *st, const struct meg_attn_bwd_args *a)
{
    const struct meg_attn_desc *desc = a->desc;
    const struct meg_heads *const heads[SDPA_HEADS] = {
        [SDPA_Q] = &a->q,     [SDPA_K] = &a->k,   [SDPA_V] = &a->v,   [SDPA_O] = &a->o,
        [SDPA_D_O] = &a->d_o, [SDPA_DQ] = &a->dq, [SDPA_DK] = &a->dk, [SDPA_DV] = &a->dv,
    };
    const bool is_deterministic = meg_cuda_device.is_deterministic;
    char *const workspace = (char *)(((uintptr_t)a->workspace.p + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    struct meg_cudnn_sdpa x = { .is_backward = true, .is_deterministic = is_deterministic };
    const struct plan *plan;
    int64_t nchunks = 1;

    if (a->accumulate || a->delta || a->workspace.nbytes < meg_cudnn_attn_bwd_nbytes(desc, a->dq.dtype) ||
        !set_case(&x, desc, a->drop) || !set_layout(&x, desc, heads, desc->a > desc->g || is_deterministic))
        return false;
    if (is_deterministic) {
        nchunks = x.b / chunk_of(&x, desc);
        x.b /= nchunks;
    }
    if (!(plan = plan_of(&x, plan_nbytes(desc))))
        return false;
    for (int64_t i = 0; i < nchunks; i++) {
        void *p[SDPA_TENSORS] = { 0 };

        for (int t = 0; t < SDPA_HEADS; t++)
            p[t] = (char *)heads[t]->p + i * x.b * x.ld[t].b * 2;
        p[SDPA_LSE] = (float *)(uintptr_t)a->lse + i * x.b * x.h * x.s_q;
        p[SDPA_DELTA] = workspace;
        p[SDPA_DQ_SUM] = is_deterministic ? NULL : workspace + delta_nbytes(desc);
        execute(st, plan, desc, p, workspace + delta_nbytes(desc) + dq_sum_nbytes(desc));
    }
    return true;
}
