#!/bin/sh
# meg-preprocess beside Hugging Face's tokenizers and Megatron-LM's tokenizer on the same JSON lines, one thread.
# Ours is the whole program: start, vocabulary, reading, encoding, writing, fsync.  Theirs is encoding alone.
#   BENCH_TEXT     a file of JSON lines with "text"; else English of $MEG_SHARED/data, else the project's own text
#   BENCH_RUNS     runs of each, in turn (5)
#   MEG_PYTHON     a python that has tokenizers and regex (python3)
#   MEG_MEGATRON   a checkout of Megatron-LM (January 2025); else its algorithm as tests/peers/encode.py has it
set -eu
cd "${0%/*}/../.."
LC_ALL=C
export LC_ALL
T=$(mktemp -d "${TMPDIR:-/tmp}/meg-bench.XXXXXX")
trap 'rm -rf "$T"' EXIT
trap 'exit 1' HUP INT TERM
python=${MEG_PYTHON:-python3}
runs=${BENCH_RUNS:-5}

# Lines of text as JSON lines, documents of about 2400 bytes.
documents() {
    awk 'function out() { if (doc != "") printf "{\"text\":\"%s\"}\n", doc; doc = "" }
         { gsub(/["\\]/, "\\\\&"); gsub(/\t/, "\\t"); gsub(/[\001-\037]/, ""); doc = doc $0 "\\n"
           if (length(doc) > 2400) out() }
         END { out() }'
}

text=${BENCH_TEXT:-}
if [ -z "$text" ]; then
    text=$T/text.jsonl
    if [ -n "${MEG_SHARED:-}" ]; then
        c=$MEG_SHARED/data
        { cat "$c"/corpus/tinyshakespeare.txt "$c"/corpus/botchan.txt
          jq -r .text "$c"/corpus/us_presidents.jsonl "$c"/corpus/wikitext2_*.jsonl "$c"/eval/lambada_test.jsonl
        } | documents >"$text"
    else
        cat lib/*/*.[ch] cmd/*/*.c tests/unit/*.c man/* LICENSE | documents >"$text"
    fi
fi
if [ -n "${MEG_SHARED:-}" ]; then
    vocab=$MEG_SHARED/data/tokenizers/gpt2
else
    vocab=$T
    meg-vocab -q --input "$text" --vocab-size 32000 --output-dir "$T" 2>/dev/null
fi

# seconds, CPU seconds, tokens, name: a line a run
ours() {
    times >"$T/before"
    start=$(date +%s%N)
    meg-preprocess -q --input "$text" --tokenizer-type GPT2BPETokenizer --vocab-file "$vocab/vocab.json" \
        --merge-file "$vocab/merges.txt" --workers 1 --output-prefix "$T/out"
    end=$(date +%s%N)
    times >"$T/after"
    bytes=$(wc -c <"$T/out_text_document.bin")
    # the second line of times is for children: 0m1.5s 0m0.5s
    cat "$T/before" "$T/after" | tr ms '  ' | awk -v ns=$((end - start)) -v tokens=$((bytes / 2)) '
        { cpu[NR] = 60 * $1 + $2 + 60 * $3 + $4 }
        END { printf "%.4f %.4f %d meg-preprocess, the whole program\n", ns / 1e9, cpu[4] - cpu[2], tokens }'
}
for run in $(seq "$runs"); do
    ours >>"$T/ours"
    for peer in hf megatron; do
        "$python" tests/peers/encode.py "$peer" "$text" "$vocab" >>"$T/$peer" 2>"$T/err" ||
            { [ "$run" -gt 1 ] || echo "$peer: not measured: $(tail -n 1 "$T/err")"; }
    done
done

mb=$(jq -j .text "$text" | wc -c | awk '{ print $1 / 1e6 }')
printf '%.1f MB of text in %d documents, one thread, medians of %d runs\n' "$mb" "$(wc -l <"$text")" "$runs"
printf '%10s %14s %10s\n' 'MB/s' 'MB/s of CPU' tokens
for who in ours hf megatron; do
    [ -s "$T/$who" ] || continue
    sort -n "$T/$who" | sed -n "$(((runs + 1) / 2))p" >"$T/middle"
    read -r seconds cpu tokens name <"$T/middle"
    [ "$who" = ours ] && first=$seconds
    echo "$mb $seconds $cpu $tokens $first" |
        awk -v name="$name" '{ printf "%10.2f %14.2f %10d  %s", $1 / $2, $1 / $3, $4, name
                               if ($2 != $5) printf ": ours is %.1f times as fast", $2 / $5
                               print "" }'
done
