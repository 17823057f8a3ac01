#!/bin/sh
# Ranks that are started with torchrun's environment train over test doubles of NCCL and the CUDA runtime
# (tests/nccl/double.c).
. "${0%/*}/lib.sh"
. "${0%/*}/ranks.sh"
unset RANK LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE

torchrun_double=$B/tests/nccl

# Reserve a block of ports by listening at the first one, so that a concurrent run of this test uses another block.
perl -MIO::Socket::INET -e '$| = 1;
    for (1 .. 1000) {
        my $port = 20000 + 50 * int(rand(240));
        $s = IO::Socket::INET->new(Listen => 1, LocalPort => $port) or next;
        print "$port\n";
        sleep;
    }' >"$T/ports" &
until_true 10 test -s "$T/ports"
torchrun_port=$(cat "$T/ports")

# next_port: use another port for the next run
next_port() {
    torchrun_port=$((torchrun_port + 1))
}

# listen_at PORT CODE: listen at PORT in the background and run the Perl CODE for each connection $c
listen_at() {
    perl -MIO::Socket::INET -e '
        $s = IO::Socket::INET->new(Listen => 1, LocalPort => $ARGV[0], ReuseAddr => 1) or die;
        while ($c = $s->accept) { eval $ARGV[1] }' "$1" "$2" &
    listener=$!
    until_true 10 grep -qi ":$(printf %04x "$1") 00000000:0000 0A" /proc/net/tcp
}

# as_rank R N COMMAND...: run COMMAND as rank R of N on this machine
as_rank() {
    as_rank_r=$1 as_rank_n=$2
    shift 2
    env LD_LIBRARY_PATH="$torchrun_double" TMPDIR="$T" RANK="$as_rank_r" WORLD_SIZE="$as_rank_n" LOCAL_RANK="$as_rank_r" \
        LOCAL_WORLD_SIZE="$as_rank_n" MASTER_ADDR=localhost MASTER_PORT="$torchrun_port" "$@"
}

# torchrun N COMMAND...: run COMMAND on N ranks with output to $T/out.R and $T/err.R; set statuses to the exit statuses
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
    is 'torchrun is refused without NCCL' "$version_status" 2
    like 'the message without NCCL names the alternatives' "$(cat "$T/err")" 'torchrun started 4 ranks .*this build has no NCCL; .* mpirun'
    done_testing
fi

for n in 1 2 4 8; do
    torchrun "$n" "$torchrun_double/comm"
    grep -h '^not ok' "$T/out.0" | sed 's/^/# /'
    is "$n ranks: every collective is correct" "$(echo "$statuses" | tr ' ' '\n' | sort -u)" 0
    is "$n ranks: all checks ran" "$(grep -c '^ok' "$T/out.0")" "$(sed -n 's/^1\.\.//p' "$T/out.0")"
done

tiny_gpt >"$T/conf"
cat >>"$T/conf" <<'EOF'
num-layers = 4
micro-batch-size = 1
train-iters = 4
eval-iters = 1
EOF

# like_mpirun N OPTION...: check that losses and files are equal over NCCL and MPI
like_mpirun() {
    n=$1
    shift
    rm -rf "$T"/nccl.json "$T"/mpi.json "$T/nccl" "$T/mpi"
    torchrun "$n" meg-train --config "$T/conf" --log-json "$T/nccl.json" --save "$T/nccl" "$@"
    like "$n ranks are detected as started by torchrun" "$(cat "$T/err.0")" "$n ranks, started by torchrun"
    if fits "$n"; then
        ranks "$n" meg-train -q --config "$T/conf" --log-json "$T/mpi.json" --save "$T/mpi" "$@" >"$T/out" 2>"$T/err"
        losses "$T/nccl.json" >"$T/a"
        losses "$T/mpi.json" >"$T/b"
        ok "$n ranks $*: losses are bit-identical to mpirun" cmp "$T/a" "$T/b"
        ok "$n ranks $*: all losses are finite" near "$T/a" "$T/b" 0
        ok "$n ranks $*: all steps are logged" test "$(wc -l <"$T/a")" -ge 4
        ok "$n ranks $*: checkpoints are identical to mpirun" diff -r -x '*.json' -x run.conf "$T/nccl" "$T/mpi"
    else
        skip "$n ranks $*: losses are bit-identical to mpirun" "$cores cores"
    fi
}
if [ -x "$B/tests/ranks/comm" ]; then
    like_mpirun 2 --tensor-model-parallel-size 2 --sequence-parallel
    like_mpirun 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1
    like_mpirun 4 --context-parallel-size 2 --use-distributed-optimizer
else
    skip 'losses and files are equal over NCCL and MPI' 'this build has no MPI'
fi

