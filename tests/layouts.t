#!/bin/sh
# Training under many parallel layouts equals training on one rank (tests/ranks/layouts.c).  LAYOUTS=cover or full
# (set by make check-layouts) tests more layouts than the default sample; PART=I/N tests part I of N of full.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/layouts" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

n=8
fits "$n" || n=$cores
ranks "$n" "$B/tests/ranks/layouts" "${LAYOUTS:-sample}" "$T" ${PART:+"$PART"} 2>"$T/err"
status=$?
[ "$status" -eq 0 ] || tail -n 5 "$T/err" | sed 's/^/# /'
exit "$status"
