#!/bin/sh
# meg-preprocess beside other encoders, each on as many threads: MB of text a second of CPU time (10^6 bytes), which
# other work on the machine changes least, and CPU seconds per second meanwhile (200% is two processors at work): their
# product is the speed by the clock.  Cold: the complete program over a text, from the start to fsync.  Warm: what the same
# text a second time adds.  Of the others encoding alone, texts in memory, but for gigatoken and Megatron-LM, which read
# the JSON lines, too; those that are slow have a part of the text.  Their own parallelism is on: TOKENIZERS_PARALLELISM
# and RAYON_NUM_THREADS, SentencePiece's threads, Megatron-LM's processes.  Ours runs once more before, which does not
# count: on a virtual machine the first touch of memory that it gave back, while a slow peer ran, costs more than the
# copy into it.
# A quarter of an hour on two cores that do nothing else.
#   MEG_SHARED, BENCH_MB, BENCH_RUNS    as tests/bench/texts has them
#   BENCH_THREADS  threads of each (all processors)
#   BENCH_PART_MB  of a text for those that are slow (5 for each thread)
#   MEG_PYTHON     a Python; peers whose modules it lacks are skipped: tokenizers, sentencepiece, gigatoken, regex (python3)
#   MEG_MEGATRON   a checkout of Megatron-LM (January 2025); else its algorithm as tests/peers/encode.py has it
set -eu
cd "${0%/*}/../.."
. tests/bench/texts
python=${MEG_PYTHON:-python3}
threads=${BENCH_THREADS:-$(nproc)}
part=${BENCH_PART_MB:-$((5 * threads))}

# Seconds, CPU seconds and KiB of a run over these files; not of removing an older dataset.
ours() {
    rm -f "$T"/out_*
    # shellcheck disable=SC2086
    "$cost" meg-preprocess -q --input "$@" --tokenizer-type $options --workers "$threads" \
        --output-prefix "$T/out"
}

# MB a second of CPU and CPU seconds a second of a peer over text $2; cold and then warm of gigatoken; nothing when it
# cannot.
peer() {
    size=$part
    case $1 in
    sentencepiece) [ -n "$model" ] || return 1 ;;
    megatron) [ "${dir##*/}" = gpt2 ] || return 1 ;;
    gigatoken) size=$(awk -v b="$bytes" 'BEGIN { print b / 1e6 }') ;;
    esac
    "$python" tests/peers/encode.py "$1" "$2" "$dir" "$size" "$threads" 2>/dev/null
}

texts=english
if [ -n "${MEG_SHARED:-}" ]; then
    texts='english code languages'
    make_code
    make_languages
fi
peers='hf megatron sentencepiece gigatoken'
head='%-10s %6s %6s %5s | %-18s | %-18s | %-18s | %-18s | %-18s\n'

for text in $texts; do
    at=$T/$text
    text=$at.jsonl
    bytes=$(jq -j .text "$text" | wc -c)
    for _ in $(seq "$runs"); do
        for name in $tokenizers; do
            tokenizer "$name"
            ours "$text" "$text" >/dev/null
            one=$(ours "$text")
            two=$(ours "$text" "$text")
            echo "$one $two" |
                awk -v b="$bytes" '{ print b / 1e6 / $2, b / 1e6 / ($5 - $2), $2 / $1 }' >>"$at.$name.ours"
            for p in $peers; do
                [ -e "$at.$name.$p.not" ] || peer "$p" "$text" >>"$at.$name.$p" || : >"$at.$name.$p.not"
            done
        done
    done
    printf '%s: %s MB of text, %s of them different, in %s documents; ' "${at##*/}" \
        "$((bytes / 1000000))" "$(cat "$at.different")" "$(wc -l <"$text")"
    printf 'MB/s of CPU, and CPU of %s threads, medians of %s runs\n' "$threads" "$runs"
    printf 'x: speed-up of meg-preprocess; peers other than gigatoken encode %s MB\n' "$part"
    # shellcheck disable=SC2059
    printf "$head" '' cold warm CPU tokenizers Megatron-LM SentencePiece 'gigatoken, cold' 'gigatoken, warm'
    for name in $tokenizers; do
        { echo "$name"
          for column in 1 2 3; do median "$at.$name.ours" "$column"; done
          for p in $peers; do median "$at.$name.$p"; median "$at.$name.$p" 2; done
          median "$at.$name.gigatoken" 3; median "$at.$name.gigatoken" 4; } | xargs |
            awk 'function x(ours, v, cpu) {
                     return v == "-" || v == "" ? "-" : sprintf("%6.1f %4.0f%% %5.1fx", v, 100 * cpu, ours / v)
                 }
                 { printf "%-10.10s %6.1f %6.1f %4.0f%% | %-18s | %-18s | %-18s | %-18s | %-18s\n", $1, $2, $3, 100 * $4,
                          x($2, $5, $6), x($2, $7, $8), x($2, $9, $10), x($2, $11, $12), x($3, $13, $14) }'
    done
done
