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

train --save "$T/all" >"$T/log" 2>"$T/err"
is 'the model is trained' $? 0
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
equals_one_rank 4 --tensor-model-parallel-size 2 --zero-stage 2
equals_one_rank 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \
    --use-distributed-optimizer


ranks 2 meg-train -q --config "$T/conf" --load "$T/all" --save "$T/tp2" --tensor-model-parallel-size 2 >"$T/out" 2>&1
ok 'two tensor-parallel ranks load and save the files of one rank' \
    same_tensors "$T/all/iter_0000010" "$T/tp2/iter_0000010"

# The values of the second stack are frozen.
saved() { # RUN/ITERATION WEIGHT: print the bytes of a weight of the second stack
    tensor "$T/$1/model-1-layer-00002.safetensors" "second.layers.0.$2.weight"
}
train --save "$T/begin" --exit-interval 1 >"$T/log" 2>"$T/err"
is 'a frozen weight is saved' "$(saved all/iter_0000010 value | wc -c | tr -d ' ')" 16384
is 'training does not change it' "$(saved all/iter_0000010 value | cksum)" "$(saved begin/iter_0000001 value | cksum)"
isnt 'training changes another weight' "$(saved all/iter_0000010 gate | cksum)" \
    "$(saved begin/iter_0000001 gate | cksum)"
is 'the optimizer has no state of a frozen weight' \
    "$(cat "$T"/all/iter_0000010/optim-*.safetensors | grep -ao 'second.layers.0.value.weight')" ''
train --bf16 --save "$T/bf16" --exit-interval 5 >"$T/log" 2>"$T/err"
train --load "$T/bf16" --save "$T/f32" --exit-interval 6 >"$T/log" 2>"$T/err"
is 'a run in f32 loads main parameters and frozen parameters of a run in bf16' \
    "$(saved f32/iter_0000006 value | od -An -v -t x4 -w4 | sed 's/0000$//' | cksum)" \
    "$(saved bf16/iter_0000005 value | od -An -v -t x2 -w2 | cksum)"
# 2 layers of [1024, 256] are frozen: 2 MiB of f32
planned() { # print the MiB of parameters, gradients and state
    train --hidden-size 256 --dry-run |
        sed -n '/^memory/,/activations/s/^  \(parameters\|gradients\|optimizer state\|main parameters\) *//p'
}
planned >"$T/frozen"
FAULT=unfrozen planned >"$T/unfrozen"
is 'parameters, gradients and state of frozen parameters in the plan' \
    "$(paste "$T/unfrozen" "$T/frozen" | awk '{ printf "%.1f ", $1 - $2 }')" '0.0 2.0 4.0 '
like 'the plan lists them' "$(train --dry-run)" '^  frozen +2 +8192$'

# Tensor-parallel ranks have replicas of the weights of norms and shifts, and apply them to different columns.
printf '%s\n' 'train-iters = 50' 'lr = 3e-3' 'check-weight-hash-across-dp-replicas-interval = 10' >>"$T/conf"
train_ranks one 1
ok 'the loss falls' jq -se 'map(select(.split == null)) | .[0].lm_loss - .[-1].lm_loss > 0.1' "$T/one.json"
for tp in 2 4; do
    equals_one_rank "$tp" --tensor-model-parallel-size "$tp" --num-attention-heads 4
done
FAULT=norm ranks 2 meg-train -q --config "$T/conf" --tensor-model-parallel-size 2 >"$T/out" 2>"$T/err"
is 'replicas that drift end the run' $? 1
like 'the message names the weight and the group' "$(cat "$T/err")" \
    'iteration 10: .*layers.0.norm.weight differs from its replicas in the tensor-parallel group'
ranks_but 2 1 'export FAULT=shift' meg-train -q --config "$T/conf" --tensor-model-parallel-size 2 >"$T/out" 2>"$T/err"
like 'a replicated part that differs is found' "$(cat "$T/err")" \
    'iteration 10: .*layers.0.gate.weight differs from its replicas in the tensor-parallel group'

# Norms after mixers, factors of their outputs and parallel mixers (tests/toy/blocks.c).  The second of four stages begins
# with a mixer that reads the pipeline's receive buffer.
printf '%s\n' 'model = blocks' 'train-iters = 10' 'num-layers = 4' 'num-attention-heads = 4' 'hidden-dropout = 0.1' \
    'attention-dropout = 0.1' >>"$T/conf"
logged='if .split then .lm_loss else .lm_loss, .position_loss, .grad_norm end'
train_ranks one 1
ok 'the loss of a block falls' jq -se \
    'map(select(.split == null)) | .[0].position_loss - .[-1].position_loss > 0.01' "$T/one.json"
equals_one_rank 2 --tensor-model-parallel-size 2
equals_one_rank 4 --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
equals_one_rank 4 --pipeline-model-parallel-size 4 --pipeline-schedule zb-h1
equals_one_rank 4 --context-parallel-size 2 --zero-stage 2

printf '%s\n' 'model = toy' 'num-layers = 2' >>"$T/conf"
train --world-size 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --dry-run >"$T/plan" 2>"$T/err"
is 'a run of 8 ranks is planned' $? 0
like 'the plan has the memory of the activations' "$(cat "$T/plan")" 'activations +[0-9.]+'
train --world-size 8 --plan >"$T/plan" 2>"$T/err"
is 'layouts are searched' $? 0
done_testing
