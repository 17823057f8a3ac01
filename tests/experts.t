#!/bin/sh
# needs: ranks/comm toy
# modules: parallel
# Expert parallelism, with a family of models that is not in the library (tests/toy/experts.c).
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

train_ranks one 1 --save "$T/one.d" --save-interval 5
ok 'the loss falls' jq -se 'map(select(.split == null)) | .[0].lm_loss - .[-1].lm_loss > 0.1' "$T/one.json"

ep=--expert-model-parallel-size etp=--expert-tensor-parallel-size
equals_one_rank 2 --zero-stage 3
equals_one_rank 4 $ep 4 --use-distributed-optimizer
equals_one_rank 2 $ep 2
equals_one_rank 4 $ep 2
equals_one_rank 4 $ep 2 --tensor-model-parallel-size 2
equals_one_rank 4 $ep 2 --tensor-model-parallel-size 2 --sequence-parallel
equals_one_rank 4 $ep 2 --context-parallel-size 2 --use-distributed-optimizer
equals_one_rank 4 $ep 2 --use-distributed-optimizer --num-distributed-optimizer-instances 2 --ddp-bucket-size 3000 \
    --overlap-grad-reduce --overlap-param-gather
equals_one_rank 4 $ep 2 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1
equals_one_rank 4 $ep 2 --pipeline-model-parallel-size 2 --use-tp-pp-dp-mapping --recompute-granularity full \
    --recompute-method uniform --recompute-num-layers 1

# Expert tensor parallelism that differs from tensor parallelism.
tp2='--tensor-model-parallel-size 2 --sequence-parallel'
equals_one_rank 2 $etp 1 $tp2
equals_one_rank 4 $etp 1 $ep 2 $tp2
equals_one_rank 4 $etp 1 $ep 4 $tp2 --use-distributed-optimizer
equals_one_rank 4 $etp 1 $tp2 --use-distributed-optimizer --ddp-bucket-size 3000
equals_one_rank 2 $etp 2
equals_one_rank 4 $etp 2 $ep 2 --use-distributed-optimizer
equals_one_rank 8 $etp 1 $ep 2 $tp2 --use-distributed-optimizer --num-distributed-optimizer-instances 2 \
    --overlap-grad-reduce --overlap-param-gather
equals_one_rank 8 $etp 2 $ep 2 $tp2 --context-parallel-size 2
equals_one_rank 8 $etp 1 $ep 2 $tp2 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1

refused() { # N MESSAGE OPTION...: check the message with which a run of N ranks is refused
    n=$1 message=$2
    shift 2
    ranks "$n" meg-train -q --config "$T/conf" "$@" >"$T/out" 2>"$T/err"
    is "$*: the run is refused" $? 2
    like "$*: the message names the reason" "$(cat "$T/err")" "$message"
}
refused 3 'expert-model-parallel-size 3: must divide 4 experts of decoder.layers.0.experts.linear_fc1.weight' $ep 3 \
    --global-batch-size 6

planned() { meg-train -q --config "$T/conf" --hardware h100 --bf16 "$@" 2>&1; }
like '--dry-run prints the groups of experts' "$(planned --dry-run --world-size 8 $etp 1 $ep 2 $tp2)" \
    '^layout .*data 4; experts: tensor 1, expert 2, data 4$'
like '--plan finds layouts with expert parallelism' "$(planned --plan --world-size 4 --hidden-size 1024)" \
    '^[1-5] .* --expert-model-parallel-size 4'

# Checkpoints do not depend on the expert-parallel size.
as_saved() { # NAME N OPTION...: N ranks load iteration 5 of one rank from $one, and save it with the same bytes
    name=$1 n=$2
    shift 2
    ranks "$n" meg-train -q --config "$T/conf" --load "$one" --ckpt-step 5 --train-iters 5 \
        --override-opt_param-scheduler --save "$T/$name" "$@" >"$T/out" 2>&1
    ok "$name: files equal those of one rank" same_tensors "$one/iter_0000005" "$T/$name/iter_0000005"
}
one=$T/one.d
as_saved ep2 2 $ep 2
as_saved ep2-tp2 4 $ep 2 --tensor-model-parallel-size 2
as_saved ep2-zero1 4 $ep 2 --use-distributed-optimizer --ddp-bucket-size 3000
as_saved ep2-instances 4 $ep 2 --use-distributed-optimizer --num-distributed-optimizer-instances 2
as_saved etp1-tp2 4 $etp 1 $tp2
as_saved etp1-ep2-tp2-zero1 8 $etp 1 $ep 2 $tp2 --use-distributed-optimizer --num-distributed-optimizer-instances 2
as_saved etp2-tp1 4 $etp 2 --use-distributed-optimizer
# tensor-parallel ranks, which have different shards of the output layer, write the experts together
train_ranks untied 1 --untie-embeddings-and-output-weights --save "$T/untied.d" --train-iters 5
one=$T/untied.d
as_saved untied-etp1-tp2 4 $etp 1 $tp2 --untie-embeddings-and-output-weights
one=$T/one.d

