#!/bin/sh
# needs: ranks/comm
# modules: comm
# Collectives over MPI are correct on 1 to 8 ranks, with FULL=1 also on 16; the checks are in tests/ranks/comm.c.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

for n in 1 2 3 8 16; do
    if [ "$n" -eq 16 ] && [ -z "${FULL:-}" ]; then
        skip "$n ranks" 'it takes as long as all others; set FULL=1'
        continue
    fi
    ranks "$n" "$B/tests/ranks/comm" >"$T/out" 2>"$T/err"
    status=$?
    grep '^not ok' "$T/out" | sed 's/^/# /'
    is "$n ranks: every collective is correct" "$status $(grep -c '^not ok' "$T/out")" '0 0'
    is "$n ranks: all checks ran" "$(grep -c '^ok' "$T/out")" "$(sed -n 's/^1\.\.//p' "$T/out")"
done

env SLURM_STEP_NUM_TASKS=3 meg-train --dry-run >"$T/out" 2>"$T/err"
like 'ranks that MPI does not connect are an error that names the launcher' "$(cat "$T/err")" \
    ': srun started 3 ranks, but MPI reports 1; build this program with the MPI library of the launcher$'

# While a rank runs a task that it has announced (meg_watchdog_task_begin), ranks that wait for it do not time
# out.  After the task, they do.
ranks 3 "$B/tests/ranks/comm" task 2 5 2 >"$T/out" 2>"$T/err"
ok 'a task takes longer than the timeout: the other ranks wait for it' grep -q '^ended$' "$T/out"
like 'a task has ended: a wait for the rank times out' "$(cat "$T/err")" \
    'rank 2 of 3 on .* did not join an operation within 2\.0 s'
done_testing
