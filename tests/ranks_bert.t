#!/bin/sh
# needs: ranks/comm
# modules: model
# Training a BERT under parallel layouts equals training on one rank, dropout included.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
. "${0%/*}/bert.sh"

logged='if .split then .lm_loss, .sop_loss else .lm_loss, .sop_loss, .grad_norm end'
train_ranks one 1
equals_one_rank 2
equals_one_rank 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
equals_one_rank 2 --zero-stage 3
equals_one_rank 2 --tensor-model-parallel-size 2
equals_one_rank 2 --tensor-model-parallel-size 2 --sequence-parallel --recompute-activations
equals_one_rank 2 --pipeline-model-parallel-size 2
equals_one_rank 2 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1
equals_one_rank 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
train_ranks one 1 --apply-residual-connection-post-layernorm
equals_one_rank 2 --apply-residual-connection-post-layernorm --tensor-model-parallel-size 2 --sequence-parallel
equals_one_rank 2 --apply-residual-connection-post-layernorm --pipeline-model-parallel-size 2 \
    --recompute-granularity full --recompute-method block --recompute-num-layers 1

# ---- checkpoints ----
train_ranks half 2 --tensor-model-parallel-size 2 --save "$T/ckpt" --exit-interval 5
train_ranks rest 2 --pipeline-model-parallel-size 2 --save "$T/ckpt" --load "$T/ckpt"
train_ranks one 1
tail -n "$(grep -c . "$T/rest")" "$T/one" >"$T/one_rest"
is 'the resumed run has five steps and two evaluations' "$(grep -c . "$T/rest")" 19
ok 'a checkpoint of one layout continues in another' near "$T/one_rest" "$T/rest"
done_testing
