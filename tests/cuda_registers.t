#!/bin/sh
# modules: cuda
# The registers, shared memory, stack and spills of the kernels are those of data/cuda/registers.txt.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
set -- "$B"/lib/cuda/*.cu.o.ptxas "$B"/lib/cuda/*/*.cu.o.ptxas
[ -f "$1" ] || skip_all 'this build has no CUDA'

status 'the build has a report of each file' 0 tests/cuda/registers.sh
mv "$T/out" "$T/registers"
is 'no kernel uses stack or spills registers' "$(grep -hE -B 1 '\b[1-9][0-9]* bytes (stack|spill)' "$@" | c++filt -p)" ''
is 'no product of matrices waits for the previous one' "$(grep -h 'wgmma.*serialized' "$@")" ''
compiler=$(sed -n '1s/ for .*//p' "$T/registers")
committed=$(sed -n '1s/ for .*//p' tests/data/cuda/registers.txt)
if [ "$compiler" = "$committed" ]; then
    targets=$(sed -n '1s/.* for //p' "$T/registers" | tr ' ' '|')
    grep -E "^($targets) " tests/data/cuda/registers.txt >"$T/want"
    is 'the resources of the kernels are those of tests/data/cuda/registers.txt; update it by tests/cuda/registers.sh' \
        "$(grep '^sm_' "$T/registers" | diff "$T/want" -)" ''
else
    skip 'the resources of the kernels are those of tests/data/cuda/registers.txt' "compiled by $compiler, the table by $committed"
fi
done_testing
