/*
 * train_conf.c - options of the training loop: batch sizes, length of the run, evaluation, recomputation, handling of
 * NaN, dry run.
 */
#include "run/train_conf.h"
#include <inttypes.h>
#include <math.h>
#include "base/log.h"
#include "base/num.h"
#include "option/check.h"

#define C struct meg_train_conf
const struct meg_opt meg_train_opts[] = {
    { "micro-batch-size", 0, MEG_I64(C, micro_batch_size), "N", NULL,
      "number of samples per forward and backward pass of a data-parallel rank" },
    { "global-batch-size", 0, MEG_I64(C, global_batch_size), "N", NULL,
      "number of samples per iteration; default: one micro-batch per data-parallel rank" },
    { "rampup-batch-size", 0, MEG_LIST(C, rampup_batch_size), "START INCREMENT SAMPLES", NULL,
      "increase the global batch size from START in steps of INCREMENT over the first SAMPLES samples; requires "
      "--train-samples" },
    { "decrease-batch-size-if-needed", 0, MEG_BOOL(C, decrease_batch_size_if_needed), NULL, "no",
      "round the global batch size down to a multiple of --micro-batch-size times the data-parallel size" },
    { "deepspeed_config", 0, MEG_STR(C, deepspeed_config), "FILE", NULL,
      "take batch sizes, --clip-grad, --zero-stage and the options of fp16 and bf16 that are not given from FILE, a "
      "configuration of DeepSpeed" },
    MEG_ALIAS("deepscale_config", "deepspeed_config"),
    { "seq-length", 0, MEG_I64(C, seq_length), "N", NULL,
      "number of tokens per sample; with --model t5: in the encoder" },
    MEG_ALIAS("encoder-seq-length", "seq-length"),
    { "decoder-seq-length", 0, MEG_I64(C, decoder_seq_length), "N", NULL,
      "number of tokens per sample in the decoder of T5; --seq-length is for the encoder" },
    { "train-iters", 0, MEG_I64(C, train_iters), "N", NULL, "number of iterations to train" },
    { "train-samples", 0, MEG_I64(C, train_samples), "N", NULL,
      "number of samples to train on, instead of --train-iters" },
    { "exit-interval", 0, MEG_I64(C, exit_interval), "N", NULL,
      "save and exit after an iteration whose number is divisible by N" },
    { "exit-duration-in-mins", 0, MEG_F64(C, exit_duration_min), "MINUTES", NULL,
      "save and exit after the first iteration that ends more than MINUTES after the start" },
    { "eval-iters", 0, MEG_I64(C, eval_iters), "N", "100",
      "number of global batches per evaluation; 0: do not evaluate" },
    { "eval-interval", 0, MEG_I64(C, eval_interval), "N", "1000", "number of iterations between evaluations" },
    { "skip-train", 0, MEG_BOOL(C, skip_train), NULL, "no", "evaluate without training" },
    { "seed", 0, MEG_I64(C, seed), "N", "1234",
      "random seed of the initial weights, dropout, stochastic rounding and the order of samples" },
    { "distributed-timeout-minutes", 0, MEG_F64(C, timeout_min), "MINUTES", "10",
      "end the run when a rank waits more than MINUTES for another rank" },
    { "recompute-activations", 0, MEG_BOOL(C, recompute_activations), NULL, "no",
      "same as --recompute-granularity selective" },
    { "recompute-granularity", 0, MEG_ENUM(C, recompute_granularity), "selective|full", NULL,
      "recompute activations in the backward pass to save memory: in attention (selective), or in complete "
      "layers (full)" },
    { "recompute-method", 0, MEG_ENUM(C, recompute_method), "uniform|block", NULL,
      "how --recompute-granularity full recomputes: keep one input per --recompute-num-layers layers (uniform), or "
      "recompute only the first that many layers of each stack in a model chunk (block)" },
    { "recompute-num-layers", 0, MEG_I64(C, recompute_layers), "N", NULL,
      "with --recompute-method: number of layers per group (uniform), or number of recomputed layers per stack in a "
      "model chunk (block)" },
    { "distribute-saved-activations", 0, MEG_BOOL(C, distribute_saved_activations), NULL, "no",
      "with --recompute-granularity full: shard the stored layer inputs over the tensor-parallel ranks" },
    { "cuda-graph-impl", 0, MEG_ENUM(C, cuda_graph_impl), "none|local", "none",
      "on GPUs, launch kernels one by one (none), or those of layers, embeddings, heads and the optimizer as CUDA "
      "graphs "
      "(local)" },
    { "enable-cuda-graph", 0, MEG_BOOL(C, enable_cuda_graph), NULL, "no", "same as --cuda-graph-impl local" },
    { "calculate-per-token-loss", 0, MEG_BOOL(C, calculate_per_token_loss), NULL, "no",
      "weight the loss of each micro-batch by its number of unmasked tokens (--model gpt)" },
    { "no-check-for-nan-in-loss-and-grad", 0, MEG_STORE_FALSE(C, check_for_nan), NULL, "no",
      "continue when a loss or gradient is not finite" },
    { "on-nan", 0, MEG_ENUM(C, on_nan), "abort|skip|rollback", "abort",
      "when a loss or gradient is not finite: end the run (abort), skip the iteration (skip), or skip the iteration "
      "and reload the newest checkpoint (rollback)" },
    { "check-weight-hash-across-dp-replicas-interval", 0, MEG_I64(C, weight_hash_interval), "N", NULL,
      "number of iterations between comparisons of the weights that are replicated over ranks" },
    { "check-for-spiky-loss", 0, MEG_BOOL(C, check_for_spiky_loss), NULL, "no",
      "warn when the language-model loss changes by 20% or more in one iteration" },
    { "model-preset", 0, MEG_STR(C, model_preset), "NAME", NULL,
      "set the model options to those of the published model NAME; options after --model-preset override them" },
    { "list-presets", 0, MEG_BOOL(C, list_presets), NULL, NULL,
      "print the names of --model-preset and the numbers of parameters, and exit" },
    { "dry-run", 0, MEG_BOOL(C, dry_run), NULL, "no",
      "print the estimated memory, communication and time of the run, and exit" },
    { "plan", 0, MEG_BOOL(C, plan), NULL, "no", "print the fastest parallel layouts that fit in memory, and exit" },
    { "world-size", 0, MEG_I64(C, world_size), "N", NULL,
      "number of ranks for --dry-run and --plan; default: the number of ranks that the launcher started" },
    { "hardware", 0, MEG_ENUM(C, hardware), "cpu|a100|h100|h200", "cpu", "hardware model for --dry-run and --plan" },
    { 0 }
};

