/* ignored_options.c - options of Megatron-LM and its forks that have no effect here, by reason. */
#include "run/job.h"

const struct meg_opt_names meg_train_ignored[] = {
    { "a run with --save always handles signals",
      "exit-signal-handler exit-signal-handler-for-dataloader exit-signal-handler-for-training exit-signal=SIGNAL" },
    { "the vocabulary is not padded",
      "make-vocab-size-divisible-by=N pad-vocab-size-to=N padded-vocab-size=N no-pad-vocab-size "
      "disable-pad-vocab-size" },
    { "initial weights do not depend on the layout", "use-cpu-initialization data-parallel-random-init" },
    { "weights are always initialized", "no-initialization init-model-with-meta-device" },
    { "one thread reads the samples", "num-workers=N valid-num-workers=N" },
    { "datasets are always memory-mapped",
      "no-mmap-bin-files mmap-warmup dataloader-fast-cache-load dataloader-defer-npy-index-mmap "
      "per-dataset-sequences-path=FILE" },
    { "the format is detected from the index of the dataset", "data-impl=infer|lazy|cached|mmap" },
    { "attention masks are never materialized", "no-create-attention-mask-in-dataloader" },
    { "it selects kernels of Megatron",
      "no-masked-softmax-fusion no-bias-dropout-fusion no-gradient-accumulation-fusion no-persist-layer-norm "
      "no-bias-swiglu-fusion no-rope-fusion cross-entropy-loss-fusion abort-on-unmet-fused-kernel-constraints "
      "no-clone-scatter-output-in-embedding disable-clone-scatter-output-in-embedding "
      "cross-entropy-fusion-impl=native|te disable-mem-efficient-ln ds-fused-adam fused-residual-rmsnorm "
      "use-fused-weighted-squared-relu use-transformer-engine-op-fuser use-te-activation-func disable-jit-fuser "
      "no-gradient-reduce-div-fusion "
      "mlp-chunks-for-prefill=N mlp-chunks-for-training=N use-gigatoken" },
    { "there is one implementation of the model",
      "use-mcore-models transformer-impl=local|transformer_engine use-legacy-models" },
    { "the device selects the implementation of attention",
      "attention-backend=flash|fused|unfused|local|auto use-flash-attn use-flash-attn-v1 use-flash-attn-v2 "
      "use-flash-attn-triton use-flash-attn-builder flash-attention-version=2|3|4 flash-decode" },
    { "softmax is always computed in fp32", "attention-softmax-in-fp32" },
    { "attention scores are fp32 and require no scaling by the layer number",
      "apply-query-key-layer-scaling no-query-key-layer-scaling" },
    { "the loss is always computed in fp32", "fp16-lm-cross-entropy" },
    { "--main-grads-dtype sets the dtype in which gradients are reduced with --bf16", "grad-reduce-in-bf16" },
    { "the dtype options of the optimizer do not require it", "use-precision-aware-optimizer" },
    { "sample indexes are built one at a time", "num-dataset-builder-threads=N" },
    { "the batch size is always written to TensorBoard", "log-batch-size-to-tensorboard" },
    { "it configures Python's garbage collector",
      "manual-gc manual-gc-interval=N no-manual-gc-eval disable-manual-gc-eval" },
    { "the buffers of the model are allocated once, before the first step", "empty-unused-memory-level=0|1|2" },
    { "it configures Megatron's start-up", "lazy-mpu-init" },
    { "operations are always executed once without a graph before they are captured", "cuda-graph-warmup-steps=N" },
    { "it requires a special build of PyTorch", "use-ring-exchange-p2p" },
    { "transfers always start as soon as the schedule allows",
      "no-overlap-p2p-communication overlap-p2p-communication-warmup-flush overlap-p2p-communication" },
    { "pipeline stages do not wait for each other to reduce gradients",
      "no-align-grad-reduce disable-align-grad-reduce" },
    { "pipeline stages do not wait for each other to gather parameters", "no-align-param-gather" },
    { "the loss is averaged before the backward pass, and gradients are summed", "ddp-average-in-collective" },
    { "it configures Megatron's communication",
      "no-scatter-gather-tensors-in-pipeline no-async-tensor-model-parallel-allreduce "
      "nccl-communicator-config-path=FILE disable-gloo-process-groups use-sharp sharp-enabled-group=dp|dp_replica "
      "high-priority-stream-groups=NAME... create-all-gather-group use-nccl-ub disable-symmetric-registration "
      "pipeline-model-parallel-comm-backend=nccl|ucc symmetric-ar-type=TYPE nccl-all-reduce-for-prefill "
      "distributed-timeout-seconds-after-init=N train-sync-interval=N" },
    { "the launcher and the device determine the communication library", "distributed-backend=nccl|gloo" },
    { "the launcher determines the rank", "local-rank=N" },
    { "--save writes the format of meg-ckpt(5), and --load detects the format",
      "ckpt-format=FORMAT dist-ckpt-format=FORMAT" },
    { "the format of a loaded checkpoint is always detected", "auto-detect-ckpt-format" },
    { "all ranks always write and read checkpoints in parallel", "use-dist-ckpt" },
    { "all ranks always write checkpoints in parallel", "ckpt-fully-parallel-save no-ckpt-fully-parallel-save" },
    { "all ranks always read checkpoints in parallel", "ckpt-fully-parallel-load" },
    { "it configures how Megatron saves or loads distributed checkpoints",
      "ckpt-assume-constant-structure dist-ckpt-strictness=MODE use-persistent-ckpt-worker "
      "async-strategy=nvrx|mcore async-ckpt-cpu-priority=N async-ckpt-io-priority=N async-ckpt-use-cpu-shm "
      "ckpt-fully-parallel-load-exchange-algo=NAME ckpt-fully-parallel-load-per-rank-objects "
      "ckpt-fully-parallel-save-process-group=dp|ep_dp ckpt-fully-parallel-load-process-group=dp|ep_dp "
      "ckpt-pg-tensors-cache-path=PATH ckpt-pg-tensors-cache-create no-ckpt-load-validate-sharding-integrity "
      "disable-ckpt-load-validate-sharding-integrity no-strict-fsdp-dtensor-load disable-strict-fsdp-dtensor-load "
      "dist-ckpt-save-pre-mcore-014 dist-ckpt-optim-fully-reshardable distrib-optim-fully-reshardable-mem-efficient "
      "dist-ckpt-workers=N ckpt-drop-redundant-extra-state verify-integrity no-save-tokenizer-assets "
      "disable-save-tokenizer-assets" },
    { "logs are not uploaded; see --log-json",
      "wandb-project=NAME wandb-exp-name=NAME wandb-save-dir=DIR wandb-entity=NAME no-one-logger "
      "one-logger-project=NAME one-logger-run-name=NAME one-logger-async app-tag-run-name=NAME "
      "app-tag-run-version=VERSION config-logger-dir=DIR otel-enabled otel-service-name=NAME "
      "otel-span-groups=GROUPS codecarbon-dir=DIR" },
    { "it configures Megatron's timers",
      "timing-log-level=0|1|2 timing-log-option=max|minmax|all log-timers-to-tensorboard "
      "no-barrier-with-level-1-timing" },
    { "--dry-run prints an estimate of the memory",
      "log-memory-to-tensorboard log-memory-interval=N log-device-memory-used" },
    { "a run of several ranks prints their number when it starts", "log-world-size-to-tensorboard" },
    { "-q and -v set the verbosity", "logging-level=N log-level=LEVEL log-level-replica=LEVEL log-path=DIR" },
    { "events are written immediately", "tensorboard-queue-size=N" },
    { "on SIGTERM or SIGUSR1, a run with --save saves and exits with status 75",
      "adlr-autoresume adlr-autoresume-interval=N kill-switch-path=FILE kill-switch-file=FILE" },
    { "a dataset is read from local files", "s3-cache-path=DIR object-storage-cache-path=DIR enable-msc disable-msc" },
    { "a dataset is repeated as often as the run requires", "repeated-dataloader" },
    { "it configures tests and experiments of Megatron", "test-mode enable-experimental" },
    { "random numbers depend on neither the layout nor the device", "te-rng-tracker" },
    { "matrix products always accumulate in fp32", "disable-bf16-reduced-precision-matmul" },
    { "the optimizer runs on the device of the model", "cpu-optimizer cpu-torch-adam" },
    { "it selects a method of Megatron-DeepSpeed to save memory; see --recompute-granularity",
      "scattered-embeddings split-transformers memory-centric-tiled-linear tile-factor=N" },
    { "it configures DeepSpeed, whose functions meg-train has itself: see --zero-stage and --recompute-granularity",
      "deepspeed deepspeed_mpi deepscale deepspeed-activation-checkpointing partition-activations "
      "contigious-checkpointing checkpoint-in-cpu synchronize-each-layer profile-backward zero-reduce-scatter "
      "zero-contigious-gradients zero-reduce-bucket-size=N zero-allgather-bucket-size=N use-pin-memory "
      "force-ds-sequence-parallel universal-checkpoint" },
    { "it configures when Megatron computes weight gradients",
      "defer-embedding-wgrad-compute wgrad-deferral-limit=N delay-wgrad-compute enable-zbh1-exact-semantics" },
    { "pipeline parallelism requires --pipeline-model-parallel-size of 2 or more", "no-pipeline-parallel" },
    { "--pipeline-model-parallel-layout sets the layers of each stage", "pp-partition-method=METHOD" },
    { "--overlap-grad-reduce and --zero-stage configure the reduction of gradients",
      "DDP-impl=local|torch|FSDP use-contiguous-buffers-in-ddp no-contiguous-buffers-in-local-ddp ddp-num-buckets=N "
      "ddp-pad-buckets-for-high-nccl-busbw overlap-param-gather-with-optimizer-step" },
    { "there is no overlap of tensor-parallel communication with GEMMs",
      "disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad "
      "disable-tp-comm-split-ag disable-tp-comm-split-rs no-tp-comm-overlap-ag no-tp-comm-overlap-rs "
      "no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad no-tp-comm-split-ag no-tp-comm-split-rs" },
    { "nothing is computed in fp8", "no-fp8-wgrad disable-fp8-wgrad" },
    { "parameters that tensor-parallel ranks share are always equal", "sync-tp-duplicated-parameters" },
    { "it configures PyTorch's flight recorder",
      "flight-recorder-dump-path=DIR flight-recorder-trace-buffer-size=N no-flight-recorder-dump-on-timeout "
      "disable-flight-recorder-dump-on-timeout flight-recorder-include-stack-trace "
      "no-flight-recorder-include-only-active disable-flight-recorder-include-only-active "
      "no-flight-recorder-extra-dump-on-exec disable-flight-recorder-extra-dump-on-exec" },
    { "a checkpoint can be loaded in any parallel layout", "use-mp-args-from-checkpoint-args" },
    { "the options of the tokenizer take precedence over those in a checkpoint",
      "no-use-tokenizer-model-from-checkpoint-args disable-use-tokenizer-model-from-checkpoint-args" },
    { "no code of a model or tokenizer is run", "trust-remote-code" },
    { "the loss scale and the learning rate are always written to TensorBoard",
      "no-log-loss-scale-to-tensorboard disable-log-loss-scale-to-tensorboard no-log-learnig-rate-to-tensorboard" },
    { "the log does not contain this number",
      "log-energy log-max-attention-logit log-optimizer-states-to-tensorboard" },
    { "--log-straggler alone selects the log of slow ranks",
      "disable-straggler-on-startup straggler-ctrlr-port=N straggler-minmax-count=N" },
    { 0 }
};
