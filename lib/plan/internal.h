/* internal.h - declarations shared by the files of the cost model. */
#ifndef MEG_PLAN_INTERNAL_H
#define MEG_PLAN_INTERNAL_H
#include "plan/cost.h"

MEG_BEGIN_DECLS

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

/*
 * Number of tokens of a micro-batch on a rank: `rows` inside attention and MLP, `residual_rows` in the residual stream,
 * which sequence parallelism shards.
 */
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

/*
 * Bytes that a rank sends per micro-batch: in the forward pass, for input gradients and for weight gradients.
 */
struct cost_comm {
    double fwd, bwd_input, bwd_weight;
};

/*
 * Return the bytes that a rank sends in the tensor-parallel group for one layer.  defers_wgrad states whether weight
 * gradients are computed in a separate step (struct meg_ctx).
 */
struct cost_comm cost_tp_comm(const struct meg_cost_model *cost, bool defers_wgrad);
/* Return the bytes that a rank sends in the context-parallel group for layer i of the model. */
struct cost_comm cost_cp_comm(const struct meg_cost_model *cost, int64_t i);
/* Return the bytes that a rank sends in the tensor-parallel group for the embedding. */
struct cost_comm cost_embedding_comm(const struct meg_cost_model *cost);
/* Return the bytes that a rank sends in the tensor-parallel group for the head. */
struct cost_comm cost_heads_comm(const struct meg_cost_model *cost);

/*
 * Return how many of a chunk's n layers are fully recomputed.  Set *inputs to the number of layer inputs that are
 * stored for the recomputation.
 */
int64_t cost_recomputed_layers(const struct meg_model_run *run, int64_t n, int64_t *inputs);

/* Bytes that a rank sends per step to reduce gradients and to all-gather parameters, and the size of its update. */
struct cost_step_comm {
    double grad_reduce, param_gather; /* bytes in the data-parallel groups */
    double sp_grad_reduce;            /* bytes in the tensor-parallel group: gradients of replicated parameters */
    double embedding_grad;            /* bytes between the first and the last stage: gradient of a tied embedding */
    double num_updated;               /* number of elements that the rank updates */
};
struct cost_step_comm cost_count_step_comm(const struct meg_cost_model *cost, struct meg_rank_coords at);

MEG_END_DECLS
#endif
