#!/bin/sh
# meg-preprocess beside other encoders, one thread, in MB of text a second of CPU time (10^6 bytes; on an idle machine
# that is the time it takes).  Cold: the whole program over a text, from the start to fsync.  Warm: what the same text a
# second time adds.  Of the others encoding alone, texts in memory, but for gigatoken, which reads the JSON lines, too;
# those that are slow have a part of the text.  Ours runs once more before, which does not count: on a virtual
# machine the first touch of memory that it gave back, while a slow peer ran, costs more than the copy into it.
# A quarter of an hour on two cores that do nothing else.
#   MEG_SHARED, BENCH_MB, BENCH_RUNS    as tests/bench/texts has them
#   BENCH_PART_MB  of a text for those that are slow (5)
#   MEG_PYTHON     a python that has tokenizers, gigatoken, regex; what it lacks is left out (python3)
#   MEG_MEGATRON   a checkout of Megatron-LM (January 2025); else its algorithm as tests/peers/encode.py has it
# spm_encode is SentencePiece's own, where it is installed.
set -eu
cd "${0%/*}/../.."
. tests/bench/texts
python=${MEG_PYTHON:-python3}
part=${BENCH_PART_MB:-5}

# Seconds, CPU seconds and KiB of a run of one worker over these files; not of removing an older dataset.
ours() {
    rm -f "$T"/out_*
    # shellcheck disable=SC2086
    "$cost" meg-preprocess -q --input "$@" --tokenizer-type $options --workers 1 --output-prefix "$T/out"
}

# A peer's MB/s over text $2 of so many bytes, one number or two; nothing when it cannot.
peer() {
    case $1 in
    spm_encode)
        [ -n "$model" ] || return 1
        [ -s "$2.part" ] || jq -r '.text | gsub("\n"; " ")' "$2" | head -c "${part}000000" | sed '$d' >"$2.part"
        "$cost" spm_encode --model="$model" --output_format=id --output="$T/spm.out" "$2.part" 2>/dev/null |
            awk -v bytes="$(wc -c <"$2.part")" '{ printf "%.2f\n", bytes / 1e6 / $2 }' ;;
    megatron)
        [ "${dir##*/}" = gpt2 ] && "$python" tests/peers/encode.py "$1" "$2" "$dir" "$part" 2>/dev/null ;;
    hf)
        "$python" tests/peers/encode.py "$1" "$2" "$dir" "$part" 2>/dev/null ;;
    gigatoken)
        "$python" tests/peers/encode.py "$1" "$2" "$dir" "$(awk -v b="$bytes" 'BEGIN { print b / 1e6 }')" 2>/dev/null ;;
    esac
}

texts=english
if [ -n "${MEG_SHARED:-}" ]; then
    texts='english code languages'
    make_code
    make_languages
fi
peers='hf megatron spm_encode gigatoken'
head='%-10s %6s %6s | %-13s | %-13s | %-13s | %-21s\n'

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
            echo "$one $two" | awk -v b="$bytes" '{ print b / 1e6 / $2, b / 1e6 / ($5 - $2) }' >>"$at.$name.ours"
            for p in $peers; do
                [ -e "$at.$name.$p.not" ] || peer "$p" "$text" >>"$at.$name.$p" || : >"$at.$name.$p.not"
            done
        done
    done
    printf '%s: %s MB of text, %s of them different, in %s documents; MB/s of CPU, medians of %s runs\n' \
        "${at##*/}" "$((bytes / 1000000))" "$(cat "$at.different")" "$(wc -l <"$text")" "$runs"
    printf 'x: ours is so many times as fast; but for gigatoken others have %s MB\n' "$part"
    # shellcheck disable=SC2059
    printf "$head" '' cold warm tokenizers Megatron-LM spm_encode 'gigatoken cold, warm'
    for name in $tokenizers; do
        { echo "$name"; median "$at.$name.ours"; median "$at.$name.ours" 2
          for p in $peers; do median "$at.$name.$p"; done; median "$at.$name.gigatoken" 2; } | xargs |
            awk 'function x(ours, v) { return v == "-" || v == "" ? "-" : sprintf("%6.1f %5.1fx", v, ours / v) }
                { printf "%-10.10s %6.1f %6.1f | %-13s | %-13s | %-13s | %s, %s\n", $1, $2, $3, x($2, $4),
                         x($2, $5), x($2, $6), x($2, $7), x($3, $8) }'
    done
done
