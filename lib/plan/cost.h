/*
 * A run on paper: what its ranks hold, send and take, by plain arithmetic over model, layout and hardware.
 * Nothing is allocated but tables, and no rank is visited but one of each kind: a layout of 10^5 ranks costs
 * what one of ten does.  DESIGN.md §5 and §7; Korthikanti et al. 2022 and Narayanan et al. 2021 for the
 * arithmetic of layers and pipelines.
 */
#ifndef MEG_PLAN_COST_H
#define MEG_PLAN_COST_H
#include "plan/hardware.h"
#include "run/run_spec.h"

MEG_BEGIN_DECLS

struct meg_cost_model {
    const struct meg_gpt_conf *model; /* checked */
    const struct meg_optim_conf *optim;
    struct meg_layout layout;               /* fitted */
    struct meg_pipe_schedule_conf schedule; /* of a step's micro-batches, the most there are */
    struct meg_gpt_run run;                 /* of every rank; meg_cost_stage_run says what depends on the stage */
    bool overlaps_sums, overlaps_gather;    /* gradients are added up while the last backward pass goes on, and
                                                parameters gathered while the next forward pass does */
    bool is_on_hosts;                       /* ranks are processes whose messages MPI carries */
    int sums;                               /* numbers a step adds up over the model: norms, counts */
    bool copies_state, copies_optim;        /* what is saved in the background: weights; the optimizer's state, too */
    bool keeps_scores;                      /* attention writes its scores to memory, as before Dao et al. 2022;
                                                never so here: for runs of others */
};

/* The cost model of a run whose steps have num_micro micro-batches per data-parallel rank; it borrows s->job. */
struct meg_cost_model meg_cost_model_make(const struct meg_run_spec *s, int64_t num_micro);

/*
 * One rank of each kind, and their number: of the first stage, the second and the last.  The first of a
 * tensor-parallel group has the most; stages between the second and the last have what the second has, or less.
 */
int meg_cost_representatives(struct meg_rank_coords at[3], const struct meg_layout *l);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Bytes of a rank, by what they are for: first the arenas. */
enum meg_cost_memory_type {
    MEG_COST_MEM_PARAMS,
    MEG_COST_MEM_GRADS,
    MEG_COST_MEM_MAIN_PARAMS,
    MEG_COST_MEM_MAIN_GRADS,
    MEG_COST_MEM_OPTIM,
    MEG_COST_MEM_ACTIVATIONS,
    MEG_COST_MEM_WORKSPACE,
    MEG_COST_MEM_PIPELINE,
    MEG_COST_MEM_ARENAS,
    MEG_COST_MEM_COMM_WORKSPACE = MEG_COST_MEM_ARENAS, /* on hosts, what arrives in collectives */
    MEG_COST_MEM_ASYNC_SAVE,
    MEG_COST_MEM_TYPES
};
extern const char *const meg_cost_memory_name[MEG_COST_MEM_TYPES];

/* Of the rank at a place. */
void meg_cost_memory(double nbytes[MEG_COST_MEM_TYPES], const struct meg_cost_model *p, struct meg_rank_coords at);
/* The most in all over all ranks. */
double meg_cost_max_memory(const struct meg_cost_model *p);

/* ---- messages -------------------------------------------------------------------------------- */

enum meg_cost_group {
    MEG_COST_GROUP_TP,
    MEG_COST_GROUP_CP,
    MEG_COST_GROUP_PP,
    MEG_COST_GROUP_DP_CP, /* data- and context-parallel */
    MEG_COST_GROUP_MP,
    MEG_COST_GROUP_EMBEDDING,
    MEG_COST_GROUPS
};
extern const char *const meg_cost_group_name[MEG_COST_GROUPS];

/* Bytes that the rank at a place sends in each group in one step, counted as in comm/comm.h. */
void meg_cost_comm_volume(double nbytes[MEG_COST_GROUPS], const struct meg_cost_model *p, struct meg_rank_coords at);
/* What the groups of a mesh have counted so far; the difference over a step equals the above. */
void meg_cost_comm_volume_measured(double nbytes[MEG_COST_GROUPS], const struct meg_mesh *mesh);
/* ---- time ------------------------------------------------------------------------------------ */

/*
 * Seconds of a step.  A micro-batch of a stage is the sum of its matrix products, attention, passes over memory
 * and collectives, none hidden behind another; transfers between stages overlap as the schedule lets them.
 */
struct meg_cost_time {
    double products, attention, passes, collectives; /* of the busiest stage's micro-batches */
    double bubble;                                   /* its idle time until all are through, as a share of the busy */
    double reduction, update;                        /* of gradients and to gather weights; of weights */
    double step;
    double mfu; /* meg_gpt_flops of the step over what the ranks could do */
};

/*
 * threads: of a rank, where the hardware is counted in cores; else 1.  Where the schedule is not played its bubble
 * is that of equal parts, (pp - 1) / (vp microbatches).
 */
void meg_cost_step_time(struct meg_cost_time *t, const struct meg_cost_model *p, const struct meg_hardware *hw,
                        int threads, bool is_played);
/* Seconds that no step takes less of, much sooner known: of its micro-batches. */
double meg_cost_time_bound(const struct meg_cost_model *p, const struct meg_hardware *hw, int threads);

MEG_END_DECLS
#endif
