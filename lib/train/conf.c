#include "train/conf.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/num.h"

#define C struct meg_train_conf
const struct meg_opt meg_train_opts[] = {
    { "micro-batch-size", 0, MEG_I64(C, micro_batch_size), "N", NULL, "samples that go through the model at once" },
    { "global-batch-size", 0, MEG_I64(C, global_batch_size), "N", NULL,
      "samples a step; when not given, a micro-batch of each data-parallel rank" },
    { "rampup-batch-size", 0, MEG_LIST(C, rampup_batch_size), "START INCREMENT SAMPLES", NULL,
      "grow the batch from START by INCREMENT over SAMPLES; with --train-samples" },
    { "decrease-batch-size-if-needed", 0, MEG_BOOL(C, decrease_batch_size_if_needed), NULL, "no",
      "round the batch down to whole micro-batches" },
    { "seq-length", 0, MEG_I64(C, seq_length), "N", NULL, "tokens in a sample" },
    MEG_ALIAS("encoder-seq-length", "seq-length"),
    { "train-iters", 0, MEG_I64(C, train_iters), "N", NULL, "steps to train" },
    { "train-samples", 0, MEG_I64(C, train_samples), "N", NULL, "samples to train on, in place of --train-iters" },
    { "exit-interval", 0, MEG_I64(C, exit_interval), "N", NULL, "save and exit after an iteration that N divides" },
    { "exit-duration-in-mins", 0, MEG_F64(C, exit_duration_min), "MINUTES", NULL,
      "save and exit after the first iteration that ends so late" },
    { "eval-iters", 0, MEG_I64(C, eval_iters), "N", "100", "batches of an evaluation; 0: do not evaluate" },
    { "eval-interval", 0, MEG_I64(C, eval_interval), "N", "1000", "iterations between evaluations" },
    { "skip-train", 0, MEG_BOOL(C, skip_train), NULL, "no", "evaluate only" },
    { "seed", 0, MEG_I64(C, seed), "N", "1234", "of initial weights, dropout and the order of data" },
    { "distributed-timeout-minutes", 0, MEG_F64(C, timeout_min), "X", "10",
      "how long to wait for other ranks before giving up" },
    { "recompute-activations", 0, MEG_BOOL(C, recompute_activations), NULL, "no",
      "the same as --recompute-granularity selective" },
    { "recompute-granularity", 0, MEG_STR(C, recompute_granularity), "selective|full", NULL,
      "compute again in backward: what attention makes of its heads, or whole layers" },
    { "recompute-method", 0, MEG_STR(C, recompute_method), "uniform|block", NULL,
      "of full: every N layers from one input, or the first N layers of a stage one by one" },
    { "recompute-num-layers", 0, MEG_I64(C, recompute_layers), "N", NULL, "the N of --recompute-method" },
    { "distribute-saved-activations", 0, MEG_BOOL(C, distribute_saved), NULL, "no",
      "tensor-parallel ranks share what is kept to compute layers again" },
    { "calculate-per-token-loss", 0, MEG_BOOL(C, calculate_per_token_loss), NULL, "no",
      "weigh micro-batches by their unmasked tokens" },
    { "no-check-for-nan-in-loss-and-grad", 0, MEG_STORE_FALSE(C, check_for_nan), NULL, "no",
      "go on when a loss or gradient is not finite" },
    { "on-nan", 0, MEG_STR(C, on_nan), "abort|skip|rollback", "abort",
      "what to do about a loss or gradient that is not finite: end the run, leave the iteration out, or also go back "
      "to the state of the newest checkpoint" },
    { "check-weight-hash-across-dp-replicas-interval", 0, MEG_I64(C, replica_interval), "N", NULL,
      "iterations between comparisons of weights that ranks have copies of" },
    { "check-for-spiky-loss", 0, MEG_BOOL(C, check_for_spiky_loss), NULL, "no",
      "warn when the loss differs by a fifth from that of the step before" },
    { "dry-run", 0, MEG_BOOL(C, dry_run), NULL, "no", "say what would be done, and do nothing" },
    { "plan", 0, MEG_BOOL(C, plan), NULL, "no", "say which layouts of so many ranks would be fast, and do nothing" },
    { "world-size", 0, MEG_I64(C, world_size), "N", NULL, "of --dry-run and --plan: as if there were N ranks" },
    { "hardware", 0, MEG_STR(C, hardware), "cpu|a100|h100|h200", "cpu", "what their times and memory are of" },
    { 0 }
};
#undef C

