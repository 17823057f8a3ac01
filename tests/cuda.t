#!/bin/sh
# needs: cuda/check cuda/bin
# modules: cuda
# The CUDA backend without a GPU: its kernels are compiled for the CPU (tests/cuda/emulate.h), and the CUDA runtime,
# cuBLASLt and cuDNN are test doubles.  Operations and training runs are compared with those of the CPU backend.
. "${0%/*}/lib.sh"
[ -x "$B/tests/cuda/check" ] || skip_all 'this build has no headers of CUDA and NCCL'
export MEG_CACHE_DIR="$T/cache"

"$B/tests/cuda/check" >"$T/check" 2>"$T/err"
is 'all cases run' "$? $(cat "$T/err")" '0 '
while read -r line; do
    case $line in
    'ok '*) tap_result 0 "${line#* - }" ;;
    'not ok '*) tap_result 1 "${line#* - }" "$messages" ;;
    esac
    case $line in
    '#'*) messages="$messages$line
" ;;
    *) messages= ;;
    esac
done <"$T/check"

MEG_DOUBLE_CC=80 "$B/tests/cuda/check" attn: attn_fwd: attn_bwd: >"$T/check" 2>"$T/err"
is 'attention on GPUs before Hopper, which have no wgmma' "$? $(grep -vc '^ok' "$T/check") $(cat "$T/err")" '0 1 '

# shellcheck disable=SC2034 # used by runs.sh
gpu=$B/tests/cuda/bin few=1
. "${0%/*}/cuda/runs.sh"
ok 'decoding steps are launched as graphs' grep -q graph "$T/launches.decode"
done_testing
