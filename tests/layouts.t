#!/bin/sh
# Training under many parallel layouts equals training on one rank (tests/ranks/layouts.c).  LAYOUTS=cover or full, as
# make check-layouts sets it, tests more than the default sample; PART=I/N a part of full.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/layouts" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

n=8
fits "$n" || n=$cores
ranks "$n" "$B/tests/ranks/layouts" "${LAYOUTS:-sample}" "$T" ${PART:+"$PART"} 2>"$T/err"
status=$?
[ "$status" -eq 0 ] || tail -n 5 "$T/err" | sed 's/^/# /'
exit "$status"
