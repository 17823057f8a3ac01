#!/bin/sh
# prove.sh TEST... - run tests with prove, then list the tests that took most CPU time, and the skipped tests by reason,
# with a remedy.  Writes the names of the tests that failed to the file $FAILED.  Exits with the status of prove.
SKIPPED=$(mktemp "${TMPDIR:-/tmp}/meg-skipped.XXXXXX") || exit 1
CPU_TIMES=$(mktemp "${TMPDIR:-/tmp}/meg-times.XXXXXX") || exit 1
export SKIPPED CPU_TIMES
[ -z "${FAILED:-}" ] || : >"$FAILED"
trap 'rm -f "$SKIPPED" "$CPU_TIMES"' EXIT
trap 'exit 1' HUP INT TERM
# Four tests run at a time, because some wait.  tap.sh is found in PATH because prove splits the command at spaces,
# which this directory may contain.
PATH="$(cd "${0%/*}" && pwd):$PATH" prove --timer -j"${TEST_JOBS:-4}" -e tap.sh "$@"
status=$?
sort -rn "$CPU_TIMES" | awk '
    { sum += $1; sub(/[^ ]*tests\//, "", $2); list = list (NR <= 12 ? sprintf(" %s %.0f", $2, $1) : "") }
    END { printf "CPU seconds: %.0f;%s\n", sum, list }'
[ ! -s "$SKIPPED" ] || sort "$SKIPPED" | awk '
    BEGIN { print "skipped:" }
    {
        test = reason = $0
        sub(/: .*/, "", test)
        reason = substr(reason, length(test) + 3)
        sub(/.*tests\//, "", test)
        sub(/^all of it: /, "", reason)
        n[reason]++
        if (!((reason, test) in seen)) {
            seen[reason, test] = 1
            tests[reason] = tests[reason] " " test
        }
    }
    function remedy(why) {
        if (why ~ /MEG_SHARED/)
            return "set MEG_SHARED to a directory with them"
        if (why ~ /no MPI/)
            return "install libopenmpi-dev and openmpi-bin, and build without MPI=0"
        if (why ~ /MEG_PYTHON|for python3/)
            return "install it, set MEG_PYTHON"
        if (why ~ /MPICH/)
            return "build with Open MPI"
        if (why ~ /fault[.]so/)
            return "run make check"
        if (why ~ /MEG_LLAMA_CPP/)
            return "set MEG_LLAMA_CPP to a checkout of llama.cpp"
        if (why ~ /FULL=1/)
            return "make check FULL=1"
        if (match(why, /^no [A-Za-z+-]+$/))
            return "install " substr(why, 4)
        if (why ~ /^[0-9]+ cores|four ranks/)
            return "use a machine with more cores"
        if (why ~ /sanitizer|ASan/)
            return "make check without SAN"
        return "this machine cannot"
    }
    END {
        for (r in n) {
            line = sprintf("  %s (%s): %d in%s", r, remedy(r), n[r], tests[r])
            print (length(line) > 400 ? substr(line, 1, 400) " ..." : line)
        }
    }'
exit "$status"
