/*
 * hardware.c - the table of machines.  Peak rates are from the vendors, without sparsity.  Sources of the other rates:
 *   GEMM        an H200 reaches about 790 of 989 TFLOP/s on random data (measured, bf16); cuBLAS on an A100 reaches
 *               about 275 of 312.  For models with hidden sizes 768, 1,536 and 4,096 on an H200, the formula with
 *               gemm_half_size (hardware.h) yields 0.55, 0.65 and 0.74 of the peak.  Measured rates are close.
 *   attention   FlashAttention-2 on an A100, causal, heads of 128: 190 forward, 160 backward of 312 TFLOP/s (Dao
 *               2023); cuDNN 9.19 on an H200, s 4096: 591 and 474 of 989, and less on an H100 (benchmarks of cuDNN)
 *   memory      0.85 to 0.9 of the peak: 4.3 of 4.8 TB/s measured on an H200
 *   links       bus bandwidth that nccl-tests reports for large all-reduces of eight ranks: 235 GB/s (A100), 370
 *               GB/s (H100, rings).  Between nodes: one 200 or 400 Gbit/s adapter per GPU, 0.84 of its rate.
 *   cpu         two cores of a Zen 5 EPYC with AVX-512, measured: 264 GFLOP/s per core in f32 and 540 in bf16; oneDNN
 *               reaches 0.92 of these rates.  AdamW on one core: 64 GB/s.  All-reduce of 64 MB by Open MPI over two
 *               ranks: 26.7 ms.
 */
#include "plan/hardware.h"
#include <math.h>
#include <omp.h>

/* clang-format off */
#define GPU(f32, half) { [MEG_DTYPE_F32] = f32, [MEG_DTYPE_BF16] = half, [MEG_DTYPE_F16] = half }
/* clang-format on */

static const struct meg_hardware table[] = {
    [MEG_HARDWARE_CPU] = { "cpu", "a core with AVX-512, ranks of one machine", GPU(264e9, 540e9), 0.92, 24, 16, 0.50,
                           0.50, 64e9, 2.4e9, 2.4e9, 1 << 20, 0, 0 },
    [MEG_HARDWARE_A100] = { "a100", "A100 SXM 80 GB, eight a node, 200 Gbit/s each", GPU(19.5e12, 312e12), 0.88, 350,
                            128, 0.60, 0.50, 1.73e12, 235e9, 21e9, 8, 80e9, 2.5e9 },
    [MEG_HARDWARE_H100] = { "h100", "H100 SXM 80 GB, eight a node, 400 Gbit/s each", GPU(67e12, 989.4e12), 0.80, 350,
                            128, 0.53, 0.44, 2.95e12, 370e9, 42e9, 8, 80e9, 2.5e9 },
    [MEG_HARDWARE_H200] = { "h200", "H200 SXM 141 GB, eight a node, 400 Gbit/s each", GPU(67e12, 989.4e12), 0.80, 350,
                            128, 0.60, 0.48, 4.3e12, 370e9, 42e9, 8, 141e9, 2.5e9 },
};

const struct meg_hardware *meg_hardware_find(enum meg_hardware_type type)
{
    return &table[type];
}

int meg_hardware_threads(const struct meg_hardware *hw)
{
    return hw->memory > 0 ? 1 : omp_get_max_threads();
}

double meg_hardware_bandwidth(const struct meg_hardware *hw, int64_t stride, int64_t size)
{
    const int64_t near = stride < hw->ranks_per_node ? hw->ranks_per_node / stride : 1;

    return near >= size ? hw->link_bw : fmin(hw->link_bw, (double)near * hw->net_bw);
}
