#!/bin/sh
# Ten steps under many layouts are those of one rank: a sample of them, or by LAYOUTS those of
# `make check-layouts` (cover, full), and by PART a part of the latter.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/layouts" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

n=8
fits "$n" || n=$cores
ranks "$n" "$B/tests/ranks/layouts" "${LAYOUTS:-sample}" "$T" ${PART:+"$PART"} 2>"$T/err"
status=$?
[ "$status" -eq 0 ] || tail -n 5 "$T/err" | sed 's/^/# /'
exit "$status"
