#!/bin/sh
# make check-gpu: compare the CUDA backend with the CPU on a GPU.  Prints TAP, and takes less than six minutes.
#   SANITIZER_S=N   limit of each run of compute-sanitizer in seconds (default: 100)
#   SEED=N   seed of the operands (default: the process id)
MEG_TEST_GPU=1
. "${0%/*}/../lib.sh"
gpu=${gpu:-$(dirname "$(command -v meg-train)")}
seed=${SEED:-$$}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sed 's/^/# GPU: /'
export MEG_CACHE_DIR="$T/cache"

"$B/tests/cuda/check-gpu" --seed "$seed" >"$T/check" 2>"$T/err"
is "operations are those of the CPU with seed $seed" "$? $(grep -c '^ok' "$T/check")" "0 $(sed -n 's/^1\.\.//p' "$T/check")"
grep -v '^ok' "$T/check" | sed 's/^\([^#]\)/# \1/'
sed 's/^/# /' "$T/err"

. "${0%/*}/runs.sh"

# compute-sanitizer is about fifty times slower than the cases themselves.
for tool in memcheck racecheck; do
    if ! command -v compute-sanitizer >/dev/null; then
        skip "compute-sanitizer --tool $tool finds nothing" 'no compute-sanitizer'
        continue
    fi
    timeout "${SANITIZER_S:-100}" compute-sanitizer --tool "$tool" --error-exitcode 9 "$B/tests/cuda/check-gpu" glu rope \
        'norm_bwd: rows' 'add_norm_fwd: rows' add_bwd xent_fwd_bwd 'sample: top' embed_bwd sumsq adamw cast copy_heads \
        'attn: causal' 'attn: dropout' 'attn: ALiBi' attn_fwd \
        >"$T/out" 2>"$T/err"
    is "compute-sanitizer --tool $tool finds nothing" "$?" 0
    cat "$T/out" "$T/err" | grep -A 12 '=========' | head -60 | sed 's/^/# /'
done
done_testing
