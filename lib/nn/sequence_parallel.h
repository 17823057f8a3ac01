/*
 * Rows of the residual stream over tensor-parallel ranks.  Without sequence parallelism every rank has
 * all n rows.  With it (Korthikanti et al. 2022) rank i of t has rows [i n/t, (i+1) n/t), which are whole
 * positions; what is cut by heads or columns works on all rows, gathered before and summed after.
 */
#ifndef MEG_NN_SEQUENCE_PARALLEL_H
#define MEG_NN_SEQUENCE_PARALLEL_H
#include "nn/ctx.h"

MEG_BEGIN_DECLS

/* All rows of x; they stay valid until the next call. */
struct meg_mat meg_sp_gather(struct meg_ctx *c, struct meg_mat x);
/* Where this rank's addend to y, all rows of it, goes; valid until meg_sp_reduce. */
struct meg_mat meg_sp_partial_sum(struct meg_ctx *c, struct meg_mat y);
/* y = its rows of the sum of all ranks' addends. */
void meg_sp_reduce(struct meg_ctx *c, struct meg_mat y, struct meg_mat addend);
/* The first of x's rows here, counted in all rows. */
int64_t meg_sp_first_row(const struct meg_ctx *c, struct meg_mat x);

MEG_END_DECLS
#endif
