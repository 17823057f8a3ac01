/*
 * cost.h - cost model of a training run: memory, communication and time of a step.
 *
 * The cost model allocates no tensors.  It runs each distinct part of the model, such as a layer, with operations that
 * count (count_ops.h), and sums the counts of a stage's parts.  Memory and communication are computed for one rank,
 * given by its coordinates; reports show the stages that meg_cost_is_representative selects.  The time of a step is
 * computed from the times of all pipeline stages (Narayanan et al. 2021).
 */
#pragma once
#include "plan/hardware.h"
#include "run/run_spec.h"

/* The counts of a micro-batch in each part of the model: FLOPs, bytes, times (count_model.h). */
struct meg_cost_counts;

struct meg_cost_model {
    const struct meg_model_conf *model; /* configuration that meg_model_conf_check has accepted */
    const struct meg_optim_conf *optim;
    const struct meg_ops *op;               /* backend, which chooses the sizes of some buffers */
    struct meg_layout layout;               /* layout after meg_layout_set_model and meg_zero_fit */
    struct meg_pipe_schedule_conf schedule; /* pipeline schedule of one iteration */
    struct meg_model_run run;               /* runtime configuration of all stages; see meg_run_spec_stage */
    const struct meg_hardware *hw;
    int threads;                    /* per rank (meg_hardware_threads) */
    struct meg_cost_counts *counts; /* result of meg_cost_count */
    double sequence_flops;          /* result of meg_cost_model_flops */
    struct meg_params *params;      /* set by meg_model_params; functions shard it for one rank at a time */
    bool overlaps_grad_reduce;      /* reduce gradients during the last backward pass */
    bool overlaps_param_gather;     /* all-gather parameters during the next forward pass */
    bool uses_host_comm;            /* ranks are processes that communicate through host memory (MPI) */
    int num_scalar_reduces; /* number of norms and counts that a step all-reduces over the model-parallel ranks */
    bool has_doc_start;     /* micro-batches have the array doc_start (--reset-attention-mask) */
    bool is_async_save, saves_optim; /* saves run in the background; saves include the optimizer state */
    bool stores_scores; /* attention scores are stored, as before FlashAttention; for comparison with publications */
};

/*
 * Make the cost model of a run.  num_micro is the number of micro-batches per step and data-parallel rank.  *m borrows
 * s->job and the stage table of s->layout.  Free it with meg_cost_model_free.
 */
void meg_cost_model_make(struct meg_cost_model *m, const struct meg_run_spec *s, int64_t num_micro);
void meg_cost_model_free(struct meg_cost_model *m);

/*
 * Set all fields as meg_cost_model_make does, except counts, params and sequence_flops, which other functions require.
 * The caller sets these fields and frees them; meg_cost_model_free must not be called.
 */
void meg_cost_model_init(struct meg_cost_model *m, const struct meg_run_spec *s, int64_t num_micro);
/*
 * Return the FLOPs of forward and backward of a sequence, as Megatron counts them for TFLOP/s and MFU: those of the
 * layers and of the logits, including masked attention scores but not recomputation.  The sequence has s tokens and, in
 * the encoder of T5, s_enc tokens.
 */
double meg_cost_model_flops(const struct meg_model_conf *c, int64_t s, int64_t s_enc);
/*
 * Count the FLOPs, bytes and times of a micro-batch in each part of the model.  Free the result with
 * meg_cost_counts_free.  The counts depend on the model, the sequence lengths, the micro-batch size, the dtypes, the
 * hardware, tensor, sequence, context and expert parallelism, selective recomputation, and whether the schedule defers
 * weight gradients.  They do not depend on the stages of the pipeline, data parallelism or the number of micro-batches.
 */
struct meg_cost_counts *meg_cost_count(const struct meg_cost_model *m);
void meg_cost_counts_free(struct meg_cost_counts *counts);

/*
 * Return whether a report includes a stage.  The first and the last stage are included.  Of the stages between them
 * that have equal layers in each chunk, only the first one is included, because it needs the most memory.  The rank
 * that represents a stage has the coordinates { .pp = stage }: the first rank of a tensor-parallel group has the
 * largest shards.
 */
