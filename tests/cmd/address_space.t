#!/bin/sh
# Under a limit of address space (ulimit -v), training succeeds or ends with a message, and never by a signal.
. "${0%/*}/../lib.sh"
. "${0%/*}/../ranks.sh"
if nm "$(command -v meg-train)" 2>/dev/null | grep -q __asan_init; then
    skip_all 'a sanitizer needs terabytes of address space'
fi
# shellcheck disable=SC3045 # every sh on Linux has these limits
[ "$(ulimit -v)" = unlimited ] || skip_all 'the address space is limited already'
tiny_gpt >"$T/conf"

# under KIB COMMAND...: run COMMAND with one thread and at most KIB KiB of address space
under() {
    # shellcheck disable=SC3045
    (
        ulimit -c 0
        ulimit -v "$1"
        shift
        OMP_NUM_THREADS=1 exec "$@"
    ) >"$T/out" 2>"$T/err"
}

# Find the lowest limit at which the dynamic loader succeeds; meg-train cannot report failures of the loader.
least=20000
until under "$least" meg-train --help || [ "$least" -gt 4000000 ]; do
    least=$((least + 4000))
done

# limits NAME OPTION...: check that one step succeeds or ends with a message, under limits from $least KiB to 160000 KiB
# more, 8000 KiB apart
limits() {
    name=$1 bad='' last=
    shift
    for kib in $(seq "$least" 8000 $((least + 160000))); do
        under "$kib" meg-train -q --config "$T/conf" --train-iters 1 "$@"
        last=$?
        cat "$T/err" >>"$T/messages"
        case $last in
        0) ;;
        1) grep -q 'out of memory' "$T/err" || bad="$bad; $kib KiB: $(cat "$T/err")" ;;
        *) bad="$bad; $kib KiB: status $last $(cat "$T/err")" ;;
        esac
    done
    is "$name: no limit ends the run by a signal" "$bad" ''
    is "$name: the largest limit suffices" "$last" 0
}

# A small stack limit must not end the run, either.
# shellcheck disable=SC3045
(ulimit -c 0 && ulimit -s 2048 && OMP_NUM_THREADS=1 exec meg-train -q --config "$T/conf" --train-iters 1) \
    >"$T/out" 2>"$T/err"
is 'a stack of 2 MiB suffices' $? 0

limits f32
limits bf16 --bf16
like 'the message for oneDNN says what to do' "$(cat "$T/messages")" \
    'out of memory: loading oneDNN takes [0-9]* MiB of address space; raise the limit'
done_testing
