#!/bin/sh
# Ranks that torchrun's environment makes, over a stand-in for NCCL and the CUDA runtime: tests/nccl/double.c.
. "${0%/*}/lib.sh"
. "${0%/*}/ranks.sh"
unset RANK LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE

torchrun_double=$B/tests/nccl

# Reserve a block of ports while this test runs, by listening at the first: another run of it takes another block.
perl -MIO::Socket::INET -e '$| = 1;
    for (1 .. 1000) {
        my $port = 20000 + 50 * int(rand(240));
        $s = IO::Socket::INET->new(Listen => 1, LocalPort => $port) or next;
        print "$port\n";
        sleep;
    }' >"$T/ports" &
until_true 10 test -s "$T/ports"
torchrun_port=$(cat "$T/ports")

# next_port: no two runs within this test meet at the same one
next_port() {
    torchrun_port=$((torchrun_port + 1))
}

# listen_at PORT CODE: in the background, listen at PORT and run the perl CODE for each connection $c
listen_at() {
    perl -MIO::Socket::INET -e '
        $s = IO::Socket::INET->new(Listen => 1, LocalPort => $ARGV[0], ReuseAddr => 1) or die;
        while ($c = $s->accept) { eval $ARGV[1] }' "$1" "$2" &
    listener=$!
    until_true 10 grep -qi ":$(printf %04x "$1") 00000000:0000 0A" /proc/net/tcp
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
else
    skip 'the losses and files of mpirun' 'this build has no MPI'
fi

# A rank that is killed is named by a survivor, and all end.
kill_one() {
    until_true 20 grep -q 'iteration  *3' "$T/out.0"
    kill -KILL "$(cat "$T/pid.2")"
}
torchrun_meanwhile=kill_one
torchrun 4 meg-train --config "$T/conf" --train-iters 100000 --eval-iters 0 --save "$T/killed"
torchrun_meanwhile=
is 'a rank is killed: the others end with status 69' "$statuses" '69 69 137 69'
ok 'the lock of --save is removed' test -d "$T/killed" -a ! -e "$T/killed/.meg-lock"
like 'and it is named' "$(cat "$T/err.0")" "rank 2 of 4 on $(hostname) is gone .* step [0-9]"

# A second job with the same port and name is refused, and the first continues.
second="meg-train --config $T/conf"
second_job() {
    until_true 20 grep -q 'iteration  *3' "$T/out.0"
    second_statuses=
    for of in '0 2' '1 2' '3 4'; do
        # shellcheck disable=SC2086 # words
        as_rank $of $second >"$T/second" 2>&1
        second_statuses="$second_statuses $?"
        tail -n 1 "$T/second" >>"$T/said"
    done
    before=$(grep -c iteration "$T/out.0")
    ok 'a second job has the same port: the first continues' until_true 20 continues
    kill -TERM "$(cat "$T/pid.0")"
}
continues() {
    [ "$(grep -c iteration "$T/out.0")" -gt $((before + 2)) ]
}
torchrun_meanwhile=second_job
torchrun 2 meg-train --config "$T/conf" --train-iters 100000 --eval-iters 0 --save "$T/first"
torchrun_meanwhile=
is 'until it is asked to stop' "$statuses" '75 75'
is 'every rank of the second ends with status 2' "$second_statuses" ' 2 2 2'
like 'rank 0 because the port is taken' "$(cat "$T/said")" 'ranks cannot meet at port .*: Address already in use'
like 'another because the first job is complete' "$(cat "$T/said")" \
    "port $torchrun_port refuses rank 1 of 2 on .*: the run there has all of its 2 ranks; .* MASTER_PORT or a --rdzv-id"
like 'whatever number it has' "$(cat "$T/said")" "port $torchrun_port refuses rank 3 of 4 on .*: the run there has all of its 2"
is 'the first job names it once' "$(grep -c 'refused a process on .* rank 1, because all 2 ranks have joined' "$T/err.0")" 1
is 'and no other' "$(grep -c 'refused a process' "$T/err.0")" 1

# Connections that say nothing, or nothing sensible, before all ranks have joined.
strangers() {
    until_true 20 grep -qi ":$(printf %04x "$torchrun_port") 00000000:0000 0A" /proc/net/tcp
    perl -MIO::Socket::INET -e '
        for (1 .. 200) { push @idle, IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $ARGV[0]) or die }
        for (1 .. 20) {
            my $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $ARGV[0]) or die;
            print $c pack("LL", $_, 88) . "GET / HTTP/1.1\r\n" x (20 * $_)
        }
        open my $f, ">", $ARGV[1]; close $f;
        sleep' "$torchrun_port" "$T/came" &
    stranger=$!
    ok 'strangers come first' until_true 20 test -e "$T/came"
}
torchrun_meanwhile=strangers
torchrun 2 sh -c "[ \$RANK = 0 ] || until [ -e '$T/came' ]; do sleep 0.05; done; exec meg-train --config '$T/conf'"
torchrun_meanwhile=
is 'and the job runs to its end' "$statuses" '0 0'
kill "$stranger"

