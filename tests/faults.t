#!/bin/sh
# needs: ranks/comm
# modules: watchdog
# If a rank is killed or stopped, the job ends and a surviving rank names it; after SIGKILL a run resumes bit-identically.
# make check runs a few trials of each type; make check-faults runs many, and prints counts and times.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

: "${KILLS:=2}" "${STOPS:=1}" "${LONG_STOPS:=0}" "${POINTS:=2}" "${SEED:=1}"
random_n=$((SEED * 1000))

tiny_gpt >"$T/conf"
cat >>"$T/conf" <<'EOF'
micro-batch-size = 1
global-batch-size = 12
lr = 1e-3
EOF

# random N: set random_got to the next pseudo-random number from 0 to N-1
random() {
    random_n=$((random_n + 1))
    random_got=$(awk -v s="$random_n" -v n="$1" 'BEGIN { srand(s); rand(); print int(rand() * n) }')
}

now_ms() {
    date +%s%3N
}

# alive PID: true if the process runs and is not a zombie
alive() {
    grep -qs '^State:.[^ZX]' "/proc/$1/status"
}

none_alive() {
    [ -e "$T/pid.0" ] || return 1
    for f in "$T"/pid.*; do
        ! alive "$(cat "$f")" || return 1
    done
}

trains() {
    [ "$(grep -c 'iteration  ' "$T/out" 2>/dev/null)" -gt 2 ]
}

trains_or_ended() {
    trains || ! alive "$launcher"
}

# end_ranks: kill the remaining processes of a failed trial
end_ranks() {
    # shellcheck disable=SC2046 # words
    kill -KILL "$launcher" $(cat "$T"/pid.*) 2>/dev/null
    wait "$launcher" 2>/dev/null
}

# trial SIGNAL RANKS VICTIM TIMEOUT_S LIMIT_S: send SIGNAL to rank VICTIM of a run.  True if the message names the
# victim (not required for SIGKILL with MPICH), the launcher fails, and all ranks exit within LIMIT_S seconds
trial() {
    start_ranks "$2" meg-train -q --config "$T/conf" --train-iters 30000 \
        --distributed-timeout-minutes "$(awk -v s="$4" 'BEGIN { print s / 60 }')"
    if ! until_true 30 trains_or_ended || ! trains; then
        end_ranks
        trial_says="did not start: $(cat "$T/err")"
        return 1
    fi
    random 300
    sleep "0.$(printf %03d "$random_got")"
    begin=$(now_ms)
    kill -"$1" "$(cat "$T/pid.$3")"
    if ! until_true "$5" none_alive; then
        trial_says="ranks still run: $(cat "$T/err")"
        end_ranks
        return 1
    fi
    took=$(($(now_ms) - begin))
    wait "$launcher"
    trial_status=$?
    [ "$1" = KILL ] && ! is_openmpi ||
        grep -q "^meg-train.*: rank $3 of $2 on $(hostname) .*\(exited or was killed\|no heartbeat\).* step [0-9]" "$T/err" ||
        trial_says="rank $3 is not named: $(cat "$T/err")"
    [ "$trial_status" -ne 0 ] || trial_says='the launcher exits with 0'
    [ -z "$trial_says" ]
}

# again ARGUMENT...: repeat a trial that timed out before the run began, as may happen on a busy machine; repeat it
# at most five times
again() {
    for _ in 1 2 3 4 5; do
        case $trial_says in
        'did not start'*'did not join an operation'* | 'did not start'*'all ranks wait'*) ;;
        *) return 1 ;;
        esac
        repeated=$((repeated + 1)) trial_says=
        ! trial "$@" || return 0
    done
    return 1
}