#define C struct meg_train_ckpt_conf
const struct meg_opt meg_train_ckpt_opts[] = {
    { "save", 0, MEG_STR(C, save), "DIR", NULL, "folder for checkpoints" },
    { "save-interval", 0, MEG_I64(C, save_interval), "N", NULL, "iterations between checkpoints" },
    MEG_ALIAS("persistent-save-interval", "save-interval"),
    { "keep-last-n", 0, MEG_I64(C, keep_last), "N", NULL, "remove all but the N newest checkpoints after a save" },
    MEG_ALIAS("most-recent-k", "keep-last-n"),
    { "overwrite-checkpoints", 0, MEG_BOOL(C, overwrite), NULL, "no",
      "save over the checkpoints of another run in the --save folder" },
    { "exit-on-save-failure", 0, MEG_BOOL(C, exit_on_save_failure), NULL, "no",
      "end the run when a checkpoint cannot be saved, in place of trying again at the next interval" },
    { "load", 0, MEG_STR(C, load), "DIR", NULL, "folder of checkpoints, or Hugging Face model, to start from" },
    { "ckpt-step", 0, MEG_I64(C, ckpt_step), "N", NULL, "load iteration N in place of the latest" },
    { "exit-on-missing-checkpoint", 0, MEG_BOOL(C, exit_on_missing), NULL, "no",
      "fail where --load holds no checkpoint, in place of starting from scratch" },
    { "finetune", 0, MEG_BOOL(C, finetune), NULL, "no", "load weights only, and begin at iteration 0" },
    { "no-load-optim", 0, MEG_STORE_FALSE(C, load_optim), NULL, "no",
      "leave optimizer state and schedule of the checkpoint" },
    { "no-load-rng", 0, MEG_STORE_FALSE(C, load_rng), NULL, "no",
      "take the seed of dropout from --seed, not from the checkpoint" },
    { "async-save", 0, MEG_BOOL(C, async_save), NULL, "no",
      "write a copy of the state in the background while training goes on" },
    { "no-save-optim", 0, MEG_STORE_FALSE(C, save_optim), NULL, "no", "save without optimizer state" },
    { "no-save-rng", 0, MEG_STORE_FALSE(C, save_rng), NULL, "no", "save without the seed of dropout" },
    { "use-checkpoint-args", 0, MEG_BOOL(C, use_checkpoint_args), NULL, "no",
      "take the model's options from the checkpoint" },
    { "override-opt_param-scheduler", 0, MEG_BOOL(C, override_scheduler), NULL, "no",
      "where the checkpoint's schedule differs, take the command line's" },
    { "use-checkpoint-opt_param-scheduler", 0, MEG_BOOL(C, use_checkpoint_scheduler), NULL, "no",
      "where the checkpoint's schedule differs, take the checkpoint's" },
    { 0 }
};
#undef C

/* v, where given, is at least lowest. */
static int check(const char *option, int64_t v, int64_t lowest, struct meg_err *e)
{
    if (v != MEG_UNSET && v < lowest)
        return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": must be at least %" PRId64, option, v, lowest);
    return 0;
}

static int check_highest(const char *option, int64_t v, int64_t highest, struct meg_err *e)
{
    if (v > highest)
        return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": must be at most %" PRId64, option, v, highest);
    return 0;
}

/* A number of samples, exact in double and small enough for every product in 64 bits. */
static int check_total(const char *option, int64_t v, double total, struct meg_err *e)
{
    if (v != MEG_UNSET && total > 0x1p53)
        return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": makes %.3g samples, more than can be counted", option, v,
                        total);
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

static int read_rampup(const struct meg_train_conf *c, struct meg_batch_schedule *p, struct meg_err *e)
{
    int64_t *const to[] = { &p->start, &p->increment, &p->rampup_samples };

    if (c->rampup_batch_size.n == 0)
        return 0;
    if (c->train_samples == MEG_UNSET)
        return meg_fail(e, MEG_EUSAGE,
                        "--rampup-batch-size: steps of changing size need --train-samples, not --train-iters");
    for (int i = 0; i < 3; i++) {
        if (!meg_parse_i64(c->rampup_batch_size.v[i], to[i]) || *to[i] <= 0)
            return meg_fail(e, MEG_EUSAGE, "--rampup-batch-size: '%s' is not a number above 0",
                            c->rampup_batch_size.v[i]);
    }
    return 0;
}

int meg_train_conf_check(const struct meg_train_conf *c, int64_t ranks, struct meg_batch_schedule *plan, int64_t *iters,
                         struct meg_err *e)
{
    struct meg_batch_schedule p = { 0 };
    int r;

