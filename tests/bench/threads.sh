#!/bin/sh
# Two workers of meg-preprocess and one, over the English text six times, by the clock, and their peak memory; and two
# runs of one worker at once, each over half of that: as much work with nothing in common but the machine, which is as fast
# as two cores of it are.  A run before does not count, see encode.sh.  Seven minutes on two cores that do nothing else.
#   MEG_SHARED, BENCH_MB, BENCH_RUNS    as tests/bench/texts has them; two runs more
#   BENCH_WITH     goes before the command: on a machine with much else to do, "chrt -f 1"
set -eu
cd "${0%/*}/../.."
. tests/bench/texts
with=${BENCH_WITH:-}
turns=$((runs + 2))
half="$T/english.jsonl $T/english.jsonl $T/english.jsonl"

# Seconds, CPU seconds and KiB.
workers() {
    rm -f "$T"/out_*
    # shellcheck disable=SC2086
    $with "$cost" meg-preprocess -q --input $half $half --tokenizer-type $options --workers "$1" --output-prefix "$T/out"
}

two_runs() {
    rm -f "$T"/out_* "$T"/other_*
    # shellcheck disable=SC2016,SC2086
    $with "$cost" sh -c '"$@" --output-prefix "$0/out" & "$@" --output-prefix "$0/other" && wait $!' "$T" \
        meg-preprocess -q --input $half --tokenizer-type $options --workers 1
}

# How many times as fast the second of two files of runs is, turn by turn.
faster() {
    paste "$1" "$2" | awk '{ print $1 / $4 }' >"$2.faster"
    median "$2.faster"
}

for _ in $(seq "$turns"); do
    for name in $tokenizers; do
        tokenizer "$name"
        workers 2 >/dev/null
        workers 1 >>"$T/$name.one"
        workers 2 >>"$T/$name.two"
        two_runs >>"$T/$name.runs"
    done
done
printf 'two workers and one over %s MB of text, medians of %s by the clock; two runs of half of it at once\n' \
    "$((6 * mb))" "$turns"
printf '%-10s %8s %8s %7s %9s %7s %9s %9s\n' '' '1: s' '2: s' faster 'runs: s' faster '1: MiB' '2: MiB'
for name in $tokenizers; do
    at=$T/$name
    { echo "$name"; median "$at.one"; median "$at.two"; faster "$at.one" "$at.two"; median "$at.runs"
      faster "$at.one" "$at.runs"; median "$at.one" 3; median "$at.two" 3; } | xargs |
        awk '{ printf "%-10.10s %8.2f %8.2f %6.2fx %9.2f %6.2fx %9.0f %9.0f\n", $1, $2, $3, $4, $5, $6, $7 / 1024,
                      $8 / 1024 }'
done