train_ranks all 4 $ep 2 --use-distributed-optimizer --save "$T/all.d"
train_ranks half 4 $ep 2 --use-distributed-optimizer --save "$T/half.d" --exit-interval 5 \
    --check-weight-hash-across-dp-replicas-interval 2
is 'weights are equal on the ranks that have replicas' $? 0
ranks_but 4 2 'export FAULT=1' meg-train -q --config "$T/conf" $ep 2 --check-weight-hash-across-dp-replicas-interval 2 \
    >"$T/out" 2>"$T/err"
is 'an expert that differs from its replica ends the run' $? 1
like 'the message names the expert and the group' "$(cat "$T/err")" \
    'layers.0.experts.linear_fc1.weight differs from its replicas in the expert data-parallel group'
train_ranks rest 4 $ep 2 --use-distributed-optimizer --load "$T/half.d" --save "$T/rest.d"
ok 'a resumed run is bit-identical' same_tensors "$T/all.d/iter_0000010" "$T/rest.d/iter_0000010"
train_ranks rest_of_one 1 --load "$T/half.d"
ok 'one rank resumes the run of expert-parallel ranks' near "$T/rest_of_one" "$T/rest"
train_ranks rest_of_etp 4 --load "$T/half.d" $etp 1 $ep 2 $tp2 --check-weight-hash-across-dp-replicas-interval 2
ok 'ranks with another expert tensor-parallel size resume it' near "$T/rest_of_etp" "$T/rest"

# A parameter in f32, and a state that the optimizer does not update.
export ROUTER=1
train_ranks one 1 --save "$T/router.d" --save-interval 5
trained() { # FILE NAME: check that a tensor changes between iterations 5 and 10
    isnt "$2 is trained beside a parameter in f32" "$(tensor "$T/router.d/iter_0000005/$1" "$2" | cksum)" \
        "$(tensor "$T/router.d/iter_0000010/$1" "$2" | cksum)"
}
trained model-0-embedding.safetensors embedding.word_embeddings.weight
for name in router_norm.weight router.weight mlp.linear_fc1.weight experts.linear_fc1.weight; do
    trained model-1-layer-00000.safetensors decoder.layers.0.$name
done
equals_one_rank 4 $ep 2
equals_one_rank 4 $ep 2 $tp2
equals_one_rank 4 $etp 1 $ep 2 $tp2
equals_one_rank 4 $ep 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce
one=$T/router.d
as_saved router-ep2-tp2 8 $ep 2 --tensor-model-parallel-size 2 --use-distributed-optimizer

echo 'bf16 = yes' >>"$T/conf"
in_bf16() { # NAME OPTION...: train 8 ranks, EP 2 x TP 2 x DP 2, and save to $T/NAME.d
    name=$1
    shift
    train_ranks "$name" 8 $ep 2 --tensor-model-parallel-size 2 --use-distributed-optimizer --save "$T/$name.d" \
        --check-weight-hash-across-dp-replicas-interval 5 "$@"
}
in_bf16 bf16
is 'a model in bf16 with a parameter in f32 is trained' $? 0
in_bf16 bf16_half --exit-interval 5
in_bf16 bf16_half --load "$T/bf16_half.d"
ok 'a resumed run is bit-identical' same_tensors "$T/bf16.d/iter_0000010" "$T/bf16_half.d/iter_0000010"
layer=$T/bf16.d/iter_0000010/model-1-layer-00000.safetensors
is 'these tensors are in f32' "$(tail -c +9 "$layer" | head -c "$(od -An -t u8 -N 8 "$layer" | tr -d ' ')" |
    jq -r 'to_entries[] | select(.value.dtype == "F32").key' | sort | tr '\n' ' ')" \
    'decoder.layers.0.router.rate decoder.layers.0.router.state decoder.layers.0.router.weight '
is 'the state was increased 10 times by 2^-10' \
    "$(tensor "$layer" decoder.layers.0.router.state | od -An -v -t f4 -w4 | sort -u | tr -d ' ')" 0.009765625
done_testing
