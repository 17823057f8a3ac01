#!/bin/sh
# needs: ranks/comm toy
# modules: model
# A family of models that is not in the library (tests/toy/toy.c) trains, resumes, runs under parallel layouts and is planned.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
. "${0%/*}/train.sh"
PATH=$B/tests/toy:$PATH
sed -i -e '/^global-batch-size/d' "$T/conf"
printf '%s\n' 'model = toy' 'global-batch-size = 8' >>"$T/conf"

train --save "$T/all" --log-json "$T/one.json" >"$T/log" 2>"$T/err"
is 'the model is trained' $? 0
ok 'the loss falls' jq -se 'map(select(.split == null)) | .[0].lm_loss - .[-1].lm_loss > 0.1' "$T/one.json"
train --save "$T/half" --exit-interval 5 >"$T/log" 2>"$T/err"
train --save "$T/half" --load "$T/half" >"$T/log" 2>"$T/err"
ok 'a resumed run is bit-identical' same_tensors "$T/half/iter_0000010" "$T/all/iter_0000010"
is 'one tensor is the word embedding and the output matrix' \
    "$(cat "$T"/all/iter_0000010/model-*.safetensors | grep -ao 'word_embeddings.weight\|output_layer.weight')" \
    word_embeddings.weight

logged='if .split then .lm_loss else .lm_loss, .grad_norm end'
train_ranks one 1
equals_one_rank 2 --pipeline-model-parallel-size 2 --pipeline-model-parallel-split-rank 1
equals_one_rank 4 --pipeline-model-parallel-size 4 --pipeline-schedule zb-h1
equals_one_rank 2 --zero-stage 3
equals_one_rank 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \
    --use-distributed-optimizer

train --world-size 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --dry-run >"$T/plan" 2>"$T/err"
is 'a run of 8 ranks is planned' $? 0
like 'the plan has the memory of the activations' "$(cat "$T/plan")" 'activations +[0-9.]+'
train --world-size 8 --plan >"$T/plan" 2>"$T/err"
is 'layouts are searched' $? 0
done_testing
