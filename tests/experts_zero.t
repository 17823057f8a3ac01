#!/bin/sh
# needs: ranks/comm toy
# modules: optim
# ZeRO-2 and ZeRO-3 with experts, with parameters in f32 in a model in bf16, and with states that the model updates.
# The family of models is not in the library (tests/toy/experts.c).
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
. "${0%/*}/train.sh"
PATH=$B/tests/toy:$PATH
sed -i -e '/^global-batch-size/d' "$T/conf"
cat >>"$T/conf" <<'end'
model = experts
global-batch-size = 8
log-params-norm = yes
log-num-zeros-in-grad = yes
end
logged='if .split then .lm_loss else .lm_loss, .grad_norm, .params_norm, .num_zeros + 1 end'
overlap='--overlap-grad-reduce --overlap-param-gather'
tp2='--tensor-model-parallel-size 2 --sequence-parallel'
ep='--expert-model-parallel-size 2' etp=--expert-tensor-parallel-size

as_saved() { # NAME N OPTION...: N ranks load iteration 5 of one rank from $one, and save it with the same bytes
    name=$1 n=$2
    shift 2
    ranks "$n" meg-train -q --config "$T/conf" --load "$one" --ckpt-step 5 --train-iters 5 \
        --override-opt_param-scheduler --save "$T/$name" "$@" >"$T/out" 2>&1
    ok "$name: files equal those of one rank" same_tensors "$one/iter_0000005" "$T/$name/iter_0000005"
}

one=$T/one.d
train_ranks one 1 --save "$one" --save-interval 5
equals_one_rank 2 $ep --zero-stage 2
equals_one_rank 2 $ep --zero-stage 3
equals_one_rank 4 $ep --zero-stage 2 --micro-batch-size 1 $overlap
equals_one_rank 4 $ep --zero-stage 3 --micro-batch-size 1 $overlap
equals_one_rank 4 $ep --zero-stage 3 --context-parallel-size 2
equals_one_rank 8 $ep --zero-stage 2 $tp2
equals_one_rank 8 $ep --zero-stage 3 $tp2 --num-distributed-optimizer-instances 2
equals_one_rank 4 --zero-stage 2 $ep $etp 1 $tp2
equals_one_rank 4 --zero-stage 3 $ep $etp 2
for stage in 2 3; do
    as_saved etp1-zero$stage 4 --zero-stage $stage $ep $etp 1 $tp2
    as_saved ep2-zero$stage 4 $ep --zero-stage $stage
done
train_ranks all 4 $ep --zero-stage 3 --save "$T/all.d"
train_ranks half 4 $ep --zero-stage 3 --save "$T/half.d" --exit-interval 5
train_ranks rest 4 $ep --zero-stage 3 --load "$T/half.d" --save "$T/rest.d"
ok 'a resumed run is bit-identical' same_tensors "$T/all.d/iter_0000010" "$T/rest.d/iter_0000010"

# A parameter in f32, and a state that the optimizer does not update.  The first and the third layer have one buffer.
export ROUTER=1
echo 'num-layers = 3' >>"$T/conf"
one=$T/router.d
train_ranks one 1 --save "$one" --save-interval 5
for stage in 2 3; do
    equals_one_rank 2 --zero-stage $stage
    equals_one_rank 4 $ep --zero-stage $stage $overlap
    as_saved router-zero$stage 8 $ep --zero-stage $stage $tp2
done

echo 'bf16 = yes' >>"$T/conf"
in_bf16() { # NAME OPTION...: train 8 ranks, EP 2 x TP 2 x DP 2, and save to $T/NAME.d
    name=$1
    shift
    train_ranks "$name" 8 $ep $tp2 --save "$T/$name.d" "$@"
}
one=$T/bf16_1.d
in_bf16 bf16_1 --zero-stage 1 --save-interval 5
for stage in 2 3; do
    in_bf16 bf16_$stage --zero-stage $stage
    is "ZeRO-$stage trains a model in bf16 with a parameter in f32" $? 0
    ok "ZeRO-$stage: losses and gradient norms are close to those of ZeRO-1" near "$T/bf16_1" "$T/bf16_$stage"
    in_bf16 half_$stage --zero-stage $stage --exit-interval 5
    in_bf16 half_$stage --zero-stage $stage --load "$T/half_$stage.d"
    ok "ZeRO-$stage: a resumed run is bit-identical" \
        same_tensors "$T/bf16_$stage.d/iter_0000010" "$T/half_$stage.d/iter_0000010"
    in_bf16 twice_$stage --zero-stage $stage --micro-batch-size 1
    is "ZeRO-$stage: the state of each layer was increased 10 times by 2^-10, once for two micro-batches" \
        "$(for layer in 0 1 2; do
            tensor "$T/twice_$stage.d/iter_0000010/model-1-layer-0000$layer.safetensors" \
                decoder.layers.$layer.router.state
        done | od -An -v -t f4 -w4 | sort | uniq -c | tr -d ' ')" 960.009765625
    as_saved bf16-zero$stage 8 $ep --zero-stage $stage $tp2
done
done_testing
