/* internal.h - declarations shared by the files of the cost model. */
#pragma once
#include "plan/count_model.h"

/*
 * Return c, but with fewer micro-batches if c has many: the steady phase of a schedule is periodic.  Set *groups to the
 * number of groups of micro-batches that were removed, and *group to the number of micro-batches per group.  The
 * numbers of slots and buffers do not change.
 */
struct meg_pipe_schedule_conf cost_short_schedule(const struct meg_pipe_schedule_conf *c, int64_t *groups,
                                                  int64_t *group);
/*
 * Return the makespan of a schedule (meg_pipe_schedule_estimate).  If there are many micro-batches, extrapolate it from
 * shorter schedules.
 */
double cost_makespan(const struct meg_pipe_schedule_conf *c, const struct meg_pipe_schedule_times *t);

/* Sum the counts of the parts of a chunk: layers, with their recomputation, embedding and heads. */
void cost_count_chunk(struct cost_part *sum, const struct meg_cost_model *cost, int64_t stage, int64_t chunk);

/*
 * Return the bytes of the tensors that virtual stage vstage - 1 sends to vstage; 0 if one of these stages does not
 * exist.  The gradients that vstage sends back have the same number of bytes.
 */
double cost_boundary_nbytes(const struct meg_cost_model *cost, int64_t vstage);

/* Return the number of pipeline stages with a replica of the parameters of tie k (parallel/layout.h). */
int64_t cost_tie_size(const struct meg_layout *l, int k);

/* Bytes that a rank sends per step to reduce gradients and to all-gather parameters, and the size of its update. */
struct cost_step_comm {
    double grad_reduce, param_gather; /* bytes in the data-parallel groups */
    double tp_grad_reduce;            /* bytes in the tensor-parallel group: gradients of replicated parameters */
    double etp_grad_reduce;           /* the same in the expert tensor-parallel group, if it is another group */
    double embedding_grad;            /* bytes between stages: gradients of tied parameters */
    double num_updated;               /* number of elements that the rank updates */
};
struct cost_step_comm cost_count_step_comm(const struct meg_cost_model *cost, struct meg_rank_coords at);
