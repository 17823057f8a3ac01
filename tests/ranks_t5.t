#!/bin/sh
# needs: ranks/comm
# modules: model
# Training a T5 under parallel layouts equals training on one rank, dropout included.  A checkpoint of one layout is
# continued in another.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
. "${0%/*}/bert.sh"
. "${0%/*}/t5.sh"

logged='if .split then .lm_loss else .lm_loss, .grad_norm end'
train_ranks one 1
equals_one_rank 2
equals_one_rank 2 --tensor-model-parallel-size 2
equals_one_rank 2 --tensor-model-parallel-size 2 --sequence-parallel --recompute-activations
equals_one_rank 2 --pipeline-model-parallel-size 2 --pipeline-model-parallel-split-rank 1
equals_one_rank 2 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1
equals_one_rank 4 --pipeline-model-parallel-size 4 --pipeline-schedule zb-h1

relative='--position-embedding-type relative --relative-attention-num-buckets 8 --relative-attention-max-distance 20'
# shellcheck disable=SC2086 # options
{
    train_ranks one 1 $relative
    equals_one_rank 2 $relative --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    equals_one_rank 2 $relative --zero-stage 2
    equals_one_rank 2 $relative --zero-stage 3
    equals_one_rank 2 $relative --tensor-model-parallel-size 2 --sequence-parallel \
        --recompute-granularity full --recompute-method uniform --recompute-num-layers 2
    equals_one_rank 4 $relative --pipeline-model-parallel-size 4 --use-distributed-optimizer
    equals_one_rank 4 $relative --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \
        --recompute-granularity full --recompute-method block --recompute-num-layers 1
    train_ranks one 1 $relative --untie-embeddings-and-output-weights
    equals_one_rank 2 $relative --zero-stage 3 --untie-embeddings-and-output-weights
    # the first of two stages ends in the decoder, or the second one begins in the encoder
    train_ranks one 1 $relative --num-layers 1 --decoder-num-layers 3
    equals_one_rank 2 $relative --num-layers 1 --decoder-num-layers 3 --pipeline-model-parallel-size 2
    equals_one_rank 4 $relative --num-layers 1 --decoder-num-layers 3 --pipeline-model-parallel-size 2 --tensor-model-parallel-size 2
    train_ranks one 1 $relative --num-layers 3 --decoder-num-layers 1
    equals_one_rank 2 $relative --num-layers 3 --decoder-num-layers 1 --pipeline-model-parallel-size 2
    equals_one_rank 4 $relative --num-layers 3 --decoder-num-layers 1 --pipeline-model-parallel-size 2 --use-distributed-optimizer
}

train_ranks one 1 --position-embedding-type rope
equals_one_rank 2 --position-embedding-type rope --tensor-model-parallel-size 2 --sequence-parallel
equals_one_rank 2 --position-embedding-type rope --pipeline-model-parallel-size 2

# ---- checkpoints ----
train_ranks half 2 --tensor-model-parallel-size 2 --save "$T/ckpt" --exit-interval 5
train_ranks rest 2 --pipeline-model-parallel-size 2 --save "$T/ckpt" --load "$T/ckpt"
train_ranks one 1
tail -n "$(grep -c . "$T/rest")" "$T/one" >"$T/one_rest"
is 'the resumed run has five steps and two evaluations' "$(grep -c . "$T/rest")" 12
ok 'a checkpoint of one layout continues in another' near "$T/one_rest" "$T/rest"
done_testing
