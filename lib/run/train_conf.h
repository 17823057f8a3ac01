/*
 * train_conf.h - options of the training loop: batch sizes, length of the run, evaluation, recomputation, handling of
 * NaN, dry run.
 */
#pragma once
#include "model/run.h"
#include "option/opt.h"
#include "run/batch_schedule.h"

/*
 * Values of --recompute-granularity, --recompute-method, --cuda-graph-impl, --on-nan and --hardware.  The enumerators
 * are in the order of the choices of the option.
 */
enum meg_recompute_granularity {
    MEG_RECOMPUTE_GRANULARITY_UNSET = MEG_ENUM_UNSET,
    MEG_RECOMPUTE_GRANULARITY_SELECTIVE,
    MEG_RECOMPUTE_GRANULARITY_FULL
};
enum meg_recompute_method {
    MEG_RECOMPUTE_METHOD_UNSET = MEG_ENUM_UNSET,
    MEG_RECOMPUTE_METHOD_UNIFORM,
    MEG_RECOMPUTE_METHOD_BLOCK
};
enum meg_cuda_graph_impl { MEG_CUDA_GRAPH_NONE, MEG_CUDA_GRAPH_LOCAL };
enum meg_on_nan { MEG_ON_NAN_ABORT, MEG_ON_NAN_SKIP, MEG_ON_NAN_ROLLBACK };
enum meg_hardware_type { MEG_HARDWARE_CPU, MEG_HARDWARE_A100, MEG_HARDWARE_H100, MEG_HARDWARE_H200 };

struct meg_train_conf {
    int64_t micro_batch_size, global_batch_size;
    struct meg_str_list rampup_batch_size; /* START INCREMENT SAMPLES */
    bool decrease_batch_size_if_needed;
    const char *deepspeed_config;
    int64_t seq_length, decoder_seq_length;
    int64_t train_iters, train_samples; /* exactly one is required; with skip_train, at most one */
    int64_t exit_interval;
    double exit_duration_min;
    int64_t eval_iters, eval_interval;
    bool skip_train;
    int64_t seed;
    double timeout_min; /* maximum time in minutes that ranks wait for each other */
    bool recompute_activations, distribute_saved_activations;
    enum meg_recompute_granularity recompute_granularity;
    enum meg_recompute_method recompute_method;
    int64_t recompute_layers;
    enum meg_cuda_graph_impl cuda_graph_impl;
    bool enable_cuda_graph;
    enum meg_on_nan on_nan;
    int64_t weight_hash_interval;
    bool calculate_per_token_loss, check_for_nan, check_for_spiky_loss;
    const char *model_preset; /* NULL: the options of the preset have been set (meg_opt_set_presets) */
    bool list_presets;
    bool dry_run, plan; /* do not train: print estimates for this run (dry_run) or the fastest layouts (plan) */
    int64_t world_size; /* number of ranks for dry_run and plan; MEG_UNSET: the number of ranks that were started */
    enum meg_hardware_type hardware; /* hardware model for dry_run and plan */
};
extern const struct meg_opt meg_train_opts[];

/* Return MEG_EUSAGE if a required option is missing, or options are out of range or contradict each other. */
int meg_train_conf_check(const struct meg_train_conf *c, struct meg_err *e);

/*
 * Derive the batch sizes for dp data-parallel ranks, and the number of iterations, from options that
 * meg_train_conf_check has accepted.  Return MEG_EUSAGE if a batch size is invalid or there are more than 2^53 samples.
 */
int meg_train_batch_schedule(const struct meg_train_conf *c, int64_t dp, struct meg_batch_schedule *batch,
                             int64_t *train_iters, struct meg_err *e);

/* Return MEG_EUSAGE if the recomputation options are invalid, or contradict each other or the layout. */
int meg_train_recompute_check(const struct meg_train_conf *c, const struct meg_layout *l, struct meg_err *e);
/* Print a warning if recomputation options have no effect, because --recompute-granularity is not set. */
void meg_train_recompute_warn(const struct meg_train_conf *c);
/* Return whether the options select CUDA graphs. */
bool meg_train_uses_graphs(const struct meg_train_conf *c);
/* Return the recomputation mode that the options select.  meg_train_recompute_check must have accepted the options. */
enum meg_recompute meg_train_recompute(const struct meg_train_conf *c);
