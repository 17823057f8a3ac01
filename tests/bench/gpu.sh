#!/bin/sh
# Print the speed of each operation on a GPU (tests/cuda/bench.c).  Then compare training with PyTorch's compiled step
# (tests/peers/gpu_step.py) on the same GPU, alternately, and print tokens/s, the model FLOP utilization (MFU) and peak
# memory, as TSV.  The MFU counts, per token, 6 FLOP per parameter and 6 L h s for causal attention, and refers to the
# peak of the H100 and H200, 989.4 TFLOP/s in bf16.
#   BENCH_MODELS   models (default: "124M 124M-dropout 1.5B 1.7B 8B"; 8B requires 130 GiB); there are peers for the first
#                  three; 124M-dropout has dropout with probability 0.1, the default of meg-train
#   BENCH_RUNS     rounds (default: 2); for meg, the median of all steps of all rounds is printed, and for PyTorch, the
#                  median of the medians of the rounds, of two rounds the lower one
#   BENCH_STEPS    steps of a round after 5 steps of warm-up (default: 10)
#   MEG_PYTHON     a Python with PyTorch for CUDA (default: python3)
set -eu
cd "${0%/*}/../.."
LC_ALL=C
export LC_ALL
B=${B:-build}
command -v nvidia-smi >/dev/null || { echo 'gpu: skipped: there is no nvidia-smi'; exit 0; }
[ -x "$B/tests/cuda/bench" ] || { echo 'gpu: skipped: this build has no CUDA'; exit 0; }
T=$(mktemp -d "${TMPDIR:-/tmp}/meg-bench.XXXXXX")
trap 'kill ${!:-} 2>/dev/null; rm -rf "$T"' EXIT
trap 'exit 1' HUP INT TERM
runs=${BENCH_RUNS:-2}
steps=${BENCH_STEPS:-10}
python=${MEG_PYTHON:-python3}

gpt='--tokenizer-type NullTokenizer --bf16'
llama="$gpt --position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear \
    --group-query-attention --untie-embeddings-and-output-weights"

# model NAME: set layers, hidden, heads, t, vocab, b sequences per micro-batch, micro-batches per step (passes), params
# (without positions), dropout and options
model() {
    options=$gpt dropout=0
    case $1 in
    124M | 124M-dropout)
        layers=12 hidden=768 heads=12 t=1024 vocab=50257 b=64 passes=8 params=123.7e6
        [ "$1" = 124M ] || dropout=0.1
        ;;
    1.5B) layers=48 hidden=1600 heads=25 t=1024 vocab=50257 b=16 passes=4 params=1556.0e6 ;;
    1.7B) layers=24 hidden=2304 heads=24 t=4096 vocab=51199 b=4 passes=4 params=1647.0e6 ;;
    8B)
        layers=32 hidden=4096 heads=32 t=8192 vocab=128255 b=1 passes=4 params=8030.0e6
        options="$llama --num-query-groups 8 --ffn-hidden-size 14336 --rotary-base 500000 --main-grads-dtype bf16 \
            --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
        ;;
    *) echo "gpu: no model is called $1" >&2 && exit 2 ;;
    esac
}

# Print the peak in MiB of the memory in use on the first GPU, by all processes, while the process $1 runs.
peak_mib() {
    peak=0
    while kill -0 "$1" 2>/dev/null; do
        now=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -n 1)
        [ "$now" -le "$peak" ] || peak=$now
        sleep 0.5
    done
    echo "$peak"
}

ours() { # NAME
    # shellcheck disable=SC2086 # options
    meg-train --device cuda --mock-data $options --attention-dropout $dropout --hidden-dropout $dropout \
        --num-layers "$layers" --hidden-size "$hidden" \
        --num-attention-heads "$heads" --seq-length "$t" --max-position-embeddings "$t" --vocab-size "$vocab" \
        --micro-batch-size "$b" --global-batch-size $((b * passes)) --lr 1e-4 --weight-decay 0.1 --clip-grad 1 --eval-iters 0 \
        --train-iters $((steps + 5)) --log-interval 1 --log-json "$T/json" >"$T/log" 2>&1 &
    peak_mib $! >"$T/peak"
    wait $! || { cat "$T/log" >&2; return 1; }
    sed -n 's/.*"iteration_ms":\([^,}]*\).*/\1/p' "$T/json" | sed 1,5d >>"$T/$1.meg"
    cat "$T/peak" >>"$T/$1.meg.peak"
    rm "$T/json"
}

peer() { # NAME
    # the fastest vocabulary of the peer is a multiple of 128
    "$python" tests/peers/gpu_step.py "$layers,$hidden,$heads,$t,$(((vocab + 128) / 128 * 128))" "$b" "$passes" "$steps" "$dropout" >"$T/peer" 2>"$T/log" ||
        { tail -n 5 "$T/log" >&2; return 1; }
    sed -n 's/.*"ms": \([^,}]*\).*/\1/p' "$T/peer" >>"$T/$1.PyTorch"
    sed -n 's/.*"peak_mib": \([^,}]*\).*/\1/p' "$T/peer" >>"$T/$1.PyTorch.peak"
}

# line NAME PROGRAM: print the medians of a program
line() {
    [ -s "$T/$1.$2" ] || return 0
    sort -g "$T/$1.$2" | awk -v model="$1" -v program="$2" -v tokens=$((b * t * passes)) -v layers="$layers" -v h="$hidden" \
        -v s="$t" -v params="$params" -v peak="$(sort -n "$T/$1.$2.peak" | tail -n 1)" '
        { v[NR] = $1 }
        END {
            ms = v[int((NR + 1) / 2)]
            rate = tokens / ms * 1e3
            printf "%s\t%s\t%d\t%.2f\t%.0f\t%.1f\t%d\n", model, program, tokens, ms, rate,
                   100 * rate * (6 * params + 6 * layers * h * s) / 989.4e12, peak
        }'
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem --format=csv,noheader | sed 's/^/# /'
"$B/tests/cuda/bench"
printf 'model\tprogram\ttokens/step\tms/step\ttokens/s\tMFU %%\tMiB\n'
for name in ${BENCH_MODELS:-124M 124M-dropout 1.5B 1.7B 8B}; do
    model "$name"
    for run in $(seq "$runs"); do
        ours "$name"
        case $name in
        124M | 124M-dropout | 1.5B) peer "$name" || echo "# the peer failed: $name" ;;
        esac
    done
    line "$name" meg
    line "$name" PyTorch
done
