/*
 * cudnn_accept.c - check that the real cuDNN accepts the graphs of lib/cuda/cudnn/sdpa.c for an H200 and an A100, and
 * that the workspace of a plan is within the bound of meg_cudnn_attn_bwd_nbytes.  Print TAP.
 *
 * No GPU is needed: the heuristics get the properties of a GPU as JSON.  The library requires a libcuda.so.1, which may
 * be the stub of the CUDA toolkit.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "cuda/cudnn/attention.h"
#include "cuda/cudnn/sdpa.h"
#include "cuda/internal.h"

/* Variables and functions of cuda.c, which the program does not contain. */
struct meg_cuda_device meg_cuda_device;
struct meg_cuda_line meg_cuda_last;

void meg_cuda_check_earlier(const char *what)
{
    (void)what;
}

void *meg_cuda_scratch(struct meg_stream *st, size_t nbytes)
{
    (void)st, (void)nbytes;
    return NULL;
}

static const char *const gpus[] = {
    "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, "
    "\"multiProcessorCount\": 132, \"smClockRateKHz\": 1980000, \"memClockRateKHz\": 3201000, \"l2CacheSize\": "
    "62914560, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": 232448, "
    "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"pciDeviceId\": 0, \"maxCtasPerSM\": 32, "
    "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
    "\"deviceName\": \"NVIDIA H200\", \"cudaDeviceId\": 0, \"deviceVer\": 900, \"driverVer\": 13000, "
    "\"totalGlobalMem\": 150000000000}",
    "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, "
    "\"multiProcessorCount\": 108, \"smClockRateKHz\": 1410000, \"memClockRateKHz\": 1593000, \"l2CacheSize\": "
    "41943040, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": 166912, "
    "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"pciDeviceId\": 0, \"maxCtasPerSM\": 32, "
    "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
    "\"deviceName\": \"NVIDIA A100-SXM4-80GB\", \"cudaDeviceId\": 0, \"deviceVer\": 800, \"driverVer\": 13000, "
    "\"totalGlobalMem\": 85000000000}",
};

static int number, nfailures;

/* A case: attention with packed qkv. */
struct shape {
    int64_t s, b, a, g, d, d_v;
    int64_t window_left;
    bool is_causal, is_f16;
};

/* Return the attributes of the graph that meg_cudnn_attn_fwd or meg_cudnn_attn_bwd builds for a shape. */
static struct meg_cudnn_sdpa sdpa(const struct shape *p, bool is_backward, bool is_deterministic)
{
    const bool is_grouped = p->a > p->g || (is_backward && is_deterministic);
    const int64_t r = p->a / p->g, qkv = r * p->d + p->d + p->d_v, o = r * p->d_v;
    struct meg_cudnn_sdpa x = {
        .b = is_grouped ? p->b * p->g : p->b,
        .h = is_grouped ? r : p->a,
        .h_k = is_grouped ? 1 : p->a,
        .s_q = p->s,
        .s_k = p->s,
        .d = p->d,
        .d_v = p->d_v,
        .type = p->is_f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16,
        .is_backward = is_backward,
        .is_deterministic = is_backward && is_deterministic,
        .is_causal = p->is_causal,
        .window_left = p->window_left,
    };

    for (int i = 0; i < SDPA_HEADS; i++) {
        const bool is_o = i == SDPA_O || i == SDPA_D_O, is_q = i == SDPA_Q || i == SDPA_DQ;
        const int64_t ld_g = is_o ? o : qkv;

        x.ld[i].b = is_grouped ? ld_g : p->g * ld_g;
        x.ld[i].h = is_grouped && r > 1 && is_o ? p->d_v : is_grouped && r > 1 && is_q ? p->d : ld_g;
        x.ld[i].s = p->b * p->g * ld_g;
    }
    return x;
}

/* Return the size in bytes of the workspace that is available to a plan. */
static int64_t max_nbytes(const struct shape *p, const struct meg_cudnn_sdpa *x)
{
    const struct meg_attn_desc desc = {
        .s_q = p->s, .s_k = p->s, .b = p->b, .a = p->a, .g = p->g, .d = p->d, .d_v = p->d_v
    };
    const int64_t delta = 4 * p->b * p->a * p->s, dq_sum = x->is_deterministic ? 0 : delta * p->d;

    return x->is_backward ? (int64_t)meg_cudnn_attn_bwd_nbytes(&desc, MEG_DTYPE_BF16) - delta - dq_sum - 3 * 256
                          : 1 << 20;
}