# Starting.  Whatever ends by itself has a minute; a wait that has to pass takes seconds, all of them at once.
patient="meg-train --config $T/conf --distributed-timeout-minutes 1"
some_s="$patient --distributed-timeout-minutes 0.1"
# rank_of_3 PREFIX RANK COMMAND...: in the background, output to $T/PREFIX.RANK and the status behind it
rank_of_3() {
    rank_of_3_to=$T/$1.$2 rank_of_3_r=$2
    shift 2
    {
        as_rank "$rank_of_3_r" 3 "$@" >/dev/null 2>"$rank_of_3_to"
        echo "status $?" >>"$rank_of_3_to"
    } &
    rank_of_3_pids="$rank_of_3_pids $!"
}
# shellcheck disable=SC2086 # words
all_end() {
    wait $rank_of_3_pids
    rank_of_3_pids=
}
rank_of_3_pids=
# shellcheck disable=SC2086 # words
{
    next_port
    absent_port=$torchrun_port
    rank_of_3 absent 2 $patient
    rank_of_3 absent 0 $some_s
    next_port
    rank_of_3 alone 1 $some_s
    next_port
    rank_of_3 another 0 $some_s
    rank_of_3 another 1 env TORCHELASTIC_RUN_ID=another $patient
    rank_of_3 another 2 env OMPI_MCA_orte_precondition_transports=12-34 $patient
    next_port
    rank_of_3 fewer 0 $patient
    rank_of_3 fewer 1 env WORLD_SIZE=4 $patient
    next_port
    rank_of_3 twice 0 $patient
    rank_of_3 twice 1 $patient
    rank_of_3 twice 2 env RANK=1 $patient
    all_end
}
like 'a rank that does not come is named' "$(cat "$T/absent.0")" \
    "waited 6.0 s at port $absent_port for rank 1 of 3; ranks 0, 2 came"
is 'with status 69 of all' "$(cat "$T/absent.0" "$T/absent.2" | grep '^status')" "$(printf 'status 69\nstatus 69')"
like 'and so is rank 0' "$(tr '\n' ' ' <"$T/alone.1")" 'for rank 0 at port .* of this machine: .* status 69'
like 'ranks that disagree on how many they are' "$(tr '\n' ' ' <"$T/fewer.0")" \
    'rank 1 on .* as one of 4 ranks, and rank 0 on .* as one of 3 status 2'
like 'hear so' "$(tr '\n' ' ' <"$T/fewer.1")" 'as one of 4 ranks.* status 2'
like 'a rank that is there twice' "$(tr '\n' ' ' <"$T/twice.0")" 'two processes are rank 1, .* status 2'
like 'a rank of another run is refused' "$(tr '\n' ' ' <"$T/another.1")" \
    'refuses rank 1 of 3 on .*: another run uses it; give this one another MASTER_PORT.* status 2'
