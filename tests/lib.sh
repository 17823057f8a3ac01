# Sourced by tests.  Defines functions that print TAP, a temporary directory $T, and the directory of reference numbers,
# $golden.
#   ok NAME COMMAND...           COMMAND succeeds
#   is NAME GOT WANT             two strings are equal; isnt: they differ
#   like NAME TEXT REGEX         a line of TEXT matches the extended REGEX; unlike: none does
#   status NAME WANT COMMAND...  the exit status of COMMAND is WANT; its output is written to $T/out and $T/err
#   skip NAME REASON             report a skipped test, which counts as passed
#   skip_all REASON              skip all tests of this file, and exit
#   need_shared                  skip all unless MEG_SHARED is the directory of reference data
#   until_true S COMMAND...      wait at most S seconds until COMMAND succeeds; fail if it does not
#   await S COMMAND...           like until_true, but report a failed test if COMMAND does not succeed in time
#   no_gpu_status                print the exit status of --device cuda without a GPU: 1, or 2 if the build has no CUDA
#   done_testing                 print the plan and exit; the last line of each test
# Commands for ok:
#   near A B [TOLERANCE]         two files have equally many positive numbers, one per line, with relative differences
#                                of at most TOLERANCE (default: 1e-5)
#   same_tensors A B             directory B has the tensor files of directory A, at least one, with equal bytes
set -u
LC_ALL=C
# The directory of reference numbers.  Tests are in tests/ or in a subdirectory of it.
golden=$(cd "${0%/*}" && { [ -d data ] || cd ..; } && cd data/golden 2>/dev/null && pwd)
# LD_PRELOAD=fault.so is found in this path; LD_PRELOAD itself cannot contain a path with a space.
LD_LIBRARY_PATH=${B:-$PWD/build}/tests${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# Several tests run at a time, and the unit tests cover operations on several threads.
: "${OMP_NUM_THREADS:=1}"
# Each process generates the kernels of oneDNN, those for AVX2 in half the time; the unit tests use the best.
: "${ONEDNN_MAX_CPU_ISA:=AVX2}"
export LC_ALL LD_LIBRARY_PATH OMP_NUM_THREADS ONEDNN_MAX_CPU_ISA
# Tests run on the CPU, also on a machine with a GPU, unless MEG_TEST_GPU is set (tests/cuda/gpu.sh).
[ -n "${MEG_TEST_GPU:-}" ] || export CUDA_VISIBLE_DEVICES=
T=$(mktemp -d "${TMPDIR:-/tmp}/meg-test.XXXXXX") || exit 1
# Kill the background jobs of the test when it exits.  kill is the shell's builtin, because a minimal system has no
# /bin/kill.
trap 'jobs -p >"$T/.jobs"; kill -KILL $(cat "$T/.jobs") 2>/dev/null; rm -rf "$T"' EXIT
trap 'exit 1' HUP INT TERM
tap_n=0 tap_failed=0

tap_result() { # STATUS NAME [DIAGNOSTIC...]
    tap_n=$((tap_n + 1))
    if [ "$1" -eq 0 ]; then
        printf 'ok %d - %s\n' "$tap_n" "$2"
        return 0
    fi
    tap_failed=$((tap_failed + 1))
    printf 'not ok %d - %s\n' "$tap_n" "$2"
    shift 2
    [ $# -eq 0 ] || printf '%s\n' "$@" | sed 's/^/#   /'
    return 0
}

ok() {
    tap_name=$1
    shift
    "$@" >"$T/.out" 2>&1
    tap_result $? "$tap_name" "failed: $*" "$(tail -n 20 "$T/.out")"
}

is() {
    [ "$2" = "$3" ]
    tap_result $? "$1" "got:  $2" "want: $3"
}

isnt() {
    [ "$2" != "$3" ]
    tap_result $? "$1" "got what must differ: $2"
}

like() {
    printf '%s\n' "$2" | grep -Eq -e "$3"
    tap_result $? "$1" "got:  $2" "want a match of: $3"
}

unlike() {
    ! printf '%s\n' "$2" | grep -Eq -e "$3"
    tap_result $? "$1" "got:  $2" "want no match of: $3"
}

status() {
    tap_name=$1 tap_want=$2
    shift 2
    "$@" >"$T/out" 2>"$T/err"
    tap_got=$?
    [ "$tap_got" -eq "$tap_want" ]
    tap_result $? "$tap_name" "status: $tap_got, want $tap_want: $*" "$(tail -n 20 "$T/err")"
}

skip() {
    tap_n=$((tap_n + 1))
    printf 'ok %d - %s # SKIP %s\n' "$tap_n" "$1" "$2"
}

skip_all() {
    printf '1..0 # SKIP %s\n' "$1"
    exit 0
}

need_shared() {
    [ -n "${MEG_SHARED:-}" ] || skip_all 'MEG_SHARED is not set'
}

# The format of a number is checked first: mawk parses "nan" as NaN, with which every comparison below is false.
near() {
    paste -d ' ' "$1" "$2" | awk -v tolerance="${3:-1e-5}" '
        function is_number(s) { return s ~ /^[0-9]+([.][0-9]*)?([eE][-+]?[0-9][0-9]?)?$/ && s > 0 }
        NF != 2 || !is_number($1) || !is_number($2) || $1 - $2 > tolerance * $2 || $2 - $1 > tolerance * $2 {
            print "line " NR ": " $0
            bad = 1
        }
        END { exit bad || NR == 0 }'
}

same_tensors() {
    for tensors_f in "$1"/*.safetensors; do
        cmp "$tensors_f" "$2/${tensors_f##*/}" || return 1
    done
}

until_true() {
    until_left=$(($1 * 20))
    shift
    until "$@" >/dev/null 2>&1; do
        until_left=$((until_left - 1))
        [ "$until_left" -gt 0 ] || return 1
        sleep 0.05
    done
}

await() {
    until_true "$@" || tap_result 1 "await $*"
}

no_gpu_status() {
    if [ -e "${B:-build}/lib/cuda/cuda.c.o" ]; then echo 1; else echo 2; fi
}

done_testing() {
    printf '1..%d\n' "$tap_n"
    [ "$tap_failed" -eq 0 ] || exit 1
    exit 0
}