bool meg_cost_is_representative(const struct meg_cost_model *cost, int64_t stage);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Types of memory of a rank.  The first types are the arenas of model, optimizer and pipeline. */
enum meg_cost_memory_type {
    MEG_COST_MEM_PARAMS,
    MEG_COST_MEM_GRADS,
    MEG_COST_MEM_MAIN_PARAMS,
    MEG_COST_MEM_OPTIM,
    MEG_COST_MEM_ACTIVATIONS,
    MEG_COST_MEM_WORKSPACE,
    MEG_COST_MEM_PIPELINE,
    MEG_COST_MEM_COMM_WORKSPACE, /* receive buffers of collectives through host memory */
    MEG_COST_MEM_ASYNC_SAVE,     /* copy of the state that a background save writes */
    MEG_COST_MEM_TYPES
};
enum { MEG_COST_MEM_ARENAS = MEG_COST_MEM_COMM_WORKSPACE }; /* number of arenas */
extern const char *const meg_cost_memory_name[MEG_COST_MEM_TYPES];
/*
 * Return n such that the first n types are in device memory: all types on a CPU, only the arenas on a GPU.  The other
 * types are in host memory.
 */
static inline int meg_cost_num_device_types(bool is_cpu)
{
    return is_cpu ? (int)MEG_COST_MEM_TYPES : (int)MEG_COST_MEM_ARENAS;
}

/* Compute the bytes of each type of memory on the rank at coordinates `at`. */
void meg_cost_memory(double nbytes[MEG_COST_MEM_TYPES], const struct meg_cost_model *cost, struct meg_rank_coords at);
/* Return the largest number of bytes of device memory that a rank of a representative stage needs. */
double meg_cost_max_memory(const struct meg_cost_model *cost);

/* ---- communication --------------------------------------------------------------------------- */

enum meg_cost_group {
    MEG_COST_GROUP_TP,
    MEG_COST_GROUP_CP,
    MEG_COST_GROUP_EP,
    MEG_COST_GROUP_ETP, /* expert tensor-parallel, if it is not the tensor-parallel group */
    MEG_COST_GROUP_PP,
    MEG_COST_GROUP_DP_CP, /* data- and context-parallel */
    MEG_COST_GROUP_MP,    /* model-parallel: tensor, expert and pipeline */
    MEG_COST_GROUP_EMBEDDING,
    MEG_COST_GROUPS
};
extern const char *const meg_cost_group_name[MEG_COST_GROUPS];

/* Compute the bytes that the rank at coordinates `at` sends in each group per step, counted as in comm/comm.h. */
void meg_cost_comm_volume(double nbytes[MEG_COST_GROUPS], const struct meg_cost_model *cost, struct meg_rank_coords at);
/*
 * Set nbytes to the bytes that this rank has sent so far in each group of a mesh.  meg_cost_comm_volume predicts by how
 * much these numbers grow in a step.
 */
void meg_cost_comm_volume_measured(double nbytes[MEG_COST_GROUPS], const struct meg_mesh *mesh);

/* ---- time ------------------------------------------------------------------------------------ */

/*
 * Estimated times of a step in seconds, and two fractions: `bubble` and `mfu`.  The time of a micro-batch on a stage is
 * the sum of the times of GEMMs, attention, memory-bound operations and collectives, without overlap.  Transfers
 * between stages overlap with computation as the schedule allows.
 */
struct meg_cost_time {
    double gemm, attention, memory_bound, comm; /* sums over all micro-batches on the busiest stage */
    double bubble;                              /* idle time of the busiest stage, divided by its busy time */
    double grad_reduce; /* time of gradient reduction and parameter all-gather that does not overlap with computation */
    double update;      /* optimizer update */
    double step;        /* total */
    double mfu;         /* model FLOP/s utilization: model FLOP/s divided by the peak FLOP/s of all ranks */
};

/*
 * Estimate the time of a step.  If `simulate` is true, the pipeline schedule is simulated; otherwise the bubble is
 * (pp - 1) / (vp * microbatches), the bubble of equal stages.
 */
void meg_cost_step_time(struct meg_cost_time *t, const struct meg_cost_model *cost, bool simulate);
/*
 * Return a lower bound of the step time that meg_cost_step_time estimates without simulation.  The bound omits gradient
 * reduction, parameter all-gather and update, and is faster to compute.
 */
double meg_cost_time_bound(const struct meg_cost_model *cost);
