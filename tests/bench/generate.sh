#!/bin/sh
# Compare greedy decoding by meg-generate with Hugging Face transformers: GPT-2 124M with random weights, prompts of 32
# tokens, continued by 64 tokens.  The programs alternate; the medians of all rounds are printed.  The time includes the
# prompts, but not the start of a program.
#   BENCH_RUNS     rounds (default: 3)
#   BENCH_DTYPES   types (default: "f32 bf16")
#   BENCH_BATCHES  prompts that are continued at once (default: "1 8")
#   BENCH_MODES    modes of transformers: dynamic, which is eager, and compiled (default: "dynamic compiled")
#   MEG_PYTHON     a Python with torch and transformers (default: python3)
# Requires an otherwise idle machine; under other load, only the ratios are meaningful.
set -eu
cd "${0%/*}/../.."
LC_ALL=C
export LC_ALL
python=${MEG_PYTHON:-python3}
T=$(mktemp -d "${TMPDIR:-/tmp}/meg-bench.XXXXXX")
trap 'rm -rf "$T"' EXIT
trap 'exit 1' HUP INT TERM
prompt=32 tokens=64

"$python" -c 'import torch, transformers' 2>/dev/null || {
    echo "transformers skipped: $python lacks torch or transformers (set MEG_PYTHON)"
    python=
}

meg-train -q --mock-data --tokenizer-type NullTokenizer --vocab-size 50256 --make-vocab-size-divisible-by 1 --num-layers 12 \
    --hidden-size 768 --num-attention-heads 12 --max-position-embeddings 1024 --seq-length 16 --micro-batch-size 1 --lr 0 \
    --train-iters 1 --eval-iters 0 --no-save-optim --device cpu --save "$T/native" >"$T/out" 2>&1 || { cat "$T/out" >&2; exit 1; }
meg-convert --load-dir "$T/native" --save-dir "$T/hf" --saver hf >"$T/out" 2>&1 || { cat "$T/out" >&2; exit 1; }

ours() { # BATCH DTYPE
    awk -v b="$1" -v n=$prompt 'BEGIN {
        for (i = 0; i < b; i++) {
            printf "{\"ids\":["
            for (t = 0; t < n; t++)
                printf "%s%d", t ? "," : "", (i * 131 + t * 7) % 50000
            print "]}"
        }
    }' >"$T/prompts"
    case $2 in
    f32) weights=fp32 ;;
    bf16) weights=bf16 ;;
    esac
    meg-generate -v --device cpu --load "$T/native" --params-dtype $weights --greedy --tokens-to-generate $tokens \
        --max-batch-size "$1" --input "$T/prompts" >"$T/text" 2>"$T/err" || { cat "$T/err" >&2; exit 1; }
    sed -n 's/.* \([0-9]*\) tokens in \([0-9.]*\) s.*/\1 \2/p' "$T/err" | awk -v b="$1" -v type="$2" '{
        printf "{\"name\":\"meg-generate\",\"is_ours\":true,\"batch\":%d,\"dtype\":\"%s\",\"tokens_per_s\":%.3f}\n", b, type, $1 / $2
    }' >>"$T/results"
}

for _ in $(seq "${BENCH_RUNS:-3}"); do
    for dtype in ${BENCH_DTYPES:-f32 bf16}; do
        for batch in ${BENCH_BATCHES:-1 8}; do
            ours "$batch" "$dtype"
            for mode in ${python:+${BENCH_MODES:-dynamic compiled}}; do
                "$python" tests/peers/generate.py "$T/hf" "$batch" $prompt $tokens "$dtype" "$mode" >>"$T/results" 2>"$T/err" ||
                    { cat "$T/err" >&2; exit 1; }
            done
        done
    done
done

jq -rs '
    def median_of(key): map(key | values) | sort | if length > 0 then .[length / 2 | floor] else null end;
    def fixed(n): . * pow(10; n) | round / pow(10; n) | tostring;
    def right(n): tostring | " " * (n - length) + .;
    def left(n): . + " " * (n - length);
    "greedy decoding, GPT-2 124M: medians of tokens/s",
    (group_by([.dtype != "f32", .batch])[] | (map(select(.is_ours)) | median_of(.tokens_per_s)) as $ours |
        "\(.[0].dtype), batch \(.[0].batch)",
        (group_by(.name)[] | median_of(.tokens_per_s) as $speed |
            "  " + (.[0].name | left(60)) + ($speed | fixed(1) | right(8)) +
            (if .[0].is_ours then "" else "  meg is \($ours / $speed | fixed(2))x" end)))' "$T/results"
