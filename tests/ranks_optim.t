#!/bin/sh
# needs: ranks/comm
# modules: optim
# ZeRO stages 1 to 3: losses equal those of one rank, and overlapped communication is bit-identical.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

# The model has 51 ids, --vocab-size and the end of a document, so tensor-parallel ranks have embedding shards of
# different sizes.  Positions 16 to 19 do not occur, so their 4 x 32 gradients are zero.
tiny_gpt >"$T/conf"
cat >>"$T/conf" <<'EOF'
num-layers = 4
max-position-embeddings = 20
global-batch-size = 16
train-iters = 5
lr-warmup-iters = 2
eval-interval = 5
eval-iters = 1
log-params-norm = yes
log-num-zeros-in-grad = yes
ddp-bucket-size = 5000
EOF

logged='if .split then .lm_loss else .lm_loss, .grad_norm, .params_norm end'
# go NAME N OPTION...: like train_ranks; also write the counts of zero gradients, one per step, to $T/NAME.zeros
go() {
    train_ranks "$@"
    go_status=$?
    jq 'select(.split == null) | .num_zeros' "$T/$1.json" >"$T/$1.zeros"
    return $go_status
}

# same_zeros A B: true if two runs counted zeros in equally many steps, each count is at least 128, and the counts of a
# step differ by less than 8.  A nonzero gradient may round to zero on one CPU or in one order of summation, but a
# duplicate or missing row changes the count by 32.
same_zeros() {
    paste -d ' ' "$T/$1.zeros" "$T/$2.zeros" | awk '
        NF != 2 || $1 !~ /^[0-9]+$/ || $2 !~ /^[0-9]+$/ || $1 < 128 || $2 < 128 || $1 - $2 >= 8 || $2 - $1 >= 8 {
            print "step " NR ": " $0
            bad = 1
        }
        END { exit bad || NR == 0 }'
}

# same_numbers A B: true if the numbers and zero counts of two runs are equal
same_numbers() {
    near "$T/$1" "$T/$2" && same_zeros "$1" "$2"
}

# same_as_one NAME N OPTION...: the numbers of N ranks equal those of one
same_as_one() {
    name=$1
    go "$@"
    ok "$name: numbers equal those of one rank" same_numbers "$name" one
}

# with_overlap NAME N OPTION...: as same_as_one; numbers are bit-identical with overlapped reductions and gathers
with_overlap() {
    same_as_one "$@"
    plain=$1
    n=$2
    shift 2
    go over "$n" $over "$@"
    is "$plain: overlap is bit-identical" "$(cat "$T/over" "$T/over.zeros")" "$(cat "$T/$plain" "$T/$plain.zeros")"
}

dist=--use-distributed-optimizer
go one 1
is 'one rank logs four numbers per step and one per evaluation' "$? $(cat "$T/one" "$T/one.zeros" | wc -l | tr -d ' ')" '0 24'
over='--overlap-grad-reduce --overlap-param-gather'
with_overlap zero1 2 $dist
with_overlap 'zero1, sequence parallel' 4 $dist --tensor-model-parallel-size 2 --sequence-parallel
same_as_one 'zero1, two instances' 4 $dist --num-distributed-optimizer-instances 2 $over
same_as_one 'zero1, zb-h1' 4 $dist --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1 $over
same_as_one 'zero1, interleaved' 4 $dist --pipeline-model-parallel-size 2 \
    --num-layers-per-virtual-pipeline-stage 1 $over

same_as_one zero2 2 --zero-stage 2
same_as_one 'zero3, sequence parallel, full recomputation' 4 --zero-stage 3 $over \
    --tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full --recompute-method uniform \
    --recompute-num-layers 3
go untied 1 --untie-embeddings-and-output-weights
go fsdp 2 --use-torch-fsdp2 --untie-embeddings-and-output-weights
ok 'fsdp2: numbers equal those of one rank' same_numbers fsdp untied

# Checkpoints do not depend on the ZeRO stage or on overlap.
keeps() {
    dir=$1 n=$2
    shift 2
    go kept "$n" --save "$T/$dir" --save-interval 5 "$@"
}
same_files() {
    same_tensors "$T/$1/iter_0000005" "$T/$2/iter_0000005"
}
keeps s1 2
keeps s2 2 --overlap-grad-reduce
ok 'overlapped reductions: checkpoints are identical' same_files s1 s2
keeps s4 2 $dist $over
ok 'zero1, overlapped: checkpoints are identical' same_files s1 s4

keeps s5 2 --zero-stage 3
keeps s6 2 --zero-stage 2 $over
ok 'zero2 and zero3: checkpoints are identical' same_files s5 s6

# Four ranks resume a run of two ranks, and one rank resumes that run.
keeps s4 4 $dist $over --num-distributed-optimizer-instances 2 --load "$T/s4" --train-iters 8 --exit-interval 6 \
    --override-opt_param-scheduler
is 'four ranks resume with the shards of two' "$? $(cat "$T/s4/latest_checkpointed_iteration.txt")" '0 6'
go a 1 --load "$T/s4" --train-iters 8 --override-opt_param-scheduler
go b 1 --load "$T/s1" --train-iters 8 --override-opt_param-scheduler
tail -n 1 "$T/a" >"$T/a1"
tail -n 1 "$T/b" >"$T/b1"
ok 'one rank resumes with the shards of four' near "$T/a1" "$T/b1"

refuses() {
    name=$1
    shift
    meg-train -q --config "$T/conf" "$@" >"$T/out" 2>"$T/err"
    is "$name: the status is 2" $? 2
    is "$name: the message is printed once" "$(grep -c "meg-train: $name" "$T/err")" 1
}
refuses '--overlap-param-gather: requires' --overlap-param-gather --overlap-grad-reduce
refuses '--num-distributed-optimizer-instances 3: must divide the data-parallel size, 1' \
    --num-distributed-optimizer-instances 3 $dist
refuses '--ddp-bucket-size 0: must be' --ddp-bucket-size 0
refuses '--zero-stage 4: must be' --zero-stage 4
refuses '--zero-stage 0: contradicts --use-distributed-optimizer' --zero-stage 0 $dist
refuses '--zero-stage 2: contradicts --use-torch-fsdp2' --zero-stage 2 --use-torch-fsdp2 --untie-embeddings-and-output-weights
refuses '--use-torch-fsdp2: requires --untie' --use-torch-fsdp2
ranks 2 meg-train -q --config "$T/conf" --zero-stage 2 --pipeline-model-parallel-size 2 >"$T/out" 2>"$T/err"
is 'zero2 with pipeline stages: the status is 2' $? 2
like 'zero2 with pipeline stages: the message names the rule' "$(cat "$T/err")" 'zero-stage 2: requires --pipeline-model-parallel-size 1, not 2'
done_testing
