#!/bin/sh
# make check-gpu: compare the CUDA backend with the CPU on a GPU.  Prints TAP, and takes less than six minutes.
#   SANITIZER_S=N   limit in seconds of each of the two runs of compute-sanitizer, which run concurrently with the other
#                   checks (default: 200)
#   SEED=N   seed of the operands (default: the process id)
# On a Hopper GPU, a build with CUDA_ARCHS=90 instead of 90a checks the attention kernels that other GPUs use.
MEG_TEST_GPU=1
. "${0%/*}/../lib.sh"
gpu=${gpu:-$(dirname "$(command -v meg-train)")}
seed=${SEED:-$$}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sed 's/^/# GPU: /'
export MEG_CACHE_DIR="$T/cache"

# sanitize TOOL: run cases of kernels under a tool of compute-sanitizer, which makes them about fifty times slower
sanitize() {
    timeout "${SANITIZER_S:-200}" compute-sanitizer --tool "$1" --error-exitcode 9 "$B/tests/cuda/check-gpu" glu rope \
        'norm_bwd: rows' 'add_norm_fwd: rows' add_bwd xent_fwd_bwd 'sample: top' embed_bwd sumsq adamw cast copy_heads \
        'attn: causal' 'attn: dropout' 'attn: ALiBi' attn_fwd \
        >"$T/$1" 2>&1
    echo $? >"$T/$1.status"
}
tools=
if command -v compute-sanitizer >/dev/null; then
    tools='memcheck racecheck'
    for tool in $tools; do
        sanitize "$tool" &
    done
else
    skip 'compute-sanitizer finds nothing' 'no compute-sanitizer'
fi

"$B/tests/cuda/check-gpu" --seed "$seed" >"$T/check" 2>"$T/err"
is "operations are those of the CPU with seed $seed" "$? $(grep -c '^ok' "$T/check")" "0 $(sed -n 's/^1\.\.//p' "$T/check")"
grep -v '^ok' "$T/check" | sed 's/^\([^#]\)/# \1/'
sed 's/^/# /' "$T/err"

. "${0%/*}/runs.sh"

wait
for tool in $tools; do
    is "compute-sanitizer --tool $tool finds nothing" "$(cat "$T/$tool.status")" 0
    grep -A 12 '=========' "$T/$tool" | head -60 | sed 's/^/# /'
done
done_testing
