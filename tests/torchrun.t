#!/bin/sh
# needs: store/comm
# modules: comm
# Ranks that are started with torchrun's environment variables: the rendezvous, and host collectives over the store.
# tests/nccl.t trains on such ranks.
. "${0%/*}/lib.sh"
. "${0%/*}/ranks.sh"
. "${0%/*}/torchrun.sh"

comm=$B/tests/store/comm
[ -x "$comm" ] || skip_all "$comm is not built (run make check)"

# listen_at PORT CODE: listen at PORT in the background and run the Perl CODE for each connection $c
listen_at() {
    perl -MIO::Socket::INET -e '
        $s = IO::Socket::INET->new(Listen => 1, LocalPort => $ARGV[0], ReuseAddr => 1) or die;
        while ($c = $s->accept) { eval $ARGV[1] }' "$1" "$2" &
    listener=$!
    await 10 grep -qi ":$(printf %04x "$1") 00000000:0000 0A" /proc/net/tcp
}


for n in 1 2 4 8; do
    torchrun "$n" "$comm" host
    grep -h '^not ok' "$T/out.0" | sed 's/^/# /'
    is "$n ranks: every host collective is correct" "$(echo "$statuses" | tr ' ' '\n' | sort -u)" 0
    is "$n ranks: all checks ran" "$(grep -c '^ok' "$T/out.0")" "$(sed -n 's/^1\.\.//p' "$T/out.0")"
done

tiny_gpt >"$T/conf"
echo 'train-iters = 2' >>"$T/conf"

torchrun 1 meg-train --config "$T/conf"
is 'one rank trains on the CPU' "$statuses" 0
torchrun 2 meg-train --config "$T/conf"
is 'two ranks on the CPU end with status 2' "$statuses" '2 2'
like 'the message names mpirun' "$(cat "$T/err.0" "$T/err.1")" \
    'torchrun started 2 ranks, but with --device cpu ranks exchange tensors through MPI; start them with mpirun or srun'
is 'one rank prints the message' "$(cat "$T/err.0" "$T/err.1" | grep -c 'torchrun started')" 1
torchrun 2 meg-train --config "$T/conf" --dry-run
is 'two ranks estimate a run' "$statuses" '0 0'

# A surviving rank names a rank that is killed or stopped, and all ranks exit.
after_step_3() {
    await 20 grep -q '^step 3$' "$T/out.0"
}
kill_one() {
    after_step_3
    kill -KILL "$(cat "$T/pid.2")"
}
torchrun_meanwhile=kill_one
torchrun 4 "$comm" loop 60
is 'a rank is killed: the others exit with status 69' "$statuses" '69 69 137 69'
like 'rank 0 names the killed rank' "$(cat "$T/err.0")" \
    "rank 2 of 4 on $(hostname) exited or was killed, possibly for lack of memory; .* step [0-9]"
stop_one() {
    after_step_3
    kill -STOP "$(cat "$T/pid.1")"
    await 20 grep -q 'sent no heartbeat' "$T/err.0"
    kill -KILL "$(cat "$T/pid.1")"
}
torchrun_meanwhile=stop_one
torchrun 3 "$comm" loop 2
torchrun_meanwhile=
is 'a rank is stopped: the others exit with status 69' "$statuses" '69 137 69'
like 'rank 0 names the stopped rank' "$(cat "$T/err.0")" "rank 1 of 3 on .* sent no heartbeat .* ranks 0, 2 .*waiting in barrier"

# While a rank runs a task that it has announced (meg_watchdog_task_begin), no collective times out.  After the task,
# the timeout applies again.
# waits_for_task RANK SECONDS: rank RANK of three runs a task of SECONDS seconds, with a timeout of 2 s
waits_for_task() {
    torchrun 3 "$comm" task 2 "$2" "$1"
    is "a task of rank $1 takes longer than the timeout: the other ranks wait for it" "$(tail -n 1 "$T/out.$1")" ended
    is "a task of rank $1 has ended: a wait for the rank times out with status 69" "$statuses" '69 69 69'
    like "rank 0 names rank $1" "$(cat "$T/err.0")" "rank $1 of 3 on .* did not join an operation within 2\.0 s"
}
waits_for_task 0 5
waits_for_task 2 12
like 'rank 0 logs a task that takes 10 s' "$(cat "$T/err.0")" \
    'rank 2 of 3 on .* is building the index of x, for 1[0-2] s so far; '

