#!/bin/sh
# Compare wall-clock time and peak memory of meg-preprocess with one and with two workers, over six copies of the
# English text.  The upper limit of the speed-up is measured by two concurrent runs of one worker, each over half of
# that text, which do not interact.  A warm-up run is not counted, see encode.sh.  The benchmark runs for seven minutes
# on two otherwise idle cores.
#   MEG_SHARED, BENCH_MB, BENCH_RUNS    see tests/bench/texts; two additional runs are made
#   BENCH_WITH     prefix of the command, such as "chrt -f 1" on a busy machine
set -eu
cd "${0%/*}/../.."
. tests/bench/texts
with=${BENCH_WITH:-}
rounds=$((runs + 2))
half="$T/english.jsonl $T/english.jsonl $T/english.jsonl"

# workers N: print seconds, CPU seconds and peak KiB of a run with N workers.
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

# faster A B: print the median speed-up of the runs in file B over those in file A.
faster() {
    paste "$1" "$2" | awk '{ print $1 / $4 }' >"$2.faster"
    median "$2.faster"
}

for _ in $(seq "$rounds"); do
    for name in $tokenizers; do
        tokenizer "$name"
        workers 2 >/dev/null
        workers 1 >>"$T/$name.one"
        workers 2 >>"$T/$name.two"
        two_runs >>"$T/$name.runs"
    done
done
printf 'wall-clock time over %s MB of text with one worker (1) and two (2), and of two concurrent runs of one worker,\n' \
    "$((6 * mb))"
printf 'each over half of the text (runs); medians of %s rounds; faster: than one worker in the same round\n' "$rounds"
printf '%-10s %8s %8s %7s %9s %7s %9s %9s\n' '' '1: s' '2: s' faster 'runs: s' faster '1: MiB' '2: MiB'
for name in $tokenizers; do
    at=$T/$name
    { echo "$name"; median "$at.one"; median "$at.two"; faster "$at.one" "$at.two"; median "$at.runs"
      faster "$at.one" "$at.runs"; median "$at.one" 3; median "$at.two" 3; } | xargs |
        awk '{ printf "%-10.10s %8.2f %8.2f %6.2fx %9.2f %6.2fx %9.0f %9.0f\n", $1, $2, $3, $4, $5, $6, $7 / 1024,
                      $8 / 1024 }'
done
