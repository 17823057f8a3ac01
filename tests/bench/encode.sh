#!/bin/sh
# Compare the speed of meg-preprocess with other encoders that use the same number of threads.  Prints MB (10^6 bytes)
# of text per second of CPU time, which other work on the machine affects least, and CPU seconds per second (200% is two
# busy processors); their product is the wall-clock speed.  Cold: the complete program over a text, from start to fsync.
# Warm: the additional cost of encoding the same text a second time.  For the other encoders, only encoding of texts in
# memory is measured, except for gigatoken and Megatron-LM, which also read the JSON lines; slow encoders encode a part
# of the text.  Their parallelism is enabled: TOKENIZERS_PARALLELISM and RAYON_NUM_THREADS, SentencePiece's threads,
# Megatron-LM's processes.  meg-preprocess has a warm-up run that is not counted: on a virtual machine, the first access
# to memory released earlier costs more than copying into it.  The benchmark runs for a quarter of an hour on two
# otherwise idle cores.
#   MEG_SHARED, BENCH_MB, BENCH_RUNS    see tests/bench/texts
#   BENCH_THREADS  threads of each encoder (default: all processors)
#   BENCH_PART_MB  megabytes of text for slow encoders (default: 5 per thread)
#   MEG_PYTHON     a Python (default: python3); encoders whose modules it lacks (tokenizers, sentencepiece, gigatoken,
#                  regex) are skipped
#   MEG_MEGATRON   a checkout of Megatron-LM (January 2025); default: the same algorithm in tests/peers/encode.py
set -eu
cd "${0%/*}/../.."
. tests/bench/texts
python=${MEG_PYTHON:-python3}
threads=${BENCH_THREADS:-$(nproc)}
part=${BENCH_PART_MB:-$((5 * threads))}

# ours FILE...: print seconds, CPU seconds and peak KiB of a run over the files, excluding the removal of an older
# dataset.
ours() {
    rm -f "$T"/out_*
    # shellcheck disable=SC2086
    "$cost" meg-preprocess -q --input "$@" --tokenizer-type $options --workers "$threads" \
        --output-prefix "$T/out"
}

# peer: print MB per CPU second and CPU seconds per second of another encoder over text $2, for gigatoken cold and then
# warm. Prints nothing if the encoder is not available.
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
    printf '%s: %s MB of text (%s MB distinct, repeated) in %s documents; ' "${at##*/}" \
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