    if (c->micro_batch_size == MEG_UNSET)
        return meg_fail(e, MEG_EUSAGE, "--micro-batch-size is required");
    if (c->seq_length == MEG_UNSET)
        return meg_fail(e, MEG_EUSAGE, "--seq-length is required");
    if ((r = check("micro-batch-size", c->micro_batch_size, 1, e)) < 0 ||
        (r = check("global-batch-size", c->global_batch_size, 1, e)) < 0 ||
        (r = check("seq-length", c->seq_length, 1, e)) < 0 || (r = check("train-iters", c->train_iters, 0, e)) < 0 ||
        (r = check("train-samples", c->train_samples, 1, e)) < 0 ||
        (r = check("exit-interval", c->exit_interval, 1, e)) < 0 ||
        (r = check("eval-iters", c->eval_iters, 0, e)) < 0 ||
        (r = check("eval-interval", c->eval_interval, 1, e)) < 0 ||
        (r = check("check-weight-hash-across-dp-replicas-interval", c->replica_interval, 1, e)) < 0 ||
        (r = check("seed", c->seed, 1, e)) < 0 || (r = check("world-size", c->world_size, 1, e)) < 0)
        return r;
    if ((r = check_highest("micro-batch-size", c->micro_batch_size, INT32_MAX, e)) < 0 ||
        (r = check_highest("global-batch-size", c->global_batch_size, INT32_MAX, e)) < 0 ||
        (r = check_highest("seq-length", c->seq_length, INT32_MAX, e)) < 0 ||
        (r = check_highest("seed", c->seed, UINT32_MAX, e)) < 0 ||
        (r = check_highest("world-size", c->world_size, INT32_MAX, e)) < 0)
        return r;
    if (c->micro_batch_size * c->seq_length > INT32_MAX)
        return meg_fail(e, MEG_EUSAGE,
                        "--micro-batch-size %" PRId64 ": times --seq-length %" PRId64 " must be at most %d tokens",
                        c->micro_batch_size, c->seq_length, INT32_MAX);
    if (c->world_size != MEG_UNSET && !c->dry_run && !c->plan)
        return meg_fail(e, MEG_EUSAGE,
                        "--world-size %" PRId64 ": only of --dry-run and --plan; how many ranks run is the launcher's",
                        c->world_size);
    if (!c->check_for_nan && strcmp(c->on_nan, "abort"))
        return meg_fail(e, MEG_EUSAGE, "--on-nan %s: --no-check-for-nan-in-loss-and-grad says not to look", c->on_nan);
    if (!(c->timeout_min > 0))
        return meg_fail(e, MEG_EUSAGE, "--distributed-timeout-minutes %g: must be above 0", c->timeout_min);
    if (!isnan(c->exit_duration_min) && !(c->exit_duration_min > 0))
        return meg_fail(e, MEG_EUSAGE, "--exit-duration-in-mins %g: must be above 0", c->exit_duration_min);
    if (c->train_iters != MEG_UNSET && c->train_samples != MEG_UNSET)
        return meg_fail(e, MEG_EUSAGE, "--train-samples %" PRId64 ": --train-iters %" PRId64 " is given, too",
                        c->train_samples, c->train_iters);
    if (c->train_iters == MEG_UNSET && c->train_samples == MEG_UNSET && !c->skip_train)
        return meg_fail(e, MEG_EUSAGE, "--train-iters or --train-samples is required");

    p.global = c->global_batch_size == MEG_UNSET ? c->micro_batch_size * ranks : c->global_batch_size;
    p.micro = c->micro_batch_size;
    p.dp_size = ranks;
    p.round_down = c->decrease_batch_size_if_needed;
    if ((r = read_rampup(c, &p, e)) < 0 || (r = meg_batch_schedule_check(&p, e)) < 0 ||
        (r = check_totals(c, &p, e)) < 0)
        return r;
    *plan = p;
    *iters = c->train_iters != MEG_UNSET     ? c->train_iters
             : c->train_samples != MEG_UNSET ? meg_batch_iterations(&p, c->train_samples)
                                             : 0;
    return 0;
}

enum meg_recompute meg_train_recompute(const struct meg_train_conf *c)
{
    if (c->recompute_activations || (c->recompute_granularity && !strcmp(c->recompute_granularity, "selective")))
        return MEG_RECOMPUTE_SELECTIVE;
    if (!c->recompute_granularity)
        return MEG_RECOMPUTE_NONE;
    return strcmp(c->recompute_method, "block") ? MEG_RECOMPUTE_UNIFORM : MEG_RECOMPUTE_BLOCK;
}

