#!/bin/sh
# needs: ranks/comm toy
# modules: optim params
# Shards of complete parameters, with an optimizer that is not in the library (tests/toy/normalized_sgd.c) and divides
# the gradient of a parameter by its norm.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
. "${0%/*}/train.sh"
PATH=$B/tests/toy:$PATH
sed -i -e '/^global-batch-size/d' "$T/conf"
cat >>"$T/conf" <<'end'
optimizer = normalized-sgd
global-batch-size = 8
log-params-norm = yes
end
logged='if .split then .lm_loss else .lm_loss, .grad_norm, .params_norm end'
overlap='--overlap-grad-reduce --overlap-param-gather'
tp2='--tensor-model-parallel-size 2'

train_ranks one 1 --save "$T/one.d" --save-interval 5
is 'a model is trained' $? 0
train_ranks sgd 1 --optimizer sgd
isnt 'the gradients are normalized' "$(cksum <"$T/one")" "$(cksum <"$T/sgd")"
equals_one_rank 2
equals_one_rank 2 $tp2 --sequence-parallel
equals_one_rank 2 --zero-stage 1
equals_one_rank 4 --zero-stage 1 --ddp-bucket-size 3000 $overlap
equals_one_rank 4 $tp2
equals_one_rank 4 $tp2 --zero-stage 1
equals_one_rank 8 $tp2 --sequence-parallel --zero-stage 1 --num-distributed-optimizer-instances 2
equals_one_rank 4 --pipeline-model-parallel-size 2 --zero-stage 1
equals_one_rank 4 --zero-stage 2 $overlap
equals_one_rank 4 --zero-stage 3

for zero in 0 1; do
    train_ranks all 4 $tp2 --zero-stage $zero --save "$T/all$zero"
    train_ranks half 4 $tp2 --zero-stage $zero --save "$T/half$zero" --exit-interval 5
    train_ranks half 4 $tp2 --zero-stage $zero --load "$T/half$zero" --save "$T/half$zero"
    ok "ZeRO-$zero: a resumed run is bit-identical" same_tensors "$T/all$zero/iter_0000010" "$T/half$zero/iter_0000010"
done
ranks 4 meg-train -q --config "$T/conf" --load "$T/one.d" --ckpt-step 5 --train-iters 5 \
    --override-opt_param-scheduler --save "$T/saved" --zero-stage 1 >"$T/out" 2>&1
ok 'the files do not depend on the shards' same_tensors "$T/one.d/iter_0000005" "$T/saved/iter_0000005"
done_testing
