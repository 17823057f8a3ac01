#!/bin/sh
# needs: ranks/comm toy
# modules: parallel
# Expert parallelism, with a family of models that is not in the library (tests/toy/experts.c).  EP is the number of
# expert-parallel ranks.
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

export EP
EP=1
equals_one_rank 2 --zero-stage 3
EP=4
equals_one_rank 4 --use-distributed-optimizer
EP=2
equals_one_rank 2
equals_one_rank 4
equals_one_rank 4 --tensor-model-parallel-size 2 --sequence-parallel
equals_one_rank 4 --context-parallel-size 2 --use-distributed-optimizer
equals_one_rank 4 --use-distributed-optimizer --num-distributed-optimizer-instances 2 --ddp-bucket-size 3000 \
    --overlap-grad-reduce --overlap-param-gather
equals_one_rank 4 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1
equals_one_rank 4 --pipeline-model-parallel-size 2 --use-tp-pp-dp-mapping --recompute-granularity full \
    --recompute-method uniform --recompute-num-layers 1

ranks 4 meg-train -q --config "$T/conf" --zero-stage 2 >"$T/out" 2>"$T/err"
is 'ZeRO-2 is refused' $? 2
like 'the message names the reason' "$(cat "$T/err")" 'zero-stage 2: does not support expert parallelism'

# Checkpoints do not depend on the expert-parallel size.
as_saved() { # NAME N OPTION...: N ranks load iteration 5 of one rank, and save it with the same bytes
    name=$1 n=$2
    shift 2
    ranks "$n" meg-train -q --config "$T/conf" --load "$T/one.d" --ckpt-step 5 --train-iters 5 \
        --override-opt_param-scheduler --save "$T/$name" "$@" >"$T/out" 2>&1
    ok "$name: files equal those of one rank" same_tensors "$T/one.d/iter_0000005" "$T/$name/iter_0000005"
}
as_saved ep2 2
as_saved ep2-tp2 4 --tensor-model-parallel-size 2
as_saved ep2-zero1 4 --use-distributed-optimizer --ddp-bucket-size 3000
as_saved ep2-instances 4 --use-distributed-optimizer --num-distributed-optimizer-instances 2

train_ranks all 4 --use-distributed-optimizer --save "$T/all.d"
train_ranks half 4 --use-distributed-optimizer --save "$T/half.d" --exit-interval 5 \
    --check-weight-hash-across-dp-replicas-interval 2
is 'weights are equal on the ranks that have replicas' $? 0
ranks_but 4 2 'export FAULT=1' meg-train -q --config "$T/conf" --check-weight-hash-across-dp-replicas-interval 2 \
    >"$T/out" 2>"$T/err"
is 'an expert that differs from its replica ends the run' $? 1
like 'the message names the expert and the group' "$(cat "$T/err")" \
    'layers.0.experts.linear_fc1.weight differs from its replicas in the expert data-parallel group'
train_ranks rest 4 --use-distributed-optimizer --load "$T/half.d" --save "$T/rest.d"
ok 'a resumed run is bit-identical' same_tensors "$T/all.d/iter_0000010" "$T/rest.d/iter_0000010"
EP=1
train_ranks rest_of_one 1 --load "$T/half.d"
ok 'one rank resumes the run of expert-parallel ranks' near "$T/rest_of_one" "$T/rest"
done_testing