int meg_train_recompute_check(const struct meg_train_conf *c, const struct meg_layout *l, struct meg_err *e)
{
    const bool is_full = c->recompute_granularity && !strcmp(c->recompute_granularity, "full");

    if (c->recompute_activations && is_full)
        return meg_fail(e, MEG_EUSAGE, "--recompute-granularity full: --recompute-activations means selective");
    if (is_full != !!c->recompute_method || is_full != (c->recompute_layers != MEG_UNSET))
        return meg_fail(e, MEG_EUSAGE,
                        is_full ? "--recompute-granularity full: needs --recompute-method and --recompute-num-layers"
                                : "--recompute-method, --recompute-num-layers: need --recompute-granularity full");
    if (is_full && c->recompute_layers < 1)
        return meg_fail(e, MEG_EUSAGE, "--recompute-num-layers %" PRId64 ": must be at least 1", c->recompute_layers);
    if (!c->distribute_saved)
        return 0;
    if (!is_full)
        return meg_fail(e, MEG_EUSAGE, "--distribute-saved-activations: needs --recompute-granularity full");
    if (l->tp == 1 || l->has_sp)
        return meg_fail(e, MEG_EUSAGE,
                        "--distribute-saved-activations: needs --tensor-model-parallel-size of 2 or more, and no "
                        "--sequence-parallel, which shares them already");
    if (c->micro_batch_size * c->seq_length / l->cp % l->tp)
        return meg_fail(e, MEG_EUSAGE,
                        "--distribute-saved-activations: --micro-batch-size %" PRId64 " times --seq-length %" PRId64
                        " must be a multiple of --tensor-model-parallel-size %" PRId64,
                        c->micro_batch_size, c->seq_length, l->tp);
    return 0;
}

int meg_train_ckpt_conf_check(const struct meg_train_ckpt_conf *c, struct meg_err *e)
{
    int r;

    if ((r = check("save-interval", c->save_interval, 1, e)) < 0 || (r = check("ckpt-step", c->ckpt_step, 0, e)) < 0 ||
        (r = check("keep-last-n", c->keep_last, 1, e)) < 0)
        return r;
    if (c->ckpt_step != MEG_UNSET && !c->load)
        return meg_fail(e, MEG_EUSAGE, "--ckpt-step %" PRId64 ": needs --load DIR", c->ckpt_step);
    if (c->use_checkpoint_args && !c->load)
        return meg_fail(e, MEG_EUSAGE, "--use-checkpoint-args: needs --load DIR");
    if (c->finetune && !c->load)
        return meg_fail(e, MEG_EUSAGE, "--finetune: needs --load DIR");
    if (c->override_scheduler && c->use_checkpoint_scheduler)
        return meg_fail(e, MEG_EUSAGE,
                        "--override-opt_param-scheduler: --use-checkpoint-opt_param-scheduler says "
                        "the opposite");
    return 0;
}

