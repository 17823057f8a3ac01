#!/bin/sh
# Ranks that torchrun's environment makes, over a stand-in for NCCL and the CUDA runtime: tests/nccl/double.c.
. "${0%/*}/lib.sh"
. "${0%/*}/ranks.sh"
unset RANK LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE

torchrun_double=$B/tests/nccl
torchrun_port=$((20000 + $$ % 400 * 30))

# next_port: no two runs of a test meet at the same one
next_port() {
    torchrun_port=$((torchrun_port + 1))
}

# as_rank R N COMMAND...: run it as rank R of N of this machine
as_rank() {
    as_rank_r=$1 as_rank_n=$2
    shift 2
    env LD_LIBRARY_PATH="$torchrun_double" TMPDIR="$T" RANK="$as_rank_r" WORLD_SIZE="$as_rank_n" LOCAL_RANK="$as_rank_r" \
        LOCAL_WORLD_SIZE="$as_rank_n" MASTER_ADDR=localhost MASTER_PORT="$torchrun_port" "$@"
}

# torchrun N COMMAND...: run it on N ranks, output of rank R to $T/out.R and $T/err.R; $statuses are theirs
torchrun() {
    torchrun_n=$1
    shift
    next_port
    rm -f "$T"/out.* "$T"/err.* "$T"/pid.*
    torchrun_pids=
    for torchrun_r in $(seq 0 $((torchrun_n - 1))); do
        as_rank "$torchrun_r" "$torchrun_n" sh -c 'echo $$ >"$1.$RANK"; shift; exec "$@"' sh "$T/pid" "$@" \
            >"$T/out.$torchrun_r" 2>"$T/err.$torchrun_r" &
        torchrun_pids="$torchrun_pids $!"
    done
    [ -z "${torchrun_meanwhile:-}" ] || $torchrun_meanwhile
    statuses=
    for torchrun_pid in $torchrun_pids; do
        wait "$torchrun_pid"
        statuses="$statuses${statuses:+ }$?"
    done
}

as_rank 0 4 meg-train --version >"$T/out" 2>"$T/err"
version_status=$?
if [ "$version_status" -ne 0 ]; then
    is 'without NCCL torchrun is refused' "$version_status" 2
    like 'with a word on what to do' "$(cat "$T/err")" 'torchrun started 4 ranks .*this build has none; .* mpirun'
    done_testing
fi

for n in 1 2 4 8; do
    torchrun "$n" "$torchrun_double/comm"
    grep -h '^not ok' "$T/out.0" | sed 's/^/# /'
    is "$n ranks: every collective gives what it should" "$(echo "$statuses" | tr ' ' '\n' | sort -u)" 0
    is "$n ranks: all checks ran" "$(grep -c '^ok' "$T/out.0")" "$(sed -n 's/^1\.\.//p' "$T/out.0")"
done

tiny_gpt >"$T/conf"
cat >>"$T/conf" <<'EOF'
num-layers = 4
micro-batch-size = 1
train-iters = 4
eval-iters = 1
EOF

# like_mpirun N OPTION...: the losses over NCCL and over MPI are the same, and so are the files
like_mpirun() {
    n=$1
    shift
    rm -rf "$T"/nccl.json "$T"/mpi.json "$T/nccl" "$T/mpi"
    torchrun "$n" meg-train --config "$T/conf" --log-json "$T/nccl.json" --save "$T/nccl" "$@"
    like "$n ranks are torchrun's" "$(cat "$T/err.0")" "$n ranks, started by torchrun"
    if fits "$n"; then
        ranks "$n" meg-train -q --config "$T/conf" --log-json "$T/mpi.json" --save "$T/mpi" "$@" >"$T/out" 2>"$T/err"
        losses "$T/nccl.json" >"$T/a"
        losses "$T/mpi.json" >"$T/b"
        ok "$n ranks $*: the losses of mpirun's, bit for bit" cmp "$T/a" "$T/b"
        ok 'all of them numbers' near "$T/a" "$T/b" 0
        ok 'of as many steps' test "$(wc -l <"$T/a")" -ge 4
        ok 'and the files' diff -r -x '*.json' -x run.conf "$T/nccl" "$T/mpi"
    else
        skip "$n ranks $*: as over mpirun" "$cores cores"
    fi
}
if [ -x "$B/tests/ranks/comm" ]; then
    like_mpirun 2 --tensor-model-parallel-size 2 --sequence-parallel
    like_mpirun 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1
    like_mpirun 4 --context-parallel-size 2 --use-distributed-optimizer
fi

# A rank that is killed is named by a survivor, and all end.
kill_one() {
    until_true 20 grep -q 'iteration  *3' "$T/out.0"
    kill -KILL "$(cat "$T/pid.2")"
}
torchrun_meanwhile=kill_one
torchrun 4 meg-train --config "$T/conf" --train-iters 100000 --eval-iters 0
torchrun_meanwhile=
is 'a rank is killed: the others end with status 69' "$statuses" '69 69 137 69'
like 'and it is named' "$(cat "$T/err.0")" "rank 2 of 4 on $(hostname) is gone .* step [0-9]"

