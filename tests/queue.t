#!/bin/sh
# Training on the queue device of tests/queue, whose memory the host cannot access and whose streams run in a random order,
# equals training on the CPU bit for bit.  SEEDS=: orders per configuration.
. "${0%/*}/lib.sh"
. "${0%/*}/ranks.sh"
queue=$B/tests/queue
[ -x "$queue/test" ] || skip_all "$queue/test is not built (run make check)"
# Open MPI must not read the memory of another rank directly, as that memory is inaccessible most of the time.
export OMPI_MCA_btl_vader_single_copy_mechanism=none
seeds=${SEEDS:-1}

ok 'the queue device detects the errors that it is made for' "$queue/test"

tiny_gpt >"$T/conf"
cat >>"$T/conf" <<'EOF'
train-iters = 10
lr-warmup-iters = 2
eval-interval = 5
eval-iters = 1
global-batch-size = 8
EOF

# run RANKS COMMAND...: run COMMAND on as many ranks; one rank needs no launcher
run() {
    if [ "$1" -eq 1 ]; then
        shift
        "$@"
    else
        ranks "$@"
    fi
}

# same_run RANKS OPTION...: ten steps on the CPU and on the queue device have the same losses and gradient norms
same_run() {
    n=$1
    shift
    if [ "$n" -gt 1 ] && { [ ! -x "$B/tests/ranks/comm" ] || ! fits "$n"; }; then
        skip "$n ranks $*" "$([ -x "$B/tests/ranks/comm" ] && echo "$cores cores" || echo 'no MPI')"
        return
    fi
    rm -f "$T/cpu.json"
    run "$n" meg-train -q --config "$T/conf" --log-json "$T/cpu.json" "$@" >"$T/out" 2>&1
    jq -c '[.iteration, .lm_loss, .grad_norm, .loss_scale]' "$T/cpu.json" >"$T/cpu"
    is "$n ranks $*: all steps and evaluations are logged" "$(grep -c . "$T/cpu")" 15
    differing=
    i=0
    while [ $((i += 1)) -le "$seeds" ]; do
        seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
        rm -f "$T/queue.json"
        MEG_QUEUE_SEED=$seed run "$n" "$queue/bin/meg-train" -q --config "$T/conf" --log-json "$T/queue.json" "$@" >"$T/out" 2>&1
        jq -c '[.iteration, .lm_loss, .grad_norm, .loss_scale]' "$T/queue.json" 2>/dev/null | cmp -s - "$T/cpu" || differing="$differing $seed"
    done
    is "$n ranks $*: seeds (MEG_QUEUE_SEED) with other numbers" "$differing" ''
}
same_run 1
same_run 1 --bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
same_run 1 --fp16 --initial-loss-scale 4294967296 --loss-scale-window 4
same_run 1 --optimizer sgd --zero-stage 3 --log-params-norm --log-num-zeros-in-grad
same_run 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 1000
same_run 2 --zero-stage 2 --overlap-grad-reduce --bf16
same_run 2 --zero-stage 3 --overlap-grad-reduce --overlap-param-gather
same_run 2 --tensor-model-parallel-size 2 --sequence-parallel --recompute-activations
same_run 2 --pipeline-model-parallel-size 2 --num-layers 4 --num-layers-per-virtual-pipeline-stage 1
same_run 2 --context-parallel-size 2
same_run 2 --context-parallel-size 2 --cp-comm-type a2a
same_run 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
same_run 4 --context-parallel-size 2 --use-distributed-optimizer --num-distributed-optimizer-instances 2
done_testing
