#!/bin/sh
# modules: parallel
# The effect of each option of meg-train on layout, schedule, recomputation and distributed optimizer, as a dry run
# estimates it, or in the order of operations.
. "${0%/*}/lib.sh"
. "${0%/*}/bert.sh"
. "${0%/*}/t5.sh"
. "${0%/*}/effects.sh"
cd "$T" || exit 1
cat >gpt.conf <<'end'
num-layers = 8
hidden-size = 512
num-attention-heads = 8
seq-length = 512
max-position-embeddings = 512
micro-batch-size = 2
global-batch-size = 32
train-iters = 2
lr = 1e-2
mock-data = yes
tokenizer-type = NullTokenizer
vocab-size = 32000
eval-iters = 0
end
dry() { run meg-train -q --config gpt.conf --dry-run --world-size 8 "$@"; }
dry_gpus() { dry --hardware h100 --bf16 "$@"; }

# ---- parallelism ----
dry_tp() { dry --tensor-model-parallel-size 2 "$@"; }
dry_pp() { dry --pipeline-model-parallel-size 4 "$@"; }
dry_cp() { dry_gpus --context-parallel-size 4 "$@"; }
dry_hierarchical() { dry_cp --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2 "$@"; }
dry_chunks() { dry_pp --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 32 "$@"; }
dry_last() { dry_pp --decoder-last-pipeline-num-layers 2 "$@"; }
dry_first() { dry_pp --decoder-first-pipeline-num-layers 2 "$@"; }
dry_mapping() { dry_gpus --world-size 16 --pipeline-model-parallel-size 2 --num-layers 8 "$@"; }
dry_t5() { run meg-train -q --config conf --dry-run --world-size 4 --pipeline-model-parallel-size 4 --num-layers 3 \
    --decoder-num-layers 3 --pipeline-model-parallel-split-rank 3 "$@"; }
# 8 layers, or 7 and an option that counts a further one
dry_counted() { dry_pp --num-layers $((8 - ($# > 0))) "$@"; }
effect dry '^> layout .* tensor 2, context 1, pipeline 1, data 4' --tensor-model-parallel-size 2
effect dry '^> layout .* tensor 1, context 1, pipeline 4, data 2' --pipeline-model-parallel-size 4
effect dry '^> layout .* tensor 1, context 2, pipeline 1, data 4' --context-parallel-size 2
effect dry_cp '^>   collectives in layers ' --cp-comm-type a2a
effect dry_hierarchical '^>   context-parallel  *96\.' --hierarchical-context-parallel-sizes 4 1
effect dry_tp '^> layout .* tensor 2 with sequence' --sequence-parallel
effect dry_pp '^> layout .*; 2 chunks a stage' --num-layers-per-virtual-pipeline-stage 1
effect dry_pp '^> layout .*; 2 chunks a stage' --num-virtual-stages-per-pipeline-rank 2
effect dry_chunks '^>   activations ' --microbatch-group-size-per-virtual-pipeline-stage 8
effect dry_pp '^>   bubble ' --pipeline-schedule zb-h1
effect dry_last '^> layers  *by stage: 4 1\*2 2' --decoder-first-pipeline-num-layers 4
effect dry_first '^> layers  *by stage: 2 1\*2 4' --decoder-last-pipeline-num-layers 4
effect dry_counted '^> layers  *by stage: 1 2\*3' --account-for-embedding-in-pipeline-split
effect dry_counted '^> layers  *by stage: 2\*3 1' --account-for-loss-in-pipeline-split
effect dry_pp '^> layers  *by stage: 1 2 4 1' --pipeline-model-parallel-layout 'Et|tt|tttt|tL'
effect dry_t5 '^> layers  *by stage: 3 1\*3' --pipeline-model-parallel-split-rank 1
effect dry_mapping '^>   gradient reduction ' --use-tp-pp-dp-mapping
for option in --expert-model-parallel-size --expert-tensor-parallel-size; do
    unseen $option 'the families of the library have no experts; tests/experts.t'
done
covers meg-train parallelism

# ---- distributed optimizer ----
effect dry '^>   optimizer state ' --use-distributed-optimizer
effect dry '^>   gradients ' --zero-stage 2
dry_untied() { dry --untie-embeddings-and-output-weights "$@"; }
dry_sharded() { dry --use-distributed-optimizer "$@"; }
dry_overlap() { dry_gpus --use-distributed-optimizer --overlap-grad-reduce "$@"; }
effect dry_untied '^>   parameters ' --use-torch-fsdp2
effect dry_sharded '^>   optimizer state ' --num-distributed-optimizer-instances 2
effect dry_gpus '^>   gradient reduction ' --overlap-grad-reduce
effect dry_overlap '^>   all ' --overlap-param-gather
effect dry '^>   receive buffers ' --ddp-bucket-size 1000000
unseen --nccl-ub 'buffers are registered only with NCCL; tests/nccl.t'
covers meg-train 'distributed optimizer'
done_testing
