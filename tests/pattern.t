#!/bin/sh
# needs: ranks/comm toy
# modules: model
# Layers that follow a pattern: in a family that is not in the library (tests/toy/pattern.c), every other layer has no attention.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
. "${0%/*}/train.sh"
PATH=$B/tests/toy:$PATH
sed -i -e '/^global-batch-size/d' "$T/conf"
printf '%s\n' 'model = pattern' 'global-batch-size = 8' 'num-layers = 4' >>"$T/conf"
logged='if .split then .lm_loss else .lm_loss, .grad_norm end'

train --save "$T/half" --exit-interval 5 >"$T/log" 2>"$T/err"
train --save "$T/half" --load "$T/half" >"$T/log" 2>"$T/err"
train_ranks one 1 --save "$T/all"
is 'the model is trained' $? 0
ok 'a resumed run is bit-identical' same_tensors "$T/half/iter_0000010" "$T/all/iter_0000010"
is 'two of four layers have attention' \
    "$(grep -l self_attention "$T"/all/iter_0000010/model-1-layer-*.safetensors | sed 's/.*-//' | tr '\n' ' ')" \
    '00000.safetensors 00002.safetensors '

equals_one_rank 2 --pipeline-model-parallel-size 2 --recompute-granularity selective
equals_one_rank 4 --pipeline-model-parallel-size 4 --pipeline-schedule zb-h1
equals_one_rank 2 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1
equals_one_rank 2 --zero-stage 3 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
equals_one_rank 4 --tensor-model-parallel-size 2 --context-parallel-size 2 --sequence-parallel \
    --recompute-granularity full --recompute-method block --recompute-num-layers 3

train_ranks begin 2 --pipeline-model-parallel-size 2 --save "$T/pp" --exit-interval 5
train_ranks rest 2 --pipeline-model-parallel-size 2 --load "$T/pp"
train_ranks rest_of_one 1 --load "$T/pp"
ok 'one rank resumes the run of a pipeline' near "$T/rest" "$T/rest_of_one"
train --world-size 4 --pipeline-model-parallel-size 4 --dry-run >"$T/plan" 2>"$T/err"
is 'a run of four ranks is planned' $? 0
done_testing
