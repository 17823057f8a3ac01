#!/bin/sh
# Compare the training step of GPT-2 124M in f32 and bf16, B=4, T=64 and T=1024, with PyTorch and llm.c's trainer.
# Prints time, threads, CPU seconds per second (200% is two busy processors), and the percentage of the peak
# multiply-add rate of the type, which is measured in the same rounds.  The programs alternate; the medians of all
# rounds are printed.  PyTorch in bf16 is measured twice: with autocast over f32 weights, and with bf16 weights only.
#   BENCH_RUNS     rounds (default: 5); each is the median of BENCH_STEPS steps (default: 7) up to T=256, and of 2 above
#   BENCH_DTYPES   types (default: "f32 bf16")
#   BENCH_F32      modes of PyTorch in f32: f32, which is eager, and compiled, from torch 2 on (default: f32)
#   BENCH_CPU_MODELS   gpt2, llama (134M), bert (BERT-base), t5 (T5-small) (default: gpt2); models.sh compares them all
#   MEG_PYTHON     Pythons with torch, separated by spaces, such as Debian's and one with the current wheel (default:
#                  python3)
#   MEG_LLMC       directory with llm.c's train_gpt2 and the weights and tokens that it reads (f32, B=4, T=64)
#   BENCH_T        sequence lengths (default: "64 1024")
# Requires an otherwise idle machine; under other load, only the ratios are meaningful.
set -eu
cd "${0%/*}/../.."
LC_ALL=C
export LC_ALL
B=${B:-build}
cost=$(realpath "$B")/tests/bench/cost
T=$(mktemp -d "${TMPDIR:-/tmp}/meg-bench.XXXXXX")
trap 'rm -rf "$T"' EXIT
trap 'exit 1' HUP INT TERM
: >"$T/start"
runs=${BENCH_RUNS:-5}
lengths=${BENCH_T:-64 1024}
models=${BENCH_CPU_MODELS:-gpt2}
dtypes=${BENCH_DTYPES:-f32 bf16}

# Print the title of a model and the options of tests/bench/step.  tests/peers/step.py has the same models.
model() {
    case $1 in
    gpt2) echo 'GPT-2 124M|' ;;
    llama)
        echo 'Llama 134M|--position-embedding-type rope --normalization RMSNorm --swiglu --ffn-hidden-size 2048' \
            '--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 32000'
        ;;
    t5)
        echo 'T5-small 60M|--model t5 --num-layers 6 --hidden-size 512 --num-attention-heads 8 --ffn-hidden-size 2048' \
            '--vocab-size 32128'
        ;;
    bert) echo 'BERT-base 110M|--model bert --no-bias-gelu-fusion --vocab-size 30522' ;;
    *) echo "step: no model is called $1; there are gpt2, llama, bert and t5" >&2 && exit 2 ;;
    esac
}

steps() { # T
    if [ "$1" -le 256 ]; then echo "${BENCH_STEPS:-7}"; else echo 2; fi
}

# Run PyTorch with its fastest settings: all processors, bound threads (step.py sets their number, since binding would
# reduce it to one), Debian's OpenBLAS with AVX-512 and OpenMP, and memory kept between steps (otherwise page faults
# take a third of a short step).
peer() { # MODEL PYTHON T MODE
    model=$1
    shift
    (
        export OMP_PROC_BIND=close OMP_PLACES=cores
        export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184
        if grep -qs avx512f /proc/cpuinfo; then export OPENBLAS_CORETYPE=SkylakeX; fi
        for d in /usr/lib/*/openblas-openmp; do
            [ -d "$d" ] && export LD_LIBRARY_PATH="$d${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        done
        "$1" tests/peers/step.py "$2" 4 "$(steps "$2")" "$3" "$model"
    )
}

# llm.c prints "step 3: train loss 4.1 (took 2680.1 ms)"; the first step is skipped.  The CPU usage
# is that of the complete run.
llmc() {
    cpu=$(
        cd "$MEG_LLMC"
        export OMP_PROC_BIND=close OMP_PLACES=cores
        "$cost" timeout "${BENCH_LLMC_S:-60}" stdbuf -oL ./train_gpt2 2>"$T/llmc" || :
    )
    sed -n 's/.*took \([0-9.]*\) ms.*/\1/p' "$T/llmc" | sed 1d | sort -n | awk -v cpu="$cpu" '
        { v[NR] = $1 }
        END {
            split(cpu, c)
            if (NR)
                printf "{\"name\":\"llm.c\",\"dtype\":\"f32\",\"T\":64,\"B\":4,\"cpu_share\":%.2f," \
                       "\"step_ms\":%s,\"tokens_per_s\":%.1f}\n",
                       c[2] / c[1], v[int(NR / 2) + 1], 256e3 / v[int(NR / 2) + 1]
        }'
}

labelled() { # MODEL: begin each line with the model's title
    title=$(model "$1")
    sed "s/^{/{\"model\":\"${title%%|*}\",/" >>"$T/out"
}

ours() { # MODEL T DTYPE
    options=$(model "$1")
    case $3 in
    f32) name=meg ;;
    bf16) name='meg --bf16' ;;
    esac
    # shellcheck disable=SC2086 # options
    "$B/tests/bench/step" "$2" 4 "$(steps "$2")" "$3" ${options#*|} |
        sed "s/^{/{\"name\":\"$name\",\"is_ours\":true,/" | labelled "$1"
}

