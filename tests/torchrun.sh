# Functions that start ranks with torchrun's environment variables; sourced after lib.sh and ranks.sh.
unset RANK LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE

# Reserve a block of ports by listening at the first one, so that a concurrent run of this test uses another block.
perl -MIO::Socket::INET -e '$| = 1;
    for (1 .. 1000) {
        my $port = 20000 + 50 * int(rand(240));
        $s = IO::Socket::INET->new(Listen => 1, LocalPort => $port) or next;
        print "$port\n";
        sleep;
    }' >"$T/ports" &
await 10 test -s "$T/ports"
torchrun_port=$(cat "$T/ports")

# next_port: use another port for the next run
next_port() {
    torchrun_port=$((torchrun_port + 1))
}

# as_rank R N COMMAND...: run COMMAND as rank R of N on this machine
as_rank() {
    as_rank_r=$1 as_rank_n=$2
    shift 2
    env TMPDIR="$T" RANK="$as_rank_r" WORLD_SIZE="$as_rank_n" LOCAL_RANK="$as_rank_r" \
        LOCAL_WORLD_SIZE="$as_rank_n" MASTER_ADDR=localhost MASTER_PORT="$torchrun_port" "$@"
}

# torchrun N COMMAND...: run COMMAND on N ranks with output to $T/out.R and $T/err.R, and process ids in
# $T/pid.R.  While the ranks run, call the function $torchrun_meanwhile, if set.  Set statuses to the exit statuses,
# separated by spaces
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