const struct meg_opt meg_train_ignored_opts[] = {
    MEG_IGNORED("exit-signal-handler", NULL, "SIGTERM always saves and exits"),
    MEG_IGNORED("make-vocab-size-divisible-by", "N", "the vocabulary is not padded here"),
    MEG_IGNORED("pad-vocab-size-to", "N", "the vocabulary is not padded here"),
    MEG_IGNORED("use-cpu-initialization", NULL, "initial weights never depend on the layout"),
    MEG_IGNORED("no-initialization", NULL, "initial weights are always made"),
    MEG_IGNORED("num-workers", "N", "samples are read by a thread"),
    MEG_IGNORED("no-mmap-bin-files", NULL, "how a dataset is read is not a choice"),
    MEG_IGNORED("data-impl", "infer|lazy|cached|mmap", "the index of a dataset says what it is"),
    MEG_IGNORED("no-create-attention-mask-in-dataloader", NULL, "masks are never stored"),
    MEG_IGNORED("no-masked-softmax-fusion", NULL, "of Python kernels"),
    MEG_IGNORED("no-bias-dropout-fusion", NULL, "of Python kernels"),
    MEG_IGNORED("no-gradient-accumulation-fusion", NULL, "of Python kernels"),
    MEG_IGNORED("no-persist-layer-norm", NULL, "of Python kernels"),
    MEG_IGNORED("no-bias-swiglu-fusion", NULL, "of Python kernels"),
    MEG_IGNORED("no-rope-fusion", NULL, "of Python kernels"),
    MEG_IGNORED("cross-entropy-loss-fusion", NULL, "of Python kernels"),
    MEG_IGNORED("use-mcore-models", NULL, "there is one way to run a model"),
    MEG_IGNORED("transformer-impl", "local|transformer_engine", "there is one way to run a model"),
    MEG_IGNORED("use-legacy-models", NULL, "there is one way to run a model"),
    MEG_IGNORED("attention-backend", "flash|fused|unfused|local|auto", "there is one way to compute attention"),
    MEG_IGNORED("use-flash-attn", NULL, "there is one way to compute attention"),
    MEG_IGNORED("attention-softmax-in-fp32", NULL, "it always is"),
    MEG_IGNORED("apply-query-key-layer-scaling", NULL, "scores of attention are f32, which need no scaling"),
    MEG_IGNORED("fp16-lm-cross-entropy", NULL, "the loss is always f32"),
    MEG_IGNORED("grad-reduce-in-bf16", NULL, "gradients of --bf16 are f32, and added up so"),
    MEG_IGNORED("deterministic-mode", NULL, "results never depend on threads or time"),
    MEG_IGNORED("num-dataset-builder-threads", "N", "indices are built in order"),
    MEG_IGNORED("log-batch-size-to-tensorboard", NULL, "it always is"),
    MEG_IGNORED("manual-gc", NULL, "there is no Python to collect garbage"),
    MEG_IGNORED("manual-gc-interval", "N", "there is no Python to collect garbage"),
    MEG_IGNORED("no-manual-gc-eval", NULL, "there is no Python to collect garbage"),
    MEG_IGNORED("empty-unused-memory-level", "0|1|2", "memory is taken once, before the first step"),
    MEG_IGNORED("lazy-mpu-init", NULL, "of Megatron's start-up"),
    MEG_IGNORED("use-ring-exchange-p2p", NULL, "of a PyTorch build"),
    MEG_IGNORED("no-overlap-p2p-communication", NULL, "a transfer starts as soon as the schedule allows"),
    MEG_IGNORED("overlap-p2p-communication-warmup-flush", NULL, "a transfer starts as soon as the schedule allows"),
    MEG_IGNORED("no-align-grad-reduce", NULL, "stages never wait for each other to add up gradients"),
    MEG_IGNORED("no-align-param-gather", NULL, "stages never wait for each other to gather parameters"),
    MEG_IGNORED("ddp-average-in-collective", NULL,
                "the loss is divided before the backward pass, and gradients are summed"),
    MEG_IGNORED("no-scatter-gather-tensors-in-pipeline", NULL, "of Megatron's transport"),
    MEG_IGNORED("distributed-backend", "nccl|gloo", "how ranks were started decides it"),
    MEG_IGNORED("local-rank", "N", "how ranks were started decides it"),
    MEG_IGNORED("no-async-tensor-model-parallel-allreduce", NULL, "of Megatron's transport"),
    MEG_IGNORED("ckpt-format", "FORMAT", "--save writes what meg-ckpt(5) describes, --load finds out"),
    MEG_IGNORED("auto-detect-ckpt-format", NULL, "the format that is loaded is always detected"),
    MEG_IGNORED("use-dist-ckpt", NULL, "ranks always write and read their parts"),
    MEG_IGNORED("ckpt-fully-parallel-save", NULL, "ranks always write their parts"),
    MEG_IGNORED("no-ckpt-fully-parallel-save", NULL, "ranks always write their parts"),
    MEG_IGNORED("ckpt-fully-parallel-load", NULL, "ranks always read their parts"),
    MEG_IGNORED("ckpt-assume-constant-structure", NULL, "of Megatron's transport"),
    MEG_IGNORED("wandb-project", "NAME", "nothing is sent anywhere; see --log-json"),
    MEG_IGNORED("wandb-exp-name", "NAME", "nothing is sent anywhere; see --log-json"),
    MEG_IGNORED("wandb-save-dir", "DIR", "nothing is sent anywhere; see --log-json"),
    MEG_IGNORED("wandb-entity", "NAME", "nothing is sent anywhere; see --log-json"),
    MEG_IGNORED("no-one-logger", NULL, "nothing is sent anywhere; see --log-json"),
    MEG_IGNORED("timing-log-level", "0|1|2", "there are no timers"),
    MEG_IGNORED("timing-log-option", "max|minmax|all", "there are no timers"),
    MEG_IGNORED("log-timers-to-tensorboard", NULL, "there are no timers"),
    MEG_IGNORED("no-barrier-with-level-1-timing", NULL, "there are no timers"),
    MEG_IGNORED("log-memory-to-tensorboard", NULL, "memory does not change; see --dry-run"),
    MEG_IGNORED("log-world-size-to-tensorboard", NULL, "options are written there as text"),
    MEG_IGNORED("logging-level", "N", "-q and -v say how much is told"),
    MEG_IGNORED("tensorboard-queue-size", "N", "events are written at once"),
    { 0 }
};
