/*
 * hardware.h - the machines that --hardware names, and their rates.  The cost model predicts the time of a step from
 * the rates.  hardware.c states the sources of the rates.
 */
#pragma once
#include "run/train_conf.h"

/* The hardware of one rank: a GPU, or a CPU core. */
struct meg_hardware {
    const char *name, *description;
    double flops[MEG_DTYPES]; /* peak FLOP/s of GEMMs, by dtype of the operands */
    /*
     * A GEMM with smallest dimension d, after rows and columns of the output are rounded up to complete tiles, reaches
     * gemm_efficiency * d / (d + gemm_half_size) of the peak.
     */
    double gemm_efficiency;
    double gemm_half_size;
    double tile; /* a GEMM computes its output in tiles of tile x tile elements */
    /* Fractions of the peak that attention reaches, if only the FLOPs of unmasked scores are counted. */
    double attention_fwd_efficiency;
    double attention_bwd_efficiency;
    double memory_bw;       /* bytes/s of operations on large buffers */
    double link_bw, net_bw; /* bytes/s that a rank sends in collectives, within and between nodes */
    int ranks_per_node;
    double memory, reserved_memory; /* total bytes; bytes used by driver and libraries; both are 0 for a CPU */
};

const struct meg_hardware *meg_hardware_find(enum meg_hardware_type type);

/* Return the number of threads that compute for a rank: the number of OpenMP threads if `hw` is a CPU core, else 1. */
int meg_hardware_threads(const struct meg_hardware *hw);

/*
 * Return the bytes/s that a rank sends in a group of `size` ranks.  The world ranks of the group are r, r + stride,
 * ..., r + (size - 1) * stride.  In a group over several nodes, the bandwidth is net_bw times the number of the group's
 * ranks in a node, but at most link_bw.
 */
double meg_hardware_bandwidth(const struct meg_hardware *hw, int64_t stride, int64_t size);
