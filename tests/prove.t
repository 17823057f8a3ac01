#!/bin/sh
# Check prove.sh: it lists skipped tests, STRICT=1 makes some skips fail, and TEST_S limits the time of a test.
. "${0%/*}/lib.sh"
case $0 in /*) here=${0%/*} ;; *) here=$PWD/${0%/*} ;; esac
cd "$T" || exit 1

# script NAME: create a test from standard input
script() {
    { echo '#!/bin/sh'; cat; } >"$1"
    chmod +x "$1"
}
script mpi.t <<'end'
echo '1..0 # SKIP this build has no MPI'
end
script part.t <<'end'
echo 'ok 1 - runs'
echo 'ok 2 - two # SKIP no jq'
echo 'ok 3 - three # SKIP 2 cores'
echo 1..3
end
script unit <<'end'
echo 1..3
echo '# MEG_SHARED is not set: no real tokenizers'
echo 'not ok 1 # SKIP golden'
echo 'ok 2 - other'
echo 'not ok 3 # SKIP silent'
end
script fails.t <<'end'
echo 1..1
echo 'not ok 1 - one'
echo '#   got:  7'
end
script endless.t <<'end'
echo 'ok 1 - begins'
sleep 100
end

# run STRICT TEST...: run prove.sh
run() {
    STRICT=$1 TEST_S=2
    shift
    export STRICT TEST_S
    "$here/prove.sh" "$@" >out 2>&1
}

FAILED=$T/failed
export FAILED
run '' ./mpi.t ./part.t ./unit
is 'skipped tests pass' $? 0
is 'skipped tests are listed by reason, with a remedy' "$(sed -n '/^skipped:/,$p' out | LC_ALL=C sort)" "$(LC_ALL=C sort <<'end'
skipped:
  2 cores (use a machine with more cores): 1 in ./part.t
  MEG_SHARED is not set: no real tokenizers (set MEG_SHARED to a directory with them): 1 in ./unit
  no jq (install jq): 1 in ./part.t
  no reason given (this machine cannot): 1 in ./unit
  this build has no MPI (install libopenmpi-dev and openmpi-bin, and build without MPI=0): 1 in ./mpi.t
end
)"
script none.t <<'end'
echo 1..1
echo 'ok 1 - one'
end
run '' ./none.t
is 'no list is printed without skipped tests' "$? $(grep -c skipped: out)" '0 0'
for test in mpi.t unit part.t; do
    run 1 "./$test"
    is "with STRICT=1 the skips of $test fail" $? 1
done
like 'the skipped test is the one that fails' "$(cat out)" 'Failed test: +2$'
run '' ./fails.t ./none.t
is 'a failing test fails' $? 1
is 'only failing tests are written to $FAILED' "$(cat failed)" ./fails.t
is 'the diagnostics of a failing test are printed' "$(grep '^\./fails\.t: ' out)" "$(printf './fails.t: not ok 1 - one\n./fails.t: #   got:  7')"
run '' ./endless.t ./none.t
is 'a test that exceeds TEST_S fails' $? 1
like 'a test that exceeds TEST_S is named' "$(cat out)" '^\./endless\.t .*exited 124'
done_testing