/* Check one graph on a GPU. */
static void check(const struct shape *p, const char *gpu, bool is_backward, bool is_deterministic)
{
    enum { MAX = 8 };
    const struct meg_cudnn_sdpa x = sdpa(p, is_backward, is_deterministic);
    struct meg_cudnn_graph g = { 0 };
    cudnnBackendDescriptor_t device = NULL, cfg[MAX];
    int64_t nbytes = -1, least = INT64_MAX, n;
    int nconfigs, nfit = 0;

    meg_cuda_device.is_deterministic = is_deterministic;
    meg_cuda_device.cc = strstr(gpu, "H200") ? 90 : 80;
    meg_cudnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device);
    meg_cudnn.cudnnBackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                       (int64_t)strlen(gpu), gpu);
    meg_cudnn.cudnnBackendFinalize(device);
    meg_cudnn_sdpa_graph(&g, &x);
    nconfigs = meg_cudnn_graph_configs(&g, NULL, device, cfg, MAX);
    for (int i = 0; i < nconfigs; i++) {
        meg_cudnn.cudnnBackendGetAttribute(cfg[i], CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                           &nbytes);
        least = nbytes < least ? nbytes : least;
        nfit += nbytes <= max_nbytes(p, &x);
    }
    nfailures += nfit == 0;
    printf("%sok %d - %s s=%" PRId64 " b=%" PRId64 " a=%" PRId64 " g=%" PRId64 " d=%" PRId64 "/%" PRId64
           " window=%" PRId64 "%s%s %s%s # %d engines, workspace %" PRId64 " of %" PRId64 "%s%s\n",
           nfit ? "" : "not ", ++number, strstr(gpu, "H200") ? "H200" : "A100", p->s, p->b, p->a, p->g, p->d, p->d_v,
           p->window_left, p->is_causal ? " causal" : "", p->is_f16 ? " f16" : "", is_backward ? "backward" : "forward",
           x.is_deterministic ? " deterministic" : "", nconfigs, nconfigs ? least : 0, max_nbytes(p, &x),
           g.e.code ? ": " : "", g.e.code ? g.e.msg : "");
    meg_cudnn_graph_free(&g);
    meg_cudnn.cudnnBackendDestroyDescriptor(device);
}

int main(void)
{
    static const struct shape shapes[] = {
        { 1024, 64, 12, 12, 64, 64, -1, true, false },   { 2048, 4, 16, 16, 64, 64, -1, true, true },
        { 4096, 2, 16, 8, 128, 128, -1, true, false },   { 8192, 1, 32, 8, 128, 128, -1, true, false },
        { 1024, 8, 25, 25, 64, 64, -1, true, false },    { 1024, 4, 12, 2, 128, 128, -1, true, false },
        { 1088, 2, 8, 2, 128, 128, -1, true, false },    { 1024, 2, 8, 8, 80, 80, -1, true, false },
        { 1024, 2, 8, 8, 96, 96, -1, true, false },      { 1024, 2, 8, 2, 256, 256, -1, true, false },
        { 1024, 2, 8, 8, 256, 256, -1, true, false },    { 1024, 2, 8, 8, 192, 128, -1, true, false },
        { 512, 16, 12, 12, 64, 64, -1, false, false },   { 512, 4, 16, 4, 128, 128, -1, false, true },
        { 4096, 2, 32, 8, 128, 128, 1023, true, false }, { 64, 2, 4, 4, 64, 64, -1, true, false },
        { 64, 2, 4, 2, 32, 32, 5, true, false },
    };
    struct meg_err e = { 0 };

    meg_cudnn_chunk_nbytes = INT64_MAX / 2; /* the graphs contain the complete batch */
    if (meg_cudnn_load(&e) < 0 || !meg_cudnn.is_usable) {
        printf("1..0 # SKIP %s\n", e.code ? e.msg : "no cuDNN");
        return 0;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (size_t j = 0; j < sizeof gpus / sizeof *gpus; j++) {
            check(&shapes[i], gpus[j], false, false);
            if (j == 1 && shapes[i].d > 128)
                continue; /* cuDNN has no backward pass for these heads on an A100 */
            check(&shapes[i], gpus[j], true, false);
            check(&shapes[i], gpus[j], true, true);
        }
    }
    printf("1..%d\n", number);
    return nfailures > 0;
}