# trials COUNT SIGNAL TIMEOUT_S LIMIT_S NAME: run COUNT trials with random numbers of ranks and random victims
trials() {
    [ "$1" -gt 0 ] || return 0
    repeated=0 trials_i=0 trials_good=0 trials_most=0 trials_failed=
    while [ "$trials_i" -lt "$1" ]; do
        random 3
        trials_ranks=$((random_got + 2))
        random "$trials_ranks"
        trials_victim=$random_got
        trial_says='' took=0
        if trial "$2" "$trials_ranks" "$trials_victim" "$3" "$4" || again "$2" "$trials_ranks" "$trials_victim" "$3" "$4"; then
            trials_good=$((trials_good + 1))
        else
            trials_failed="$trials_failed
trial $trials_i, rank $trials_victim of $trials_ranks: $trial_says"
        fi
        [ "$took" -le "$trials_most" ] || trials_most=$took
        trials_i=$((trials_i + 1))
    done
    echo "# $5: $trials_good of $1 named and ended, the slowest after $trials_most ms; $repeated starts repeated"
    is "$5: a survivor names it, the status is not 0, and all ranks exit" "$trials_good$trials_failed" "$1"
}

# ---- a killed run resumes --------------------------------------------------------------------

cat >"$T/save.conf" <<'CONF'
train-iters = 120
save-interval = 7
keep-last-n = 2
lr-warmup-iters = 10
CONF
cat "$T/conf" >>"$T/save.conf"

# layout N: print a number of ranks and options
layout() {
    case $(($1 % 3)) in
    0) echo 2 ;;
    1) echo 3 --async-save ;;
    2) echo 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 ;;
    esac
}

tracker() {
    cat "$1/latest_checkpointed_iteration.txt" 2>/dev/null || echo 0
}

# start_saving DIR RANKS OPTION...: start a run that saves to DIR and resumes from it
start_saving() {
    saving_to=$1 saving_ranks=$2
    shift 2
    start_ranks "$saving_ranks" meg-train --config "$T/save.conf" --save "$saving_to" --load "$saving_to" "$@"
}

# reference_run N: write $T/reference.N by an uninterrupted run of layout N
reference_run() {
    [ -d "$T/reference.$1" ] && return
    # shellcheck disable=SC2046 # words
    start_saving "$T/reference.$1" $(layout "$1")
    wait "$launcher"
}

has_logged() {
    [ "$(grep -c 'iteration  ' "$T/out")" -ge "$1" ]
}

# point N: kill all ranks or one at a random moment, resume, and compare the final checkpoint with that of an
# uninterrupted run.  Return false and set $point_says to the reason if a check fails, or the kill was after the end.
point() {
    reference_run $(($1 % 3))
    dir=$T/point
    rm -rf "$dir"
    # shellcheck disable=SC2046 # words
    start_saving "$dir" $(layout "$1")
    random 115
    await 60 has_logged "$random_got"
    random 100
    sleep "0.$(printf %03d "$random_got")"
    random "$((saving_ranks + 1))"
    point_victim=$random_got
    await 10 test -s "$T/pid.$((saving_ranks - 1))"
    if [ "$point_victim" -eq "$saving_ranks" ]; then
        # shellcheck disable=SC2046 # words
        kill -KILL "$launcher" $(cat "$T"/pid.*)
    else
        kill -KILL "$(cat "$T/pid.$point_victim")"
    fi 2>/dev/null
    if ! until_true 10 none_alive; then
        point_says='ranks still run'
        end_ranks
    fi
    wait "$launcher" 2>/dev/null
    said=$(sed -n 's/^meg-train: saved iteration \([0-9]*\) .*/\1/p' "$T/err" | tail -n 1)
    point_from=$(tracker "$dir")
    if [ "$point_from" = 120 ]; then
        point_says='the run was complete'
        return 1
    fi
    [ "${said:-0}" -le "$point_from" ] || point_says="iteration $said was reported as saved, but the tracker has $point_from"
    # shellcheck disable=SC2046 # words
    start_saving "$dir" $(layout "$1")
    wait "$launcher" || point_says="resuming from $point_from: $(cat "$T/err")"
    [ "$(sed -n 's/.*iteration *\([0-9]*\)\/.*/\1/p' "$T/out" | head -n 1)" = $((point_from + 1)) ] ||
        point_says="it did not resume at $((point_from + 1)): $(head -n 1 "$T/out")"
    same_tensors "$T/reference.$(($1 % 3))/iter_0000120" "$dir/iter_0000120" >"$T/differ" 2>&1 ||
        point_says="the checkpoints differ: $(cat "$T/differ")"
    [ -z "$point_says" ]
}