static const struct meg_opt_range ranges[] = {
    { "micro-batch-size", offsetof(C, micro_batch_size), 1, INT32_MAX },
    { "global-batch-size", offsetof(C, global_batch_size), 1, INT32_MAX },
    { "seq-length", offsetof(C, seq_length), 1, INT32_MAX },
    { "decoder-seq-length", offsetof(C, decoder_seq_length), 2, INT32_MAX },
    { "train-iters", offsetof(C, train_iters), 0, INT64_MAX },
    { "train-samples", offsetof(C, train_samples), 1, INT64_MAX },
    { "exit-interval", offsetof(C, exit_interval), 1, INT64_MAX },
    { "eval-iters", offsetof(C, eval_iters), 0, INT64_MAX },
    { "eval-interval", offsetof(C, eval_interval), 1, INT64_MAX },
    { "check-weight-hash-across-dp-replicas-interval", offsetof(C, weight_hash_interval), 1, INT64_MAX },
    { "seed", offsetof(C, seed), 1, UINT32_MAX },
    { "world-size", offsetof(C, world_size), 1, INT32_MAX },
    { 0 },
};
#undef C

/* ---- the training loop ---- */

/* Return MEG_EUSAGE if a micro-batch of sequences of s tokens is too large; `option` is the option that sets s. */
static int check_micro_batch_tokens(const struct meg_train_conf *c, const char *option, int64_t s, struct meg_err *e)
{
    if (s == MEG_UNSET || c->micro_batch_size * s <= INT32_MAX)
        return 0;
    return meg_fail(e, MEG_EUSAGE,
                    "--micro-batch-size %" PRId64 ": the product with --%s %" PRId64 " must be at most %d tokens",
                    c->micro_batch_size, option, s, INT32_MAX);
}

