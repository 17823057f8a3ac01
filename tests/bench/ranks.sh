#!/bin/sh
# Measure the training step of GPT-2 124M in f32 on one rank of two threads and on two data-parallel ranks of one
# thread, with and without overlapped gradient reduction.  A step has two samples.  The configurations alternate; the
# medians of the steps of all rounds are printed.  Requires an otherwise idle machine.
#   BENCH_RUNS     rounds (default: 5) of 3 steps, of which the first is not counted
#   BENCH_RANKS_T  sequence length (default: 1024)
set -eu
cd "${0%/*}/../.."
LC_ALL=C
export LC_ALL
T=$(mktemp -d "${TMPDIR:-/tmp}/meg-bench.XXXXXX")
trap 'rm -rf "$T"' EXIT
trap 'exit 1' HUP INT TERM
. tests/ranks.sh
runs=${BENCH_RUNS:-5}
length=${BENCH_RANKS_T:-1024}

# step NAME THREADS COMMAND...: measure a run; COMMAND starts meg-train
step() {
    name=$1 threads=$2
    shift 2
    rm -f "$T/log"
    OMP_NUM_THREADS=$threads "$@" --mock-data --tokenizer-type NullTokenizer --vocab-size 50256 --num-layers 12 \
        --hidden-size 768 --num-attention-heads 12 --seq-length "$length" --max-position-embeddings "$length" \
        --micro-batch-size 1 --global-batch-size 2 --lr 1e-4 --train-iters 3 --eval-iters 0 --log-interval 1 \
        --log-json "$T/log" >/dev/null 2>"$T/err" || { cat "$T/err" >&2; exit 1; }
    jq -c --arg name "$name" 'select(.iteration > 1 and .lm_loss) | { $name, ms: .iteration_ms }' "$T/log" >>"$T/out"
}

for run in $(seq "$runs"); do
    step 'one rank, two threads' 2 meg-train -q
    step 'two ranks' 1 mpirun -n 2 --bind-to core meg-train -q
    step 'two ranks, overlapped' 1 mpirun -n 2 --bind-to core meg-train -q --overlap-grad-reduce
    [ ! -t 2 ] || printf '%s of %s\r' "$run" "$runs" >&2
done

jq -rs --argjson runs "$runs" --arg length "$length" '
    def median: sort | .[length / 2 | floor];
    def left(n): . + " " * (n - length);
    (map(select(.name | startswith("one"))) | map(.ms) | median) as $one |
    "step of GPT-2 124M, f32, two samples of \($length) tokens: medians of \($runs) rounds",
    (group_by(.name)[] | (map(.ms) | median) as $ms |
        "  \(.[0].name | left(24)) \($ms | round) ms, \($one / $ms * 100 | round / 100)x the speed of one rank")' "$T/out"
