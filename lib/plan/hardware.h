/*
 * hardware.h - the hardware model of --hardware: the rates from which the time of a step is predicted.  The table has a
 * row per machine; no number is fitted to a particular run.
 */
#ifndef MEG_PLAN_HARDWARE_H
#define MEG_PLAN_HARDWARE_H
#include "run/train_conf.h"

MEG_BEGIN_DECLS

/* The hardware of one rank: a GPU, or a CPU core. */
struct meg_hardware {
    const char *name, *description;
    double flops[MEG_DTYPES];        /* peak FLOP/s of matrix products, by dtype of the operands */
    double gemm_efficiency;          /* fraction of the peak that large products reach */
    double gemm_half_size;           /* smallest dimension of a product that reaches half of gemm_efficiency */
    double tile;                     /* rows and columns of a product's output tile */
    double attention_fwd_efficiency; /* fraction of the peak, counting only unmasked scores */
    double attention_bwd_efficiency;
    double memory_bw;       /* bytes/s of operations on large buffers */
    double link_bw, net_bw; /* bytes/s that a rank sends in collectives, within and between nodes */
    int ranks_per_node;
    double memory, reserved_memory; /* bytes in total, and used by driver and libraries; 0: memory of this machine */
};

const struct meg_hardware *meg_hardware_find(enum meg_hardware_type type);

/* Return the number of threads that compute for a rank: the number of OpenMP threads if `hw` is a CPU core, else 1. */
int meg_hardware_threads(const struct meg_hardware *hw);

MEG_END_DECLS
#endif
