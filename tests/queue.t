#!/bin/sh
# needs: ranks/comm queue
# modules: device
# Training on the queue device of tests/queue, whose memory the host cannot access and whose streams run in a random order,
# equals training on the CPU bit for bit.  SEEDS=N tests N random orders per configuration (default: 1).
. "${0%/*}/lib.sh"
. "${0%/*}/ranks.sh"
queue=$B/tests/queue
[ -x "$queue/test" ] || skip_all "$queue/test is not built (run make check)"
# Open MPI must not read the memory of another rank directly, because that memory is inaccessible most of the time.  MPICH
# has no setting for this.
export OMPI_MCA_btl_vader_single_copy_mechanism=none
seeds=${SEEDS:-1}

ok 'the queue device detects the errors that it is made for' "$queue/test"

# A dataset file is indexed once; --mock-data would spend most of a run on its index.
. "${0%/*}/train.sh"
cat >>"$T/conf" <<'EOF'
num-attention-heads = 4
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

# has_ranks N NAME: true if N ranks can run here; if not, skip the check NAME
has_ranks() {
    if [ "$1" -gt 1 ] && [ ! -x "$B/tests/ranks/comm" ]; then
        skip "$2" 'no MPI'
    elif [ "$1" -gt 1 ] && ! is_openmpi; then
        skip "$2" 'MPICH accesses the memory of other ranks'
    else
        return 0
    fi
    return 1
}

# same_run RANKS OPTION...: ten steps and five evaluations on the CPU and on the queue device have the same losses,
# gradient norms and loss scales; at least $fewest of the 15 losses are finite
same_run() {
    n=$1
    shift
    has_ranks "$n" "$n ranks $*" || return
    rm -f "$T/cpu.json"
    run "$n" meg-train -q --config "$T/conf" --log-json "$T/cpu.json" "$@" >"$T/out" 2>&1
    jq -c '[.iteration, .lm_loss, .grad_norm, .loss_scale]' "$T/cpu.json" >"$T/cpu"
    is "$n ranks $*: all steps and evaluations are logged" "$(grep -c . "$T/cpu")" 15
    ok "$n ranks $*: at least $fewest losses are finite" \
        test "$(jq -c 'select(.lm_loss | type == "number")' "$T/cpu.json" | grep -c .)" -ge "$fewest"
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
fewest=15
same_run 1
same_run 1 --bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
fewest=12 # three steps overflow at the initial loss scale and are skipped
same_run 1 --fp16 --initial-loss-scale 524288 --loss-scale-window 4
fewest=15
same_run 1 --hidden-dropout 0 --disable-bias-linear
same_run 1 --optimizer sgd --zero-stage 3 --log-params-norm --log-num-zeros-in-grad
same_run 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 1000
same_run 2 --zero-stage 2 --overlap-grad-reduce --bf16
same_run 2 --zero-stage 3 --overlap-grad-reduce --overlap-param-gather
same_run 2 --zero-stage 3 --bf16 --main-grads-dtype bf16 --main-params-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16
same_run 2 --tensor-model-parallel-size 2 --sequence-parallel --recompute-activations
same_run 2 --pipeline-model-parallel-size 2 --num-layers 4 --num-layers-per-virtual-pipeline-stage 1
same_run 2 --pipeline-model-parallel-size 2 --num-layers 4 --pipeline-model-parallel-layout 'E|t*2||t|t|L'
same_run 2 --context-parallel-size 2
same_run 2 --context-parallel-size 2 --cp-comm-type a2a
same_run 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
same_run 4 --context-parallel-size 2 --use-distributed-optimizer --num-distributed-optimizer-instances 2

# A BERT has other options and data.
cp "$T/conf" "$T/gpt.conf"
. "${0%/*}/bert.sh"
echo 'split = 60,20,20' >>"$T/conf"
same_run 1
same_run 2 --tensor-model-parallel-size 2 --sequence-parallel --bf16
same_run 2 --pipeline-model-parallel-size 2 --zero-stage 1
cp "$T/gpt.conf" "$T/conf"

# Let the language-model head compute the 32 rows of a micro-batch in two chunks, in the reference run on the CPU, too.
path=$PATH
export MEG_QUEUE_LOGITS_ROWS=24
PATH=$queue/bin:$PATH
same_run 1
same_run 2 --tensor-model-parallel-size 2 --sequence-parallel
PATH=$path
unset MEG_QUEUE_LOGITS_ROWS

# no_stops RANKS OPTION...: check that a step has exactly one copy to the host and one host wait, both for its results.
# Ten steps are the difference of runs of ten and of twenty steps
no_stops() {
    n=$1
    shift
    has_ranks "$n" "$n ranks $*: counts" || return
    for iters in 10 20; do
        rm -f "$T/counts$iters"
        MEG_QUEUE_SEED=$$ MEG_QUEUE_COUNTS=$T/counts$iters run "$n" "$queue/bin/meg-train" -q --config "$T/conf" --eval-interval 100 \
            --train-iters $iters "$@" >"$T/out" 2>&1
        sort "$T/counts$iters" >"$T/sorted$iters"
    done
    is "$n ranks $*: downloads and waits of ten steps" "$(paste "$T/sorted10" "$T/sorted20" |
        awk '{ print $5 - $1, $7 - $3 }' | sort -u)" '10 10'
    is "$n ranks $*: every rank counted" "$(grep -c . "$T/counts20")" "$n"
}
no_stops 1
no_stops 1 --fp16 --log-params-norm --log-num-zeros-in-grad
no_stops 2 --zero-stage 3 --overlap-grad-reduce --overlap-param-gather --bf16
no_stops 2 --use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 1000
no_stops 2 --tensor-model-parallel-size 2 --sequence-parallel
no_stops 2 --pipeline-model-parallel-size 2 --num-layers 4 --num-layers-per-virtual-pipeline-stage 1
no_stops 2 --context-parallel-size 2

