/*
 * internal.h - quantities that several files of the cost model use.
 */
#ifndef MEG_PLAN_INTERNAL_H
#define MEG_PLAN_INTERNAL_H
#include "plan/cost.h"

MEG_BEGIN_DECLS

/*
 * Shorten a schedule of many micro-batches, whose steady phase repeats itself: remove *groups groups of *group
 * micro-batches.  It needs the same slots and buffers.
 */
struct meg_pipe_schedule_conf cost_short_schedule(const struct meg_pipe_schedule_conf *c, int64_t *groups,
                                                  int64_t *group);
/* The makespan that meg_pipe_schedule_estimate computes, extrapolated from short schedules. */
double cost_makespan(const struct meg_pipe_schedule_conf *c, const struct meg_pipe_schedule_times *t);

/* Rows (tokens) of a micro-batch on a rank: of tensors sharded by heads or columns, and of the residual stream. */
struct cost_rows {
    int64_t rows, residual_rows;
};

static inline struct cost_rows cost_local_rows(const struct meg_cost_model *cost)
{
    const struct meg_layout *l = &cost->layout;
    const int64_t n = cost->run.s / l->cp * cost->run.b;
    const struct cost_rows r = { n, l->has_sp ? n / l->tp : n };

    return r;
}

/* Bytes sent per micro-batch: in the forward pass, and for the input and weight gradients of the backward pass. */
struct cost_comm {
    double fwd, bwd_input, bwd_weight;
};

/* Of one layer, in the tensor-parallel group and, for layer i of the model, in the context-parallel group. */
struct cost_comm cost_tp_comm(const struct meg_cost_model *cost, bool defers_wgrad);
struct cost_comm cost_cp_comm(const struct meg_cost_model *cost, int64_t i);
/* Of the embedding and the output layer, in the tensor-parallel group. */
struct cost_comm cost_embedding_comm(const struct meg_cost_model *cost);
struct cost_comm cost_lm_head_comm(const struct meg_cost_model *cost);

/* Return how many of a chunk's n layers are fully recomputed, and in *inputs from how many stored inputs. */
int64_t cost_recomputed_layers(const struct meg_gpt_run *run, int64_t n, int64_t *inputs);

/* Bytes that a rank sends once per step, and the elements that it updates. */
struct cost_step_comm {
    double grad_reduce, param_gather; /* data-parallel */
    double sp_grad_reduce; /* tensor-parallel: gradients of replicated parameters, with sequence parallelism */
    double embedding_grad; /* of a tied embedding, between first and last stage */
    double num_updated;    /* elements */
};
struct cost_step_comm cost_count_step_comm(const struct meg_cost_model *cost, struct meg_rank_coords at);

MEG_END_DECLS
#endif
