/*
 * sequence_parallel.h - sequence parallelism: the residual stream is sharded over tensor-parallel ranks.
 *
 * Without sequence parallelism each tensor-parallel rank has all n rows.  With it (Korthikanti et al. 2022), rank i of
 * t has rows [i n/t, (i+1) n/t), which are a range of positions of all sequences.  Layers that are sharded by heads or
 * columns need all rows, so their input is all-gathered and their output is reduce-scattered.
 */
#pragma once
#include "nn/ctx.h"

/*
 * Return all rows of x.  With sequence parallelism, all-gather the rows to a buffer, whose contents are valid until the
 * next call.  Otherwise return x itself.
 */
struct meg_mat meg_sp_gather(struct meg_ctx *c, struct meg_mat x);
/*
 * Return the matrix in which to compute this rank's partial sum of all rows of y: a buffer, valid until meg_sp_reduce,
 * or y itself without sequence parallelism.
 */
struct meg_mat meg_sp_partial_sum(struct meg_ctx *c, struct meg_mat y);
/* Reduce the partial sums of all tensor-parallel ranks, and store this rank's rows of the sum in y. */
void meg_sp_reduce(struct meg_ctx *c, struct meg_mat y, struct meg_mat partial);
/* Return the index, among all rows, of the first row of x on this rank. */
int64_t meg_sp_first_row(const struct meg_ctx *c, struct meg_mat x);