# same_checkpoints RANKS OPTION...: the checkpoints of a run are equal, also if it is resumed on the queue device
same_checkpoints() {
    n=$1
    shift
    has_ranks "$n" "$n ranks $*: checkpoints" || return
    rm -rf "$T/cpu_ckpt" "$T/queue_ckpt"
    run "$n" meg-train -q --config "$T/conf" --save "$T/cpu_ckpt" "$@" >"$T/out" 2>&1
    MEG_QUEUE_SEED=$$ run "$n" "$queue/bin/meg-train" -q --config "$T/conf" --save "$T/queue_ckpt" --exit-interval 5 "$@" >"$T/out" 2>&1
    is "$n ranks $*: half of the steps" "$? $(cat "$T/queue_ckpt/latest_checkpointed_iteration.txt")" '0 5'
    ok "$n ranks $*: a checkpoint is equal" same_tensors "$T/queue_ckpt/iter_0000005" "$T/cpu_ckpt/iter_0000005"
    MEG_QUEUE_SEED=$$ run "$n" "$queue/bin/meg-train" -q --config "$T/conf" --save "$T/queue_ckpt" --load "$T/queue_ckpt" "$@" >"$T/out" 2>&1
    ok "$n ranks $*: a resumed run is equal" same_tensors "$T/queue_ckpt/iter_0000010" "$T/cpu_ckpt/iter_0000010"
}
echo 'save-interval = 5' >>"$T/conf"
same_checkpoints 1 --async-save
same_checkpoints 2 --bf16 --zero-stage 3
same_checkpoints 2 --tensor-model-parallel-size 2

# ---- inference ----
same_checkpoints 1
# The prompts have different lengths, so that buffers grow.
printf '{"ids":[%s]}\n' 1,2,3 4,5 6,7,8,9,1,2,3 5 >"$T/p"
for command in 'meg-generate --tokens-to-generate 6' 'meg-generate --tokens-to-generate 6 --bf16 --max-batch-size 2' \
    'meg-eval --task logprobs' 'meg-eval --task logprobs --fp16'; do
    # shellcheck disable=SC2086 # words
    set -- $command --load "$T/cpu_ckpt" --input "$T/p"
    "$@" >"$T/cpu" 2>"$T/err"
    MEG_QUEUE_SEED=$$ PATH="$queue/bin:$PATH" "$@" >"$T/queue" 2>"$T/err"
    ok "$command prints the same" test -s "$T/cpu" -a "$(cat "$T/cpu")" = "$(cat "$T/queue")"
done
done_testing