like 'and so is one of another job of Open MPI' "$(tr '\n' ' ' <"$T/another.2")" 'refuses rank 2 .*another run .* status 2'
like 'and they do not count' "$(cat "$T/another.0")" 'for ranks 1-2 of 3; rank 0 came'

# shellcheck disable=SC2086 # words
{
    next_port
    listen_at "$torchrun_port" 'sleep'
    status 'a port that is taken is a mistake of the environment' 2 as_rank 0 2 $patient
    like 'which names it' "$(cat "$T/err")" "port $torchrun_port of .*: Address already in use; give another MASTER_PORT"
    as_agent() { as_rank "$1" 2 env TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=none $patient >"$T/agent.$1" 2>&1; }
    as_agent 1 &
    agent=$!
    as_agent 0
    is 'unless it is that of the agent: ranks meet at the next one' $? 0
    wait "$agent"
    is 'both of them' $? 0
    kill "$listener"
}
next_port
next_port
listen_at "$torchrun_port" 'print $c "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n" x 20; close $c'
status 'a listener that is no rank 0' 69 as_rank 1 2 $patient
like 'is told as such' "$(cat "$T/err")" "what listens at port $torchrun_port of this machine is not rank 0 of this run"
kill "$listener"
next_port
listen_at "$torchrun_port" 'print $c pack("LLllZ400", 7, 408, 2, 0, "no\033]0;title\007\nmeg-train: a forged line"); close $c'
status 'a refusal with control characters' 2 as_rank 1 2 $patient
like 'is one line that steers no terminal' "$(cat "$T/err")" 'no\?\]0;title\?\?meg-train: a forged line$'
kill "$listener"

# refused VARIABLE=VALUE REGEX: rank 0 of 3 with it ends with status 2
refused() {
    status "$1" 2 as_rank 0 3 env "$1" $patient
    like 'is told so' "$(cat "$T/err")" "$2"
}
refused RANK=3 "RANK is '3', not a number from 0 to 2"
refused WORLD_SIZE=two "WORLD_SIZE is 'two', not a number from 1 to"
refused MASTER_PORT=0 "MASTER_PORT is '0', not a number from 1 to 65535"
refused LOCAL_RANK=-1 "LOCAL_RANK is '-1', not a number from 0 to 2"
refused LOCAL_WORLD_SIZE=4 "LOCAL_WORLD_SIZE is '4', not a number from 1 to 3"
refused MASTER_ADDR= 'not MASTER_ADDR'
status 'WORLD_SIZE alone' 2 env WORLD_SIZE=3 $patient
like 'is told so' "$(cat "$T/err")" 'WORLD_SIZE is set, as torchrun does, but not RANK'

# Libraries and devices.
mkdir "$T/broken"
for lib in "$torchrun_double"/libcudart*; do
    ln -s "$lib" "$T/broken"
done
: >"$T/broken/libnccl.so.2"
torchrun 2 env LD_LIBRARY_PATH="$T/broken" $patient
is 'no NCCL: all end' "$statuses" '1 1'
like 'with what is missing' "$(cat "$T/err.0")" 'need libnccl.so.2: .*; install it or set LD_LIBRARY_PATH, or'
torchrun 2 env MEG_DOUBLE_DEVICES=0 $patient
is 'no device: all end' "$statuses" '1 1'
like 'and say so' "$(cat "$T/err.0")" 'need a CUDA device each: no CUDA-capable device'
torchrun 2 env MEG_DOUBLE_DEVICES=1 $patient
is 'a device for one of two: both end' "$statuses" '1 1'
like 'for the reason of the other' "$(cat "$T/err.0")" 'rank 1 of 2 .* LOCAL_RANK is 1, and this machine has 1 CUDA device'
torchrun 2 $patient --distributed-timeout-minutes 0
is 'a broken rule is told as ever' "$statuses $(grep -c 'distributed-timeout' "$T/err.0")" '2 2 1'
done_testing
