#!/bin/sh
# make check-gpu: compare the CUDA backend with the CPU on a GPU.  Prints TAP, and takes less than six minutes.
#   SANITIZER_S=N   limit of compute-sanitizer in seconds (default: 150)
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
if command -v compute-sanitizer >/dev/null; then
    timeout "${SANITIZER_S:-150}" compute-sanitizer --error-exitcode 9 "$B/tests/cuda/check-gpu" glu rope 'norm_bwd: rows' 'add_norm_fwd: rows' \
        add_bwd xent_fwd_bwd embed_bwd sumsq adamw cast copy_heads 'attn_fwd' 'attn_bwd' >"$T/out" 2>"$T/err"
    is 'compute-sanitizer finds no invalid access' "$?" 0
    cat "$T/out" "$T/err" | grep -A 12 '=========' | head -60 | sed 's/^/# /'
else
    skip 'compute-sanitizer finds no invalid access' 'no compute-sanitizer'
fi
done_testing
