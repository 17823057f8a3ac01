#!/bin/sh
# needs: ranks/pipe
# modules: parallel
# Pipeline schedules exchange the right tensors over MPI; the checks are in tests/ranks/pipe.c.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/pipe" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

for n in 2 3 4 8; do
    ranks "$n" "$B/tests/ranks/pipe" >"$T/out" 2>"$T/err"
    status=$?
    grep '^not ok' "$T/out" | sed 's/^/# /'
    is "$n ranks: every step gets the right tensors" "$status $(grep -c '^not ok' "$T/out")" '0 0'
    is "$n ranks: all checks ran" "$(grep -c '^ok' "$T/out")" "$(sed -n 's/^1\.\.//p' "$T/out")"
done
done_testing
