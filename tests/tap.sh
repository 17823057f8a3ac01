#!/bin/sh
# tap.sh TEST - run it for prove, within $TEST_S seconds.
# cmocka 1.1 prints "not ok N # SKIP NAME" for a test that skips itself, which prove counts as failed: print "ok", with the
# comment before it as the reason.  Each skip is noted in the file $SKIPPED as "TEST: REASON".
# What failed, and the comments behind it, which prove leaves out, are printed to stderr, too.
# With STRICT=1 a skip for want of what can be installed or given fails: MPI, MEG_SHARED, a program.
out=$(mktemp "${TMPDIR:-/tmp}/meg-tap.XXXXXX") || exit 1
trap 'rm -f "$out"' EXIT
# A job in the background would ignore SIGINT; the limit ends all that the test started.
env --default-signal=INT,QUIT timeout -k 10 "${TEST_S:-1800}" "$@" >"$out" &
test_pid=$!
trap 'kill "$test_pid"; exit 1' HUP INT TERM
wait "$test_pid"
status=$?
[ "$status" -ne 124 ] || echo "# ended after ${TEST_S:-1800} s, the most a test may take (TEST_S=)"
awk -v test="$1" -v strict="${STRICT:-}" -v list="${SKIPPED:-/dev/null}" '
    /^#/ {
        comment = $0
        sub(/^# (skipped: )?/, "", comment)
    }
    /^not ok [0-9]+ # SKIP/ {                        # by cmocka: NAME follows SKIP
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
        nlines = 0
    }
    is_failed && nlines++ <= 20 { print test ": " $0 >"/dev/stderr" }
    { print }
    END { exit is_bad }' "$out" || [ "$status" -ne 0 ] || status=1
exit "$status"