# signal_in_task SIGNAL: send SIGNAL to rank 2 during its task
signal_in_task() {
    await 20 grep -q '^begun$' "$T/out.2"
    sleep 1
    kill -"$1" "$(cat "$T/pid.2")"
}
kill_in_task() {
    signal_in_task KILL
}
stop_in_task() {
    signal_in_task STOP
    await 20 grep -q 'sent no heartbeat' "$T/err.0"
    kill -KILL "$(cat "$T/pid.2")"
}
torchrun_meanwhile=kill_in_task
torchrun 3 "$comm" task 2 60 2
is 'a rank is killed during its task: the others exit with status 69' "$statuses" '69 69 137'
like 'rank 0 names the killed rank and its task' "$(cat "$T/err.0")" \
    'rank 2 of 3 on .* exited or was killed, .* last state: at step 2, building the index of x; '
torchrun_meanwhile=stop_in_task
torchrun 3 "$comm" task 2 60 2
torchrun_meanwhile=
is 'a rank is stopped during its task: the others exit with status 69' "$statuses" '69 69 137'
like 'rank 0 names the stopped rank and its task' "$(cat "$T/err.0")" \
    'rank 2 of 3 on .* sent no heartbeat .* last state: at step 2, building the index of x; '

# A second job with the same port and run id is refused, and the first continues.
second_job() {
    after_step_3
    second_statuses=
    for of in '0 2' '1 2' '3 4'; do
        # shellcheck disable=SC2086 # words
        as_rank $of "$comm" loop 60 >"$T/second" 2>&1
        second_statuses="$second_statuses $?"
        tail -n 1 "$T/second" >>"$T/said"
    done
    before=$(grep -c step "$T/out.0")
    ok 'a second job uses the same port: the first continues' until_true 20 continues
    kill -TERM "$(cat "$T/pid.0")"
}
continues() {
    [ "$(grep -c step "$T/out.0")" -gt $((before + 2)) ]
}
torchrun_meanwhile=second_job
torchrun 2 "$comm" loop 60
torchrun_meanwhile=
is 'the first job runs until SIGTERM' "$statuses" '143 143'
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
    await 20 grep -qi ":$(printf %04x "$torchrun_port") 00000000:0000 0A" /proc/net/tcp
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
torchrun 2 sh -c "[ \$RANK = 0 ] || until [ -e '$T/opened' ]; do sleep 0.05; done; exec '$comm' host"
torchrun_meanwhile=
is 'the job completes despite unauthenticated connections' "$statuses" '0 0'
kill "$unauthenticated"

# Errors during start-up.  Ranks that fail at once have a timeout of a minute; ranks that must time out have six seconds
# and run concurrently.
patient="meg-train --config $T/conf --distributed-timeout-minutes 1"
some_s="$patient --distributed-timeout-minutes 0.1"
# rank_of_3 PREFIX RANK COMMAND...: run as a rank of 3 in the background; write stderr and status to $T/PREFIX.RANK
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
    'rank 1 of 3 on .* was refused by .*: another run uses this port; set a different MASTER_PORT.* status 2'
like 'a rank of another job of Open MPI is refused' "$(tr '\n' ' ' <"$T/another.2")" 'rank 2 .* was refused by .*another run .* status 2'
like 'rank 0 does not count refused ranks' "$(cat "$T/another.0")" 'for ranks 1-2 of 3; rank 0 joined'

# shellcheck disable=SC2086 # words
{
    next_port
    listen_at "$torchrun_port" 'sleep'
    status 'a port in use is a usage error' 2 as_rank 0 2 $patient
    like 'the message names the port in use' "$(cat "$T/err")" "port $torchrun_port of .*: Address already in use; set a different MASTER_PORT"
    as_agent() { as_rank "$1" 2 env TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=none "$comm" host >"$T/agent.$1" 2>&1; }
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
refused LOCAL_WORLD_SIZE=4 "LOCAL_WORLD_SIZE is '4'; it must be a number from 1 to 3"
refused MASTER_ADDR= 'MASTER_ADDR is not'
status 'WORLD_SIZE without RANK ends with 2' 2 env WORLD_SIZE=3 $patient
like 'WORLD_SIZE without RANK is reported' "$(cat "$T/err")" 'WORLD_SIZE is set, so the ranks appear to be started by torchrun, but RANK is not set'
next_port
torchrun 2 $patient --distributed-timeout-minutes 0
is 'an invalid option is reported as without torchrun' "$statuses $(grep -c 'distributed-timeout' "$T/err.0")" '2 2 1'
done_testing
