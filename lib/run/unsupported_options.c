/*
 * unsupported_options.c - options of Megatron-LM and its forks that meg-train does not support.  A feature is named as
 * in the section NOT YET of meg(7).
 */
#include "run/job.h"

#define NOT_YET(feature) "not supported yet: " feature "; see NOT YET in meg(7)"

const struct meg_opt_names meg_train_unsupported[] = {
    /* options that another option or command replaces */
    { "now called --micro-batch-size, the number of samples per data-parallel rank", "batch-size" },
    { "now called --lr-warmup-fraction", "warmup" },
    { "now called --tensor-model-parallel-size", "model-parallel-size" },
    { "use meg-convert(1) to convert checkpoints", "ckpt-convert-*" },
    { "use meg-generate(1) to generate text, and meg-eval(1) to evaluate a model",
      "inference inference-* max-tokens-to-oom ds-inference use-legacy-static-engine decode-only-cuda-graphs "
      "enable-chunked-prefill num-speculative-tokens=0 no-inference-* use-same-sampling-seed-across-dp-ranks" },
    { "use --config FILE, with a line `name = value` per option; see meg-conf(5)", "yaml-cfg" },
    { "use --zero-stage 3 to shard parameters",
      "use-megatron-fsdp megatron-fsdp-* torch-fsdp2-* fsdp-* suggested-communication-unit-size "
      "keep-fp8-transpose-cache enable-full-sharding-in-hsdp outer-dp-sharding-strategy=no_shard" },
    { "use --zero-stage 0 to 3", "data-parallel-sharding-strategy" },
    { "this value is now called rope", "position-embedding-type:rotary" },
    { "this value is now called learned_absolute", "position-embedding-type:absolute" },
    { "this value is now called RMSNorm", "normalization:rmsnorm" },
    { "this value is now called LayerNorm", "normalization:layernorm" },
    { "use --swiglu", "glu-activation:swiglu" },
    { "use --cuda-graph-impl local", "external-cuda-graph" },
    { "use --pipeline-model-parallel-layout 'E|...'", "standalone-embedding-stage" },
    { "use --dry-run --world-size N", "fake-process-group" },

    /* features */
    { NOT_YET("mixture of experts"),
      "num-experts num-experts-switch expert-* "
      "moe-aux-loss-coeff=0 moe-* enable-expert-tensor-parallelism disable-moe-* create-moe-param-group use-tutel "
      "topk=1 mlp-type=standard overlap-moe-expert-parallel-comm overlap-dispatch-backward-with-experts-wgrad "
      "ep-overlap-early-attn-memory-release high-priority-a2a-comm-stream use-grouped-gemm-for-* "
      "save-tokens-per-expert-interval" },
    { NOT_YET("multi-latent attention"),
      "multi-latent-attention q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim cache-mla-latents "
      "mla-down-proj-fusion" },
    { NOT_YET("multi-token prediction"), "mtp-*" },
    { NOT_YET("Mamba-2 and hybrid models"),
      "hybrid-* is-hybrid-model mamba-* linear-* disable-mamba-mem-eff-path gdp-*" },
    { NOT_YET("Retro"), "retro-*" },
    { NOT_YET("retrieval models"),
      "bert-* output-bert-embeddings biencoder-* ict-* retriever-* titles-data-path query-in-block-prob "
      "use-one-sent-docs evidence-data-path block-data-path embedding-path indexer-*" },
    { NOT_YET("vision and multimodal models"),
      "vision-* dino-* img-* patch-dim swin-* num-classes num-channels classes-fraction data-per-class-fraction "
      "head-lr-mult mask-type mask-factor iter-per-epoch mrope-section position-embedding-type:mrope "
      "dataloader-type:external use-te prompt-path dataloader-save tokenizer-prompt-format freeze-LM freeze-ViT "
      "language-model-type disable-vision-class-token allow-missing-vision-projection-checkpoint" },
    { NOT_YET("other normalization of queries and keys"),
      "qk-l2-norm qk-clip* apply-wd-to-qk-layernorm no-weight-decay-cond-type" },
    { NOT_YET("export to ONNX"), "onnx-safe" },
    { NOT_YET("YaRN in multi-latent attention"), "rope-type=rope" },
    { NOT_YET("models without position embeddings"), "position-embedding-type:none" },
    { NOT_YET("sparse and linear attention"),
      "experimental-attention-variant attention-output-gate dsa-* no-dsa-* disable-dsa-*" },
    { NOT_YET("hyper-connections"), "enable-mhc-connections mhc-*" },
    { NOT_YET("muP"), "use-mup mup-*" },
    { NOT_YET("another initial deviation of the embeddings"), "embedding-init-method-std" },
    { NOT_YET("models with layers that differ from each other"), "heterogeneous-*" },
    { NOT_YET("custom layer specifications"), "spec" },
    { NOT_YET("fp8 and fp4"),
      "fp8-* fp4-* first-last-layers-bf16 num-layers-at-start-in-bf16 num-layers-at-end-in-bf16 "
      "reuse-grad-buf-for-mxfp8-param-ag te-precision-config-file use-kitchen-attention kitchen-attention-backend" },
    { NOT_YET("data types of single operations"),
      "embedding-weights-in-fp32 output-logit-dtype ddp-reduce-scatter-with-fp32-accumulation "
      "ddp-param-name-patterns-for-fp32-local-accumulation" },
    { NOT_YET("results that do not depend on the batch"), "batch-invariant-*" },
    { NOT_YET("CUDA graphs of complete iterations, or of parts of layers"),
      "cuda-graph-* optimizer-cuda-graph cuda-graph-impl:transformer_engine cuda-graph-impl:full_iteration" },
    { NOT_YET("overlap of tensor-parallel communication"), "tp-comm-*" },
    { NOT_YET("sharding of weights over tensor-parallel replicas"), "tensor-parallel-num-weight-shards gtp-*" },
    { NOT_YET("context parallelism with samples of different sizes"), "max-seqlen-per-dp-cp-rank" },
    { NOT_YET("a separate parallel layout of an encoder"),
      "encoder-tensor-model-parallel-size=0 encoder-pipeline-model-parallel-size=0" },
    { NOT_YET("recomputation of selected operations"), "recompute-modules" },
    { NOT_YET("sequence parallelism in chunks"), "ds-sequence-parallel-fpdt ds-sequence-parallel-fpdt-*" },
    { NOT_YET("optimizers other than Adam and SGD"),
      "muon-* lion-* no-use-layer-wise-param-layout use-bnb-optimizer optimizer:muon optimizer:dist_muon "
      "optimizer:lion optimizer:adaptive_muon optimizer:soap" },
    { NOT_YET("offloading"),
      "optimizer-cpu-offload optimizer-offload-fraction cpu-offloading* remote-device=none "
      "use-torch-optimizer-for-cpu-offload overlap-cpu-optimizer-d2h-h2d no-pin-cpu-* fine-grained-* "
      "offload-modules min-offloaded-tensor-size delay-offload-until-cuda-graph delta-offload-bytes-across-pp-ranks "
      "activation-offload-fraction" },
    { NOT_YET("frozen layers"), "freeze-all-layers" },
    { NOT_YET("distillation"),
      "logits-* kd kd-* mos load-teacher num-layers-teacher num-experts-teacher hidden-size-teacher "
      "num-attention-heads-teacher" },
    { NOT_YET("run length and learning-rate schedule in tokens, and batch-size schedule in steps"),
      "train-tokens lr-decay-tokens lr-warmup-tokens step-batch-size-schedule phase-transition-iterations" },
    { NOT_YET("skipping of iterations"), "skip-train-iteration-range iterations-to-skip check-for-large-grads" },
    { NOT_YET("other evaluations during training"),
      "start-eval-at-iter eval-global-batch-size eval-micro-batch-size full-validation multiple-validation-sets "
      "validation-set-names" },
    { NOT_YET("curriculum learning"),
      "random-ltd data-efficiency-* curriculum-* train-idx-path train-desc-path train-doc-idx-path "
      "train-sample-idx-path train-shuffle-idx-path train-data-exact-num-epochs return-data-index use-dataset-only "
      "compression-training" },
    { NOT_YET("prefix language models and span corruption"),
      "loss-on-targets-only reweight-loss-based-on-position-frequency noise-density mean-noise-span-length "
      "dataloader-inter-document-masking" },
    { NOT_YET("sampling of a part of a dataset"), "sample-rate=1.0" },
    { NOT_YET("download of datasets"), "aml-data-download-path" },
    { NOT_YET("fill-in-the-middle"), "fim-*" },
    { NOT_YET("instruction tuning"), "sft* tokenizer-type:SFTTokenizer" },
    { NOT_YET("reinforcement learning"), "rl-* no-rl-* grpo-* perform-rl-step langrl-env-config refit-method" },
    { NOT_YET("other settings of tokenizers"),
      "allow-ambiguous-pad-tokens tokenizer-metadata tokenizer-sentencepiece-legacy no-tokenizer-sentencepiece-* "
      "disable-tokenizer-sentencepiece-* tokenizer-hf-* null-tokenizer-* chat-template" },
    { NOT_YET("local (non-persistent) checkpoints"), "non-persistent-* replication replication-*" },
    { NOT_YET("parts of a checkpoint"),
      "load-tag no-load-lr-state reset-iteration override-ckpt-iteration load-main-params-from-ckpt "
      "save-retain-interval" },
    { NOT_YET("dumps of tensors"),
      "save-params-interval save-activations-interval save-wgrads-interval save-dgrads-interval "
      "dump-param-to-param-group-map" },
    { NOT_YET("profilers"),
      "profile* use-pytorch-profiler record-memory-history memory-snapshot-path pytorch-profiler-* record-shapes "
      "nvtx-ranges run-workload-inspector-server" },
    { NOT_YET("the rerun state machine and error injection"),
      "rerun-mode=disabled error-injection-rate=0 error-injection-* result-rejected-tracker-filename "
      "fault-injector-* gpu-sniff-test-interval" },
    { NOT_YET("in-job restart"), "inprocess-* enable-ft-package calc-ft-timeouts ft-num-warmup-iters" },
    { NOT_YET("multimodal tokenizers"), "tokenizer-type:MultimodalTokenizer tokenizer-type:NullMultimodalTokenizer" },
    { NOT_YET("WikiText, LAMBADA, RACE, MNLI and QQP tasks"),
      "task train-data valid-data epochs keep-last strict-lambada" },
    { 0 }
};
