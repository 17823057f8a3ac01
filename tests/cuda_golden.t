#!/bin/sh
# needs: cuda/unit cuda/check
# modules: cuda
# The unit tests that compare models with reference numbers (tests/unit/golden_device.h), on the CUDA backend: losses,
# logits, gradients, steps of AdamW and filled masks of each family.  There is no GPU: the kernels are compiled for the
# CPU (tests/cuda/emulate.h), and the CUDA runtime, cuBLASLt and cuDNN are test doubles that detect errors.
. "${0%/*}/lib.sh"
[ -x "$B/tests/cuda/check" ] || skip_all 'this build has no headers of CUDA and NCCL'
cd "${0%/*}/.." || exit 1
export MEG_TEST_GPU=1 CMOCKA_MESSAGE_OUTPUT=TAP

for program in "$B"/tests/cuda/unit/*/*; do
    name=${program#"$B/tests/cuda/unit/"}
    "$program" >"$T/out" 2>"$T/err"
    is "$name: all tests pass, and the doubles detect no error" "$? $(grep -c '^ok' "$T/out") $(cat "$T/err")" \
        "0 $(sed -n 's/^1\.\.//p' "$T/out") "
    grep -v '^ok' "$T/out" | sed 's/^/# /'
done
done_testing
