#!/bin/sh
# tap.sh TEST - run it for prove.  cmocka 1.1 says "not ok" of a test that skips itself, which prove
# counts as failed: say "ok", and end with the status of the test.
status=$({ { "$@" 3>&- 4>&-; echo $? >&3; } | sed 's/^not ok \([0-9]* # SKIP\)/ok \1/' >&4; } 3>&1) 4>&1
exit "$status"
