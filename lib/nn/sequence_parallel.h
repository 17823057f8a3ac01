/*
 * sequence_parallel.h - the rows of the residual stream on tensor-parallel ranks.
 *
 * Without sequence parallelism each rank has all n rows.  With it (Korthikanti et al. 2022), rank i of t has rows
 * [i n/t, (i+1) n/t), which are complete positions.  Layers that are split by heads or columns work on all rows: their
 * input is all-gathered, their output is reduce-scattered.
 */
#ifndef MEG_NN_SEQUENCE_PARALLEL_H
#define MEG_NN_SEQUENCE_PARALLEL_H
#include "nn/ctx.h"

MEG_BEGIN_DECLS

/* Return all rows of x; they are valid until the next call. */
struct meg_mat meg_sp_gather(struct meg_ctx *c, struct meg_mat x);
/* Return the buffer of all rows for this rank's partial sum of y; it is valid until meg_sp_reduce. */
struct meg_mat meg_sp_partial_sum(struct meg_ctx *c, struct meg_mat y);
/* Reduce the partial sums of all ranks into y: this rank's rows of the sum. */
void meg_sp_reduce(struct meg_ctx *c, struct meg_mat y, struct meg_mat partial);
/* Return the index, among all rows, of the first row of x on this rank. */
int64_t meg_sp_first_row(const struct meg_ctx *c, struct meg_mat x);

MEG_END_DECLS
#endif
