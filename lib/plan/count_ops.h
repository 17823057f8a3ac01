/*
 * count_ops.h - a table of operations (tensor/ops.h) and a communicator that count instead of computing.  A model that
 * runs with them costs microseconds and no memory, and yields the FLOPs, the memory traffic, the bytes sent and
 * the predicted time of a pass.
 *
 * Device memory does not exist: alloc returns addresses that must not be read.  A stream is a struct cost_counter, and
 * operations add to its pass.  These are counted:
 *   matrix products    FLOPs, and their time from the shape (struct meg_hardware)
 *   attention          FLOPs of all scores, and the time of the scores inside the window (struct meg_attn_desc), even
 *                      those that an array in device memory, such as doc_start, masks
 *   other operations   bytes of the matrices that they read and write; vectors, such as biases, statistics of rows and
 *                      token ids, are not counted, and neither are copies and uploads; `zero` counts the bytes that
 *                      it writes
 *   collectives        bytes sent, by the formulas of comm/comm.h, and their time
 * The bytes of operands of matrix products and attention are not counted, except the input `pre` of an activation and,
 * in the backward pass, d_o and o for delta.  The operations of the optimizer (sumsq, adamw, ...) count nothing,
 * because their arrays are no matrices.
 */
#pragma once
#include "comm/comm.h"
#include "plan/cost.h"
#include "tensor/ops.h"

/* The counts of one pass on a rank. */
struct cost_pass {
    double flops;                       /* FLOPs of matrix products and attention, including masked scores */
    double nbytes;                      /* bytes read and written by memory-bound operations */
    double sent[MEG_COST_GROUPS];       /* bytes sent in each group */
    double gemm_s, attention_s, comm_s; /* predicted times in seconds */
};

struct cost_counter {
    const struct meg_hardware *hw;
    int threads;        /* of the rank */
    bool stores_scores; /* struct meg_cost_model */
    struct cost_pass *pass;
};

extern const struct meg_ops cost_count_ops;

/* A communicator that counts the bytes sent.  Its streams are of type struct cost_counter, too. */
struct cost_comm {
    struct meg_comm c;
    enum meg_cost_group group; /* element of cost_pass.sent that counts the bytes */
    double bandwidth;          /* bytes/s that a rank sends */
    double recv_nbytes;        /* largest receive buffer of a collective through host memory (comm/comm.h) */
};

/* Make the communicator of rank 0 in a group of `size` ranks: world ranks 0, stride, 2 * stride, ... */
struct cost_comm cost_comm_make(enum meg_cost_group group, const struct meg_hardware *hw, int64_t stride, int64_t size);

/* ---- for the files that implement the table --------------------------------------------------------- */

static inline struct cost_counter *cost_counter_of(struct meg_stream *st)
{
    return (struct cost_counter *)(void *)st;
}

static inline double cost_nbytes(double n, enum meg_dtype t)
{
    return n * (double)meg_dtype_size(t);
}

static inline double cost_mat_nbytes(struct meg_mat m)
{
    return cost_nbytes((double)(m.rows * m.cols), m.dtype);
}

/* Count bytes that an operation reads or writes. */
static inline void cost_traffic(struct meg_stream *st, double nbytes)
{
    cost_counter_of(st)->pass->nbytes += nbytes;
}

/* Return the peak FLOP/s of a rank. */
static inline double cost_peak(const struct cost_counter *c, enum meg_dtype t)
{
    return c->hw->flops[t] * c->threads;
}

/* Return the time of a product [m,k] x [k,n].  Partial tiles of the output take as long as complete ones. */
double cost_gemm_time(const struct cost_counter *c, enum meg_dtype t, double m, double k, double n);

/* The operations of count_linear.c and count_attention.c, with the types that they have in the table. */
#define COST_DECLARE(name) extern __typeof__(*((struct meg_ops *)0)->name) cost_##name;
COST_DECLARE(linear_create)
COST_DECLARE(linear_destroy)
COST_DECLARE(linear_fwd)
COST_DECLARE(linear_bwd_data)
COST_DECLARE(linear_bwd_weight)
COST_DECLARE(attn_fwd)
COST_DECLARE(attn_bwd)
COST_DECLARE(attn_bwd_nbytes)
#undef COST_DECLARE
