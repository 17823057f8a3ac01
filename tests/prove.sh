#!/bin/sh
# prove.sh TEST... - run tests by prove, and list in the end what they skipped, by reason.  Ends with prove's status.
SKIPPED=$(mktemp "${TMPDIR:-/tmp}/meg-skipped.XXXXXX") || exit 1
export SKIPPED
trap 'rm -f "$SKIPPED"' EXIT
trap 'exit 1' HUP INT TERM
# By its name alone: prove splits the command at spaces, which the folder may have.
PATH="$(cd "${0%/*}" && pwd):$PATH" prove -j2 -e tap.sh "$@"
status=$?
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
    END { for (r in n) printf "  %s: %d in%s\n", r, n[r], tests[r] }' | sed '1b
        s/^\(.\{400\}\).*/\1 .../'
exit "$status"