points() {
    [ "$1" -gt 0 ] || return 0
    points_i=0 points_good=0 points_late=0 points_failed='' points_from=''
    while [ "$points_i" -lt "$1" ]; do
        point_says=''
        if point "$points_i"; then
            points_good=$((points_good + 1))
        elif [ "$point_says" = 'the run was complete' ] && [ "$points_late" -lt "$1" ]; then
            points_late=$((points_late + 1))
            continue
        else
            points_failed="$points_failed
point $points_i, $(layout "$points_i"), victim $point_victim: $point_says"
        fi
        points_from="$points_from $point_from"
        points_i=$((points_i + 1))
    done
    echo "# killed at a random moment: $points_good of $1 resumed bit-identically, from iterations$points_from;" \
        "$points_late kills were too late and repeated"
    is 'resume is bit-identical after kill -9 of a rank or of all' \
        "$points_good$points_failed" "$1"
}

# saves_nothing SIGNAL: a run saves nothing after SIGNAL to rank 1, then SIGTERM to rank 0
saves_nothing() {
    start_ranks 2 meg-train -q --config "$T/conf" --train-iters 30000 --save "$T/nothing" \
        --distributed-timeout-minutes 0.034
    ok "SIG$1 of a rank, then SIGTERM: the run has begun" until_true 30 trains
    kill -"$1" "$(cat "$T/pid.1")"
    kill -TERM "$(cat "$T/pid.0")" 2>/dev/null
    until_true 20 none_alive || end_ranks
    wait "$launcher"
    isnt "SIG$1 of a rank, then SIGTERM: the status is not 75" $? 75
    is "SIG$1 of a rank, then SIGTERM: nothing is saved" "$(ls "$T/nothing" 2>/dev/null | grep -v '^iter.*tmp')" ''
    rm -rf "$T/nothing"
}

# If a rank cannot connect to the watchdog, the run continues without it.  A stopped rank is then detected by a timeout.
deaf="export MEG_FAULT_RECV=1 ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD=fault.so"
if fits 4; then
    ranks_but 4 2 "$deaf" meg-train -q --config "$T/conf" --train-iters 2 >"$T/out" 2>"$T/err"
    is 'a rank cannot join the watchdog: the run continues' $? 0
    like 'a warning names the rank' "$(cat "$T/err")" 'rank 2 on .* cannot join the watchdog of rank 0'
    start_ranks 4 sh -c "if [ $rank_of_launcher = 2 ]; then $deaf; fi; "'exec "$@"' sh meg-train -q \
        --config "$T/conf" --train-iters 30000 --distributed-timeout-minutes 0.1
    ok 'SIGSTOP of a rank without a watchdog: the run has begun' until_true 30 trains
    kill -STOP "$(cat "$T/pid.1")"
    ok 'SIGSTOP of a rank without a watchdog: all ranks exit' until_true 30 none_alive
    none_alive || end_ranks
    wait "$launcher"
    isnt 'SIGSTOP of a rank without a watchdog: the launcher fails' $? 0
    like 'SIGSTOP of a rank without a watchdog: a timeout is reported' "$(cat "$T/err")" \
        'rank [0-3] of 4 on .* waited [67]\.[0-9] s in .* of group .*; a peer exited or is stuck'
else
    skip 'a rank cannot join the watchdog' "four ranks on $cores cores"
fi

begin_s=$(date +%s)
trials "$KILLS" KILL 600 10 "kill -9 of a rank"
trials "$STOPS" STOP 2 12 "SIGSTOP of a rank, timeout 2 s"
trials "$LONG_STOPS" STOP 30 40 "SIGSTOP of a rank, timeout 30 s"
points "$POINTS"
saves_nothing KILL
saves_nothing STOP
echo "# $(($(date +%s) - begin_s)) s"
done_testing
