#!/bin/sh
# meg-preprocess beside other encoders, one thread, in MB of text a second of CPU time (10^6 bytes; on an idle machine
# that is the time it takes).  Cold: the whole program over a text, from the start to fsync.  Warm: what the same text a
# second time adds.  Of the others encoding alone, texts in memory, but for gigatoken, which reads the JSON lines, too;
# those that are slow have a part of the text, once.  Ten minutes on two cores that do nothing else.
#   MEG_SHARED     a folder with corpora and tokenizers; without it there is only the project's own text and GPT-2
#   BENCH_MB       of English, of code and of other languages, each (200)
#   BENCH_PART_MB  of a text for those that are slow (5)
#   BENCH_RUNS     runs of each, in turn (3); of those by the clock, three times as many
#   BENCH_WITH     goes before the command in what is timed by the clock: on a machine with much else to do, "chrt -f 1"
#   MEG_PYTHON     a python that has tokenizers, gigatoken, regex; what it lacks is left out (python3)
#   MEG_MEGATRON   a checkout of Megatron-LM (January 2025); else its algorithm as tests/peers/encode.py has it
# spm_encode is SentencePiece's own, where it is installed.
set -eu
cd "${0%/*}/../.."
LC_ALL=C
export LC_ALL
T=$(mktemp -d "${TMPDIR:-/tmp}/meg-bench.XXXXXX")
trap 'rm -rf "$T"' EXIT
trap 'exit 1' HUP INT TERM
python=${MEG_PYTHON:-python3}
runs=${BENCH_RUNS:-3}
mb=${BENCH_MB:-200}
part=${BENCH_PART_MB:-5}
cost=${B:-build}/tests/bench/cost

# The lines of more than a few words, over and over, each time in another order, until there are $2 MB of them as text $1.
repeated() {
    awk 'length > 40' >"$T/paragraphs"
    echo "$(($(wc -c <"$T/paragraphs") / 1000000))" >"$T/$1.different"
    while shuf --random-source="$T/seed" "$T/paragraphs" >"$T/again"; do
        mv "$T/again" "$T/paragraphs"
        cat "$T/paragraphs" || exit 1
    done | head -c "${2}000000" | sed '$d'
}