peers() { # MODEL T DTYPE
    case $3 in
    f32) modes=${BENCH_F32:-f32} ;;
    bf16) modes='autocast bf16' ;;
    esac
    for p in $pythons; do
        for mode in $modes; do
            [ $mode != compiled ] || "$p" -c 'import torch; torch.compile' 2>/dev/null || continue
            peer "$1" "$p" "$2" "$mode" >"$T/peer" 2>"$T/err" || { cat "$T/err" >&2; exit 1; }
            labelled "$1" <"$T/peer"
        done
    done
    if [ -n "${MEG_LLMC:-}" ] && [ "$*" = 'gpt2 64 f32' ]; then llmc | labelled gpt2; fi
}

pythons=
for p in ${MEG_PYTHON:-python3}; do
    if "$p" -c 'import torch' 2>/dev/null; then
        pythons="$pythons $p"
    else
        echo "PyTorch skipped: $p has no torch (set MEG_PYTHON)"
    fi
done
[ "$models" != gpt2 ] || [ -n "${MEG_LLMC:-}" ] || echo "llm.c skipped: MEG_LLMC does not name a folder with train_gpt2 and its data"

for run in $(seq "$runs"); do
    for model in $models; do
        for t in $lengths; do
            for dtype in $dtypes; do
                "$B/tests/bench/peak" >>"$T/peak"
                ours "$model" "$t" "$dtype"
                peers "$model" "$t" "$dtype"
            done
        done
    done
    [ ! -t 2 ] || printf '%s of %s\r' "$run" "$runs" >&2
done

# Measure the time from the start of meg-train with a small model to its first log line, after the first iteration.
if [ "$models" = gpt2 ] && command -v meg-train >/dev/null; then
    for run in $(seq "$runs"); do
        start=$(date +%s%N)
        meg-train --mock-data --tokenizer-type NullTokenizer --vocab-size 999 --num-layers 2 --hidden-size 128 \
            --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 4 --lr 1e-3 \
            --train-iters 1 --eval-iters 0 --log-interval 1 >/dev/null 2>"$T/err" || { cat "$T/err" >&2; exit 1; }
        echo $((($(date +%s%N) - start) / 1000)) >>"$T/start"
    done
fi

jq -rs --slurpfile peaks "$T/peak" --rawfile start "$T/start" --argjson runs "$runs" '
    def median: sort | .[length / 2 | floor];
    def numbers: split("\n") | map(select(. != "") | tonumber);
    def fixed(n): . * pow(10; n) | round / pow(10; n) | tostring;
    def right(n): tostring | " " * (n - length) + .;
    def left(n): . + " " * (n - length);
    def median_of(key): map(key | values) | if length > 0 then median else null end;
    def shown(f): if . == null then "-" else f end;
    def row: (.[0] | left(36)) + (.[1:] | map(right(10)) | join(""));
    ($peaks | { f32: median_of(.f32), bf16: median_of(.bf16) }) as $peak |
    "training step, B=4: medians of \($runs) rounds; multiply-add peak \($peak.f32 | fixed(0)) GF/s in f32, " +
        "\($peak.bf16 | shown(fixed(0))) in bf16",
    (group_by([.model, .T, .dtype != "f32"])[] | (map(select(.is_ours)) | median_of(.step_ms)) as $ours |
        (["\(.[0].model), \(.[0].dtype), T=\(.[0].T)", "ms", "tokens/s", "GF/s", "of peak", "threads", "CPU", "MiB", "meg is"] | row),
        (group_by(.name)[] | median_of(.step_ms) as $ms | median_of(.gflops) as $gf | $peak[.[0].dtype] as $most |
            ([.[0].name, ($ms | fixed(0)), (median_of(.tokens_per_s) | fixed(0)), ($gf | shown(fixed(0))),
              (if $gf and $most then "\(100 * $gf / $most | fixed(1))%" else "-" end), (.[0].threads // "-"),
              "\(100 * median_of(.cpu_share) | fixed(0))%", (map(.peak_mib | values) | max // "-"),
              (if .[0].is_ours then "" else "\($ms / $ours | fixed(2))x" end)] | row))),
    (median_of(.adamw_gb_per_s) | values | "AdamW in f32: \(fixed(1)) GB/s at 28 bytes a parameter"),
    (if $start == "" then empty else
        "from the call of meg-train to the end of the first iteration, 2 layers of 128: " +
            "\($start | numbers | median / 1000 | fixed(0)) ms"
     end)' "$T/out"