# A surviving rank names a rank that is killed, and all ranks exit.
kill_one() {
    until_true 20 grep -q 'iteration  *3' "$T/out.0"
    kill -KILL "$(cat "$T/pid.2")"
}
torchrun_meanwhile=kill_one
torchrun 4 meg-train --config "$T/conf" --train-iters 100000 --eval-iters 0 --save "$T/killed"
torchrun_meanwhile=
is 'a rank is killed: the others exit with status 69' "$statuses" '69 69 137 69'
ok 'the lock of --save is removed' test -d "$T/killed" -a ! -e "$T/killed/.meg-lock"
like 'rank 0 names the killed rank' "$(cat "$T/err.0")" "rank 2 of 4 on $(hostname) exited or was killed .* step [0-9]"

# A second job with the same port and run id is refused, and the first continues.
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
    ok 'a second job uses the same port: the first continues' until_true 20 continues
    kill -TERM "$(cat "$T/pid.0")"
}
continues() {
    [ "$(grep -c iteration "$T/out.0")" -gt $((before + 2)) ]
}
torchrun_meanwhile=second_job
torchrun 2 meg-train --config "$T/conf" --train-iters 100000 --eval-iters 0 --save "$T/first"
torchrun_meanwhile=
is 'the first job runs until SIGTERM' "$statuses" '75 75'
is 'every rank of the second job exits with status 2' "$second_statuses" ' 2 2 2'
like 'rank 0 of the second job reports that the port is in use' "$(cat "$T/said")" \
    'rank 0 cannot listen on port .*: Address already in use'
like 'other ranks of the second job report that the first job is complete' "$(cat "$T/said")" \
    "rank 1 of 2 on .* was refused by the process that listens on port $torchrun_port of .*: all 2 ranks of another run have already joined at this address; .* MASTER_PORT or --rdzv-id"
like 'a second job with another number of ranks is refused' "$(cat "$T/said")" \
    "rank 3 of 4 on .* was refused by the process that listens on port $torchrun_port of .*: all 2 ranks of another run have already joined at this address"
is 'the first job warns of a refused process once' "$(grep -c 'refused a process on .* rank 1, because all 2 ranks have joined' "$T/err.0")" 1
is 'the first job refuses no other process' "$(grep -c 'refused a process' "$T/err.0")" 1

# Open connections that send nothing, or no valid frame, before all ranks have joined.
open_unauthenticated() {
    until_true 20 grep -qi ":$(printf %04x "$torchrun_port") 00000000:0000 0A" /proc/net/tcp
    perl -MIO::Socket::INET -e '
        for (1 .. 200) { push @idle, IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $ARGV[0]) or die }
        for (1 .. 20) {
            my $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $ARGV[0]) or die;
            print $c pack("LL", $_, 88) . "GET / HTTP/1.1\r\n" x (20 * $_)
        }
        open my $f, ">", $ARGV[1]; close $f;
        sleep' "$torchrun_port" "$T/opened" &
    unauthenticated=$!
    ok 'unauthenticated connections are opened first' until_true 20 test -e "$T/opened"
}
torchrun_meanwhile=open_unauthenticated
torchrun 2 sh -c "[ \$RANK = 0 ] || until [ -e '$T/opened' ]; do sleep 0.05; done; exec meg-train --config '$T/conf'"
torchrun_meanwhile=
is 'the job completes despite unauthenticated connections' "$statuses" '0 0'
kill "$unauthenticated"

# Errors during start-up.  Ranks that fail at once have a timeout of a minute; ranks that must time out have six seconds
# and run concurrently.
patient="meg-train --config $T/conf --distributed-timeout-minutes 1"
some_s="$patient --distributed-timeout-minutes 0.1"
# rank_of_3 PREFIX RANK COMMAND...: run as a rank of 3 in the background; append output and status to $T/PREFIX.RANK
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
like 'a rank that does not join is named' "$(cat "$T/absent.0")" \
    "waited 6.0 s on port $absent_port for rank 1 of 3; ranks 0, 2 joined"
is 'the other ranks exit with status 69' "$(cat "$T/absent.0" "$T/absent.2" | grep '^status')" "$(printf 'status 69\nstatus 69')"
like 'a rank 0 that does not listen is named' "$(tr '\n' ' ' <"$T/alone.1")" \
    'could not connect to rank 0 on port .* of this machine within .* status 69'
like 'ranks with different WORLD_SIZE are refused' "$(tr '\n' ' ' <"$T/fewer.0")" \
    'rank 1 on .* as one of 4 ranks, but rank 0 on .* as one of 3 status 2'
