#!/bin/sh
# A rank that dies or stops ends the job, named by a survivor; what was saved goes on bit for bit.
# make check runs a few trials of each kind; make check-faults many, and prints counts and times.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

: "${KILLS:=2}" "${STOPS:=1}" "${LONG_STOPS:=0}" "${POINTS:=2}" "${SEED:=1}"
random_n=$((SEED * 1000))

cat >"$T/conf" <<'CONF'
num-layers = 2
hidden-size = 32
num-attention-heads = 4
seq-length = 16
max-position-embeddings = 16
micro-batch-size = 1
global-batch-size = 12
lr = 1e-3
mock-data = yes
tokenizer-type = NullTokenizer
vocab-size = 50
eval-iters = 0
log-interval = 1
CONF

# random N: a number from 0 to N-1; each call gives the next one of the seed's
random() {
    random_n=$((random_n + 1))
    random_got=$(awk -v s="$random_n" -v n="$1" 'BEGIN { srand(s); rand(); print int(rand() * n) }')
}

now_ms() {
    date +%s%3N
}

none_alive() {
    [ -e "$T/pid.0" ] || return 1
    for f in "$T"/pid.*; do
        # A zombie is nobody's rank any more.
        grep -qs '^State:.[^ZX]' "/proc/$(cat "$f")/status" && return 1
    done
    return 0
}

trains() {
    [ "$(grep -c 'iteration  ' "$T/out" 2>/dev/null)" -gt 2 ]
}

# end_ranks: what a trial leaves when it failed
end_ranks() {
    kill -KILL "$launcher" $(cat "$T"/pid.*) 2>/dev/null
    wait "$launcher" 2>/dev/null
}

# trial SIGNAL RANKS VICTIM DEADLINE_S LIMIT_S: true when the victim is named, the launcher fails and all are gone in time
trial() {
    start_ranks "$2" meg-train -q --config "$T/conf" --train-iters 30000 \
        --distributed-timeout-minutes "$(awk -v s="$4" 'BEGIN { print s / 60 }')"
    if ! until_true 30 trains; then
        end_ranks
        trial_says="did not start: $(cat "$T/err")"
        return 1
    fi
    random 300
    sleep "0.$(printf %03d "$random_got")"
    begin=$(now_ms)
    kill -"$1" "$(cat "$T/pid.$3")"
    if ! until_true "$5" none_alive; then
        trial_says="ranks stayed: $(cat "$T/err")"
        end_ranks
        return 1
    fi
    took=$(($(now_ms) - begin))
    wait "$launcher"
    trial_status=$?
    grep -q "^meg-train.*: rank $3 of $2 on $(hostname) .*\(is gone\|no sign of life\).* step [0-9]" "$T/err" ||
        trial_says="rank $3 is not named: $(cat "$T/err")"
    [ "$trial_status" -ne 0 ] || trial_says='the launcher says 0'
    [ -z "$trial_says" ]
}

# trials COUNT SIGNAL DEADLINE_S LIMIT_S NAME
trials() {
    trials_i=0 trials_good=0 trials_most=0 trials_failed=
    while [ "$trials_i" -lt "$1" ]; do
        random 3
        trials_ranks=$((random_got + 2))
        random "$trials_ranks"
        trials_victim=$random_got
        trial_says= took=0
        if trial "$2" "$trials_ranks" "$trials_victim" "$3" "$4"; then
            trials_good=$((trials_good + 1))
        else
            trials_failed="$trials_failed
trial $trials_i, rank $trials_victim of $trials_ranks: $trial_says"
        fi
        [ "$took" -le "$trials_most" ] || trials_most=$took
        trials_i=$((trials_i + 1))
    done
    echo "# $5: $trials_good of $1 named, ended and gone, the slowest after $trials_most ms"
    is "$5: named by a survivor, status not 0, all gone, every time" "$trials_good$trials_failed" "$1"
}

trials "$KILLS" KILL 600 10 "kill -9 of a rank"
trials "$STOPS" STOP 2 12 "SIGSTOP of a rank, deadline 2 s"
trials "$LONG_STOPS" STOP 30 40 "SIGSTOP of a rank, deadline 30 s"
done_testing
