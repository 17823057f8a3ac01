# Sourced after ranks.sh by tests that start ranks as torchrun does, over a stand-in for NCCL.
torchrun_double=$B/tests/nccl
torchrun_port=$((20000 + $$ % 1000 * 10))

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