int meg_train_conf_check(const struct meg_train_conf *c, struct meg_err *e)
{
    const bool has_iters = c->train_iters != MEG_UNSET, has_samples = c->train_samples != MEG_UNSET;
    const bool is_estimate = c->dry_run || c->plan;
    const struct meg_opt_rule required[] = {
        { c->micro_batch_size == MEG_UNSET, "micro-batch-size", " is required" },
        { c->seq_length == MEG_UNSET, "seq-length", " is required" },
        { 0 },
    };
    const struct meg_opt_rule rules[] = {
        { c->world_size != MEG_UNSET && !is_estimate, "world-size",
          ": requires --dry-run or --plan; otherwise the launcher sets the number of ranks" },
        { !c->check_for_nan && c->on_nan != MEG_ON_NAN_ABORT, "on-nan",
          ": contradicts --no-check-for-nan-in-loss-and-grad; use only one of them" },
        { !(c->timeout_min > 0), "distributed-timeout-minutes", ": must be above 0" },
        { !isnan(c->exit_duration_min) && !(c->exit_duration_min > 0), "exit-duration-in-mins", ": must be above 0" },
        { has_iters && has_samples, "train-samples", ": cannot be combined with --train-iters; use only one of them" },
        { !has_iters && !has_samples && !c->skip_train, "train-iters", " or --train-samples is required" },
        { c->rampup_batch_size.n > 0 && !has_samples, "rampup-batch-size",
          ": requires --train-samples instead of --train-iters" },
        { 0 },
    };
    int r;

    if ((r = meg_opt_check_rules(required, meg_train_opts, c, e)) < 0 || (r = meg_opt_check_ranges(ranges, c, e)) < 0 ||
        (r = check_micro_batch_tokens(c, "seq-length", c->seq_length, e)) < 0 ||
        (r = check_micro_batch_tokens(c, "decoder-seq-length", c->decoder_seq_length, e)) < 0)
        return r;
    return meg_opt_check_rules(rules, meg_train_opts, c, e);
}

/* ---- batch sizes ---- */

/* Return MEG_EUSAGE if there are more than 2^53 samples, the limit up to which a double represents integers exactly. */
static int check_total(const char *option, int64_t v, double samples, struct meg_err *e)
{
    if (v != MEG_UNSET && samples > 0x1p53)
        return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": corresponds to %.3g samples; the limit is 2^53", option, v,
                        samples);
    return 0;
}

static int check_totals(const struct meg_train_conf *c, const struct meg_batch_schedule *p, struct meg_err *e)
{
    const double global = (double)p->global, smallest = p->rampup_samples ? (double)p->start : global;
    const double iters = c->train_iters != MEG_UNSET     ? (double)c->train_iters
                         : c->train_samples != MEG_UNSET ? (double)c->train_samples / smallest
                                                         : 0;
    int r;

    if ((r = check_total("train-iters", c->train_iters, iters * global, e)) < 0 ||
        (r = check_total("train-samples", c->train_samples, (double)c->train_samples, e)) < 0)
        return r;
    return check_total("eval-iters", c->eval_iters,
                       (iters / (double)c->eval_interval + 1) * (double)c->eval_iters * global, e);
}

static int parse_rampup(const struct meg_train_conf *c, struct meg_batch_schedule *p, struct meg_err *e)
{
    int64_t *const field[] = { &p->start, &p->increment, &p->rampup_samples };

    for (int i = 0; i < 3 && c->rampup_batch_size.n > 0; i++) {
        if (!meg_parse_i64(c->rampup_batch_size.v[i], field[i]) || *field[i] <= 0)
            return meg_fail(e, MEG_EUSAGE, "--rampup-batch-size: '%s' is not an integer above 0",
                            c->rampup_batch_size.v[i]);
    }
    return 0;
}

int meg_train_batch_schedule(const struct meg_train_conf *c, int64_t dp, struct meg_batch_schedule *batch,
                             int64_t *train_iters, struct meg_err *e)
{
    struct meg_batch_schedule p = { 0 };
    int r;

    p.global = c->global_batch_size == MEG_UNSET ? c->micro_batch_size * dp : c->global_batch_size;
    p.micro = c->micro_batch_size;
    p.dp_size = dp;
    p.round_down = c->decrease_batch_size_if_needed;
    if ((r = parse_rampup(c, &p, e)) < 0 || (r = meg_batch_schedule_check(&p, e)) < 0 ||
        (r = check_totals(c, &p, e)) < 0)
        return r;
    *batch = p;
    *train_iters = c->train_iters != MEG_UNSET     ? c->train_iters
                   : c->train_samples != MEG_UNSET ? meg_batch_iterations(&p, c->train_samples)
                                                   : 0;
    return 0;
}