like 'both ranks with different WORLD_SIZE report it' "$(tr '\n' ' ' <"$T/fewer.1")" 'as one of 4 ranks.* status 2'
like 'two processes with one rank are refused' "$(tr '\n' ' ' <"$T/twice.0")" \
    'two processes claim to be rank 1, .* status 2'
like 'a rank of another run is refused' "$(tr '\n' ' ' <"$T/another.1")" \
    'rank 1 of 3 on .* was refused by .*: another run uses this port; set another MASTER_PORT.* status 2'
like 'a rank of another job of Open MPI is refused' "$(tr '\n' ' ' <"$T/another.2")" 'rank 2 .* was refused by .*another run .* status 2'
like 'rank 0 does not count refused ranks' "$(cat "$T/another.0")" 'for ranks 1-2 of 3; rank 0 joined'

# shellcheck disable=SC2086 # words
{
    next_port
    listen_at "$torchrun_port" 'sleep'
    status 'a port in use is a usage error' 2 as_rank 0 2 $patient
    like 'the message names the port in use' "$(cat "$T/err")" "port $torchrun_port of .*: Address already in use; set another MASTER_PORT"
    as_agent() { as_rank "$1" 2 env TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=none $patient >"$T/agent.$1" 2>&1; }
    as_agent 1 &
    agent=$!
    as_agent 0
    is "the port of torchrun's agent is in use: rank 0 uses the next one" $? 0
    wait "$agent"
    is "the port of torchrun's agent is in use: rank 1 uses the next one" $? 0
    kill "$listener"
}
next_port
next_port
listen_at "$torchrun_port" 'print $c "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n" x 20; close $c'
status 'a listener that is not rank 0 ends with 69' 69 as_rank 1 2 $patient
like 'a listener that is not rank 0 is reported' "$(cat "$T/err")" "the process that listens on port $torchrun_port of this machine is not rank 0 of this run"
kill "$listener"
next_port
listen_at "$torchrun_port" 'print $c pack("LLllZ400", 7, 408, 2, 0, "no\033]0;title\007\nmeg-train: a forged line"); close $c'
status 'a refusal with control characters ends with 2' 2 as_rank 1 2 $patient
like 'a refusal with control characters is printed as one line without them' "$(cat "$T/err")" 'no\?\]0;title\?\?meg-train: a forged line$'
kill "$listener"

# refused VARIABLE=VALUE REGEX: check that rank 0 of 3 with this variable exits with status 2 and a message
refused() {
    status "$1 ends with 2" 2 as_rank 0 3 env "$1" $patient
    like "$1 is reported" "$(cat "$T/err")" "$2"
}
refused RANK=3 "RANK is '3'; it must be a number from 0 to 2"
refused WORLD_SIZE=two "WORLD_SIZE is 'two'; it must be a number from 1 to"
refused MASTER_PORT=0 "MASTER_PORT is '0'; it must be a number from 1 to 65535"
refused LOCAL_RANK=-1 "LOCAL_RANK is '-1'; it must be a number from 0 to 2"
refused LOCAL_WORLD_SIZE=4 "LOCAL_WORLD_SIZE is '4'; it must be a number from 1 to 3"
refused MASTER_ADDR= 'MASTER_ADDR is not'
status 'WORLD_SIZE without RANK ends with 2' 2 env WORLD_SIZE=3 $patient
like 'WORLD_SIZE without RANK is reported' "$(cat "$T/err")" 'WORLD_SIZE is set, so the ranks appear to be started by torchrun, but RANK is not set'

# Missing libraries and devices.
mkdir "$T/broken"
for lib in "$torchrun_double"/libcudart*; do
    ln -s "$lib" "$T/broken"
done
: >"$T/broken/libnccl.so.2"
torchrun 2 env LD_LIBRARY_PATH="$T/broken" $patient
is 'no NCCL: all ranks exit' "$statuses" '1 1'
like 'no NCCL: the message names the library' "$(cat "$T/err.0")" 'require libnccl.so.2: .*; install the library or set LD_LIBRARY_PATH, or'
torchrun 2 env MEG_DOUBLE_DEVICES=0 $patient
is 'no device: all ranks exit' "$statuses" '1 1'
like 'no device: the message says so' "$(cat "$T/err.0")" 'requires a CUDA device: no CUDA-capable device'
torchrun 2 env MEG_DOUBLE_DEVICES=1 $patient
is 'one device for two ranks: both exit' "$statuses" '1 1'
like 'one device for two ranks: rank 0 reports why' "$(cat "$T/err.0")" 'rank 1 of 2 .* LOCAL_RANK is 1, but this machine has 1 CUDA device'
torchrun 2 $patient --distributed-timeout-minutes 0
is 'an invalid option is reported as without torchrun' "$statuses $(grep -c 'distributed-timeout' "$T/err.0")" '2 2 1'
done_testing
