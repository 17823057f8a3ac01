/*
 * cost.h - analytic cost model of a training run: memory, communication and time of a step.
 *
 * Plain arithmetic over model, layout and hardware; no rank's tensors are allocated, and only one rank of each type of
 * pipeline stage is counted, so that a layout of 10^5 ranks takes as long as one of ten.  The arithmetic of layers is
 * that of Korthikanti et al. 2022, of pipelines that of Narayanan et al. 2021.
 */
#ifndef MEG_PLAN_COST_H
#define MEG_PLAN_COST_H
#include "plan/hardware.h"
#include "run/run_spec.h"

MEG_BEGIN_DECLS

struct meg_cost_model {
    const struct meg_gpt_conf *model; /* checked */
    const struct meg_optim_conf *optim;
    struct meg_layout layout;               /* fitted to the model */
    struct meg_pipe_schedule_conf schedule; /* pipeline schedule of one step */
    struct meg_gpt_run run;                 /* of every stage; see meg_run_spec_stage */
    bool overlaps_grad_reduce;              /* gradients are reduced during the last backward pass */
    bool overlaps_param_gather;             /* parameters are gathered during the next forward pass */
    bool uses_host_comm;                    /* ranks are processes that communicate through host memory (MPI) */
    int num_scalar_reduces;                 /* scalars that a step reduces over the model: norms, counts */
    bool is_async_save, saves_optim;        /* saves copy the weights; and the optimizer state */
    bool stores_scores; /* attention writes its scores to memory, as before Dao et al. 2022; to compare with published
                           runs, never so here */
};

/* The cost model of a run whose steps have num_micro micro-batches per data-parallel rank; it borrows s->job. */
struct meg_cost_model meg_cost_model_make(const struct meg_run_spec *s, int64_t num_micro);

/*
 * Fill at with one rank of each type of stage: first, second and last; return their number.  The first rank of a
 * tensor-parallel group needs the most; stages between the second and the last need as much as the second, or less.
 */
int meg_cost_representatives(struct meg_rank_coords at[3], const struct meg_layout *l);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Types of memory of a rank: first the arenas, then other allocations. */
enum meg_cost_memory_type {
    MEG_COST_MEM_PARAMS,
    MEG_COST_MEM_GRADS,
    MEG_COST_MEM_MAIN_PARAMS,
    MEG_COST_MEM_MAIN_GRADS,
    MEG_COST_MEM_OPTIM,
    MEG_COST_MEM_ACTIVATIONS,
    MEG_COST_MEM_WORKSPACE,
    MEG_COST_MEM_PIPELINE,
    MEG_COST_MEM_COMM_WORKSPACE, /* receive buffers of collectives through host memory */
    MEG_COST_MEM_ASYNC_SAVE,     /* the copy that a save in the background writes */
    MEG_COST_MEM_TYPES
};
enum { MEG_COST_MEM_ARENAS = MEG_COST_MEM_COMM_WORKSPACE }; /* the number of arenas */
extern const char *const meg_cost_memory_name[MEG_COST_MEM_TYPES];

/* Bytes of the rank at these coordinates. */
void meg_cost_memory(double nbytes[MEG_COST_MEM_TYPES], const struct meg_cost_model *cost, struct meg_rank_coords at);
/* Bytes of the rank that needs the most. */
double meg_cost_max_memory(const struct meg_cost_model *cost);

/* ---- communication --------------------------------------------------------------------------- */

enum meg_cost_group {
    MEG_COST_GROUP_TP,
    MEG_COST_GROUP_CP,
    MEG_COST_GROUP_PP,
    MEG_COST_GROUP_DP_CP, /* data- and context-parallel */
    MEG_COST_GROUP_MP,    /* model-parallel: tensor and pipeline */
    MEG_COST_GROUP_EMBEDDING,
    MEG_COST_GROUPS
};
extern const char *const meg_cost_group_name[MEG_COST_GROUPS];

/* Bytes that the rank at these coordinates sends in each group per step, counted as in comm/comm.h. */
void meg_cost_comm_volume(double nbytes[MEG_COST_GROUPS], const struct meg_cost_model *cost, struct meg_rank_coords at);
/* Bytes that the groups of a mesh have sent so far; the difference over a step equals meg_cost_comm_volume. */
void meg_cost_comm_volume_measured(double nbytes[MEG_COST_GROUPS], const struct meg_mesh *mesh);

/* ---- time ------------------------------------------------------------------------------------ */

/*
 * Seconds of a step.  The time of a micro-batch on a stage is the sum of its matrix products, attention, memory-bound
 * operations and collectives, without overlap; transfers between stages overlap as the schedule allows.
 */
struct meg_cost_time {
    double gemm, attention, memory_bound, comm; /* of all micro-batches on the busiest stage */
    double bubble;                              /* idle time of that stage, as a fraction of its busy time */
    double grad_reduce;                         /* of gradients and to gather parameters, where nothing overlaps it */
    double update;
    double step;
    double mfu; /* model FLOP utilization: meg_gpt_flops of the step over the peak of all ranks */
};

/*
 * Estimate a step.  threads: those of a rank where hw is one core, else 1.  Without simulate the pipeline bubble is
 * that of equal stages, (pp - 1) / (vp microbatches); with it, that of the schedule.
 */
void meg_cost_step_time(struct meg_cost_time *t, const struct meg_cost_model *cost, const struct meg_hardware *hw,
                        int threads, bool simulate);
/* A lower bound of meg_cost_step_time's step, from its micro-batches alone; much faster. */
double meg_cost_time_bound(const struct meg_cost_model *cost, const struct meg_hardware *hw, int threads);

MEG_END_DECLS
#endif
