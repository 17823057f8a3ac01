/*
 * What ranks run on, in the few numbers that a prediction of time needs.  One row a machine; nothing in it
 * is fitted to one run.
 */
#ifndef MEG_PLAN_HARDWARE_H
#define MEG_PLAN_HARDWARE_H
#include "run/train_conf.h"

MEG_BEGIN_DECLS

/* Of one rank: a GPU, or for cpu a core. */
struct meg_hardware {
    const char *name, *what;
    double flops[MEG_DTYPES]; /* peak of matrix products a second, by type of what is multiplied */
    double gemm, gemm_half;   /* share of it that large products reach; half of that is left at this smallest size */
    double tile;              /* rows and columns of a result that are computed together */
    double attention_fwd, attention_bwd; /* the same of attention, whose causal half alone counts as work */
    double memory_bw;                    /* bytes a second that passes over large buffers reach */
    double link_bw, net_bw;              /* bytes a second a rank sends in collectives, in a node and between nodes */
    int node;                            /* ranks in a node */
    double memory, reserve; /* bytes, and what of them driver and libraries take; memory 0: what is free now */
};

const struct meg_hardware *meg_hardware_find(enum meg_hardware_type type);

/* The threads that compute for a rank: those of OpenMP where hw is a CPU core, else 1. */
int meg_hardware_threads(const struct meg_hardware *hw);

MEG_END_DECLS
#endif
