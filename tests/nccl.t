#!/bin/sh
# needs: ranks/comm nccl
# modules: comm
# Tensor collectives over NCCL, on a test double of NCCL and the CUDA runtime (tests/nccl/double.h) that detects missing
# events, early frees and ranks that disagree.
. "${0%/*}/lib.sh"
. "${0%/*}/ranks.sh"
. "${0%/*}/torchrun.sh"
nccl=$B/tests/nccl
[ -x "$nccl/comm" ] || skip_all 'this build has no NCCL'
export MEG_DOUBLE_ABORTS="$T/aborts"

for n in 1 2 4; do
    torchrun "$n" "$nccl/comm"
    grep -h '^not ok' "$T/out.0" | sed 's/^/# /'
    is "$n ranks: every collective is correct" "$(echo "$statuses" | tr ' ' '\n' | sort -u)" 0
    is "$n ranks: all checks ran" "$(grep -c '^ok' "$T/out.0")" "$(sed -n 's/^1\.\.//p' "$T/out.0")"
    is "$n ranks: the double detects no error" "$(cat "$T"/err.*)" ''
done

tiny_gpt >"$T/conf"
cat >>"$T/conf" <<'EOF'
num-layers = 4
micro-batch-size = 1
train-iters = 4
eval-iters = 1
EOF

# logged FILE TEXT R...: true if FILE contains the process numbers of all ranks R, followed by TEXT
logged() {
    file=$1 text=$2
    shift 2
    for r; do
        grep -q "^$(cat "$T/pid.$r")$text$" "$file" || return 1
    done
}

# steps JSON: print iteration, loss and gradient norm of each record
steps() {
    jq -c '[.iteration, .lm_loss, .grad_norm]' "$1"
}

# like_mpirun N OPTION...: losses, gradient norms and checkpoints of ranks of torchrun are equal over NCCL and MPI
like_mpirun() {
    n=$1
    shift
    rm -rf "$T"/nccl.json "$T"/mpi.json "$T/nccl" "$T/mpi"
    torchrun "$n" "$nccl/bin/meg-train" --config "$T/conf" --log-json "$T/nccl.json" --save "$T/nccl" "$@"
    is "$n ranks $*: the run completes" "$(echo "$statuses" | tr ' ' '\n' | sort -u) $(grep -h double: "$T"/err.*)" '0 '
    if fits "$n"; then
        ranks "$n" meg-train -q --config "$T/conf" --log-json "$T/mpi.json" --save "$T/mpi" "$@" >"$T/out" 2>"$T/err"
        steps "$T/nccl.json" >"$T/a"
        steps "$T/mpi.json" >"$T/b"
        is "$n ranks $*: steps and evaluations are logged" "$(grep -c '[0-9],[0-9]' "$T/b")" 7
        ok "$n ranks $*: steps are bit-identical to MPI" cmp "$T/a" "$T/b"
        ok "$n ranks $*: the checkpoint is identical to MPI" same_tensors "$T/nccl/iter_0000004" "$T/mpi/iter_0000004"
    else
        skip "$n ranks $*: equal to MPI" "$cores cores"
    fi
}
if [ -x "$B/tests/ranks/comm" ]; then
    like_mpirun 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 1000
    like_mpirun 2 --zero-stage 3 --overlap-grad-reduce --overlap-param-gather --bf16
    export MEG_DOUBLE_REGISTERED="$T/registered"
    like_mpirun 2 --nccl-ub
    ok '--nccl-ub: gradients are registered' logged "$T/registered" ' all-reduce' 0 1
    rm -f "$T/registered"
    like_mpirun 2 --nccl-ub --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 1000
    ok '--nccl-ub with ZeRO-1: gradients are registered' logged "$T/registered" ' reduce-scatter' 0 1
    ok '--nccl-ub with ZeRO-1: parameters are registered' logged "$T/registered" ' all-gather' 0 1
    like_mpirun 2 --nccl-ub --zero-stage 2 --overlap-grad-reduce
    like_mpirun 2 --nccl-ub --zero-stage 3 --overlap-grad-reduce --overlap-param-gather --bf16
    like_mpirun 4 --nccl-ub --zero-stage 3 --overlap-grad-reduce --num-distributed-optimizer-instances 2
    unset MEG_DOUBLE_REGISTERED
    like_mpirun 2 --tensor-model-parallel-size 2 --sequence-parallel
    like_mpirun 2 --context-parallel-size 2 --cp-comm-type a2a
    like_mpirun 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1
    like_mpirun 4 --context-parallel-size 2 --use-distributed-optimizer
    ranks 2 "$nccl/bin/meg-train" -q --config "$T/conf" --log-json "$T/both.json" --tensor-model-parallel-size 2 >"$T/out" 2>&1
    is 'ranks of mpirun complete over NCCL' $? 0
    ranks 2 meg-train -q --config "$T/conf" --log-json "$T/mpi2.json" --tensor-model-parallel-size 2 >"$T/out" 2>&1
    is 'ranks of mpirun: steps are bit-identical over NCCL and MPI' "$(steps "$T/both.json")" "$(steps "$T/mpi2.json")"
else
    skip 'training is equal over NCCL and MPI' 'this build has no MPI'
fi

# aborted R...: true if all ranks R have aborted their communicators
aborted() {
    logged "$T/aborts" '' "$@"
}

# A rank is killed while others wait for it.
kill_one() {
    await 60 grep -q 'iteration  *3' "$T/out.0"
    kill -KILL "$(cat "$T/pid.2")"
}
torchrun_meanwhile=kill_one
torchrun 4 "$nccl/bin/meg-train" --config "$T/conf" --train-iters 100000 --eval-iters 0 --save "$T/killed"
torchrun_meanwhile=
is 'a rank is killed: the others exit with status 69' "$statuses" '69 69 137 69'
like 'rank 0 names the killed rank' "$(cat "$T/err.0")" "rank 2 of 4 on $(hostname) exited or was killed, possibly for lack of memory; .* step [0-9]"
ok 'the others have aborted their communicators' aborted 0 1 3
ok 'the lock of --save is removed' test -d "$T/killed" -a ! -e "$T/killed/.meg-lock"

# A rank does not call a collective, and the others wait for the device.
torchrun 3 "$nccl/comm" stuck 2
is 'a rank is stuck: all ranks exit with status 69' "$statuses" '69 69 69'
like 'rank 0 names the stuck rank and the operation' "$(cat "$T/err.0")" \
    'rank 1 of 3 on .* did not join an operation within 2.0 s; .* ranks 0, 2 at step 2, waiting in all-reduce .operation [0-9]* of group world'
ok 'all have aborted their communicators' aborted 0 1 2

mkdir "$T/broken"
: >"$T/broken/libnccl.so.2"
torchrun 2 sh -c "[ \$RANK = 0 ] || export LD_LIBRARY_PATH='$T/broken'; exec '$nccl/bin/meg-train' --config '$T/conf'"
is 'rank 1 has no NCCL: all ranks exit with status 1' "$statuses" '1 1'
like 'rank 1 has no NCCL: it names the library' "$(cat "$T/err.1")" 'several ranks on GPUs require libnccl.so.2: .*; install the library or set LD_LIBRARY_PATH'
done_testing