# Starting.
few="meg-train --config $T/conf --distributed-timeout-minutes 0.02"
absent() { # RANK: in the background, output to $T/err.RANK and the status behind it
    absent_r=$1
    shift
    {
        as_rank "$absent_r" 3 "$@" $few >/dev/null 2>"$T/err.$absent_r"
        echo "status $?" >>"$T/err.$absent_r"
    } &
}
next_port
absent 2 env
absent 0 env
wait
like 'a rank that does not come is named' "$(cat "$T/err.0")" \
    "waited 1.2 s at port $torchrun_port for rank 1 of 3; ranks 0, 2 came"
is 'with status 69 of all' "$(cat "$T/err.0" "$T/err.2" | grep '^status')" "$(printf 'status 69\nstatus 69')"
next_port
absent 1 env
wait
like 'and so is rank 0' "$(tr '\n' ' ' <"$T/err.1")" 'for rank 0 at port .* of this machine: .* status 69'
next_port
absent 0 env
absent 1 env WORLD_SIZE=4
wait
like 'ranks that disagree on how many they are' "$(tr '\n' ' ' <"$T/err.0")" \
    'rank 1 on .* as one of 4 ranks, and rank 0 on .* as one of 3 status 2'
like 'hear so' "$(tr '\n' ' ' <"$T/err.1")" 'as one of 4 ranks.* status 2'
next_port
absent 0 env
absent 1 env
absent 2 env RANK=1
wait
like 'a rank that is there twice' "$(tr '\n' ' ' <"$T/err.0")" 'two processes are rank 1, .* status 2'
next_port
absent 0 env
absent 1 env TORCHELASTIC_RUN_ID=another
wait
like 'a rank of another run is not let in' "$(tr '\n' ' ' <"$T/err.1")" 'is not rank 0 of this run status 69'
like 'and does not count' "$(cat "$T/err.0")" 'for ranks 1-2 of 3; rank 0 came'

next_port
perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 1, LocalPort => shift, ReuseAddr => 1) or die; sleep 60' \
    "$torchrun_port" &
perl=$!
until_true 5 grep -qi ":$(printf %04x "$torchrun_port") 00000000:0000 0A" /proc/net/tcp
status 'a port that is taken is a mistake of the environment' 2 as_rank 0 2 $few
like 'which names it' "$(cat "$T/err")" "port $torchrun_port of .*: Address already in use; give another MASTER_PORT"
as_agent() { as_rank "$1" 2 env TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=none $few >"$T/agent.$1" 2>&1; }
as_agent 1 &
as_agent 0
is 'unless it is that of the agent: ranks meet at the next one' $? 0
kill "$perl"
wait

# refused VARIABLE=VALUE REGEX: rank 0 of 3 with it ends with status 2
refused() {
    status "$1" 2 as_rank 0 3 env "$1" $few
    like 'is told so' "$(cat "$T/err")" "$2"
}
refused RANK=3 "RANK is '3', not a number from 0 to 2"
refused WORLD_SIZE=two "WORLD_SIZE is 'two', not a number from 1 to"
refused MASTER_PORT=0 "MASTER_PORT is '0', not a number from 1 to 65535"
refused LOCAL_RANK=-1 "LOCAL_RANK is '-1', not a number from 0 to 2"
refused LOCAL_WORLD_SIZE=4 "LOCAL_WORLD_SIZE is '4', not a number from 1 to 3"
refused MASTER_ADDR= 'not MASTER_ADDR'
status 'WORLD_SIZE alone' 2 env WORLD_SIZE=3 $few
like 'is told so' "$(cat "$T/err")" 'WORLD_SIZE is set, as torchrun does, but not RANK'

# Libraries and devices.
mkdir "$T/broken"
for lib in "$torchrun_double"/libcudart*; do
    ln -s "$lib" "$T/broken"
done
: >"$T/broken/libnccl.so.2"
torchrun 2 env LD_LIBRARY_PATH="$T/broken" $few
is 'no NCCL: all end' "$statuses" '1 1'
like 'with what is missing' "$(cat "$T/err.0")" 'need libnccl.so.2: .*; install it or set LD_LIBRARY_PATH, or'
torchrun 2 env MEG_DOUBLE_DEVICES=0 $few
is 'no device: all end' "$statuses" '1 1'
like 'and say so' "$(cat "$T/err.0")" 'need a CUDA device each: no CUDA-capable device'
torchrun 2 env MEG_DOUBLE_DEVICES=1 $few
is 'a device for one of two: both end' "$statuses" '1 1'
like 'for the reason of the other' "$(cat "$T/err.0")" 'rank 1 of 2 .* LOCAL_RANK is 1, and this machine has 1 CUDA device'
torchrun 2 $few --distributed-timeout-minutes 0
is 'a broken rule is told as ever' "$statuses $(grep -c 'distributed-timeout' "$T/err.0")" '2 2 1'
done_testing