/* ---- recomputation ---- */

enum meg_recompute meg_train_recompute(const struct meg_train_conf *c)
{
    if (c->recompute_activations || c->recompute_granularity == MEG_RECOMPUTE_GRANULARITY_SELECTIVE)
        return MEG_RECOMPUTE_SELECTIVE;
    if (c->recompute_granularity == MEG_RECOMPUTE_GRANULARITY_UNSET)
        return MEG_RECOMPUTE_NONE;
    return c->recompute_method == MEG_RECOMPUTE_METHOD_BLOCK ? MEG_RECOMPUTE_BLOCK : MEG_RECOMPUTE_UNIFORM;
}

void meg_train_recompute_warn(const struct meg_train_conf *c)
{
    const bool has_method = c->recompute_method != MEG_RECOMPUTE_METHOD_UNSET;

    if (meg_train_recompute(c) == MEG_RECOMPUTE_NONE && (has_method || c->recompute_layers != MEG_UNSET))
        meg_warn("--recompute-%s has no effect without --recompute-granularity full, as in Megatron-LM: no activations "
                 "are recomputed; add that option, or remove this one",
                 has_method ? "method" : "num-layers");
}

/*
 * Return MEG_EUSAGE if the layer inputs of a micro-batch, with sequences of s tokens, cannot be sharded over the
 * tensor-parallel ranks; `option` is the option that sets s.
 */
static int check_saved_activations(const struct meg_train_conf *c, const struct meg_layout *l, const char *option,
                                   int64_t s, struct meg_err *e)
{
    if (s == MEG_UNSET || c->micro_batch_size * s / l->cp % l->tp == 0)
        return 0;
    return meg_fail(e, MEG_EUSAGE,
                    "--distribute-saved-activations: --micro-batch-size %" PRId64 " times --%s %" PRId64
                    " divided by --context-parallel-size %" PRId64
                    " must be a multiple of --tensor-model-parallel-size %" PRId64,
                    c->micro_batch_size, option, s, l->cp, l->tp);
}

bool meg_train_uses_graphs(const struct meg_train_conf *c)
{
    return c->enable_cuda_graph || c->cuda_graph_impl == MEG_CUDA_GRAPH_LOCAL;
}

int meg_train_recompute_check(const struct meg_train_conf *c, const struct meg_layout *l, struct meg_err *e)
{
    const bool is_full = c->recompute_granularity == MEG_RECOMPUTE_GRANULARITY_FULL;
    const bool is_selective = meg_train_recompute(c) == MEG_RECOMPUTE_SELECTIVE;
    const bool has_method = c->recompute_method != MEG_RECOMPUTE_METHOD_UNSET;
    const bool has_layers = c->recompute_layers != MEG_UNSET;
    const bool is_distributed = c->distribute_saved_activations;
    const struct meg_opt_rule rules[] = {
        { c->recompute_activations && is_full, "recompute-granularity",
          ": contradicts --recompute-activations, which is selective" },
        { is_full && !(has_method && has_layers), "recompute-granularity",
          ": requires --recompute-method and --recompute-num-layers" },
        { is_selective && has_method, "recompute-method",
          ": requires --recompute-granularity full, but recomputation is selective" },
        { is_selective && has_layers, "recompute-num-layers",
          ": requires --recompute-granularity full, but recomputation is selective" },
        { is_full && c->recompute_layers < 1, "recompute-num-layers", ": must be at least 1" },
        { is_distributed && !is_full, "distribute-saved-activations", ": requires --recompute-granularity full" },
        { is_distributed && l->tp == 1, "distribute-saved-activations",
          ": requires --tensor-model-parallel-size of 2 or more" },
        { is_distributed && l->has_sp, "distribute-saved-activations",
          ": cannot be combined with --sequence-parallel, which already shards the inputs" },
        { 0 },
    };
    int r = meg_opt_check_rules(rules, meg_train_opts, c, e);

    if (r < 0 || !is_distributed)
        return r;
    if ((r = check_saved_activations(c, l, "seq-length", c->seq_length, e)) < 0)
        return r;
    return check_saved_activations(c, l, "decoder-seq-length", c->decoder_seq_length, e);
}
