#!/bin/sh
# The training step of GPT-2's 124M in f32, B=4, T=64 and T=1024, beside PyTorch's eager step and llm.c's trainer,
# and how much of the measured multiply-add peak it is.  Contenders take turns; medians of the turns are printed.
#   BENCH_RUNS     turns (5); each is the median of BENCH_STEPS steps at T=64 (7) and of 2 at T=1024
#   MEG_PYTHON     pythons that have torch, apart by spaces, e.g. Debian's and one with the current wheel (python3)
#   MEG_LLMC       a folder with llm.c's train_gpt2 built, and the weights and tokens it reads (B=4, T=64)
#   BENCH_T        the lengths ("64 1024")
# Needs all cores to itself: with other work beside it, only the ratios mean something.
set -eu
cd "${0%/*}/../.."
LC_ALL=C
export LC_ALL
B=${B:-build}
T=$(mktemp -d "${TMPDIR:-/tmp}/meg-bench.XXXXXX")
trap 'rm -rf "$T"' EXIT
trap 'exit 1' HUP INT TERM
: >"$T/start"
runs=${BENCH_RUNS:-5}
lengths=${BENCH_T:-64 1024}

steps() { # T
    if [ "$1" -le 256 ]; then echo "${BENCH_STEPS:-7}"; else echo 2; fi
}

# PyTorch at its best: threads bound, and the OpenBLAS of Debian's build told of AVX-512 and to use OpenMP.
peer() { # PYTHON T
    (
        export OMP_PROC_BIND=close OMP_PLACES=cores
        if grep -qs avx512f /proc/cpuinfo; then export OPENBLAS_CORETYPE=SkylakeX; fi
        for d in /usr/lib/*/openblas-openmp; do
            [ -d "$d" ] && export LD_LIBRARY_PATH="$d${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        done
        "$1" tests/peers/step.py "$2" 4 "$(steps "$2")"
    )
}

# llm.c prints "step 3: train loss 4.1 (took 2680.1 ms)"; the first is left out.
llmc() {
    (
        cd "$MEG_LLMC"
        OMP_PROC_BIND=close OMP_PLACES=cores timeout "${BENCH_LLMC_S:-60}" stdbuf -oL ./train_gpt2 || :
    ) |
        sed -n 's/.*took \([0-9.]*\) ms.*/\1/p' | sed 1d | sort -n | awk '{ v[NR] = $1 }
            END { if (NR) printf "{\"name\":\"llm.c\",\"T\":64,\"B\":4,\"step_ms\":%s,\"tokens_per_s\":%.1f}\n", v[int(NR / 2) + 1],
                                 256e3 / v[int(NR / 2) + 1] }'
}

pythons=
for p in ${MEG_PYTHON:-python3}; do
    if "$p" -c 'import torch' 2>/dev/null; then
        pythons="$pythons $p"
    else
        echo "PyTorch left out: $p has no torch (MEG_PYTHON names one that has)"
    fi
done
[ -n "${MEG_LLMC:-}" ] || echo "llm.c left out: MEG_LLMC does not name a folder with train_gpt2 and its data"

for run in $(seq "$runs"); do
    for t in $lengths; do
        "$B/tests/bench/peak" >>"$T/peak"
        "$B/tests/bench/step" "$t" 4 "$(steps "$t")" | sed 's/^{/{"name":"meg",/' >>"$T/out"
        for p in $pythons; do
            peer "$p" "$t" >>"$T/out" 2>"$T/err" || { cat "$T/err" >&2; exit 1; }
        done
        if [ -n "${MEG_LLMC:-}" ] && [ "$t" -eq 64 ]; then llmc >>"$T/out"; fi
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

jq -rs --rawfile peaks "$T/peak" --rawfile start "$T/start" --argjson runs "$runs" '
    def median: sort | .[length / 2 | floor];
    def numbers: split("\n") | map(select(. != "") | tonumber);
    def fixed(n): . * pow(10; n) | round / pow(10; n) | tostring;
    def right(n): tostring | " " * (n - length) + .;
    def left(n): . + " " * (n - length);
    ($peaks | numbers | median) as $peak |
    "step of GPT-2 124M, f32, B=4: medians of \($runs) turns; multiply-add peak \($peak | fixed(0)) GF/s",
    (group_by(.T)[] | (map(select(.name == "meg")) | map(.step_ms) | median) as $ours |
        (["", "T", "ms", "tokens/s", "GF/s", "of peak", "MiB", "meg is"] as $h |
            ($h[0] | left(26)) + ($h[1:] | map(right(10)) | join(""))),
        (group_by(.name)[] | . as $all | (map(.step_ms) | median) as $ms |
            (map(.gflops // empty) | if length > 0 then median else null end) as $gf |
            ($all[0].name | left(26)) +
            ([$all[0].T, ($ms | fixed(0)), (map(.tokens_per_s) | median | fixed(0)),
              ($gf // "-" | if type == "number" then fixed(0) else . end),
              (if $gf then "\(100 * $gf / $peak | fixed(1))%" else "-" end),
              (map(.peak_mib // empty) | if length > 0 then max else "-" end),
              (if $all[0].name == "meg" then "" else "\($ms / $ours | fixed(2))x" end)] | map(right(10)) | join("")))),
    "AdamW: \(map(.adamw_gb_per_s // empty) | median | fixed(1)) GB/s at 28 bytes a parameter",
    (if $start == "" then empty else
        "from the call of meg-train to the end of the first iteration, 2 layers of 128: \($start | numbers | median / 1000 | fixed(0)) ms"
     end)' "$T/out"
