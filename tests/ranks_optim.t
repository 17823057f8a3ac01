#!/bin/sh
# Ranks that share the optimizer's work: the losses of one rank, and overlapping changes no bit.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

# 51 words do not divide by 2: tensor-parallel ranks have tables of different size.  Positions 16 to 19 do not occur:
# their 128 gradients are zero, and counted.
tiny_gpt >"$T/conf"
cat >>"$T/conf" <<'EOF'
num-layers = 4
max-position-embeddings = 20
global-batch-size = 16
train-iters = 5
lr-warmup-iters = 2
vocab-size = 51
eval-interval = 5
eval-iters = 1
log-params-norm = yes
log-num-zeros-in-grad = yes
ddp-bucket-size = 5000
EOF

# go NAME N OPTION...: N ranks; what each step and evaluation says, but for times, a number a line in $T/NAME, and the
# number of gradients that are zero, one a step, in $T/NAME.zeros
go() {
    name=$1 n=$2
    shift 2
    rm -f "$T/$name.json"
    ranks "$n" meg-train -q --config "$T/conf" --log-json "$T/$name.json" "$@" >"$T/out" 2>&1
    go_status=$?
    jq 'if .split then .lm_loss else .lm_loss, .grad_norm, .params_norm end' "$T/$name.json" >"$T/$name"
    jq 'select(.split == null) | .num_zeros' "$T/$name.json" >"$T/$name.zeros"
    return $go_status
}

# same_zeros A B: as many counts, all of 128 and more, that differ by less than 8: a gradient that is not zero may round
# to zero on one CPU and not on another, or in another order of sums, but a row that is counted twice or not has 32
same_zeros() {
    paste -d ' ' "$T/$1.zeros" "$T/$2.zeros" | awk '
        NF != 2 || $1 !~ /^[0-9]+$/ || $2 !~ /^[0-9]+$/ || $1 < 128 || $2 < 128 || $1 - $2 >= 8 || $2 - $1 >= 8 {
            print "step " NR ": " $0
            bad = 1
        }
        END { exit bad || NR == 0 }'
}

# same_numbers A B: those of two runs, and their zeros
same_numbers() {
    near "$T/$1" "$T/$2" && same_zeros "$1" "$2"
}

# same_as_one NAME N OPTION...: the numbers of one rank
same_as_one() {
    name=$1
    go "$@"
    ok "$name: the numbers of one rank" same_numbers "$name" one
}

# with_overlap NAME N OPTION...: as well, and to the last digit the same while reductions and gathers go on
with_overlap() {
    same_as_one "$@"
    plain=$1
    n=$2
    shift 2
    go over "$n" $over "$@"
    is "$plain, overlapped: the same digits" "$(cat "$T/over" "$T/over.zeros")" "$(cat "$T/$plain" "$T/$plain.zeros")"
}

dist=--use-distributed-optimizer
go one 1
is 'one rank, four numbers a step, one an evaluation' "$? $(cat "$T/one" "$T/one.zeros" | wc -l | tr -d ' ')" '0 24'
over='--overlap-grad-reduce --overlap-param-gather'
with_overlap slices 2 $dist
with_overlap 'slices, layers shared by positions' 4 $dist --tensor-model-parallel-size 2 --sequence-parallel
same_as_one instances 4 $dist --num-distributed-optimizer-instances 2 $over
same_as_one 'slices, stages, backward in parts' 4 $dist --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1 $over
same_as_one 'slices, chunks of stages' 4 $dist --pipeline-model-parallel-size 2 \
    --num-layers-per-virtual-pipeline-stage 1 $over

same_as_one 'gradients in slices' 2 --zero-stage 2
same_as_one 'parameters in slices of instances, layers shared by positions, recomputed' 4 --zero-stage 3 $over \
    --tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full --recompute-method uniform \
    --recompute-num-layers 3
go untied 1 --untie-embeddings-and-output-weights
go fsdp 2 --use-torch-fsdp2 --untie-embeddings-and-output-weights
ok 'fsdp2: the numbers of one rank' same_numbers fsdp untied

# Files of a run are the same bytes, whoever wrote which part and whatever went on meanwhile.
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
ok 'overlapped reductions: the same files' same_files s1 s2
keeps s4 2 $dist $over
ok 'slices, overlapped: the same files' same_files s1 s4

keeps s5 2 --zero-stage 3
keeps s6 2 --zero-stage 2 $over
ok 'parameters in slices, gradients in slices: the same files' same_files s5 s6

# Four ranks go on where two stopped, and one where those stopped.
keeps s4 4 $dist $over --num-distributed-optimizer-instances 2 --load "$T/s4" --train-iters 8 --exit-interval 6 \
    --override-opt_param-scheduler
is 'four ranks take up the slices of two' "$? $(cat "$T/s4/latest_checkpointed_iteration.txt")" '0 6'
go a 1 --load "$T/s4" --train-iters 8 --override-opt_param-scheduler
go b 1 --load "$T/s1" --train-iters 8 --override-opt_param-scheduler
tail -n 1 "$T/a" >"$T/a1"
tail -n 1 "$T/b" >"$T/b1"
ok 'and one rank theirs' near "$T/a1" "$T/b1"

refuses() {
    name=$1
    shift
    meg-train -q --config "$T/conf" "$@" >"$T/out" 2>"$T/err"
    is "$name: status" $? 2
    is "$name: a line" "$(grep -c "meg-train: $name" "$T/err")" 1
}
refuses '--overlap-param-gather: needs' --overlap-param-gather --overlap-grad-reduce
refuses '--num-distributed-optimizer-instances 3: must divide the 1 data-parallel rank' \
    --num-distributed-optimizer-instances 3 $dist
refuses '--ddp-bucket-size 0: must be' --ddp-bucket-size 0
refuses '--zero-stage 4: must be' --zero-stage 4
refuses '--zero-stage 0: contradicts --use-distributed-optimizer' --zero-stage 0 $dist
refuses '--zero-stage 2: contradicts --use-torch-fsdp2' --zero-stage 2 --use-torch-fsdp2 --untie-embeddings-and-output-weights
refuses '--use-torch-fsdp2: needs --untie' --use-torch-fsdp2
ranks 2 meg-train -q --config "$T/conf" --zero-stage 2 --pipeline-model-parallel-size 2 >"$T/out" 2>"$T/err"
is 'gradients in slices and stages: status' $? 2
like 'and a line' "$(cat "$T/err")" 'zero-stage 2: needs --pipeline-model-parallel-size 1, not 2'
done_testing