# Lines of text as JSON lines, documents of about 3000 bytes; $1 is what lies between two lines.
documents() {
    awk -v between="$1" '
        function out() { if (doc != "") printf "{\"text\": \"%s\"}\n", doc; doc = "" }
        { gsub(/["\\]/, "\\\\&"); gsub(/\t/, "\\t"); gsub(/[\001-\037]/, "")
          doc = doc (doc == "" ? "" : between) $0
          if (length(doc) > 3000) out() }
        END { out() }'
}

make_texts() {
    seq 1000000 >"$T/seed"
    if [ -z "${MEG_SHARED:-}" ]; then
        cat lib/*/*.[ch] cmd/*/*.c man/* LICENSE | repeated english "$mb" | documents '\\n' >"$T/english.jsonl"
        return
    fi
    c=$MEG_SHARED/data
    { cat "$c"/corpus/tinyshakespeare.txt "$c"/corpus/botchan.txt
      jq -r .text "$c"/corpus/us_presidents.jsonl "$c"/corpus/wikitext2_*.jsonl "$c"/eval/lambada_test.jsonl
      find "$c/eval/race" -name '*.txt' | sort | xargs -r jq -r .article
    } | repeated english "$mb" | documents '\\n\\n' >"$T/english.jsonl"
    find lib cmd tests /usr/include /usr/share/perl /usr/lib/python3* -name '*.[ch]' -o -name '*.p[ym]' | sort |
        shuf --random-source="$T/seed" | xargs cat | iconv -c -f utf-8 -t utf-8 2>/dev/null | head -c 10000000 |
        sed '$d' | documents '\\n' | repeated code "$mb" >"$T/code.jsonl"
    { jq -r .text "$c"/corpus/udhr.jsonl; cat "$c"/corpus/wagahaiwa_nekodearu.txt
    } | repeated languages "$mb" | documents '\\n\\n' >"$T/languages.jsonl"
}

# What meg-preprocess is told of a tokenizer, and the folder and the model of the others: sets $options, $dir, $model.
tokenizer() {
    dir=${MEG_SHARED:-}/data/tokenizers/$1
    model=
    case $1 in
    own)
        dir=$T
        options="GPT2BPETokenizer --vocab-file $dir/vocab.json --merge-file $dir/merges.txt" ;;
    gpt2)
        options="GPT2BPETokenizer --vocab-file $dir/vocab.json --merge-file $dir/merges.txt" ;;
    llama3 | qwen2)
        options="HuggingFaceTokenizer --tokenizer-model $dir" ;;
    bert-base-uncased)
        options="BertWordPieceLowerCase --vocab-file $dir/vocab.txt" ;;
    t5 | llama2)
        model=$(echo "$dir"/*.model)
        options="GPTSentencePieceTokenizer --tokenizer-model $model" ;;
    esac
}

# Seconds, CPU seconds and KiB of a run over the files from $2 on, with $1 workers; not of removing an older dataset.
ours() {
    workers=$1
    shift
    rm -f "$T"/out_*
    # shellcheck disable=SC2086
    ${with:-} "$cost" meg-preprocess -q --input "$@" --tokenizer-type $options --workers "$workers" --output-prefix "$T/out"
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

median() {
    sort -n -k "${2:-1}" "$1" 2>/dev/null | awk -v c="${2:-1}" '{ v[NR] = $c } END { print NR ? v[int((NR + 1) / 2)] : "-" }'
}

make_texts
tokenizers=own
texts=english
if [ -n "${MEG_SHARED:-}" ]; then
    texts='english code languages'
    tokenizers='gpt2 llama3 qwen2 bert-base-uncased t5 llama2'
else
    meg-vocab -q --input "$T/english.jsonl" --vocab-size 32000 --output-dir "$T" 2>/dev/null
fi
peers='hf megatron spm_encode gigatoken'
head='%-10s %6s %6s | %-13s | %-13s | %-13s | %-21s\n'

for text in $texts; do
    at=$T/$text
    text=$at.jsonl
    bytes=$(jq -j .text "$text" | wc -c)
    for run in $(seq "$runs"); do
        for name in $tokenizers; do
            tokenizer "$name"
            one=$(ours 1 "$text")
            two=$(ours 1 "$text" "$text")
            echo "$one $two" | awk -v b="$bytes" '{ print b / 1e6 / $2, b / 1e6 / ($5 - $2) }' >>"$at.$name.ours"
            for p in $peers; do
                [ "$run" = 1 ] || [ "$p" = gigatoken ] || continue
                [ -e "$at.$name.$p.not" ] || peer "$p" "$text" >>"$at.$name.$p" || : >"$at.$name.$p.not"
            done
        done
    done
    printf '%s: %s MB of text, %s of them different, in %s documents; MB/s of CPU, medians of %s runs\n' \
        "${at##*/}" "$((bytes / 1000000))" "$(cat "$at.different")" "$(wc -l <"$text")" "$runs"
    printf 'x: ours is so many times as fast; but for gigatoken others have %s MB, once\n' "$part"
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

with=${BENCH_WITH:-}
turns=$((3 * runs))
for _ in $(seq "$turns"); do
    for name in $tokenizers; do
        tokenizer "$name"
        for workers in 1 2; do
            two=$(ours "$workers" "$T/english.jsonl" "$T/english.jsonl")
            echo "${two%% *}" >>"$T/english.$name.wall$workers"
            echo "${two##* }" >>"$T/english.$name.kib$workers"
        done
    done
done
printf 'two threads and one over the English text twice, medians of %s by the clock, and peak memory\n' "$turns"
printf '%-10s %8s %8s %7s %9s %9s\n' '' '1: s' '2: s' faster '1: MiB' '2: MiB'
for name in $tokenizers; do
    at=$T/english.$name
    { echo "$name"; for k in wall1 wall2 kib1 kib2; do median "$at.$k"; done; } | xargs |
        awk '{ printf "%-10.10s %8.2f %8.2f %6.2fx %9.0f %9.0f\n", $1, $2, $3, $2 / $3, $4 / 1024, $5 / 1024 }'
done
