#!/bin/sh
# The training step of GPT-2's 124M in f32 and in bf16, B=4, T=64 and T=1024, beside PyTorch's eager step and llm.c's
# trainer: time, threads, CPU seconds per second (200% is two processors at work), and how much of the multiply-add
# peak of its type, measured in the same turns, it is.  Contenders alternate; medians of the turns are printed.
# PyTorch in bf16 is measured twice: autocast over f32 weights, and all in bf16, with no f32 copies of the weights.
#   BENCH_RUNS     turns (5); each is the median of BENCH_STEPS steps at T=64 (7) and of 2 at T=1024
#   BENCH_DTYPES   the types ("f32 bf16")
#   MEG_PYTHON     pythons that have torch, apart by spaces, e.g. Debian's and one with the current wheel (python3)
#   MEG_LLMC       a folder with llm.c's train_gpt2 built, and the weights and tokens it reads (f32, B=4, T=64)
#   BENCH_T        the lengths ("64 1024")
# Needs all cores to itself: with other work beside it, only the ratios mean something.
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
dtypes=${BENCH_DTYPES:-f32 bf16}

steps() { # T
    if [ "$1" -le 256 ]; then echo "${BENCH_STEPS:-7}"; else echo 2; fi
}

# PyTorch at its best: all processors, threads bound (step.py sets their number, else binding leaves one), Debian's
# OpenBLAS with AVX-512 and OpenMP, and memory kept between steps: else a third of a short
# step goes into page faults.
peer() { # PYTHON T MODE
    (
        export OMP_PROC_BIND=close OMP_PLACES=cores
        export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184
        if grep -qs avx512f /proc/cpuinfo; then export OPENBLAS_CORETYPE=SkylakeX; fi
        for d in /usr/lib/*/openblas-openmp; do
            [ -d "$d" ] && export LD_LIBRARY_PATH="$d${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        done
        "$1" tests/peers/step.py "$2" 4 "$(steps "$2")" "$3"
    )
}

# llm.c prints "step 3: train loss 4.1 (took 2680.1 ms)"; the first is skipped.  The CPU share is that of the complete run.
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

ours() { # T DTYPE
    case $2 in
    f32) name=meg ;;
    bf16) name='meg --bf16' ;;
    esac
    "$B/tests/bench/step" "$1" 4 "$(steps "$1")" "$2" | sed "s/^{/{\"name\":\"$name\",\"is_ours\":true,/" >>"$T/out"
}

peers() { # T DTYPE
    case $2 in
    f32) modes=f32 ;;
    bf16) modes='autocast bf16' ;;
    esac
    for p in $pythons; do
        for mode in $modes; do
            peer "$p" "$1" "$mode" >>"$T/out" 2>"$T/err" || { cat "$T/err" >&2; exit 1; }
        done
    done
    if [ -n "${MEG_LLMC:-}" ] && [ "$1 $2" = '64 f32' ]; then llmc >>"$T/out"; fi
}

pythons=
for p in ${MEG_PYTHON:-python3}; do
    if "$p" -c 'import torch' 2>/dev/null; then
        pythons="$pythons $p"
    else
        echo "PyTorch skipped: $p has no torch (set MEG_PYTHON)"
    fi
done
[ -n "${MEG_LLMC:-}" ] || echo "llm.c skipped: MEG_LLMC does not name a folder with train_gpt2 and its data"

for run in $(seq "$runs"); do
    for t in $lengths; do
        for dtype in $dtypes; do
            "$B/tests/bench/peak" >>"$T/peak"
            ours "$t" "$dtype"
            peers "$t" "$dtype"
        done
    done
    [ ! -t 2 ] || printf '%s of %s\r' "$run" "$runs" >&2
done

# A small model from the shell's call to its first log line, which ends the first iteration.
if command -v meg-train >/dev/null; then
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
    "step of GPT-2 124M, B=4: medians of \($runs) turns; multiply-add peak \($peak.f32 | fixed(0)) GF/s in f32, " +
        "\($peak.bf16 | shown(fixed(0))) in bf16",
    (group_by([.T, .dtype != "f32"])[] | (map(select(.is_ours)) | median_of(.step_ms)) as $ours |
        (["\(.[0].dtype), T=\(.[0].T)", "ms", "tokens/s", "GF/s", "of peak", "threads", "CPU", "MiB", "meg is"] | row),
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
