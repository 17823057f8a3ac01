#!/bin/sh
# needs: ranks/cp
# modules: nn
# Context-parallel attention on 2 to 8 ranks equals that of one rank; the checks are in tests/ranks/cp.c.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/cp" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

for n in 2 4 8; do
    ranks "$n" "$B/tests/ranks/cp" >"$T/out" 2>"$T/err"
    status=$?
    grep '^not ok' "$T/out" | sed 's/^/# /'
    is "$n ranks: attention equals that of one rank" "$status $(grep -c '^not ok' "$T/out")" '0 0'
    is "$n ranks: all checks ran" "$(grep -c '^ok' "$T/out")" "$(sed -n 's/^1\.\.//p' "$T/out")"
done
done_testing
