/* old_options.c - options of earlier releases of Megatron-LM and of its forks that have other names here. */
#include "run/job.h"

const struct meg_opt meg_train_old_opts[] = {
    MEG_RENAMED("checkpoint-activations", NULL,
                "recompute-granularity=full recompute-method=uniform recompute-num-layers=1"),
    MEG_RENAMED("checkpoint-num-layers", "N", "recompute-num-layers"),
    MEG_RENAMED("distribute-checkpointed-activations", NULL, "distribute-saved-activations"),
    MEG_RENAMED("activations-checkpoint-method", "uniform|block",
                "recompute-method recompute-granularity=full recompute-num-layers=1"),
    MEG_RENAMED("activations-checkpoint-num-layers", "N", "recompute-num-layers"),
    MEG_RENAMED("override-lr-scheduler", NULL, "override-opt_param-scheduler"),
    MEG_RENAMED("use-checkpoint-lr-scheduler", NULL, "use-checkpoint-opt_param-scheduler"),
    MEG_RENAMED("multi-query-attention", NULL, "group-query-attention num-query-groups=1"),
    MEG_RENAMED("num-key-value-heads", "N", "num-query-groups group-query-attention=yes"),
    MEG_RENAMED("rotary-position-embeddings-theta", "X", "rotary-base"),
    MEG_RENAMED("no-position-embedding", NULL, "position-embedding-type=rope"),
    MEG_RENAMED("enable-zbh1-pipeline", NULL, "pipeline-schedule=zb-h1"),
    MEG_RENAMED("ds-sequence-parallel-size", "N", "context-parallel-size cp-comm-type=a2a"),
    MEG_RENAMED("tokenizer-special-tokens", "TOKEN...", "tiktoken-special-tokens"),
    MEG_RENAMED("eval-only", "true|false", "skip-train"),
    { 0 }
};
