/* What the files of the planner share. */
#ifndef MEG_PLAN_INTERNAL_H
#define MEG_PLAN_INTERNAL_H
#include "plan/cost.h"

/*
 * A schedule with some of its micro-batches left out, whole groups of so many: a long list repeats itself in the
 * middle.  Slots and buffers are those of the long one.
 */
struct meg_pipe_schedule_conf cost_short_schedule(const struct meg_pipe_schedule_conf *c, int64_t *groups,
                                                  int64_t *group);
/* What meg_pipe_schedule_cost gives, by that of short schedules. */
double cost_makespan(const struct meg_pipe_schedule_conf *c, const struct meg_pipe_schedule_times *t);

/* Rows of a micro-batch on a rank: of what is cut by heads or columns, and of the residual stream. */
struct cost_rows {
    int64_t n, m;
};

static inline struct cost_rows cost_local_rows(const struct meg_cost_model *p)
{
    const struct meg_layout *l = &p->layout;
    const int64_t n = p->run.s / l->cp * p->run.b;
    const struct cost_rows r = { n, l->has_sp ? n / l->tp : n };

    return r;
}

/* Bytes sent in a micro-batch's forward and backward steps, the latter in two parts; again: by what is recomputed. */
struct cost_comm {
    double fwd, bwd_input, bwd_weight;
};

/* One layer's in the tensor-parallel and in the context-parallel groups, of the model's layer number i. */
struct cost_comm cost_tp_comm(const struct meg_cost_model *p, bool defers_wgrad);
struct cost_comm cost_cp_comm(const struct meg_cost_model *p, int64_t i);
/* Of the embedding and of the head, tensor-parallel. */
struct cost_comm cost_embedding_comm(const struct meg_cost_model *p);
struct cost_comm cost_lm_head_comm(const struct meg_cost_model *p);

/* Of n layers of a chunk: how many are recomputed whole, and from how many kept inputs. */
int64_t cost_recomputed_layers(const struct meg_gpt_run *run, int64_t n, int64_t *inputs);

/* What a rank sends once a step: its gradients and parameters. */
struct cost_step_comm {
    double sums, gather; /* data-parallel: of gradients, to its slices or in all; of parameters */
    double replicated;   /* tensor-parallel: gradients of what all have, with sequence parallelism */
    double tied;         /* to the other end */
    double updated;      /* elements that it updates */
};
struct cost_step_comm cost_count_step_comm(const struct meg_cost_model *p, struct meg_rank_coords at);

#endif
