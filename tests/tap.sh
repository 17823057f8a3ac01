#!/bin/sh
# tap.sh TEST - run TEST for prove, with a limit of $TEST_S seconds; mpich:TEST - with the programs in $B/mpich.
# cmocka 1.1 prints "not ok N # SKIP NAME" for a skipped test, which prove counts as failed; this script prints "ok"
# instead, with the preceding comment as the reason.  Each skip is appended to the file $SKIPPED as "TEST: REASON".
# Failures and the comments after them, which prove omits, are also printed to stderr.  With STRICT=1 a skip fails if
# its cause can be installed or provided: MPI, MEG_SHARED, a program.  The CPU time of TEST is appended to $CPU_TIMES,
# and TEST to $FAILED if it fails.
out=$(mktemp "${TMPDIR:-/tmp}/meg-tap.XXXXXX") || exit 1
trap 'rm -f "$out" "$out.times"' EXIT
name=$1
case $name in
mpich:*)
    B=$B/mpich
    export B PATH="$B/bin:$PATH" MPIRUN=mpirun.mpich
    set -- "${1#mpich:}"
    ;;
esac
# env resets SIGINT, which a background job otherwise ignores.  timeout ends all processes of the test.
env --default-signal=INT,QUIT timeout -k 10 "${TEST_S:-1800}" "$@" >"$out" &
test_pid=$!
trap 'kill "$test_pid"; exit 1' HUP INT TERM
wait "$test_pid"
status=$?
times >"$out.times"
awk -F '[ms ]+' -v test="$name" 'NR == 2 { printf "%.1f %s\n", $1 * 60 + $2 + $3 * 60 + $4, test }' "$out.times" >>"${CPU_TIMES:-/dev/null}"
[ "$status" -ne 124 ] || echo "# the test exceeded the limit of ${TEST_S:-1800} s (TEST_S=)"
awk -v test="$name" -v strict="${STRICT:-}" -v list="${SKIPPED:-/dev/null}" '
    /^#/ {
        comment = $0
        sub(/^# (skipped: )?/, "", comment)
    }
    /^not ok [0-9]+ # SKIP/ {                        # cmocka prints NAME after SKIP
        sub(/^not ok/, "ok")
        sub(/# SKIP/, "-")
        $0 = $0 " # SKIP " (comment == "" ? "no reason given" : comment)
    }
    /^(ok|1[.][.]0).* # SKIP/ {
        reason = $0
        sub(/.* # SKIP */, "", reason)
        if (/^1[.][.]0/)
            print test ": all of it: " reason >>list
        else
            print test ": " reason >>list
        if (strict && reason ~ /no MPI|MEG_SHARED|^no [a-z]+$/) {
            is_bad = 1
            sub(/^1[.][.]0/, "1..1\nnot ok 1 - all of it")
            sub(/^ok/, "not ok")
            sub(/ # SKIP.*/, "")
            $0 = $0 "\n# skipped, and STRICT is set: " reason
        }
    }
    /^(not )?ok/ {
        comment = ""
        is_failed = /^not/
        is_bad = is_bad || is_failed
        nlines = 0
    }
    is_failed && nlines++ <= 20 {                     # mawk writes ORS apart, and other tests write to stderr, too
        ORS = ""
        print test ": " $0 "\n" >"/dev/stderr"
        ORS = "\n"
    }
    { print }
    END { exit is_bad }' "$out" || [ "$status" -ne 0 ] || status=1
[ "$status" -eq 0 ] || echo "$name" >>"${FAILED:-/dev/null}"
exit "$status"
